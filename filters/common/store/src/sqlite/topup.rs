//! Purchases of credits. Rare, so their statements are prepared on use.

use std::sync::LazyLock;

use rusqlite::{Connection, Row, ToSql, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, TopUpId, Usd};

use super::columns::{each_row, optional_time, rows_max, word};
use super::failure::key_conflict;
use super::parts::account_exists;
use super::read::SqliteStore;
use super::versioned::VersionedTable;
use crate::codes::TopUpState;
use crate::engine::{RowError, WriteError};
use crate::error::{ReadError, Refusal};
use crate::topup::{ReadTopUps, TopUpPart, TopUpRow, TopUpSubject};

static TOP_UPS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "top_ups",
        "id, account_id, state, version, price, credits, create_key, order_ref, approve_url, capture_key, capture_ref, \
         declines, returned, taken_back, owed, note, looks, look_at, heard, created_at, updated_at",
        "id, account_id",
        &["rings"],
    )
});

pub(crate) fn write(connection: &Connection, part: &TopUpPart) -> Result<(), WriteError> {
    match part {
        TopUpPart::Begin(row) => {
            if !account_exists(connection, row.account)? {
                return Err(WriteError::Refused(Refusal::NoAccount(row.account)));
            }
            with_values(row, |values| TOP_UPS.insert(connection, values))
                .map_err(|error| key_conflict(error, || Refusal::TopUpExists(row.id)))?;
        }
        TopUpPart::Change(row) => {
            let changed = with_values(row, |values| TOP_UPS.update(connection, values))
                .map_err(|error| key_conflict(error, || Refusal::TopUpExists(row.id)))?;
            if !changed {
                return Err(WriteError::Refused(Refusal::TopUpConflict(row.id)));
            }
        }
        TopUpPart::Notify(TopUpSubject::TopUp(id)) => {
            connection
                .prepare_cached("UPDATE top_ups SET rings = rings + 1 WHERE id = ?1")?
                .execute([id.as_bytes()])?;
        }
        TopUpPart::Notify(TopUpSubject::Order(order)) => {
            connection
                .prepare_cached("UPDATE top_ups SET rings = rings + 1 WHERE order_ref = ?1")?
                .execute([order])?;
        }
        TopUpPart::Notify(TopUpSubject::Capture(capture)) => {
            connection
                .prepare_cached("UPDATE top_ups SET rings = rings + 1 WHERE capture_ref = ?1")?
                .execute([capture])?;
        }
        TopUpPart::Notice { id, kind, at } => {
            connection
                .prepare_cached("INSERT INTO payment_notices (id, kind, at) VALUES (?1, ?2, ?3)")?
                .execute(params![id, kind, at.as_micros()])
                .map_err(|error| key_conflict(error, || Refusal::DuplicateNotification))?;
        }
        TopUpPart::ForgetNotices { before, limit } => {
            connection
                .prepare_cached(
                    "DELETE FROM payment_notices WHERE id IN (SELECT id FROM payment_notices WHERE at < ?1 LIMIT ?2)",
                )?
                .execute(params![before.as_micros(), limit])?;
        }
    }
    Ok(())
}

/// All columns but `rings`, in their order.
fn with_values<T>(row: &TopUpRow, write: impl FnOnce(&[&dyn ToSql]) -> T) -> T {
    write(params![
        row.id.as_bytes(),
        row.account.as_bytes(),
        row.state.code(),
        row.version,
        row.price.cents(),
        row.credits.get(),
        row.create_key,
        row.order,
        row.approve_url,
        row.capture_key,
        row.capture,
        row.declines,
        row.returned.cents(),
        row.taken_back.get(),
        row.owed.get(),
        row.note,
        row.attempts,
        row.next_attempt_at.map(Timestamp::as_micros),
        row.acknowledged,
        row.created_at.as_micros(),
        row.updated_at.as_micros(),
    ])
}

fn top_up(row: &Row<'_>) -> Result<TopUpRow, RowError> {
    Ok(TopUpRow {
        id: TopUpId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        state: word(row, 2, "a purchase's state", TopUpState::from_code)?,
        version: row.get(3)?,
        price: Usd::from_cents(row.get(4)?),
        credits: Micros::new(row.get(5)?),
        create_key: row.get(6)?,
        order: row.get(7)?,
        approve_url: row.get(8)?,
        capture_key: row.get(9)?,
        capture: row.get(10)?,
        declines: row.get(11)?,
        returned: Usd::from_cents(row.get(12)?),
        taken_back: Micros::new(row.get(13)?),
        owed: Micros::new(row.get(14)?),
        note: row.get(15)?,
        attempts: row.get(16)?,
        next_attempt_at: optional_time(row, 17)?,
        acknowledged: row.get(18)?,
        created_at: row.get(19).map(Timestamp::from_micros)?,
        updated_at: row.get(20).map(Timestamp::from_micros)?,
        notifications: row.get(21)?,
    })
}

impl<W> SqliteStore<W> {
    fn some_top_ups(
        &self,
        which: &str,
        params: impl rusqlite::Params,
    ) -> Result<Vec<TopUpRow>, ReadError> {
        self.with("purchases", |connection| {
            let mut found = Vec::new();
            let sql = format!("SELECT {} FROM top_ups {which}", TOP_UPS.columns);
            each_row(connection, &sql, params, top_up, &mut |row| found.push(row))?;
            Ok(found)
        })
    }
}

impl<W> ReadTopUps for SqliteStore<W> {
    fn top_up(&self, id: TopUpId) -> Result<Option<TopUpRow>, ReadError> {
        let found = self.some_top_ups("WHERE id = ?1", [id.as_bytes()])?;
        Ok(found.into_iter().next())
    }

    fn top_ups_due(&self, now: Timestamp, limit: usize) -> Result<Vec<TopUpRow>, ReadError> {
        // Two halves, each by its own index: either contains few rows at any time.
        let limit = rows_max(limit);
        let mut found = self.some_top_ups(
            "WHERE rings > heard ORDER BY updated_at LIMIT ?1",
            params![limit],
        )?;
        let due = self.some_top_ups(
            "WHERE look_at <= ?1 AND rings <= heard ORDER BY look_at LIMIT ?2",
            params![now.as_micros(), limit],
        )?;
        found.extend(due);
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    fn top_ups_of(
        &self,
        account: AccountId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopUpRow>, ReadError> {
        self.some_top_ups(
            "WHERE account_id = ?1 AND created_at < ?2 ORDER BY created_at DESC, id DESC LIMIT ?3",
            params![account.as_bytes(), before.as_micros(), rows_max(limit)],
        )
    }

    fn top_ups_open(&self) -> Result<u64, ReadError> {
        self.with("purchases", |connection| {
            // Every unfinished purchase is reconciled from time to time.
            let open: i64 = connection
                .prepare_cached(
                    "SELECT count(*) FROM top_ups WHERE look_at IS NOT NULL AND state NOT IN (?1, ?2)",
                )?
                .query_row(
                    [TopUpState::Captured.code(), TopUpState::Failed.code()],
                    |row| row.get(0),
                )?;
            Ok(open.unsigned_abs())
        })
    }
}
