//! The claim of an idempotency key by one request.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_store::{IdempotencyKey, IdempotencyPart, Part};

use crate::recording::{Metadata, Recording};

/// A key that one request has claimed, with the recording of its answer. Private to this filter.
#[derive(Clone)]
pub(crate) struct Claim {
    key: IdempotencyKey,
    /// When the claim expires, in microseconds of the steady clock; unique within a process, so it identifies the claim.
    locked_until: i64,
    /// Shared with the part of the unit of work that charges for the answer; never with another request.
    recording: Arc<Mutex<Recording>>,
}

impl Claim {
    pub(crate) fn new(key: IdempotencyKey, locked_until: i64, bytes_max: usize) -> Claim {
        Claim {
            key,
            locked_until,
            recording: Arc::new(Mutex::new(Recording::new(bytes_max))),
        }
    }

    /// The answer so far.
    pub(crate) fn recording(&self) -> MutexGuard<'_, Recording> {
        // A panic leaves an incomplete recording, which is never marked as kept.
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The part that stores the answer.
    pub(crate) fn keep(&self, metadata: Metadata) -> Part {
        let answer = self.recording().finish(&metadata);
        Part::Idempotency(Box::new(IdempotencyPart::Keep {
            key: self.key.clone(),
            locked_until: self.locked_until,
            answer,
        }))
    }

    /// The part that frees the key.
    pub(crate) fn free(self) -> Part {
        Part::Idempotency(Box::new(IdempotencyPart::Free {
            key: self.key,
            locked_until: self.locked_until,
        }))
    }
}

/// Timestamps that never repeat.
#[derive(Debug, Default)]
pub(crate) struct UniqueTimes(AtomicI64);

impl UniqueTimes {
    /// `moment`, or the first one after it that was not returned before.
    pub(crate) fn unique(&self, moment: i64) -> i64 {
        let last = self
            .0
            .fetch_update(Relaxed, Relaxed, |last| Some(moment.max(last + 1)));
        // The update never declines; both arms hold the value before it.
        let last = last.unwrap_or_else(|last| last);
        moment.max(last + 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_claims_expire_at_the_same_time() {
        let times = UniqueTimes::default();
        let given = [5, 5, 3, 9, 9].map(|moment| times.unique(moment));
        assert_eq!(given, [5, 6, 7, 9, 10]);
    }
}
