//! The state of an idempotency key as its row has it, and what a claim needs of it.

use rusqlite::{Connection, OptionalExtension, Row};
use tollgate_clock::Timestamp;

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
    connection: &Connection,
    key: &IdempotencyKey,
    request_hash: &[u8; 32],
    at: Timestamp,
) -> rusqlite::Result<Option<Earlier>> {
    connection
        .prepare_cached(
            "SELECT request_hash, state, expires_at FROM idempotency
             WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3",
        )?
        .query_row(named(key), |row| Earlier::of(row, request_hash, at))
        .optional()
}

/// The state of a requested key: claimed by a request, or answered.
pub(super) struct Earlier {
    same: bool,
    answered: bool,
    expired: bool,
    /// Its claim may be taken over.
    lapsed: bool,
}

impl Earlier {
    /// From `request_hash`, `state` and `expires_at`.
    pub(super) fn of(
        row: &Row<'_>,
        request_hash: &[u8; 32],
        at: Timestamp,
    ) -> rusqlite::Result<Earlier> {
        Ok(Earlier {
            same: row.get::<_, [u8; 32]>(0)? == *request_hash,
            answered: row.get::<_, i64>(1)? == state::ANSWERED,
            expired: row.get::<_, i64>(2)? <= at.as_micros(),
            lapsed: row.get::<_, i64>(2)? < 0,
        })
    }

    /// Why the key is not free; `None` when it is.
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
pub(super) fn state_of(row: &Row<'_>) -> rusqlite::Result<IdempotencyRow> {
    let answered = row.get::<_, i64>(1)? == state::ANSWERED;
    let answer = match answered {
        true => Some(KeptAnswer {
            status: row.get(2)?,
            headers: row.get(3)?,
            body: row.get::<_, Option<Vec<u8>>>(4)?.map(Into::into),
        }),
        false => None,
    };
    Ok(IdempotencyRow {
        request_hash: row.get(0)?,
        answer,
        expires_at: row.get(5).map(Timestamp::from_micros)?,
    })
}

/// The columns that identify a key in `idempotency`.
pub(super) fn named(key: &IdempotencyKey) -> (&[u8; 16], i64, &str) {
    (key.account.as_bytes(), key.endpoint.code(), &key.key)
}
