//! One commit: units of work written in one transaction.

use std::collections::HashMap;

use rusqlite::{Connection, OptionalExtension, params};
use tollgate_money::{AccountId, Micros, OperationId};

use super::entry::Stamp;
use super::fold::{Step, plan as folded};
use super::statements::Statements;
use super::{checkout, keys, mandate, oauth, parts, plan, signin, topup, x402};
use crate::books::{Entry, LedgerPart, Sealer};
use crate::codes::{ChangeKind, Contra, EntryKind};
use crate::error::Refusal;
use crate::oauth::OAuthPart;
use crate::plan::PlanPart;
use crate::queue::Item;
use crate::rows::UsageRecord;
use crate::unit::{Part, Receipt};

/// What stops a part from being written.
pub(crate) enum Trouble {
    /// The data says no.
    Refused(Refusal),
    /// The engine cannot.
    Engine(rusqlite::Error),
    /// A balance is not the one that was decided on.
    Books(String),
}

impl From<rusqlite::Error> for Trouble {
    fn from(error: rusqlite::Error) -> Trouble {
        Trouble::Engine(error)
    }
}

/// The answer to each unit of a batch, in its order.
pub(crate) type Answers = Vec<Result<Receipt, Refusal>>;

/// A run of the writer: what it needs beside the statements, and buffers that are kept from batch to batch.
pub(crate) struct Batch {
    pub(crate) node: i64,
    pub(crate) epoch: i64,
    /// The number of the last seal.
    pub(crate) number: i64,
    /// Its hash, or that of the last seal of an earlier epoch.
    pub(crate) previous: [u8; 32],
    /// Changes written by this run, for ids that nobody else makes.
    changes: u32,
    sealer: Sealer,
    moves: Vec<Move>,
    /// Entries that were saved by folding, for the gauge.
    pub(crate) folded: u64,
    /// Entries of the last batch.
    pub(crate) entries: u64,
}

/// A change of one account's fields, to be added up with the others of the batch.
#[derive(Clone, Copy)]
struct Move {
    account: AccountId,
    available: i64,
    held: i64,
    at: i64,
}

impl Batch {
    pub(crate) fn new(node: i64, epoch: i64, previous: [u8; 32]) -> Batch {
        Batch {
            node,
            epoch,
            number: 0,
            previous,
            changes: 0,
            sealer: Sealer::default(),
            moves: Vec::new(),
            folded: 0,
            entries: 0,
        }
    }

    /// Writes the units into the open transaction: their rows, one change per account touched, and the seal.
    ///
    /// `refused` has units that an earlier attempt at the same batch found refused after part of them was written; the transaction
    /// was rolled back and they are left out now. `Err((Some(unit), _))` asks for such a repetition.
    pub(crate) fn write(
        &mut self,
        connection: &Connection,
        statements: &mut Statements<'_>,
        items: &[Item],
        refused: &HashMap<usize, Refusal>,
    ) -> Result<Answers, (Option<usize>, Trouble)> {
        self.sealer.clear();
        self.moves.clear();
        self.folded = 0;
        let steps = folded(items);
        let mut answers: Answers = vec![Ok(Receipt::default()); items.len()];
        for (index, item) in items.iter().enumerate() {
            if let Some(refusal) = refused.get(&index) {
                answers[index] = Err(refusal.clone());
                continue;
            }
            let answer = match steps[index] {
                Step::FoldedInto { by } => match refused.get(&by) {
                    // The charge that would have stood for both is refused, and with it the hold.
                    Some(refusal) => Err(Trouble::Refused(refusal.clone())),
                    None => Ok(Receipt::default()),
                },
                Step::Folding { hold } => match &answers[hold] {
                    Err(refusal) => Err(Trouble::Refused(refusal.clone())),
                    Ok(_) => self.fold(statements, item),
                },
                Step::Brief => self.brief(statements, item),
                Step::EndOfBrief { hold } => match &answers[hold] {
                    Err(refusal) => Err(Trouble::Refused(refusal.clone())),
                    Ok(_) => self.brief(statements, item),
                },
                Step::Apply => self.apply(connection, statements, &item.unit.parts),
            };
            answers[index] = match answer {
                Ok(receipt) => Ok(receipt),
                // A unit of one part may have written half of it. That never happens in books that are whole, so the price, doing
                // the batch again, is better than a savepoint for each unit.
                Err(Trouble::Refused(refusal)) if self.half_written(item, &steps[index]) => {
                    return Err((Some(index), Trouble::Refused(refusal)));
                }
                Err(Trouble::Refused(refusal)) => Err(refusal),
                Err(trouble) => return Err((None, trouble)),
            };
        }
        self.balances(statements)
            .and_then(|()| self.seal(statements))
            .map_err(|trouble| (None, trouble))?;
        Ok(answers)
    }

    /// Whether a refusal may have come after a row of the unit was written.
    fn half_written(&self, item: &Item, step: &Step) -> bool {
        match step {
            // Refused with its hold, before anything was written, or by the first of its rows.
            Step::FoldedInto { .. } => false,
            // The hold was answered already; it has to be answered anew.
            Step::Folding { .. } => true,
            _ => {
                matches!(&item.unit.parts[..], [Part::Ledger(part)] if !matches!(part, LedgerPart::Credit { .. } | LedgerPart::Hold { .. }))
            }
        }
    }

    fn apply(
        &mut self,
        connection: &Connection,
        statements: &mut Statements<'_>,
        parts: &[Part],
    ) -> Result<Receipt, Trouble> {
        if let [part] = parts {
            return self.part(connection, statements, part);
        }
        let sealed = self.sealer.mark();
        let moves = self.moves.len();
        connection.prepare_cached("SAVEPOINT unit")?.execute([])?;
        let mut receipt = Receipt::default();
        for part in parts {
            match self.part(connection, statements, part) {
                Ok(done) => receipt.repeated = receipt.repeated.or(done.repeated),
                Err(trouble) => {
                    connection.prepare_cached("ROLLBACK TO unit")?.execute([])?;
                    connection.prepare_cached("RELEASE unit")?.execute([])?;
                    self.sealer.rewind(sealed);
                    self.moves.truncate(moves);
                    return Err(trouble);
                }
            }
        }
        connection.prepare_cached("RELEASE unit")?.execute([])?;
        Ok(receipt)
    }

    fn part(
        &mut self,
        connection: &Connection,
        statements: &mut Statements<'_>,
        part: &Part,
    ) -> Result<Receipt, Trouble> {
        match part {
            Part::Ledger(part) => return self.ledger(connection, statements, part),
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
        statements: &mut Statements<'_>,
        part: &LedgerPart,
    ) -> Result<Receipt, Trouble> {
        match *part {
            LedgerPart::Hold { expires_at, .. } => {
                let entry = self.stamp().of(part);
                self.insert(statements, &entry)?;
                statements.insert_hold(&entry, expires_at)?;
            }
            LedgerPart::Settle {
                operation,
                account,
                held,
                charged,
                written_off,
                ref usage,
                at,
                ..
            } => {
                if !statements.delete_hold(operation, account, held)? {
                    return Err(Trouble::Refused(Refusal::NoHold(operation)));
                }
                let entry = self.stamp().of(part);
                self.insert(statements, &entry)?;
                self.usage(
                    statements,
                    (operation, account),
                    usage,
                    charged,
                    written_off,
                    at,
                )?;
            }
            LedgerPart::Release {
                operation,
                account,
                held,
                ..
            } => {
                if !statements.delete_hold(operation, account, held)? {
                    return Err(Trouble::Refused(Refusal::NoHold(operation)));
                }
                let entry = self.stamp().of(part);
                self.insert(statements, &entry)?;
            }
            LedgerPart::Charge {
                operation,
                account,
                charged,
                written_off,
                ref usage,
                at,
                ..
            } => {
                if charged > Micros::ZERO {
                    let entry = self.stamp().of(part);
                    self.insert(statements, &entry)?;
                }
                self.usage(
                    statements,
                    (operation, account),
                    usage,
                    charged,
                    written_off,
                    at,
                )?;
            }
            LedgerPart::Credit {
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
                    return Err(Trouble::Refused(Refusal::ReferenceUsed {
                        reference: reference.clone(),
                        kind: EntryKind::from_code(earlier.kind).unwrap_or(kind),
                        amount: earlier.amount,
                    }));
                }
                if !parts::account_exists(connection, account)? {
                    return Err(Trouble::Refused(Refusal::NoAccount(account)));
                }
                let entry = self.stamp().of(part);
                self.insert(statements, &entry)?;
            }
            LedgerPart::Restate {
                account,
                available,
                held,
                at,
            } => parts::restate(connection, account, available, held, at)?,
        }
        Ok(Receipt::default())
    }

    /// A hold or a release that meet in this batch: two entries, and no row in `holds`.
    fn brief(&mut self, statements: &mut Statements<'_>, item: &Item) -> Result<Receipt, Trouble> {
        if let [Part::Ledger(part)] = &item.unit.parts[..] {
            let entry = self.stamp().of(part);
            self.insert(statements, &entry)?;
        }
        Ok(Receipt::default())
    }

    /// A settlement whose hold is in this batch: one charge stands for both.
    fn fold(&mut self, statements: &mut Statements<'_>, item: &Item) -> Result<Receipt, Trouble> {
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
        ] = &item.unit.parts[..]
        {
            let identity = (*operation, *account);
            if *charged > Micros::ZERO {
                let entry = Entry {
                    price_version: *price_version,
                    ..self
                        .stamp()
                        .row(identity, EntryKind::Charge, -*charged, Micros::ZERO, *at)
                };
                self.insert(statements, &entry)?;
            }
            self.usage(statements, identity, usage, *charged, *written_off, *at)?;
            self.folded += 1;
        }
        Ok(Receipt::default())
    }

    fn stamp(&self) -> Stamp {
        Stamp {
            node: self.node,
            epoch: self.epoch,
            batch: self.number + 1,
        }
    }

    fn insert(&mut self, statements: &mut Statements<'_>, entry: &Entry) -> Result<(), Trouble> {
        debug_assert!(
            entry.contra != Contra::None || entry.contra_amount() == Micros::ZERO,
            "an entry without another side moves nothing out of its account"
        );
        statements
            .insert_entry(entry)
            .map_err(|error| taken(error, || Refusal::OperationExists(entry.operation)))?;
        self.sealer.add(entry);
        self.moves.push(Move {
            account: entry.account,
            available: entry.d_available.get(),
            held: entry.d_held.get(),
            at: entry.at,
        });
        Ok(())
    }

    fn usage(
        &self,
        statements: &mut Statements<'_>,
        (operation, account): (OperationId, AccountId),
        usage: &UsageRecord,
        charged: Micros,
        written_off: Micros,
        at: i64,
    ) -> Result<(), Trouble> {
        statements
            .insert_usage(operation, account, usage, charged, written_off, at)
            .map_err(|error| taken(error, || Refusal::OperationExists(operation)))
    }

    /// One change per account, in the order of the ids: neighbours share a page.
    fn balances(&mut self, statements: &mut Statements<'_>) -> Result<(), Trouble> {
        self.moves.sort_unstable_by_key(|change| change.account);
        for moves in self.moves.chunk_by(|one, next| one.account == next.account) {
            let account = moves[0].account;
            // Wrapping, since the order of adding is not that of deciding; the sum is in range whatever its parts do.
            let sum = |field: fn(&Move) -> i64| {
                moves
                    .iter()
                    .fold(0i64, |sum, change| sum.wrapping_add(field(change)))
            };
            let at = moves.iter().map(|change| change.at).max().unwrap_or(0);
            let (available, held) = (sum(|change| change.available), sum(|change| change.held));
            if !statements.move_balance(account, available, held, at)? {
                return Err(Trouble::Books(format!("account `{account}` is not there")));
            }
        }
        Ok(())
    }

    fn seal(&mut self, statements: &mut Statements<'_>) -> Result<(), Trouble> {
        self.entries = self.sealer.len() as u64;
        if self.sealer.is_empty() {
            return Ok(());
        }
        let seal = self
            .sealer
            .seal(self.node, self.epoch, self.number + 1, self.previous);
        statements.insert_seal(&seal)?;
        self.number = seal.number;
        self.previous = seal.hash;
        Ok(())
    }

    fn changed(
        &mut self,
        connection: &Connection,
        kind: ChangeKind,
        subject: &[u8; 16],
        at: i64,
    ) -> Result<(), Trouble> {
        self.changes += 1;
        // Sorted by time, and unlike any other: node, epoch and a count that this run uses once.
        let mut id = [0u8; 16];
        id[..6].copy_from_slice(&(at / 1000).to_be_bytes()[2..]);
        id[6..8].copy_from_slice(&self.node.to_be_bytes()[6..]);
        id[8..12].copy_from_slice(&self.epoch.to_be_bytes()[4..]);
        id[12..].copy_from_slice(&self.changes.to_be_bytes());
        connection
            .prepare_cached("INSERT INTO changes (id, at, kind, subject) VALUES (?1, ?2, ?3, ?4)")?
            .execute(params![id, at, kind.code(), subject])?;
        Ok(())
    }
}

/// A refusal when the error says that the key is taken.
pub(crate) fn taken(error: rusqlite::Error, refusal: impl FnOnce() -> Refusal) -> Trouble {
    use rusqlite::ffi::{SQLITE_CONSTRAINT_PRIMARYKEY, SQLITE_CONSTRAINT_UNIQUE};
    match error.sqlite_error().map(|error| error.extended_code) {
        Some(SQLITE_CONSTRAINT_PRIMARYKEY | SQLITE_CONSTRAINT_UNIQUE) => {
            Trouble::Refused(refusal())
        }
        _ => Trouble::Engine(error),
    }
}

/// The last seal's hash of a node, zero before the first.
pub(crate) fn last_hash(connection: &Connection, node: i64) -> rusqlite::Result<[u8; 32]> {
    connection
        .query_row(
            "SELECT hash FROM seals WHERE node_id = ?1 ORDER BY epoch DESC, n DESC LIMIT 1",
            [node],
            |row| row.get(0),
        )
        .optional()
        .map(|hash| hash.unwrap_or([0; 32]))
}
