//! Rows of credentials.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{CapPeriod, SpendingCap};

use crate::engine::{Credentials, RowError, Select, Sql, SqlRow, Value, values};
use crate::rows::{CredentialRow, NewCredential};

/// Stored for an expiry that never comes; the column is not nullable.
pub(crate) const NEVER: Timestamp = Timestamp::MAX;

/// Visits credentials.
pub(crate) fn each(
    connection: &dyn Sql,
    which: Credentials<'_>,
    each: &mut dyn FnMut(CredentialRow),
) -> Result<(), RowError> {
    match which {
        // The plus keeps the engine from using the index by expiry, which would fetch every row separately.
        Credentials::ValidAt(now) => selected(
            connection,
            "WHERE revoked_at IS NULL AND +expires_at > ?1",
            values![now],
            each,
        ),
        Credentials::OfAccount(account) => selected(
            connection,
            "WHERE account_id = ?1 ORDER BY created_at, id",
            values![account],
            each,
        ),
        Credentials::WithId(id) => selected(connection, "WHERE id = ?1", values![id], each),
        Credentials::WithHash(hash) => selected(connection, "WHERE hash = ?1", values![hash], each),
    }
}

fn selected(
    connection: &dyn Sql,
    which: &str,
    values: &[Value<'_>],
    each: &mut dyn FnMut(CredentialRow),
) -> Result<(), RowError> {
    let sql = format!(
        "SELECT hash, id, kind, account_id, client_id, grant_id, resource, scopes, label, hint, models, cap, created_at, expires_at,
                revoked_at, cap_period, used_at, version FROM credentials {which}"
    );
    connection.each(&sql, values, credential, each)
}

fn credential(row: &dyn SqlRow) -> Result<CredentialRow, RowError> {
    let models: Option<&str> = row.get(10)?;
    let expires_at = row.get(13)?;
    Ok(CredentialRow {
        made: NewCredential {
            hash: row.get(0)?,
            id: row.get(1)?,
            kind: row.get(2)?,
            account: row.get(3)?,
            client_id: row.get(4)?,
            grant_id: row.get(5)?,
            resource: row.get(6)?,
            scopes: row.get(7)?,
            label: row.get(8)?,
            hint: row.get(9)?,
            // An empty list of models is stored as an empty text, which has no line.
            models: models.map(|models| models.lines().map(Arc::from).collect()),
            spending_cap: match row.get(11)? {
                None => None,
                Some(max) => Some(SpendingCap {
                    max,
                    // Rows from before periods existed count over all time.
                    period: row.get::<Option<_>>(15)?.unwrap_or(CapPeriod::Total),
                }),
            },
            created_at: row.get(12)?,
            expires_at: (expires_at != NEVER).then_some(expires_at),
        },
        revoked_at: row.get(14)?,
        used_at: row.get(16)?,
        version: row.get(17)?,
    })
}
