//! Idempotency keys of completions: rows of a bounded size, bodies stored once for each digest, totals by account.

use rusqlite::{Connection, OptionalExtension, params};
use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use super::key_state::{Earlier, NewClaim, earlier, state_of};
use crate::engine::WriteError;
use crate::error::Refusal;
use crate::idempotency::{
    IdempotencyKey, IdempotencyRow, KeptAnswer, KeyLimits, KeyQuota, KeyUse, state,
};

/// Expired keys that are deleted at once, and the bytes of bodies after which no further one is.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub(super) keys: u32,
    pub(super) bytes: u64,
}

/// Each claim deletes up to so many expired keys, so that keys are deleted faster than they are made.
const WITH_CLAIM: Batch = Batch {
    keys: 2,
    bytes: 1 << 20,
};

pub(super) fn claim(connection: &Connection, claim: &NewClaim<'_>) -> Result<(), WriteError> {
    let NewClaim {
        key,
        request_hash,
        token,
        at,
        expires_at,
        limits,
    } = *claim;
    let name = name(key);
    let in_use = connection
        .prepare_cached(
            "SELECT request_hash, state, expires_at FROM completion_keys WHERE account_id = ?1 AND name = ?2",
        )?
        .query_row(params![key.account.as_bytes(), name], |row| {
            Earlier::of(row, request_hash, at)
        })
        .optional()?;
    let is_stored = in_use.is_some();
    // One that an earlier release recorded.
    let in_use = match in_use {
        Some(in_use) => Some(in_use),
        None => earlier(connection, key, request_hash, at)?,
    };
    if let Some(stands) = in_use.and_then(|in_use| in_use.stands()) {
        return Err(WriteError::Refused(Refusal::KeyInUse(stands)));
    }
    if is_stored {
        delete(connection, key.account.as_bytes(), &name)?;
    }
    forget(connection, at, WITH_CLAIM)?;
    if let Some(limits) = limits {
        let totals = totals(connection, key.account)?;
        let quota = if totals.keys >= limits.keys {
            Some(KeyQuota::Keys)
        } else if totals.bytes >= limits.bytes {
            Some(KeyQuota::Bytes)
        } else {
            None
        };
        if let Some(quota) = quota {
            return Err(WriteError::Refused(Refusal::KeyQuota(quota)));
        }
    }
    connection
        .prepare_cached(
            "INSERT INTO completion_keys (account_id, name, request_hash, state, token, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
        )?
        .execute(params![
            key.account.as_bytes(),
            name,
            request_hash,
            state::CLAIMED,
            token,
            expires_at.as_micros(),
        ])?;
    count(connection, key.account.as_bytes(), 1, 0)
}

pub(super) fn keep(
    connection: &Connection,
    key: &IdempotencyKey,
    token: i64,
    answer: &KeptAnswer,
) -> Result<(), WriteError> {
    let digest = answer
        .body
        .as_deref()
        .map(|body| *blake3::hash(body).as_bytes());
    let kept = connection
        .prepare_cached(
            "UPDATE completion_keys SET state = ?5, status = ?6, headers = ?7, answer = ?8, expires_at = abs(expires_at)
             WHERE account_id = ?1 AND name = ?2 AND state = ?3 AND token = ?4",
        )?
        .execute(params![
            key.account.as_bytes(),
            name(key),
            state::CLAIMED,
            token,
            state::ANSWERED,
            answer.status,
            &*answer.headers,
            digest,
        ])?;
    if kept == 0 {
        return Err(WriteError::Refused(Refusal::KeyInUse(KeyUse::Lost)));
    }
    let (Some(digest), Some(body)) = (digest, answer.body.as_deref()) else {
        return Ok(());
    };
    let used = connection
        .prepare_cached("UPDATE answer_bodies SET uses = uses + 1 WHERE digest = ?1")?
        .execute([digest])?;
    if used > 0 {
        return Ok(());
    }
    connection
        .prepare_cached(
            "INSERT INTO answer_bodies (digest, account_id, uses, body) VALUES (?1, ?2, 1, ?3)",
        )?
        .execute(params![digest, key.account.as_bytes(), body])?;
    count(connection, key.account.as_bytes(), 0, length(body.len()))
}

pub(super) fn free(
    connection: &Connection,
    key: &IdempotencyKey,
    token: i64,
) -> Result<(), WriteError> {
    let freed = connection
        .prepare_cached(
            "DELETE FROM completion_keys WHERE account_id = ?1 AND name = ?2 AND state = ?3 AND token = ?4",
        )?
        .execute(params![
            key.account.as_bytes(),
            name(key),
            state::CLAIMED,
            token
        ])?;
    match freed {
        0 => Ok(()),
        _ => count(connection, key.account.as_bytes(), -1, 0),
    }
}

pub(super) fn lapse(
    connection: &Connection,
    key: &IdempotencyKey,
    token: i64,
) -> Result<(), WriteError> {
    connection
        .prepare_cached(
            "UPDATE completion_keys SET expires_at = -abs(expires_at)
             WHERE account_id = ?1 AND name = ?2 AND state = ?3 AND token = ?4",
        )?
        .execute(params![
            key.account.as_bytes(),
            name(key),
            state::CLAIMED,
            token
        ])?;
    Ok(())
}

/// Frees every claimed key.
pub(super) fn free_all(connection: &Connection) -> Result<(), WriteError> {
    connection
        .prepare_cached(
            "UPDATE completion_key_totals SET keys = keys - claimed.number
             FROM (SELECT account_id AS account, count(*) AS number FROM completion_keys WHERE state = ?1 GROUP BY account_id) AS claimed
             WHERE account_id = claimed.account",
        )?
        .execute([state::CLAIMED])?;
    connection
        .prepare_cached("DELETE FROM completion_keys WHERE state = ?1")?
        .execute([state::CLAIMED])?;
    Ok(())
}

/// Deletes expired keys with a response, the oldest first, and the bodies that no other key has.
pub(super) fn forget(
    connection: &Connection,
    now: Timestamp,
    batch: Batch,
) -> Result<(), WriteError> {
    let expired: Vec<([u8; 16], [u8; 16])> = connection
        .prepare_cached(
            "SELECT account_id, name FROM completion_keys WHERE expires_at <= ?1 AND state = 1 ORDER BY expires_at LIMIT ?2",
        )?
        .query_map(params![now.as_micros(), batch.keys], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?
        .collect::<rusqlite::Result<_>>()?;
    let mut bytes = 0;
    for (account, name) in expired {
        bytes += delete(connection, &account, &name)?;
        if bytes >= batch.bytes {
            break;
        }
    }
    Ok(())
}

/// Deletes a key; returns the bytes of its body, if no other key has it.
fn delete(connection: &Connection, account: &[u8; 16], name: &[u8; 16]) -> Result<u64, WriteError> {
    let digest: Option<[u8; 32]> = connection
        .prepare_cached(
            "DELETE FROM completion_keys WHERE account_id = ?1 AND name = ?2 RETURNING answer",
        )?
        .query_row(params![account, name], |row| row.get(0))?;
    count(connection, account, -1, 0)?;
    let Some(digest) = digest else {
        return Ok(0);
    };
    let (uses, payer, bytes): (i64, [u8; 16], i64) = connection
        .prepare_cached(
            "UPDATE answer_bodies SET uses = uses - 1 WHERE digest = ?1 RETURNING uses, account_id, length(body)",
        )?
        .query_row([digest], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?))
        })?;
    if uses > 0 {
        return Ok(0);
    }
    connection
        .prepare_cached("DELETE FROM answer_bodies WHERE digest = ?1")?
        .execute([digest])?;
    count(connection, &payer, 0, -bytes)?;
    Ok(bytes.unsigned_abs())
}

/// Adds to the totals of an account.
fn count(
    connection: &Connection,
    account: &[u8; 16],
    keys: i64,
    bytes: i64,
) -> Result<(), WriteError> {
    connection
        .prepare_cached(
            "INSERT INTO completion_key_totals (account_id, keys, bytes) VALUES (?1, ?2, ?3)
             ON CONFLICT (account_id) DO UPDATE SET keys = keys + excluded.keys, bytes = bytes + excluded.bytes",
        )?
        .execute(params![account, keys, bytes])?;
    Ok(())
}

/// The keys of an account, and the bytes of bodies that count for it.
fn totals(connection: &Connection, account: AccountId) -> rusqlite::Result<KeyLimits> {
    let totals = connection
        .prepare_cached("SELECT keys, bytes FROM completion_key_totals WHERE account_id = ?1")?
        .query_row([account.as_bytes()], |row| {
            Ok(KeyLimits {
                keys: row.get::<_, i64>(0)?.unsigned_abs(),
                bytes: row.get::<_, i64>(1)?.unsigned_abs(),
            })
        })
        .optional()?;
    Ok(totals.unwrap_or(KeyLimits { keys: 0, bytes: 0 }))
}

/// The state of a key.
pub(super) fn read(
    connection: &Connection,
    key: &IdempotencyKey,
) -> rusqlite::Result<Option<IdempotencyRow>> {
    connection
        .prepare_cached(
            "SELECT request_hash, state, status, headers, body, expires_at
             FROM completion_keys LEFT JOIN answer_bodies ON digest = answer
             WHERE completion_keys.account_id = ?1 AND name = ?2",
        )?
        .query_row(params![key.account.as_bytes(), name(key)], state_of)
        .optional()
}

/// The name of a key within its account.
fn name(key: &IdempotencyKey) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&key.endpoint.code().to_le_bytes());
    hasher.update(key.key.as_bytes());
    let mut name = [0; 16];
    name.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    name
}

fn length(bytes: usize) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}
