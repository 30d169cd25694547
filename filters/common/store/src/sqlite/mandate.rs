//! Mandates. Rare, so their statements are prepared on use.

use std::sync::LazyLock;

use rusqlite::{Connection, Row, ToSql, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, MandateId, Usd};

use super::columns::{each_row, optional_time, rows_max, word};
use super::failure::key_conflict;
use super::parts::account_exists;
use super::read::SqliteStore;
use super::versioned::VersionedTable;
use crate::codes::{MandateState, Route};
use crate::engine::{RowError, WriteError};
use crate::error::{ReadError, Refusal};
use crate::mandate::{MandatePart, MandateRow, MandateSubject, ReadMandates};

static MANDATES: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "mandates",
        "id, account_id, state, version, plan_id, price, create_key, provider_ref, approve_url, return_url, cancel_url, \
         agreed_at, activated_at, payment, paid_at, paid_until, advanced_for, note, looks, look_at, heard, created_at, \
         updated_at, left_at",
        "id, account_id",
        &["rings"],
    )
});

pub(crate) fn write(connection: &Connection, part: &MandatePart) -> Result<(), WriteError> {
    match part {
        MandatePart::Begin(row) => {
            if !account_exists(connection, row.account)? {
                return Err(WriteError::Refused(Refusal::NoAccount(row.account)));
            }
            with_values(row, |values| MANDATES.insert(connection, values))
                .map_err(|error| key_conflict(error, || Refusal::MandateExists(row.id)))?;
        }
        MandatePart::Change(row) => {
            let changed = with_values(row, |values| MANDATES.update(connection, values))
                .map_err(|error| key_conflict(error, || Refusal::MandateExists(row.id)))?;
            if !changed {
                return Err(WriteError::Refused(Refusal::MandateConflict(row.id)));
            }
        }
        MandatePart::Notify(MandateSubject::Mandate(id)) => {
            connection
                .prepare_cached("UPDATE mandates SET rings = rings + 1 WHERE id = ?1")?
                .execute([id.as_bytes()])?;
        }
        MandatePart::Notify(MandateSubject::Subscription(reference)) => {
            connection
                .prepare_cached("UPDATE mandates SET rings = rings + 1 WHERE provider_ref = ?1")?
                .execute([reference])?;
        }
        MandatePart::Notify(MandateSubject::Payment(payment)) => {
            connection
                .prepare_cached(
                    "UPDATE mandates SET rings = rings + 1
                     WHERE account_id IN (SELECT account_id FROM payments WHERE route = ?1 AND provider_ref = ?2)",
                )?
                .execute(params![Route::PayPal.code(), payment])?;
        }
    }
    Ok(())
}

/// All columns but `rings`, in their order.
fn with_values<T>(row: &MandateRow, write: impl FnOnce(&[&dyn ToSql]) -> T) -> T {
    write(params![
        row.id.as_bytes(),
        row.account.as_bytes(),
        row.state.code(),
        row.version,
        row.plan_id,
        row.price.cents(),
        row.create_key,
        row.provider_ref,
        row.approve_url,
        row.return_url,
        row.cancel_url,
        row.agreed_at.map(Timestamp::as_micros),
        row.activated_at.map(Timestamp::as_micros),
        row.payment,
        row.paid_at.map(Timestamp::as_micros),
        row.paid_until.map(Timestamp::as_micros),
        row.advanced_for.map(Timestamp::as_micros),
        row.note,
        row.attempts,
        row.next_attempt_at.map(Timestamp::as_micros),
        row.acknowledged,
        row.created_at.as_micros(),
        row.updated_at.as_micros(),
        row.cancel_requested_at.map(Timestamp::as_micros),
    ])
}

fn mandate(row: &Row<'_>) -> Result<MandateRow, RowError> {
    Ok(MandateRow {
        id: MandateId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        state: word(row, 2, "a mandate's state", MandateState::from_code)?,
        version: row.get(3)?,
        plan_id: row.get(4)?,
        price: Usd::from_cents(row.get(5)?),
        create_key: row.get(6)?,
        provider_ref: row.get(7)?,
        approve_url: row.get(8)?,
        return_url: row.get(9)?,
        cancel_url: row.get(10)?,
        agreed_at: optional_time(row, 11)?,
        activated_at: optional_time(row, 12)?,
        payment: row.get(13)?,
        paid_at: optional_time(row, 14)?,
        paid_until: optional_time(row, 15)?,
        advanced_for: optional_time(row, 16)?,
        note: row.get(17)?,
        attempts: row.get(18)?,
        next_attempt_at: optional_time(row, 19)?,
        acknowledged: row.get(20)?,
        created_at: row.get(21).map(Timestamp::from_micros)?,
        updated_at: row.get(22).map(Timestamp::from_micros)?,
        cancel_requested_at: optional_time(row, 23)?,
        notifications: row.get(24)?,
    })
}

impl<W> SqliteStore<W> {
    fn some_mandates(
        &self,
        which: &str,
        params: impl rusqlite::Params,
    ) -> Result<Vec<MandateRow>, ReadError> {
        self.with("mandates", |connection| {
            let mut found = Vec::new();
            let sql = format!("SELECT {} FROM mandates {which}", MANDATES.columns);
            each_row(connection, &sql, params, mandate, &mut |row| {
                found.push(row);
            })?;
            Ok(found)
        })
    }
}

impl<W> ReadMandates for SqliteStore<W> {
    fn mandate(&self, id: MandateId) -> Result<Option<MandateRow>, ReadError> {
        let found = self.some_mandates("WHERE id = ?1", [id.as_bytes()])?;
        Ok(found.into_iter().next())
    }

    fn mandates_due(&self, now: Timestamp, limit: usize) -> Result<Vec<MandateRow>, ReadError> {
        // Two halves, each by its own index, as with credit purchases.
        let limit = rows_max(limit);
        let mut found = self.some_mandates(
            "WHERE rings > heard ORDER BY updated_at LIMIT ?1",
            params![limit],
        )?;
        let due = self.some_mandates(
            "WHERE look_at <= ?1 AND rings <= heard ORDER BY state IN (?3, ?4), look_at LIMIT ?2",
            params![
                now.as_micros(),
                limit,
                MandateState::Dropped.code(),
                MandateState::Over.code()
            ],
        )?;
        found.extend(due);
        found.truncate(usize::try_from(limit).unwrap_or(usize::MAX));
        Ok(found)
    }

    fn mandates_of(&self, account: AccountId, limit: usize) -> Result<Vec<MandateRow>, ReadError> {
        self.some_mandates(
            "WHERE account_id = ?1 ORDER BY created_at DESC, id DESC LIMIT ?2",
            params![account.as_bytes(), rows_max(limit)],
        )
    }

    fn mandates_in(&self, state: MandateState) -> Result<u64, ReadError> {
        self.with("mandates", |connection| {
            let count: i64 = connection
                .prepare_cached("SELECT count(*) FROM mandates WHERE state = ?1")?
                .query_row([state.code()], |row| row.get(0))?;
            Ok(count.unsigned_abs())
        })
    }
}
