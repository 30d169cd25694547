//! Idempotency keys and their stored responses: those of purchases here, those of completions in `completion_keys`. Rare, so their
//! statements are prepared on use.

use rusqlite::{Connection, OptionalExtension, params};

use super::completion_keys::{self, Batch};
use super::key_state::{NewClaim, earlier, named, state_of};
use crate::codes::Endpoint;
use crate::engine::WriteError;
use crate::error::Refusal;
use crate::idempotency::{
    IdempotencyKey, IdempotencyPart, IdempotencyRow, KeptAnswer, KeyUse, state,
};

/// No further key is deleted in a commit after so many bytes of bodies, so that it does not delay others.
const FORGET_BYTES: u64 = 16 << 20;

pub(crate) fn write(connection: &Connection, part: &IdempotencyPart) -> Result<(), WriteError> {
    match part {
        IdempotencyPart::Claim {
            key,
            request_hash,
            token,
            at,
            expires_at,
            limits,
        } => {
            let claim = NewClaim {
                key,
                request_hash,
                token: *token,
                at: *at,
                expires_at: *expires_at,
                limits: *limits,
            };
            match is_completion(key) {
                true => completion_keys::claim(connection, &claim),
                false => claim_purchase(connection, &claim),
            }
        }
        IdempotencyPart::Keep { key, token, answer } if is_completion(key) => {
            completion_keys::keep(connection, key, *token, answer)
        }
        IdempotencyPart::Keep { key, token, answer } => keep(connection, key, *token, answer),
        IdempotencyPart::Free { key, token } if is_completion(key) => {
            completion_keys::free(connection, key, *token)
        }
        IdempotencyPart::Free { key, token } => free(connection, key, *token),
        IdempotencyPart::Lapse { key, token } if is_completion(key) => {
            completion_keys::lapse(connection, key, *token)
        }
        IdempotencyPart::Lapse { key, token } => lapse(connection, key, *token),
        IdempotencyPart::FreeAll => {
            completion_keys::free_all(connection)?;
            connection
                .prepare_cached("DELETE FROM idempotency WHERE state = ?1")?
                .execute([state::CLAIMED])?;
            Ok(())
        }
        IdempotencyPart::Forget { now, limit } => {
            let batch = Batch {
                keys: *limit,
                bytes: FORGET_BYTES,
            };
            completion_keys::forget(connection, *now, batch)?;
            connection
                .prepare_cached(
                    "DELETE FROM idempotency
                     WHERE rowid IN (SELECT rowid FROM idempotency WHERE expires_at <= ?1 AND state = ?3 LIMIT ?2)",
                )?
                .execute(params![now.as_micros(), limit, state::ANSWERED])?;
            Ok(())
        }
    }
}

/// Completions have tables of their own, in which a key takes less.
fn is_completion(key: &IdempotencyKey) -> bool {
    matches!(key.endpoint, Endpoint::Chat | Endpoint::Completions)
}

fn claim_purchase(connection: &Connection, claim: &NewClaim<'_>) -> Result<(), WriteError> {
    let NewClaim {
        key,
        request_hash,
        token,
        at,
        expires_at,
        ..
    } = *claim;
    let in_use = earlier(connection, key, request_hash, at)?;
    if let Some(stands) = in_use.and_then(|in_use| in_use.stands()) {
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
    Ok(())
}

fn keep(
    connection: &Connection,
    key: &IdempotencyKey,
    token: i64,
    answer: &KeptAnswer,
) -> Result<(), WriteError> {
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
    match kept {
        0 => Err(WriteError::Refused(Refusal::KeyInUse(KeyUse::Lost))),
        _ => Ok(()),
    }
}

fn free(connection: &Connection, key: &IdempotencyKey, token: i64) -> Result<(), WriteError> {
    change_claim(
        connection,
        "DELETE FROM idempotency
         WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5",
        key,
        token,
    )
}

/// A claim has no use for the sign of its expiry, which is that of its response: a negative one marks a lapsed claim.
fn lapse(connection: &Connection, key: &IdempotencyKey, token: i64) -> Result<(), WriteError> {
    change_claim(
        connection,
        "UPDATE idempotency SET expires_at = -abs(expires_at)
         WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5",
        key,
        token,
    )
}

fn change_claim(
    connection: &Connection,
    statement: &str,
    key: &IdempotencyKey,
    token: i64,
) -> Result<(), WriteError> {
    connection.prepare_cached(statement)?.execute(params![
        key.account.as_bytes(),
        key.endpoint.code(),
        &*key.key,
        state::CLAIMED,
        token,
    ])?;
    Ok(())
}

/// The state of a key.
pub(crate) fn read(
    connection: &Connection,
    key: &IdempotencyKey,
) -> rusqlite::Result<Option<IdempotencyRow>> {
    if is_completion(key)
        && let Some(row) = completion_keys::read(connection, key)?
    {
        return Ok(Some(row));
    }
    connection
        .prepare_cached(
            "SELECT request_hash, state, status, headers, body, expires_at FROM idempotency
             WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3",
        )?
        .query_row(named(key), state_of)
        .optional()
}
