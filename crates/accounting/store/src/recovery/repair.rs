//! Repair of a journal that two processes have written concurrently, or that has lost commits.
//!
//! Provable commits stay unchanged: a commit with a valid seal states its decisions, even if the commit does not follow the previous
//! commit. The rest is quarantined: commits that differ from their seal, a second start or end of an operation, a second booking of a
//! reference. The chain is then sealed again from the first break. Missing numbers are filled with empty commits. The journal records the
//! repair in a separate commit. All derived data is rebuilt.
//!
//! No process of the node runs any more, so the repair releases the node's open holds, as the node's next start would. Open holds of
//! other nodes stay open.
//!
//! One decision cannot stay: an account cannot be below its credit limit. If two processes have sold one credit twice, a correction gives
//! the missing amount to the account. The operator sees the correction before the repair changes anything.

use std::collections::{BTreeMap, HashMap};

use tollgate_money::{AccountId, Micros, OperationId};

use crate::carry::OpeningRow;
use crate::codes::EntryKind;
use crate::commit_id;
use crate::engine::{
    Accounts, Epochs, JournalRows, KeySet, NewRun, RowError, Sql, WriteError, damaged_commit,
};
use crate::entries::{Body, Entry, LedgerPart, Seal};
use crate::journal::Packer;
use crate::reads;
use crate::rows::AccountRow;
use crate::store::BatchRows;
use crate::tables;

/// Maximum number of consecutive missing numbers. A journal never lost more commits; a larger gap has another cause.
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
    /// Node, epoch and number of the finding's commit.
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

/// The repair of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Action {
    /// The commit stays, and is sealed again after the previous commit.
    Reseal,
    /// Number of empty commits that replace missing commits.
    Fill(i64),
    /// The commit, or the record as a separate body, is removed from the journal; the field has the removed bytes.
    Quarantine(Vec<u8>),
    /// A settlement becomes a charge of this amount: the settlement's hold is in no other commit.
    Charge(Micros),
    /// A hold of this amount is released: the hold's process does not run any more.
    Release(Micros),
    /// A credit of this amount brings the account up to its limit.
    Correct(Micros),
}

/// The effect of a repair on one balance.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BalanceChange {
    /// The account.
    pub account: AccountId,
    /// Available, before.
    pub available_before: Micros,
    /// Available, after.
    pub available_after: Micros,
    /// Held, before.
    pub held_before: Micros,
    /// Held, after.
    pub held_after: Micros,
}

/// The run of the repair, and its posting settings.
pub(crate) struct RepairRun<'r> {
    pub(crate) run: NewRun<'r>,
    pub(crate) post_records: usize,
}

/// Repairs the journal and rebuilds all data derived from the journal, in the open transaction. Without findings, the caller need not
/// keep the transaction.
pub(crate) fn repair(epochs: &dyn Epochs, options: &RepairRun<'_>) -> Result<Repair, WriteError> {
    let sql: &dyn Sql = epochs;
    let before = balances(sql)?;
    let mut scan = JournalScan::new(sql)?;
    scan.carried()?;
    scan.journal()?;
    for (node, epoch) in std::mem::take(&mut scan.nodes) {
        tables::recovery::put_node(sql, node, epoch)?;
    }
    scan.repair.epoch = epochs.raise_epoch(&options.run)?;
    if scan.repair.findings.is_empty() && scan.corrections()?.is_empty() {
        return Ok(scan.repair);
    }
    // Before the corrections: released credit is not missing.
    let orphans = scan.release(options.run.node);
    let corrections = scan.corrections()?;
    let JournalScan { mut repair, .. } = scan;
    record(sql, &options.run, &mut repair, &orphans, &corrections)?;
    super::rebuild(sql, options.post_records)?;
    let mut is_beyond = false;
    tables::accounts::posted(sql, Accounts::All, &mut |row| {
        is_beyond |= row.held < Micros::ZERO || row.available.get() < -row.credit_limit.get();
    })?;
    if is_beyond {
        return Err(WriteError::Row(RowError::Damaged(String::from(
            "a balance is below its credit limit after all corrections",
        ))));
    }
    let after = balances(sql)?;
    repair.accounts = after
        .into_iter()
        .filter_map(|(account, after)| {
            let before = before.get(&account).copied().unwrap_or_default();
            (before != after).then_some(BalanceChange {
                account,
                available_before: before.available,
                available_after: after.available,
                held_before: before.held,
                held_after: after.held,
            })
        })
        .collect();
    Ok(repair)
}

#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Balance {
    available: Micros,
    held: Micros,
}

type Balances = BTreeMap<AccountId, Balance>;

/// Every balance as readers see the balance. Without the unposted part if the unposted part cannot be read.
fn balances(sql: &dyn Sql) -> Result<Balances, RowError> {
    let mut found = Balances::new();
    let mut insert = |row: AccountRow| {
        let AccountRow {
            available, held, ..
        } = row;
        found.insert(row.id, Balance { available, held });
    };
    match reads::accounts(sql, Accounts::All, &mut insert) {
        Err(RowError::Damaged(_)) => tables::accounts::posted(sql, Accounts::All, &mut insert)?,
        other => other?,
    }
    Ok(found)
}

/// One scan of the journal that rewrites the journal where necessary.
struct JournalScan<'r> {
    sql: &'r dyn Sql,
    /// Every operation and every reference in the journal.
    keys: KeySet,
    repair: Repair,
    /// The last epoch of each node in the journal.
    nodes: BTreeMap<i64, i64>,
    open: HashMap<OperationId, Open>,
    /// The sum of the kept records' changes of `available`, per account. Wide, because the records of two processes may exceed an `i64`.
    sums: BTreeMap<AccountId, i128>,
    /// The last commit of each node; at first the last removed commit.
    last: BTreeMap<i64, Last>,
}

/// A commit: its hash before the repair, and its hash after the repair.
#[derive(Clone, Copy)]
struct Last {
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

impl Disposition {
    fn second_start() -> Disposition {
        Disposition::Quarantine(String::from("begins its operation a second time"))
    }
}

impl<'r> JournalScan<'r> {
    fn new(sql: &'r dyn Sql) -> Result<JournalScan<'r>, RowError> {
        Ok(JournalScan {
            sql,
            keys: KeySet::new()?,
            repair: Repair::default(),
            nodes: BTreeMap::new(),
            open: HashMap::new(),
            sums: BTreeMap::new(),
            last: BTreeMap::new(),
        })
    }

    /// Reads the carried state of removed commits: the removal verified the commits, and the repair does not change the carried state.
    fn carried(&mut self) -> Result<(), RowError> {
        let mut parts = Vec::new();
        tables::journal::bodies(self.sql, JournalRows::Carried, &mut |id, bytes| {
            let damaged = damaged_commit(id);
            for record in Body::read(bytes).map_err(&damaged)?.records() {
                let part = record.and_then(|record| record.part());
                parts.push((commit_id::numbers(id).0, part.map_err(&damaged)?));
            }
            Ok(())
        })?;
        for (node, part) in parts {
            self.disposition(node, &part)?;
            if let Some(entry) = Entry::of(&part) {
                *self.sums.entry(entry.account).or_default() += i128::from(entry.d_available.get());
            }
        }
        tables::carry::all(self.sql, &mut |row| match row {
            OpeningRow::Node(node) => {
                let (epoch, number) = node.last();
                let (original_hash, hash) = (node.hash, node.hash);
                let last = Last {
                    epoch,
                    number,
                    original_hash,
                    hash,
                };
                self.last.insert(node.node, last);
                self.nodes.insert(node.node, epoch);
            }
            OpeningRow::Sum(sum) => {
                let changed = i128::from(sum.allotted.get()) - i128::from(sum.charged.get());
                *self.sums.entry(sum.account).or_default() += changed;
            }
            OpeningRow::Record { .. } | OpeningRow::Day(..) => {}
        })
    }

    fn journal(&mut self) -> Result<(), RowError> {
        for id in tables::journal::commit_ids(self.sql)? {
            if let Some(commit) = tables::journal::commit(self.sql, id)? {
                self.repair.commits += 1;
                self.commit(id, commit)?;
            }
        }
        Ok(())
    }

    fn commit(&mut self, id: i64, BatchRows { seal, body }: BatchRows) -> Result<(), RowError> {
        let commit = (seal.node, seal.epoch, seal.number);
        if seal.reseal(&body).as_ref() != Ok(&seal) {
            let what = "does not match its seal";
            self.report(commit, None, what, Action::Quarantine(body));
            tables::recovery::remove_commit(self.sql, id)?;
            return Ok(());
        }
        let last = self.last.get(&seal.node).copied();
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
                is = insert(self.sql, key, is, &empty)?.hash;
            }
        }
        let kept = self.records(commit, &body)?;
        let new_body = kept.unwrap_or(body);
        let previous = Seal {
            previous: is,
            ..seal.clone()
        };
        let sealed = previous.reseal(&new_body).map_err(damaged_commit(id))?;
        if sealed != seal {
            self.repair.resealed += 1;
            tables::recovery::put_commit(self.sql, id, &sealed, &new_body)?;
        }
        self.nodes.insert(seal.node, seal.epoch);
        let last = Last {
            epoch: seal.epoch,
            number: seal.number,
            original_hash: seal.hash,
            hash: sealed.hash,
        };
        self.last.insert(seal.node, last);
        Ok(())
    }

    /// Checks each record of a body; returns the remaining body if the body changes.
    fn records(
        &mut self,
        commit: (i64, i64, i64),
        body: &[u8],
    ) -> Result<Option<Vec<u8>>, RowError> {
        let damaged = damaged_commit(commit_id::id(commit.0, commit.1, commit.2));
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

    /// An operation begins once and ends once, and the first begin and end count; a reference is booked once.
    fn disposition(&mut self, node: i64, part: &LedgerPart) -> Result<Disposition, RowError> {
        Ok(match part {
            LedgerPart::Hold {
                operation,
                account,
                amount,
                ..
            } => {
                let hold = Open {
                    node,
                    account: *account,
                    amount: *amount,
                };
                self.begin_hold(*operation, hold)?
            }
            LedgerPart::Charge { operation, .. }
            | LedgerPart::Allot { operation, .. }
            | LedgerPart::Carry { operation, .. } => match self.begin(*operation)? {
                true => Disposition::Keep,
                false => Disposition::second_start(),
            },
            LedgerPart::Credit {
                operation,
                account,
                reference,
                ..
            } => self.book(*operation, *account, reference)?,
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
                // The release would return credit that no commit has charged.
                HoldMatch::NoHold => {
                    Disposition::Quarantine(String::from("is a release whose hold is in no commit"))
                }
                HoldMatch::Mismatch(what) => Disposition::Quarantine(what),
            },
        })
    }

    fn begin_hold(&mut self, operation: OperationId, hold: Open) -> Result<Disposition, RowError> {
        Ok(match self.begin(operation)? {
            true => {
                self.open.insert(operation, hold);
                Disposition::Keep
            }
            false => Disposition::second_start(),
        })
    }

    /// The disposition of a credit: its operation begins once, and its reference is booked once.
    fn book(
        &self,
        operation: OperationId,
        account: AccountId,
        reference: &str,
    ) -> Result<Disposition, RowError> {
        // Longer than an operation, so the two kinds of keys differ.
        let key = [&account.as_bytes()[..], b"/", reference.as_bytes()].concat();
        let is_new = self.keys.insert(&key)?;
        Ok(match (is_new, self.begin(operation)?) {
            (true, true) => Disposition::Keep,
            (false, _) => {
                Disposition::Quarantine(format!("books the reference `{reference}` a second time"))
            }
            (true, false) => Disposition::second_start(),
        })
    }

    fn begin(&self, operation: OperationId) -> Result<bool, RowError> {
        self.keys.insert(operation.as_bytes())
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

    /// Ends the open holds of `node` and counts their amounts as available. Returns the holds in the order of their ids.
    fn release(&mut self, node: i64) -> Vec<(OperationId, Open)> {
        let of_node = self.open.extract_if(|_, hold| hold.node == node);
        let mut orphans: Vec<_> = of_node.collect();
        orphans.sort_unstable_by_key(|(operation, _)| *operation);
        for (_, hold) in &orphans {
            *self.sums.entry(hold.account).or_default() += i128::from(hold.amount.get());
        }
        orphans
    }

    /// For each account below its limit, the amount that brings the account up to the limit.
    fn corrections(&self) -> Result<Vec<(AccountId, Micros)>, RowError> {
        let mut limits = HashMap::new();
        tables::accounts::posted(self.sql, Accounts::All, &mut |row| {
            limits.insert(row.id, row.credit_limit.get());
        })?;
        let mut corrections = Vec::new();
        for (&account, sum) in &self.sums {
            // Records without an account stay; the audit reports these records.
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

/// Records the repair in the journal: one commit with a note, and one commit that releases the orphaned holds and corrects balances.
fn record(
    sql: &dyn Sql,
    run: &NewRun<'_>,
    repair: &mut Repair,
    orphans: &[(OperationId, Open)],
    corrections: &[(AccountId, Micros)],
) -> Result<(), RowError> {
    let (node, epoch) = (run.node, repair.epoch);
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
        run.now.as_micros(),
        repair.findings.len(),
        repair.resealed,
        repair.quarantined(),
        quarantine.finalize().to_hex(),
        orphans.len(),
        corrections.len()
    );
    let previous = tables::journal::last_hash(sql, node)?.unwrap_or_default();
    let seal = insert(sql, (node, epoch, 1), previous, &Packer::noted(&note))?;
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
            at: run.now,
        };
        let what = "is an open hold of a process that does not run any more";
        write(part, what, Action::Release(hold.amount));
    }
    for (account, amount) in corrections {
        let part = LedgerPart::Credit {
            operation: correction(run, epoch, *account),
            account: *account,
            kind: EntryKind::Correction,
            amount: *amount,
            reference: format!("repair/{epoch}").into(),
            at: run.now,
        };
        let what = "is below its credit limit";
        write(part, what, Action::Correct(*amount));
    }
    insert(sql, (node, epoch, 2), seal.hash, &packer.finish())?;
    Ok(())
}

/// The operation of a correction: one for each account and repair.
fn correction(run: &NewRun<'_>, epoch: i64, account: AccountId) -> OperationId {
    let mut hasher = blake3::Hasher::new();
    hasher.update(b"tollgate repair");
    hasher.update(&run.node.to_le_bytes());
    hasher.update(&epoch.to_le_bytes());
    hasher.update(account.as_bytes());
    let mut random = [0; 10];
    random.copy_from_slice(&hasher.finalize().as_bytes()[..10]);
    OperationId::from_parts(run.now.as_micros().unsigned_abs() / 1000, random)
}

/// Writes a commit of a repair, sealed after `previous`.
fn insert(
    sql: &dyn Sql,
    (node, epoch, number): (i64, i64, i64),
    previous: [u8; 32],
    body: &[u8],
) -> Result<Seal, RowError> {
    let id = commit_id::id(node, epoch, number);
    let seal = Seal::of(((node, epoch, number), previous), body).map_err(damaged_commit(id))?;
    tables::recovery::put_commit(sql, id, &seal, body)?;
    Ok(seal)
}
