//! Idempotency keys and their stored responses: keys of purchases here, keys of completions in `completion_keys`. Rare: the statements are
//! prepared on use.

use super::completion_keys::{self, Batch};
use super::key_state::{NewClaim, earlier, state_of};
use crate::engine::{RowError, Select, Sql, WriteError, values};
use crate::error::Refusal;
use crate::idempotency::least_of_node;
use crate::idempotency::{
    IdempotencyKey, IdempotencyPart, IdempotencyRow, KeptAnswer, KeyUse, state,
};

/// Bytes of bodies after which a commit deletes no further key, to keep other commits fast.
const FORGET_BYTES: u64 = 16 << 20;

pub(crate) fn write(connection: &dyn Sql, part: &IdempotencyPart) -> Result<(), WriteError> {
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
        IdempotencyPart::FreeBefore { token } => {
            let least = least_of_node(*token);
            completion_keys::free_before(connection, least, *token)?;
            connection.execute(
                "DELETE FROM idempotency WHERE state = ?1 AND locked_until >= ?2 AND locked_until < ?3",
                values![state::CLAIMED, least, *token],
            )?;
            Ok(())
        }
        IdempotencyPart::LapseBefore { token } => {
            let least = least_of_node(*token);
            completion_keys::lapse_before(connection, least, *token)?;
            connection.execute(
                "UPDATE idempotency SET expires_at = -abs(expires_at) WHERE state = ?1 AND locked_until >= ?2 AND locked_until < ?3",
                values![state::CLAIMED, least, *token],
            )?;
            Ok(())
        }
        IdempotencyPart::Forget { now, limit } => {
            let batch = Batch {
                keys: *limit,
                bytes: FORGET_BYTES,
            };
            completion_keys::forget(connection, *now, batch)?;
            completion_keys::forget_lapsed(connection, *now, batch)?;
            let sql = "DELETE FROM idempotency WHERE (account_id, endpoint, key) IN
               (SELECT account_id, endpoint, key FROM idempotency
                WHERE (state = ?3 AND expires_at <= ?1) OR (state = ?4 AND expires_at < 0 AND -expires_at <= ?1) LIMIT ?2)";
            connection.execute(sql, values![now, limit, state::ANSWERED, state::CLAIMED])?;
            Ok(())
        }
    }
}

/// Completions have separate tables, with smaller rows.
fn is_completion(key: &IdempotencyKey) -> bool {
    key.endpoint.is_family()
}

fn claim_purchase(connection: &dyn Sql, claim: &NewClaim<'_>) -> Result<(), WriteError> {
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
    let sql = "INSERT INTO idempotency (account_id, endpoint, key, request_hash, state, locked_until, created_at,
                                                 expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (account_id, endpoint, key) DO UPDATE SET
               request_hash = excluded.request_hash, state = excluded.state, point = 0, locked_until = excluded.locked_until, status = NULL,
               headers = NULL, body = NULL, created_at = excluded.created_at, expires_at = excluded.expires_at";
    connection.execute(
        sql,
        values![
            key.account,
            key.endpoint,
            key.key,
            request_hash,
            state::CLAIMED,
            token,
            at,
            expires_at,
        ],
    )?;
    Ok(())
}

fn keep(
    connection: &dyn Sql,
    key: &IdempotencyKey,
    token: i64,
    answer: &KeptAnswer,
) -> Result<(), WriteError> {
    let sql = "UPDATE idempotency SET state = ?6, status = ?7, headers = ?8, body = ?9, expires_at = abs(expires_at)
             WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5";
    let kept = connection.execute(
        sql,
        values![
            key.account,
            key.endpoint,
            key.key,
            state::CLAIMED,
            token,
            state::ANSWERED,
            answer.status,
            answer.headers,
            answer.body,
        ],
    )?;
    match kept {
        0 => Err(WriteError::Refused(Refusal::KeyInUse(KeyUse::Lost))),
        _ => Ok(()),
    }
}

fn free(connection: &dyn Sql, key: &IdempotencyKey, token: i64) -> Result<(), WriteError> {
    change_claim(
        connection,
        "DELETE FROM idempotency
         WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5",
        key,
        token,
    )
}

/// A claim does not use the sign of its expiry, which is the expiry of its response: a negative expiry marks a lapsed claim.
fn lapse(connection: &dyn Sql, key: &IdempotencyKey, token: i64) -> Result<(), WriteError> {
    change_claim(
        connection,
        "UPDATE idempotency SET expires_at = -abs(expires_at)
         WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3 AND state = ?4 AND locked_until = ?5",
        key,
        token,
    )
}

fn change_claim(
    connection: &dyn Sql,
    statement: &str,
    key: &IdempotencyKey,
    token: i64,
) -> Result<(), WriteError> {
    connection.execute(
        statement,
        values![key.account, key.endpoint, key.key, state::CLAIMED, token,],
    )?;
    Ok(())
}

/// The state of a key.
pub(crate) fn read(
    connection: &dyn Sql,
    key: &IdempotencyKey,
) -> Result<Option<IdempotencyRow>, RowError> {
    if is_completion(key)
        && let Some(row) = completion_keys::read(connection, key)?
    {
        return Ok(Some(row));
    }
    connection.first(
        "SELECT request_hash, state, status, headers, body, expires_at FROM idempotency
             WHERE account_id = ?1 AND endpoint = ?2 AND key = ?3",
        values![key.account, key.endpoint, key.key],
        state_of,
    )
}
