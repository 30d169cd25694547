//! Signed transfers. Rare, so their statements are prepared on use.

use std::sync::LazyLock;

use rusqlite::{Connection, Row, ToSql, params};
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use super::columns::{each_row, optional_time, rows_max, word};
use super::failure::key_conflict;
use super::parts::account_exists;
use super::read::SqliteStore;
use super::versioned::VersionedTable;
use crate::codes::AuthorizationState;
use crate::engine::{RowError, WriteError};
use crate::error::{ReadError, Refusal};
use crate::x402::{AuthorizationKey, AuthorizationPart, AuthorizationRow, ReadAuthorizations};

static AUTHORIZATIONS: LazyLock<VersionedTable> = LazyLock::new(|| {
    VersionedTable::new(
        "authorizations",
        "network, asset, payer, nonce, account_id, state, version, digest, sealed, valid_before, transaction_hash, receipt, \
         note, looks, look_at, created_at, updated_at",
        "network, asset, payer, nonce, account_id, digest",
        &[],
    )
});

pub(crate) fn write(connection: &Connection, part: &AuthorizationPart) -> Result<(), WriteError> {
    match part {
        AuthorizationPart::Begin(row) => {
            if !account_exists(connection, row.account)? {
                return Err(WriteError::Refused(Refusal::NoAccount(row.account)));
            }
            with_values(row, |values| AUTHORIZATIONS.insert(connection, values))
                .map_err(|error| key_conflict(error, || Refusal::AuthorizationConflict))?;
        }
        AuthorizationPart::Change(row) => change(connection, row)?,
        AuthorizationPart::Send { row, subscription } => {
            let seen: Option<i64> = connection
                .prepare_cached("SELECT max(version) FROM subscriptions WHERE account_id = ?1")?
                .query_row([row.account.as_bytes()], |row| row.get(0))?;
            if seen != *subscription {
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
            connection
                .prepare_cached(
                    "DELETE FROM authorizations WHERE (network, asset, payer, nonce) IN
                        (SELECT network, asset, payer, nonce FROM authorizations WHERE state IN (0, 5) AND valid_before < ?1 LIMIT ?2)",
                )?
                .execute(params![before.as_micros(), limit])?;
            // None is stored after its end: the time at which it was lets the index of unresolved ones find the old ones.
            connection
                .prepare_cached(
                    "DELETE FROM authorizations WHERE (network, asset, payer, nonce) IN
                        (SELECT network, asset, payer, nonce FROM authorizations
                         WHERE state IN (1, 2, 6) AND state = 6 AND created_at < ?1 AND valid_before < ?1 LIMIT ?2)",
                )?
                .execute(params![refused_before.as_micros(), limit])?;
        }
    }
    Ok(())
}

/// Whether the transaction of a row has paid for another one.
fn is_used(connection: &Connection, row: &AuthorizationRow) -> Result<bool, WriteError> {
    let mut statement = connection.prepare_cached(
        "SELECT EXISTS (SELECT 1 FROM authorizations WHERE network = ?1 AND transaction_hash = ?2 AND state = 3
            AND NOT (asset = ?3 AND payer = ?4 AND nonce = ?5))",
    )?;
    let key = &row.key;
    let values = params![
        key.network,
        row.transaction,
        key.asset,
        key.payer,
        key.nonce
    ];
    Ok(statement.query_row(values, |row| row.get(0))?)
}

fn change(connection: &Connection, row: &AuthorizationRow) -> Result<(), WriteError> {
    let changed = with_values(row, |values| AUTHORIZATIONS.update(connection, values))
        // The only index that a change can conflict with: one open transfer per account.
        .map_err(|error| key_conflict(error, || Refusal::AuthorizationOpen))?;
    if changed {
        Ok(())
    } else {
        Err(WriteError::Refused(Refusal::AuthorizationConflict))
    }
}

fn with_values<T>(row: &AuthorizationRow, write: impl FnOnce(&[&dyn ToSql]) -> T) -> T {
    write(params![
        row.key.network,
        row.key.asset,
        row.key.payer,
        row.key.nonce,
        row.account.as_bytes(),
        row.state.code(),
        row.version,
        row.digest,
        row.sealed,
        row.valid_before.as_micros(),
        row.transaction,
        row.receipt,
        row.note,
        row.attempts,
        row.next_attempt_at.map(Timestamp::as_micros),
        row.created_at.as_micros(),
        row.updated_at.as_micros(),
    ])
}

fn authorization(row: &Row<'_>) -> Result<AuthorizationRow, RowError> {
    Ok(AuthorizationRow {
        key: AuthorizationKey {
            network: row.get(0)?,
            asset: row.get(1)?,
            payer: row.get(2)?,
            nonce: row.get(3)?,
        },
        account: AccountId::from_bytes(row.get(4)?),
        state: word(
            row,
            5,
            "a signed transfer's state",
            AuthorizationState::from_code,
        )?,
        version: row.get(6)?,
        digest: row.get(7)?,
        sealed: row.get(8)?,
        valid_before: row.get(9).map(Timestamp::from_micros)?,
        transaction: row.get(10)?,
        receipt: row.get(11)?,
        note: row.get(12)?,
        attempts: row.get(13)?,
        next_attempt_at: optional_time(row, 14)?,
        created_at: row.get(15).map(Timestamp::from_micros)?,
        updated_at: row.get(16).map(Timestamp::from_micros)?,
    })
}

impl<W> SqliteStore<W> {
    fn some_authorizations(
        &self,
        which: &str,
        params: impl rusqlite::Params,
    ) -> Result<Vec<AuthorizationRow>, ReadError> {
        self.with("signed transfers", |connection| {
            let mut found = Vec::new();
            let sql = format!(
                "SELECT {} FROM authorizations {which}",
                AUTHORIZATIONS.columns
            );
            each_row(connection, &sql, params, authorization, &mut |row| {
                found.push(row);
            })?;
            Ok(found)
        })
    }
}

impl<W> ReadAuthorizations for SqliteStore<W> {
    fn authorization(&self, key: &AuthorizationKey) -> Result<Option<AuthorizationRow>, ReadError> {
        let found = self.some_authorizations(
            "WHERE network = ?1 AND asset = ?2 AND payer = ?3 AND nonce = ?4",
            params![key.network, key.asset, key.payer, key.nonce],
        )?;
        Ok(found.into_iter().next())
    }

    fn authorization_open(
        &self,
        account: AccountId,
    ) -> Result<Option<AuthorizationRow>, ReadError> {
        let found = self.some_authorizations(
            "WHERE account_id = ?1 AND state IN (1, 2)",
            [account.as_bytes()],
        )?;
        Ok(found.into_iter().next())
    }

    fn authorizations_due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<AuthorizationRow>, ReadError> {
        self.some_authorizations(
            "WHERE look_at <= ?1 ORDER BY look_at LIMIT ?2",
            params![now.as_micros(), rows_max(limit)],
        )
    }

    fn authorizations_open(
        &self,
        after: Option<&AuthorizationRow>,
        limit: usize,
    ) -> Result<Vec<AuthorizationRow>, ReadError> {
        const ORDER: &str = "ORDER BY created_at, network, asset, payer, nonce LIMIT ?1";
        let limit = rows_max(limit);
        let Some(last) = after else {
            return self.some_authorizations(&format!("WHERE state IN (1, 2, 6) {ORDER}"), [limit]);
        };
        let key = &last.key;
        self.some_authorizations(
            &format!(
                "WHERE state IN (1, 2, 6) AND (created_at, network, asset, payer, nonce) > (?2, ?3, ?4, ?5, ?6) {ORDER}"
            ),
            params![
                limit,
                last.created_at.as_micros(),
                key.network,
                key.asset,
                key.payer,
                key.nonce
            ],
        )
    }

    fn authorizations_moving(&self) -> Result<u64, ReadError> {
        self.with("signed transfers", |connection| {
            let sql = "SELECT count(*) FROM authorizations WHERE state IN (1, 2)";
            let mut statement = connection.prepare_cached(sql)?;
            let count: i64 = statement.query_row([], |row| row.get(0))?;
            Ok(count.unsigned_abs())
        })
    }

    fn authorizations_refused(
        &self,
        account: AccountId,
        since: Timestamp,
        limit: usize,
    ) -> Result<Vec<Timestamp>, ReadError> {
        self.with("signed transfers", |connection| {
            let sql = "SELECT created_at FROM authorizations
                 WHERE state IN (1, 2, 6) AND state = 6 AND created_at > ?2 AND account_id = ?1 ORDER BY created_at DESC LIMIT ?3";
            let mut statement = connection.prepare_cached(sql)?;
            let values = params![account.as_bytes(), since.as_micros(), rows_max(limit)];
            let found = statement.query_map(values, |row| row.get(0).map(Timestamp::from_micros))?;
            Ok(found.collect::<Result<_, _>>()?)
        })
    }
}
