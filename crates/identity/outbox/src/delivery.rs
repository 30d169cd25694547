//! Message delivery: empties the outbox, at most once each, with exponential backoff after attempts without the receiver's acceptance.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tollgate_clock::{Backoff, Clock, Jitter, Timestamp};
use tollgate_counters::{Counters, labels};
use tollgate_identity::Signin;
use tollgate_identity::signin::{MessageContent, QueuedMessage};
use tollgate_module::Snapshot;
use tollgate_store::{
    ChangeKind, ChangeRow, CommitError, Effect, LoginKind, MessageId, Observer, Part, ReadError,
    Store,
};
use zeroize::Zeroizing;

use crate::sender::{OutgoingMessage, SendError, Sender};
use crate::text;

/// Backoff of a code, for which a person waits.
const CODE_BACKOFF: Backoff = Backoff {
    base: Duration::from_secs(1),
    max: Duration::from_secs(30),
    jitter: Jitter::None,
};

/// Backoff of a notice, which is tried for days.
const NOTICE_BACKOFF: Backoff = Backoff {
    max: Duration::from_mins(15),
    ..CODE_BACKOFF
};

/// Messages read from the queue at once.
const BATCH: usize = 64;

/// Messages sent concurrently.
const CONCURRENCY_MAX: usize = 8;

/// Timeout of one attempt, for any sender.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// Polling interval of the queue between wake-ups by commits.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The configured senders, by kind of message.
#[derive(Clone, Default)]
pub struct Senders {
    pub mail: Option<Arc<dyn Sender>>,
    /// Text messages.
    pub sms: Option<Arc<dyn Sender>>,
}

/// The queue of messages and its senders.
pub struct Outbox {
    signin: Signin,
    senders: Snapshot<Senders>,
    /// The name of the service.
    service: String,
    /// The host bound to the codes.
    host: String,
    clock: Clock,
    counters: Arc<Counters<Delivery>>,
    attempts: Attempts,
    wake: Arc<Notify>,
}

labels! {
    /// The result of an attempt to deliver a message.
    pub enum Delivery {
        /// Accepted by the receiver.
        Sent = "sent",
        /// The attempt failed, and is repeated.
        Failed = "failed",
        /// Possibly accepted by the receiver, with an unread answer; not repeated.
        Unknown = "unknown",
        /// Refused for good by the receiver, usually for the address.
        Rejected = "rejected",
        /// Dropped: the code had expired before an attempt succeeded, or the node ended during an attempt.
        Expired = "expired",
    }
}

/// Wakes the delivery when a message was queued.
struct QueueObserver(Arc<Notify>);

impl Observer for QueueObserver {
    fn committed(&self, part: &Part, _: Effect) {
        if let Part::Signin(part) = part
            && part.queued().is_some()
        {
            self.0.notify_one();
        }
    }

    fn changed(&self, change: &ChangeRow) -> Result<(), ReadError> {
        if change.kind == ChangeKind::Message {
            self.0.notify_one();
        }
        Ok(())
    }
}

impl Outbox {
    /// An outbox, active from [`Outbox::run`] on, that delivers each message through the senders in force. Messages of a kind without a
    /// sender are dropped.
    pub fn new(
        store: &dyn Store,
        signin: Signin,
        senders: Snapshot<Senders>,
        (service, host): (&str, &str),
        clock: Clock,
    ) -> Outbox {
        let wake = Arc::new(Notify::new());
        store.observe(Arc::new(QueueObserver(wake.clone())));
        Outbox {
            signin,
            senders,
            service: service.to_owned(),
            host: host.to_owned(),
            clock,
            counters: Arc::default(),
            attempts: Attempts::default(),
            wake,
        }
    }

    /// The counters of attempts.
    pub fn counters(&self) -> Arc<Counters<Delivery>> {
        self.counters.clone()
    }

    /// The attempts under way, for a graceful stop to wait for.
    pub fn attempts(&self) -> Attempts {
        self.attempts.clone()
    }

    /// Delivers queued messages, and waits for more; never ends. An attempt under way goes on when this is dropped.
    pub async fn run(&self) {
        loop {
            let wait = match self.deliver_due().await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::error!(%error, "processing message queue failed, retrying");
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Sends every due message; returns the time until the next one is due.
    async fn deliver_due(&self) -> Result<Duration, QueueError> {
        loop {
            let due = self.signin.messages_due(self.clock.now(), BATCH).await?;
            if due.is_empty() {
                let next = self.signin.next_message_at().await?;
                let wait = next.map_or(POLL_INTERVAL, |next| next.duration_since(self.clock.now()));
                return Ok(wait.min(POLL_INTERVAL));
            }
            // A few at once: a slow receiver delays only the messages of its chunk, and the claims of a chunk are one commit.
            for some in due.chunks(CONCURRENCY_MAX) {
                let mut running = Vec::new();
                // A failed write must not cancel the other messages of the chunk: some may already have been sent.
                let mut failure = None;
                for message in some {
                    match self.attempt(message) {
                        Some(attempt) => match self.attempts.spawn(attempt.run()) {
                            Some(attempt) => running.push(attempt),
                            None => return Ok(POLL_INTERVAL),
                        },
                        None => {
                            self.counters.inc(Delivery::Expired);
                            if let Err(error) = self.signin.message_done(message.id).await {
                                failure = Some(error.into());
                            }
                        }
                    }
                }
                for attempt in running {
                    // After a panic the attempt left no record; the claim lasts until the message expires.
                    if let Ok(Err(error)) = attempt.await {
                        failure = Some(error);
                    }
                }
                if let Some(error) = failure {
                    return Err(error);
                }
            }
        }
    }

    /// The next attempt; `None` for a message without a sender, or an expired message.
    fn attempt(&self, message: &QueuedMessage) -> Option<Attempt> {
        let sender = match message.kind {
            LoginKind::Phone => self.senders.load().sms.clone(),
            _ => self.senders.load().mail.clone(),
        };
        let sender = sender?;
        if message.recipient.is_empty() || message.expires_at <= self.clock.now() {
            return None;
        }
        let outgoing = OutgoingMessage {
            id: message.id.to_string(),
            recipient: message.recipient.to_string(),
            subject: text::subject(&message.content, &self.service),
            text: self.text(message),
            created_at: message.created_at,
        };
        let backoff = match message.content {
            MessageContent::Code { .. } => CODE_BACKOFF,
            MessageContent::KeyRevoked { .. } => NOTICE_BACKOFF,
        };
        Some(Attempt {
            id: message.id,
            tries: message.tries,
            expires_at: message.expires_at,
            backoff,
            outgoing,
            sender,
            signin: self.signin.clone(),
            clock: self.clock.clone(),
            counters: self.counters.clone(),
        })
    }

    fn text(&self, message: &QueuedMessage) -> Zeroizing<String> {
        let (service, host) = (&*self.service, &*self.host);
        match &message.content {
            MessageContent::Code { code, purpose } => match message.kind {
                LoginKind::Phone => text::sms(code, service, host),
                _ => text::mail(code, *purpose, service, host),
            },
            MessageContent::KeyRevoked { label, hint } => {
                let key = (label.as_deref(), hint.as_deref());
                text::key_revoked(key, message.created_at, service, host).into()
            }
        }
    }
}

/// Attempts under way. Cheap to clone.
#[derive(Clone, Default)]
pub struct Attempts(TaskTracker);

impl Attempts {
    /// Starts an attempt; `None` after [`Attempts::finish`]: a process about to end would not send the claimed message.
    fn spawn(
        &self,
        attempt: impl Future<Output = Result<(), QueueError>> + Send + 'static,
    ) -> Option<JoinHandle<Result<(), QueueError>>> {
        // The token before the check: a concurrent end waits for the token.
        let _token = self.0.token();
        (!self.0.is_closed()).then(|| self.0.spawn(attempt))
    }

    /// Admits no more attempts, and waits for the ends of those under way.
    pub async fn finish(&self) {
        self.0.close();
        self.0.wait().await;
    }
}

/// An attempt to deliver a message.
struct Attempt {
    id: MessageId,
    /// Earlier attempts.
    tries: i64,
    expires_at: Timestamp,
    backoff: Backoff,
    outgoing: OutgoingMessage,
    sender: Arc<dyn Sender>,
    signin: Signin,
    clock: Clock,
    counters: Arc<Counters<Delivery>>,
}

impl Attempt {
    /// Claims the message, sends the message and records the result. Between the claim and the result no other attempt begins, on any node,
    /// even after a crash: a claim without a result ends with the message.
    async fn run(self) -> Result<(), QueueError> {
        let id = self.id;
        if !self.signin.claim_message(id, self.tries).await? {
            tracing::debug!(%id, "message claimed by another attempt, skipped");
            return Ok(());
        }
        // This process may have been paused since the claim.
        if self.expires_at <= self.clock.now() {
            return self.expire("paused").await;
        }
        let sent = tokio::time::timeout(SEND_TIMEOUT, self.sender.send(&self.outgoing)).await;
        let sent = sent.unwrap_or_else(|_| Err(SendError::Unknown("timed out".into())));
        match sent {
            Ok(()) => {
                self.counters.inc(Delivery::Sent);
                tracing::info!(%id, tries = self.tries + 1, "message sent");
                self.done().await
            }
            Err(SendError::Permanent(error)) => {
                self.counters.inc(Delivery::Rejected);
                tracing::warn!(%id, %error, "message rejected permanently, dropped");
                self.done().await
            }
            Err(SendError::Unknown(error)) => {
                self.counters.inc(Delivery::Unknown);
                tracing::warn!(%id, %error, "message delivery ended without an answer, not repeated");
                self.done().await
            }
            Err(SendError::Transient(error)) => self.retry(&*error).await,
        }
    }

    async fn retry(self, error: &(dyn Error + Send + Sync)) -> Result<(), QueueError> {
        let wait = self.backoff.exact(self.tries.clamp(0, 31) as u32);
        let next = self.clock.now() + wait;
        if next >= self.expires_at {
            return self.expire(error).await;
        }
        let id = self.id;
        self.counters.inc(Delivery::Failed);
        tracing::warn!(%id, %error, wait_ms = wait.as_millis() as u64, "message delivery failed, retrying");
        let tries = self.tries + 1;
        Ok(self.signin.message_delayed(id, tries, next).await?)
    }

    async fn expire(self, error: impl std::fmt::Display) -> Result<(), QueueError> {
        let id = self.id;
        self.counters.inc(Delivery::Expired);
        tracing::warn!(%id, %error, "message delivery failed until the message expired, dropped");
        self.done().await
    }

    async fn done(self) -> Result<(), QueueError> {
        Ok(self.signin.message_done(self.id).await?)
    }
}

/// Why the queue could not be processed.
#[derive(Debug, thiserror::Error)]
enum QueueError {
    #[error("could not read the queue: {0}")]
    Read(#[from] ReadError),
    #[error("could not write to the queue: {0}")]
    Write(#[from] CommitError),
}

#[cfg(test)]
mod tests;
