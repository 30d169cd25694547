//! One unchanging view for the audit.

use rusqlite::{Connection, Rows, Statement};
use tollgate_money::Micros;

use super::columns::{self, all_accounts, all_prices, entry, hold, usage};
use super::failure::RowError;
use super::plan;
use super::read::Reader;
use crate::books::{Entry, Seal};
use crate::error::ReadError;
use crate::plan::{PaymentRow, SubscriptionRow};
use crate::rows::{AccountRow, PriceRow};
use crate::store::{BatchRows, OperationRows, Snapshot};

/// A read transaction on a connection of its own.
pub(crate) struct SqliteSnapshot<'r> {
    reader: &'r Reader,
    /// Always there until the drop.
    connection: Option<Connection>,
}

impl<'r> SqliteSnapshot<'r> {
    pub(crate) fn begin(reader: &'r Reader) -> Result<SqliteSnapshot<'r>, ReadError> {
        let connection = reader.take("a snapshot")?;
        // The view is fixed by the first read, not by the beginning.
        connection
            .execute_batch("BEGIN")
            .and_then(|()| {
                connection.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))
            })
            .map_err(|error| RowError::from(error).reading("a snapshot"))?;
        Ok(SqliteSnapshot {
            reader,
            connection: Some(connection),
        })
    }

    fn connection(&self) -> &Connection {
        self.connection
            .as_ref()
            .expect("it is there until the drop")
    }
}

impl Drop for SqliteSnapshot<'_> {
    fn drop(&mut self) {
        if let Some(connection) = self.connection.take()
            && connection.execute_batch("ROLLBACK").is_ok()
        {
            self.reader.give_back(connection);
        }
    }
}

impl Snapshot for SqliteSnapshot<'_> {
    fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), ReadError> {
        all_prices(self.connection(), each).map_err(|error| error.reading("prices"))
    }

    fn accounts(&self, each: &mut dyn FnMut(AccountRow)) -> Result<(), ReadError> {
        all_accounts(self.connection(), "", [], each).map_err(|error| error.reading("accounts"))
    }

    fn operations(&self, each: &mut dyn FnMut(OperationRows)) -> Result<(), ReadError> {
        merge(self.connection(), each).map_err(|error| error.reading("operations"))
    }

    fn payments(&self, each: &mut dyn FnMut(PaymentRow)) -> Result<(), ReadError> {
        plan::all_payments(self.connection(), each).map_err(|error| error.reading("payments"))
    }

    fn subscriptions(&self, each: &mut dyn FnMut(SubscriptionRow)) -> Result<(), ReadError> {
        plan::all_subscriptions(self.connection(), each)
            .map_err(|error| error.reading("subscriptions"))
    }

    fn batches(&self, each: &mut dyn FnMut(BatchRows)) -> Result<(), ReadError> {
        merge_batches(self.connection(), each).map_err(|error| error.reading("seals"))
    }
}

/// Walks seals and entries side by side: both come in the order of the commits.
fn merge_batches(connection: &Connection, each: &mut dyn FnMut(BatchRows)) -> Result<(), RowError> {
    let mut seals = connection.prepare(columns::SEALS)?;
    let mut entries = connection.prepare(columns::ENTRIES_BY_BATCH)?;
    let mut seals = Side::begin(&mut seals, seal)?;
    let mut entries = Side::begin(&mut entries, entry)?;
    let seal_key = |seal: &Seal| (seal.node, seal.epoch, seal.number);
    let entry_key = |entry: &Entry| (entry.node, entry.epoch, entry.batch);
    loop {
        let next = [
            seals.next.as_ref().map(seal_key),
            entries.next.as_ref().map(entry_key),
        ];
        let Some(key) = next.into_iter().flatten().min() else {
            return Ok(());
        };
        let mut rows = BatchRows {
            key,
            seal: seals.take_if(|seal| seal_key(seal) == key)?,
            entries: Vec::new(),
        };
        while let Some(entry) = entries.take_if(|entry| entry_key(entry) == key)? {
            rows.entries.push(entry);
        }
        each(rows);
    }
}

fn seal(row: &rusqlite::Row<'_>) -> Result<Seal, RowError> {
    Ok(Seal {
        node: row.get(0)?,
        epoch: row.get(1)?,
        number: row.get(2)?,
        entries: row.get(3)?,
        sum_available: Micros::new(row.get(4)?),
        sum_held: Micros::new(row.get(5)?),
        previous: row.get(6)?,
        hash: row.get(7)?,
        at: row.get(8)?,
    })
}

/// Walks entries, holds and usage side by side: all three come in the order of the operations.
fn merge(connection: &Connection, each: &mut dyn FnMut(OperationRows)) -> Result<(), RowError> {
    let mut entries = connection.prepare(columns::ENTRIES)?;
    let mut holds = connection.prepare(columns::HOLDS)?;
    let mut usages = connection.prepare(columns::USAGE)?;
    let mut entries = Side::begin(&mut entries, entry)?;
    let mut holds = Side::begin(&mut holds, hold)?;
    let mut usages = Side::begin(&mut usages, |row| usage(row, 0))?;
    loop {
        let next = [
            entries.next.as_ref().map(|entry| entry.operation),
            holds.next.as_ref().map(|hold| hold.operation),
            usages.next.as_ref().map(|usage| usage.operation),
        ];
        let Some(id) = next.into_iter().flatten().min() else {
            return Ok(());
        };
        let mut rows = OperationRows {
            id,
            entries: Vec::with_capacity(2),
            hold: holds.take_if(|hold| hold.operation == id)?,
            usage: usages.take_if(|usage| usage.operation == id)?,
        };
        while let Some(entry) = entries.take_if(|entry| entry.operation == id)? {
            rows.entries.push(entry);
        }
        each(rows);
    }
}

/// One table being walked, with its next row at hand.
struct Side<'s, T, F> {
    rows: Rows<'s>,
    read: F,
    next: Option<T>,
}

impl<'s, T, F: Fn(&rusqlite::Row<'_>) -> Result<T, RowError>> Side<'s, T, F> {
    fn begin(statement: &'s mut Statement<'_>, read: F) -> Result<Self, RowError> {
        let mut side = Side {
            rows: statement.query([])?,
            read,
            next: None,
        };
        side.advance()?;
        Ok(side)
    }

    fn take_if(&mut self, wanted: impl Fn(&T) -> bool) -> Result<Option<T>, RowError> {
        if !self.next.as_ref().is_some_and(wanted) {
            return Ok(None);
        }
        let taken = self.next.take();
        self.advance()?;
        Ok(taken)
    }

    fn advance(&mut self) -> Result<(), RowError> {
        self.next = match self.rows.next()? {
            Some(row) => Some((self.read)(row)?),
            None => None,
        };
        Ok(())
    }
}
