//! The queue of messages with codes, for their delivery.

use tollgate_clock::Timestamp;
use tollgate_store::{CommitError, MessageId, ReadError, Refusal, SigninPart, reading};

use super::{CodeMessage, Signin};

impl Signin {
    /// The messages that are due.
    pub async fn messages_due(
        &self,
        now: Timestamp,
        limit: usize,
    ) -> Result<Vec<CodeMessage>, ReadError> {
        let rows = reading(&self.store, move |read| read.messages_due(now, limit)).await?;
        Ok(rows.into_iter().map(|row| self.open(row)).collect())
    }

    /// When the next message is due.
    pub async fn next_message_at(&self) -> Result<Option<Timestamp>, ReadError> {
        reading(&self.store, |read| read.next_message_at()).await
    }

    /// A message was sent or dropped.
    pub async fn message_done(&self, id: MessageId) -> Result<(), CommitError> {
        self.finish([SigninPart::DropMessage { id }]).await
    }

    /// Claims a message for one attempt, durably; `false` when another attempt has it, or has ended it. `tries` is that of the message as it was
    /// read. Without [`Signin::message_delayed`] there is no other attempt.
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
