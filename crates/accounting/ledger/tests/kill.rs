//! Crash tests: the state after repeated abnormal exits, on one file or in one PostgreSQL database.
//!
//! A child does mixed work through the real queue, and prints each received result. The child is killed at some point, or its disk writes
//! fail. After each exit the store opens, the start releases the holds of the run, and the ledger balances. Every result acknowledged to
//! the child is in the store. `TOLLGATE_KILLS` sets the number of rounds.

mod support;

use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Child, Command, ExitCode, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use support::*;
use tollgate_ledger::{Charge, HoldError, Ledger, Settlement};
use tollgate_money::{Micros, OperationId};
use tollgate_store::postgres::{self, DatabaseUrl};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{EntryKind, Failure, RootSecret, Store};
use tollgate_testing::Postgres;

const CHILD: &str = "TOLLGATE_KILL_CHILD";
const ROUNDS: &str = "TOLLGATE_KILLS";
const ROUNDS_DEFAULT: u64 = 50;
const ACCOUNTS: u64 = 8;
const TASKS: u64 = 16;

#[expect(
    clippy::disallowed_methods,
    reason = "a test's own settings and the child's orders"
)]
fn variable(name: &str) -> Option<String> {
    std::env::var(name).ok()
}

fn main() -> ExitCode {
    if let Some(orders) = variable(CHILD) {
        let (round, place) = orders.split_once(' ').expect("orders are `ROUND PLACE`");
        return child(round.parse().expect("a number"), place);
    }
    let rounds = variable(ROUNDS).map_or(ROUNDS_DEFAULT, |text| {
        text.parse().expect("TOLLGATE_KILLS is a number")
    });
    let tests: [(&str, &dyn Fn()); 4] = [
        ("a_killed_process_loses_no_acknowledged_unit", &|| {
            let folder = tempfile::tempdir().expect("a folder");
            a_killed_process_loses_no_acknowledged_unit(rounds, &file_in(folder.path()));
        }),
        // A fifth of the rounds: starts and audits take longer.
        (
            "a_killed_process_loses_no_acknowledged_unit_on_postgresql",
            &|| {
                let database = Postgres::shared().database();
                a_killed_process_loses_no_acknowledged_unit(rounds.div_ceil(5).max(10), &database);
            },
        ),
        ("a_store_killed_during_creation_is_created_again", &|| {
            a_store_killed_during_creation_is_created_again(rounds.min(10));
        }),
        (
            "a_failing_disk_stops_the_store_and_loses_no_acknowledged_unit",
            &a_failing_disk_stops_the_store_and_loses_no_acknowledged_unit,
        ),
    ];
    // Like the standard harness: arguments without a dash select tests by part of their names.
    let words: Vec<String> = std::env::args()
        .skip(1)
        .filter(|argument| !argument.starts_with('-'))
        .collect();
    let mut passed = 0;
    for (name, test) in tests {
        if words.is_empty() || words.iter().any(|word| name.contains(word)) {
            test();
            say(&format!("test {name} ... ok"));
            passed += 1;
        }
    }
    let left_out = tests.len() - passed;
    say(&format!(
        "test result: ok. {passed} passed; 0 failed; 0 ignored; 0 measured; {left_out} filtered out"
    ));
    ExitCode::SUCCESS
}

fn a_killed_process_loses_no_acknowledged_unit(rounds: u64, place: &str) {
    make_accounts(place);
    let (mut acknowledged, mut orphans) = (0, 0);
    for round in 1..=rounds {
        // From the first line, before the open of the store, to late in the work.
        let lines = mixed(round) % 1500 * (round % 5) / 4;
        let child = spawn(Command::new(this_program()), round, place);
        let acks = kill_after(child, lines as usize);
        acknowledged += acks.len();
        orphans += check(place, &acks, round);
    }
    say(&format!(
        "{rounds} kills: {acknowledged} acknowledged results were kept, {orphans} holds were released"
    ));
    assert!(
        acknowledged > 0 && orphans > 0,
        "no kill hit the work: {acknowledged} acknowledged results, {orphans} orphans"
    );
}

fn a_store_killed_during_creation_is_created_again(rounds: u64) {
    for round in 1..=rounds {
        let folder = tempfile::tempdir().expect("a folder");
        let path = file_in(folder.path());
        let child = spawn(Command::new(this_program()), round, &path);
        kill_after(child, (round % 2) as usize);
        make_accounts(&path);
        check(&path, &[], round);
    }
}

/// The shell limits the size of the child's files, so that a real write fails as on a full or broken disk.
fn a_failing_disk_stops_the_store_and_loses_no_acknowledged_unit() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = file_in(folder.path());
    make_accounts(&path);
    let mut shell = Command::new("sh");
    // In units of 512 bytes. The trap turns the fatal signal into a write error.
    let script = "trap '' XFSZ; ulimit -f 4096; exec \"$0\"";
    shell.args(["-c", script]).arg(this_program());
    let mut child = spawn(shell, 1000, &path);
    let acks = acks(&mut child, usize::MAX);
    let status = child.wait().expect("the child ends");
    assert_eq!(
        status.code(),
        Some(3),
        "the store reports its failure and the process ends with an error"
    );
    assert!(!acks.is_empty(), "the disk failed before any work was done");
    check(&path, &acks, 1000);
}

/// Opens the store of the child, and compares the store with the acknowledged results. Returns the number of released holds.
fn check(place: &str, acks: &[String], round: u64) -> usize {
    let store = open_at(place);
    let (_ledger, started) = Ledger::start(Arc::clone(&store), NOW).expect("the ledger starts");
    assert_ledger_balances(&store);
    let mut open = 0;
    store
        .open_holds(&mut |_| open += 1)
        .expect("the holds are read");
    assert_eq!(open, 0, "round {round}: a hold of an earlier run is open");
    for ack in acks {
        let words: Vec<&str> = ack.split(' ').collect();
        let rows = store
            .operation(words[1].parse().expect("an operation"))
            .expect("an operation is read");
        let cost = rows.usage.as_ref().map(|usage| usage.cost.get());
        let kept = match words[0] {
            // A hold coalesced with its settlement: the charge stands for the hold. Without a cost, the usage record stands for the hold.
            "held" => {
                rows.entries
                    .iter()
                    .any(|entry| matches!(entry.kind, EntryKind::Hold | EntryKind::Charge))
                    || cost == Some(0)
            }
            "charged" => cost == Some(words[2].parse().expect("an amount")),
            "credited" => rows.entries.len() == 1,
            other => panic!("the child says `{other}`"),
        };
        assert!(kept, "round {round}: acknowledged `{ack}`, found {rows:?}");
    }
    store.close();
    started.orphans
}

/// The file of a folder. Any other place is the address of a PostgreSQL database.
fn file_in(folder: &Path) -> String {
    folder.join("kill.db").display().to_string()
}

fn database_at(place: &str) -> Option<postgres::Options> {
    let is_database = place.starts_with("postgres:");
    let url = is_database.then(|| DatabaseUrl::parse(place).expect("an address"))?;
    Some(postgres::Options::new(url, NOW, RootSecret([7; 32])))
}

fn open_at(place: &str) -> Arc<dyn Store> {
    let opened = match database_at(place) {
        Some(options) => postgres::open(options),
        None => sqlite::open(Path::new(place), options()),
    };
    opened.expect("the store opens after a kill")
}

fn make_accounts(place: &str) {
    let store = open_at(place);
    let ledger = start(&store);
    for number in 0..ACCOUNTS {
        account_with(&store, &ledger, number, 1_000_000, 0);
    }
    store.close();
}

fn this_program() -> std::path::PathBuf {
    std::env::current_exe().expect("a program knows where it is")
}

fn spawn(mut command: Command, round: u64, place: &str) -> Child {
    command
        .env(CHILD, format!("{round} {place}"))
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .expect("the child starts")
}

/// Reads a number of lines from the child, kills the child, and reads the lines printed before the kill.
fn kill_after(mut child: Child, lines: usize) -> Vec<String> {
    let mut output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    let mut all: Vec<String> = output.by_ref().take(lines).map_while(Result::ok).collect();
    child.kill().expect("the child is killed");
    all.extend(output.map_while(Result::ok));
    child.wait().expect("the child ends");
    whole_acks(all)
}

fn acks(child: &mut Child, lines: usize) -> Vec<String> {
    let output = BufReader::new(child.stdout.take().expect("a pipe")).lines();
    whole_acks(output.take(lines).map_while(Result::ok).collect())
}

/// Only complete lines: the kill may have cut the last line.
fn whole_acks(lines: Vec<String>) -> Vec<String> {
    lines
        .into_iter()
        .filter_map(|line| line.strip_suffix(" .").map(str::to_owned))
        .collect()
}

fn say(line: &str) {
    let mut out = std::io::stdout().lock();
    // Fails when the reader has gone. The error has no recipient.
    let _ = writeln!(out, "{line}");
}

fn mixed(number: u64) -> u64 {
    let mixed = (number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let mixed = (mixed ^ (mixed >> 29)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    mixed ^ (mixed >> 32)
}

// --- the child

fn child(round: u64, place: &str) -> ExitCode {
    say("begin");
    // Some kills hit the time between two postings, other kills hit a posting.
    let post_records = 20;
    let on_failure = Box::new(|failure: &Failure| {
        let _ = writeln!(std::io::stderr(), "{failure}");
        std::process::exit(3);
    });
    let opened = match database_at(place) {
        Some(options) => postgres::open(postgres::Options {
            post_records,
            on_failure,
            ..options
        }),
        None => {
            let options = Options {
                durability: Durability::Power,
                post_records,
                on_failure,
                ..Options::new(NOW, RootSecret([7; 32]))
            };
            sqlite::open(Path::new(place), options)
        }
    };
    let store = opened.expect("the store opens");
    let (ledger, _) = Ledger::start(Arc::clone(&store), NOW).expect("the ledger starts");
    assert_eq!(
        ledger.resident_accounts(),
        0,
        "the holds were released by the parent"
    );
    for number in 0..ACCOUNTS {
        if wait(ledger.load(account(number))).is_err() || ledger.balance(account(number)).is_none()
        {
            return ExitCode::SUCCESS;
        }
    }
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .build()
        .expect("a runtime");
    let next = Arc::new(AtomicU64::new(round << 32));
    runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for _ in 0..TASKS {
            let (ledger, next) = (ledger.clone(), Arc::clone(&next));
            tasks.spawn(async move { while work(&ledger, next.fetch_add(1, Relaxed)).await {} });
        }
        while let Some(ended) = tasks.join_next().await {
            ended.expect("no task panics");
        }
    });
    // Waiting callers are notified of a failure before the call of `on_failure`: wait for the writer.
    store.close();
    ExitCode::SUCCESS
}

/// One piece of work, selected by its number; prints every result. `false` when the store has stopped.
async fn work(ledger: &Ledger, number: u64) -> bool {
    let dice = mixed(number);
    let payer = account(dice % ACCOUNTS);
    let actual = (dice >> 16) as i64 % 60;
    let id = operation(number);
    if dice >> 8 & 15 == 0 {
        let credit = credit_of(payer, 10_000, &number.to_string(), number);
        let credited = ledger.top_up(credit).await;
        if credited.is_ok() {
            say(&format!("credited {id} ."));
        }
        return credited.is_ok();
    }
    if dice >> 8 & 15 == 1 {
        let charge = Charge {
            operation: id,
            account: payer,
            amount: Micros::new(actual),
            price_version: None,
            usage: usage(),
            at: NOW,
        };
        let Ok(settlement) = ledger.charge(charge) else {
            return false;
        };
        return charged(id, settlement).await;
    }
    let mut hold = match ledger
        .hold(request(payer, number, 40), |_| None)
        .now()
        .expect("it is alone")
    {
        Ok(hold) => hold,
        Err(error) => return matches!(error, HoldError::InsufficientCredit { .. }),
    };
    // Half of the upstreams are slower than a commit, and half are faster.
    if dice >> 12 & 1 == 0 {
        if hold.durable().await.is_err() {
            return false;
        }
        say(&format!("held {id} ."));
    }
    match dice >> 13 & 7 {
        0 => drop(hold),
        1 => hold.release(NOW),
        _ => return charged(id, hold.settle(settle(actual))).await,
    }
    true
}

async fn charged(id: OperationId, settlement: Settlement) -> bool {
    let settled = settlement.await;
    if let Ok(settled) = &settled {
        say(&format!("charged {id} {} .", settled.charged.get()));
    }
    settled.is_ok()
}
