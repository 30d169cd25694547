//! Sign-in: sessions, one-time codes, send limits, messages. Rare, so its statements are prepared on use.

use rusqlite::{Connection, OptionalExtension, Row, params};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, LoginId, Micros};

use super::columns::{optional_time, word};
use super::parts::account_exists;
use super::read::SqliteStore;
use crate::codes::{AccountStatus, CodePurpose, LoginKind};
use crate::engine::{RowError, WriteError};
use crate::error::{ReadError, Refusal};
use crate::signin::{
    Draft, FailureRule, LoginCodeId, LoginCodeRow, MessageId, MessageRow, NewLoginCode, NewMessage,
    NewSession, SendLimit, SessionRow, SigninPart, SigninRead,
};

/// Stored with the failures of a key that is not locked out; the column is not nullable.
const NOT_BARRED: Timestamp = Timestamp::UNIX_EPOCH;

pub(crate) fn write(connection: &Connection, part: &SigninPart) -> Result<(), WriteError> {
    match part {
        SigninPart::StartSession { session, replaces } => {
            start_session(connection, session, replaces.as_ref())
        }
        SigninPart::RequireSession { hash, at } => require_session(connection, hash, *at),
        SigninPart::SeeSession { hash, at } => run(
            connection,
            "UPDATE sessions SET seen_at = ?2 WHERE hash = ?1",
            params![hash, at.as_micros()],
        ),
        SigninPart::KeepDraft { hash, draft } => run(
            connection,
            "UPDATE sessions SET draft_path = ?2, draft = ?3 WHERE hash = ?1",
            params![
                hash,
                draft.as_ref().map(|draft| &draft.path),
                draft.as_ref().map(|draft| &draft.form)
            ],
        ),
        SigninPart::EndSession { hash } => run(
            connection,
            "DELETE FROM sessions WHERE hash = ?1",
            params![hash],
        ),
        SigninPart::EndSessions { account } => run(
            connection,
            "DELETE FROM sessions WHERE account_id = ?1",
            params![account.as_bytes()],
        ),
        SigninPart::CountSend { limits, at } => count_send(connection, limits, *at),
        SigninPart::RecordSignIn { key, at } => run(
            connection,
            "INSERT OR REPLACE INTO login_networks (key, at) VALUES (?1, ?2)",
            params![key, at.as_micros()],
        ),
        SigninPart::PutCode(code) => put_code(connection, code),
        SigninPart::TryCode { id, tries_max, at } => live(
            connection,
            "UPDATE login_codes SET attempts = attempts + 1 WHERE id = ?1 AND attempts < ?2 AND expires_at > ?3",
            params![id.0, tries_max, at.as_micros()],
        ),
        SigninPart::SpendCode { id } => live(
            connection,
            "DELETE FROM login_codes WHERE id = ?1",
            params![id.0],
        ),
        SigninPart::CountFailure { key, rule, at } => count_failure(connection, key, *rule, *at),
        SigninPart::ForgetFailures { key } => run(
            connection,
            "DELETE FROM login_failures WHERE key = ?1",
            params![key],
        ),
        SigninPart::QueueMessage(message) => queue_message(connection, message),
        SigninPart::DropMessage { id } => run(
            connection,
            "DELETE FROM outbox WHERE id = ?1",
            params![id.0],
        ),
        SigninPart::DelayMessage { id, next_at } => run(
            connection,
            "UPDATE outbox SET tries = tries + 1, next_at = ?2 WHERE id = ?1",
            params![id.0, next_at.as_micros()],
        ),
        SigninPart::OweGrant {
            account,
            amount,
            at,
        } => run(
            connection,
            "INSERT INTO signup_grants (account_id, amount, at) VALUES (?1, ?2, ?3)",
            params![account.as_bytes(), amount.get(), at.as_micros()],
        ),
        SigninPart::GrantBooked { account } => run(
            connection,
            "DELETE FROM signup_grants WHERE account_id = ?1",
            params![account.as_bytes()],
        ),
        SigninPart::Sweep {
            now,
            idle_before,
            sent_before,
            signed_in_before,
            limit,
        } => {
            sweep(connection, *now, *idle_before, *sent_before, *limit)?;
            run(
                connection,
                "DELETE FROM login_networks WHERE key IN (SELECT key FROM login_networks WHERE at <= ?1 LIMIT ?2)",
                params![signed_in_before.as_micros(), limit],
            )
        }
    }
}

fn run(
    connection: &Connection,
    statement: &str,
    values: impl rusqlite::Params,
) -> Result<(), WriteError> {
    connection.prepare_cached(statement)?.execute(values)?;
    Ok(())
}

/// Runs a statement that has to change a live code.
fn live(
    connection: &Connection,
    statement: &str,
    values: impl rusqlite::Params,
) -> Result<(), WriteError> {
    match connection.prepare_cached(statement)?.execute(values)? {
        0 => Err(WriteError::Refused(Refusal::CodeUnusable)),
        _ => Ok(()),
    }
}

fn require_session(
    connection: &Connection,
    hash: &[u8; 32],
    at: Timestamp,
) -> Result<(), WriteError> {
    let lasts = connection
        .prepare_cached("SELECT 1 FROM sessions WHERE hash = ?1 AND expires_at > ?2")?
        .exists(params![hash, at.as_micros()])?;
    match lasts {
        true => Ok(()),
        false => Err(WriteError::Refused(Refusal::SessionEnded)),
    }
}

fn start_session(
    connection: &Connection,
    session: &NewSession,
    replaces: Option<&[u8; 32]>,
) -> Result<(), WriteError> {
    if !account_exists(connection, session.account)? {
        return Err(WriteError::Refused(Refusal::NoAccount(session.account)));
    }
    if let Some(hash) = replaces {
        run(
            connection,
            "DELETE FROM sessions WHERE hash = ?1",
            params![hash],
        )?;
    }
    run(
        connection,
        "INSERT INTO sessions (hash, account_id, login_id, started_at, confirmed_at, seen_at, expires_at, draft_path, draft)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            session.hash,
            session.account.as_bytes(),
            session.login.as_bytes(),
            session.started_at.as_micros(),
            session.confirmed_at.as_micros(),
            session.seen_at.as_micros(),
            session.expires_at.as_micros(),
            session.draft.as_ref().map(|draft| &draft.path),
            session.draft.as_ref().map(|draft| &draft.form),
        ],
    )
}

fn count_send(
    connection: &Connection,
    limits: &[SendLimit],
    at: Timestamp,
) -> Result<(), WriteError> {
    let mut wait_until = None;
    for limit in limits {
        for (most, window) in &limit.rules {
            // The one whose expiry from the window frees the next slot.
            let in_the_way = connection
                .prepare_cached(
                    "SELECT at FROM login_sends WHERE key = ?1 AND at > ?2 ORDER BY at DESC LIMIT 1 OFFSET ?3",
                )?
                .query_row(params![limit.key, (at - *window).as_micros(), most - 1], |row| {
                    row.get(0).map(Timestamp::from_micros)
                })
                .optional()?;
            let until = in_the_way.map(|first| first + *window);
            wait_until = wait_until.max(until);
        }
    }
    if let Some(until) = wait_until {
        return Err(WriteError::Refused(Refusal::TooMany { until }));
    }
    for limit in limits {
        run(
            connection,
            "INSERT INTO login_sends (key, at) VALUES (?1, ?2)",
            params![limit.key, at.as_micros()],
        )?;
    }
    Ok(())
}

fn put_code(connection: &Connection, code: &NewLoginCode) -> Result<(), WriteError> {
    run(
        connection,
        "INSERT OR REPLACE INTO login_codes (id, session_hash, purpose, kind, address, login_id, code_hash, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        params![
            code.id.0,
            code.session_hash,
            code.purpose.code(),
            code.kind.code(),
            &*code.address,
            code.login.as_ref().map(LoginId::as_bytes),
            code.code_hash,
            code.created_at.as_micros(),
            code.expires_at.as_micros(),
        ],
    )
}

fn count_failure(
    connection: &Connection,
    key: &[u8; 32],
    rule: FailureRule,
    at: Timestamp,
) -> Result<(), WriteError> {
    let earlier: Option<(i64, Timestamp, Timestamp)> = connection
        .prepare_cached("SELECT failures, since, until FROM login_failures WHERE key = ?1")?
        .query_row([key], |row| {
            Ok((
                row.get(0)?,
                row.get(1).map(Timestamp::from_micros)?,
                row.get(2).map(Timestamp::from_micros)?,
            ))
        })
        .optional()?;
    // A key that is or was recently locked out is not reset by the end of the window.
    let (failures, since) = match earlier {
        Some((failures, since, until)) if at < since.max(until) + rule.window => {
            (failures + 1, since)
        }
        _ => (1, at),
    };
    let over = failures - rule.free;
    let until = if over > 0 {
        let doublings = (over - 1).min(40);
        let delay = (0..doublings).fold(rule.delay, |delay, _| delay.saturating_mul(2));
        at + delay.min(rule.delay_max)
    } else {
        NOT_BARRED
    };
    run(
        connection,
        "INSERT OR REPLACE INTO login_failures (key, failures, since, until) VALUES (?1, ?2, ?3, ?4)",
        params![key, failures, since.as_micros(), until.as_micros()],
    )
}

fn queue_message(connection: &Connection, message: &NewMessage) -> Result<(), WriteError> {
    run(
        connection,
        "INSERT INTO outbox (id, kind, recipient, purpose, sealed, created_at, next_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7)",
        params![
            message.id.0,
            message.kind.code(),
            &*message.recipient,
            message.purpose.code(),
            message.sealed,
            message.created_at.as_micros(),
            message.expires_at.as_micros(),
        ],
    )
}

fn sweep(
    connection: &Connection,
    now: Timestamp,
    idle_before: Timestamp,
    sent_before: Timestamp,
    limit: i64,
) -> Result<(), WriteError> {
    run(
        connection,
        "DELETE FROM sessions WHERE hash IN
           (SELECT hash FROM sessions WHERE expires_at <= ?1 OR seen_at <= ?2 LIMIT ?3)",
        params![now.as_micros(), idle_before.as_micros(), limit],
    )?;
    for statement in [
        "DELETE FROM login_codes WHERE id IN (SELECT id FROM login_codes WHERE expires_at <= ?1 LIMIT ?2)",
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE expires_at <= ?1 LIMIT ?2)",
    ] {
        run(connection, statement, params![now.as_micros(), limit])?;
    }
    for statement in [
        "DELETE FROM login_sends WHERE rowid IN (SELECT rowid FROM login_sends WHERE at <= ?1 LIMIT ?2)",
        "DELETE FROM login_failures WHERE key IN
           (SELECT key FROM login_failures WHERE max(since, until) <= ?1 LIMIT ?2)",
    ] {
        run(
            connection,
            statement,
            params![sent_before.as_micros(), limit],
        )?;
    }
    Ok(())
}

impl<W: Send + Sync> SigninRead for SqliteStore<W> {
    fn session(&self, hash: &[u8; 32]) -> Result<Option<SessionRow>, ReadError> {
        self.with("a session", |connection| {
            connection
                .prepare_cached(
                    "SELECT s.account_id, a.status, s.login_id, l.kind, l.address, s.started_at, s.confirmed_at, s.seen_at,
                            s.expires_at, s.draft_path, s.draft
                     FROM sessions s JOIN accounts a ON a.id = s.account_id JOIN logins l ON l.id = s.login_id
                     WHERE s.hash = ?1",
                )?
                .query_row([hash], |row| Ok(session(row)))
                .optional()?
                .transpose()
        })
    }

    fn login_code(&self, session_hash: &[u8; 32]) -> Result<Option<LoginCodeRow>, ReadError> {
        self.with("a one-time code", |connection| {
            connection
                .prepare_cached(
                    "SELECT id, purpose, kind, address, login_id, code_hash, attempts, created_at, expires_at
                     FROM login_codes WHERE session_hash = ?1",
                )?
                .query_row([session_hash], |row| Ok(code(row, *session_hash)))
                .optional()?
                .transpose()
        })
    }

    fn login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<(LoginId, AccountId)>, ReadError> {
        self.with("a login", |connection| {
            let found = connection
                .prepare_cached(
                    "SELECT id, account_id FROM logins WHERE kind = ?1 AND address = ?2",
                )?
                .query_row(params![kind.code(), address], |row| {
                    Ok((
                        LoginId::from_bytes(row.get(0)?),
                        AccountId::from_bytes(row.get(1)?),
                    ))
                })
                .optional()?;
            Ok(found)
        })
    }

    fn has_signed_in(&self, key: &[u8; 32]) -> Result<bool, ReadError> {
        self.with("sign-ins", |connection| {
            Ok(connection
                .prepare_cached("SELECT 1 FROM login_networks WHERE key = ?1")?
                .exists([key])?)
        })
    }

    fn barred_until(&self, key: &[u8; 32]) -> Result<Option<Timestamp>, ReadError> {
        self.with("failures", |connection| {
            let until = connection
                .prepare_cached("SELECT until FROM login_failures WHERE key = ?1")?
                .query_row([key], |row| row.get(0).map(Timestamp::from_micros))
                .optional()?;
            Ok(until.filter(|until| *until != NOT_BARRED))
        })
    }

    fn messages_due(&self, now: Timestamp, limit: usize) -> Result<Vec<MessageRow>, ReadError> {
        self.with("messages", |connection| {
            let mut statement = connection.prepare_cached(
                "SELECT id, kind, recipient, purpose, sealed, tries, created_at, expires_at FROM outbox
                 WHERE next_at <= ?1 ORDER BY next_at LIMIT ?2",
            )?;
            let limit = i64::try_from(limit).unwrap_or(i64::MAX);
            let rows = statement.query_map(params![now.as_micros(), limit], |row| Ok(message(row)))?;
            rows.map(|row| row?).collect()
        })
    }

    fn next_message_at(&self) -> Result<Option<Timestamp>, ReadError> {
        self.with("messages", |connection| {
            let next = connection
                .prepare_cached("SELECT min(next_at) FROM outbox")?
                .query_row([], |row| optional_time(row, 0))?;
            Ok(next)
        })
    }

    fn grants_owed(&self) -> Result<Vec<(AccountId, Micros)>, ReadError> {
        self.with("credits promised", |connection| {
            let mut statement =
                connection.prepare_cached("SELECT account_id, amount FROM signup_grants")?;
            let rows = statement.query_map([], |row| {
                Ok((AccountId::from_bytes(row.get(0)?), Micros::new(row.get(1)?)))
            })?;
            Ok(rows.collect::<rusqlite::Result<_>>()?)
        })
    }
}

fn session(row: &Row<'_>) -> Result<SessionRow, RowError> {
    let path: Option<String> = row.get(9)?;
    let form: Option<String> = row.get(10)?;
    Ok(SessionRow {
        account: AccountId::from_bytes(row.get(0)?),
        status: word(row, 1, "an account's status", AccountStatus::from_code)?,
        login: LoginId::from_bytes(row.get(2)?),
        kind: word(row, 3, "a login's kind", LoginKind::from_code)?,
        address: row.get(4)?,
        started_at: row.get(5).map(Timestamp::from_micros)?,
        confirmed_at: row.get(6).map(Timestamp::from_micros)?,
        seen_at: row.get(7).map(Timestamp::from_micros)?,
        expires_at: row.get(8).map(Timestamp::from_micros)?,
        draft: path.zip(form).map(|(path, form)| Draft { path, form }),
    })
}

fn code(row: &Row<'_>, session_hash: [u8; 32]) -> Result<LoginCodeRow, RowError> {
    Ok(LoginCodeRow {
        code: NewLoginCode {
            id: LoginCodeId(row.get(0)?),
            session_hash,
            purpose: word(row, 1, "a code's purpose", CodePurpose::from_code)?,
            kind: word(row, 2, "a login's kind", LoginKind::from_code)?,
            address: row.get(3)?,
            login: row.get::<_, Option<[u8; 16]>>(4)?.map(LoginId::from_bytes),
            code_hash: row.get(5)?,
            created_at: row.get(7).map(Timestamp::from_micros)?,
            expires_at: row.get(8).map(Timestamp::from_micros)?,
        },
        attempts: row.get(6)?,
    })
}

fn message(row: &Row<'_>) -> Result<MessageRow, RowError> {
    Ok(MessageRow {
        message: NewMessage {
            id: MessageId(row.get(0)?),
            kind: word(row, 1, "a login's kind", LoginKind::from_code)?,
            recipient: row.get(2)?,
            purpose: word(row, 3, "a code's purpose", CodePurpose::from_code)?,
            sealed: row.get(4)?,
            created_at: row.get(6).map(Timestamp::from_micros)?,
            expires_at: row.get(7).map(Timestamp::from_micros)?,
        },
        tries: row.get(5)?,
    })
}
