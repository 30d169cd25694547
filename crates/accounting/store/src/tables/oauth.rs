//! OAuth: clients, requests, grants, codes and refresh tokens. Rare: the statements are prepared on use.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, GrantId};

use super::changed;
use super::parts::require_account;
use crate::engine::{Dialect, RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::oauth::{ClientRow, CodeRow, GrantRow, OAuthPart, OAuthRefusal, PendingRow, RefreshRow};
use crate::reader::Reader;

/// The kind of access tokens among the credentials ([`crate::CredentialKind::AccessToken`]).
const ACCESS_TOKEN: i64 = 2;

const GRANT_COLUMNS: &str =
    "g.id, g.account_id, g.client_id, g.client_name, g.refresh, g.redirect_uri, g.resource, g.asked, g.scopes, g.created_at, g.used_at,
     g.ends_at, g.revoked_at";

pub(crate) fn write(connection: &dyn Sql, part: &OAuthPart) -> Result<(), WriteError> {
    match part {
        OAuthPart::InsertClient {
            client,
            network,
            unused_max,
        } => insert_client(connection, client, network.as_ref(), *unused_max),
        OAuthPart::UseClient { id, at } => {
            let rows = connection.execute(
                "UPDATE oauth_clients SET used_at = CASE WHEN used_at > ?2 THEN used_at ELSE ?2 END WHERE id = ?1",
                values![id, at],
            )?;
            changed(rows, || Refusal::OAuth(OAuthRefusal::NoClient))
        }
        OAuthPart::InsertPending {
            pending,
            pending_max,
        } => insert_pending(connection, pending, *pending_max),
        OAuthPart::BindPending { id, session, now } => {
            pending_of(connection, id, session, *now)?;
            connection.execute(
                "UPDATE oauth_pending SET session = ?2 WHERE id = ?1",
                values![id, session],
            )?;
            Ok(())
        }
        OAuthPart::TakePending { id, session, now } => {
            pending_of(connection, id, session, *now)?;
            connection.execute("DELETE FROM oauth_pending WHERE id = ?1", values![id])?;
            Ok(())
        }
        OAuthPart::InsertGrant(grant) => insert_grant(connection, grant),
        OAuthPart::InsertCode {
            hash,
            grant,
            challenge,
            expires_at,
        } => {
            let sql = "INSERT INTO oauth_codes (hash, grant_id, challenge, expires_at) VALUES (?1, ?2, ?3, ?4) ON CONFLICT DO NOTHING";
            let inserted = connection.execute(sql, values![hash, grant, challenge, expires_at])?;
            changed(inserted, || Refusal::OAuth(OAuthRefusal::CodeUsed))
        }
        OAuthPart::RefuseCode { hash } => {
            connection.execute(
                "UPDATE oauth_codes SET refusals = refusals + 1 WHERE hash = ?1",
                values![hash],
            )?;
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
            let sql = "INSERT INTO oauth_refresh (hash, grant_id, expires_at) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";
            connection.execute(sql, values![hash, grant, expires_at])?;
            Ok(())
        }
        OAuthPart::SpendRefresh {
            hash,
            successor,
            grace,
            at,
        } => spend_refresh(connection, hash, successor, *grace, *at),
        OAuthPart::ProlongGrant { id, ends_at } => {
            let sql = "UPDATE oauth_grants SET ends_at = CASE WHEN ends_at > ?2 THEN ends_at ELSE ?2 END WHERE id = ?1";
            connection.execute(sql, values![id, ends_at])?;
            Ok(())
        }
        OAuthPart::RevokeGrant { id, at, .. } => revoke(connection, "id = ?1", values![id, at]),
        OAuthPart::RevokeGrants {
            account,
            client,
            at,
        } => match client {
            None => revoke(connection, "account_id = ?1", values![account, at]),
            Some(client) => revoke(
                connection,
                "account_id = ?1 AND client_id = ?3",
                values![account, at, client],
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

/// A time that may be absent.
type Time = Option<Timestamp>;

fn refuse<T>(refusal: OAuthRefusal) -> Result<T, WriteError> {
    Err(WriteError::Refused(Refusal::OAuth(refusal)))
}

fn insert_client(
    connection: &dyn Sql,
    client: &ClientRow,
    network: Option<&[u8; 16]>,
    unused_max: u32,
) -> Result<(), WriteError> {
    if client.redirect_uris.iter().any(|uri| uri.contains('\n')) {
        return Err(WriteError::Refused(Refusal::Invalid(
            "an address has no line break",
        )));
    }
    let sql = "INSERT INTO oauth_clients (id, name, redirect_uris, refresh, document, created_at, used_at, network)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
             ON CONFLICT (id) DO UPDATE SET name = excluded.name, redirect_uris = excluded.redirect_uris, refresh = excluded.refresh,
                                            used_at = CASE WHEN oauth_clients.used_at > excluded.used_at OR excluded.used_at IS NULL
                                                           THEN coalesce(oauth_clients.used_at, 0) ELSE excluded.used_at END";
    connection.execute(
        sql,
        values![
            client.id,
            client.name,
            client.redirect_uris.join("\n"),
            client.refresh,
            client.document,
            client.created_at,
            client.used_at,
            network,
        ],
    )?;
    if client.used_at.is_none() {
        drop_unused_clients(connection, client, unused_max)?;
    }
    Ok(())
}

/// Deletes clients without a grant above the maximum. `nth` counts the clients of a network from the newest on: the highest `nth` is the
/// oldest client of the network with the most clients. The new client and clients with a request that waits for a decision are kept. The
/// number of clients may therefore exceed the maximum, by at most the number of kept requests.
fn drop_unused_clients(
    connection: &dyn Sql,
    new: &ClientRow,
    unused_max: u32,
) -> Result<(), WriteError> {
    let unused = connection.number(
        "SELECT count(*) FROM oauth_clients WHERE used_at IS NULL",
        values![],
    )?;
    let many = unused - i64::from(unused_max);
    if many <= 0 {
        return Ok(());
    }
    let sql = "DELETE FROM oauth_clients WHERE id IN
         (SELECT id FROM
            (SELECT id, created_at, row_number() OVER (PARTITION BY network ORDER BY created_at DESC, id) AS nth
             FROM oauth_clients WHERE used_at IS NULL) AS c
          WHERE id <> ?1 AND id NOT IN (SELECT client_id FROM oauth_pending WHERE expires_at > ?2)
          ORDER BY nth DESC, created_at, id LIMIT ?3)";
    connection.execute(sql, values![new.id, new.created_at, many])?;
    Ok(())
}

fn insert_pending(
    connection: &dyn Sql,
    pending: &PendingRow,
    pending_max: u32,
) -> Result<(), WriteError> {
    let sql = "INSERT INTO oauth_pending (id, client_id, client_name, refresh, document, redirect_uri, state, challenge, resource, asked,
                                        scopes, session, created_at, expires_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14) ON CONFLICT DO NOTHING";
    let inserted = connection.execute(
        sql,
        values![
            pending.id,
            pending.client,
            pending.client_name,
            pending.refresh,
            pending.document,
            pending.redirect_uri,
            pending.state,
            pending.challenge,
            pending.resource,
            pending.asked,
            pending.scopes,
            pending.session,
            pending.created_at,
            pending.expires_at,
        ],
    )?;
    changed(inserted, || Refusal::OAuth(OAuthRefusal::PendingElsewhere))?;
    let found = connection.number("SELECT count(*) FROM oauth_pending", values![])?;
    let mut many = found - i64::from(pending_max);
    // Requests without a session can be sent without credentials. Such requests are evicted before requests that wait for a decision. The
    // newest request is always kept: otherwise no new request would be accepted once every other request has been opened.
    for which in ["session IS NULL AND id <> ?1", "id <> ?1"] {
        if many <= 0 {
            break;
        }
        let sql = format!(
            "DELETE FROM oauth_pending WHERE id IN (SELECT id FROM oauth_pending WHERE {which} ORDER BY created_at LIMIT ?2)"
        );
        let gone = connection.execute(&sql, values![pending.id, many])?;
        many -= i64::try_from(gone).unwrap_or(i64::MAX);
    }
    Ok(())
}

/// Refuses unless the request waits for a decision of the session.
fn pending_of(
    connection: &dyn Sql,
    id: &[u8; 16],
    session: &[u8; 32],
    now: Timestamp,
) -> Result<(), WriteError> {
    let found = connection.first(
        "SELECT session, expires_at FROM oauth_pending WHERE id = ?1",
        values![id],
        |row| Ok((row.get::<Option<[u8; 32]>>(0)?, row.get::<Timestamp>(1)?)),
    )?;
    match found {
        Some((_, expires_at)) if expires_at <= now => refuse(OAuthRefusal::PendingGone),
        Some((Some(owner), _)) if owner != *session => refuse(OAuthRefusal::PendingElsewhere),
        Some(_) => Ok(()),
        None => refuse(OAuthRefusal::PendingGone),
    }
}

fn insert_grant(connection: &dyn Sql, grant: &GrantRow) -> Result<(), WriteError> {
    require_account(connection, grant.account)?;
    let sql = "INSERT INTO oauth_grants (id, account_id, client_id, client_name, refresh, redirect_uri, resource, asked, scopes, created_at,
                                       used_at, ends_at, revoked_at)
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13) ON CONFLICT DO NOTHING";
    let inserted = connection.execute(
        sql,
        values![
            grant.id,
            grant.account,
            grant.client,
            grant.client_name,
            grant.refresh,
            grant.redirect_uri,
            grant.resource,
            grant.asked,
            grant.scopes,
            grant.created_at,
            grant.used_at,
            grant.ends_at,
            grant.revoked_at,
        ],
    )?;
    changed(inserted, || Refusal::OAuth(OAuthRefusal::PendingGone))
}

fn take_code(
    connection: &dyn Sql,
    hash: &[u8; 32],
    refusals_max: u32,
    at: Timestamp,
) -> Result<(), WriteError> {
    let sql = "SELECT c.used_at, c.expires_at, c.refusals, g.revoked_at FROM oauth_codes c JOIN oauth_grants g ON g.id = c.grant_id
             WHERE c.hash = ?1";
    let found = connection.first(sql, values![hash], |row| {
        Ok((
            row.get::<Time>(0)?,
            row.get(1)?,
            row.get::<u32>(2)?,
            row.get::<Time>(3)?,
        ))
    })?;
    match found {
        Some((Some(_), ..)) => refuse(OAuthRefusal::CodeUsed),
        Some((_, _, _, Some(_))) => refuse(OAuthRefusal::GrantRevoked),
        Some((_, expires_at, refusals, _)) if at < expires_at && refusals < refusals_max => {
            connection.execute(
                "UPDATE oauth_codes SET used_at = ?2 WHERE hash = ?1",
                values![hash, at],
            )?;
            Ok(())
        }
        _ => refuse(OAuthRefusal::CodeDead),
    }
}

fn spend_refresh(
    connection: &dyn Sql,
    hash: &[u8; 32],
    successor: &[u8; 32],
    grace: Duration,
    at: Timestamp,
) -> Result<(), WriteError> {
    let sql = "SELECT r.spent_at, r.expires_at, g.revoked_at, s.spent_at IS NOT NULL FROM oauth_refresh r
             JOIN oauth_grants g ON g.id = r.grant_id LEFT JOIN oauth_refresh s ON s.hash = r.successor WHERE r.hash = ?1";
    let found = connection.first(sql, values![hash], |row| {
        Ok((
            row.get::<Time>(0)?,
            row.get(1)?,
            row.get::<Time>(2)?,
            row.get::<bool>(3)?,
        ))
    })?;
    match found {
        Some((_, _, Some(_), _)) => refuse(OAuthRefusal::GrantRevoked),
        Some((Some(spent_at), _, _, successor_spent)) => {
            if successor_spent || at >= spent_at + grace {
                return refuse(OAuthRefusal::RefreshSpent);
            }
            Ok(())
        }
        Some((None, expires_at, _, _)) if at < expires_at => {
            connection.execute(
                "UPDATE oauth_refresh SET spent_at = ?2, successor = ?3 WHERE hash = ?1",
                values![hash, at, successor],
            )?;
            Ok(())
        }
        _ => refuse(OAuthRefusal::RefreshDead),
    }
}

/// Revokes the grants of a condition with their tokens. `?2` is the time.
fn revoke(connection: &dyn Sql, which: &str, values: &[Value<'_>]) -> Result<(), WriteError> {
    // Codes and refresh tokens need no revocation column: both are refused with their grant.
    connection.execute(
        &format!(
            "UPDATE credentials SET revoked_at = ?2
             WHERE revoked_at IS NULL AND grant_id IN (SELECT id FROM oauth_grants WHERE {which})"
        ),
        values,
    )?;
    connection.execute(
        &format!("UPDATE oauth_grants SET revoked_at = ?2 WHERE revoked_at IS NULL AND {which}"),
        values,
    )?;
    Ok(())
}

fn note_uses(connection: &dyn Sql, uses: &[(CredentialId, Timestamp)]) -> Result<(), WriteError> {
    let statements = match connection.dialect() {
        Dialect::Sqlite => [
            "UPDATE credentials SET used_at = CASE WHEN used_at > ?2 THEN used_at ELSE ?2 END WHERE id = ?1",
            "UPDATE oauth_grants SET used_at = CASE WHEN used_at > ?2 THEN used_at ELSE ?2 END
             WHERE id = (SELECT grant_id FROM credentials WHERE id = ?1)",
        ],
        // Many rows by one statement: every minute has a row for every credential in use.
        Dialect::Postgres => [
            "UPDATE credentials AS c SET used_at = greatest(c.used_at, v.at)
             FROM (VALUES (CAST(?1 AS BYTEA), CAST(?2 AS BIGINT))) AS v (id, at) WHERE c.id = v.id",
            "UPDATE oauth_grants AS g SET used_at = greatest(g.used_at, u.at)
             FROM (SELECT c.grant_id, MAX(v.at) AS at FROM (VALUES (CAST(?1 AS BYTEA), CAST(?2 AS BIGINT))) AS v (id, at)
                   JOIN credentials c ON c.id = v.id WHERE c.grant_id IS NOT NULL GROUP BY c.grant_id ORDER BY c.grant_id) AS u
             WHERE g.id = u.grant_id",
        ],
    };
    // Nodes lock credentials in this order. A deadlock, with a revocation or over grants, is retried.
    let mut uses = uses.to_vec();
    uses.sort_unstable();
    for sql in statements {
        connection.execute_rows(sql, &mut |run| {
            uses.iter().try_for_each(|(id, at)| run(values![id, at]))
        })?;
    }
    Ok(())
}

fn forget(
    connection: &dyn Sql,
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
             (SELECT id FROM oauth_clients WHERE used_at IS NULL AND created_at < ?1
                AND id NOT IN (SELECT client_id FROM oauth_pending) LIMIT ?2)",
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
        // Grants are deleted last, when no row refers to the grant.
        (
            "DELETE FROM oauth_grants WHERE id IN
             (SELECT g.id FROM oauth_grants g WHERE g.ends_at < ?1
                AND NOT EXISTS (SELECT 1 FROM oauth_codes c WHERE c.grant_id = g.id)
                AND NOT EXISTS (SELECT 1 FROM oauth_refresh r WHERE r.grant_id = g.id) LIMIT ?2)",
            ended_before,
        ),
    ];
    for (sql, before) in by_age {
        connection.execute(sql, values![before, limit])?;
    }
    let sql = "DELETE FROM credentials WHERE hash IN (SELECT hash FROM credentials WHERE expires_at < ?1 AND kind = ?3 LIMIT ?2)";
    connection.execute(sql, values![ended_before, limit, ACCESS_TOKEN])?;
    Ok(())
}

fn grant(row: &dyn SqlRow, first: usize) -> Result<GrantRow, RowError> {
    Ok(GrantRow {
        id: row.get(first)?,
        account: row.get(first + 1)?,
        client: row.get(first + 2)?,
        client_name: row.get(first + 3)?,
        refresh: row.get(first + 4)?,
        redirect_uri: row.get(first + 5)?,
        resource: row.get(first + 6)?,
        asked: row.get(first + 7)?,
        scopes: row.get(first + 8)?,
        created_at: row.get(first + 9)?,
        used_at: row.get(first + 10)?,
        ends_at: row.get(first + 11)?,
        revoked_at: row.get(first + 12)?,
    })
}

impl Reader {
    /// A client.
    pub fn oauth_client(&self, id: &str) -> Result<Option<ClientRow>, ReadError> {
        self.with("an OAuth client", |connection| {
            let sql = "SELECT id, name, redirect_uris, refresh, document, created_at, used_at FROM oauth_clients WHERE id = ?1";
            connection.first(sql, values![id], |row| {
                    Ok(ClientRow {
                        id: row.get(0)?,
                        name: row.get(1)?,
                        redirect_uris: row.get::<&str>(2)?.lines().map(Arc::from).collect(),
                        refresh: row.get(3)?,
                        document: row.get(4)?,
                        created_at: row.get(5)?,
                        used_at: row.get(6)?,
                    })
                })
        })
    }

    /// An undecided request, expired or not.
    pub fn oauth_pending(&self, id: &[u8; 16]) -> Result<Option<PendingRow>, ReadError> {
        self.with("a request for authorization", |connection| {
            let sql = "SELECT id, client_id, client_name, refresh, document, redirect_uri, state, challenge, resource, asked, scopes,
                            session, created_at, expires_at FROM oauth_pending WHERE id = ?1";
            connection.first(sql, values![id], |row| {
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
                        created_at: row.get(12)?,
                        expires_at: row.get(13)?,
                    })
                })
        })
    }

    /// The code with the digest, even if used or expired.
    pub fn oauth_code(&self, hash: &[u8; 32]) -> Result<Option<CodeRow>, ReadError> {
        self.with("an authorization code", |connection| {
            connection.first(
                &format!(
                    "SELECT c.challenge, c.refusals, c.expires_at, c.used_at, {GRANT_COLUMNS}
                     FROM oauth_codes c JOIN oauth_grants g ON g.id = c.grant_id WHERE c.hash = ?1"
                ),
                values![hash],
                |row| {
                    Ok(CodeRow {
                        challenge: row.get(0)?,
                        refusals: row.get(1)?,
                        expires_at: row.get(2)?,
                        used_at: row.get(3)?,
                        grant: grant(row, 4)?,
                    })
                },
            )
        })
    }

    /// The refresh token with the digest, even if spent or expired.
    pub fn oauth_refresh(&self, hash: &[u8; 32]) -> Result<Option<RefreshRow>, ReadError> {
        self.with("a refresh token", |connection| {
            let sql = format!(
                    "SELECT r.expires_at, r.spent_at, s.spent_at IS NOT NULL, {GRANT_COLUMNS}
                     FROM oauth_refresh r JOIN oauth_grants g ON g.id = r.grant_id LEFT JOIN oauth_refresh s ON s.hash = r.successor
                     WHERE r.hash = ?1"
                );
            connection.first(&sql, values![hash], |row| {
                    Ok(RefreshRow {
                        expires_at: row.get(0)?,
                        spent_at: row.get(1)?,
                        successor_spent: row.get(2)?,
                        grant: grant(row, 3)?,
                    })
                })
        })
    }

    /// A grant, even if revoked or expired.
    pub fn oauth_grant(&self, id: GrantId) -> Result<Option<GrantRow>, ReadError> {
        self.with("a grant", |connection| {
            connection.first(
                &format!("SELECT {GRANT_COLUMNS} FROM oauth_grants g WHERE g.id = ?1"),
                values![id],
                |row| grant(row, 0),
            )
        })
    }

    /// The names of the clients of an account by client id, including clients of ended and revoked grants. The client's newest name.
    pub fn oauth_client_names(
        &self,
        account: AccountId,
    ) -> Result<HashMap<Arc<str>, Arc<str>>, ReadError> {
        self.with("names of clients", |connection| {
            let sql = "SELECT client_id, client_name FROM oauth_grants WHERE account_id = ?1 AND client_name IS NOT NULL ORDER BY created_at";
            let names = connection.all(sql, values![account], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })?;
            Ok(names.into_iter().collect())
        })
    }

    /// The grants of an account that are valid at `now`, oldest first.
    pub fn oauth_grants(
        &self,
        account: AccountId,
        now: Timestamp,
    ) -> Result<Vec<GrantRow>, ReadError> {
        self.with("grants", |connection| {
            let sql = format!(
                "SELECT {GRANT_COLUMNS} FROM oauth_grants g
                 WHERE g.account_id = ?1 AND g.revoked_at IS NULL AND g.ends_at > ?2 ORDER BY g.created_at, g.id"
            );
            connection.all(&sql, values![account, now], |row| grant(row, 0))
        })
    }
}
