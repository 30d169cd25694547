//! A purchase asked for once, whatever a network does to the request for it.
//!
//! A buyer names a request; the name is claimed before anything is done, and the answer is kept in the same unit of work as what was
//! bought. Whoever repeats the name gets the answer again, word for word.
//!
//! A claim ends when its answer is durable, when it is dropped, or with the process: at the next start every name that was claimed is
//! free again, and the purchase behind it is found in its own rows. So a claim needs no time limit, and none can be lost to a second
//! request while the first is still at it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};

use sha2::{Digest, Sha256};
use tollgate_money::AccountId;
use tollgate_store::{
    Admission, CommitError, Endpoint, IdempotencyKey, IdempotencyPart, KeptAnswer, KeyUse, Part,
    ReadError, Refusal, Store, UnitOfWork, commit, reading,
};

const SECOND: i64 = 1_000_000;
const HOUR: i64 = 3600 * SECOND;
const DAY: i64 = 24 * HOUR;

/// The first moment that claims are told apart by. Far ahead of any clock: a claim does not run out.
const FIRST_TOKEN: i64 = 1 << 61;

/// Claims names of requests, and tells their answers again. Cheap to clone.
#[derive(Clone)]
pub struct IdempotencyKeys {
    inner: Arc<Inner>,
}

struct Inner {
    store: Arc<dyn Store>,
    /// Unix microseconds.
    now: Box<dyn Fn() -> i64 + Send + Sync>,
    tokens: AtomicI64,
}

/// What stands under a name.
#[derive(Debug)]
#[must_use]
pub enum ClaimOutcome {
    /// Nothing stood there: the request is to be carried out, and its answer kept.
    Claimed(Claim),
    /// The same request has had this answer.
    Answered(Answer),
    /// The same request is being carried out.
    InProgress,
    /// Another request has this name.
    OtherRequest,
}

/// Why a name could not be looked up. Nothing was claimed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClaimError {
    /// The store did not write the claim.
    #[error("could not claim the name of the request")]
    Store(#[source] CommitError),
    /// The store could not be read.
    #[error("could not read the answer that is kept")]
    Read(#[source] ReadError),
    /// What is kept cannot be understood.
    #[error("the answer that is kept was written by another version")]
    Unreadable,
}

/// An answer as it was given.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// Its status, from 200 to 299: nothing else is kept.
    pub status: u16,
    /// The fields that matter, in their order; no value has a line break.
    pub fields: Vec<(String, String)>,
    /// The body.
    pub body: Arc<[u8]>,
}

impl IdempotencyKeys {
    /// Claims over one store; those of an earlier run are freed. To be made before the first request is let in.
    pub fn new(store: Arc<dyn Store>, now: Box<dyn Fn() -> i64 + Send + Sync>) -> IdempotencyKeys {
        let once = IdempotencyKeys {
            inner: Arc::new(Inner {
                store,
                now,
                tokens: AtomicI64::new(FIRST_TOKEN),
            }),
        };
        // Queued before any claim of this run can be.
        once.inner.send(IdempotencyPart::FreeAll);
        once
    }

    /// Claims the name `key` of a request for one account and endpoint, or tells what stands there. `request_hash` ([`digest`]) tells
    /// the request from another one of the same name.
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
        let at = (inner.now)();
        // Before the wait: whoever is cut off in it frees the name all the same.
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
                // Before every moment: what is claimed stays claimed.
                now: 0,
                locked_until: claim.token,
                at,
                expires_at: at.saturating_add(kept_for(endpoint)),
            }),
            Admission::Begins,
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
                    // It was forgotten between the two looks; the next attempt is the first again.
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

    /// Keeps answers where no unit of work goes with them; those that are kept already stay as they are.
    pub async fn store_answers(&self, parts: Vec<Part>) -> Result<(), CommitError> {
        let unit = UnitOfWork::of_all(parts, Admission::Ends);
        match commit(&*self.inner.store, unit).await {
            Ok(_) | Err(CommitError::Refused(Refusal::KeyInUse(KeyUse::Lost))) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Inner {
    /// Queues a change that nobody waits for.
    fn send(&self, change: IdempotencyPart) {
        let done = Box::new(|result| {
            if let Err(CommitError::Refused(refusal)) = result {
                tracing::error!(%refusal, "a change of the name of a purchase was refused");
            }
        });
        // A store that has stopped ends the process, and the next start frees what is claimed.
        let _ = self
            .store
            .submit(UnitOfWork::of(part(change), Admission::Ends), done);
    }
}

/// The name of a request, in the hand of whoever carries it out. Freed when it is dropped without an answer.
pub struct Claim {
    inner: Arc<Inner>,
    key: IdempotencyKey,
    /// What tells this claim from every other of the process.
    token: i64,
    is_held: bool,
}

impl Claim {
    /// The part that keeps the answer, for the unit of work of what was bought. May be made anew when that unit is.
    ///
    /// # Panics
    ///
    /// When the status says that nothing was bought: such an answer must be asked for again, not told again.
    pub fn answer_part(&self, answer: &Answer) -> Part {
        assert!(
            (200..300).contains(&answer.status),
            "an answer of status {} was to be kept; only those that gave what was asked for are",
            answer.status
        );
        part(IdempotencyPart::Keep {
            key: self.key.clone(),
            locked_until: self.token,
            answer: answer.kept(),
        })
    }

    /// The part that has the name used up for good, where there is nothing to be told again.
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
        // Of a name whose answer is kept by now nothing is freed, and what is queued comes first.
        if self.is_held {
            self.inner.send(IdempotencyPart::Free {
                key: self.key.clone(),
                locked_until: self.token,
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
            debug_assert!(!value.contains('\n'), "a field is one line: {name}");
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

/// Tells requests apart: SHA-256 over the pieces and where each of them ends.
pub fn digest(pieces: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for piece in pieces {
        hash.update((piece.len() as u64).to_be_bytes());
        hash.update(piece);
    }
    hash.finalize().into()
}

/// How long an answer is known, microseconds: 90 days where money moved, and twice the day that UCP asks for.
fn kept_for(endpoint: Endpoint) -> i64 {
    match endpoint {
        Endpoint::X402 | Endpoint::Mpp => 90 * DAY,
        // Longer than a challenge lives.
        Endpoint::Challenge => 2 * HOUR,
        _ => 48 * HOUR,
    }
}

fn part(part: IdempotencyPart) -> Part {
    Part::Idempotency(Box::new(part))
}
