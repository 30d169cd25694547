//! Snapshot isolation for the audit: one read transaction on a connection of its own.

use std::collections::HashMap;

use rusqlite::Connection;
use tollgate_money::{AccountId, OperationId};

use super::columns::{all_accounts, all_prices, each_row};
use super::read::Pool;
use super::{journal, plan};
use crate::engine::RowError;
use crate::entries::{Body, DecodeError, Entry, LedgerPart, Record};
use crate::error::ReadError;
use crate::journal::Packer;
use crate::opened::Connections;
use crate::plan::{PaymentRow, SubscriptionRow};
use crate::rows::{AccountRow, OpenHold, PriceRow};
use crate::store::{BatchRows, OperationRows, Snapshot};

/// A read transaction on its own connection.
pub(crate) struct SqliteSnapshot<'r> {
    pool: &'r Pool,
    /// Present until the drop.
    connection: Option<Connection>,
}

impl<'r> SqliteSnapshot<'r> {
    pub(crate) fn begin(pool: &'r Pool) -> Result<SqliteSnapshot<'r>, ReadError> {
        let connection = pool.acquire("a snapshot")?;
        // The snapshot is fixed by the first read, not by the start of the transaction.
        connection
            .execute_batch("BEGIN")
            .and_then(|()| {
                connection.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
            })
            .map_err(|error| RowError::from(error).reading("a snapshot"))?;
        Ok(SqliteSnapshot {
            pool,
            connection: Some(connection),
        })
    }

    fn connection(&self) -> &Connection {
        self.connection.as_ref().expect("present until the drop")
    }
}

impl Drop for SqliteSnapshot<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && connection.execute_batch("ROLLBACK").is_ok()
        {
            self.pool.release(connection);
        }
    }
}

impl Snapshot for SqliteSnapshot<'_> {
    fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), ReadError> {
        all_prices(self.connection(), each).map_err(|error| error.reading("prices"))
    }

    fn accounts(&self, each: &mut dyn FnMut(AccountRow)) -> Result<(), ReadError> {
        all_accounts(self.connection(), None, "", [], each)
            .map_err(|error| error.reading("accounts"))
    }

    fn operations(&self, each: &mut dyn FnMut(OperationRows)) -> Result<(), ReadError> {
        Operations::walk(self.connection(), each).map_err(|error| error.reading("operations"))
    }

    fn posted(&self, each: &mut dyn FnMut(i64, Option<(i64, i64)>)) -> Result<(), ReadError> {
        let read = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, i64>(1)?));
        each_row(
            self.connection(),
            "SELECT id, posted FROM nodes",
            [],
            read,
            &mut |(node, posted)| {
                let (_, epoch, number) = journal::numbers(posted);
                each(node, (posted != 0).then_some((epoch, number)));
            },
        )
        .map_err(|error| error.reading("nodes"))
    }

    fn posting_differences(&self, each: &mut dyn FnMut(AccountId)) -> Result<(), ReadError> {
        posting_differences(self.connection(), each).map_err(|error| error.reading("postings"))
    }

    fn payments(&self, each: &mut dyn FnMut(PaymentRow)) -> Result<(), ReadError> {
        plan::all_payments(self.connection(), each).map_err(|error| error.reading("payments"))
    }

    fn subscriptions(&self, each: &mut dyn FnMut(SubscriptionRow)) -> Result<(), ReadError> {
        plan::all_subscriptions(self.connection(), each)
            .map_err(|error| error.reading("subscriptions"))
    }

    fn batches(&self, each: &mut dyn FnMut(BatchRows)) -> Result<(), ReadError> {
        each_row(self.connection(), journal::ALL, [], BatchRows::read, each)
            .map_err(|error| error.reading("seals"))
    }
}

impl BatchRows {
    /// A row of [`journal::ALL`].
    pub(crate) fn read(row: &rusqlite::Row<'_>) -> Result<BatchRows, RowError> {
        Ok(BatchRows {
            seal: journal::seal(row)?,
            body: row.get(0)?,
        })
    }
}

/// Assembles operations from the journal, in the order in which they end; unfinished ones come last.
struct Operations<'c> {
    connection: &'c Connection,
    open: HashMap<OperationId, Entry>,
    holds: HashMap<OperationId, OpenHold>,
}

impl Operations<'_> {
    fn walk(connection: &Connection, each: &mut dyn FnMut(OperationRows)) -> Result<(), RowError> {
        // Every operation ever, to find one that was started twice. The engine spills them to disk when there are many.
        connection.execute_batch(
            "CREATE TEMP TABLE started_operations (op_id BLOB PRIMARY KEY) STRICT, WITHOUT ROWID",
        )?;
        let mut operations = Operations {
            connection,
            open: HashMap::new(),
            holds: journal::open_holds(connection)?,
        };
        let sql = "SELECT body, id FROM journal ORDER BY id";
        let walked = journal::each_body(connection, sql, [], &mut |_, body| {
            // Unreadable records show as a seal mismatch.
            let Ok(body) = Body::read(body) else {
                return Ok(());
            };
            let mut parts = body.records().map_while(|record| record.ok()?.part().ok());
            parts.try_for_each(|part| operations.part(&part, each))
        });
        if walked.is_ok() {
            operations.rest(each);
        }
        connection.execute_batch("DROP TABLE temp.started_operations")?;
        walked
    }

    fn part(
        &mut self,
        part: &LedgerPart,
        each: &mut dyn FnMut(OperationRows),
    ) -> Result<(), RowError> {
        let entry = Entry::of(part);
        let operation = part.operation();
        let ends = matches!(part, LedgerPart::Settle { .. } | LedgerPart::Release { .. });
        let is_duplicate = !ends
            && self
                .connection
                .prepare_cached(
                    "INSERT OR IGNORE INTO temp.started_operations (op_id) VALUES (?1)",
                )?
                .execute([operation.as_bytes()])?
                == 0;
        if let (LedgerPart::Hold { .. }, Some(entry), false) = (part, &entry, is_duplicate) {
            self.open.insert(operation, entry.clone());
            return Ok(());
        }
        let begun = ends.then(|| self.open.remove(&operation)).flatten();
        each(OperationRows {
            id: operation,
            entries: begun.into_iter().chain(entry).collect(),
            hold: None,
            usage: part.usage(),
            is_duplicate,
        });
        Ok(())
    }

    /// Unfinished operations, and holds without an operation.
    fn rest(mut self, each: &mut dyn FnMut(OperationRows)) {
        for (id, entry) in self.open.drain() {
            each(OperationRows {
                id,
                entries: vec![entry],
                hold: self.holds.remove(&id),
                usage: None,
                is_duplicate: false,
            });
        }
        for (id, hold) in self.holds.drain() {
            each(OperationRows {
                id,
                entries: Vec::new(),
                hold: Some(hold),
                usage: None,
                is_duplicate: false,
            });
        }
    }
}

/// Number of records, and a sum over their contents: equal records in another order are no difference.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
struct Digest(i64, u64);

impl Digest {
    fn add(&mut self, text: &[u8], times: i64) {
        let mut first = [0; 8];
        first.copy_from_slice(&blake3::hash(text).as_bytes()[..8]);
        let sum = u64::from_le_bytes(first).wrapping_mul(times as u64);
        *self = Digest(self.0 + times, self.1.wrapping_add(sum));
    }
}

/// Finds accounts whose postings or references differ from the journal.
fn posting_differences(
    connection: &Connection,
    each: &mut dyn FnMut(AccountId),
) -> Result<(), RowError> {
    let mut digests: HashMap<AccountId, Digest> = HashMap::new();
    let mut packer = Packer::default();
    let mut text = |record: &Record<'_>| -> Result<Vec<u8>, DecodeError> {
        packer.push(&record.part()?);
        Ok(packer.finish())
    };
    let mut journal = |record: Record<'_>, is_posted: bool| {
        let digest = digests.entry(record.account()).or_default();
        if is_posted && record.is_owner_visible() {
            digest.add(&text(&record)?, 1);
        }
        if let LedgerPart::Credit {
            operation,
            kind,
            amount,
            reference,
            ..
        } = record.part()?
        {
            let booked = booked(operation.as_bytes(), kind.code(), amount.get(), &reference);
            digest.add(booked.as_bytes(), 1);
        }
        Ok(())
    };
    let read = journal::each_posted(connection, &mut |record| journal(record, true))
        .and_then(|()| journal::each_unposted(connection, &mut |_, record| journal(record, false)));
    match read {
        // Unreadable records show as a seal mismatch.
        Err(RowError::Damaged(_)) => return Ok(()),
        other => other?,
    }
    let mut wrong = Vec::new();
    let mut statement =
        connection.prepare("SELECT account_id, body, at_min, at_max FROM postings")?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let account = AccountId::from_bytes(row.get(0)?);
        let digest = digests.entry(account).or_default();
        let mut times = (i64::MAX, i64::MIN);
        let read = Body::read(row.get_ref(1)?.as_blob()?).and_then(|body| {
            body.records().try_for_each(|record| {
                let record = record?;
                times = (
                    times.0.min(record.at().as_micros()),
                    times.1.max(record.at().as_micros()),
                );
                digest.add(&text(&record)?, -1);
                Ok(())
            })
        });
        if read.is_err() || times != (row.get(2)?, row.get(3)?) {
            wrong.push(account);
        }
    }
    let sql = "SELECT account_id, op_id, kind, amount, reference FROM credit_references";
    let mut statement = connection.prepare(sql)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        let digest = digests
            .entry(AccountId::from_bytes(row.get(0)?))
            .or_default();
        let operation: [u8; 16] = row.get(1)?;
        let reference = row.get_ref(4)?.as_str()?;
        let booked = booked(&operation, row.get(2)?, row.get(3)?, reference);
        digest.add(booked.as_bytes(), -1);
    }
    let differing = digests
        .iter()
        .filter(|(_, digest)| **digest != Digest::default());
    wrong.extend(differing.map(|(account, _)| *account));
    wrong.sort_unstable();
    wrong.dedup();
    wrong.into_iter().for_each(each);
    Ok(())
}

fn booked(operation: &[u8; 16], kind: i64, amount: i64, reference: &str) -> String {
    format!("{operation:?} {kind} {amount} {reference}")
}
