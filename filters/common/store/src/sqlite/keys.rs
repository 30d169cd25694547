//! Idempotency keys and their stored responses. Rare, so their statements are prepared on use.

use rusqlite::{Connection, OptionalExtension, params};
use tollgate_clock::Timestamp;

use crate::engine::WriteError;
use crate::error::Refusal;
use crate::idempotency::{
    IdempotencyKey, IdempotencyPart, IdempotencyRow, KeptAnswer, KeyUse, state,
};

pub(crate) fn write(connection: &Connection, part: &IdempotencyPart) -> Result<(), WriteError> {
    match part {
        IdempotencyPart::Claim {
            key,
            request_hash,
            token,
            at,
            expires_at,
        } => {
            let earlier = connection
                .prepare_cached(
                    "SELECT request_hash, state, expires_at FROM idempotency
                     WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3",
                )?
                .query_row(named(key), |row| {
                    Ok(Earlier {
                        same: row.get::<_, [u8; 32]>(0)? == *request_hash,
                        answered: row.get::<_, i64>(1)? == state::ANSWERED,
                        expired: row.get::<_, i64>(2)? <= at.as_micros(),
                        lapsed: row.get::<_, i64>(2)? < 0,
                    })
                })
                .optional()?;
            if let Some(stands) = earlier.and_then(|earlier| earlier.stands()) {
                return Err(WriteError::Refused(Refusal::KeyInUse(stands)));
            }
            connection
                .prepare_cached(
                    "INSERT OR REPLACE INTO idempotency (account_id, endpoint, key, request_hash, state, locked_until, created_at,
                                                         expires_at)
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
                )?
                .execute(params![
                    key.account.as_bytes(),
                    key.endpoint.code(),
                    &*key.key,
                    request_hash,
                    state::CLAIMED,
                    token,
                    at.as_micros(),
                    expires_at.as_micros(),
                ])?;
        }
        IdempotencyPart::Keep { key, token, answer } => {
            let kept = connection
                .prepare_cached(
                    "UPDATE idempotency SET state = ?6, status = ?7, headers = ?8, body = ?9, expires_at = abs(expires_at)
                     WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5",
                )?
                .execute(params![
                    key.account.as_bytes(),
                    key.endpoint.code(),
                    &*key.key,
                    state::CLAIMED,
                    token,
                    state::ANSWERED,
                    answer.status,
                    &*answer.headers,
                    answer.body.as_deref(),
                ])?;
            if kept == 0 {
                return Err(WriteError::Refused(Refusal::KeyInUse(KeyUse::Lost)));
            }
        }
        IdempotencyPart::Free { key, token } => {
            connection
                .prepare_cached(
                    "DELETE FROM idempotency
                     WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5",
                )?
                .execute(params![
                    key.account.as_bytes(),
                    key.endpoint.code(),
                    &*key.key,
                    state::CLAIMED,
                    token,
                ])?;
        }
        // A claim has no use for the sign of its expiry, which is that of its response: a negative one marks a lapsed claim.
        IdempotencyPart::Lapse { key, token } => {
            connection
                .prepare_cached(
                    "UPDATE idempotency SET expires_at = -abs(expires_at)
                     WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5",
                )?
                .execute(params![
                    key.account.as_bytes(),
                    key.endpoint.code(),
                    &*key.key,
                    state::CLAIMED,
                    token,
                ])?;
        }
        IdempotencyPart::FreeAll => {
            connection
                .prepare_cached("DELETE FROM idempotency WHERE state = ?1")?
                .execute([state::CLAIMED])?;
        }
        IdempotencyPart::Forget { now, limit } => {
            connection
                .prepare_cached(
                    "DELETE FROM idempotency
                     WHERE rowid IN (SELECT rowid FROM idempotency WHERE expires_at <= ?1 AND state = ?3 LIMIT ?2)",
                )?
                .execute(params![now.as_micros(), limit, state::ANSWERED])?;
        }
    }
    Ok(())
}

/// The state of a requested key: claimed by a request, or answered.
struct Earlier {
    same: bool,
    answered: bool,
    expired: bool,
    /// Its claim may be taken over.
    lapsed: bool,
}

impl Earlier {
    /// Why the key is not free; `None` when it is.
    fn stands(&self) -> Option<KeyUse> {
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

/// The state of a key.
pub(crate) fn read(
    connection: &Connection,
    key: &IdempotencyKey,
) -> rusqlite::Result<Option<IdempotencyRow>> {
    connection
        .prepare_cached(
            "SELECT request_hash, state, status, headers, body, expires_at FROM idempotency
             WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3",
        )?
        .query_row(named(key), |row| {
            let answered = row.get::<_, i64>(1)? == state::ANSWERED;
            let answer = if answered {
                Some(KeptAnswer {
                    status: row.get(2)?,
                    headers: row.get(3)?,
                    body: row.get::<_, Option<Vec<u8>>>(4)?.map(Into::into),
                })
            } else {
                None
            };
            Ok(IdempotencyRow {
                request_hash: row.get(0)?,
                answer,
                expires_at: row.get(5).map(Timestamp::from_micros)?,
            })
        })
        .optional()
}

fn named(key: &IdempotencyKey) -> (&[u8; 16], i64, &str) {
    (key.account.as_bytes(), key.endpoint.code(), &key.key)
}
