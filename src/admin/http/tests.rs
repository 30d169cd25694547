//! Connections whose request takes long, or whose client disconnects meanwhile. Time is simulated.

use std::future::Future;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tollgate_clock::Clock;

use super::super::changes::{ApplyFuture, Caller};
use super::super::tests::default_settings;
use super::*;

/// Makes a change when it is released.
#[derive(Default)]
struct Held {
    begun: Notify,
    release: Notify,
    completed: Notify,
}

impl Changes for Held {
    fn apply(&self, _: Change, _: Caller) -> ApplyFuture<'_> {
        Box::pin(async {
            self.begun.notify_one();
            self.release.notified().await;
            self.completed.notify_one();
            Ok(Applied::Purged { removed: 7 })
        })
    }
}

/// Runs a test without waiting: the time passes when all its tasks wait.
fn simulated(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(test);
}

/// A connection of a trusted client, with a buffer of so many bytes.
fn connect(service: Arc<dyn Changes>, bytes: usize) -> (DuplexStream, JoinHandle<()>) {
    let settings = default_settings();
    let endpoints = Endpoints {
        telemetry: Telemetry::with_log(&settings, Clock::system(), None).expect("it starts"),
        liveness: Box::new(|| Box::pin(async { Workers::default() })),
        readiness: Box::new(Default::default),
        providers: Arc::new(|| serde_json::json!([])),
        service,
        access: Arc::new(Access::new(&settings.admin, Clock::system())),
        api: None,
    };
    let peer = Peer {
        address: "127.0.0.1:1".parse().expect("an address"),
        is_trusted: true,
    };
    let (client, server) = tokio::io::duplex(bytes);
    let served = tokio::spawn(serve_connection(server, Arc::new(endpoints), peer));
    (client, served)
}

async fn purge(client: &mut DuplexStream, held: &Held) {
    let request = b"DELETE /cache?all HTTP/1.1\r\nhost: a\r\n\r\n";
    client.write_all(request).await.expect("sent");
    held.begun.notified().await;
}

#[test]
fn a_change_is_completed_though_its_client_has_disconnected() {
    simulated(async {
        let held = Arc::new(Held::default());
        let (mut client, served) = connect(held.clone(), 1024);
        purge(&mut client, &held).await;
        drop(client);
        served.await.expect("no panic");
        held.release.notify_one();
        let completed = tokio::time::timeout(CONNECTION, held.completed.notified());
        completed.await.expect("it is completed");
    });
}

#[test]
fn a_change_that_takes_longer_than_a_connection_takes_requests_is_answered() {
    simulated(async {
        let held = Arc::new(Held::default());
        let (mut client, served) = connect(held.clone(), 1024);
        purge(&mut client, &held).await;
        let early = tokio::time::timeout(10 * CONNECTION, client.read_u8()).await;
        early.expect_err("the connection is open, without an answer");
        held.release.notify_one();
        let mut answer = String::new();
        let read = client.read_to_string(&mut answer).await;
        read.expect("the connection is closed after it");
        assert!(answer.ends_with("{\"removed\":7}\n"), "{answer}");
        served.await.expect("no panic");
    });
}

#[test]
fn a_connection_whose_client_does_not_read_is_closed() {
    simulated(async {
        let held = Arc::new(Held::default());
        let (mut client, served) = connect(held.clone(), 64);
        purge(&mut client, &held).await;
        held.release.notify_one();
        let limit = 2 * (CONNECTION + LAST_ANSWER);
        let ended = tokio::time::timeout(limit, served).await;
        ended.expect("it is closed").expect("no panic");
    });
}
