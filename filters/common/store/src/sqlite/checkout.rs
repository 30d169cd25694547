//! Checkouts. Rare, so their statements are prepared on use.

use std::sync::LazyLock;

use rusqlite::{Connection, Row, ToSql, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CheckoutId, CredentialId, MandateId, SubscriptionId};

use super::columns::{each_row, rows_max, word};
use super::failure::key_conflict;
use super::parts::account_exists;
use super::read::SqliteStore;
use super::versioned::VersionedTable;
use crate::checkout::{CheckoutPart, CheckoutRow, ReadCheckouts};
use crate::codes::CheckoutState;
use crate::engine::{RowError, WriteError};
use crate::error::{ReadError, Refusal};

static CHECKOUTS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "checkouts",
        "id, account_id, state, version, credential_id, platform, buyer, mandate_id, subscription_id, created_at, \
         updated_at, expires_at, asked",
        "id, account_id",
        &[],
    )
});

pub(crate) fn write(connection: &Connection, part: &CheckoutPart) -> Result<(), WriteError> {
    match part {
        CheckoutPart::Begin { row, waiting_max } => {
            if !account_exists(connection, row.account)? {
                return Err(WriteError::Refused(Refusal::NoAccount(row.account)));
            }
            with_values(row, |values| CHECKOUTS.insert(connection, values))
                .map_err(|error| key_conflict(error, || Refusal::CheckoutConflict(row.id)))?;
            connection
                .prepare_cached(
                    "UPDATE checkouts SET state = ?2, version = version + 1, updated_at = ?3 WHERE id IN (
                        SELECT id FROM checkouts WHERE account_id = ?1 AND state IN (?4, ?5)
                        ORDER BY created_at DESC, id DESC LIMIT -1 OFFSET ?6)",
                )?
                .execute(params![
                    row.account.as_bytes(),
                    CheckoutState::Canceled.code(),
                    row.created_at.as_micros(),
                    CheckoutState::Incomplete.code(),
                    CheckoutState::Waiting.code(),
                    waiting_max,
                ])?;
        }
        CheckoutPart::Change(row) => {
            let changed = with_values(row, |values| CHECKOUTS.update(connection, values))?;
            if !changed {
                return Err(WriteError::Refused(Refusal::CheckoutConflict(row.id)));
            }
        }
        CheckoutPart::Complete {
            account,
            subscription,
            at,
        } => {
            // A checkout whose owner has agreed does not expire before the outcome is known.
            connection
                .prepare_cached(
                    "UPDATE checkouts SET state = ?3, subscription_id = ?2, version = version + 1, updated_at = ?4
                     WHERE account_id = ?1 AND (state = ?5 AND expires_at > ?4 OR state IN (?6, ?7))",
                )?
                .execute(params![
                    account.as_bytes(),
                    subscription.as_bytes(),
                    CheckoutState::Completed.code(),
                    at.as_micros(),
                    CheckoutState::Waiting.code(),
                    CheckoutState::Ready.code(),
                    CheckoutState::Placing.code(),
                ])?;
        }
        CheckoutPart::Forget { before, limit } => {
            connection
                .prepare_cached(
                    "DELETE FROM checkouts WHERE id IN (SELECT id FROM checkouts WHERE updated_at < ?1 LIMIT ?2)",
                )?
                .execute(params![before.as_micros(), limit])?;
        }
    }
    Ok(())
}

fn with_values<T>(row: &CheckoutRow, write: impl FnOnce(&[&dyn ToSql]) -> T) -> T {
    write(params![
        row.id.as_bytes(),
        row.account.as_bytes(),
        row.state.code(),
        row.version,
        row.credential.as_ref().map(CredentialId::as_bytes),
        row.platform,
        row.buyer,
        row.mandate.as_ref().map(MandateId::as_bytes),
        row.subscription.as_ref().map(SubscriptionId::as_bytes),
        row.created_at.as_micros(),
        row.updated_at.as_micros(),
        row.expires_at.as_micros(),
        row.asked,
    ])
}

fn checkout(row: &Row<'_>) -> Result<CheckoutRow, RowError> {
    let credential: Option<[u8; 16]> = row.get(4)?;
    let mandate: Option<[u8; 16]> = row.get(7)?;
    let subscription: Option<[u8; 16]> = row.get(8)?;
    Ok(CheckoutRow {
        id: CheckoutId::from_bytes(row.get(0)?),
        account: AccountId::from_bytes(row.get(1)?),
        state: word(row, 2, "a checkout's state", CheckoutState::from_code)?,
        version: row.get(3)?,
        credential: credential.map(CredentialId::from_bytes),
        platform: row.get(5)?,
        buyer: row.get(6)?,
        mandate: mandate.map(MandateId::from_bytes),
        subscription: subscription.map(SubscriptionId::from_bytes),
        created_at: row.get(9).map(Timestamp::from_micros)?,
        updated_at: row.get(10).map(Timestamp::from_micros)?,
        expires_at: row.get(11).map(Timestamp::from_micros)?,
        asked: row.get(12)?,
    })
}

impl<W> SqliteStore<W> {
    fn some_checkouts(
        &self,
        which: &str,
        params: impl rusqlite::Params,
    ) -> Result<Vec<CheckoutRow>, ReadError> {
        self.with("checkouts", |connection| {
            let mut found = Vec::new();
            let sql = format!("SELECT {} FROM checkouts {which}", CHECKOUTS.columns);
            each_row(connection, &sql, params, checkout, &mut |row| {
                found.push(row)
            })?;
            Ok(found)
        })
    }
}

impl<W> ReadCheckouts for SqliteStore<W> {
    fn checkout(&self, id: CheckoutId) -> Result<Option<CheckoutRow>, ReadError> {
        let found = self.some_checkouts("WHERE id = ?1", [id.as_bytes()])?;
        Ok(found.into_iter().next())
    }

    fn checkouts_of(
        &self,
        account: AccountId,
        limit: usize,
    ) -> Result<Vec<CheckoutRow>, ReadError> {
        self.some_checkouts(
            "WHERE account_id = ?1 ORDER BY created_at DESC, id DESC LIMIT ?2",
            params![account.as_bytes(), rows_max(limit)],
        )
    }
}
