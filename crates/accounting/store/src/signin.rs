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

    /// Whether an address belongs to the mailbox.
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
    /// Starts a session and replaces an earlier session of the browser.
    StartSession {
        /// The session.
        session: NewSession,
        /// The digest of the replaced session.
        replaces: Option<[u8; 32]>,
    },
    /// Refuses the unit when a session has ended: [`crate::Refusal::SessionEnded`]. Precedes parts that grant more than the session. A
    /// request in progress when its session was ended has no effect.
    RequireSession {
        /// The session's digest.
        hash: [u8; 32],
        /// The time at which the session has to be valid.
        at: Timestamp,
    },
    /// Records the use of a session. The session's idle timeout restarts.
    SeeSession {
        /// The session's digest.
        hash: [u8; 32],
        /// The time of the use.
        at: Timestamp,
    },
    /// Stores a form with a session, or deletes the stored form.
    KeepDraft {
        /// The session's digest.
        hash: [u8; 32],
        /// The form.
        draft: Option<Draft>,
    },
    /// Ends a session. No error for a session that has ended.
    EndSession {
        /// The session's digest.
        hash: [u8; 32],
    },
    /// Ends every session of an account.
    EndSessions {
        /// The account.
        account: AccountId,
    },
    /// Counts a message against several limits. [`crate::Refusal::TooMany`] when a limit is reached.
    CountSend {
        /// The limits.
        limits: Vec<SendLimit>,
        /// The time of the message.
        at: Timestamp,
    },
    /// Records a sign-in under the key of an address and a network.
    RecordSignIn {
        /// The key.
        key: [u8; 32],
        /// The time of the sign-in.
        at: Timestamp,
    },
    /// Stores a code and replaces the browser's earlier code.
    PutCode(NewLoginCode),
    /// Counts an attempt before the code is verified. [`crate::Refusal::CodeUnusable`] when the code has expired or has no attempts left.
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
        /// The key under which the failure is counted.
        key: [u8; 32],
        /// The count's window, and the lockout.
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
    /// Refuses the unit when a credential was revoked: [`crate::Refusal::CredentialConflict`]. Precedes the revocation in a unit that only
    /// the first of several equal requests may write.
    RequireUnrevoked {
        /// The credential.
        credential: CredentialId,
    },
    /// A message or notice was delivered, or never will be.
    DropMessage {
        /// The message.
        id: MessageId,
    },
    /// Claims a message or notice for one attempt, before the attempt. [`crate::Refusal::MessageClaimed`] after another attempt since the
    /// read, or for a removed message. A claimed message is due again after its expiry, or after [`SigninPart::DelayMessage`].
    ClaimMessage {
        /// The message.
        id: MessageId,
        /// The number of attempts at the time of the read.
        tries: i64,
    },
    /// Schedules the retry of a message that the receiver did not accept. No effect after another attempt.
    DelayMessage {
        /// The message.
        id: MessageId,
        /// The number of attempts, including the failed attempt.
        tries: i64,
        /// The time of the retry.
        next_at: Timestamp,
    },
    /// Promises signup credits to a new account. No effect when the address has had credits, when the mailbox is a login of another
    /// account, or when a limit is reached.
    OweGrant {
        /// The account.
        account: AccountId,
        /// The amount.
        amount: Micros,
        /// Digest of the address without its tag.
        address: [u8; 32],
        /// The spellings of the mailbox; empty for a phone number, since a number is a login of one account.
        mailboxes: Vec<Mailbox>,
        /// Limits under other keys.
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
        /// The present time, for expiry.
        now: Timestamp,
        /// Sessions without a use since this time have ended too.
        idle_before: Timestamp,
        /// Messages sent before this time count against no limit.
        sent_before: Timestamp,
        /// Sign-ins before this time are forgotten.
        signed_in_before: Timestamp,
        /// Maximum number of rows per kind.
        limit: i64,
    },
}

impl SigninPart {
    /// The id and the time of the message or notice that the part queues; `None` for another part.
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

/// The id of a message, also the receivers' deduplication key.
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
    /// SHA-256 of the session value.
    pub hash: [u8; 32],
    /// The signed-in account.
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
    /// The path of the form's page.
    pub path: String,
    /// The form's fields, as a browser sends them.
    pub form: String,
}

/// A stored session, with data of its owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionRow {
    /// The signed-in account.
    pub account: AccountId,
    /// The account's status.
    pub status: AccountStatus,
    /// The login used.
    pub login: LoginId,
    /// The login's kind.
    pub kind: LoginKind,
    /// The login's address.
    pub address: Arc<str>,
    /// Time of sign-in.
    pub started_at: Timestamp,
    /// Time of the last verified code.
    pub confirmed_at: Timestamp,
    /// Time of the last recorded use.
    pub seen_at: Timestamp,
    /// Absolute expiry.
    pub expires_at: Timestamp,
    /// The stored form.
    pub draft: Option<Draft>,
}

/// A new one-time code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewLoginCode {
    /// The code's id.
    pub id: LoginCodeId,
    /// SHA-256 of the browser's session value: the code is valid in no other browser.
    pub session_hash: [u8; 32],
    /// The code's purpose.
    pub purpose: CodePurpose,
    /// The kind of the recipient's address.
    pub kind: LoginKind,
    /// The address.
    pub address: Arc<str>,
    /// The login of the address, if the address has a login.
    pub login: Option<LoginId>,
    /// The code's keyed digest.
    pub code_hash: [u8; 32],
    /// Now.
    pub created_at: Timestamp,
    /// The code's expiry.
    pub expires_at: Timestamp,
}

/// A stored one-time code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoginCodeRow {
    /// The row as stored.
    pub code: NewLoginCode,
    /// Number of attempts.
    pub attempts: i64,
}

/// A limit on messages, or on promised signup credits, under a key. The limit is a maximum number within a window.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SendLimit {
    /// The counted key.
    pub key: [u8; 32],
    /// Count and window; every rule applies.
    pub rules: Vec<(i64, Duration)>,
}

/// Exponential backoff after failures.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FailureRule {
    /// The failure count restarts after this time.
    pub window: Duration,
    /// Number of failures without a consequence.
    pub free: i64,
    /// Lockout after the first failure beyond `free`; every further failure doubles the lockout.
    pub delay: Duration,
    /// Maximum lockout.
    pub delay_max: Duration,
}

/// A message to be queued.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewMessage {
    /// The message's id.
    pub id: MessageId,
    /// The delivery channel.
    pub kind: LoginKind,
    /// The recipient. Empty for a message that is not sent: storing a message always takes as long.
    pub recipient: Arc<str>,
    /// The message's subject.
    pub purpose: CodePurpose,
    /// The message's content, sealed.
    pub sealed: Vec<u8>,
    /// The time of queueing.
    pub created_at: Timestamp,
    /// The time after which the message is not delivered.
    pub expires_at: Timestamp,
}

/// A stored message.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// The message as queued.
    pub message: NewMessage,
    /// Number of attempts begun.
    pub tries: i64,
}

/// A notice to be queued, by mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewNotice {
    /// The notice's id.
    pub id: MessageId,
    /// The notice's subject.
    pub kind: NoticeKind,
    /// The login whose address receives the notice.
    pub login: LoginId,
    /// The credential in question.
    pub credential: CredentialId,
    /// The time of queueing, also the time of the event.
    pub created_at: Timestamp,
    /// The time after which the notice is not delivered.
    pub expires_at: Timestamp,
}

/// A stored notice with its content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NoticeRow {
    /// The notice as queued.
    pub notice: NewNotice,
    /// The recipient's address.
    pub recipient: Arc<str>,
    /// The label of the credential.
    pub label: Option<Arc<str>>,
    /// The displayable part of the credential.
    pub hint: Option<Arc<str>>,
    /// Number of attempts begun.
    pub tries: i64,
}
