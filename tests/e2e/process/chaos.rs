//! Randomized fault injection: many requests of every kind, with faults of the provider and of clients, drawn from one seed; then an audit.
//!
//! `TOLLGATE_CHAOS` is the number of requests, `TOLLGATE_CHAOS_SEED` the seed they are drawn from, `TOLLGATE_CHAOS_PROGRAM` the build of
//! the program serves them. What each request is, and how its client and the provider misbehave, follows from the seed; how they meet
//! does not.
//!
//! At the end: the ledger balances, and no hold is left; the charges that clients received match the ledger, operation by operation;
//! charges without a complete response are listed, and each belongs to a client that disconnected or a response that was cut;
//! `tollgate usage` and the metrics come to the same sums; and the resident memory has not grown
//! beyond `TOLLGATE_CHAOS_GROWTH_MAX`, where that is set (130: by three tenths).

mod client;
mod request;
mod sums;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate_testing::{Client, free_port};

use self::client::Tally;
use self::request::{ACCOUNTS, PlannedRequest};
use self::sums::{Metrics, check};
use super::installation::{Installation, Serving, ended};
use crate::rig::Setup;

const REQUESTS: &str = "TOLLGATE_CHAOS";
const REQUESTS_DEFAULT: u64 = 1_500;
const SEED: &str = "TOLLGATE_CHAOS_SEED";
const SEED_DEFAULT: u64 = 20_270_101;
const PROGRAM: &str = "TOLLGATE_CHAOS_PROGRAM";

/// Concurrent requests.
const CONCURRENCY: usize = 48;

/// How much the program may have grown since a fifth of the requests were answered, in hundredths. Not checked where it is not set: a
/// few requests do not fill caches and pools.
const GROWTH_MAX: &str = "TOLLGATE_CHAOS_GROWTH_MAX";

#[expect(clippy::disallowed_methods, reason = "a test's own settings")]
fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn number(name: &str, default: u64) -> u64 {
    setting(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|error| panic!("{name} is `{text}`: {error}"))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_faults_the_ledger_matches_the_clients_and_no_hold_is_left() {
    let (requests, seed) = (
        number(REQUESTS, REQUESTS_DEFAULT),
        number(SEED, SEED_DEFAULT),
    );
    print_line(format_args!("{requests} requests from seed {seed}"));
    let admin = free_port().expect("a port");
    let installation = installation(admin).await;
    let mut accounts = Vec::new();
    for credits in ACCOUNTS {
        accounts.push(installation.account(credits).await);
    }
    let accounts = Arc::new(accounts);
    let mut serving = serve(&installation).await;
    let tally = Arc::new(Tally::default());
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..CONCURRENCY)
        .map(|_| {
            let clients = clients(&serving, &accounts);
            let (next, tally) = (Arc::clone(&next), Arc::clone(&tally));
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= requests {
                        return;
                    }
                    let ask = PlannedRequest::draw(seed, number);
                    let client = &clients[ask.account][usize::from(ask.http2)];
                    client::visit(client, &ask, &tally).await;
                }
            })
        })
        .collect();
    let pid = serving.process.id();
    let mut memory = Vec::new();
    for fifth in 1..5 {
        let there = || next.load(Relaxed) >= requests / 5 * fifth;
        crate::rig::poll(there).await;
        memory.push(resident(pid));
    }
    for one in tasks {
        one.await.expect("clients do not panic");
    }
    let metrics = Metrics::when_quiet(admin).await;
    memory.push(resident(pid));
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    print_line(format_args!("{}", tally.summary()));
    check(&installation, &accounts, &tally, &metrics).await;
    print_line(format_args!(
        "resident memory after each fifth of the requests, in KiB: {:?}",
        memory.iter().map(|bytes| bytes >> 10).collect::<Vec<_>>()
    ));
    let (before, after) = (memory[0], memory[4]);
    let most = number(GROWTH_MAX, u64::MAX);
    assert!(
        after.saturating_mul(100) / before <= most,
        "the program has grown from {before} to {after} bytes"
    );
}

/// Two providers behind one stand-in, one over HTTP/1.1 and one over HTTP/2, which are called regardless of failures; a
/// cache that is soon full.
async fn installation(admin: u16) -> Installation {
    let settings = format!(
        r#"
        [admin]
        address = "127.0.0.1:{admin}"

        [[provider]]
        health = {{ failures = 1000, window_secs = 1, cooldown_secs = 1 }}

        [[provider]]
        name = "other"
        base_url = "{{provider_url}}"
        api_key_env = "PROVIDER_KEY"
        http2 = true
        health = {{ failures = 1000, window_secs = 1, cooldown_secs = 1 }}

        [[model]]
        providers = [{{ provider = "stand-in" }}, {{ provider = "other", model = "other/small" }}]

        [meter]
        drain_secs = 2

        [cache]
        enabled = true
        max_bytes = 4194304
        hit_price_ppm = 100000

        [limits.classes.pro]
        quota = 1000000
        window_secs = 1

        [telemetry]
        access_log = "none"
        log_level = "info"
        "#
    );
    let setup = Setup {
        // A million bytes each would be kept otherwise.
        calls_kept: 0,
        ..Setup::with(&settings)
    };
    Installation::of(setup).await
}

async fn serve(installation: &Installation) -> Serving {
    let mut command = installation.command(&["serve"]);
    if let Some(program) = setting(PROGRAM) {
        let mut other = std::process::Command::new(program);
        other.args(command.get_args());
        for (name, value) in command.get_envs() {
            other.env(name, value.expect("nothing is taken away"));
        }
        command = other;
    }
    installation.serve_as(command).await
}

/// Prints a line of the report; visible with `--nocapture`, and when the test fails.
#[expect(clippy::print_stdout, reason = "the report of a run")]
fn print_line(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}

/// For each account a client over HTTP/1.1 and one over HTTP/2.
fn clients(serving: &Serving, accounts: &[(String, String)]) -> Vec<[Client; 2]> {
    let client = |key: &str| Client::new(&serving.url).with_key(key);
    accounts
        .iter()
        .map(|(_, key)| [client(key), client(key).with_http2()])
        .collect()
}

/// Bytes of memory that a process has in use.
fn resident(pid: u32) -> u64 {
    let text = std::fs::read_to_string(format!("/proc/{pid}/status")).expect("a process");
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB"));
    let kib: u64 = kib
        .expect("a process has memory")
        .trim()
        .parse()
        .expect("a number");
    kib << 10
}
