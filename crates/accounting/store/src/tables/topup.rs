//! Purchases of credits. Rare: the statements are prepared on use.

use std::sync::LazyLock;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, TopUpId};

use super::changed;
use super::parts::require_account;
use super::versioned::VersionedTable;
use crate::codes::TopUpState;
use crate::engine::{RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::reader::Reader;
use crate::topup::{TopUpPart, TopUpRow, TopUpSubject};

static TOP_UPS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "top_ups",
        "id, account_id, state, version, price, credits, create_key, order_ref, approve_url, capture_key, capture_ref, \
         declines, returned, taken_back, owed, note, looks, look_at, heard, created_at, updated_at",
        "id, account_id",
        &["rings"],
    )
});

pub(crate) fn write(connection: &dyn Sql, part: &TopUpPart) -> Result<(), WriteError> {
    match part {
        TopUpPart::Begin(row) => {
            require_account(connection, row.account)?;
            TOP_UPS.insert(connection, &values_of(row), Refusal::TopUpExists(row.id))?;
        }
        TopUpPart::Change(row) => {
            TOP_UPS.replace(
                connection,
                &values_of(row),
                Refusal::TopUpConflict(row.id),
                Refusal::TopUpExists(row.id),
            )?;
        }
        TopUpPart::Notify(TopUpSubject::TopUp(id)) => {
            connection.execute(
                "UPDATE top_ups SET rings = rings + 1 WHERE id = ?1",
                values![id],
            )?;
        }
        TopUpPart::Notify(TopUpSubject::Order(order)) => {
            connection.execute(
                "UPDATE top_ups SET rings = rings + 1 WHERE order_ref = ?1",
                values![order],
            )?;
        }
        TopUpPart::Notify(TopUpSubject::Capture(capture)) => {
            connection.execute(
                "UPDATE top_ups SET rings = rings + 1 WHERE capture_ref = ?1",
                values![capture],
            )?;
        }
        TopUpPart::Notice { id, kind, at } => {
            let sql = "INSERT INTO payment_notices (id, kind, at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
            let inserted = connection.execute(sql, values![id, kind, at])?;
            changed(inserted, || Refusal::DuplicateNotification)?;
        }
        TopUpPart::ForgetNotices { before, limit } => {
            let sql = "DELETE FROM payment_notices WHERE id IN (SELECT id FROM payment_notices WHERE at < ?1 LIMIT ?2)";
            connection.execute(sql, values![before, limit])?;
        }
    }
    Ok(())
}

/// All columns except `rings`, in their order.
fn values_of(row: &TopUpRow) -> [Value<'_>; 21] {
    *values![
        row.id,
        row.account,
        row.state,
        row.version,
        row.price,
        row.credits,
        row.create_key,
        row.order,
        row.approve_url,
        row.capture_key,
        row.capture,
        row.declines,
        row.returned,
        row.taken_back,
        row.owed,
        row.note,
        row.attempts,
        row.next_attempt_at,
        row.acknowledged,
        row.created_at,
        row.updated_at,
    ]
}

fn top_up(row: &dyn SqlRow) -> Result<TopUpRow, RowError> {
    Ok(TopUpRow {
        id: row.get(0)?,
        account: row.get(1)?,
        state: row.get(2)?,
        version: row.get(3)?,
        price: row.get(4)?,
        credits: row.get(5)?,
        create_key: row.get(6)?,
        order: row.get(7)?,
        approve_url: row.get(8)?,
        capture_key: row.get(9)?,
        capture: row.get(10)?,
        declines: row.get(11)?,
        returned: row.get(12)?,
        taken_back: row.get(13)?,
        owed: row.get(14)?,
        note: row.get(15)?,
        attempts: row.get(16)?,
        next_attempt_at: row.get(17)?,
        acknowledged: row.get(18)?,
        created_at: row.get(19)?,
        updated_at: row.get(20)?,
        notifications: row.get(21)?,
    })
}

impl Reader {
    fn some_top_ups(&self, which: &str, values: &[Value<'_>]) -> Result<Vec<TopUpRow>, ReadError> {
        self.with("purchases", |connection| {
            connection.all(
                &format!("SELECT {} FROM top_ups {which}", TOP_UPS.columns),
                values,
                top_up,
            )
        })
    }
}

impl Reader {
    /// A purchase.
    pub fn top_up(&self, id: TopUpId) -> Result<Option<TopUpRow>, ReadError> {
        let found = self.some_top_ups("WHERE id = ?1", values![id])?;
        Ok(found.into_iter().next())
    }

    /// At most `limit` purchases whose refunded credits are still owed. Reads all purchases.
    pub fn top_ups_owing(&self, limit: usize) -> Result<Vec<TopUpRow>, ReadError> {
        self.some_top_ups(
            "WHERE owed > 0 ORDER BY updated_at LIMIT ?1",
            values![limit],
        )
    }

    /// At most `limit` purchases with new notifications or whose next attempt is due at `now`, the longest waiting first.
    pub fn top_ups_due(&self, now: Timestamp, limit: usize) -> Result<Vec<TopUpRow>, ReadError> {
        // Two halves, by an index per half: either half contains few rows at any time.
        let mut found = self.some_top_ups(
            "WHERE rings > heard ORDER BY updated_at LIMIT ?1",
            values![limit],
        )?;
        let due = self.some_top_ups(
            "WHERE look_at <= ?1 AND rings <= heard ORDER BY look_at LIMIT ?2",
            values![now, limit],
        )?;
        found.extend(due);
        found.truncate(limit);
        Ok(found)
    }

    /// At most `limit` purchases of an account that were started before `before`, newest first.
    pub fn top_ups_of(
        &self,
        account: AccountId,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<TopUpRow>, ReadError> {
        self.some_top_ups(
            "WHERE account_id = ?1 AND created_at < ?2 ORDER BY created_at DESC, id DESC LIMIT ?3",
            values![account, before, limit],
        )
    }

    /// Number of unfinished purchases.
    pub fn top_ups_open(&self) -> Result<u64, ReadError> {
        self.with("purchases", |connection| {
            // Every unfinished purchase is reconciled from time to time.
            let sql =
                "SELECT count(*) FROM top_ups WHERE look_at IS NOT NULL AND state NOT IN (?1, ?2)";
            let finished = values![TopUpState::Captured, TopUpState::Failed];
            Ok(connection.number(sql, finished)?.unsigned_abs())
        })
    }
}
