//! Browser sessions.
//!
//! A browser holds a random value; the store holds the value's digest. A browser without a session holds a value too, so that a code can be
//! bound to the browser, without a row in the store. The value is renewed on every change of privilege (against session fixation).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, LoginId};
use tollgate_store::{
    AccountStatus, Admission, CommitError, Draft, LoginKind, NewSession, OAuthPart, Part,
    ReadError, SigninPart, Store, UnitOfWork, commit, reading,
};
use zeroize::Zeroizing;

use crate::digest::Digest;

/// Idle timeout of a session.
pub const IDLE: Duration = Duration::from_secs(30 * 60);

/// Absolute timeout of a session.
pub const LIFE: Duration = Duration::from_secs(12 * 60 * 60);

/// Time after a code within which a session may create keys and pay.
pub const RECENT: Duration = Duration::from_secs(10 * 60);

/// Minimum interval between stored uses: short enough for [`IDLE`], and no write for each page.
const NOTED: Duration = Duration::from_secs(60);

const BYTES: usize = 32;

/// The session value: 64 random hex digits. Does not print, and is wiped from memory on drop.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionValue(Zeroizing<String>);

impl SessionValue {
    /// A new value. `draw` fills a slice with random bytes.
    pub fn draw(draw: impl FnOnce(&mut [u8])) -> SessionValue {
        let mut bytes = Zeroizing::new([0; BYTES]);
        draw(&mut *bytes);
        SessionValue(Zeroizing::new(base16ct::lower::encode_string(&*bytes)))
    }

    /// Parses a browser's value; `None` if malformed.
    pub fn read(text: &str) -> Option<SessionValue> {
        let sound = text.len() == 2 * BYTES
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        sound.then(|| SessionValue(Zeroizing::new(text.to_owned())))
    }

    /// The text, for a single header field.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// SHA-256 of the text, as stored.
    pub fn digest(&self) -> [u8; 32] {
        *Digest::of(self.0.as_bytes()).as_bytes()
    }
}

impl fmt::Debug for SessionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionValue([redacted])")
    }
}

/// A live session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The digest of the value, a reference in other records.
    pub digest: [u8; 32],
    pub account: AccountId,
    /// The login used.
    pub login: LoginId,
    pub kind: LoginKind,
    /// The address or number.
    pub address: Arc<str>,
    /// When it began.
    pub started_at: Timestamp,
    /// When a code was last verified.
    pub confirmed_at: Timestamp,
    /// The absolute timeout.
    pub expires_at: Timestamp,
    /// A form that waits for a confirmation by code.
    pub draft: Option<Draft>,
}

impl Session {
    /// The lineage, which survives a renewal of the value: a digest of the account and the start.
    pub fn lineage(&self) -> [u8; 32] {
        let mut text = [0; 40];
        text[..16].copy_from_slice(self.account.as_bytes());
        text[16..32].copy_from_slice(self.login.as_bytes());
        text[32..].copy_from_slice(&self.started_at.as_micros().to_be_bytes());
        *Digest::of(&text).as_bytes()
    }

    /// Whether a code was verified recently.
    pub fn is_recent(&self, now: Timestamp) -> bool {
        now.duration_since(self.confirmed_at) < RECENT
    }
}

/// The live session of a value. Records its use.
pub async fn session(
    store: &Arc<dyn Store>,
    value: &SessionValue,
    now: Timestamp,
) -> Result<Option<Session>, ReadError> {
    let digest = value.digest();
    let row = reading(store, move |read| read.session(&digest)).await?;
    let Some(row) = row else { return Ok(None) };
    let lasts =
        row.status == AccountStatus::Active && row.expires_at > now && row.seen_at + IDLE > now;
    if !lasts {
        return Ok(None);
    }
    if now.duration_since(row.seen_at) > NOTED {
        let part = SigninPart::SeeSession {
            hash: digest,
            at: now,
        };
        // Not awaited. A lost write ends a session early at worst.
        let noted = store.submit(unit(part, Admission::BestEffort), Box::new(|_| ()));
        drop(noted);
    }
    Ok(Some(Session {
        digest,
        account: row.account,
        login: row.login,
        kind: row.kind,
        address: row.address,
        started_at: row.started_at,
        confirmed_at: row.confirmed_at,
        expires_at: row.expires_at,
        draft: row.draft,
    }))
}

/// Creates a session without a code, for callers that have authenticated the account otherwise.
pub async fn start_session(
    store: &Arc<dyn Store>,
    account: AccountId,
    login: LoginId,
    now: Timestamp,
    draw: impl FnOnce(&mut [u8]),
) -> Result<SessionValue, CommitError> {
    let value = SessionValue::draw(draw);
    let part = SigninPart::StartSession {
        session: fresh(&value, account, login, now),
        replaces: None,
    };
    commit(&**store, unit(part, Admission::Normal)).await?;
    Ok(value)
}

pub async fn end_session(store: &Arc<dyn Store>, value: &SessionValue) -> Result<(), CommitError> {
    let part = SigninPart::EndSession {
        hash: value.digest(),
    };
    commit(&**store, unit(part, Admission::Always)).await?;
    Ok(())
}

/// Ends all sessions of an account.
pub async fn end_sessions(store: &Arc<dyn Store>, account: AccountId) -> Result<(), CommitError> {
    let part = SigninPart::EndSessions { account };
    commit(&**store, unit(part, Admission::Always)).await?;
    Ok(())
}

/// Ends all sessions of an account and revokes all its grants, in one unit of work: a session beyond the revocation could authorize a
/// client again.
pub async fn end_sessions_and_apps(
    store: &Arc<dyn Store>,
    account: AccountId,
    at: Timestamp,
) -> Result<(), CommitError> {
    let parts = [
        Part::Signin(Box::new(SigninPart::EndSessions { account })),
        Part::OAuth(Box::new(OAuthPart::RevokeGrants {
            account,
            client: None,
            at,
        })),
    ];
    commit(&**store, UnitOfWork::of_all(parts, Admission::Always)).await?;
    Ok(())
}

/// Stores a form until the sender has confirmed by code; `None` deletes the form. `hash` is the digest of the session.
pub async fn keep_draft(
    store: &Arc<dyn Store>,
    hash: [u8; 32],
    draft: Option<Draft>,
) -> Result<(), CommitError> {
    let part = SigninPart::KeepDraft { hash, draft };
    commit(&**store, unit(part, Admission::Normal)).await?;
    Ok(())
}

/// A precondition part: the unit of work is refused unless the session is still live.
pub(crate) fn required(hash: [u8; 32], at: Timestamp) -> Part {
    Part::Signin(Box::new(SigninPart::RequireSession { hash, at }))
}

/// A new session.
pub(crate) fn fresh(
    value: &SessionValue,
    account: AccountId,
    login: LoginId,
    now: Timestamp,
) -> NewSession {
    NewSession {
        hash: value.digest(),
        account,
        login,
        started_at: now,
        confirmed_at: now,
        seen_at: now,
        expires_at: now + LIFE,
        draft: None,
    }
}

pub(crate) fn unit(part: SigninPart, admission: Admission) -> UnitOfWork {
    UnitOfWork::of(Part::Signin(Box::new(part)), admission)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_value_is_64_hex_digits_and_does_not_print() {
        let value = SessionValue::draw(|out| out.fill(0xa5));
        assert_eq!(value.expose(), "a5".repeat(32));
        assert_eq!(SessionValue::read(value.expose()), Some(value.clone()));
        assert_eq!(format!("{value:?}"), "SessionValue([redacted])");
        for text in [
            "",
            "a5",
            &"A5".repeat(32),
            &"g5".repeat(32),
            &"a5".repeat(33),
        ] {
            assert_eq!(SessionValue::read(text), None, "{text}");
        }
    }
}
