//! Power losses: the files of the store are recorded write by write. The test opens the possible disk states of a power loss at each sync.
//!
//! A killed process loses no written data (`kill.rs`). A computer without power loses unsynced data, in any order and in parts. `vfs.rs`
//! records the writes of SQLite. `log.rs` puts the writes and the results of callers in one order. `disk.rs` computes the states after a
//! power loss. Each state is opened and checked:
//!
//! - No acknowledged result is missing.
//! - Each unit is whole or absent.
//! - The database is whole, and the ledger balances.
//! - The record of the last commit names only present commits.
//!
//! `TOLLGATE_POWER_LOSSES` sets the number of states.

mod disk;
mod log;
mod vfs;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use rusqlite::Connection;
use tollgate_ledger::audit::audit;
use tollgate_ledger::{Charge, Ledger};
use tollgate_money::{LoginId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, CacheScope, EntryKind, LoginKind, NewAccount, NewLogin, OperationRows, Part, Store,
    UnitOfWork, commit,
};

use self::disk::{Disk, Random};
use self::log::{Ack, Event, Files, Log, Recording};
use crate::support::*;

const STATES: &str = "TOLLGATE_POWER_LOSSES";
const STATES_DEFAULT: usize = 400;
const ACCOUNTS: u64 = 4;
/// Starts of the store, each with work, checkpoints and a close.
const RUNS: u64 = 3;
const ROUNDS: u64 = 12;
/// Concurrent operations with shared commits.
const TASKS: u64 = 5;

#[expect(clippy::disallowed_methods, reason = "a test's own setting")]
fn states() -> usize {
    std::env::var(STATES).map_or(STATES_DEFAULT, |text| {
        text.parse().expect("TOLLGATE_POWER_LOSSES is a number")
    })
}

#[test]
fn no_acknowledged_result_is_lost_and_no_unit_is_half_done_after_power_loss() {
    let (start, events) = recorded(Durability::Power);
    let found = explore(Disk::new(start), &events, states());
    found.unwrap_or_else(|loss| panic!("{loss}"));
}

/// Without syncs of the log, a power loss may undo the last commits, but no other data. The test also shows that the test above finds
/// losses.
#[test]
fn a_store_that_is_not_durable_against_power_loss_loses_results_and_stays_whole() {
    let (start, events) = recorded(Durability::Process);
    let unacknowledged = events
        .iter()
        .filter(|event| !matches!(event, Event::Acknowledged(_)));
    let found = explore(Disk::new(start.clone()), unacknowledged, states() / 8);
    found.unwrap_or_else(|loss| panic!("{loss}"));
    let found = explore(Disk::new(start), &events, states());
    let loss = found.expect_err("results are lost");
    assert!(loss.contains("was acknowledged"), "{loss}");
}

/// A disk fault: the engine is correct, and the test must notice the fault.
#[test]
fn a_disk_that_ignores_syncs_loses_acknowledged_results() {
    let (start, events) = recorded(Durability::Power);
    let mut disk = Disk::new(start);
    disk.ignores_syncs = true;
    assert!(explore(disk, &events, states()).is_err());
}

/// Opens states of the disk before each sync and at the end, about `states` in total, until a state has a loss.
fn explore<'e>(
    mut disk: Disk,
    events: impl IntoIterator<Item = &'e Event>,
    states: usize,
) -> Result<(), String> {
    let events: Vec<_> = events.into_iter().collect();
    let is_sync = |event: &&&Event| matches!(event, Event::Synced { .. });
    let boundaries = events.iter().filter(is_sync).count() + 1;
    assert!(
        boundaries > 10,
        "only {boundaries} syncs: the work is too small"
    );
    let each = (states / boundaries).clamp(1, 1000);
    let mut acks = Vec::new();
    let mut boundary = 0;
    for event in events.iter().map(Some).chain([None]) {
        if event.is_none_or(|event| is_sync(&event)) {
            for number in 0..each {
                let seed = (boundary * 1000 + number) as u64;
                let files = disk.after_power_loss(&mut Random(seed));
                check(&files, &acks, seed).map_err(|what| {
                    format!("power loss at sync {boundary} of {boundaries}, seed {seed}: {what}")
                })?;
            }
            boundary += 1;
        }
        match event {
            Some(Event::Acknowledged(ack)) => acks.push(*ack),
            Some(event) => disk.apply(event),
            None => {}
        }
    }
    Ok(())
}

/// Opens the state after a power loss, and states after a second power loss during the recovery.
fn check(files: &[(String, Vec<u8>)], acks: &[Ack], seed: u64) -> Result<(), String> {
    let (start, events) = recover(files, acks)?;
    // Second losses for every state would take as long as the work.
    if !seed.is_multiple_of(8) {
        return Ok(());
    }
    let mut random = Random(seed);
    let syncs = events.iter().enumerate();
    let syncs: Vec<usize> = syncs
        .filter(|(_, event)| matches!(event, Event::Synced { .. }))
        .map(|(index, _)| index)
        .collect();
    let end = syncs.get(random.below(syncs.len().max(1)));
    let mut disk = Disk::new(start);
    for event in &events[..end.copied().unwrap_or(events.len())] {
        disk.apply(event);
    }
    recover(&disk.after_power_loss(&mut random), acks)
        .map(|_| ())
        .map_err(|what| format!("and power loss during recovery: {what}"))
}

/// Opens these files, and looks for every acknowledged result. Returns the recording of the opening.
fn recover(files: &[(String, Vec<u8>)], acks: &[Ack]) -> Result<(Files, Vec<Event>), String> {
    let folder = tempfile::tempdir().expect("a folder");
    for (name, bytes) in files {
        fs::write(folder.path().join(name), bytes).expect("a file is written");
    }
    let recording = Recording::start(folder.path());
    let path = folder.path().join("t.db");
    let store = sqlite::open(&path, options()).map_err(|error| error.to_string())?;
    let found = compare(&store, &path, acks);
    store.close();
    let recorded = recording.end();
    found.map(|()| recorded)
}

fn compare(store: &Arc<dyn Store>, path: &Path, acks: &[Ack]) -> Result<(), String> {
    let (ledger, _) =
        Ledger::start(Arc::clone(store), NOW).map_err(|error| format!("the ledger: {error}"))?;
    let checked: String = Connection::open(path)
        .and_then(|file| file.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0)))
        .map_err(|error| error.to_string())?;
    if checked != "ok" {
        return Err(format!("the database is damaged: {checked}"));
    }
    let report = audit(store).map_err(|error| format!("the audit: {error}"))?;
    if let Some(violation) = report.violations.first() {
        return Err(format!("the audit finds {violation}"));
    }
    let mut operations = HashMap::new();
    let view = store.snapshot().map_err(|error| error.to_string())?;
    view.operations(&mut |rows| {
        operations.insert(rows.id, rows);
    })
    .map_err(|error| error.to_string())?;
    drop(view);
    for number in signups() {
        whole_signup(store, &operations, number)?;
    }
    for ack in acks {
        if !is_there(&operations, *ack) {
            return Err(format!("{ack:?} was acknowledged and is not there"));
        }
    }
    let credit = credit_of(account(0), 1, "after the power loss", 1 << 41);
    wait(ledger.top_up(credit)).map_err(|error| format!("no new credit is booked: {error}"))?;
    Ok(())
}

fn is_there(operations: &HashMap<OperationId, OperationRows>, ack: Ack) -> bool {
    let rows = |number| operations.get(&operation(number));
    let cost = |rows: &OperationRows| rows.usage.as_ref().map(|usage| usage.cost.get());
    match ack {
        // A hold coalesced with its settlement: the charge stands for the hold. Without a cost, the usage record stands for the hold.
        Ack::Held(number) => rows(number).is_some_and(|rows| {
            let stands = |kind| matches!(kind, EntryKind::Hold | EntryKind::Charge);
            rows.entries.iter().any(|entry| stands(entry.kind)) || cost(rows) == Some(0)
        }),
        Ack::Charged(number, amount) => rows(number).and_then(cost) == Some(amount),
        Ack::Credited(number) => rows(number).is_some_and(|rows| rows.entries.len() == 1),
        Ack::SignedUp(number) => operations.contains_key(&operation(signup_credit(number))),
    }
}

/// Account, login and credit are one unit: present together, or absent together.
fn whole_signup(
    store: &Arc<dyn Store>,
    operations: &HashMap<OperationId, OperationRows>,
    number: u64,
) -> Result<(), String> {
    let id = account(number);
    let row = store.account(id).map_err(|error| error.to_string())?;
    let logins = store.logins(id).map_err(|error| error.to_string())?;
    let credit = operations.contains_key(&operation(signup_credit(number)));
    let there = [row.is_some(), !logins.is_empty(), credit];
    if there.contains(&true) && there.contains(&false) {
        return Err(format!(
            "a unit is half done: account, login, credit of sign-up {number} are {there:?}"
        ));
    }
    Ok(())
}

/// The accounts made during the work, besides the accounts of the operations.
fn signups() -> impl Iterator<Item = u64> {
    (0..RUNS * ROUNDS).map(|number| 1000 + number)
}

fn signup_credit(number: u64) -> u64 {
    (1 << 40) + number
}

// --- the work

/// The recording of a store at work: some runs, each from before the open to after the close.
fn recorded(durability: Durability) -> (Files, Vec<Event>) {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ledger = start(&store);
    for number in 0..ACCOUNTS {
        account_with(&store, &ledger, number, 1_000_000, 0);
    }
    store.close();
    let recording = Recording::start(folder.path());
    for run in 0..RUNS {
        let path = folder.path().join("t.db");
        let options = Options {
            durability,
            ..options()
        };
        let store = sqlite::open(&path, options).expect("the store opens");
        let ledger = start(&store);
        for round in run * ROUNDS..(run + 1) * ROUNDS {
            wait(work(&store, &ledger, recording.log(), round));
            if round % 4 == 3 {
                checkpoint(&path);
            }
        }
        store.close();
    }
    recording.end()
}

/// Like the checkpoint thread of the store, without its intervals.
fn checkpoint(path: &Path) {
    let connection = Connection::open(path).expect("the file opens");
    connection
        .execute_batch("PRAGMA synchronous = FULL")
        .expect("it is set");
    connection
        .query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))
        .expect("the log is moved");
}

/// One sign-up, and concurrent operations of all kinds.
async fn work(store: &Arc<dyn Store>, ledger: &Ledger, log: &Log, round: u64) {
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let (ledger, log) = (ledger.clone(), log.clone());
        tasks.spawn(async move { operate(&ledger, &log, round * TASKS + task).await });
    }
    let number = 1000 + round;
    let made = commit(&**store, signup(number)).await;
    made.expect("the account is made");
    log.acknowledge(Ack::SignedUp(number));
    while let Some(ended) = tasks.join_next().await {
        ended.expect("no task panics");
    }
}

fn signup(number: u64) -> UnitOfWork {
    let id = account(number);
    let made = NewAccount {
        id,
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: NOW,
    };
    let login = NewLogin {
        id: LoginId::from_parts(number, [0; 10]),
        account: id,
        kind: LoginKind::Email,
        address: Arc::from(format!("{number}@example.com")),
        verified_at: None,
        created_at: NOW,
    };
    let credit = LedgerPart::Credit {
        operation: operation(signup_credit(number)),
        account: id,
        kind: EntryKind::Grant,
        amount: Micros::new(5),
        reference: Arc::from("signup"),
        at: NOW,
    };
    let parts = [
        Part::CreateAccount(Box::new(made)),
        Part::InsertLogin(Box::new(login)),
        Part::Ledger(credit),
    ];
    UnitOfWork::of_all(parts, Admission::Always)
}

async fn operate(ledger: &Ledger, log: &Log, number: u64) {
    let dice = Random(number).next();
    let payer = account(dice % ACCOUNTS);
    let actual = (dice >> 16) as i64 % 40;
    ledger.load(payer).await.expect("it is loaded");
    let settlement = match dice >> 8 & 7 {
        0 => {
            let credit = credit_of(payer, 100, &number.to_string(), number);
            ledger.top_up(credit).await.expect("the credit is booked");
            return log.acknowledge(Ack::Credited(number));
        }
        1 => ledger
            .charge(Charge {
                operation: operation(number),
                account: payer,
                amount: Micros::new(actual),
                price_version: None,
                usage: usage(),
                at: NOW,
            })
            .expect("there is credit"),
        _ => {
            let mut hold = ledger
                .hold(request(payer, number, 40), |_| None)
                .now()
                .expect("it is alone")
                .expect("there is credit");
            if dice >> 12 & 1 == 0 {
                hold.durable().await.expect("the hold is written");
                log.acknowledge(Ack::Held(number));
            }
            match dice >> 13 & 7 {
                0 => return drop(hold),
                1 => return hold.release(NOW),
                _ => hold.settle(settle(actual)),
            }
        }
    };
    let settled = settlement.await.expect("the charge is written");
    log.acknowledge(Ack::Charged(number, settled.charged.get()));
}
