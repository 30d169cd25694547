//! Sign-in: sessions, one-time codes, rate limits against guessing, and outgoing messages.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, LoginId, Micros};

use crate::codes::{AccountStatus, CodePurpose, LoginKind, NoticeKind};

/// A mailbox, whose addresses differ in their tags.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mailbox {
    /// The local part without a tag.
    pub local: Arc<str>,
    /// The domain.
    pub domain: Arc<str>,
}

impl Mailbox {
    pub(crate) fn untagged(&self) -> String {
        format!("{}@{}", self.local, self.domain)
    }

    /// Whether an address is of this mailbox.
    pub(crate) fn has(&self, address: &str) -> bool {
        address.rsplit_once('@').is_some_and(|(local, domain)| {
            let tag = local.strip_prefix(&*self.local);
            domain == &*self.domain && tag.is_some_and(|tag| tag.is_empty() || tag.starts_with('+'))
        })
    }
}

/// A change of sign-in data.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum SigninPart {
    /// Starts a session, replacing an earlier one of the same browser.
    StartSession {
        /// The session.
        session: NewSession,
        /// The digest of the replaced session.
        replaces: Option<[u8; 32]>,
    },
    /// Refuses the unit when a session has ended: [`crate::Refusal::SessionEnded`]. Precedes parts that grant more than the session itself,
    /// so that a request in progress when its session was ended has no effect.
    RequireSession {
        /// Its digest.
        hash: [u8; 32],
        /// The time at which it has to be valid.
        at: Timestamp,
    },
    /// Records the use of a session, so that its idle timeout restarts.
    SeeSession {
        /// Its digest.
        hash: [u8; 32],
        /// The time of the use.
        at: Timestamp,
    },
    /// Stores a form with a session, or deletes the stored one.
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
    /// Counts one message against several limits: [`crate::Refusal::TooMany`] when one of them is reached.
    CountSend {
        /// The limits.
        limits: Vec<SendLimit>,
        /// The time of the message.
        at: Timestamp,
    },
    /// Records a sign-in by a key, that of an address and a network.
    RecordSignIn {
        /// The key.
        key: [u8; 32],
        /// The time of the sign-in.
        at: Timestamp,
    },
    /// Stores a code, replacing the browser's earlier one.
    PutCode(NewLoginCode),
    /// Counts an attempt before it is verified: [`crate::Refusal::CodeUnusable`] when the code has no attempts left, or has expired.
    TryCode {
        /// The code.
        id: LoginCodeId,
        /// Maximum number of attempts for a code.
        tries_max: i64,
        /// The time of the attempt.
        at: Timestamp,
    },
    /// Consumes a correct code: [`crate::Refusal::CodeUnusable`] for every request but the first.
    SpendCode {
        /// The code.
        id: LoginCodeId,
    },
    /// Counts a failure.
    CountFailure {
        /// The key it is counted by.
        key: [u8; 32],
        /// When it is forgotten, and its effect until then.
        rule: FailureRule,
        /// The time of the failure.
        at: Timestamp,
    },
    /// Forgets the failures of a key.
    ForgetFailures {
        /// The key.
        key: [u8; 32],
    },
    /// Queues a message with a code.
    QueueMessage(NewMessage),
    /// Queues a notice.
    QueueNotice(NewNotice),
    /// Refuses the unit when a credential was revoked: [`crate::Refusal::CredentialConflict`]. Precedes the revocation in a unit that only the first
    /// of several equal requests may write.
    RequireUnrevoked {
        /// The credential.
        credential: CredentialId,
    },
    /// A message or notice was delivered, or never will be.
    DropMessage {
        /// Which.
        id: MessageId,
    },
    /// Claims a message or notice for one attempt, before it: [`crate::Refusal::MessageClaimed`] when another attempt has been made since it was read, or
    /// it is gone. It is due again only when it has expired, or after [`SigninPart::DelayMessage`].
    ClaimMessage {
        /// Which.
        id: MessageId,
        /// The attempts of which its reader knows.
        tries: i64,
    },
    /// The receiver did not accept a message, and it is retried. Changes nothing after another attempt.
    DelayMessage {
        /// Which.
        id: MessageId,
        /// The attempts up to this one.
        tries: i64,
        /// When it is tried again.
        next_at: Timestamp,
    },
    /// Promises signup credits to a new account, unless its address has had some, its mailbox is a login of another account, or a limit is
    /// reached: then it changes nothing.
    OweGrant {
        /// The account.
        account: AccountId,
        /// The amount.
        amount: Micros,
        /// Digest of the address without its tag.
        address: [u8; 32],
        /// The spellings of the mailbox; empty for a number, which is a login of one account.
        mailboxes: Vec<Mailbox>,
        /// Limits by other keys.
        limits: Vec<SendLimit>,
        /// The time of the promise.
        at: Timestamp,
    },
    /// The promised credits were booked.
    GrantBooked {
        /// The account.
        account: AccountId,
    },
    /// Deletes expired sessions, codes, counters and messages.
    Sweep {
        /// The time by which they have expired.
        now: Timestamp,
        /// Sessions not used since then have ended too.
        idle_before: Timestamp,
        /// Messages sent before then count against no limit.
        sent_before: Timestamp,
        /// Sign-ins before then are forgotten.
        signed_in_before: Timestamp,
        /// Maximum number of rows of each kind.
        limit: i64,
    },
}

impl SigninPart {
    /// The id and the time of the message or notice that this part queues; `None` for another part.
    pub fn queued(&self) -> Option<(MessageId, Timestamp)> {
        match self {
            SigninPart::QueueMessage(message) => Some((message.id, message.created_at)),
            SigninPart::QueueNotice(notice) => Some((notice.id, notice.created_at)),
            _ => None,
        }
    }
}

/// The id of a one-time code.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct LoginCodeId(pub [u8; 16]);

/// The id of a message: also the key by which receivers deduplicate it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct MessageId(pub [u8; 16]);

impl fmt::Display for MessageId {
    /// 32 lower-case hex digits.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", base16ct::HexDisplay(&self.0))
    }
}

/// A new session.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewSession {
    /// SHA-256 of its value.
    pub hash: [u8; 32],
    /// The account that is signed in.
    pub account: AccountId,
    /// The address used for sign-in.
    pub login: LoginId,
    /// Time of sign-in.
    pub started_at: Timestamp,
    /// Time of the last verified code.
    pub confirmed_at: Timestamp,
    /// Now.
    pub seen_at: Timestamp,
    /// Absolute expiry.
    pub expires_at: Timestamp,
    /// The stored form.
    pub draft: Option<Draft>,
}

/// A submitted form, stored until its sender has confirmed their identity.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Draft {
    /// The page it belongs to.
    pub path: String,
    /// Its fields, as a browser sends them.
    pub form: String,
}

/// A stored session, with data of its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// The account that is signed in.
    pub account: AccountId,
    /// Its status.
    pub status: AccountStatus,
    /// The login used.
    pub login: LoginId,
    /// Its kind.
    pub kind: LoginKind,
    /// Its address.
    pub address: Arc<str>,
    /// Time of sign-in.
    pub started_at: Timestamp,
    /// Time of the last verified code.
    pub confirmed_at: Timestamp,
    /// When its use was last recorded.
    pub seen_at: Timestamp,
    /// Absolute expiry.
    pub expires_at: Timestamp,
    /// The stored form.
    pub draft: Option<Draft>,
}

/// A new one-time code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLoginCode {
    /// Its id.
    pub id: LoginCodeId,
    /// SHA-256 of the browser's session value: no other browser can use it.
    pub session_hash: [u8; 32],
    /// Its purpose.
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
    pub created_at: Timestamp,
    /// Its expiry.
    pub expires_at: Timestamp,
}

/// A stored one-time code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginCodeRow {
    /// The row as stored.
    pub code: NewLoginCode,
    /// Attempts so far.
    pub attempts: i64,
}

/// A limit: a maximum number of messages, or of promised signup credits, within a window, counted under one key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendLimit {
    /// The counted key.
    pub key: [u8; 32],
    /// Count and window; all of them apply.
    pub rules: Vec<(i64, Duration)>,
}

/// Exponential backoff after failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// The failure count restarts after this time.
    pub window: Duration,
    /// Number of failures without a consequence.
    pub free: i64,
    /// Lockout after the first failure above them; each further one doubles it.
    pub delay: Duration,
    /// Maximum lockout.
    pub delay_max: Duration,
}

/// A message to be queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// Its id.
    pub id: MessageId,
    /// The delivery channel.
    pub kind: LoginKind,
    /// The recipient. Empty for a message that is not sent, which is stored like all others so that storing takes the same time.
    pub recipient: Arc<str>,
    /// Its subject.
    pub purpose: CodePurpose,
    /// Its content, sealed.
    pub sealed: Vec<u8>,
    /// When it was queued.
    pub created_at: Timestamp,
    /// The time after which it is not delivered any more.
    pub expires_at: Timestamp,
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// The message as queued.
    pub message: NewMessage,
    /// Attempts begun so far.
    pub tries: i64,
}

/// A notice to be queued, by mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNotice {
    /// Its id.
    pub id: MessageId,
    /// What it is about.
    pub kind: NoticeKind,
    /// The login whose address gets it.
    pub login: LoginId,
    /// The credential that it is about.
    pub credential: CredentialId,
    /// When it was queued: also the time of the event.
    pub created_at: Timestamp,
    /// The time after which it is not delivered any more.
    pub expires_at: Timestamp,
}

/// A stored notice, with what it says.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeRow {
    /// The notice as queued.
    pub notice: NewNotice,
    /// The address that gets it.
    pub recipient: Arc<str>,
    /// The label of the credential.
    pub label: Option<Arc<str>>,
    /// The displayable part of the credential.
    pub hint: Option<Arc<str>>,
    /// Attempts begun so far.
    pub tries: i64,
}
