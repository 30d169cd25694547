//! OAuth: clients, requests, grants, codes and refresh tokens. Rare, so their statements are prepared on use.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, GrantId};

use super::columns::{each_row, optional_time};
use super::failure::key_conflict;
use super::read::SqliteStore;
use crate::engine::{RowError, WriteError};
use crate::error::{ReadError, Refusal};
use crate::oauth::{
    ClientRow, CodeRow, GrantRow, OAuthPart, OAuthRead, OAuthRefusal, PendingRow, RefreshRow,
};

/// The kind of access tokens among the credentials ([`crate::CredentialKind::AccessToken`]).
const ACCESS_TOKEN: i64 = 2;

const GRANT_COLUMNS: &str =
    "g.id, g.account_id, g.client_id, g.client_name, g.refresh, g.redirect_uri, g.resource, g.asked, g.scopes, g.created_at, g.used_at,
     g.ends_at, g.revoked_at";

pub(crate) fn write(connection: &Connection, part: &OAuthPart) -> Result<(), WriteError> {
    match part {
        OAuthPart::InsertClient { client, unused_max } => {
            insert_client(connection, client, *unused_max)
        }
        OAuthPart::UseClient { id, at } => {
            let changed = connection
                .prepare_cached("UPDATE oauth_clients SET used_at = max(coalesce(used_at, 0), ?2) WHERE id = ?1")?
                .execute(params![&**id, at.as_micros()])?;
            match changed {
                0 => refuse(OAuthRefusal::NoClient),
                _ => Ok(()),
            }
        }
        OAuthPart::InsertPending {
            pending,
            pending_max,
        } => insert_pending(connection, pending, *pending_max),
        OAuthPart::BindPending { id, session, now } => {
            pending_of(connection, id, session, *now)?;
            connection
                .prepare_cached("UPDATE oauth_pending SET session = ?2 WHERE id = ?1")?
                .execute(params![id, session])?;
            Ok(())
        }
        OAuthPart::TakePending { id, session, now } => {
            pending_of(connection, id, session, *now)?;
            connection
                .prepare_cached("DELETE FROM oauth_pending WHERE id = ?1")?
                .execute([id])?;
            Ok(())
        }
        OAuthPart::InsertGrant(grant) => insert_grant(connection, grant),
        OAuthPart::InsertCode {
            hash,
            grant,
            challenge,
            expires_at,
        } => {
            connection
                .prepare_cached("INSERT INTO oauth_codes (hash, grant_id, challenge, expires_at) VALUES (?1, ?2, ?3, ?4)")?
                .execute(params![hash, grant.as_bytes(), &**challenge, expires_at.as_micros()])
                .map_err(|error| key_conflict(error, || Refusal::OAuth(OAuthRefusal::CodeUsed)))?;
            Ok(())
        }
        OAuthPart::RefuseCode { hash } => {
            connection
                .prepare_cached("UPDATE oauth_codes SET refusals = refusals + 1 WHERE hash = ?1")?
                .execute([hash])?;
            Ok(())
        }
        OAuthPart::TakeCode {
            hash,
            refusals_max,
            at,
        } => take_code(connection, hash, *refusals_max, *at),
        OAuthPart::InsertRefresh {
            hash,
            grant,
            expires_at,
        } => {
            connection
                .prepare_cached(
                    "INSERT INTO oauth_refresh (hash, grant_id, expires_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING",
                )?
                .execute(params![hash, grant.as_bytes(), expires_at.as_micros()])?;
            Ok(())
        }
        OAuthPart::SpendRefresh {
            hash,
            successor,
            grace,
            at,
        } => spend_refresh(connection, hash, successor, *grace, *at),
        OAuthPart::ProlongGrant { id, ends_at, at } => {
            connection
                .prepare_cached(
                    "UPDATE oauth_grants SET ends_at = max(ends_at, ?2), used_at = max(used_at, ?3) WHERE id = ?1",
                )?
                .execute(params![id.as_bytes(), ends_at.as_micros(), at.as_micros()])?;
            Ok(())
        }
        OAuthPart::RevokeGrant { id, at, .. } => revoke(
            connection,
            "id = ?1",
            params![id.as_bytes(), at.as_micros()],
        ),
        OAuthPart::RevokeGrants {
            account,
            client,
            at,
        } => match client {
            None => revoke(
                connection,
                "account_id = ?1",
                params![account.as_bytes(), at.as_micros()],
            ),
            Some(client) => revoke(
                connection,
                "account_id = ?1 AND client_id = ?3",
                params![account.as_bytes(), at.as_micros(), &**client],
            ),
        },
        OAuthPart::NoteUses(uses) => note_uses(connection, uses),
        OAuthPart::Forget {
            now,
            unused_before,
            used_before,
            ended_before,
            limit,
        } => forget(
            connection,
            [*now, *unused_before, *used_before, *ended_before],
            *limit,
        ),
    }
}

fn refuse<T>(refusal: OAuthRefusal) -> Result<T, WriteError> {
    Err(WriteError::Refused(Refusal::OAuth(refusal)))
}

fn insert_client(
    connection: &Connection,
    client: &ClientRow,
    unused_max: u32,
) -> Result<(), WriteError> {
    if client.redirect_uris.iter().any(|uri| uri.contains('\n')) {
        return Err(WriteError::Refused(Refusal::Invalid(
            "an address has no line break",
        )));
    }
    connection
        .prepare_cached(
            "INSERT INTO oauth_clients (id, name, redirect_uris, refresh, document, created_at, used_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, redirect_uris = excluded.redirect_uris, refresh = excluded.refresh,
                                            used_at = max(coalesce(used_at, 0), coalesce(excluded.used_at, used_at, 0))",
        )?
        .execute(params![
            &*client.id,
            client.name.as_deref(),
            client.redirect_uris.join("\n"),
            client.refresh,
            client.document,
            client.created_at.as_micros(),
            client.used_at.map(Timestamp::as_micros),
        ])?;
    if client.used_at.is_none() {
        connection
            .prepare_cached(
                "DELETE FROM oauth_clients WHERE id IN
                 (SELECT id FROM oauth_clients WHERE used_at IS NULL ORDER BY created_at DESC LIMIT -1 OFFSET ?1)",
            )?
            .execute([unused_max])?;
    }
    Ok(())
}

fn insert_pending(
    connection: &Connection,
    pending: &PendingRow,
    pending_max: u32,
) -> Result<(), WriteError> {
    connection
        .prepare_cached(
            "INSERT INTO oauth_pending (id, client_id, client_name, refresh, document, redirect_uri, state, challenge, resource, asked,
                                        scopes, session, created_at, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14)",
        )?
        .execute(params![
            pending.id,
            &*pending.client,
            pending.client_name.as_deref(),
            pending.refresh,
            pending.document,
            &*pending.redirect_uri,
            pending.state.as_deref(),
            &*pending.challenge,
            pending.resource,
            pending.asked.as_deref(),
            pending.scopes,
            pending.session,
            pending.created_at.as_micros(),
            pending.expires_at.as_micros(),
        ])
        .map_err(|error| key_conflict(error, || Refusal::OAuth(OAuthRefusal::PendingElsewhere)))?;
    let found: u32 = connection
        .prepare_cached("SELECT count(*) FROM oauth_pending")?
        .query_row([], |row| row.get(0))?;
    let mut many = found.saturating_sub(pending_max);
    // Requests that no session has opened can be sent without credentials. They are evicted before those waiting for a decision; the newest
    // is always kept, or no new request would be accepted once all others have been opened.
    for which in ["session IS NULL AND id <> ?1", "id <> ?1"] {
        if many == 0 {
            break;
        }
        let gone = connection
            .prepare_cached(&format!(
                "DELETE FROM oauth_pending WHERE id IN (SELECT id FROM oauth_pending WHERE {which} ORDER BY created_at LIMIT ?2)"
            ))?
            .execute(params![pending.id, many])?;
        many = many.saturating_sub(u32::try_from(gone).unwrap_or(u32::MAX));
    }
    Ok(())
}

/// Refuses unless the request waits for a decision of this session.
fn pending_of(
    connection: &Connection,
    id: &[u8; 16],
    session: &[u8; 32],
    now: Timestamp,
) -> Result<(), WriteError> {
    let found = connection
        .prepare_cached("SELECT session, expires_at FROM oauth_pending WHERE id = ?1")?
        .query_row([id], |row| {
            Ok((
                row.get::<_, Option<[u8; 32]>>(0)?,
                row.get(1).map(Timestamp::from_micros)?,
            ))
        })
        .optional()?;
    match found {
        Some((_, expires_at)) if expires_at <= now => refuse(OAuthRefusal::PendingGone),
        Some((Some(owner), _)) if owner != *session => refuse(OAuthRefusal::PendingElsewhere),
        Some(_) => Ok(()),
        None => refuse(OAuthRefusal::PendingGone),
    }
}

fn insert_grant(connection: &Connection, grant: &GrantRow) -> Result<(), WriteError> {
    if !super::parts::account_exists(connection, grant.account)? {
        return Err(WriteError::Refused(Refusal::NoAccount(grant.account)));
    }
    connection
        .prepare_cached(
            "INSERT INTO oauth_grants (id, account_id, client_id, client_name, refresh, redirect_uri, resource, asked, scopes, created_at,
                                       used_at, ends_at, revoked_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13)",
        )?
        .execute(params![
            grant.id.as_bytes(),
            grant.account.as_bytes(),
            &*grant.client,
            grant.client_name.as_deref(),
            grant.refresh,
            &*grant.redirect_uri,
            grant.resource,
            grant.asked.as_deref(),
            grant.scopes,
            grant.created_at.as_micros(),
            grant.used_at.as_micros(),
            grant.ends_at.as_micros(),
            grant.revoked_at.map(Timestamp::as_micros),
        ])
        .map_err(|error| key_conflict(error, || Refusal::OAuth(OAuthRefusal::PendingGone)))?;
    Ok(())
}

fn take_code(
    connection: &Connection,
    hash: &[u8; 32],
    refusals_max: u32,
    at: Timestamp,
) -> Result<(), WriteError> {
    let found = connection
        .prepare_cached(
            "SELECT c.used_at, c.expires_at, c.refusals, g.revoked_at FROM oauth_codes c JOIN oauth_grants g ON g.id = c.grant_id
             WHERE c.hash = ?1",
        )?
        .query_row([hash], |row| {
            Ok((
                optional_time(row, 0)?,
                row.get(1).map(Timestamp::from_micros)?,
                row.get::<_, u32>(2)?,
                optional_time(row, 3)?,
            ))
        })
        .optional()?;
    match found {
        Some((Some(_), ..)) => refuse(OAuthRefusal::CodeUsed),
        Some((_, _, _, Some(_))) => refuse(OAuthRefusal::GrantRevoked),
        Some((_, expires_at, refusals, _)) if at < expires_at && refusals < refusals_max => {
            connection
                .prepare_cached("UPDATE oauth_codes SET used_at = ?2 WHERE hash = ?1")?
                .execute(params![hash, at.as_micros()])?;
            Ok(())
        }
        _ => refuse(OAuthRefusal::CodeDead),
    }
}

fn spend_refresh(
    connection: &Connection,
    hash: &[u8; 32],
    successor: &[u8; 32],
    grace: Duration,
    at: Timestamp,
) -> Result<(), WriteError> {
    let found = connection
        .prepare_cached(
            "SELECT r.spent_at, r.expires_at, g.revoked_at, s.spent_at IS NOT NULL FROM oauth_refresh r
             JOIN oauth_grants g ON g.id = r.grant_id LEFT JOIN oauth_refresh s ON s.hash = r.successor WHERE r.hash = ?1",
        )?
        .query_row([hash], |row| {
            Ok((
                optional_time(row, 0)?,
                row.get(1).map(Timestamp::from_micros)?,
                optional_time(row, 2)?,
                row.get::<_, bool>(3)?,
            ))
        })
        .optional()?;
    match found {
        Some((_, _, Some(_), _)) => refuse(OAuthRefusal::GrantRevoked),
        Some((Some(spent_at), _, _, successor_spent)) => {
            if successor_spent || at >= spent_at + grace {
                return refuse(OAuthRefusal::RefreshSpent);
            }
            Ok(())
        }
        Some((None, expires_at, _, _)) if at < expires_at => {
            connection
                .prepare_cached(
                    "UPDATE oauth_refresh SET spent_at = ?2, successor = ?3 WHERE hash = ?1",
                )?
                .execute(params![hash, at.as_micros(), successor])?;
            Ok(())
        }
        _ => refuse(OAuthRefusal::RefreshDead),
    }
}

/// Revokes the grants of a condition with their tokens. `?2` is the time.
fn revoke(
    connection: &Connection,
    which: &str,
    params: &[&dyn rusqlite::ToSql],
) -> Result<(), WriteError> {
    // Codes and refresh tokens need no revocation column of their own: both are refused with their grant.
    connection
        .prepare_cached(&format!(
            "UPDATE credentials SET revoked_at = ?2
             WHERE revoked_at IS NULL AND grant_id IN (SELECT id FROM oauth_grants WHERE {which})"
        ))?
        .execute(params)?;
    connection
        .prepare_cached(&format!(
            "UPDATE oauth_grants SET revoked_at = ?2 WHERE revoked_at IS NULL AND {which}"
        ))?
        .execute(params)?;
    Ok(())
}

fn note_uses(
    connection: &Connection,
    uses: &[(CredentialId, Timestamp)],
) -> Result<(), WriteError> {
    let mut credential = connection.prepare_cached(
        "UPDATE credentials SET used_at = max(coalesce(used_at, 0), ?2) WHERE id = ?1",
    )?;
    let mut grant = connection.prepare_cached(
        "UPDATE oauth_grants SET used_at = max(used_at, ?2) WHERE id = (SELECT grant_id FROM credentials WHERE id = ?1)",
    )?;
    for (id, at) in uses {
        credential.execute(params![id.as_bytes(), at.as_micros()])?;
        grant.execute(params![id.as_bytes(), at.as_micros()])?;
    }
    Ok(())
}

fn forget(
    connection: &Connection,
    [now, unused_before, used_before, ended_before]: [Timestamp; 4],
    limit: u32,
) -> Result<(), WriteError> {
    let by_age = [
        (
            "DELETE FROM oauth_pending WHERE id IN (SELECT id FROM oauth_pending WHERE expires_at <= ?1 LIMIT ?2)",
            now,
        ),
        (
            "DELETE FROM oauth_clients WHERE id IN
             (SELECT id FROM oauth_clients WHERE used_at IS NULL AND created_at < ?1 LIMIT ?2)",
            unused_before,
        ),
        (
            "DELETE FROM oauth_clients WHERE id IN
             (SELECT id FROM oauth_clients WHERE used_at IS NOT NULL AND used_at < ?1 LIMIT ?2)",
            used_before,
        ),
        (
            "DELETE FROM oauth_codes WHERE hash IN
             (SELECT c.hash FROM oauth_grants g JOIN oauth_codes c ON c.grant_id = g.id WHERE g.ends_at < ?1 LIMIT ?2)",
            ended_before,
        ),
        (
            "DELETE FROM oauth_refresh WHERE hash IN
             (SELECT r.hash FROM oauth_grants g JOIN oauth_refresh r ON r.grant_id = g.id WHERE g.ends_at < ?1 LIMIT ?2)",
            ended_before,
        ),
        // Grants are deleted last, when no row refers to them.
        (
            "DELETE FROM oauth_grants WHERE id IN
             (SELECT g.id FROM oauth_grants g WHERE g.ends_at < ?1
                AND NOT EXISTS (SELECT 1 FROM oauth_codes c WHERE c.grant_id = g.id)
                AND NOT EXISTS (SELECT 1 FROM oauth_refresh r WHERE r.grant_id = g.id) LIMIT ?2)",
            ended_before,
        ),
    ];
    for (sql, before) in by_age {
        connection
            .prepare_cached(sql)?
            .execute(params![before.as_micros(), limit])?;
    }
    connection
        .prepare_cached(
            "DELETE FROM credentials WHERE hash IN (SELECT hash FROM credentials WHERE expires_at < ?1 AND kind = ?3 LIMIT ?2)",
        )?
        .execute(params![ended_before.as_micros(), limit, ACCESS_TOKEN])?;
    Ok(())
}

fn grant(row: &Row<'_>, first: usize) -> rusqlite::Result<GrantRow> {
    Ok(GrantRow {
        id: GrantId::from_bytes(row.get(first)?),
        account: AccountId::from_bytes(row.get(first + 1)?),
        client: row.get(first + 2)?,
        client_name: row.get(first + 3)?,
        refresh: row.get(first + 4)?,
        redirect_uri: row.get(first + 5)?,
        resource: row.get(first + 6)?,
        asked: row.get(first + 7)?,
        scopes: row.get(first + 8)?,
        created_at: row.get(first + 9).map(Timestamp::from_micros)?,
        used_at: row.get(first + 10).map(Timestamp::from_micros)?,
        ends_at: row.get(first + 11).map(Timestamp::from_micros)?,
        revoked_at: optional_time(row, first + 12)?,
    })
}

impl<W> OAuthRead for SqliteStore<W> {
    fn oauth_client(&self, id: &str) -> Result<Option<ClientRow>, ReadError> {
        self.with("an OAuth client", |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT id, name, redirect_uris, refresh, document, created_at, used_at FROM oauth_clients WHERE id = ?1",
                )?
                .query_row([id], |row| {
                    Ok(ClientRow {
                        id: row.get(0)?,
                        name: row.get(1)?,
                        redirect_uris: row.get_ref(2)?.as_str()?.lines().map(Arc::from).collect(),
                        refresh: row.get(3)?,
                        document: row.get(4)?,
                        created_at: row.get(5).map(Timestamp::from_micros)?,
                        used_at: optional_time(row, 6)?,
                    })
                })
                .optional()?)
        })
    }

    fn oauth_pending(&self, id: &[u8; 16]) -> Result<Option<PendingRow>, ReadError> {
        self.with("a request for authorization", |connection| {
            Ok(connection
                .prepare_cached(
                    "SELECT id, client_id, client_name, refresh, document, redirect_uri, state, challenge, resource, asked, scopes, session,
                            created_at, expires_at FROM oauth_pending WHERE id = ?1",
                )?
                .query_row([id], |row| {
                    Ok(PendingRow {
                        id: row.get(0)?,
                        client: row.get(1)?,
                        client_name: row.get(2)?,
                        refresh: row.get(3)?,
                        document: row.get(4)?,
                        redirect_uri: row.get(5)?,
                        state: row.get(6)?,
                        challenge: row.get(7)?,
                        resource: row.get(8)?,
                        asked: row.get(9)?,
                        scopes: row.get(10)?,
                        session: row.get(11)?,
                        created_at: row.get(12).map(Timestamp::from_micros)?,
                        expires_at: row.get(13).map(Timestamp::from_micros)?,
                    })
                })
                .optional()?)
        })
    }

    fn oauth_code(&self, hash: &[u8; 32]) -> Result<Option<CodeRow>, ReadError> {
        self.with("an authorization code", |connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "SELECT c.challenge, c.refusals, c.expires_at, c.used_at, {GRANT_COLUMNS}
                     FROM oauth_codes c JOIN oauth_grants g ON g.id = c.grant_id WHERE c.hash = ?1"
                ))?
                .query_row([hash], |row| {
                    Ok(CodeRow {
                        challenge: row.get(0)?,
                        refusals: row.get(1)?,
                        expires_at: row.get(2).map(Timestamp::from_micros)?,
                        used_at: optional_time(row, 3)?,
                        grant: grant(row, 4)?,
                    })
                })
                .optional()?)
        })
    }

    fn oauth_refresh(&self, hash: &[u8; 32]) -> Result<Option<RefreshRow>, ReadError> {
        self.with("a refresh token", |connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "SELECT r.expires_at, r.spent_at, s.spent_at IS NOT NULL, {GRANT_COLUMNS}
                     FROM oauth_refresh r JOIN oauth_grants g ON g.id = r.grant_id LEFT JOIN oauth_refresh s ON s.hash = r.successor
                     WHERE r.hash = ?1"
                ))?
                .query_row([hash], |row| {
                    Ok(RefreshRow {
                        expires_at: row.get(0).map(Timestamp::from_micros)?,
                        spent_at: optional_time(row, 1)?,
                        successor_spent: row.get(2)?,
                        grant: grant(row, 3)?,
                    })
                })
                .optional()?)
        })
    }

    fn oauth_grant(&self, id: GrantId) -> Result<Option<GrantRow>, ReadError> {
        self.with("a grant", |connection| {
            Ok(connection
                .prepare_cached(&format!(
                    "SELECT {GRANT_COLUMNS} FROM oauth_grants g WHERE g.id = ?1"
                ))?
                .query_row([id.as_bytes()], |row| grant(row, 0))
                .optional()?)
        })
    }

    fn oauth_grants(&self, account: AccountId, now: Timestamp) -> Result<Vec<GrantRow>, ReadError> {
        self.with("grants", |connection| {
            let mut found = Vec::new();
            each_row(
                connection,
                &format!(
                    "SELECT {GRANT_COLUMNS} FROM oauth_grants g
                     WHERE g.account_id = ?1 AND g.revoked_at IS NULL AND g.ends_at > ?2 ORDER BY g.created_at, g.id"
                ),
                params![account.as_bytes(), now.as_micros()],
                |row| grant(row, 0).map_err(RowError::from),
                &mut |row| found.push(row),
            )?;
            Ok(found)
        })
    }
}
