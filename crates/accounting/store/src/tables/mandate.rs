//! Mandates. Rare: the statements are prepared on use.

use std::sync::LazyLock;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, MandateId};

use super::parts::require_account;
use super::versioned::VersionedTable;
use crate::codes::{MandateState, Route};
use crate::engine::{RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::mandate::{MandatePart, MandateRow, MandateSubject};
use crate::reader::Reader;

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

pub(crate) fn write(connection: &dyn Sql, part: &MandatePart) -> Result<(), WriteError> {
    match part {
        MandatePart::Begin(row) => {
            require_account(connection, row.account)?;
            MANDATES.insert(connection, &values_of(row), Refusal::MandateExists(row.id))?;
        }
        MandatePart::Change(row) => {
            MANDATES.replace(
                connection,
                &values_of(row),
                Refusal::MandateConflict(row.id),
                Refusal::MandateExists(row.id),
            )?;
        }
        MandatePart::Notify(MandateSubject::Mandate(id)) => {
            connection.execute(
                "UPDATE mandates SET rings = rings + 1 WHERE id = ?1",
                values![id],
            )?;
        }
        MandatePart::Notify(MandateSubject::Subscription(reference)) => {
            connection.execute(
                "UPDATE mandates SET rings = rings + 1 WHERE provider_ref = ?1",
                values![reference],
            )?;
        }
        MandatePart::Notify(MandateSubject::Payment(payment)) => {
            let sql = "UPDATE mandates SET rings = rings + 1
                     WHERE account_id IN (SELECT account_id FROM payments WHERE route = ?1 AND provider_ref = ?2)";
            connection.execute(sql, values![Route::PayPal, payment])?;
        }
    }
    Ok(())
}

/// All columns except `rings`, in their order.
fn values_of(row: &MandateRow) -> [Value<'_>; 24] {
    *values![
        row.id,
        row.account,
        row.state,
        row.version,
        row.plan_id,
        row.price,
        row.create_key,
        row.provider_ref,
        row.approve_url,
        row.return_url,
        row.cancel_url,
        row.agreed_at,
        row.activated_at,
        row.payment,
        row.paid_at,
        row.paid_until,
        row.advanced_for,
        row.note,
        row.attempts,
        row.next_attempt_at,
        row.acknowledged,
        row.created_at,
        row.updated_at,
        row.cancel_requested_at,
    ]
}

fn mandate(row: &dyn SqlRow) -> Result<MandateRow, RowError> {
    Ok(MandateRow {
        id: row.get(0)?,
        account: row.get(1)?,
        state: row.get(2)?,
        version: row.get(3)?,
        plan_id: row.get(4)?,
        price: row.get(5)?,
        create_key: row.get(6)?,
        provider_ref: row.get(7)?,
        approve_url: row.get(8)?,
        return_url: row.get(9)?,
        cancel_url: row.get(10)?,
        agreed_at: row.get(11)?,
        activated_at: row.get(12)?,
        payment: row.get(13)?,
        paid_at: row.get(14)?,
        paid_until: row.get(15)?,
        advanced_for: row.get(16)?,
        note: row.get(17)?,
        attempts: row.get(18)?,
        next_attempt_at: row.get(19)?,
        acknowledged: row.get(20)?,
        created_at: row.get(21)?,
        updated_at: row.get(22)?,
        cancel_requested_at: row.get(23)?,
        notifications: row.get(24)?,
    })
}

impl Reader {
    fn some_mandates(
        &self,
        which: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<MandateRow>, ReadError> {
        self.with("mandates", |connection| {
            connection.all(
                &format!("SELECT {} FROM mandates {which}", MANDATES.columns),
                values,
                mandate,
            )
        })
    }
}

impl Reader {
    /// A mandate.
    pub fn mandate(&self, id: MandateId) -> Result<Option<MandateRow>, ReadError> {
        let found = self.some_mandates("WHERE id = ?1", values![id])?;
        Ok(found.into_iter().next())
    }

    /// At most `limit` mandates with new notifications or whose next attempt is due at `now`. Mandates no longer offered come last, and the
    /// longest waiting mandates first.
    pub fn mandates_due(&self, now: Timestamp, limit: usize) -> Result<Vec<MandateRow>, ReadError> {
        // Two halves, by an index per half, as with credit purchases.
        let mut found = self.some_mandates(
            "WHERE rings > heard ORDER BY updated_at LIMIT ?1",
            values![limit],
        )?;
        let due = self.some_mandates(
            "WHERE look_at <= ?1 AND rings <= heard ORDER BY state IN (?3, ?4), look_at LIMIT ?2",
            values![now, limit, MandateState::Dropped, MandateState::Over],
        )?;
        found.extend(due);
        found.truncate(limit);
        Ok(found)
    }

    /// At most `limit` mandates of an account, newest first.
    pub fn mandates_of(
        &self,
        account: AccountId,
        limit: usize,
    ) -> Result<Vec<MandateRow>, ReadError> {
        self.some_mandates(
            "WHERE account_id = ?1 ORDER BY created_at DESC, id DESC LIMIT ?2",
            values![account, limit],
        )
    }

    /// Number of mandates in a state.
    pub fn mandates_in(&self, state: MandateState) -> Result<u64, ReadError> {
        self.with("mandates", |connection| {
            Ok(connection
                .number(
                    "SELECT count(*) FROM mandates WHERE state = ?1",
                    values![state],
                )?
                .unsigned_abs())
        })
    }
}
