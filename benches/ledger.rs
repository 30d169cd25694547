//! Benchmark of the ledger: hold and settle, compared with the minimum cost of durable writes.
//!
//! Many tasks hold, wait, settle and wait, like concurrent requests; the store uses group commit. Then the same number of bytes is appended
//! to a plain file, with one sync per commit of the store: the lower bound of any ledger. The figure is the ratio of the two rates; CPU per
//! pair is the cost per request.
//!
//! ```text
//! cargo bench --bench ledger [-- --pairs N] [--tasks N] [--accounts N]
//! ```

#![allow(
    clippy::disallowed_methods,
    clippy::print_stdout,
    missing_docs,
    reason = "a bench measures real time and prints"
)]

use std::fs::{self, File};
use std::io::Write;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};

use tollgate_clock::{Deadline, Timestamp};
use tollgate_ledger::audit::audit;
use tollgate_ledger::{Credit, HoldRequest, Ledger, Settle};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{
    Admission, CacheScope, Endpoint, EntryKind, NewAccount, Part, RootSecret, Store, UnitOfWork,
    UsageFlags, UsageRecord, commit, flush,
};

/// Lifetime of a hold.
const HOLD: Duration = Duration::from_secs(600);

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

/// Bytes that one pair writes: a hold, its settlement, a usage record.
const PAIR_BYTES: usize = 320;

/// Odd, so that one is in the middle.
const ROUNDS: usize = 5;

struct Load {
    pairs: u64,
    tasks: u64,
    accounts: u64,
    /// Whether the upstream takes long enough for the hold to be durable before the settlement comes.
    slow_upstream: bool,
}

struct Measured {
    pairs_per_s: f64,
    cpu_us_per_pair: f64,
    commits: u64,
    units: u64,
    coalesced: u64,
}

fn main() {
    let mut load = Load {
        pairs: 50_000,
        tasks: 1024,
        accounts: 1000,
        slow_upstream: true,
    };
    let arguments: Vec<String> = std::env::args().collect();
    for pair in arguments.windows(2) {
        let number = || {
            pair[1]
                .parse()
                .unwrap_or_else(|_| panic!("{} takes a number", pair[0]))
        };
        match pair[0].as_str() {
            "--pairs" => load.pairs = number(),
            "--tasks" => load.tasks = number(),
            "--accounts" => load.accounts = number(),
            _ => {}
        }
    }
    // Beside the build's own output: a temporary folder may be memory, whose syncs cost nothing.
    let base = arguments.first().map_or(Path::new("."), Path::new);
    let folder = base.parent().unwrap_or(Path::new(".")).join("bench-ledger");
    println!(
        "{} pairs by {} tasks on {} accounts",
        load.pairs, load.tasks, load.accounts
    );
    println!(
        "{:<34} {:>9} {:>8} {:>8} {:>9} {:>9} {:>6}",
        "", "pairs/s", "us CPU", "commits", "units/c", "coalesced", "ratio"
    );
    for (name, slow_upstream) in [
        ("upstream slower than a commit", true),
        ("upstream faster", false),
    ] {
        load.slow_upstream = slow_upstream;
        // Alternating, so that other load of the machine affects both; the figure is the median of the ratios.
        let mut rounds: Vec<(f64, Measured, Measured)> = (0..ROUNDS)
            .map(|_| {
                let _ = fs::remove_dir_all(&folder);
                fs::create_dir_all(&folder).expect("a folder for the bench");
                let ledger = ledger(&folder, &load);
                let file = plain_file(&folder, load.pairs, ledger.commits);
                (ledger.pairs_per_s / file.pairs_per_s, ledger, file)
            })
            .collect();
        rounds.sort_by(|one, other| one.0.total_cmp(&other.0));
        let (ratio, ledger, file) = &rounds[ROUNDS / 2];
        println!(
            "{name:<34} {:>9.0} {:>8.1} {:>8} {:>9.0} {:>9} {ratio:>6.2}",
            ledger.pairs_per_s,
            ledger.cpu_us_per_pair,
            ledger.commits,
            ledger.units as f64 / ledger.commits as f64,
            ledger.coalesced,
        );
        println!(
            "{:<34} {:>9.0} {:>8.1} {:>8} {:>9} {:>9} {:>6.2}",
            "  a plain file, appended and synced",
            file.pairs_per_s,
            file.cpu_us_per_pair,
            file.commits,
            "",
            "",
            1.0
        );
    }
    loading(&folder);
    let _ = fs::remove_dir_all(&folder);
}

fn ledger(folder: &Path, load: &Load) -> Measured {
    let began = Instant::now();
    let options = Options {
        monotonic_us: Box::new(move || began.elapsed().as_micros() as u64),
        ..Options::new(NOW, RootSecret([7; 32]))
    };
    let store = sqlite::open(&folder.join("bench.db"), options).expect("the store opens");
    let (ledger, _) = Ledger::start(Arc::clone(&store), NOW).expect("the books open");
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(make_accounts(&store, load.accounts));
    let before = (
        store.gauges().batch_size.count(),
        store.gauges().batch_size.sum(),
    );
    let (time, cpu) = (Instant::now(), cpu_us());
    let next = Arc::new(AtomicU64::new(0));
    runtime.block_on(async {
        let mut tasks = Vec::new();
        for _ in 0..load.tasks {
            let (ledger, next) = (ledger.clone(), Arc::clone(&next));
            let (pairs, accounts, slow) = (load.pairs, load.accounts, load.slow_upstream);
            tasks.push(tokio::spawn(async move {
                loop {
                    let number = next.fetch_add(1, Relaxed);
                    if number >= pairs {
                        return;
                    }
                    pair(&ledger, number, account(number % accounts), slow).await;
                }
            }));
        }
        for task in tasks {
            task.await.expect("a task ends");
        }
        flush(&*store).await.expect("everything is durable");
    });
    let (seconds, cpu) = (time.elapsed().as_secs_f64(), cpu_us() - cpu);
    let report = audit(&store).expect("the audit runs");
    assert!(report.clean(), "{:?}", report.violations.first());
    let gauges = store.gauges();
    let measured = Measured {
        pairs_per_s: load.pairs as f64 / seconds,
        cpu_us_per_pair: cpu as f64 / load.pairs as f64,
        commits: gauges.batch_size.count() - before.0,
        units: gauges.batch_size.sum() - before.1,
        coalesced: gauges.coalesced.load(Relaxed),
    };
    store.close();
    measured
}

async fn pair(ledger: &Ledger, number: u64, account: AccountId, slow_upstream: bool) {
    let mut hold = ledger
        .hold(
            HoldRequest {
                operation: operation(number),
                account,
                amount: Micros::new(5000),
                price_version: Some(1),
                at: NOW + Duration::from_micros(number),
                deadline: Deadline::after(Duration::ZERO, HOLD),
                expires_at: NOW + HOLD,
                is_written: true,
            },
            |_| None,
        )
        .now()
        .expect("it is alone")
        .expect("the hold is placed");
    if slow_upstream {
        hold.durable().await.expect("the hold is durable");
    }
    let settlement = hold.settle(Settle {
        actual: Micros::new(1200),
        usage: UsageRecord {
            credential: None,
            endpoint: Endpoint::Chat,
            model: Arc::from("demo-small"),
            upstream: Some(Arc::from("provider")),
            prompt_tokens: 200,
            completion_tokens: 100,
            flags: UsageFlags::NONE,
            http_status: 200,
            ttfb_us: Some(1000),
            total_us: Some(2000),
        },
        at: NOW + Duration::from_micros(number),
    });
    settlement.await.expect("the settlement is durable");
}

/// The same bytes in the same number of syncs.
fn plain_file(folder: &Path, pairs: u64, commits: u64) -> Measured {
    let mut file = File::create(folder.join("plain")).expect("a file");
    let chunk = vec![7u8; PAIR_BYTES * (pairs / commits.max(1)) as usize];
    let (time, cpu) = (Instant::now(), cpu_us());
    for _ in 0..commits {
        file.write_all(&chunk).expect("an append");
        file.sync_data().expect("a sync");
    }
    let (seconds, cpu) = (time.elapsed().as_secs_f64(), cpu_us() - cpu);
    Measured {
        pairs_per_s: pairs as f64 / seconds,
        cpu_us_per_pair: cpu as f64 / pairs as f64,
        commits,
        units: 0,
        coalesced: 0,
    }
}

/// Time to load the in-memory state at start.
fn loading(folder: &Path) {
    let many = 100_000;
    let path = folder.join("many.db");
    let options = Options::new(NOW, RootSecret([7; 32]));
    let store = sqlite::open(&path, options).expect("the store opens");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .build()
        .expect("a runtime");
    for first in (0..many).step_by(1000) {
        let parts = (first..first + 1000).flat_map(|number| {
            [
                Part::CreateAccount(Box::new(new_account(number))),
                Part::InsertCredential(Box::new(new_credential(number))),
            ]
        });
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        runtime
            .block_on(commit(&*store, unit))
            .expect("the accounts are made");
    }
    store.close();
    let time = Instant::now();
    let store = sqlite::open(&path, Options::new(NOW, RootSecret([7; 32]))).expect("it opens");
    let opened = time.elapsed();
    let (time, cpu) = (Instant::now(), cpu_us());
    let (ledger, _) = Ledger::start(Arc::clone(&store), NOW).expect("the books open");
    let started = time.elapsed();
    let time = Instant::now();
    let mut credentials = 0;
    store
        .credentials(NOW, &mut |_| credentials += 1)
        .expect("the credentials load");
    println!(
        "start: opened in {opened:.1?}, started in {started:.1?} with {} accounts in memory, {credentials} credentials in {:.1?}; {} ms CPU",
        ledger.resident_accounts(),
        time.elapsed(),
        (cpu_us() - cpu) / 1000
    );
}

/// Accounts with credit, a thousand in a commit.
async fn make_accounts(store: &Arc<dyn Store>, accounts: u64) {
    for first in (0..accounts).step_by(1000) {
        let parts = (first..accounts.min(first + 1000)).flat_map(|number| {
            let credit = Credit {
                operation: operation(1 << 40 | number),
                account: account(number),
                amount: Micros::from_credits(1_000_000).expect("in range"),
                reference: Arc::from("bench"),
                at: NOW,
            };
            [
                Part::CreateAccount(Box::new(new_account(number))),
                credit.part(EntryKind::Grant).expect("a good credit"),
            ]
        });
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        commit(&**store, unit).await.expect("the accounts are made");
    }
}

fn new_account(number: u64) -> NewAccount {
    NewAccount {
        id: account(number),
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: NOW,
    }
}

fn new_credential(number: u64) -> tollgate_store::NewCredential {
    let mut hash = [0; 32];
    hash[..10].copy_from_slice(&random(number));
    hash[16..26].copy_from_slice(&random(number + 7));
    let mut id = [0; 16];
    id[..10].copy_from_slice(&random(number));
    tollgate_store::NewCredential {
        id: tollgate_money::CredentialId::from_bytes(id),
        hash,
        kind: tollgate_store::CredentialKind::ApiKey,
        account: account(number),
        client_id: None,
        grant_id: None,
        resource: 1,
        scopes: 7,
        label: Some(Arc::from("main")),
        hint: Some(Arc::from("abcd...wxyz")),
        models: None,
        spending_cap: None,
        created_at: NOW,
        expires_at: None,
    }
}

fn operation(number: u64) -> OperationId {
    OperationId::from_parts(1_700_000_000_000 + number / 10, random(number))
}

fn account(number: u64) -> AccountId {
    AccountId::from_parts(1_600_000_000_000 + number, random(number))
}

/// Pseudorandom bytes, the same in every run.
fn random(number: u64) -> [u8; 10] {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let mut bytes = [0; 10];
    bytes[..8].copy_from_slice(&(mixed ^ (mixed >> 32)).to_be_bytes());
    bytes[8..].copy_from_slice(&(number as u16).to_be_bytes());
    bytes
}

/// User and system time of all threads of this process, from Linux's own accounting in hundredths of a second.
fn cpu_us() -> u64 {
    let text = fs::read_to_string("/proc/self/stat").expect("Linux says what a process has used");
    let fields: Vec<&str> = text
        .rsplit_once(')')
        .map_or("", |(_, rest)| rest)
        .split_whitespace()
        .collect();
    let ticks = |field: usize| fields[field].parse::<u64>().expect("a number of ticks");
    Duration::from_millis((ticks(11) + ticks(12)) * 10).as_micros() as u64
}
