//! Sign-in: sessions, one-time codes, send limits, messages. Rare: the statements are prepared on use.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, LoginId, Micros};

use super::logins;
use super::parts::require_account;
use crate::codes::{LoginKind, NoticeKind};
use crate::engine::{RowError, Select, Sql, SqlRow, Value, WriteError, values};
use crate::error::{ReadError, Refusal};
use crate::reader::Reader;
use crate::signin::{
    Draft, FailureRule, LoginCodeId, LoginCodeRow, MessageId, MessageRow, NewLoginCode, NewMessage,
    NewNotice, NewSession, NoticeRow, SendLimit, SessionRow, SigninPart,
};

/// Stored with the failures of a key that is not locked out; the column is not nullable.
const NOT_BARRED: Timestamp = Timestamp::UNIX_EPOCH;

pub(crate) fn write(connection: &dyn Sql, part: &SigninPart) -> Result<(), WriteError> {
    match part {
        SigninPart::StartSession { session, replaces } => {
            start_session(connection, session, replaces.as_ref())
        }
        SigninPart::RequireSession { hash, at } => require_session(connection, hash, *at),
        SigninPart::SeeSession { hash, at } => run(
            connection,
            "UPDATE sessions SET seen_at = ?2 WHERE hash = ?1",
            values![hash, at],
        ),
        SigninPart::KeepDraft { hash, draft } => run(
            connection,
            "UPDATE sessions SET draft_path = ?2, draft = ?3 WHERE hash = ?1",
            values![
                hash,
                draft.as_ref().map(|draft| &draft.path),
                draft.as_ref().map(|draft| &draft.form)
            ],
        ),
        SigninPart::EndSession { hash } => run(
            connection,
            "DELETE FROM sessions WHERE hash = ?1",
            values![hash],
        ),
        SigninPart::EndSessions { account } => run(
            connection,
            "DELETE FROM sessions WHERE account_id = ?1",
            values![account],
        ),
        SigninPart::CountSend { limits, at } => count_send(connection, limits, *at),
        SigninPart::RecordSignIn { key, at } => run(
            connection,
            "INSERT INTO login_networks (key, at) VALUES (?1, ?2) ON CONFLICT (key) DO UPDATE SET at = excluded.at",
            values![key, at],
        ),
        SigninPart::PutCode(code) => put_code(connection, code),
        SigninPart::TryCode { id, tries_max, at } => live(
            connection,
            "UPDATE login_codes SET attempts = attempts + 1 WHERE id = ?1 AND attempts < ?2 AND expires_at > ?3",
            values![id.0, tries_max, at],
        ),
        SigninPart::SpendCode { id } => live(
            connection,
            "DELETE FROM login_codes WHERE id = ?1",
            values![id.0],
        ),
        SigninPart::CountFailure { key, rule, at } => count_failure(connection, key, *rule, *at),
        SigninPart::ForgetFailures { key } => run(
            connection,
            "DELETE FROM login_failures WHERE key = ?1",
            values![key],
        ),
        SigninPart::QueueMessage(message) => queue_message(connection, message),
        SigninPart::QueueNotice(notice) => queue_notice(connection, notice),
        SigninPart::RequireUnrevoked { credential } => require_unrevoked(connection, *credential),
        // Ids are random: an id is in only one of the two tables.
        SigninPart::DropMessage { id } => {
            for sql in [
                "DELETE FROM outbox WHERE id = ?1",
                "DELETE FROM notices WHERE id = ?1",
            ] {
                run(connection, sql, values![id.0])?;
            }
            Ok(())
        }
        SigninPart::ClaimMessage { id, tries } => {
            for sql in [
                "UPDATE outbox SET tries = tries + 1, next_at = expires_at WHERE id = ?1 AND tries = ?2",
                "UPDATE notices SET tries = tries + 1, next_at = expires_at WHERE id = ?1 AND tries = ?2",
            ] {
                if connection.execute(sql, values![id.0, tries])? > 0 {
                    return Ok(());
                }
            }
            Err(WriteError::Refused(Refusal::MessageClaimed))
        }
        SigninPart::DelayMessage { id, tries, next_at } => {
            for sql in [
                "UPDATE outbox SET next_at = ?3 WHERE id = ?1 AND tries = ?2",
                "UPDATE notices SET next_at = ?3 WHERE id = ?1 AND tries = ?2",
            ] {
                run(connection, sql, values![id.0, tries, next_at])?;
            }
            Ok(())
        }
        SigninPart::OweGrant {
            account,
            amount,
            address,
            mailboxes,
            limits,
            at,
        } => {
            let is_earlier =
                |connection: &dyn Sql| logins::has_mailbox(connection, *account, mailboxes);
            if owes_grant(connection, address, is_earlier, limits, *at)? {
                run(
                    connection,
                    "INSERT INTO signup_grants (account_id, amount, at) VALUES (?1, ?2, ?3)",
                    values![account, amount, at],
                )?;
            }
            Ok(())
        }
        SigninPart::GrantBooked { account } => run(
            connection,
            "DELETE FROM signup_grants WHERE account_id = ?1",
            values![account],
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
                values![signed_in_before, limit],
            )
        }
    }
}

fn run(connection: &dyn Sql, statement: &str, values: &[Value<'_>]) -> Result<(), WriteError> {
    connection.execute(statement, values)?;
    Ok(())
}

/// Runs a statement that has to change a live code.
fn live(connection: &dyn Sql, statement: &str, values: &[Value<'_>]) -> Result<(), WriteError> {
    match connection.execute(statement, values)? {
        0 => Err(WriteError::Refused(Refusal::CodeUnusable)),
        _ => Ok(()),
    }
}

fn require_session(connection: &dyn Sql, hash: &[u8; 32], at: Timestamp) -> Result<(), WriteError> {
    let lasts = connection.exists(
        "SELECT 1 FROM sessions WHERE hash = ?1 AND expires_at > ?2",
        values![hash, at],
    )?;
    match lasts {
        true => Ok(()),
        false => Err(WriteError::Refused(Refusal::SessionEnded)),
    }
}

fn start_session(
    connection: &dyn Sql,
    session: &NewSession,
    replaces: Option<&[u8; 32]>,
) -> Result<(), WriteError> {
    require_account(connection, session.account)?;
    if let Some(hash) = replaces {
        run(
            connection,
            "DELETE FROM sessions WHERE hash = ?1",
            values![hash],
        )?;
    }
    run(
        connection,
        "INSERT INTO sessions (hash, account_id, login_id, started_at, confirmed_at, seen_at, expires_at, draft_path, draft)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        values![
            session.hash,
            session.account,
            session.login,
            session.started_at,
            session.confirmed_at,
            session.seen_at,
            session.expires_at,
            session.draft.as_ref().map(|draft| &draft.path),
            session.draft.as_ref().map(|draft| &draft.form),
        ],
    )
}

fn count_send(connection: &dyn Sql, limits: &[SendLimit], at: Timestamp) -> Result<(), WriteError> {
    if let Some(until) = wait_until(connection, limits, at)? {
        return Err(WriteError::Refused(Refusal::TooMany { until }));
    }
    count(connection, limits, at)
}

/// Whether an address gets credits for signing up; if yes, the address is counted. The key of the table decides between several gateways.
/// `is_earlier`: the mailbox had an earlier account.
fn owes_grant(
    connection: &dyn Sql,
    address: &[u8; 32],
    is_earlier: impl Fn(&dyn Sql) -> Result<bool, RowError>,
    limits: &[SendLimit],
    at: Timestamp,
) -> Result<bool, WriteError> {
    if wait_until(connection, limits, at)?.is_some() {
        return Ok(false);
    }
    let sql = "INSERT INTO signup_grant_addresses (key, at) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
    if connection.execute(sql, values![address, at])? == 0 {
        return Ok(false);
    }
    // From here on the table knows the mailbox.
    if is_earlier(connection)? {
        return Ok(false);
    }
    count(connection, limits, at)?;
    Ok(true)
}

/// The time when all limits admit a further message; `None` for now.
fn wait_until(
    connection: &dyn Sql,
    limits: &[SendLimit],
    at: Timestamp,
) -> Result<Option<Timestamp>, WriteError> {
    let mut wait_until = None;
    for limit in limits {
        for (most, window) in &limit.rules {
            // The message whose exit from the window frees the next slot.
            let sql = "SELECT at FROM login_sends WHERE key = ?1 AND at > ?2 ORDER BY at DESC LIMIT 1 OFFSET ?3";
            let in_the_way: Option<Timestamp> =
                connection.first(sql, values![limit.key, at - *window, most - 1], |row| {
                    row.get(0)
                })?;
            let until = in_the_way.map(|first| first + *window);
            wait_until = wait_until.max(until);
        }
    }
    Ok(wait_until)
}

fn count(connection: &dyn Sql, limits: &[SendLimit], at: Timestamp) -> Result<(), WriteError> {
    for limit in limits {
        run(
            connection,
            "INSERT INTO login_sends (key, at) VALUES (?1, ?2)",
            values![limit.key, at],
        )?;
    }
    Ok(())
}

fn put_code(connection: &dyn Sql, code: &NewLoginCode) -> Result<(), WriteError> {
    // A browser has a single live code.
    run(
        connection,
        "DELETE FROM login_codes WHERE id = ?1 OR session_hash = ?2",
        values![code.id.0, code.session_hash],
    )?;
    run(
        connection,
        "INSERT INTO login_codes (id, session_hash, purpose, kind, address, login_id, code_hash, created_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)",
        values![
            code.id.0,
            code.session_hash,
            code.purpose,
            code.kind,
            code.address,
            code.login,
            code.code_hash,
            code.created_at,
            code.expires_at,
        ],
    )
}

fn count_failure(
    connection: &dyn Sql,
    key: &[u8; 32],
    rule: FailureRule,
    at: Timestamp,
) -> Result<(), WriteError> {
    let earlier: Option<(i64, Timestamp, Timestamp)> = connection.first(
        "SELECT failures, since, until FROM login_failures WHERE key = ?1",
        values![key],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )?;
    // A key with a present or recent lockout is not reset by the end of the window.
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
        "INSERT INTO login_failures (key, failures, since, until) VALUES (?1, ?2, ?3, ?4)
         ON CONFLICT (key) DO UPDATE SET failures = excluded.failures, since = excluded.since, until = excluded.until",
        values![key, failures, since, until],
    )
}

fn queue_message(connection: &dyn Sql, message: &NewMessage) -> Result<(), WriteError> {
    run(
        connection,
        "INSERT INTO outbox (id, kind, recipient, purpose, sealed, created_at, next_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?6, ?7)",
        values![
            message.id.0,
            message.kind,
            message.recipient,
            message.purpose,
            message.sealed,
            message.created_at,
            message.expires_at,
        ],
    )
}

fn queue_notice(connection: &dyn Sql, notice: &NewNotice) -> Result<(), WriteError> {
    run(
        connection,
        "INSERT INTO notices (id, kind, login_id, credential_id, created_at, next_at, expires_at)
         VALUES (?1, ?2, ?3, ?4, ?5, ?5, ?6)",
        values![
            notice.id.0,
            notice.kind,
            notice.login,
            notice.credential,
            notice.created_at,
            notice.expires_at,
        ],
    )
}

/// Units that revoke credentials have one order on all nodes (`lock_shared`): the second of two equal requests finds the writes of the
/// first.
fn require_unrevoked(connection: &dyn Sql, credential: CredentialId) -> Result<(), WriteError> {
    let sql = "SELECT 1 FROM credentials WHERE id = ?1 AND revoked_at IS NULL";
    match connection.exists(sql, values![credential])? {
        true => Ok(()),
        false => Err(WriteError::Refused(Refusal::CredentialConflict(credential))),
    }
}

fn sweep(
    connection: &dyn Sql,
    now: Timestamp,
    idle_before: Timestamp,
    sent_before: Timestamp,
    limit: i64,
) -> Result<(), WriteError> {
    run(
        connection,
        "DELETE FROM sessions WHERE hash IN
           (SELECT hash FROM sessions WHERE expires_at <= ?1 OR seen_at <= ?2 LIMIT ?3)",
        values![now, idle_before, limit],
    )?;
    for statement in [
        "DELETE FROM login_codes WHERE id IN (SELECT id FROM login_codes WHERE expires_at <= ?1 LIMIT ?2)",
        "DELETE FROM outbox WHERE id IN (SELECT id FROM outbox WHERE expires_at <= ?1 LIMIT ?2)",
        "DELETE FROM notices WHERE id IN (SELECT id FROM notices WHERE expires_at <= ?1 LIMIT ?2)",
    ] {
        run(connection, statement, values![now, limit])?;
    }
    for statement in [
        "DELETE FROM login_sends WHERE (key, at) IN (SELECT key, at FROM login_sends WHERE at <= ?1 LIMIT ?2)",
        "DELETE FROM login_failures WHERE key IN
           (SELECT key FROM login_failures WHERE since <= ?1 AND until <= ?1 LIMIT ?2)",
    ] {
        run(connection, statement, values![sent_before, limit])?;
    }
    Ok(())
}

impl Reader {
    /// The session with the digest, ended or not.
    pub fn session(&self, hash: &[u8; 32]) -> Result<Option<SessionRow>, ReadError> {
        self.with("a session", |connection| {
            let sql = "SELECT s.account_id, a.status, s.login_id, l.kind, l.address, s.started_at, s.confirmed_at, s.seen_at,
                            s.expires_at, s.draft_path, s.draft
                     FROM sessions s JOIN accounts a ON a.id = s.account_id JOIN logins l ON l.id = s.login_id
                     WHERE s.hash = ?1";
            connection.first(sql, values![hash], session)
        })
    }

    /// The sessions of an account, without their forms: start, last use and expiry.
    pub fn sessions_of(
        &self,
        account: AccountId,
    ) -> Result<Vec<(Timestamp, Timestamp, Timestamp)>, ReadError> {
        self.with("sessions", |connection| {
            let sql = "SELECT started_at, seen_at, expires_at FROM sessions WHERE account_id = ?1 ORDER BY started_at";
            connection.all(sql, values![account], |row| {
                Ok((row.get(0)?, row.get(1)?, row.get(2)?))
            })
        })
    }

    /// The code of the browser with the session digest, ended or not.
    pub fn login_code(&self, session_hash: &[u8; 32]) -> Result<Option<LoginCodeRow>, ReadError> {
        self.with("a one-time code", |connection| {
            let sql = "SELECT id, purpose, kind, address, login_id, code_hash, attempts, created_at, expires_at
                     FROM login_codes WHERE session_hash = ?1";
            connection.first(sql, values![session_hash], |row| code(row, *session_hash))
        })
    }

    /// The login of the address.
    pub fn login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<(LoginId, AccountId)>, ReadError> {
        self.with("a login", |connection| {
            let found = connection.first(
                "SELECT id, account_id FROM logins WHERE kind = ?1 AND address = ?2",
                values![kind, address],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )?;
            Ok(found)
        })
    }

    /// Whether a sign-in under the key is recorded.
    pub fn has_signed_in(&self, key: &[u8; 32]) -> Result<bool, ReadError> {
        self.with("sign-ins", |connection| {
            connection.exists("SELECT 1 FROM login_networks WHERE key = ?1", values![key])
        })
    }

    /// The end of a key's lockout; `None` for a key that is not locked out.
    pub fn barred_until(&self, key: &[u8; 32]) -> Result<Option<Timestamp>, ReadError> {
        self.with("failures", |connection| {
            let until = connection.first(
                "SELECT until FROM login_failures WHERE key = ?1",
                values![key],
                |row| row.get(0),
            )?;
            Ok(until.filter(|until| *until != NOT_BARRED))
        })
    }

    /// At most `limit` messages due at `now`, the oldest first.
    pub fn messages_due(&self, now: Timestamp, limit: usize) -> Result<Vec<MessageRow>, ReadError> {
        self.with("messages", |connection| {
            let sql = "SELECT id, kind, recipient, purpose, sealed, tries, created_at, expires_at FROM outbox
                 WHERE next_at <= ?1 ORDER BY next_at LIMIT ?2";
            connection.all(sql, values![now, limit], message)
        })
    }

    /// At most `limit` notices due at `now`, the oldest first. Notices of unknown kinds are left to a later release.
    pub fn notices_due(&self, now: Timestamp, limit: usize) -> Result<Vec<NoticeRow>, ReadError> {
        self.with("notices", |connection| {
            let sql = format!(
                "SELECT n.id, n.kind, n.login_id, n.credential_id, n.created_at, n.expires_at, l.address, c.label, c.hint, n.tries
                 {NOTICES} AND n.next_at <= ?2 ORDER BY n.next_at LIMIT ?3"
            );
            connection.all(&sql, values![newest_notice_kind(), now, limit], notice)
        })
    }

    /// When the next message or notice is due.
    pub fn next_message_at(&self) -> Result<Option<Timestamp>, ReadError> {
        self.with("messages", |connection| {
            let sql = format!(
                "SELECT min(next_at) FROM (SELECT next_at FROM outbox UNION ALL SELECT n.next_at {NOTICES}) AS queued"
            );
            let next =
                connection.first(&sql, values![newest_notice_kind()], |row| row.get(0))?;
            Ok(next.flatten())
        })
    }

    /// Credits promised at sign-up and not yet booked.
    pub fn grants_owed(&self) -> Result<Vec<(AccountId, Micros)>, ReadError> {
        self.with("credits promised", |connection| {
            let sql = "SELECT account_id, amount FROM signup_grants";
            connection.all(sql, values![], |row| Ok((row.get(0)?, row.get(1)?)))
        })
    }
}

fn session(row: &dyn SqlRow) -> Result<SessionRow, RowError> {
    let path: Option<String> = row.get(9)?;
    let form: Option<String> = row.get(10)?;
    Ok(SessionRow {
        account: row.get(0)?,
        status: row.get(1)?,
        login: row.get(2)?,
        kind: row.get(3)?,
        address: row.get(4)?,
        started_at: row.get(5)?,
        confirmed_at: row.get(6)?,
        seen_at: row.get(7)?,
        expires_at: row.get(8)?,
        draft: path.zip(form).map(|(path, form)| Draft { path, form }),
    })
}

fn code(row: &dyn SqlRow, session_hash: [u8; 32]) -> Result<LoginCodeRow, RowError> {
    Ok(LoginCodeRow {
        code: NewLoginCode {
            id: LoginCodeId(row.get(0)?),
            session_hash,
            purpose: row.get(1)?,
            kind: row.get(2)?,
            address: row.get(3)?,
            login: row.get(4)?,
            code_hash: row.get(5)?,
            created_at: row.get(7)?,
            expires_at: row.get(8)?,
        },
        attempts: row.get(6)?,
    })
}

/// The notices that can be sent: of a kind up to ?1, with an existing login and credential.
const NOTICES: &str = "FROM notices n JOIN logins l ON l.id = n.login_id JOIN credentials c ON c.id = n.credential_id WHERE n.kind <= ?1";

/// The last kind of notice that this release knows.
fn newest_notice_kind() -> i64 {
    let codes = NoticeKind::ALL.iter().map(|kind| kind.code());
    codes.max().unwrap_or_default()
}

fn notice(row: &dyn SqlRow) -> Result<NoticeRow, RowError> {
    Ok(NoticeRow {
        notice: NewNotice {
            id: MessageId(row.get(0)?),
            kind: row.get(1)?,
            login: row.get(2)?,
            credential: row.get(3)?,
            created_at: row.get(4)?,
            expires_at: row.get(5)?,
        },
        recipient: row.get(6)?,
        label: row.get(7)?,
        hint: row.get(8)?,
        tries: row.get(9)?,
    })
}

fn message(row: &dyn SqlRow) -> Result<MessageRow, RowError> {
    Ok(MessageRow {
        message: NewMessage {
            id: MessageId(row.get(0)?),
            kind: row.get(1)?,
            recipient: row.get(2)?,
            purpose: row.get(3)?,
            sealed: row.get(4)?,
            created_at: row.get(6)?,
            expires_at: row.get(7)?,
        },
        tries: row.get(5)?,
    })
}
