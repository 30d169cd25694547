//! Messages to the service manager, as systemd gets them (sd_notify(3)).

use tokio::net::UnixDatagram;
use tollgate_testing::within;

use super::installation::{Installation, ended};

/// Reads messages until one has this line.
async fn line(socket: &UnixDatagram, wanted: &str) {
    let mut bytes = [0; 1024];
    let read = async {
        loop {
            let length = socket.recv(&mut bytes).await.expect("a message");
            let text = str::from_utf8(&bytes[..length]).expect("text");
            if text.lines().any(|line| line == wanted) {
                return;
            }
        }
    };
    within(wanted, read).await;
}

#[tokio::test]
async fn the_service_manager_is_notified_of_the_start_the_stop_and_of_workers_that_answer() {
    let installation = Installation::new("").await;
    let path = installation.folder.path().join("notify");
    let socket = UnixDatagram::bind(&path).expect("a socket");
    let mut command = installation.command(&["serve"]);
    command
        .env("NOTIFY_SOCKET", &path)
        .env("WATCHDOG_USEC", "100000");
    let mut process = installation.spawn(command);
    line(&socket, "READY=1").await;
    for _ in 0..3 {
        line(&socket, "WATCHDOG=1").await;
    }
    process.signal("TERM");
    line(&socket, "STOPPING=1").await;
    assert_eq!(ended(&mut process).await.code(), Some(0));
}
