//! Idempotency keys of purchases: a repeated request gets the stored answer without a second execution.
//!
//! A request claims its key before any effect. The unit of work of the purchase stores the answer. A repeated request with the key gets
//! that answer, byte for byte.
//!
//! A claim ends when the answer is durable, when the claim is dropped, or with the process. The next start of the node, or the node's
//! recovery by another node, frees every key claimed by the process; the rows of the purchase show its state. So a claim needs no timeout,
//! and a second request cannot take a claim over while the first is in progress.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use sha2::{Digest, Sha256};
use tollgate_clock::Clock;
use tollgate_money::AccountId;
use tollgate_store::{
    Admission, CommitError, Endpoint, IdempotencyKey, IdempotencyPart, KeptAnswer, KeyUse, Part,
    ReadError, Refusal, Store, UnitOfWork, commit, first_token, reading,
};

const HOUR: Duration = Duration::from_secs(3600);

/// Claims idempotency keys and returns stored answers. Cheap to clone.
#[derive(Clone)]
pub struct IdempotencyKeys {
    inner: Arc<KeyContext>,
}

struct KeyContext {
    store: Arc<dyn Store>,
    clock: Clock,
    tokens: AtomicI64,
}

#[derive(Debug)]
#[must_use]
pub enum ClaimOutcome {
    /// The key was free: carry the request out and store the answer.
    Claimed(Claim),
    /// The request was answered before.
    Answered(Answer),
    /// The request is in progress.
    InProgress,
    /// The key was used for a different request.
    OtherRequest,
}

/// Why a key could not be claimed. Nothing was claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// Writing the claim failed.
    #[error("could not claim the idempotency key")]
    Store(#[source] CommitError),
    /// Reading the store failed.
    #[error("could not read the stored answer")]
    Read(#[source] ReadError),
    /// The stored answer has an unknown form.
    #[error("the stored answer was written by another version")]
    Unreadable,
}

/// A stored answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Status, 200 to 299; other answers are not stored.
    pub status: u16,
    /// The relevant header fields, in order; no value contains a line break.
    pub fields: Vec<(String, String)>,
    pub body: Arc<[u8]>,
}

impl IdempotencyKeys {
    /// Claims over one store; claims of an earlier run of this node are freed. Must be constructed before admission of the first request.
    pub fn new(store: Arc<dyn Store>, clock: Clock) -> IdempotencyKeys {
        let tokens = AtomicI64::new(first_token(store.node(), store.epoch()));
        let token = first_token(store.node(), store.earliest_epoch());
        let once = IdempotencyKeys {
            inner: Arc::new(KeyContext {
                store,
                clock,
                tokens,
            }),
        };
        // Queued before any claim of this run.
        once.inner.send(IdempotencyPart::FreeBefore { token });
        once
    }

    /// Claims the idempotency key `key` for one account and endpoint, or returns the state of the key. `request_hash` ([`digest`]) detects
    /// a different request under `key`.
    pub async fn claim(
        &self,
        account: AccountId,
        endpoint: Endpoint,
        key: &str,
        request_hash: [u8; 32],
    ) -> Result<ClaimOutcome, ClaimError> {
        let inner = &self.inner;
        let key = IdempotencyKey {
            account,
            endpoint,
            key: Arc::from(key),
        };
        let at = inner.clock.now();
        // Before the wait: a request that is cancelled while waiting frees the key too.
        let mut claim = Claim {
            inner: Arc::clone(inner),
            key: key.clone(),
            token: inner.tokens.fetch_add(1, Relaxed),
            is_held: true,
        };
        let unit = UnitOfWork::of(
            part(IdempotencyPart::Claim {
                key: key.clone(),
                request_hash,
                token: claim.token,
                at,
                expires_at: at + kept_for(endpoint),
                limits: None,
            }),
            Admission::Normal,
        );
        let error = match commit(&*inner.store, unit).await {
            Ok(_) => return Ok(ClaimOutcome::Claimed(claim)),
            Err(error) => error,
        };
        claim.is_held = false;
        match error {
            CommitError::Refused(Refusal::KeyInUse(KeyUse::Answered)) => {
                let row = reading(&inner.store, move |store| store.idempotency(&key));
                match row.await.map_err(ClaimError::Read)? {
                    Some(row) => match row.answer {
                        Some(kept) => Answer::read(kept).map(ClaimOutcome::Answered),
                        None => Ok(ClaimOutcome::InProgress),
                    },
                    // The key expired between the two reads; the next attempt claims the key anew.
                    None => Ok(ClaimOutcome::InProgress),
                }
            }
            CommitError::Refused(Refusal::KeyInUse(KeyUse::OtherRequest)) => {
                Ok(ClaimOutcome::OtherRequest)
            }
            CommitError::Refused(Refusal::KeyInUse(_)) => Ok(ClaimOutcome::InProgress),
            error => Err(ClaimError::Store(error)),
        }
    }

    /// Stores answers outside a unit of work of their own; stored answers are not overwritten.
    pub async fn store_answers(&self, parts: Vec<Part>) -> Result<(), CommitError> {
        let unit = UnitOfWork::of_all(parts, Admission::Always);
        match commit(&*self.inner.store, unit).await {
            Ok(_) | Err(CommitError::Refused(Refusal::KeyInUse(KeyUse::Lost))) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl KeyContext {
    /// Queues a change without waiting for it.
    fn send(&self, change: IdempotencyPart) {
        let done = Box::new(|result| {
            if let Err(CommitError::Refused(refusal)) = result {
                tracing::error!(%refusal, "updating idempotency key failed: refused by the store");
            }
        });
        // A stopped store ends the process; the node's next start or recovery frees the claims.
        let _ = self
            .store
            .submit(UnitOfWork::of(part(change), Admission::Always), done);
    }
}

/// A claimed key, held by the request in execution. A drop without an answer frees the key.
pub struct Claim {
    inner: Arc<KeyContext>,
    key: IdempotencyKey,
    /// Fencing token: unique among the claims of the process.
    token: i64,
    is_held: bool,
}

impl Claim {
    /// The part that stores the answer, for the purchase's unit of work. May be built again for a retry of the unit.
    ///
    /// # Panics
    ///
    /// If the status is not 2xx: a failed purchase has to be retried, not replayed.
    pub fn answer_part(&self, answer: &Answer) -> Part {
        assert!(
            (200..300).contains(&answer.status),
            "an answer of status {} cannot be stored under an idempotency key; only 2xx answers are",
            answer.status
        );
        part(IdempotencyPart::Keep {
            key: self.key.clone(),
            token: self.token,
            answer: answer.kept(),
        })
    }

    /// The part that consumes the key for good, for a request without an answer to replay.
    pub fn consume_part(&self) -> Part {
        self.answer_part(&Answer {
            status: 204,
            fields: Vec::new(),
            body: Arc::from([]),
        })
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        // Does not free a key whose answer is stored: the queue keeps the order.
        if self.is_held {
            self.inner.send(IdempotencyPart::Free {
                key: self.key.clone(),
                token: self.token,
            });
        }
    }
}

impl std::fmt::Debug for Claim {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Claim")
            .field("key", &self.key)
            .finish_non_exhaustive()
    }
}

impl Answer {
    fn kept(&self) -> KeptAnswer {
        let mut lines = String::new();
        for (name, value) in &self.fields {
            debug_assert!(!value.contains('\n'), "a header field is one line: {name}");
            lines.push_str(name);
            lines.push_str(": ");
            lines.push_str(value);
            lines.push('\n');
        }
        KeptAnswer {
            status: self.status,
            headers: Arc::from(lines),
            body: Some(Arc::clone(&self.body)),
        }
    }

    fn read(kept: KeptAnswer) -> Result<Answer, ClaimError> {
        let field = |line: &str| {
            let (name, value) = line.split_once(": ")?;
            Some((name.to_owned(), value.to_owned()))
        };
        let fields: Option<Vec<_>> = kept.headers.lines().map(field).collect();
        Ok(Answer {
            status: kept.status,
            fields: fields.ok_or(ClaimError::Unreadable)?,
            body: kept.body.ok_or(ClaimError::Unreadable)?,
        })
    }
}

/// Request hash: SHA-256 over the pieces, each preceded by its length.
pub fn digest(pieces: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for piece in pieces {
        hash.update((piece.len() as u64).to_be_bytes());
        hash.update(piece);
    }
    hash.finalize().into()
}

/// Retention of an answer: 90 days for payments, otherwise twice the 24 hours that UCP asks for.
fn kept_for(endpoint: Endpoint) -> Duration {
    match endpoint {
        Endpoint::X402 | Endpoint::Mpp => HOUR * 24 * 90,
        // Longer than the lifetime of a challenge.
        Endpoint::Challenge => HOUR * 2,
        _ => HOUR * 48,
    }
}

fn part(part: IdempotencyPart) -> Part {
    Part::Idempotency(Box::new(part))
}
