//! Message delivery: empties the outbox, with exponential backoff between attempts.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_clock::Clock;
use tollgate_counters::{Counters, labels};
use tollgate_identity::Signin;
use tollgate_identity::signin::CodeMessage;
use tollgate_module::Snapshot;
use tollgate_store::{
    ChangeKind, ChangeRow, CommitError, Effect, LoginKind, Observer, Part, ReadError, SigninPart,
    Store,
};

use crate::sender::{OutgoingMessage, SendError, Sender};
use crate::text;

/// Backoff after the first failure; doubled after each further one.
const BACKOFF_BASE: Duration = Duration::from_secs(1);

/// Upper bound of the backoff.
const BACKOFF_MAX: Duration = Duration::from_secs(30);

/// Messages read from the queue at once.
const BATCH: usize = 64;

/// Messages sent concurrently.
const CONCURRENCY_MAX: usize = 8;

/// Timeout of one attempt.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// Polling interval of the queue, unless a commit wakes it.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The configured senders, by kind of message.
#[derive(Clone, Default)]
pub struct Senders {
    /// Mail.
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
    /// The host that codes are bound to.
    host: String,
    clock: Clock,
    counters: Arc<Counters<Delivery>>,
    wake: Arc<Notify>,
}

labels! {
    /// The result of an attempt to deliver a message.
    pub enum Delivery {
        /// It was accepted by the receiver.
        Sent = "sent",
        /// The attempt failed, and is repeated.
        Failed = "failed",
        /// The receiver refuses it for good, for its address as a rule.
        Rejected = "rejected",
        /// It was dropped, since its code had expired before an attempt succeeded.
        Expired = "expired",
    }
}

/// Wakes the delivery when a message was queued.
struct QueueObserver(Arc<Notify>);

impl Observer for QueueObserver {
    fn committed(&self, part: &Part, _: Effect) {
        if let Part::Signin(part) = part
            && matches!(**part, SigninPart::QueueMessage(_))
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
    /// An outbox that delivers each message through the senders in force once [`Outbox::run`] is called. Messages of a kind without a sender are dropped.
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
            wake,
        }
    }

    /// The counters of attempts.
    pub fn counters(&self) -> Arc<Counters<Delivery>> {
        self.counters.clone()
    }

    /// Delivers queued messages, and waits for more; never ends.
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
            // A few at once: a slow receiver delays only the messages of its chunk.
            for some in due.chunks(CONCURRENCY_MAX) {
                let mut sending = tokio::task::JoinSet::new();
                let mut ends = Vec::new();
                // A failed write must not cancel the other messages of the chunk: they may already have been sent.
                let mut failure = None;
                for message in some {
                    match self.attempt(message) {
                        Some(attempt) => {
                            sending.spawn(attempt);
                        }
                        None => {
                            self.counters.inc(Delivery::Expired);
                            ends.push(message.id);
                        }
                    }
                }
                for id in ends {
                    if let Err(error) = self.signin.message_done(id).await {
                        failure = Some(error.into());
                    }
                }
                while let Some(ended) = sending.join_next().await {
                    // An attempt that panicked has recorded nothing, and is repeated.
                    if let Ok((id, result)) = ended
                        && let Some(message) = some.iter().find(|message| message.id == id)
                        && let Err(error) = self.record_result(message, result).await
                    {
                        failure = Some(error);
                    }
                }
                if let Some(error) = failure {
                    return Err(error);
                }
            }
        }
    }

    /// One attempt; `None` for a message without a sender, or one that has expired.
    fn attempt(
        &self,
        message: &CodeMessage,
    ) -> Option<
        impl Future<Output = (tollgate_store::MessageId, Result<(), SendError>)>
        + Send
        + 'static
        + use<>,
    > {
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
            subject: text::subject(&message.code, &self.service),
            text: match message.kind {
                LoginKind::Phone => text::sms(&message.code, &self.service, &self.host),
                _ => text::mail(&message.code, message.purpose, &self.service, &self.host),
            },
            created_at: message.created_at,
        };
        let id = message.id;
        Some(async move {
            let sent = tokio::time::timeout(SEND_TIMEOUT, sender.send(&outgoing)).await;
            let sent = sent.unwrap_or_else(|_| {
                Err(SendError::Transient(
                    "timed out waiting for an answer".into(),
                ))
            });
            (id, sent)
        })
    }

    async fn record_result(
        &self,
        message: &CodeMessage,
        result: Result<(), SendError>,
    ) -> Result<(), QueueError> {
        match result {
            Ok(()) => {
                self.counters.inc(Delivery::Sent);
                tracing::info!(id = %message.id, tries = message.tries + 1, "message sent");
                self.signin.message_done(message.id).await?;
            }
            Err(SendError::Permanent(error)) => {
                self.counters.inc(Delivery::Rejected);
                tracing::warn!(id = %message.id, %error, "message rejected permanently, dropped");
                self.signin.message_done(message.id).await?;
            }
            Err(SendError::Transient(error)) => {
                let doublings = message.tries.clamp(0, 10) as u32;
                let wait = (BACKOFF_BASE * 2u32.pow(doublings)).min(BACKOFF_MAX);
                let next = self.clock.now() + wait;
                if next >= message.expires_at {
                    self.counters.inc(Delivery::Expired);
                    tracing::warn!(id = %message.id, %error, "message delivery failed until the message expired, dropped");
                    self.signin.message_done(message.id).await?;
                } else {
                    self.counters.inc(Delivery::Failed);
                    tracing::warn!(id = %message.id, %error, wait_ms = wait.as_millis() as u64, "message delivery failed, retrying");
                    self.signin.message_delayed(message.id, next).await?;
                }
            }
        }
        Ok(())
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
