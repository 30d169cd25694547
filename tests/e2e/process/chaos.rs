//! Randomized fault injection: many requests of every kind, with faults of the provider and of clients, drawn from a single seed. An audit
//! follows.
//!
//! `TOLLGATE_CHAOS` is the number of requests, `TOLLGATE_CHAOS_SEED` the seed of the requests, `TOLLGATE_CHAOS_PROGRAM` the build of the
//! program under test. The content of a request, and the faults of the client and the provider, follow from the seed. The interleaving of
//! requests does not follow from the seed.
//!
//! `TOLLGATE_SOAK_SECONDS` is the duration of a run without a number of requests (`make soak`). In a soak, resident memory and open
//! descriptors are sampled sixty times, and neither may grow (`samples.rs` has the bounds). The settings are reloaded with every sample.
//!
//! `cluster.rs` has the test for three gateways on one database, with faults of the gateways, of the database and of shared servers.
//!
//! At the end: the ledger balances, and no hold is left; the charges that clients received match the ledger, operation by operation;
//! charges without a complete response are listed, and belong to a disconnected client or a cut response; `tollgate usage` and the metrics
//! come to equal sums; and the resident memory has not grown beyond `TOLLGATE_CHAOS_GROWTH_MAX`, if set (130: by three tenths).

mod client;
mod cluster;
mod request;
mod samples;
mod sums;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tollgate_testing::{Client, free_port};

use self::client::Tally;
use self::request::{ACCOUNTS, PlannedRequest};
use self::samples::{DESCRIPTORS_GROWTH_MAX, MEMORY_GROWTH_MAX, Sample, trends};
use self::sums::{Metrics, check};
use super::installation::{Installation, Serving, ended};
use crate::rig::Setup;

const REQUESTS: &str = "TOLLGATE_CHAOS";
const REQUESTS_DEFAULT: u64 = 1_500;
const SEED: &str = "TOLLGATE_CHAOS_SEED";
const SEED_DEFAULT: u64 = 20_270_101;
const PROGRAM: &str = "TOLLGATE_CHAOS_PROGRAM";
const SECONDS: &str = "TOLLGATE_SOAK_SECONDS";

/// Samples of a soak, and reloads.
const SAMPLES: u32 = 60;

/// Concurrent requests.
const CONCURRENCY: usize = 48;

/// The permitted growth of the program since a fifth of the requests were answered, in hundredths. Without the variable the growth is not
/// checked: a few requests do not fill caches and pools.
const GROWTH_MAX: &str = "TOLLGATE_CHAOS_GROWTH_MAX";

#[expect(clippy::disallowed_methods, reason = "a test's own settings")]
pub(super) fn setting(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

pub(super) fn number(name: &str, default: u64) -> u64 {
    setting(name).map_or(default, |text| {
        text.parse()
            .unwrap_or_else(|error| panic!("{name} is `{text}`: {error}"))
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_random_faults_the_ledger_matches_the_clients_and_no_hold_is_left() {
    let seed = number(SEED, SEED_DEFAULT);
    let soak = setting(SECONDS).map(|_| Duration::from_secs(number(SECONDS, 0)));
    let requests = Arc::new(AtomicU64::new(match soak {
        Some(_) => u64::MAX,
        None => number(REQUESTS, REQUESTS_DEFAULT),
    }));
    match soak {
        Some(duration) => print_line(format_args!("{duration:?} of requests from seed {seed}")),
        None => print_line(format_args!("{requests:?} requests from seed {seed}")),
    }
    let admin = free_port().expect("a port");
    let address = format!("[admin]\naddress = \"127.0.0.1:{admin}\"");
    let installation = installation(&address).await;
    let mut accounts = Vec::new();
    for credits in ACCOUNTS {
        accounts.push(installation.account(credits).await);
    }
    let accounts = Arc::new(accounts);
    let mut serving = serve(&installation).await;
    let before = Sample::of(serving.process.id());
    let tally = Arc::new(Tally::default());
    let next = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..CONCURRENCY)
        .map(|_| {
            let clients = clients(&serving, &accounts);
            let (next, tally) = (Arc::clone(&next), Arc::clone(&tally));
            let requests = Arc::clone(&requests);
            tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= requests.load(Relaxed) {
                        return;
                    }
                    let ask = PlannedRequest::draw(seed, number);
                    let client = &clients[ask.account][usize::from(ask.http2)];
                    client::visit(|| client, &ask, &tally).await;
                }
            })
        })
        .collect();
    let pid = serving.process.id();
    let mut samples = Vec::new();
    if let Some(duration) = soak {
        let mut ticks = tokio::time::interval(duration / SAMPLES);
        ticks.tick().await;
        for sample in 0..SAMPLES {
            ticks.tick().await;
            samples.push(Sample::of(pid));
            reload(&installation, &mut serving, sample);
        }
        requests.store(0, Relaxed);
    } else {
        let requests = requests.load(Relaxed);
        for fifth in 1..5 {
            let there = || next.load(Relaxed) >= requests / 5 * fifth;
            crate::rig::poll(there).await;
            samples.push(Sample::of(pid));
        }
    }
    for one in tasks {
        one.await.expect("clients do not panic");
    }
    let metrics = Metrics::when_quiet(admin).await;
    let quiet = Sample::of(pid);
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    print_line(format_args!("{}", tally.summary()));
    assert!(
        tally.look(|seen| seen.replays) > 0,
        "no repeat was answered"
    );
    check(&installation, &accounts, &tally, &metrics).await;
    match soak {
        Some(duration) => {
            assert_flat(before, &samples, quiet, next.load(Relaxed));
            assert_reloaded(duration, &metrics);
        }
        None => assert_grown_little(&samples, quiet),
    }
}

/// Changes a limit and has the program reload the settings. The reload rebuilds every chain.
fn reload(installation: &Installation, serving: &mut Serving, number: u32) {
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let mut table: toml::Table = text.parse().expect("TOML");
    let class = table["limits"]["classes"]["pro"].as_table_mut();
    let quota = 1_000_000 - i64::from(number % 2);
    class.expect("a class").insert("quota".into(), quota.into());
    let text = toml::to_string(&table).expect("tables are TOML");
    std::fs::write(&installation.config, text).expect("the folder takes files");
    serving.process.signal("HUP");
}

/// Asserts as many reloads as minutes, and at least a single reload. A sample has a reload, and on a busy machine two reloads may merge.
fn assert_reloaded(duration: Duration, metrics: &Metrics) {
    let reloads = metrics.sum_of("tollgate_settings_reloads_total", "\"ok\"");
    let failed = metrics.sum_of("tollgate_settings_reloads_total", "\"failed\"");
    print_line(format_args!("{reloads} reloads"));
    let expected = duration.as_secs().div_ceil(60).min(SAMPLES.into());
    assert!(
        failed == 0 && reloads as u64 >= expected,
        "{reloads} reloads of at least {expected}, {failed} failed"
    );
}

/// The end of a soak: no growth under a constant load.
fn assert_flat(before: Sample, samples: &[Sample], quiet: Sample, requests: u64) {
    let (memory, descriptors) = trends(samples);
    print_line(format_args!("{requests} requests"));
    let print = |what: &str, sample: &Sample| {
        let (kib, open) = (sample.resident >> 10, sample.descriptors);
        print_line(format_args!("{what}: {kib} KiB, {open} descriptors"));
    };
    print("before the first request", &before);
    for (at, sample) in samples.iter().enumerate().step_by(samples.len() / 6) {
        print(&format!("sample {at}"), sample);
    }
    print("without clients", &quiet);
    print_line(format_args!(
        "growth in the second half: memory {memory:.1} % (at most {MEMORY_GROWTH_MAX} %), descriptors {descriptors:.1} (at most {DESCRIPTORS_GROWTH_MAX})"
    ));
    assert!(memory <= MEMORY_GROWTH_MAX, "memory grows: {samples:?}");
    assert!(
        descriptors <= DESCRIPTORS_GROWTH_MAX,
        "descriptors grow: {samples:?}"
    );
    // Every concurrent request may have left a connection to a provider.
    let most = before.descriptors + CONCURRENCY as u64;
    assert!(
        quiet.descriptors <= most,
        "{} descriptors stay open without a client, of at most {most}",
        quiet.descriptors
    );
}

/// The end of a run of a number of requests.
fn assert_grown_little(samples: &[Sample], quiet: Sample) {
    let mut memory: Vec<u64> = samples.iter().map(|sample| sample.resident).collect();
    memory.push(quiet.resident);
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

/// Two providers behind a stand-in, over HTTP/1.1 and over HTTP/2, called regardless of failures; and a small cache.
const SETTINGS: &str = r#"
        [[provider]]
        health = { failures = 1000, window_secs = 1, cooldown_secs = 1 }

        [[provider]]
        name = "other"
        base_url = "{provider_url}"
        api_key_env = "PROVIDER_KEY"
        http2 = true
        health = { failures = 1000, window_secs = 1, cooldown_secs = 1 }

        [[model]]
        providers = [{ provider = "stand-in" }, { provider = "other", model = "other/small" }]

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
"#;

/// An installation with the chaos settings and `more`.
async fn installation(more: &str) -> Installation {
    let setup = Setup {
        // Otherwise a million bytes a call would be kept.
        calls_kept: 0,
        ..Setup::with(&format!("{SETTINGS}\n{more}"))
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
pub(super) fn print_line(what: std::fmt::Arguments<'_>) {
    println!("{what}");
}

/// For every account, a client over HTTP/1.1 and a client over HTTP/2.
fn clients(serving: &Serving, accounts: &[(String, String)]) -> Vec<[Client; 2]> {
    let client = |key: &str| Client::new(&serving.url).with_key(key);
    accounts
        .iter()
        .map(|(_, key)| [client(key), client(key).with_http2()])
        .collect()
}
