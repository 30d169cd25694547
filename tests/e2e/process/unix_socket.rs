//! Listeners on Unix sockets: their files, the address of their clients, and upgrades.

use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use tollgate_testing::{RawClient, Script};

use super::installation::{Installation, ended};
use super::upgrade::{Successor, first_ended};
use crate::rig::{CHAT, chat};

/// A third listener on a Unix socket beside the settings.
async fn installation(more: &str) -> (Installation, PathBuf) {
    let settings =
        format!("[[listener]]\n[[listener]]\n[[listener]]\naddress = 'unix:http.sock'\n{more}");
    let installation = Installation::new(&settings).await;
    let path = installation.folder.path().join("http.sock");
    (installation, path)
}

/// The status of a request on a connection, after `before`.
async fn status(path: &Path, before: &str, key: &str) -> Option<u16> {
    let mut client = RawClient::connect_unix(path).await.expect("it listens");
    let request = format!(
        "{before}GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\n\r\n"
    );
    // A refused connection may be closed before.
    client.try_send(&request).await.ok()?;
    let head = client.try_read_head().await.ok()??;
    Some(head.status())
}

fn mode(path: &Path) -> u32 {
    let there = std::fs::metadata(path).expect("it is there");
    assert!(there.file_type().is_socket());
    there.permissions().mode() & 0o777
}

#[tokio::test]
async fn a_listener_on_a_unix_socket_serves_and_removes_its_file() {
    let (installation, path) = installation("socket_mode = '0600'").await;
    // Left by a killed process.
    drop(UnixListener::bind(&path).expect("bound"));
    let mut serving = installation.serve().await;
    assert_eq!(mode(&path), 0o600);
    let output = serving.process.output();
    let line = format!("listening address=unix:{} tls=false", path.display());
    assert!(output.contains(&line), "{output}");
    assert_eq!(status(&path, "", &installation.key).await, Some(200));
    assert_eq!(status(&path, "", "sk-svc-wrong").await, Some(401));
    let mut client = RawClient::connect_unix(&path).await.expect("it listens");
    let body = chat(true).to_string();
    client.post(CHAT, &installation.key, &body).await;
    let head = client.read_head().await;
    assert_eq!(head.status(), 200);
    let (events, end) = client.rest_of_events(&head).await;
    assert!(events.last().expect("events").is_done(), "{end:?}");

    // A second program finds the socket in use, and leaves the socket alone.
    let second = installation.folder.path().join("second.toml");
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    std::fs::write(&second, text.replace("tollgate.db", "second.db")).expect("written");
    let mut other = installation.spawn(installation.command_with(&second, &["serve"]));
    assert!(!ended(&mut other).await.success());
    let refused = other.output();
    assert!(
        refused.contains("another process listens there"),
        "{refused}"
    );
    assert_eq!(status(&path, "", &installation.key).await, Some(200));

    serving.process.signal("TERM");
    assert!(ended(&mut serving.process).await.success());
    assert!(!path.exists(), "the file is gone");
    installation.audit().await;
}

#[tokio::test]
async fn a_file_that_is_no_socket_is_not_replaced() {
    let (installation, path) = installation("").await;
    std::fs::write(&path, "text").expect("written");
    let (status, output) = installation.fail().await;
    assert!(!status.success());
    assert!(output.contains("is not a socket"), "{output}");
    assert_eq!(std::fs::read_to_string(&path).expect("a text"), "text");
}

#[tokio::test]
async fn a_peer_on_a_unix_socket_counts_as_this_machine() {
    let header = "PROXY TCP4 192.0.2.7 192.0.2.1 1234 80\r\n";
    for (trusted, before, expected) in [
        ("'127.0.0.1'", header, Some(200)),
        ("'127.0.0.1'", "", None),
        ("'192.0.2.1'", header, None),
    ] {
        let more = format!("trusted_proxies = [{trusted}]\nproxy_protocol = true");
        let (installation, path) = installation(&more).await;
        let mut serving = installation.serve().await;
        assert_eq!(mode(&path), 0o660, "the default");
        let found = status(&path, before, &installation.key).await;
        assert_eq!(found, expected, "{trusted} {before:?}");
        serving.process.signal("TERM");
        assert!(ended(&mut serving.process).await.success());
    }
}

#[tokio::test]
async fn an_upgrade_passes_a_unix_socket_on() {
    let (installation, path) = installation("").await;
    let mut serving = installation.serve().await;
    let inode = std::fs::metadata(&path).expect("it is there").ino();
    installation.provider.script(Script::pace("piece").once());
    installation.provider.gate("piece").release(1);
    let mut client = RawClient::connect_unix(&path).await.expect("it listens");
    let body = chat(true).to_string();
    client.post(CHAT, &installation.key, &body).await;
    let head = client.read_head().await;
    let gate = installation.provider.gate("piece");
    gate.reached_by(1).await;
    let successor = Successor::of(&installation).await;
    assert_eq!(status(&path, "", &installation.key).await, Some(200));
    gate.open();
    let (events, end) = client.rest_of_events(&head).await;
    assert!(events.last().expect("events").is_done(), "{end:?}");
    drop(client);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    assert_eq!(std::fs::metadata(&path).expect("it stays").ino(), inode);
    assert_eq!(status(&path, "", &installation.key).await, Some(200));
    successor.stop().await;
    assert!(!path.exists(), "the file is gone");
}
