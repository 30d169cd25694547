//! A key in the hand of one request.

use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tollgate_store::{IdempotencyKey, IdempotencyPart, Part};

use crate::recording::{About, Recording};

/// A key that one request has claimed, with the answer it is going to leave there. Private to this filter.
#[derive(Clone)]
pub(crate) struct Claim {
    key: IdempotencyKey,
    /// The moment at which it runs out; no two claims of a process have the same.
    locked_until: i64,
    /// Shared with the part that is made when the answer is charged for; never with another request.
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
        // Half a recording is found out by nobody taking it for whole.
        self.recording
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// The part that keeps the answer.
    pub(crate) fn keep(&self, about: About) -> Part {
        let answer = self.recording().finish(&about);
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

/// Moments that never repeat.
#[derive(Debug, Default)]
pub(crate) struct Moments(AtomicI64);

impl Moments {
    /// `moment`, or the first one after it that nobody has been given.
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
    fn no_two_claims_run_out_at_the_same_moment() {
        let moments = Moments::default();
        let given = [5, 5, 3, 9, 9].map(|moment| moments.unique(moment));
        assert_eq!(given, [5, 6, 7, 9, 10]);
    }
}
