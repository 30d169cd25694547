//! Idempotency keys of completions: rows of a bounded size, bodies stored once per digest, totals by account.

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;

use super::key_state::{Earlier, NewClaim, earlier, state_of};
use crate::engine::{RowError, Select, Sql, WriteError, values};
use crate::error::Refusal;
use crate::idempotency::{
    IdempotencyKey, IdempotencyRow, KeptAnswer, KeyLimits, KeyQuota, KeyUse, state,
};

/// Limits on a deletion of expired keys: number of keys, and bytes of bodies after which no further key is deleted.
#[derive(Clone, Copy)]
pub(super) struct Batch {
    pub(super) keys: u32,
    pub(super) bytes: u64,
}

/// Number of expired keys deleted by a claim: keys are deleted faster than new keys are made.
const WITH_CLAIM: Batch = Batch {
    keys: 2,
    bytes: 1 << 20,
};

pub(super) fn claim(connection: &dyn Sql, claim: &NewClaim<'_>) -> Result<(), WriteError> {
    let NewClaim {
        key,
        request_hash,
        token,
        at,
        expires_at,
        limits,
    } = *claim;
    let name = name(key);
    let sql = "SELECT request_hash, state, expires_at FROM completion_keys WHERE account_id = ?1 AND name = ?2";
    let in_use = connection.first(sql, values![key.account, name], |row| {
        Earlier::of(row, request_hash, at)
    })?;
    let is_stored = in_use.is_some();
    // A key recorded by an earlier release.
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
    let sql = "INSERT INTO completion_keys (account_id, name, request_hash, state, token, expires_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
    connection.execute(
        sql,
        values![
            key.account,
            name,
            request_hash,
            state::CLAIMED,
            token,
            expires_at,
        ],
    )?;
    count(connection, key.account.as_bytes(), 1, 0)
}

pub(super) fn keep(
    connection: &dyn Sql,
    key: &IdempotencyKey,
    token: i64,
    answer: &KeptAnswer,
) -> Result<(), WriteError> {
    let digest = answer
        .body
        .as_deref()
        .map(|body| *blake3::hash(body).as_bytes());
    let sql = "UPDATE completion_keys SET state = ?5, status = ?6, headers = ?7, answer = ?8, expires_at = abs(expires_at)
             WHERE account_id = ?1 AND name = ?2 AND state = ?3 AND token = ?4";
    let kept = connection.execute(
        sql,
        values![
            key.account,
            name(key),
            state::CLAIMED,
            token,
            state::ANSWERED,
            answer.status,
            answer.headers,
            digest,
        ],
    )?;
    if kept == 0 {
        return Err(WriteError::Refused(Refusal::KeyInUse(KeyUse::Lost)));
    }
    let (Some(digest), Some(body)) = (digest, answer.body.as_deref()) else {
        return Ok(());
    };
    let used = connection.execute(
        "UPDATE answer_bodies SET uses = uses + 1 WHERE digest = ?1",
        values![digest],
    )?;
    if used > 0 {
        return Ok(());
    }
    connection.execute(
        "INSERT INTO answer_bodies (digest, account_id, uses, body) VALUES (?1, ?2, 1, ?3)",
        values![digest, key.account, body],
    )?;
    count(
        connection,
        key.account.as_bytes(),
        0,
        i64::try_from(body.len()).unwrap_or(i64::MAX),
    )
}

pub(super) fn free(
    connection: &dyn Sql,
    key: &IdempotencyKey,
    token: i64,
) -> Result<(), WriteError> {
    let sql = "DELETE FROM completion_keys WHERE account_id = ?1 AND name = ?2 AND state = ?3 AND token = ?4";
    let freed = connection.execute(sql, values![key.account, name(key), state::CLAIMED, token])?;
    match freed {
        0 => Ok(()),
        _ => count(connection, key.account.as_bytes(), -1, 0),
    }
}

pub(super) fn lapse(
    connection: &dyn Sql,
    key: &IdempotencyKey,
    token: i64,
) -> Result<(), WriteError> {
    connection.execute(
        "UPDATE completion_keys SET expires_at = -abs(expires_at)
             WHERE account_id = ?1 AND name = ?2 AND state = ?3 AND token = ?4",
        values![key.account, name(key), state::CLAIMED, token],
    )?;
    Ok(())
}

/// With the state as a number: every engine finds the claims by their index.
const UNCOUNT_CLAIMS: &str = "UPDATE completion_key_totals SET keys = keys - claimed.number
     FROM (SELECT account_id AS account, count(*) AS number FROM completion_keys
           WHERE state = 0 AND token >= ?1 AND token < ?2 GROUP BY account_id) AS claimed
     WHERE account_id = claimed.account";
const DELETE_CLAIMS: &str =
    "DELETE FROM completion_keys WHERE state = 0 AND token >= ?1 AND token < ?2";

/// Frees the keys whose claims have a smaller token.
pub(super) fn free_before(connection: &dyn Sql, least: i64, token: i64) -> Result<(), WriteError> {
    for sql in [UNCOUNT_CLAIMS, DELETE_CLAIMS] {
        connection.execute(sql, values![least, token])?;
    }
    Ok(())
}

/// Lets later requests take over the claims with a smaller token.
pub(super) fn lapse_before(connection: &dyn Sql, least: i64, token: i64) -> Result<(), WriteError> {
    let sql = "UPDATE completion_keys SET expires_at = -abs(expires_at) WHERE state = 0 AND token >= ?1 AND token < ?2";
    connection.execute(sql, values![least, token])?;
    Ok(())
}

/// Deletes expired keys with a response, the oldest first, and the bodies that no other key has.
pub(super) fn forget(connection: &dyn Sql, now: Timestamp, batch: Batch) -> Result<(), WriteError> {
    let sql = "SELECT account_id, name FROM completion_keys WHERE expires_at <= ?1 AND state = 1 ORDER BY expires_at LIMIT ?2";
    delete_all(connection, sql, now, batch)
}

/// Deletes lapsed claims without a takeover, at the time when a response would have expired.
pub(super) fn forget_lapsed(
    connection: &dyn Sql,
    now: Timestamp,
    batch: Batch,
) -> Result<(), WriteError> {
    let sql = "SELECT account_id, name FROM completion_keys WHERE state = 0 AND expires_at < 0 AND -expires_at <= ?1 LIMIT ?2";
    delete_all(connection, sql, now, batch)
}

/// Deletes the keys that a statement selects by a time and a limit.
fn delete_all(
    connection: &dyn Sql,
    sql: &'static str,
    now: Timestamp,
    batch: Batch,
) -> Result<(), WriteError> {
    let expired: Vec<([u8; 16], [u8; 16])> =
        connection.all(sql, values![now, batch.keys], |row| {
            Ok((row.get(0)?, row.get(1)?))
        })?;
    let mut bytes = 0;
    for (account, name) in expired {
        bytes += delete(connection, &account, &name)?;
        if bytes >= batch.bytes {
            break;
        }
    }
    Ok(())
}

/// Deletes a key; returns the bytes of its body, if no other key has the body.
fn delete(connection: &dyn Sql, account: &[u8; 16], name: &[u8; 16]) -> Result<u64, WriteError> {
    let sql = "DELETE FROM completion_keys WHERE account_id = ?1 AND name = ?2 RETURNING answer";
    let deleted = connection.first(sql, values![account, name], |row| {
        row.get::<Option<[u8; 32]>>(0)
    })?;
    let Some(digest) = deleted else {
        return Ok(0);
    };
    count(connection, account, -1, 0)?;
    let Some(digest) = digest else {
        return Ok(0);
    };
    let sql = "UPDATE answer_bodies SET uses = uses - 1 WHERE digest = ?1
         RETURNING uses, account_id, CAST(length(body) AS BIGINT)";
    let body = connection.first(sql, values![digest], |row| {
        Ok((
            row.get::<i64>(0)?,
            row.get::<[u8; 16]>(1)?,
            row.get::<i64>(2)?,
        ))
    })?;
    let Some((..=0, payer, bytes)) = body else {
        return Ok(0);
    };
    connection.execute(
        "DELETE FROM answer_bodies WHERE digest = ?1",
        values![digest],
    )?;
    count(connection, &payer, 0, -bytes)?;
    Ok(bytes.unsigned_abs())
}

/// Adds to the totals of an account.
fn count(
    connection: &dyn Sql,
    account: &[u8; 16],
    keys: i64,
    bytes: i64,
) -> Result<(), WriteError> {
    let sql = "INSERT INTO completion_key_totals (account_id, keys, bytes) VALUES (?1, ?2, ?3)
             ON CONFLICT (account_id) DO UPDATE SET
               keys = completion_key_totals.keys + excluded.keys, bytes = completion_key_totals.bytes + excluded.bytes";
    connection.execute(sql, values![account, keys, bytes])?;
    Ok(())
}

/// The keys of an account, and the bytes of bodies that count for the account.
fn totals(connection: &dyn Sql, account: AccountId) -> Result<KeyLimits, RowError> {
    let totals = connection.first(
        "SELECT keys, bytes FROM completion_key_totals WHERE account_id = ?1",
        values![account],
        |row| {
            Ok(KeyLimits {
                keys: row.get(0)?,
                bytes: row.get(1)?,
            })
        },
    )?;
    Ok(totals.unwrap_or(KeyLimits { keys: 0, bytes: 0 }))
}

/// The state of a key.
pub(super) fn read(
    connection: &dyn Sql,
    key: &IdempotencyKey,
) -> Result<Option<IdempotencyRow>, RowError> {
    connection.first(
        "SELECT request_hash, state, status, headers, body, expires_at
             FROM completion_keys LEFT JOIN answer_bodies ON digest = answer
             WHERE completion_keys.account_id = ?1 AND name = ?2",
        values![key.account, name(key)],
        state_of,
    )
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

#[cfg(test)]
mod tests {
    use tollgate_testing::Postgres;

    use super::*;
    use crate::sqlite;

    #[test]
    fn the_claims_of_a_run_are_found_by_their_index() {
        let fill =
            "INSERT INTO completion_keys (account_id, name, request_hash, state, token, expires_at)
             SELECT account, account, account, CASE WHEN n % 1000 = 0 THEN 0 ELSE 1 END, n, n FROM";
        let folder = tempfile::tempdir().expect("a folder");
        let (engine, _) = sqlite::new_engine(&folder.path().join("t.db"));
        let file = &engine.connection;
        let rows =
            "(WITH RECURSIVE g(n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM g WHERE n < 50000)
             SELECT n, randomblob(16) AS account FROM g); ANALYZE";
        file.execute_batch(&format!("{fill} {rows}")).expect("rows");

        let server = Postgres::shared();
        let url = server.database();
        let database = url.rsplit('/').next().expect("a name");
        let schema = "CREATE TABLE completion_keys (account_id BYTEA, name BYTEA, request_hash BYTEA, state BIGINT, token BIGINT, expires_at BIGINT);
             CREATE TABLE completion_key_totals (account_id BYTEA PRIMARY KEY, keys BIGINT);";
        let index = include_str!("../migrations/020.sql");
        let rows = "(SELECT n, decode(md5(CAST(n AS TEXT)), 'hex') AS account FROM generate_series(1, 50000) n) g; ANALYZE";
        server.run(database, &format!("{schema} {index} {fill} {rows}"));

        for sql in [UNCOUNT_CLAIMS, DELETE_CLAIMS] {
            let sql = sql.replace("?1", "1").replace("?2", "49000");
            let plan: Vec<String> = file
                .all(&format!("EXPLAIN QUERY PLAN {sql}"), values![], |row| {
                    row.get(3)
                })
                .expect("a plan");
            assert!(
                plan.concat().contains("completion_keys_claims"),
                "{plan:#?}"
            );
            let plan = server.run(database, &format!("EXPLAIN {sql}"));
            assert!(plan.contains("completion_keys_claims"), "{plan}");
        }
    }
}
