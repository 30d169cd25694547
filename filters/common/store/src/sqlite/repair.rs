//! Repair of a journal that two processes have written concurrently, or that has lost commits.
//!
//! What can be proven is kept unchanged: a commit with a valid seal states what was decided, whether or not it follows the previous one.
//! The rest is quarantined: commits that differ from what was sealed, a second start or a second end of an operation, a reference that is
//! booked twice. The chain is then sealed again from the first break, missing numbers are filled with empty commits, and the journal
//! records the repair in a separate commit. Everything derived is rebuilt.
//!
//! No process of the node runs any more, so its open holds are released here, as its next start would. Those of other nodes stay theirs.
//!
//! One thing cannot stay as it was decided: an account cannot be below its credit limit. What two processes have sold of the same credit is
//! given to the account by a correction, which the operator sees before anything is done.

use std::collections::{BTreeMap, HashMap};
use std::path::Path;

use rusqlite::{Connection, OptionalExtension, params};
use tollgate_money::{AccountId, Micros, OperationId};

use super::columns::{all_accounts, each_row};
use super::failure::{open_error, row_open_error, write_open_error};
use super::{Options, acquire_lock, file, journal, rebuild_postings, resolve};
use crate::codes::EntryKind;
use crate::engine::{RowError, WriteError};
use crate::entries::{Body, Entry, LedgerPart, Seal};
use crate::error::OpenError;
use crate::journal::Packer;
use crate::store::BatchRows;

/// Maximum number of consecutive missing numbers: more were never lost, and have another cause.
const FILLED_MAX: i64 = 1 << 20;

/// Findings and changes of a repair.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Repair {
    /// The epoch of the node in which the repair writes.
    pub epoch: i64,
    /// Commits read.
    pub commits: u64,
    /// Commits that were sealed again.
    pub resealed: u64,
    /// Differences from a journal written by one process, in journal order.
    pub findings: Vec<Finding>,
    /// Accounts whose balance changes, in the order of their ids.
    pub accounts: Vec<BalanceChange>,
}

impl Repair {
    /// Number of quarantined commits or records.
    pub fn quarantined(&self) -> usize {
        let is_quarantined = |finding: &&Finding| matches!(finding.action, Action::Quarantine(_));
        self.findings.iter().filter(is_quarantined).count()
    }
}

/// One part of the journal that has to change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// Node, epoch and number of its commit.
    pub commit: (i64, i64, i64),
    /// The operation, if any.
    pub operation: Option<OperationId>,
    /// The account, if any.
    pub account: Option<AccountId>,
    /// The finding, as a sentence.
    pub what: String,
    /// The repair.
    pub action: Action,
}

/// What a repair does about a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The commit stays, and is sealed again after the previous one.
    Reseal,
    /// Number of empty commits that replace missing ones.
    Fill(i64),
    /// The commit, or the record as a body of its own, is removed from the journal; these are its bytes.
    Quarantine(Vec<u8>),
    /// A settlement becomes a charge of the same amount: its hold is in no other commit.
    Charge(Micros),
    /// A hold of this amount is released: the process that would have ended it does not run any more.
    Release(Micros),
    /// A credit of this amount brings the account up to its limit.
    Correct(Micros),
}

/// The effect of a repair on one balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceChange {
    /// The account.
    pub account: AccountId,
    /// Available and held, before.
    pub before: (Micros, Micros),
    /// The same afterwards.
    pub after: (Micros, Micros),
}

/// Repairs the journal of the store at `path` and rebuilds everything derived from it, in one transaction. A journal without findings is
/// not changed. Refused while a gateway has the store, and where the file itself is damaged.
pub fn repair(path: &Path, mut options: Options) -> Result<Repair, OpenError> {
    let path = &resolve(path);
    let _lock = acquire_lock(path, &mut options)?;
    let connection = file::connect(path, &options)?;
    let failed = |error| open_error(path, "write", error);
    // Intermediate balances may be below a limit; the final ones are not, which is verified.
    connection
        .pragma_update(None, "ignore_check_constraints", true)
        .map_err(failed)?;
    check_pages(&connection, path)?;
    connection
        .execute_batch("BEGIN IMMEDIATE")
        .map_err(failed)?;
    let done = run(&connection, path, &options);
    let is_needed = done
        .as_ref()
        .is_ok_and(|repair| !repair.findings.is_empty());
    let end = if is_needed { "COMMIT" } else { "ROLLBACK" };
    let ended = connection.execute_batch(end).map_err(failed);
    let done = done?;
    ended?;
    Ok(done)
}

/// Verifies that the engine can read the file: what it cannot read is out of scope for this repair.
fn check_pages(connection: &Connection, path: &Path) -> Result<(), OpenError> {
    let reported: String = connection
        .query_row("PRAGMA integrity_check(1)", [], |row| row.get(0))
        .map_err(|error| open_error(path, "read", error))?;
    if reported == "ok" {
        return Ok(());
    }
    Err(OpenError::Damaged {
        path: path.to_owned(),
        problem: format!(
            "has pages that the engine cannot read ({reported}), which no repair of the journal can restore"
        ),
    })
}

fn run(connection: &Connection, path: &Path, options: &Options) -> Result<Repair, OpenError> {
    let reading = |error: RowError| row_open_error(path, error);
    let writing = |error: WriteError| write_open_error(path, error);
    let before = balances(connection).map_err(reading)?;
    let mut scan = JournalScan::new(connection).map_err(reading)?;
    scan.journal().map_err(reading)?;
    ensure_node_rows(connection).map_err(|error| open_error(path, "write", error))?;
    scan.repair.epoch = file::raise_epoch_within(connection, path, options)?.epoch;
    if scan.repair.findings.is_empty() && scan.corrections().map_err(reading)?.is_empty() {
        return Ok(scan.repair);
    }
    // Before the corrections: credit that is given back is not missing.
    let orphans = scan.release(options.node);
    let corrections = scan.corrections().map_err(reading)?;
    let JournalScan { mut repair, .. } = scan;
    record(connection, options, &mut repair, &orphans, &corrections).map_err(reading)?;
    rebuild_postings::rebuild(connection, options.post_records).map_err(writing)?;
    let beyond = "SELECT 1 FROM accounts WHERE held < 0 OR available < -credit_limit";
    let is_beyond = connection.prepare(beyond).and_then(|mut it| it.exists([]));
    if is_beyond.map_err(|error| open_error(path, "read", error))? {
        return Err(OpenError::Damaged {
            path: path.to_owned(),
            problem: String::from("has a balance below its credit limit after all corrections"),
        });
    }
    let after = balances(connection).map_err(reading)?;
    repair.accounts = after
        .into_iter()
        .map(|(account, after)| BalanceChange {
            account,
            before: before.get(&account).copied().unwrap_or_default(),
            after,
        })
        .filter(|change| change.before != change.after)
        .collect();
    Ok(repair)
}

type Balances = BTreeMap<AccountId, (Micros, Micros)>;

/// Every balance as readers see it; without the unposted part where that cannot be read.
fn balances(connection: &Connection) -> Result<Balances, RowError> {
    let mut found = Balances::new();
    let read = all_accounts(connection, None, "", [], &mut |row| {
        found.insert(row.id, (row.available, row.held));
    });
    match read {
        Err(RowError::Damaged(_)) => {}
        other => return other.map(|()| found),
    }
    found.clear();
    each_row(
        connection,
        "SELECT id, available, held FROM accounts",
        [],
        |row| {
            let account = AccountId::from_bytes(row.get(0)?);
            Ok((
                account,
                (Micros::new(row.get(1)?), Micros::new(row.get(2)?)),
            ))
        },
        &mut |(account, balance)| {
            found.insert(account, balance);
        },
    )?;
    Ok(found)
}

/// Verifies that each node of the journal has a row with its last epoch.
fn ensure_node_rows(connection: &Connection) -> rusqlite::Result<()> {
    let mut nodes =
        connection.prepare("SELECT id >> 56, max(id) FROM journal GROUP BY id >> 56")?;
    let nodes = nodes
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<Result<Vec<(i64, i64)>, _>>()?;
    let mut put = connection.prepare(
        "INSERT INTO nodes (id, epoch, name, lease_until, started_at) VALUES (?1, ?2, 'repair', 0, 0)
         ON CONFLICT (id) DO UPDATE SET epoch = max(epoch, excluded.epoch)",
    )?;
    for (node, last) in nodes {
        put.execute([node, journal::numbers(last).1])?;
    }
    Ok(())
}

/// One scan of the journal that rewrites it where necessary.
struct JournalScan<'c> {
    connection: &'c Connection,
    repair: Repair,
    open: HashMap<OperationId, Open>,
    /// What the kept records add to `available`. Wide, since the records of two processes may add up to anything.
    sums: BTreeMap<AccountId, i128>,
    /// The last commit: epoch, number, its previous hash and its hash.
    last: Option<Last>,
}

#[derive(Clone, Copy)]
struct Last {
    node: i64,
    epoch: i64,
    number: i64,
    original_hash: [u8; 32],
    hash: [u8; 32],
}

/// A hold that has begun and not ended.
struct Open {
    node: i64,
    account: AccountId,
    amount: Micros,
}

/// The result of checking one record.
enum Disposition {
    Keep,
    Replace(LedgerPart, Micros),
    Quarantine(String),
}

impl<'c> JournalScan<'c> {
    fn new(connection: &'c Connection) -> Result<JournalScan<'c>, RowError> {
        // All that ever were: the engine spills them to disk when there are many.
        connection.execute_batch(
            "CREATE TEMP TABLE repair_operations (op_id BLOB PRIMARY KEY) STRICT, WITHOUT ROWID;
             CREATE TEMP TABLE repair_references (account_id BLOB, reference TEXT, PRIMARY KEY (account_id, reference)) STRICT, WITHOUT ROWID",
        )?;
        Ok(JournalScan {
            connection,
            repair: Repair::default(),
            open: HashMap::new(),
            sums: BTreeMap::new(),
            last: None,
        })
    }

    fn journal(&mut self) -> Result<(), RowError> {
        let mut ids = self
            .connection
            .prepare("SELECT id FROM journal ORDER BY id")?;
        let ids = ids
            .query_map([], |row| row.get(0))?
            .collect::<Result<Vec<i64>, _>>()?;
        for id in ids {
            let one = self
                .connection
                .prepare_cached("SELECT body, id, entries, sum_avail, sum_held, prev, hash, at FROM journal WHERE id = ?1")?
                .query_row([id], |row| Ok(BatchRows::read(row)))
                .optional()?;
            if let Some(rows) = one {
                self.repair.commits += 1;
                self.commit(id, rows?)?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, id: i64, rows: BatchRows) -> Result<(), RowError> {
        let BatchRows { seal, body } = rows;
        let commit = (seal.node, seal.epoch, seal.number);
        if seal.reseal(&body).as_ref() != Ok(&seal) {
            let what = "does not match its seal";
            self.report(commit, None, what, Action::Quarantine(body));
            self.connection
                .execute("DELETE FROM journal WHERE id = ?1", [id])?;
            return Ok(());
        }
        let last = self.last.filter(|last| last.node == seal.node);
        let expected = match last {
            Some(last) if last.epoch == seal.epoch => last.number + 1,
            _ => 1,
        };
        if seal.previous != last.map_or([0; 32], |last| last.original_hash) {
            let what = "does not follow the commit before it: two processes wrote at once, or commits between them are lost";
            self.report(commit, None, what, Action::Reseal);
        }
        let mut is = last.map_or([0; 32], |last| last.hash);
        let missing = seal.number - expected;
        if missing > 0 {
            let what = format!("commits {expected} to {} are missing", seal.number - 1);
            self.report(commit, None, &what, Action::Fill(missing));
            if missing > FILLED_MAX {
                return Err(RowError::Damaged(format!(
                    "{missing} commits are missing before commit {} of node {}, epoch {}",
                    seal.number, seal.node, seal.epoch
                )));
            }
            let empty = Packer::default().finish();
            for number in expected..seal.number {
                let key = (seal.node, seal.epoch, number);
                is = insert(self.connection, key, is, &empty)?.hash;
            }
        }
        let kept = self.records(commit, &body)?;
        let new_body = kept.unwrap_or(body);
        let previous = Seal {
            previous: is,
            ..seal.clone()
        };
        let sealed = previous
            .reseal(&new_body)
            .map_err(journal::decode_error(id))?;
        if sealed != seal {
            self.repair.resealed += 1;
            self.connection
                .prepare_cached(
                    "UPDATE journal SET entries = ?2, sum_avail = ?3, sum_held = ?4, prev = ?5, hash = ?6, at = ?7, body = ?8 WHERE id = ?1",
                )?
                .execute(params![
                    id,
                    sealed.entries,
                    sealed.sum_available.get(),
                    sealed.sum_held.get(),
                    sealed.previous,
                    sealed.hash,
                    sealed.at.as_micros(),
                    new_body
                ])?;
        }
        self.last = Some(Last {
            node: seal.node,
            epoch: seal.epoch,
            number: seal.number,
            original_hash: seal.hash,
            hash: sealed.hash,
        });
        Ok(())
    }

    /// Checks each record of a body; returns the remaining body, where it differs.
    fn records(
        &mut self,
        commit: (i64, i64, i64),
        body: &[u8],
    ) -> Result<Option<Vec<u8>>, RowError> {
        let damaged = journal::decode_error(journal::id(commit.0, commit.1, commit.2));
        let read = Body::read(body).map_err(&damaged)?;
        let mut packer = Packer::default();
        let mut is_changed = false;
        for record in read.records() {
            let part = record.and_then(|record| record.part()).map_err(&damaged)?;
            let part = match self.disposition(commit.0, &part)? {
                Disposition::Keep => part,
                Disposition::Replace(instead, charged) => {
                    let what = "is a settlement whose hold is in no commit";
                    self.report(commit, Some(&part), what, Action::Charge(charged));
                    is_changed = true;
                    instead
                }
                Disposition::Quarantine(what) => {
                    let mut alone = Packer::default();
                    alone.push(&part);
                    let action = Action::Quarantine(alone.finish());
                    self.report(commit, Some(&part), &what, action);
                    is_changed = true;
                    continue;
                }
            };
            if let Some(entry) = Entry::of(&part) {
                *self.sums.entry(entry.account).or_default() += i128::from(entry.d_available.get());
            }
            packer.push(&part);
        }
        Ok(is_changed.then(|| packer.finish()))
    }

    /// An operation begins once and ends once, the first of each counts; a reference is booked once.
    fn disposition(&mut self, node: i64, part: &LedgerPart) -> Result<Disposition, RowError> {
        let again = || Disposition::Quarantine(String::from("begins its operation a second time"));
        Ok(match part {
            LedgerPart::Hold {
                operation,
                account,
                amount,
                ..
            } => match self.begin(*operation)? {
                true => {
                    let hold = Open {
                        node,
                        account: *account,
                        amount: *amount,
                    };
                    self.open.insert(*operation, hold);
                    Disposition::Keep
                }
                false => again(),
            },
            LedgerPart::Charge { operation, .. } => match self.begin(*operation)? {
                true => Disposition::Keep,
                false => again(),
            },
            LedgerPart::Credit {
                operation,
                account,
                reference,
                ..
            } => {
                let is_new = self
                    .connection
                    .prepare_cached("INSERT OR IGNORE INTO temp.repair_references (account_id, reference) VALUES (?1, ?2)")?
                    .execute(params![account.as_bytes(), &**reference])?
                    == 1;
                match (is_new, self.begin(*operation)?) {
                    (true, true) => Disposition::Keep,
                    (false, _) => Disposition::Quarantine(format!(
                        "books the reference `{reference}` a second time"
                    )),
                    (true, false) => again(),
                }
            }
            LedgerPart::Settle {
                operation,
                account,
                held,
                charged,
                written_off,
                price_version,
                usage,
                at,
            } => match self.end(*operation, *account, *held)? {
                HoldMatch::Matches => Disposition::Keep,
                HoldMatch::NoHold => Disposition::Replace(
                    LedgerPart::Charge {
                        operation: *operation,
                        account: *account,
                        charged: *charged,
                        written_off: *written_off,
                        price_version: *price_version,
                        usage: usage.clone(),
                        at: *at,
                    },
                    *charged,
                ),
                HoldMatch::Mismatch(what) => Disposition::Quarantine(what),
            },
            LedgerPart::Release {
                operation,
                account,
                held,
                ..
            } => match self.end(*operation, *account, *held)? {
                HoldMatch::Matches => Disposition::Keep,
                // It would return what no commit has charged.
                HoldMatch::NoHold => {
                    Disposition::Quarantine(String::from("is a release whose hold is in no commit"))
                }
                HoldMatch::Mismatch(what) => Disposition::Quarantine(what),
            },
        })
    }

    fn begin(&self, operation: OperationId) -> Result<bool, RowError> {
        let inserted = self
            .connection
            .prepare_cached("INSERT OR IGNORE INTO temp.repair_operations (op_id) VALUES (?1)")?
            .execute([operation.as_bytes()])?;
        Ok(inserted == 1)
    }

    fn end(
        &mut self,
        operation: OperationId,
        account: AccountId,
        held: Micros,
    ) -> Result<HoldMatch, RowError> {
        Ok(match self.open.get(&operation) {
            Some(hold) if (hold.account, hold.amount) == (account, held) => {
                self.open.remove(&operation);
                HoldMatch::Matches
            }
            Some(hold) => HoldMatch::Mismatch(format!(
                "ends a hold of {held} on `{account}`, which is one of {} on `{}`",
                hold.amount, hold.account
            )),
            None if self.begin(operation)? => HoldMatch::NoHold,
            None => HoldMatch::Mismatch(String::from("ends its operation a second time")),
        })
    }

    /// Ends the open holds of `node` and counts their amounts as available. Returns them in the order of their ids.
    fn release(&mut self, node: i64) -> Vec<(OperationId, Open)> {
        let of_node = self.open.extract_if(|_, hold| hold.node == node);
        let mut orphans: Vec<_> = of_node.collect();
        orphans.sort_unstable_by_key(|(operation, _)| *operation);
        for (_, hold) in &orphans {
            *self.sums.entry(hold.account).or_default() += i128::from(hold.amount.get());
        }
        orphans
    }

    /// The amount that brings each account that is below its limit up to it.
    fn corrections(&self) -> Result<Vec<(AccountId, Micros)>, RowError> {
        let mut limits = HashMap::new();
        each_row(
            self.connection,
            "SELECT id, credit_limit FROM accounts",
            [],
            |row| Ok((AccountId::from_bytes(row.get(0)?), row.get::<_, i64>(1)?)),
            &mut |(account, limit)| {
                limits.insert(account, limit);
            },
        )?;
        let mut corrections = Vec::new();
        for (&account, sum) in &self.sums {
            // Records without an account stay; the audit reports them.
            let Some(limit) = limits.get(&account) else {
                continue;
            };
            let below = -i128::from(*limit) - sum;
            if below > 0 {
                let amount = i64::try_from(below).map_err(|_| {
                    RowError::Damaged(format!(
                        "the balance of `{account}` is below the range of amounts"
                    ))
                })?;
                corrections.push((account, Micros::new(amount)));
            }
        }
        Ok(corrections)
    }

    fn report(
        &mut self,
        commit: (i64, i64, i64),
        part: Option<&LedgerPart>,
        what: &str,
        action: Action,
    ) {
        self.repair.findings.push(Finding {
            commit,
            operation: part.map(LedgerPart::operation),
            account: part.map(LedgerPart::account),
            what: what.to_owned(),
            action,
        });
    }
}

/// Whether the end of an operation matches its hold.
enum HoldMatch {
    Matches,
    NoHold,
    Mismatch(String),
}

/// Records the repair in the journal: one commit with a note, and one that releases the orphaned holds and corrects balances.
fn record(
    connection: &Connection,
    options: &Options,
    repair: &mut Repair,
    orphans: &[(OperationId, Open)],
    corrections: &[(AccountId, Micros)],
) -> Result<(), RowError> {
    let (node, epoch) = (options.node, repair.epoch);
    let mut quarantine = blake3::Hasher::new();
    for finding in &repair.findings {
        if let Action::Quarantine(body) = &finding.action {
            quarantine.update(body);
        }
    }
    let filled = |finding: &Finding| match finding.action {
        Action::Fill(count) => count,
        _ => 0,
    };
    let filled: i64 = repair.findings.iter().map(filled).sum();
    let note = format!(
        "repair {epoch} at {}: {} findings, {} commits resealed, {filled} filled in, {} quarantined with BLAKE3 {}, {} holds released, {} corrections",
        options.now.as_micros(),
        repair.findings.len(),
        repair.resealed,
        repair.quarantined(),
        quarantine.finalize().to_hex(),
        orphans.len(),
        corrections.len()
    );
    let previous = journal::last_hash(connection, node)?;
    let seal = insert(
        connection,
        (node, epoch, 1),
        previous,
        &Packer::noted(&note),
    )?;
    if orphans.is_empty() && corrections.is_empty() {
        return Ok(());
    }
    let mut packer = Packer::default();
    let mut write = |part: LedgerPart, what: &str, action| {
        packer.push(&part);
        repair.findings.push(Finding {
            commit: (node, epoch, 2),
            operation: Some(part.operation()),
            account: Some(part.account()),
            what: what.to_owned(),
            action,
        });
    };
    for (operation, hold) in orphans {
        let part = LedgerPart::Release {
            operation: *operation,
            account: hold.account,
            held: hold.amount,
            at: options.now,
        };
        let what = "is an open hold of a process that does not run any more";
        write(part, what, Action::Release(hold.amount));
    }
    for (account, amount) in corrections {
        let part = LedgerPart::Credit {
            operation: correction(options, epoch, *account),
            account: *account,
            kind: EntryKind::Correction,
            amount: *amount,
            reference: format!("repair/{epoch}").into(),
            at: options.now,
        };
        let what = "is below its credit limit";
        write(part, what, Action::Correct(*amount));
    }
    insert(connection, (node, epoch, 2), seal.hash, &packer.finish())?;
    Ok(())
}

/// The operation of a correction: one for each account and repair.
fn correction(options: &Options, epoch: i64, account: AccountId) -> OperationId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tollgate repair");
    hasher.update(&options.node.to_le_bytes());
    hasher.update(&epoch.to_le_bytes());
    hasher.update(account.as_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&hasher.finalize().as_bytes()[..10]);
    OperationId::from_parts(options.now.as_micros().unsigned_abs() / 1000, random)
}

/// Writes a commit of a repair, sealed after `previous`.
fn insert(
    connection: &Connection,
    (node, epoch, number): (i64, i64, i64),
    previous: [u8; 32],
    body: &[u8],
) -> Result<Seal, RowError> {
    let id = journal::id(node, epoch, number);
    let seal =
        Seal::of(((node, epoch, number), previous), body).map_err(journal::decode_error(id))?;
    connection
        .prepare_cached(journal::INSERT)?
        .execute(params![
            id,
            seal.entries,
            seal.sum_available.get(),
            seal.sum_held.get(),
            seal.previous,
            seal.hash,
            seal.at.as_micros(),
            body
        ])?;
    Ok(seal)
}
