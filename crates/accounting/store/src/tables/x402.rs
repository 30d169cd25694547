//! Signed transfers. Rare: the statements are prepared on use.

use std::sync::LazyLock;

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use super::parts::require_account;
use super::versioned::VersionedTable;
use crate::engine::{RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::reader::Reader;
use crate::x402::{AuthorizationKey, AuthorizationPart, AuthorizationRow};

static AUTHORIZATIONS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "authorizations",
        "network, asset, payer, nonce, account_id, state, version, digest, sealed, valid_before, transaction_hash, receipt, \
         note, looks, look_at, created_at, updated_at",
        "network, asset, payer, nonce, account_id, digest",
        &[],
    )
});

pub(crate) fn write(connection: &dyn Sql, part: &AuthorizationPart) -> Result<(), WriteError> {
    match part {
        AuthorizationPart::Begin(row) => {
            require_account(connection, row.account)?;
            AUTHORIZATIONS.insert(connection, &values_of(row), Refusal::AuthorizationConflict)?;
        }
        AuthorizationPart::Change(row) => change(connection, row)?,
        AuthorizationPart::Send { row, subscription } => {
            let seen = connection.first(
                "SELECT max(version) FROM subscriptions WHERE account_id = ?1",
                values![row.account],
                |row| row.get(0),
            )?;
            if seen.flatten() != *subscription {
                return Err(WriteError::Refused(Refusal::AuthorizationOpen));
            }
            change(connection, row)?;
        }
        AuthorizationPart::Settle { row, is_proven } => {
            if !is_proven && is_used(connection, row)? {
                return Err(WriteError::Refused(Refusal::TransactionUsed));
            }
            change(connection, row)?;
        }
        AuthorizationPart::Forget {
            before,
            refused_before,
            limit,
        } => {
            let sql = "DELETE FROM authorizations WHERE (network, asset, payer, nonce) IN
                        (SELECT network, asset, payer, nonce FROM authorizations WHERE state IN (0, 5) AND valid_before < ?1 LIMIT ?2)";
            connection.execute(sql, values![before, limit])?;
            // No transfer is stored after its end. The time of storing lets the index of unresolved transfers find old transfers.
            let sql = "DELETE FROM authorizations WHERE (network, asset, payer, nonce) IN
                        (SELECT network, asset, payer, nonce FROM authorizations
                         WHERE state IN (1, 2, 6) AND state = 6 AND created_at < ?1 AND valid_before < ?1 LIMIT ?2)";
            connection.execute(sql, values![refused_before, limit])?;
        }
    }
    Ok(())
}

/// Whether the transaction of a row has paid for another transfer.
fn is_used(connection: &dyn Sql, row: &AuthorizationRow) -> Result<bool, WriteError> {
    let key = &row.key;
    let sql =
        "SELECT 1 FROM authorizations WHERE network = ?1 AND transaction_hash = ?2 AND state = 3
            AND NOT (asset = ?3 AND payer = ?4 AND nonce = ?5)";
    let used = connection.exists(
        sql,
        values![
            key.network,
            row.transaction,
            key.asset,
            key.payer,
            key.nonce
        ],
    )?;
    Ok(used)
}

fn change(connection: &dyn Sql, row: &AuthorizationRow) -> Result<(), WriteError> {
    // The only index that a change can conflict with: one open transfer per account.
    let (moved, taken) = (Refusal::AuthorizationConflict, Refusal::AuthorizationOpen);
    AUTHORIZATIONS.replace(connection, &values_of(row), moved, taken)
}

fn values_of(row: &AuthorizationRow) -> [Value<'_>; 17] {
    *values![
        row.key.network,
        row.key.asset,
        row.key.payer,
        row.key.nonce,
        row.account,
        row.state,
        row.version,
        row.digest,
        row.sealed,
        row.valid_before,
        row.transaction,
        row.receipt,
        row.note,
        row.attempts,
        row.next_attempt_at,
        row.created_at,
        row.updated_at,
    ]
}

fn authorization(row: &dyn SqlRow) -> Result<AuthorizationRow, RowError> {
    Ok(AuthorizationRow {
        key: AuthorizationKey {
            network: row.get(0)?,
            asset: row.get(1)?,
            payer: row.get(2)?,
            nonce: row.get(3)?,
        },
        account: row.get(4)?,
        state: row.get(5)?,
        version: row.get(6)?,
        digest: row.get(7)?,
        sealed: row.get(8)?,
        valid_before: row.get(9)?,
        transaction: row.get(10)?,
        receipt: row.get(11)?,
        note: row.get(12)?,
        attempts: row.get(13)?,
        next_attempt_at: row.get(14)?,
        created_at: row.get(15)?,
        updated_at: row.get(16)?,
    })
}

impl Reader {
    fn some_authorizations(
        &self,
        which: &str,
        values: &[Value<'_>],
    ) -> Result<Vec<AuthorizationRow>, ReadError> {
        self.with("signed transfers", |connection| {
            connection.all(
                &format!(
                    "SELECT {} FROM authorizations {which}",
                    AUTHORIZATIONS.columns
                ),
                values,
                authorization,
            )
        })
    }
}

impl Reader {
    /// A signed transfer.
    pub fn authorization(
        &self,
        key: &AuthorizationKey,
    ) -> Result<Option<AuthorizationRow>, ReadError> {
        let found = self.some_authorizations(
            "WHERE network = ?1 AND asset = ?2 AND payer = ?3 AND nonce = ?4",
            values![key.network, key.asset, key.payer, key.nonce],
        )?;
        Ok(found.into_iter().next())
    }

    /// The account's transfer that may still move money; there is at most one.
    pub fn authorization_open(
        &self,
        account: AccountId,
    ) -> Result<Option<AuthorizationRow>, ReadError> {
        let found = self.some_authorizations(
            "WHERE account_id = ?1 AND state IN (1, 2)",
            values![account],
        )?;
        Ok(found.into_iter().next())
    }

    /// At most `limit` whose next reconciliation is due at `now`, the longest waiting first.
    pub fn authorizations_due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<AuthorizationRow>, ReadError> {
        self.some_authorizations(
            "WHERE look_at <= ?1 ORDER BY look_at LIMIT ?2",
            values![now, limit],
        )
    }

    /// At most `limit` transfers without a proven outcome, the oldest first: transfers that may still move money, and transfers that were
    /// sent and refused on the facilitator's word. `after`: the last row of the page before.
    pub fn authorizations_open(
        &self,
        after: Option<&AuthorizationRow>,
        limit: usize,
    ) -> Result<Vec<AuthorizationRow>, ReadError> {
        const ORDER: &str = "ORDER BY created_at, network, asset, payer, nonce LIMIT ?1";
        let Some(last) = after else {
            return self
                .some_authorizations(&format!("WHERE state IN (1, 2, 6) {ORDER}"), values![limit]);
        };
        let key = &last.key;
        self.some_authorizations(
            &format!(
                "WHERE state IN (1, 2, 6) AND (created_at, network, asset, payer, nonce) > (?2, ?3, ?4, ?5, ?6) {ORDER}"
            ),
            values![
                limit,
                last.created_at,
                key.network,
                key.asset,
                key.payer,
                key.nonce
            ],
        )
    }

    /// How many may still move money.
    pub fn authorizations_moving(&self) -> Result<u64, ReadError> {
        self.with("signed transfers", |connection| {
            let sql = "SELECT count(*) FROM authorizations WHERE state IN (1, 2)";
            Ok(connection.number(sql, values![])?.unsigned_abs())
        })
    }

    /// The times of storing of an account's transfers that were sent and refused on the facilitator's word, after `since`: at most `limit`,
    /// the newest first.
    pub fn authorizations_refused(
        &self,
        account: AccountId,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<Timestamp>, ReadError> {
        self.with("signed transfers", |connection| {
            let sql = "SELECT created_at FROM authorizations
                 WHERE state IN (1, 2, 6) AND state = 6 AND created_at > ?2 AND account_id = ?1 ORDER BY created_at DESC LIMIT ?3";
            connection.all(sql, values![account, since, limit], |row| row.get(0))
        })
    }
}
