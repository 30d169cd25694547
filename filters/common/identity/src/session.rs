//! Sessions of people who are signed in.
//!
//! A browser holds a random value; the store holds its digest. A browser that is not signed in holds such a value too, so that a code
//! can be bound to it, but nothing is stored for it. The value changes whenever what it stands for does.

use std::fmt;
use std::sync::Arc;

use tollgate_money::AccountId;
use tollgate_store::{
    AccountStatus, Admission, CommitError, Draft, LoginId, LoginKind, NewSession, OAuthPart, Part,
    ReadError, SigninPart, Store, UnitOfWork, commit, reading,
};
use zeroize::Zeroizing;

use crate::digest::Digest;

/// A session that nobody uses for so long has ended (microseconds).
pub const IDLE: i64 = 30 * 60 * 1_000_000;

/// No session lasts longer (microseconds).
pub const LIFE: i64 = 12 * 60 * 60 * 1_000_000;

/// A code typed within this time lets its session make keys and pay (microseconds).
pub const RECENT: i64 = 10 * 60 * 1_000_000;

/// Use is noted at most this often (microseconds): often enough for [`IDLE`], and no write for each page.
const NOTED: i64 = 60 * 1_000_000;

const BYTES: usize = 32;

/// What a browser holds: 64 hex digits, random. Cannot be printed by accident, and is wiped from memory when it is dropped.
#[derive(Clone, PartialEq, Eq)]
pub struct SessionValue(Zeroizing<String>);

impl SessionValue {
    /// A new one. `draw` fills a slice with random bytes.
    pub fn draw(draw: impl FnOnce(&mut [u8])) -> SessionValue {
        let mut bytes = Zeroizing::new([0; BYTES]);
        draw(&mut *bytes);
        SessionValue(Zeroizing::new(hex(&*bytes)))
    }

    /// The value that a browser sent; `None` for what was never one.
    pub fn read(text: &str) -> Option<SessionValue> {
        let sound = text.len() == 2 * BYTES
            && text
                .bytes()
                .all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'));
        sound.then(|| SessionValue(Zeroizing::new(text.to_owned())))
    }

    /// The text, for the one field that sends it.
    pub fn expose(&self) -> &str {
        &self.0
    }

    /// SHA-256 of the text: what is stored.
    pub fn digest(&self) -> [u8; 32] {
        *Digest::of(self.0.as_bytes()).as_bytes()
    }
}

impl fmt::Debug for SessionValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SessionValue([redacted])")
    }
}

/// Somebody who is signed in. All times are Unix microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// The digest of its value: what other records know it by.
    pub digest: [u8; 32],
    /// Who.
    pub account: AccountId,
    /// The login they used.
    pub login: LoginId,
    /// Its kind.
    pub kind: LoginKind,
    /// Its address.
    pub address: Arc<str>,
    /// When they signed in.
    pub started_at: i64,
    /// When they last typed a code.
    pub confirmed_at: i64,
    /// When it ends whatever happens.
    pub expires_at: i64,
    /// A form that waits until they have confirmed who they are.
    pub draft: Option<Draft>,
}

impl Session {
    /// What stays of it when its value changes because somebody has confirmed who they are: a digest of who signed in, and when.
    pub fn lineage(&self) -> [u8; 32] {
        let mut text = [0; 40];
        text[..16].copy_from_slice(self.account.as_bytes());
        text[16..32].copy_from_slice(self.login.as_bytes());
        text[32..].copy_from_slice(&self.started_at.to_be_bytes());
        *Digest::of(&text).as_bytes()
    }

    /// Whether a code was typed a short while ago.
    pub fn is_recent(&self, now: i64) -> bool {
        now - self.confirmed_at < RECENT
    }
}

/// The session of a value, if it lasts. Notes that it was used.
pub async fn session(
    store: &Arc<dyn Store>,
    value: &SessionValue,
    now: i64,
) -> Result<Option<Session>, ReadError> {
    let digest = value.digest();
    let row = reading(store, move |read| read.session(&digest)).await?;
    let Some(row) = row else { return Ok(None) };
    let lasts = row.status == AccountStatus::Active
        && row.expires_at > now
        && row.seen_at.saturating_add(IDLE) > now;
    if !lasts {
        return Ok(None);
    }
    if now - row.seen_at > NOTED {
        let part = SigninPart::SeeSession {
            hash: digest,
            at: now,
        };
        // Nobody waits for it. One note that is lost ends a session early at worst.
        let noted = store.submit(unit(part, Admission::Notes), Box::new(|_| ()));
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

/// Signs somebody in without a code, for whoever has made sure of them in another way.
pub async fn start_session(
    store: &Arc<dyn Store>,
    account: AccountId,
    login: LoginId,
    now: i64,
    draw: impl FnOnce(&mut [u8]),
) -> Result<SessionValue, CommitError> {
    let value = SessionValue::draw(draw);
    let part = SigninPart::StartSession {
        session: fresh(&value, account, login, now),
        replaces: None,
    };
    commit(&**store, unit(part, Admission::Begins)).await?;
    Ok(value)
}

/// Signs out.
pub async fn end_session(store: &Arc<dyn Store>, value: &SessionValue) -> Result<(), CommitError> {
    let part = SigninPart::EndSession {
        hash: value.digest(),
    };
    commit(&**store, unit(part, Admission::Ends)).await?;
    Ok(())
}

/// Signs an account out of every browser.
pub async fn end_sessions(store: &Arc<dyn Store>, account: AccountId) -> Result<(), CommitError> {
    let part = SigninPart::EndSessions { account };
    commit(&**store, unit(part, Admission::Ends)).await?;
    Ok(())
}

/// Signs an account out of every browser, and takes from every client all it may do with the account. One unit: a session that goes on
/// for a moment longer could allow again what was just taken.
pub async fn end_sessions_and_apps(
    store: &Arc<dyn Store>,
    account: AccountId,
    at: i64,
) -> Result<(), CommitError> {
    let parts = [
        Part::Signin(Box::new(SigninPart::EndSessions { account })),
        Part::OAuth(Box::new(OAuthPart::RevokeGrants {
            account,
            client: None,
            at,
        })),
    ];
    commit(&**store, UnitOfWork::of_all(parts, Admission::Ends)).await?;
    Ok(())
}

/// Keeps a form until its sender has confirmed who they are; `None` forgets the one that is kept.
pub async fn keep_draft(
    store: &Arc<dyn Store>,
    session: &Session,
    draft: Option<Draft>,
) -> Result<(), CommitError> {
    let part = SigninPart::KeepDraft {
        hash: session.digest,
        draft,
    };
    commit(&**store, unit(part, Admission::Begins)).await?;
    Ok(())
}

/// In front of parts that only somebody may bring about who is still signed in.
pub(crate) fn required(hash: [u8; 32], at: i64) -> Part {
    Part::Signin(Box::new(SigninPart::RequireSession { hash, at }))
}

/// A session that begins now.
pub(crate) fn fresh(
    value: &SessionValue,
    account: AccountId,
    login: LoginId,
    now: i64,
) -> NewSession {
    NewSession {
        hash: value.digest(),
        account,
        login,
        started_at: now,
        confirmed_at: now,
        seen_at: now,
        expires_at: now.saturating_add(LIFE),
        draft: None,
    }
}

pub(crate) fn unit(part: SigninPart, admission: Admission) -> UnitOfWork {
    UnitOfWork::of(Part::Signin(Box::new(part)), admission)
}

/// Lower-case hex digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    let digits = bytes.iter().flat_map(|byte| [byte >> 4, byte & 15]);
    digits
        .map(|digit| char::from(DIGITS[usize::from(digit)]))
        .collect()
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
