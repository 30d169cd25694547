//! Checkouts. Rare: the statements are prepared on use.

use std::sync::LazyLock;

use tollgate_money::{AccountId, CheckoutId};

use super::parts::require_account;
use super::versioned::VersionedTable;
use crate::checkout::{CheckoutPart, CheckoutRow};
use crate::codes::CheckoutState;
use crate::engine::{RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::reader::Reader;

static CHECKOUTS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "checkouts",
        "id, account_id, state, version, credential_id, platform, buyer, mandate_id, subscription_id, created_at, \
         updated_at, expires_at, asked",
        "id, account_id",
        &[],
    )
});

pub(crate) fn write(connection: &dyn Sql, part: &CheckoutPart) -> Result<(), WriteError> {
    match part {
        CheckoutPart::Begin { row, waiting_max } => {
            require_account(connection, row.account)?;
            CHECKOUTS.insert(
                connection,
                &values_of(row),
                Refusal::CheckoutConflict(row.id),
            )?;
            let sql = "UPDATE checkouts SET state = ?2, version = version + 1, updated_at = ?3 WHERE id IN (
                        SELECT id FROM checkouts WHERE account_id = ?1 AND state IN (?4, ?5)
                        ORDER BY created_at DESC, id DESC LIMIT 9223372036854775807 OFFSET ?6)";
            connection.execute(
                sql,
                values![
                    row.account,
                    CheckoutState::Canceled,
                    row.created_at,
                    CheckoutState::Incomplete,
                    CheckoutState::Waiting,
                    waiting_max,
                ],
            )?;
        }
        CheckoutPart::Change(row) => {
            let conflict = || Refusal::CheckoutConflict(row.id);
            CHECKOUTS.replace(connection, &values_of(row), conflict(), conflict())?;
        }
        CheckoutPart::Complete {
            account,
            subscription,
            at,
        } => {
            // A checkout whose owner has agreed does not expire before the outcome is known.
            let sql = "UPDATE checkouts SET state = ?3, subscription_id = ?2, version = version + 1, updated_at = ?4
                     WHERE account_id = ?1 AND (state = ?5 AND expires_at > ?4 OR state IN (?6, ?7))";
            connection.execute(
                sql,
                values![
                    account,
                    subscription,
                    CheckoutState::Completed,
                    at,
                    CheckoutState::Waiting,
                    CheckoutState::Ready,
                    CheckoutState::Placing,
                ],
            )?;
        }
        CheckoutPart::Forget { before, limit } => {
            let sql = "DELETE FROM checkouts WHERE id IN (SELECT id FROM checkouts WHERE updated_at < ?1 LIMIT ?2)";
            connection.execute(sql, values![before, limit])?;
        }
    }
    Ok(())
}

fn values_of(row: &CheckoutRow) -> [Value<'_>; 13] {
    *values![
        row.id,
        row.account,
        row.state,
        row.version,
        row.credential,
        row.platform,
        row.buyer,
        row.mandate,
        row.subscription,
        row.created_at,
        row.updated_at,
        row.expires_at,
        row.asked,
    ]
}

fn checkout(row: &dyn SqlRow) -> Result<CheckoutRow, RowError> {
    Ok(CheckoutRow {
        id: row.get(0)?,
        account: row.get(1)?,
        state: row.get(2)?,
        version: row.get(3)?,
        credential: row.get(4)?,
        platform: row.get(5)?,
        buyer: row.get(6)?,
        mandate: row.get(7)?,
        subscription: row.get(8)?,
        created_at: row.get(9)?,
        updated_at: row.get(10)?,
        expires_at: row.get(11)?,
        asked: row.get(12)?,
    })
}

impl Reader {
    fn some_checkouts(
        &self,
        which: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<CheckoutRow>, ReadError> {
        self.with("checkouts", |connection| {
            connection.all(
                &format!("SELECT {} FROM checkouts {which}", CHECKOUTS.columns),
                values,
                checkout,
            )
        })
    }
}

impl Reader {
    /// A checkout.
    pub fn checkout(&self, id: CheckoutId) -> Result<Option<CheckoutRow>, ReadError> {
        let found = self.some_checkouts("WHERE id = ?1", values![id])?;
        Ok(found.into_iter().next())
    }

    /// At most `limit` checkouts of an account, newest first.
    pub fn checkouts_of(
        &self,
        account: AccountId,
        limit: usize,
    ) -> Result<Vec<CheckoutRow>, ReadError> {
        self.some_checkouts(
            "WHERE account_id = ?1 ORDER BY created_at DESC, id DESC LIMIT ?2",
            values![account, limit],
        )
    }
}
