//! Request heads as memory: clients without reads of answers, clients with unfinished heads, and requests in wait at a closed gate.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::thread::JoinHandle;
use std::time::Duration;

use tokio::sync::oneshot;
use tollgate_testing::{RawClient, within};

use super::installation::{Installation, Serving, ended};
use super::memory::{LIMIT_BYTES, peak};
use super::upgrade::{address, first_ended, slow_body};
use super::upgrade_faults::{logged, new_process};
use crate::frames::{END_HEADERS, END_STREAM, HEADERS, PREFACE, SETTINGS, fields, frame};
use crate::rig::{CHAT, Setup, chat};

/// Streams per connection.
const STREAMS: u8 = 100;

/// The length of a field's value that fills the table of HPACK. A reference to the field is one byte (RFC 7541 section 6.1).
const VALUE_BYTES: usize = 3_900;

/// Eight references: 31 KB by the count of HTTP/2.
const REFERENCES: [u8; 8] = [0xbe; 8];

const REQUESTS: usize = 40;

async fn limited() -> Installation {
    let settings = format!(
        r#"
        [server]
        memory_bytes_max = {LIMIT_BYTES}

        [telemetry]
        access_log = "none"
        "#
    );
    Installation::of(Setup::with(&settings)).await
}

/// A connection with closed windows, with the maximum number of open streams, and optional trailers.
fn stalled_streams(has_trailers: bool) -> Vec<u8> {
    // SETTINGS_INITIAL_WINDOW_SIZE (RFC 9113 section 6.5.2).
    let mut sent = [PREFACE, &frame(SETTINGS, 0, 0, &[0, 4, 0, 0, 0, 0])].concat();
    let request = fields(&[
        (":method", "GET"),
        (":scheme", "http"),
        (":authority", "localhost"),
        (":path", "/v1/models"),
    ]);
    for number in 0..STREAMS {
        let stream = 2 * number + 1;
        let mut block = request.clone();
        if number == 0 {
            // A literal with indexing; the length is 127, and the rest in groups of seven bits.
            let rest = VALUE_BYTES - 127;
            block.extend([0x40, 1, b'x', 127, rest as u8 | 0x80, (rest >> 7) as u8]);
            block.extend([b'v'; VALUE_BYTES]);
        } else {
            block.extend(REFERENCES);
        }
        let has_trailers = has_trailers && number > 0;
        let end = if has_trailers { 0 } else { END_STREAM };
        sent.extend(frame(HEADERS, END_HEADERS | end, stream, &block));
        if has_trailers {
            sent.extend(frame(
                HEADERS,
                END_HEADERS | END_STREAM,
                stream,
                &REFERENCES,
            ));
        }
    }
    sent
}

/// Connections on a separate thread. A connection sends bytes and never reads.
struct Stalled {
    end: oneshot::Sender<()>,
    thread: JoinHandle<()>,
}

impl Stalled {
    fn start(address: SocketAddr, from: Vec<IpAddr>, bytes: Vec<u8>) -> Stalled {
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            let bytes = bytes::Bytes::from(bytes);
            for from in from {
                let bytes = bytes.clone();
                runtime.spawn(async move {
                    if let Ok(mut raw) = RawClient::connect_from(from, address).await {
                        let _ = raw.try_send(bytes).await;
                        std::future::pending::<()>().await;
                    }
                });
            }
            // The sender is dropped where the test has failed.
            let _ = runtime.block_on(ended);
        });
        Stalled { end, thread }
    }

    fn end(self) {
        drop(self.end);
        self.thread.join().expect("no panic");
    }
}

/// `count` connections per address, from `addresses` addresses.
fn addresses(addresses: u8, count: usize) -> Vec<IpAddr> {
    let from = |number| IpAddr::from(Ipv4Addr::new(127, 0, 1, number));
    let one = |number| std::iter::repeat_n(from(number), count);
    (1..=addresses).flat_map(one).collect()
}

async fn taken(serving: &Serving) -> u64 {
    serving.metric("tollgate_memory_taken_bytes").await
}

/// An attack is refused and counted. Meanwhile a second client gets answers, and the process stays within the limit. The attack leaves no
/// memory behind.
async fn is_withstood(from: Vec<IpAddr>, bytes: Vec<u8>, least_taken: u64) {
    let installation = limited().await;
    let serving = installation.serve().await;
    let client = serving.client(&installation);
    let attack = || Stalled::start(address(&serving), from.clone(), bytes.clone());
    let begun = async || {
        while taken(&serving).await < least_taken
            || serving.metric("tollgate_memory_refused_total").await == 0
        {
            tokio::task::yield_now().await;
        }
    };
    // A slow gateway resets the first streams before the last streams have arrived: the attack is repeated, with more time.
    let repeated = async {
        let mut time = Duration::from_secs(5);
        loop {
            let stalled = attack();
            if tokio::time::timeout(time, begun()).await.is_ok() {
                return stalled;
            }
            stalled.end();
            time *= 2;
        }
    };
    let stalled = within("the first refusals", repeated).await;
    for number in 0..REQUESTS {
        let answer = client.post(CHAT, &chat(number % 2 == 0)).await;
        assert_eq!(answer.status, 200, "request {number}: {}", answer.text());
    }
    // Besides the account's requests.
    let held = taken(&serving).await;
    assert!(held < LIMIT_BYTES / 5, "{held} bytes are taken");
    stalled.end();
    serving
        .metric_becomes("tollgate_memory_taken_bytes", 0)
        .await;
    let peak = peak(&serving);
    assert!(peak < LIMIT_BYTES, "the process had {peak} bytes");
}

/// A stranger's streams held 27 KB per stream for a minute, uncounted: 500 connections ended a process with 1 GiB.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_http2_streams_of_one_address_stay_within_its_share() {
    is_withstood(addresses(1, 80), stalled_streams(false), 5 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_http2_streams_of_fifty_addresses_leave_memory_for_another() {
    is_withstood(addresses(50, 3), stalled_streams(false), 20 << 20).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trailers_of_stalled_streams_stay_within_the_share_of_their_address() {
    is_withstood(addresses(1, 40), stalled_streams(true), 5 << 20).await;
}

/// The parser kept up to a megabyte per head.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_http1_heads_of_one_address_stay_within_its_share() {
    let head = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\nx: {}",
        "v".repeat(30_000)
    );
    is_withstood(addresses(1, 600), head.into_bytes(), 5 << 20).await;
}

/// The connection kept the head of an answered request for the time limit of a body, uncounted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn answered_http1_requests_without_their_body_stay_within_the_share() {
    let head = format!(
        "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ncontent-length: 1000000\r\nx: {}\r\n\r\n",
        "v".repeat(30_000)
    );
    is_withstood(addresses(1, 600), head.into_bytes(), 5 << 20).await;
}

#[tokio::test]
async fn a_head_of_http1_is_refused_as_soon_as_it_is_too_long() {
    let installation = limited().await;
    let serving = installation.serve().await;
    let mut raw = RawClient::connect(address(&serving)).await;
    // A head without an end for an answer to wait for.
    let head = format!(
        "GET / HTTP/1.1\r\nhost: localhost\r\nx: {}",
        "v".repeat(256 << 10)
    );
    let _ = raw.try_send(head).await;
    // A reset may have overtaken the answer.
    let answer = raw.try_read_head().await.ok().flatten();
    assert!(answer.is_none_or(|head| head.status() == 431));
    serving
        .metric_becomes("tollgate_memory_taken_bytes", 0)
        .await;
}

#[tokio::test]
async fn requests_that_wait_at_a_closed_gate_are_counted_and_answered() {
    const WAITING: u64 = 10;
    const HEAD_BYTES: usize = 28_000;
    let installation = limited().await;
    let mut serving = installation.serve().await;
    let slow = slow_body(&serving, &installation).await;
    let mut upgrade = installation.spawn(installation.command(&["upgrade"]));
    logged(&serving, "the new process is ready to take over").await;
    let new = new_process(&serving);
    // The new process has the store, and does not serve: the gate stays closed.
    new.signal("STOP");
    logged(&serving, "handing the store over").await;
    let mut waiting = Vec::new();
    for _ in 0..WAITING {
        let mut raw = RawClient::connect(address(&serving)).await;
        let padding = "v".repeat(HEAD_BYTES);
        let key = &installation.key;
        let head = format!(
            "GET /v1/models HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {key}\r\nx: {padding}\r\n\r\n"
        );
        raw.send(head).await;
        waiting.push(raw);
    }
    let counted = async {
        while taken(&serving).await < WAITING * HEAD_BYTES as u64 {
            tokio::task::yield_now().await;
        }
    };
    within("the heads in the budget", counted).await;
    new.signal("CONT");
    for mut raw in waiting {
        assert_eq!(raw.read_answer().await.0.status(), 200);
    }
    drop(slow);
    assert_eq!(first_ended(&mut serving).await, Some(0));
    assert_eq!(ended(&mut upgrade).await.code(), Some(0));
    new.stop().await;
}
