//! Group commit: units of work written in one transaction.

mod allotments;
mod shared_balances;

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use self::shared_balances::SharedBalances;
use super::coalesce::{Step, plan as coalesced};
use super::journal_tail::JournalTail;
use crate::allotment::{AllotmentPart, Budget};
use crate::audit_log::{AuditEvent, AuditOutcome, AuditRecord};
use crate::carry::{self, CarryPart};
use crate::codes::{ChangeKind, EntryKind};
use crate::commit_id;
use crate::engine::{Booking, RowError, Session, Sql, WriteError};
use crate::entries::{Entry, LedgerPart, Seal};
use crate::error::Refusal;
use crate::journal::Packer;
use crate::oauth::OAuthPart;
use crate::plan::PlanPart;
use crate::queue::Item;
use crate::reads::{BalanceDelta, caps};
use crate::seal::Sums;
use crate::tables;
use crate::unit::{Part, Receipt, UnitOfWork};

/// The result of each unit of a batch, in order.
pub(crate) type Answers = Vec<Result<Receipt, Refusal>>;

/// The writer's state in one run, and buffers that are reused between batches.
pub(crate) struct Batch {
    node: i64,
    epoch: i64,
    /// The number of the last seal.
    number: i64,
    /// The last seal's hash, or the hash of the last seal of an earlier epoch.
    previous: [u8; 32],
    /// Changes written by this run, for unique ids.
    changes: u32,
    packer: Packer,
    body: Vec<u8>,
    sums: Sums,
    deltas: Vec<(AccountId, BalanceDelta)>,
    tail: JournalTail,
    /// Charges of keys by other commits, read at most once for a batch.
    unposted_charges: Option<caps::UnpostedCharges>,
    shared: SharedBalances,
    /// Entries saved by coalescing, for the gauge.
    pub(crate) coalesced: u64,
    /// Entries of the last batch.
    pub(crate) entries: u64,
}

/// A position in a batch to rewind to.
struct Mark {
    packer: crate::journal::Mark,
    sums: Sums,
    deltas: usize,
    tail: usize,
    booked: usize,
}

impl Batch {
    pub(crate) fn load(
        sql: &dyn Sql,
        node: i64,
        epoch: i64,
        post_records: usize,
    ) -> Result<Batch, RowError> {
        Ok(Batch {
            node,
            epoch,
            number: 0,
            previous: tables::journal::last_hash(sql, node)?.unwrap_or_default(),
            changes: 0,
            packer: Packer::default(),
            body: Vec::new(),
            sums: Sums::default(),
            deltas: Vec::new(),
            tail: JournalTail::load(sql, node, post_records)?,
            unposted_charges: None,
            shared: SharedBalances::default(),
            coalesced: 0,
            entries: 0,
        })
    }

    /// Writes the units into the open transaction: the rows of each unit, and one journal row for all ledger parts. After an error the
    /// caller has to roll back the transaction, and this run is over.
    pub(crate) fn write(
        &mut self,
        session: &mut impl Session,
        items: &[Item],
    ) -> Result<Answers, WriteError> {
        self.sums = Sums::default();
        self.deltas.clear();
        self.tail.begin_batch();
        self.unposted_charges = None;
        self.coalesced = 0;
        self.shared.clear();
        let sql = session.sql();
        if self.is_one_of_many() {
            self.shared.read(sql, items)?;
        }
        let steps = coalesced(items);
        let mut answers: Answers = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let answer = match steps.get(index) {
                Some(Step::CoalescedHold) => self.coalesced_hold(&item.unit.parts),
                Some(Step::CoalescedSettlement { hold }) => match &answers[*hold] {
                    Err(refusal) => Err(WriteError::Refused(refusal.clone())),
                    Ok(_) => self.coalesced_settlement(&item.unit.parts),
                },
                Some(Step::Apply) | None => self.unit(sql, &item.unit),
            };
            answers.push(match answer {
                Ok(receipt) => Ok(receipt),
                Err(WriteError::Refused(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            });
        }
        self.shared.flush(sql, self.node)?;
        self.balances(sql)?;
        self.journal(session)?;
        // Last: an engine sends the written statements with this read.
        self.load_accounts(session.sql(), items, &mut answers)?;
        Ok(answers)
    }

    /// Reads the rows that `items` may need and that only this node changes. The read comes before the lock of the shared state, because
    /// the other nodes wait for this lock.
    pub(crate) fn prefetch_own(&mut self, sql: &dyn Sql, items: &[Item]) -> Result<(), RowError> {
        let parts = items.iter().flat_map(|item| item.unit.parts());
        let accounts = parts.filter_map(|part| match part {
            Part::Ledger(part) => Some(part.account()),
            Part::Allotment(
                AllotmentPart::Take { budget, .. } | AllotmentPart::Return { budget, .. },
            ) => match budget {
                Budget::Account(account) => Some(*account),
                Budget::Cap(_) => None,
            },
            _ => None,
        });
        self.tail.read_posted(sql, accounts)
    }

    /// Goes back to the durable state: no unit of the last batch is durable.
    pub(crate) fn reload(&mut self, sql: &dyn Sql) -> Result<(), RowError> {
        let loaded = Batch::load(sql, self.node, self.epoch, self.tail.records_max())?;
        *self = Batch {
            number: tables::journal::last_number(sql, self.node, self.epoch)?,
            changes: self.changes,
            ..loaded
        };
        Ok(())
    }

    /// Whether the node is one of several.
    pub(crate) fn is_one_of_many(&self) -> bool {
        commit_id::has_allotments(self.node)
    }

    /// Whether the journal has unposted records.
    pub(crate) fn has_unposted(&self) -> bool {
        self.tail.has_unposted()
    }

    /// Whether enough records have accumulated to be posted; `now_us` is the time of a monotonic clock.
    pub(crate) fn is_due(&mut self, now_us: u64) -> bool {
        self.tail.is_due(now_us)
    }

    /// Records the duration of the last posting, including its commit.
    pub(crate) fn posting_took(&mut self, us: u64) {
        self.tail.posting_took(us);
    }

    /// Posts all unposted records, in the open transaction.
    pub(crate) fn post(&mut self, sql: &dyn Sql) -> Result<(), WriteError> {
        self.tail.post(sql)
    }

    fn mark(&self) -> Mark {
        Mark {
            packer: self.packer.mark(),
            sums: self.sums,
            deltas: self.deltas.len(),
            tail: self.tail.mark(),
            booked: self.shared.booked(),
        }
    }

    fn rewind(&mut self, mark: &Mark) {
        self.packer.rewind(mark.packer);
        self.sums = mark.sums;
        self.deltas.truncate(mark.deltas);
        self.tail.rewind(mark.tail);
    }

    /// Applies a unit. If the store accepts the ledger part and refuses another part, the ledger part is committed alone, at the unit's
    /// position in the queue. Later units may depend on the ledger part.
    fn unit(&mut self, sql: &dyn Sql, unit: &UnitOfWork) -> Result<Receipt, WriteError> {
        match (self.apply(sql, &unit.parts), &unit.acceptance) {
            (Err(WriteError::Refused(refusal)), Some(acceptance)) if !acceptance.refuse() => {
                let is_ledger = |part: &&Part| matches!(part, Part::Ledger(_));
                let Some(part) = unit.parts.iter().find(is_ledger) else {
                    return Err(WriteError::Refused(refusal));
                };
                tracing::warn!(%refusal, "store refused a spooled unit, committing its charge alone");
                self.apply(sql, std::slice::from_ref(part))
            }
            (applied, _) => applied,
        }
    }

    fn apply(&mut self, sql: &dyn Sql, parts: &[Part]) -> Result<Receipt, WriteError> {
        let mark = self.mark();
        if let [part] = parts {
            // A part that changed rows before its refusal has undone its changes.
            return self
                .part(sql, part, false)
                .inspect_err(|_| self.rewind(&mark));
        }
        // The changes of earlier units do not belong to this unit.
        self.shared.flush(sql, self.node)?;
        tables::unit::begin(sql)?;
        let mut receipt = Receipt::default();
        for part in parts {
            match self.part(sql, part, receipt.repeated.is_some()) {
                Ok(done) => {
                    receipt.repeated = receipt.repeated.or(done.repeated);
                    receipt.taken = receipt.taken.or(done.taken);
                }
                Err(refused @ WriteError::Refused(_)) => {
                    tables::unit::undo(sql)?;
                    self.rewind(&mark);
                    self.shared.undo(mark.booked);
                    return Err(refused);
                }
                // The whole transaction is rolled back. After a lost connection, the transaction and its savepoint are gone already.
                Err(error) => return Err(error),
            }
        }
        self.shared.flush(sql, self.node)?;
        tables::unit::keep(sql)?;
        Ok(receipt)
    }

    /// `is_repeated` for a part after a part that books a reference again.
    fn part(
        &mut self,
        sql: &dyn Sql,
        part: &Part,
        is_repeated: bool,
    ) -> Result<Receipt, WriteError> {
        match part {
            Part::Ledger(part) => return self.ledger(sql, part),
            Part::Allotment(part) => return self.allotment(sql, part),
            Part::Carry(part) => {
                self.shared.invalidate(sql, self.node)?;
                return self.carry(sql, part);
            }
            // Answered at the end of the batch.
            Part::Load(_) => return Ok(Receipt::default()),
            Part::Audit(event) => {
                self.audit(sql, event, is_repeated)?;
                return Ok(Receipt::default());
            }
            _ => {
                self.shared.invalidate(sql, self.node)?;
                tables::unit::write_part(sql, part)?;
            }
        }
        if let Some((kind, subject, at)) = changed_subject(part) {
            self.change(sql, kind, subject, at)?;
            if let Part::ChangeCredential(change) = part
                && self.is_one_of_many()
            {
                self.cap_changed(sql, change)?;
            }
        } else if let Part::Signin(part) = part
            && let Some((id, at)) = part.queued()
            && self.is_one_of_many()
        {
            // Another node may deliver the message.
            self.change(sql, ChangeKind::Message, &id.0, at)?;
        } else if let Some(debt) = part.debt()
            && debt.credits.is_positive()
            && self.is_one_of_many()
        {
            self.recall_owing(sql, debt.account, debt.at)?;
        }
        Ok(Receipt::default())
    }

    /// Announces a change of cached state to the other nodes. Returns the change's number in a cluster, 0 for a node that is alone.
    fn change(
        &mut self,
        sql: &dyn Sql,
        kind: ChangeKind,
        subject: &[u8; 16],
        at: Timestamp,
    ) -> Result<i64, WriteError> {
        if !self.is_one_of_many() {
            // No node reads the feed, and a node that starts later needs no row of the feed.
            return Ok(0);
        }
        let id = self.next_change(at);
        let number = tables::allotment::next_number(sql)?;
        tables::allotment::insert_change(sql, id, at, kind, subject, number)?;
        Ok(number)
    }

    fn carry(&mut self, sql: &dyn Sql, part: &CarryPart) -> Result<Receipt, WriteError> {
        if !self.tail.begin(part.operation) {
            return Err(WriteError::Refused(Refusal::OperationExists(
                part.operation,
            )));
        }
        let (number, digest) = carry::remove(sql, part)?;
        self.push(&LedgerPart::Carry {
            operation: part.operation,
            number,
            digest,
            at: part.at,
        });
        Ok(Receipt::default())
    }

    fn ledger(&mut self, sql: &dyn Sql, part: &LedgerPart) -> Result<Receipt, WriteError> {
        match *part {
            LedgerPart::Hold { operation, .. } => {
                if !self.tail.begin(operation) {
                    return Err(WriteError::Refused(Refusal::OperationExists(operation)));
                }
                self.tail.hold(part, self.epoch);
            }
            LedgerPart::Settle {
                operation,
                account,
                held,
                ..
            }
            | LedgerPart::Release {
                operation,
                account,
                held,
                ..
            } => {
                if !self.tail.end(operation, account, held) {
                    return Err(WriteError::Refused(Refusal::NoHold(operation)));
                }
            }
            LedgerPart::Charge { operation, .. } => {
                if !self.tail.begin(operation) {
                    return Err(WriteError::Refused(Refusal::OperationExists(operation)));
                }
            }
            LedgerPart::Allot { .. } | LedgerPart::Carry { .. } => {
                return Err(WriteError::Refused(Refusal::Invalid(
                    "a move between nodes and a removal of commits have parts of their own",
                )));
            }
            LedgerPart::Credit {
                operation,
                account,
                kind,
                amount,
                ref reference,
                at,
            } => {
                if let Some((earlier, booked_kind, booked_amount)) =
                    tables::bookings::booked(sql, account, reference)?
                {
                    if (booked_kind, booked_amount) == (kind.code(), amount) {
                        return Ok(Receipt {
                            repeated: Some(earlier),
                            ..Receipt::default()
                        });
                    }
                    return Err(WriteError::Refused(Refusal::ReferenceUsed {
                        reference: reference.clone(),
                        kind: EntryKind::from_code(booked_kind).unwrap_or(kind),
                        amount: booked_amount,
                    }));
                }
                if !tables::parts::account_exists(sql, account)? {
                    return Err(WriteError::Refused(Refusal::NoAccount(account)));
                }
                if !self.tail.begin(operation) {
                    return Err(WriteError::Refused(Refusal::OperationExists(operation)));
                }
                if self.is_one_of_many() {
                    self.shared.book(sql, self.node, account)?;
                    self.change(sql, ChangeKind::Credit, account.as_bytes(), at)?;
                }
                tables::bookings::insert(
                    sql,
                    Booking {
                        account,
                        reference,
                        operation,
                        kind: kind.code(),
                        amount,
                    },
                )?;
            }
        }
        self.push(part);
        Ok(Receipt::default())
    }

    /// Chains an event to the node's last event. Reads the last event each time: acts of operators are rare, and a unit may be undone.
    fn audit(
        &self,
        sql: &dyn Sql,
        event: &AuditEvent,
        is_repeated: bool,
    ) -> Result<(), WriteError> {
        let (number, previous) = tables::audit_log::last(sql, self.node)?.unwrap_or_default();
        let mut event = event.clone();
        if is_repeated {
            event.outcome = AuditOutcome::Repeated;
        }
        let record = AuditRecord::chained(event, self.node, number + 1, previous);
        Ok(tables::audit_log::insert(sql, &record)?)
    }

    /// A hold settled in this batch: only its operation is recorded.
    fn coalesced_hold(&mut self, parts: &[Part]) -> Result<Receipt, WriteError> {
        match parts {
            [Part::Ledger(LedgerPart::Hold { operation, .. })] if !self.tail.begin(*operation) => {
                Err(WriteError::Refused(Refusal::OperationExists(*operation)))
            }
            _ => Ok(Receipt::default()),
        }
    }

    /// A settlement whose hold is in this batch: the hold and the settlement become one charge.
    fn coalesced_settlement(&mut self, parts: &[Part]) -> Result<Receipt, WriteError> {
        if let [
            Part::Ledger(LedgerPart::Settle {
                operation,
                account,
                charged,
                written_off,
                price_version,
                usage,
                at,
                ..
            }),
        ] = parts
        {
            self.push(&LedgerPart::Charge {
                operation: *operation,
                account: *account,
                charged: *charged,
                written_off: *written_off,
                price_version: *price_version,
                usage: usage.clone(),
                at: *at,
            });
            self.coalesced += 1;
        }
        Ok(Receipt::default())
    }

    fn push(&mut self, part: &LedgerPart) {
        self.packer.push(part);
        self.tail.owner(part.account());
        self.sums.see(part);
        if let Some(entry) = Entry::of(part) {
            self.sums.add(&entry);
            let mut delta = BalanceDelta::default();
            delta.add(&entry);
            self.deltas.push((entry.account, delta));
        }
    }

    /// Applies one change per account.
    fn balances(&mut self, sql: &dyn Sql) -> Result<(), WriteError> {
        self.deltas.sort_unstable_by_key(|(account, _)| *account);
        let changed = self.deltas.chunk_by(|(one, _), (next, _)| one == next);
        self.tail
            .read_posted(sql, changed.map(|deltas| deltas[0].0))?;
        for deltas in self.deltas.chunk_by(|(one, _), (next, _)| one == next) {
            let mut sum = BalanceDelta::default();
            for (_, delta) in deltas {
                // Wrapping, because the additions run in another order than the decisions. The sum is in range even if partial sums are
                // not.
                sum.available = sum.available.wrapping_add(delta.available);
                sum.held = sum.held.wrapping_add(delta.held);
                sum.at = sum.at.max(delta.at);
            }
            self.tail.apply_delta(sql, deltas[0].0, sum)?;
        }
        Ok(())
    }

    /// Answers the loads of the batch. A loaded account includes every change of this batch: observers are notified of these changes
    /// before any of the batch's callers. The account includes no change of which observers are notified later.
    fn load_accounts(
        &self,
        sql: &dyn Sql,
        items: &[Item],
        answers: &mut Answers,
    ) -> Result<(), WriteError> {
        let mut wanted = Vec::new();
        for (index, item) in items.iter().enumerate() {
            if let [Part::Load(account)] = item.unit.parts() {
                wanted.push((*account, index));
            }
        }
        if wanted.is_empty() {
            return Ok(());
        }
        wanted.sort_unstable();
        let accounts: Vec<AccountId> = wanted.iter().map(|(account, _)| *account).collect();
        tables::loaded::accounts(sql, self.node, &accounts, &mut |account, posted| {
            let loaded = self.tail.with_tail(account, posted);
            let first = wanted.partition_point(|(before, _)| *before < account);
            let same = wanted[first..].iter().take_while(|(it, _)| *it == account);
            for (_, index) in same {
                if let Some(Ok(receipt)) = answers.get_mut(*index) {
                    receipt.loaded = Some(loaded);
                }
            }
        })?;
        Ok(())
    }

    fn journal(&mut self, session: &mut impl Session) -> Result<(), WriteError> {
        self.entries = self.sums.entries.unsigned_abs();
        let records = self.packer.count();
        if records == 0 {
            return Ok(());
        }
        self.packer.finish_into(&mut self.body);
        self.number += 1;
        let key = (self.node, self.epoch, self.number);
        let seal = Seal::over(key, self.previous, &self.sums, &self.body);
        let id = commit_id::id(self.node, self.epoch, self.number);
        session.insert_commit(id, &seal, &self.body)?;
        self.previous = seal.hash;
        self.tail.push_row(id, &self.body, records);
        Ok(())
    }

    /// The id of the next row of the feed of changes: sorted by time, and unique by node, epoch and a counter of this run.
    fn next_change(&mut self, at: Timestamp) -> [u8; 16] {
        self.changes += 1;
        let mut id = [0u8; 16];
        id[..6].copy_from_slice(&(at.as_micros() / 1000).to_be_bytes()[2..]);
        id[6..8].copy_from_slice(&self.node.to_be_bytes()[6..]);
        id[8..12].copy_from_slice(&self.epoch.to_be_bytes()[4..]);
        id[12..].copy_from_slice(&self.changes.to_be_bytes());
        id
    }
}

/// Whether units read or write state shared by the nodes: any row beside the journal and the balances of their own node.
pub(crate) fn are_shared(items: &[Item]) -> bool {
    let mut parts = items.iter().flat_map(|item| &item.unit.parts);
    !parts.all(|part| match part {
        Part::Ledger(part) => part.is_of_node(),
        Part::Load(_) => true,
        _ => false,
    })
}

/// Whether a unit only writes rows that no other unit reads. Such a unit is committed before the rest of its batch, without the lock of
/// the shared state.
pub(crate) fn is_write_only(item: &Item) -> bool {
    match item.unit.parts() {
        [Part::RecordRefusals(_)] => true,
        [Part::OAuth(part)] => matches!(**part, OAuthPart::NoteUses(_)),
        _ => false,
    }
}

/// The subject of a part's change that nodes cache in memory.
fn changed_subject(part: &Part) -> Option<(ChangeKind, &[u8; 16], Timestamp)> {
    Some(match part {
        Part::CreateAccount(account) => (
            ChangeKind::Account,
            account.id.as_bytes(),
            account.created_at,
        ),
        Part::ChangeAccount(change) => (ChangeKind::Account, change.id.as_bytes(), change.at),
        Part::InsertCredential(credential) => (
            ChangeKind::Credential,
            credential.id.as_bytes(),
            credential.created_at,
        ),
        Part::ChangeCredential(change) => (ChangeKind::Credential, change.id.as_bytes(), change.at),
        Part::RevokeCredential { id, at } => (ChangeKind::Credential, id.as_bytes(), *at),
        Part::PurgeCache { kind, subject, at } => (*kind, subject, *at),
        Part::OAuth(part) => match &**part {
            OAuthPart::RevokeGrant { id, at, .. } => (ChangeKind::Grant, id.as_bytes(), *at),
            OAuthPart::RevokeGrants { account, at, .. } => {
                (ChangeKind::Grant, account.as_bytes(), *at)
            }
            _ => return None,
        },
        Part::Plan(part) => match &**part {
            PlanPart::Put { row, .. } => {
                (ChangeKind::Account, row.account.as_bytes(), row.updated_at)
            }
            _ => return None,
        },
        _ => return None,
    })
}
