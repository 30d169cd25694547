//! The task that empties the queue.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;
use tollgate_filter::Clock;
use tollgate_identity::Signin;
use tollgate_identity::signin::CodeMessage;
use tollgate_store::{
    CommitError, Effect, LoginKind, Observer, Part, ReadError, SigninPart, Store,
};

use crate::sender::{OutgoingMessage, SendError, Sender};
use crate::text;

/// The wait after the first failure (microseconds); each further one is twice as long as the one before.
const BACKOFF_BASE: i64 = 1_000_000;

/// But no longer than this.
const BACKOFF_MAX: i64 = 30_000_000;

/// Messages looked at in one go.
const BATCH: usize = 64;

/// Messages on their way at once.
const CONCURRENCY_MAX: usize = 8;

/// How long one attempt may take.
const SEND_TIMEOUT: Duration = Duration::from_secs(20);

/// The queue is looked at this often although nobody has rung.
const POLL_INTERVAL: Duration = Duration::from_secs(30);

/// The ways out. One that is not set up is missing.
#[derive(Clone, Default)]
pub struct Senders {
    /// Mail.
    pub mail: Option<Arc<dyn Sender>>,
    /// Text messages.
    pub sms: Option<Arc<dyn Sender>>,
}

/// The queue of messages, and the ways out.
pub struct Outbox {
    signin: Signin,
    mail: Option<Arc<dyn Sender>>,
    sms: Option<Arc<dyn Sender>>,
    /// What the service is called.
    service: String,
    /// The host that codes are for.
    host: String,
    clock: Clock,
    wake: Arc<Notify>,
}

/// Rings when a message was queued.
struct QueueObserver(Arc<Notify>);

impl Observer for QueueObserver {
    fn committed(&self, part: &Part, _: Effect) {
        if let Part::Signin(part) = part
            && matches!(**part, SigninPart::QueueMessage(_))
        {
            self.0.notify_one();
        }
    }
}

impl Outbox {
    /// A queue that empties itself by these ways once [`Outbox::run`] is called. Messages whose way is not set up are dropped.
    pub fn new(
        store: &dyn Store,
        signin: Signin,
        Senders { mail, sms }: Senders,
        (service, host): (&str, &str),
        clock: Clock,
    ) -> Outbox {
        let wake = Arc::new(Notify::new());
        store.observe(Arc::new(QueueObserver(wake.clone())));
        Outbox {
            signin,
            mail,
            sms,
            service: service.to_owned(),
            host: host.to_owned(),
            clock,
            wake,
        }
    }

    /// Sends what is queued, and waits for more; never ends.
    pub async fn run(&self) {
        loop {
            let wait = match self.deliver_due().await {
                Ok(wait) => wait,
                Err(error) => {
                    tracing::error!(%error, "the queue of messages could not be worked on");
                    Duration::from_secs(1)
                }
            };
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    /// Sends what may leave now; gives the time until more may.
    async fn deliver_due(&self) -> Result<Duration, QueueError> {
        loop {
            let now = self.clock.unix_micros();
            let due = self.signin.messages_due(now, BATCH).await?;
            if due.is_empty() {
                let next = self.signin.next_message_at().await?;
                let wait = next.map_or(POLL_INTERVAL, |next| {
                    let wait = (next - self.clock.unix_micros()).max(0);
                    Duration::from_micros(wait.unsigned_abs())
                });
                return Ok(wait.min(POLL_INTERVAL));
            }
            // A few at once: one slow receiver does not keep the others waiting for long.
            for some in due.chunks(CONCURRENCY_MAX) {
                let mut sending = tokio::task::JoinSet::new();
                let mut ends = Vec::new();
                // A note that fails must not cut off the other messages of the chunk: they may have left already.
                let mut failure = None;
                for message in some {
                    match self.attempt(message) {
                        Some(attempt) => {
                            sending.spawn(attempt);
                        }
                        None => ends.push(message.id),
                    }
                }
                for id in ends {
                    if let Err(error) = self.signin.message_done(id).await {
                        failure = Some(error.into());
                    }
                }
                while let Some(ended) = sending.join_next().await {
                    // An attempt that panicked has noted nothing, and is made again.
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

    /// One attempt; `None` for a message that has nowhere to go or comes too late.
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
            LoginKind::Phone => self.sms.clone(),
            _ => self.mail.clone(),
        };
        let sender = sender?;
        if message.recipient.is_empty() || message.expires_at <= self.clock.unix_micros() {
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
            let sent =
                sent.unwrap_or_else(|_| Err(SendError::Transient("no answer in time".into())));
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
                tracing::info!(message = %message.id, tries = message.tries + 1, "a message has left");
                self.signin.message_done(message.id).await?;
            }
            Err(SendError::Permanent(error)) => {
                tracing::warn!(message = %message.id, %error, "a message was refused and is given up");
                self.signin.message_done(message.id).await?;
            }
            Err(SendError::Transient(error)) => {
                let doublings = message.tries.clamp(0, 10);
                let wait = (BACKOFF_BASE << doublings).min(BACKOFF_MAX);
                let next = self.clock.unix_micros() + wait;
                if next >= message.expires_at {
                    tracing::warn!(message = %message.id, %error, "a message did not leave in time and is given up");
                    self.signin.message_done(message.id).await?;
                } else {
                    tracing::warn!(message = %message.id, %error, wait_ms = wait / 1000, "a message did not leave and is tried again");
                    self.signin.message_delayed(message.id, next).await?;
                }
            }
        }
        Ok(())
    }
}

/// Why the queue could not be worked on.
#[derive(Debug, thiserror::Error)]
enum QueueError {
    #[error("could not read it: {0}")]
    Read(#[from] ReadError),
    #[error("could not write to it: {0}")]
    Write(#[from] CommitError),
}
