//! The stored state of an idempotency key, and the facts needed by a claim.

use tollgate_clock::Timestamp;

use crate::engine::{RowError, Select, Sql, SqlRow, values};
use crate::idempotency::{IdempotencyKey, IdempotencyRow, KeptAnswer, KeyLimits, KeyUse, state};

/// A key to be claimed.
pub(super) struct NewClaim<'a> {
    pub(super) key: &'a IdempotencyKey,
    pub(super) request_hash: &'a [u8; 32],
    pub(super) token: i64,
    pub(super) at: Timestamp,
    pub(super) expires_at: Timestamp,
    pub(super) limits: Option<KeyLimits>,
}

/// The state of a key in `idempotency`.
pub(super) fn earlier(
    connection: &dyn Sql,
    key: &IdempotencyKey,
    request_hash: &[u8; 32],
    at: Timestamp,
) -> Result<Option<Earlier>, RowError> {
    connection.first(
        "SELECT request_hash, state, expires_at FROM idempotency
             WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3",
        values![key.account, key.endpoint, key.key],
        |row| Earlier::of(row, request_hash, at),
    )
}

/// The state of a requested key: claimed by a request, or answered.
pub(super) struct Earlier {
    same: bool,
    answered: bool,
    expired: bool,
    /// The key's claim may be taken over.
    lapsed: bool,
}

impl Earlier {
    /// From `request_hash`, `state` and `expires_at`.
    pub(super) fn of(
        row: &dyn SqlRow,
        request_hash: &[u8; 32],
        at: Timestamp,
    ) -> Result<Earlier, RowError> {
        Ok(Earlier {
            same: row.get::<[u8; 32]>(0)? == *request_hash,
            answered: row.get::<i64>(1)? == state::ANSWERED,
            expired: row.get::<i64>(2)? <= at.as_micros(),
            lapsed: row.get::<i64>(2)? < 0,
        })
    }

    /// Why the key is not free; `None` for a free key.
    pub(super) fn stands(&self) -> Option<KeyUse> {
        match self {
            // A running request keeps the key whatever the wall clock says.
            Earlier {
                answered: true,
                expired: true,
                ..
            }
            | Earlier {
                answered: false,
                lapsed: true,
                ..
            } => None,
            Earlier { same: false, .. } => Some(KeyUse::OtherRequest),
            Earlier { answered: true, .. } => Some(KeyUse::Answered),
            Earlier { .. } => Some(KeyUse::UnderWay),
        }
    }
}

/// From `request_hash`, `state`, `status`, `headers`, `body` and `expires_at`.
pub(super) fn state_of(row: &dyn SqlRow) -> Result<IdempotencyRow, RowError> {
    let answered = row.get::<i64>(1)? == state::ANSWERED;
    let answer = match answered {
        true => Some(KeptAnswer {
            status: row.get(2)?,
            headers: row.get(3)?,
            body: row.get(4)?,
        }),
        false => None,
    };
    Ok(IdempotencyRow {
        request_hash: row.get(0)?,
        answer,
        expires_at: row.get(5)?,
    })
}
