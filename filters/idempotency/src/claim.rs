//! The claim of an idempotency key by a request.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::Deadline;
use tollgate_store::{IdempotencyKey, IdempotencyPart, Part};

use crate::recording::{Metadata, Recording};

/// A claimed key, with the recording of the request's answer. Private to this filter.
#[derive(Clone)]
pub(crate) struct Claim {
    key: IdempotencyKey,
    /// Fencing token: identifies the claim, in the store and in [`OpenClaims`].
    token: i64,
    /// Shared with the part of the unit of work that charges for the answer; never with another request.
    recording: Arc<Mutex<Recording>>,
}

impl Claim {
    pub(crate) fn new(key: IdempotencyKey, token: i64, bytes_max: usize) -> Claim {
        Claim {
            key,
            token,
            recording: Arc::new(Mutex::new(Recording::new(bytes_max))),
        }
    }

    /// The answer so far.
    pub(crate) fn recording(&self) -> MutexGuard<'_, Recording> {
        // A panic leaves an incomplete recording, which is never marked as kept.
        self.recording.lock()
    }

    /// The part that stores the answer.
    pub(crate) fn keep(&self, metadata: Metadata) -> Part {
        let answer = self.recording().finish(&metadata);
        Part::Idempotency(Box::new(IdempotencyPart::Keep {
            key: self.key.clone(),
            token: self.token,
            answer,
        }))
    }

    /// The claim's fencing token.
    pub(crate) fn token(&self) -> i64 {
        self.token
    }

    /// The part that frees the key.
    pub(crate) fn free(self) -> Part {
        free(self.key, self.token)
    }
}

fn free(key: IdempotencyKey, token: i64) -> Part {
    Part::Idempotency(Box::new(IdempotencyPart::Free { key, token }))
}

/// The claims of this run, each with a lease: a deadline on the monotonic clock. A change of the wall clock therefore ends no claim of a
/// request under way.
#[derive(Debug)]
pub(crate) struct OpenClaims(Mutex<Claims>);

#[derive(Debug)]
struct Claims {
    open: HashMap<i64, (IdempotencyKey, Deadline)>,
    next_token: i64,
}

impl OpenClaims {
    /// No claims, with the first token of a run.
    pub(crate) fn new(next_token: i64) -> OpenClaims {
        let open = HashMap::new();
        OpenClaims(Mutex::new(Claims { open, next_token }))
    }

    /// Enters a claim; returns its token.
    pub(crate) fn enter(&self, key: IdempotencyKey, deadline: Deadline) -> i64 {
        let mut claims = self.claims();
        let token = claims.next_token;
        claims.next_token += 1;
        claims.open.insert(token, (key, deadline));
        token
    }

    /// Removes a claim whose request has ended.
    pub(crate) fn remove(&self, token: i64) {
        self.claims().open.remove(&token);
    }

    /// Removes the claims whose deadline has passed. Returns the parts that let later requests take the keys over. A late charge is booked
    /// with its response, unless another charge was booked with a response.
    pub(crate) fn take_expired(&self, elapsed: Duration) -> Vec<Part> {
        let mut claims = self.claims();
        let expired = claims
            .open
            .extract_if(|_, (_, deadline)| deadline.has_passed(elapsed));
        expired
            .map(|(token, (key, _))| {
                Part::Idempotency(Box::new(IdempotencyPart::Lapse { key, token }))
            })
            .collect()
    }

    fn claims(&self) -> MutexGuard<'_, Claims> {
        // No invariant spans two fields.
        self.0.lock()
    }
}

#[cfg(test)]
mod tests {
    use tollgate_money::AccountId;
    use tollgate_store::Endpoint;

    use super::*;

    fn key() -> IdempotencyKey {
        IdempotencyKey {
            account: AccountId::from_parts(1, [1; 10]),
            endpoint: Endpoint::Chat,
            key: Arc::from("k"),
        }
    }

    fn lapse(token: i64) -> Part {
        Part::Idempotency(Box::new(IdempotencyPart::Lapse { key: key(), token }))
    }

    #[test]
    fn a_claim_ends_with_its_request_or_at_its_deadline() {
        let claims = OpenClaims::new(1);
        let second = Duration::from_secs;
        let enter = |secs| claims.enter(key(), Deadline::after(Duration::ZERO, second(secs)));
        let first = enter(10);
        let removed = enter(5);
        let last = enter(20);
        claims.remove(removed);
        assert_eq!(claims.take_expired(second(9)), []);
        assert_eq!(claims.take_expired(second(10)), [lapse(first)]);
        assert_eq!(claims.take_expired(second(10)), []);
        assert_eq!(claims.take_expired(second(20)), [lapse(last)]);
    }
}
