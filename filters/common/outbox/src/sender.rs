//! What a way out does, and how it can fail.

use std::error::Error;

use async_trait::async_trait;
use zeroize::Zeroizing;

/// A message, ready to leave.
pub struct OutgoingMessage {
    /// What receivers tell copies by: 32 hex digits.
    pub id: String,
    /// Where to.
    pub recipient: String,
    /// One line on what it is; by mail alone.
    pub subject: String,
    /// What it says.
    pub text: Zeroizing<String>,
    /// When it was queued (Unix microseconds).
    pub created_at: i64,
}

/// Why a message did not leave.
#[derive(Debug)]
pub enum SendError {
    /// It may leave later.
    Transient(Box<dyn Error + Send + Sync>),
    /// It never will: whoever takes messages there does not take this one.
    Permanent(Box<dyn Error + Send + Sync>),
}

/// A way out.
#[async_trait]
pub trait Sender: Send + Sync {
    /// Hands the message to whoever delivers it.
    async fn send(&self, message: &OutgoingMessage) -> Result<(), SendError>;
}
