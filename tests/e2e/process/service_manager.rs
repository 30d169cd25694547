//! Messages to the service manager, in the form for systemd (sd_notify(3)).

use std::path::PathBuf;
use std::process::Command;

use tokio::net::UnixDatagram;
use tokio::sync::mpsc;
use tollgate_testing::{Postgres, within};

use super::installation::{Installation, ended};
use super::reload::edit;
use super::spool::linked_database;
use super::upgrade::{Successor, first_ended};

/// The socket of a service manager.
struct Manager {
    path: PathBuf,
    /// The messages, in their order. The messages are read at once: a full queue would block the gateway.
    messages: mpsc::UnboundedReceiver<String>,
}

impl Manager {
    fn of(installation: &Installation) -> Manager {
        let path = installation.folder.path().join("notify");
        let socket = UnixDatagram::bind(&path).expect("a socket");
        let (sender, messages) = mpsc::unbounded_channel();
        tokio::spawn(async move {
            let mut bytes = [0; 1024];
            loop {
                let length = socket.recv(&mut bytes).await.expect("a message");
                let text = str::from_utf8(&bytes[..length]).expect("text");
                if sender.send(text.to_owned()).is_err() {
                    return;
                }
            }
        });
        Manager { path, messages }
    }

    /// `tollgate serve` under the manager, with a watchdog of the started process.
    fn serve(&self, installation: &Installation) -> Command {
        let mut command = installation.command_after("export WATCHDOG_PID=$$", &["serve"]);
        command
            .env("NOTIFY_SOCKET", &self.path)
            .env("WATCHDOG_USEC", "100000");
        command
    }

    /// Reads messages until a message has the line `wanted`.
    async fn line(&mut self, wanted: &str) {
        self.line_that(wanted, |line| line == wanted).await;
    }

    async fn line_that(&mut self, what: &str, is_it: impl Fn(&str) -> bool) {
        let read = async {
            loop {
                let message = self.messages.recv().await.expect("the socket stays open");
                if message.lines().any(&is_it) {
                    return;
                }
            }
        };
        within(what, read).await;
    }

    /// Skips the messages sent before the call.
    async fn skip(&mut self) {
        const MARK: &str = "X_TEST=here";
        let socket = UnixDatagram::unbound().expect("a socket");
        let sent = socket.send_to(MARK.as_bytes(), &self.path).await;
        sent.expect("the socket takes it");
        self.line(MARK).await;
    }
}

#[tokio::test]
async fn the_service_manager_is_notified_of_the_start_the_stop_and_of_workers_that_answer() {
    let installation = Installation::new("").await;
    let mut manager = Manager::of(&installation);
    let mut process = installation.spawn(manager.serve(&installation));
    manager.line("READY=1").await;
    for _ in 0..3 {
        manager.line("WATCHDOG=1").await;
    }
    process.signal("TERM");
    manager.line("STOPPING=1").await;
    assert_eq!(ended(&mut process).await.code(), Some(0));
}

/// Without the number of the new process, the manager would take the end of the first process for the end of the service. Without messages
/// of the new process to the watchdog, the manager would restart a working gateway.
#[tokio::test]
async fn the_service_manager_supervises_the_new_process_after_an_upgrade() {
    let installation = Installation::new("").await;
    let mut manager = Manager::of(&installation);
    let command = manager.serve(&installation);
    let mut serving = installation.serve_as(command).await;
    manager.line("READY=1").await;
    let successor = Successor::of(&installation).await;
    manager.line(&format!("MAINPID={}", successor.0)).await;
    assert_eq!(first_ended(&mut serving).await, Some(0));
    manager.skip().await;
    for _ in 0..3 {
        manager.line("WATCHDOG=1").await;
    }
    successor.stop().await;
    manager.line("STOPPING=1").await;
}

/// The limit of a start is ten minutes, and the start waits for an unresponsive server until the server answers.
#[tokio::test]
async fn the_service_manager_waits_with_a_start_for_the_database() {
    const LONGER: &str = "EXTEND_TIMEOUT_USEC=600000000";
    let (link, url, _) = linked_database();
    let installation = Installation::on_postgres(&url, "").await;
    let mut manager = Manager::of(&installation);
    link.stall();
    let mut stopped = installation.spawn(manager.serve(&installation));
    manager.line(LONGER).await;
    stopped.signal("TERM");
    assert_eq!(ended(&mut stopped).await.code(), Some(0));
    let output = stopped.output();
    assert!(
        !output.contains("waiting for it"),
        "it has ended before the server answered:\n{output}"
    );

    link.cut();
    let mut process = installation.spawn(manager.serve(&installation));
    let status = "STATUS=waiting for the database: could not connect to";
    manager
        .line_that(status, |line| line.starts_with(status))
        .await;
    for _ in 0..3 {
        manager.line(LONGER).await;
    }
    link.restore();
    manager.line("READY=1").await;
    process.signal("TERM");
    assert_eq!(ended(&mut process).await.code(), Some(0));
}

/// The standby's start is complete: without reports, the watchdog would end the standby.
#[tokio::test]
async fn a_standby_reports_to_the_watchdog() {
    let url = Postgres::shared().database();
    let installation = Installation::on_postgres(&url, "").await;
    let _serving = installation.serve().await;
    edit(&installation, |table| {
        let store = table["store"].as_table_mut().expect("a table");
        store.insert("standby".to_owned(), true.into());
    });
    let mut manager = Manager::of(&installation);
    let _standby = installation.spawn(manager.serve(&installation));
    manager.line("READY=1").await;
    for _ in 0..3 {
        manager.line("WATCHDOG=1").await;
    }
}
