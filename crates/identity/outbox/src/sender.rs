//! Interface of a message sender and its errors.

use std::error::Error;

use async_trait::async_trait;
use tollgate_clock::Timestamp;
use zeroize::Zeroizing;

/// A message to send.
pub struct OutgoingMessage {
    /// Deduplication id for receivers: 32 hex digits.
    pub id: String,
    pub recipient: String,
    /// The subject; used by mail only.
    pub subject: String,
    pub text: Zeroizing<String>,
    /// Time of queueing.
    pub created_at: Timestamp,
}

/// Why sending failed.
#[derive(Debug)]
pub enum SendError {
    /// Transient: the receiver has not accepted the message, and a retry follows.
    Transient(Box<dyn Error + Send + Sync>),
    /// Permanent: the receiver rejects this message.
    Permanent(Box<dyn Error + Send + Sync>),
    /// Unknown: the whole message may have reached the receiver, and the answer was not read. The message is not sent again.
    Unknown(Box<dyn Error + Send + Sync>),
}

/// A channel for messages.
#[async_trait]
pub trait Sender: Send + Sync {
    /// Hands the message to the delivering server.
    async fn send(&self, message: &OutgoingMessage) -> Result<(), SendError>;
}
