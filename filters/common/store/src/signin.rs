//! Signing in: sessions, one-time codes, the counters that slow down guessing, and messages that have to leave.

use std::fmt;
use std::sync::Arc;

use tollgate_money::{AccountId, Micros};

use crate::codes::{AccountStatus, CodePurpose, LoginKind};
use crate::error::ReadError;
use crate::rows::LoginId;

/// A change of what is known about people signing in.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SigninPart {
    /// Begins a session, in place of an earlier one of the same browser.
    StartSession {
        /// The session.
        session: NewSession,
        /// The digest of the session that ends with it.
        replaces: Option<[u8; 32]>,
    },
    /// Refuses the unit when a session has ended: [`crate::Refusal::SessionOver`]. Stands in front of what gives somebody more than
    /// the session itself, so that nothing comes of a request that was under way when its session was ended.
    RequireSession {
        /// Its digest.
        hash: [u8; 32],
        /// Unix microseconds.
        at: i64,
    },
    /// Notes that a session was used, so that it does not end for want of use.
    SeeSession {
        /// Its digest.
        hash: [u8; 32],
        /// Unix microseconds.
        at: i64,
    },
    /// Keeps a form with a session, or forgets the one that is kept.
    KeepDraft {
        /// The session's digest.
        hash: [u8; 32],
        /// The form.
        draft: Option<Draft>,
    },
    /// Ends a session. Ending it again changes nothing and is no error.
    EndSession {
        /// Its digest.
        hash: [u8; 32],
    },
    /// Ends every session of an account.
    EndSessions {
        /// The account.
        account: AccountId,
    },
    /// Counts one sending against several limits: [`crate::Refusal::TooMany`] when one of them is reached.
    CountSend {
        /// The limits.
        limits: Vec<SendLimit>,
        /// Unix microseconds.
        at: i64,
    },
    /// Stores a code in place of the one that its browser had.
    PutCode(NewLoginCode),
    /// Counts a try before it is judged: [`crate::Refusal::CodeOver`] when the code has no more, or has ended.
    TryCode {
        /// The code.
        id: LoginCodeId,
        /// The tries that a code has.
        tries_max: i64,
        /// Unix microseconds.
        at: i64,
    },
    /// Takes a code that was typed right: [`crate::Refusal::CodeOver`] for everyone but the first.
    SpendCode {
        /// The code.
        id: LoginCodeId,
    },
    /// Counts a failure.
    CountFailure {
        /// What it is counted by.
        key: [u8; 32],
        /// When it is forgotten, and what it leads to until then.
        rule: FailureRule,
        /// Unix microseconds.
        at: i64,
    },
    /// Forgets the failures of a key.
    ForgetFailures {
        /// The key.
        key: [u8; 32],
    },
    /// Queues a message.
    QueueMessage(NewMessage),
    /// A message has left, or never will.
    DropMessage {
        /// Which.
        id: MessageId,
    },
    /// A message could not leave and is tried again.
    DelayMessage {
        /// Which.
        id: MessageId,
        /// Unix microseconds.
        next_at: i64,
    },
    /// Promises credits to a new account.
    OweGrant {
        /// The account.
        account: AccountId,
        /// How much.
        amount: Micros,
        /// Unix microseconds.
        at: i64,
    },
    /// The promise was kept.
    GrantBooked {
        /// The account.
        account: AccountId,
    },
    /// Forgets what has ended: sessions, codes, counters and messages.
    Sweep {
        /// Unix microseconds.
        now: i64,
        /// Sessions not seen since then have ended too.
        idle_before: i64,
        /// Sendings before then count against no limit.
        sent_before: i64,
        /// At most so many of each.
        limit: i64,
    },
}

/// The id of a one-time code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoginCodeId(pub [u8; 16]);

/// The id of a message: also what receivers tell copies of it by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(pub [u8; 16]);

impl fmt::Display for MessageId {
    /// 32 lower-case hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// A session to be begun. All times are Unix microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// SHA-256 of its value.
    pub hash: [u8; 32],
    /// Who is signed in.
    pub account: AccountId,
    /// The address they signed in with.
    pub login: LoginId,
    /// When the person signed in.
    pub started_at: i64,
    /// When they last typed a code.
    pub confirmed_at: i64,
    /// Now.
    pub seen_at: i64,
    /// When it ends whatever happens.
    pub expires_at: i64,
    /// A form that is kept with it.
    pub draft: Option<Draft>,
}

/// A form that was sent, kept until its sender has confirmed who they are.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The page it belongs to.
    pub path: String,
    /// Its fields, as a browser sends them.
    pub form: String,
}

/// A session as it is stored, with what is known of its owner. All times are Unix microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// Who is signed in.
    pub account: AccountId,
    /// Whether they may be.
    pub status: AccountStatus,
    /// The login they used.
    pub login: LoginId,
    /// Its kind.
    pub kind: LoginKind,
    /// Its address.
    pub address: Arc<str>,
    /// When the person signed in.
    pub started_at: i64,
    /// When they last typed a code.
    pub confirmed_at: i64,
    /// When it was last noted that it is used.
    pub seen_at: i64,
    /// When it ends whatever happens.
    pub expires_at: i64,
    /// A form that is kept with it.
    pub draft: Option<Draft>,
}

/// A one-time code to be stored. All times are Unix microseconds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLoginCode {
    /// Its id.
    pub id: LoginCodeId,
    /// SHA-256 of the browser's session value: nobody else can use it.
    pub session_hash: [u8; 32],
    /// What it is for.
    pub purpose: CodePurpose,
    /// The kind of address it was sent to.
    pub kind: LoginKind,
    /// The address.
    pub address: Arc<str>,
    /// The login it signs in to, if the address has one.
    pub login: Option<LoginId>,
    /// The code's keyed digest.
    pub code_hash: [u8; 32],
    /// Now.
    pub created_at: i64,
    /// When it ends.
    pub expires_at: i64,
}

/// A one-time code as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginCodeRow {
    /// What was stored.
    pub code: NewLoginCode,
    /// Tries so far.
    pub attempts: i64,
}

/// At most so many sendings within so much time, by what is counted under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendLimit {
    /// What is counted.
    pub key: [u8; 32],
    /// How many and in which time (microseconds); each holds.
    pub rules: Vec<(i64, i64)>,
}

/// What failures lead to. All times are microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// Failures are counted anew after this time.
    pub window: i64,
    /// So many have no consequence.
    pub free: i64,
    /// The first one after them bars the key for so long, each further one for twice as long as the one before.
    pub delay: i64,
    /// But never for longer.
    pub delay_max: i64,
}

/// A message to be queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// Its id.
    pub id: MessageId,
    /// How it leaves.
    pub kind: LoginKind,
    /// Where to. Empty for a message to nobody, which is stored like all others so that storing takes the same time.
    pub recipient: Arc<str>,
    /// What it is about.
    pub purpose: CodePurpose,
    /// What it says, sealed.
    pub sealed: Vec<u8>,
    /// Unix microseconds.
    pub created_at: i64,
    /// Unix microseconds after which it is worth nothing.
    pub expires_at: i64,
}

/// A message as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// What was queued.
    pub message: NewMessage,
    /// Tries so far.
    pub tries: i64,
}

/// What is stored about people signing in. Every method blocks, as those of [`crate::Read`] do.
pub trait SigninRead: Send + Sync {
    /// The session of this digest, ended or not.
    fn session(&self, hash: &[u8; 32]) -> Result<Option<SessionRow>, ReadError>;

    /// The code of the browser with this session digest, ended or not.
    fn login_code(&self, session_hash: &[u8; 32]) -> Result<Option<LoginCodeRow>, ReadError>;

    /// The login of this address.
    fn login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<(LoginId, AccountId)>, ReadError>;

    /// Until when a key is barred by its failures (Unix microseconds); 0 when it is not.
    fn barred_until(&self, key: &[u8; 32]) -> Result<i64, ReadError>;

    /// At most `limit` messages that may leave at `now`, the oldest first.
    fn messages_due(&self, now: i64, limit: usize) -> Result<Vec<MessageRow>, ReadError>;

    /// When the next message may leave (Unix microseconds).
    fn next_message_at(&self) -> Result<Option<i64>, ReadError>;

    /// Credits promised at sign-up and not yet booked.
    fn grants_owed(&self) -> Result<Vec<(AccountId, Micros)>, ReadError>;
}
