//! Group commit: units of work written in one transaction.

use rusqlite::{Connection, params};
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use super::coalesce::{Step, plan as coalesced};
use super::journal::{self, BalanceDelta};
use super::journal_tail::JournalTail;
use super::statements::Statements;
use super::{checkout, keys, mandate, oauth, parts, plan, signin, topup, x402};
use crate::codes::{ChangeKind, EntryKind};
use crate::engine::{RowError, WriteError};
use crate::entries::{Entry, LedgerPart, Seal};
use crate::error::Refusal;
use crate::journal::Packer;
use crate::oauth::OAuthPart;
use crate::plan::PlanPart;
use crate::queue::Item;
use crate::seal::Sums;
use crate::unit::{Part, Receipt};

/// The result of each unit of a batch, in order.
pub(crate) type Answers = Vec<Result<Receipt, Refusal>>;

/// A run of the writer: its state beside the statements, and buffers that are reused between batches.
pub(crate) struct Batch {
    node: i64,
    epoch: i64,
    /// The number of the last seal.
    number: i64,
    /// Its hash, or that of the last seal of an earlier epoch.
    previous: [u8; 32],
    /// Changes written by this run, for unique ids.
    changes: u32,
    packer: Packer,
    body: Vec<u8>,
    sums: Sums,
    deltas: Vec<(AccountId, BalanceDelta)>,
    tail: JournalTail,
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
}

impl Batch {
    pub(crate) fn load(
        connection: &Connection,
        node: i64,
        epoch: i64,
        post_records: usize,
    ) -> Result<Batch, RowError> {
        Ok(Batch {
            node,
            epoch,
            number: 0,
            previous: journal::last_hash(connection, node)?,
            changes: 0,
            packer: Packer::default(),
            body: Vec::new(),
            sums: Sums::default(),
            deltas: Vec::new(),
            tail: JournalTail::load(connection, node, post_records)?,
            coalesced: 0,
            entries: 0,
        })
    }

    /// Writes the units into the open transaction: their rows, and one journal row for all their ledger parts. After an error the
    /// transaction has to be rolled back, and this run is over.
    pub(crate) fn write(
        &mut self,
        connection: &Connection,
        statements: &mut Statements<'_>,
        items: &[Item],
    ) -> Result<Answers, WriteError> {
        self.sums = Sums::default();
        self.deltas.clear();
        self.tail.begin_batch();
        self.coalesced = 0;
        let steps = coalesced(items);
        let mut answers: Answers = Vec::with_capacity(items.len());
        for (index, item) in items.iter().enumerate() {
            let answer = match steps.get(index) {
                Some(Step::CoalescedHold) => self.coalesced_hold(&item.unit.parts),
                Some(Step::CoalescedSettlement { hold }) => match &answers[*hold] {
                    Err(refusal) => Err(WriteError::Refused(refusal.clone())),
                    Ok(_) => self.coalesced_settlement(&item.unit.parts),
                },
                Some(Step::Apply) | None => self.apply(connection, &item.unit.parts),
            };
            answers.push(match answer {
                Ok(receipt) => Ok(receipt),
                Err(WriteError::Refused(refusal)) => Err(refusal),
                Err(error) => return Err(error),
            });
        }
        self.balances(connection)?;
        self.journal(statements)?;
        Ok(answers)
    }

    /// Whether the journal has unposted records.
    pub(crate) fn has_unposted(&self) -> bool {
        self.tail.has_unposted()
    }

    /// Whether enough records have accumulated to be posted; `now_us` is the time of a monotonic clock.
    pub(crate) fn is_due(&mut self, now_us: u64) -> bool {
        self.tail.is_due(now_us)
    }

    /// Posts all unposted records, in the open transaction.
    pub(crate) fn post(&mut self, connection: &Connection) -> Result<(), WriteError> {
        self.tail.post(connection)
    }

    fn mark(&self) -> Mark {
        Mark {
            packer: self.packer.mark(),
            sums: self.sums,
            deltas: self.deltas.len(),
            tail: self.tail.mark(),
        }
    }

    fn rewind(&mut self, mark: &Mark) {
        self.packer.rewind(mark.packer);
        self.sums = mark.sums;
        self.deltas.truncate(mark.deltas);
        self.tail.rewind(mark.tail);
    }

    fn apply(&mut self, connection: &Connection, parts: &[Part]) -> Result<Receipt, WriteError> {
        if let [part] = parts {
            return self.part(connection, part);
        }
        let mark = self.mark();
        connection.prepare_cached("SAVEPOINT unit")?.execute([])?;
        let mut receipt = Receipt::default();
        for part in parts {
            match self.part(connection, part) {
                Ok(done) => receipt.repeated = receipt.repeated.or(done.repeated),
                Err(error) => {
                    connection.prepare_cached("ROLLBACK TO unit")?.execute([])?;
                    connection.prepare_cached("RELEASE unit")?.execute([])?;
                    self.rewind(&mark);
                    return Err(error);
                }
            }
        }
        connection.prepare_cached("RELEASE unit")?.execute([])?;
        Ok(receipt)
    }

    fn part(&mut self, connection: &Connection, part: &Part) -> Result<Receipt, WriteError> {
        match part {
            Part::Ledger(part) => return self.ledger(connection, part),
            Part::CreateAccount(account) => {
                parts::create_account(connection, account)?;
                self.changed(
                    connection,
                    ChangeKind::Account,
                    account.id.as_bytes(),
                    account.created_at,
                )?;
            }
            Part::ChangeAccount(change) => {
                parts::change_account(connection, change)?;
                self.changed(
                    connection,
                    ChangeKind::Account,
                    change.id.as_bytes(),
                    change.at,
                )?;
            }
            Part::InsertCredential(credential) => {
                parts::insert_credential(connection, credential)?;
                let at = credential.created_at;
                self.changed(
                    connection,
                    ChangeKind::Credential,
                    credential.id.as_bytes(),
                    at,
                )?;
            }
            Part::RevokeCredential { id, at } => {
                parts::revoke_credential(connection, *id, *at)?;
                self.changed(connection, ChangeKind::Credential, id.as_bytes(), *at)?;
            }
            Part::InsertLogin(login) => parts::insert_login(connection, login)?,
            Part::Idempotency(part) => keys::write(connection, part)?,
            Part::OAuth(part) => {
                oauth::write(connection, part)?;
                let (subject, at) = match &**part {
                    OAuthPart::RevokeGrant { id, at, .. } => (id.as_bytes(), *at),
                    OAuthPart::RevokeGrants { account, at, .. } => (account.as_bytes(), *at),
                    _ => return Ok(Receipt::default()),
                };
                self.changed(connection, ChangeKind::Grant, subject, at)?;
            }
            Part::Plan(part) => {
                plan::write(connection, part)?;
                if let PlanPart::Put { row, .. } = &**part {
                    let (subject, at) = (row.account.as_bytes(), row.updated_at);
                    self.changed(connection, ChangeKind::Account, subject, at)?;
                }
            }
            Part::Authorization(part) => x402::write(connection, part)?,
            Part::TopUp(part) => topup::write(connection, part)?,
            Part::Checkout(part) => checkout::write(connection, part)?,
            Part::Mandate(part) => mandate::write(connection, part)?,
            Part::Signin(part) => signin::write(connection, part)?,
            Part::RecordPrice(row) => parts::record_price(connection, row)?,
        }
        Ok(Receipt::default())
    }

    fn ledger(
        &mut self,
        connection: &Connection,
        part: &LedgerPart,
    ) -> Result<Receipt, WriteError> {
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
            LedgerPart::Credit {
                operation,
                account,
                kind,
                amount,
                ref reference,
                ..
            } => {
                if let Some(earlier) = parts::booked(connection, account, reference)? {
                    if (earlier.kind, earlier.amount) == (kind.code(), amount) {
                        return Ok(Receipt {
                            repeated: Some(earlier.operation),
                        });
                    }
                    return Err(WriteError::Refused(Refusal::ReferenceUsed {
                        reference: reference.clone(),
                        kind: EntryKind::from_code(earlier.kind).unwrap_or(kind),
                        amount: earlier.amount,
                    }));
                }
                if !parts::account_exists(connection, account)? {
                    return Err(WriteError::Refused(Refusal::NoAccount(account)));
                }
                if !self.tail.begin(operation) {
                    return Err(WriteError::Refused(Refusal::OperationExists(operation)));
                }
                parts::book(connection, (account, reference), operation, kind, amount)?;
            }
        }
        self.push(part);
        Ok(Receipt::default())
    }

    /// A hold that is settled in this batch: only its operation is recorded.
    fn coalesced_hold(&mut self, parts: &[Part]) -> Result<Receipt, WriteError> {
        match parts {
            [Part::Ledger(LedgerPart::Hold { operation, .. })] if !self.tail.begin(*operation) => {
                Err(WriteError::Refused(Refusal::OperationExists(*operation)))
            }
            _ => Ok(Receipt::default()),
        }
    }

    /// A settlement whose hold is in this batch: both become one charge.
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

    /// One change per account.
    fn balances(&mut self, connection: &Connection) -> Result<(), WriteError> {
        self.deltas.sort_unstable_by_key(|(account, _)| *account);
        for deltas in self.deltas.chunk_by(|(one, _), (next, _)| one == next) {
            let mut sum = BalanceDelta::default();
            for (_, delta) in deltas {
                // Wrapping, since the order of addition differs from that of the decisions; the sum is in range even if partial sums are
                // not.
                sum.available = sum.available.wrapping_add(delta.available);
                sum.held = sum.held.wrapping_add(delta.held);
                sum.at = sum.at.max(delta.at);
            }
            self.tail.apply_delta(connection, deltas[0].0, sum)?;
        }
        Ok(())
    }

    fn journal(&mut self, statements: &mut Statements<'_>) -> Result<(), WriteError> {
        self.entries = self.sums.entries.unsigned_abs();
        let records = self.packer.count();
        if records == 0 {
            return Ok(());
        }
        self.packer.finish_into(&mut self.body);
        self.number += 1;
        let key = (self.node, self.epoch, self.number);
        let seal = Seal::over(key, self.previous, &self.sums, &self.body);
        let id = journal::id(self.node, self.epoch, self.number);
        statements.insert_journal(id, &seal, &self.body)?;
        self.previous = seal.hash;
        self.tail.push_row(id, &self.body, records);
        Ok(())
    }

    fn changed(
        &mut self,
        connection: &Connection,
        kind: ChangeKind,
        subject: &[u8; 16],
        at: Timestamp,
    ) -> Result<(), WriteError> {
        self.changes += 1;
        // Sorted by time, and unique: node, epoch and a counter of this run.
        let mut id = [0u8; 16];
        id[..6].copy_from_slice(&(at.as_micros() / 1000).to_be_bytes()[2..]);
        id[6..8].copy_from_slice(&self.node.to_be_bytes()[6..]);
        id[8..12].copy_from_slice(&self.epoch.to_be_bytes()[4..]);
        id[12..].copy_from_slice(&self.changes.to_be_bytes());
        connection
            .prepare_cached("INSERT INTO changes (id, at, kind, subject) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![id, at.as_micros(), kind.code(), subject])?;
        Ok(())
    }
}
