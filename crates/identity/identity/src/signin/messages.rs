//! The queue of messages, for their delivery: codes, and notices to the owners of accounts.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_store::{
    CodePurpose, CommitError, LoginKind, MessageId, MessageRow, NoticeRow, ReadError, Refusal,
    SigninPart, reading,
};
use zeroize::Zeroizing;

use super::Signin;

pub struct QueuedMessage {
    /// The deduplication id for receivers.
    pub id: MessageId,
    /// The kind of address, which selects the sender.
    pub kind: LoginKind,
    /// The recipient; empty for a decoy.
    pub recipient: Arc<str>,
    /// What it says.
    pub content: MessageContent,
    /// Attempts begun so far.
    pub tries: i64,
    /// Time of queueing.
    pub created_at: Timestamp,
    /// When it expires.
    pub expires_at: Timestamp,
}

pub enum MessageContent {
    /// A one-time code.
    Code {
        purpose: CodePurpose,
        code: Zeroizing<String>,
    },
    /// An API key was revoked by someone who has the key, at the time at which the message was queued.
    KeyRevoked {
        /// The label of the key.
        label: Option<Arc<str>>,
        /// The displayable part of the key.
        hint: Option<Arc<str>>,
    },
}

impl Signin {
    /// The messages that are due: codes first.
    pub async fn messages_due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<QueuedMessage>, ReadError> {
        let read = reading(&self.store, move |read| -> Result<_, ReadError> {
            Ok((
                read.messages_due(now, limit)?,
                read.notices_due(now, limit)?,
            ))
        });
        let (codes, notices) = read.await?;
        let codes = codes.into_iter().map(|row| self.open(row));
        Ok(codes.chain(notices.into_iter().map(notice)).collect())
    }

    fn open(&self, row: MessageRow) -> QueuedMessage {
        let MessageRow { message, tries } = row;
        let code = self.keys.seal(message.id, &message.sealed);
        QueuedMessage {
            id: message.id,
            kind: message.kind,
            recipient: message.recipient,
            content: MessageContent::Code {
                purpose: message.purpose,
                code: String::from_utf8(code).unwrap_or_default().into(),
            },
            tries,
            created_at: message.created_at,
            expires_at: message.expires_at,
        }
    }

    /// When the next message is due.
    pub async fn next_message_at(&self) -> Result<Option<Timestamp>, ReadError> {
        reading(&self.store, |read| read.next_message_at()).await
    }

    /// A message was sent or dropped.
    pub async fn message_done(&self, id: MessageId) -> Result<(), CommitError> {
        self.finish([SigninPart::DropMessage { id }]).await
    }

    /// Claims a message for one attempt, durably; `false` when another attempt has the message, or has ended the message. `tries`: the
    /// count as read with the message. Without [`Signin::message_delayed`] no other attempt follows.
    pub async fn claim_message(&self, id: MessageId, tries: i64) -> Result<bool, CommitError> {
        match self.commit([SigninPart::ClaimMessage { id, tries }]).await {
            Ok(()) => Ok(true),
            Err(CommitError::Refused(Refusal::MessageClaimed)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// A claimed message was not accepted, and is retried later. `tries` counts the attempt that has ended.
    pub async fn message_delayed(
        &self,
        id: MessageId,
        tries: i64,
        next_at: Timestamp,
    ) -> Result<(), CommitError> {
        self.finish([SigninPart::DelayMessage { id, tries, next_at }])
            .await
    }
}

/// A notice has a single kind, and goes by mail.
fn notice(row: NoticeRow) -> QueuedMessage {
    QueuedMessage {
        id: row.notice.id,
        kind: LoginKind::Email,
        recipient: row.recipient,
        content: MessageContent::KeyRevoked {
            label: row.label,
            hint: row.hint,
        },
        tries: row.tries,
        created_at: row.notice.created_at,
        expires_at: row.notice.expires_at,
    }
}
