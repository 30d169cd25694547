//! Connections whose request takes long, or whose client disconnects meanwhile. Time is simulated.

use std::future::Future;

use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tollgate_clock::Clock;
use tollgate_testing::within;

use super::super::changes::Caller;
use super::super::operations::operation::{Applied, ApplyFuture, Request};
use super::super::tests::default_settings;
use super::*;

/// Makes a change after the release.
#[derive(Default)]
struct GatedChanges {
    begun: Notify,
    release: Notify,
    completed: Notify,
}

impl Changes for GatedChanges {
    fn apply(&self, _: Box<dyn Request>, _: Caller) -> ApplyFuture<'_> {
        Box::pin(async {
            self.begun.notify_one();
            self.release.notified().await;
            self.completed.notify_one();
            Ok(Applied::of::<cache::Purge>(cache::Purged { removed: 7 }))
        })
    }
}

/// Runs a test without waiting: the time advances when every task waits.
fn simulated(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .start_paused(true)
        .build()
        .expect("a runtime");
    runtime.block_on(test);
}

fn endpoints(service: Arc<dyn Changes>) -> Endpoints {
    let settings = default_settings();
    Endpoints {
        telemetry: Telemetry::with_log(&settings, Clock::system(), None).expect("it starts"),
        liveness: Box::new(|| Box::pin(async { Workers::default() })),
        readiness: Box::new(Default::default),
        providers: Arc::new(|| serde_json::json!([])),
        service,
        access: Arc::new(Access::new(&settings.admin, Clock::system())),
        api: None,
        // The test decides when an answer is ready.
        answers_within: Duration::from_mins(1),
    }
}

/// A connection of a trusted client, with a buffer of `bytes` bytes.
fn connect(service: Arc<dyn Changes>, bytes: usize) -> (DuplexStream, JoinHandle<()>) {
    let peer = Peer {
        address: "127.0.0.1:1".parse().expect("an address"),
        is_trusted: true,
    };
    let (client, server) = tokio::io::duplex(bytes);
    let served = async move {
        let (_running, stopped) = watch::channel(false);
        let endpoints = Arc::new(endpoints(service));
        let (clock, telemetry) = (
            endpoints.access.clock().clone(),
            endpoints.telemetry.clone(),
        );
        let connections = Connections::new(PLACES, clock, telemetry, ConnectionSide::Admin);
        let place = connections.accept(None).expect("a place");
        serve_connection(server, endpoints, peer, &place, stopped).await;
    };
    (client, tokio::spawn(served))
}

async fn purge(client: &mut (impl AsyncWrite + Unpin), held: &GatedChanges) {
    let request = b"DELETE /cache?all HTTP/1.1\r\nhost: localhost\r\n\r\n";
    client.write_all(request).await.expect("sent");
    held.begun.notified().await;
}

#[test]
fn a_change_is_completed_though_its_client_has_disconnected() {
    simulated(async {
        let held = Arc::new(GatedChanges::default());
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
        let held = Arc::new(GatedChanges::default());
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
        let held = Arc::new(GatedChanges::default());
        let (mut client, served) = connect(held.clone(), 64);
        purge(&mut client, &held).await;
        held.release.notify_one();
        let limit = 2 * (CONNECTION + LAST_ANSWER);
        let ended = tokio::time::timeout(limit, served).await;
        ended.expect("it is closed").expect("no panic");
    });
}

#[tokio::test]
async fn a_change_under_way_is_answered_before_the_thread_ends() {
    let held = Arc::new(GatedChanges::default());
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("it is set");
    let address = listener.local_addr().expect("it is bound");
    let (stop, stopped) = watch::channel(false);
    let endpoints = endpoints(held.clone());
    let thread = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime");
        let (_kept, released) = watch::channel(false);
        runtime.block_on(serve(listener, endpoints, stopped, released));
    });
    let mut client = TcpStream::connect(address).await.expect("it accepts");
    purge(&mut client, &held).await;
    stop.send_replace(true);
    let refused = async { while TcpStream::connect(address).await.is_ok() {} };
    within("the end of listening", refused).await;
    held.release.notify_one();
    let mut answer = String::new();
    let read = client.read_to_string(&mut answer).await;
    read.expect("the connection is closed after it");
    assert!(answer.ends_with("{\"removed\":7}\n"), "{answer}");
    thread.join().expect("no panic");
}
