//! Corrections of counts that the server has not executed, until it can be asked again.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use tollgate_clock::RandomKeyHash;

/// Counts with a correction. Those of more stay as they are, and drain.
const COUNTS_MAX: usize = 65_536;

/// What has to be added to one count.
#[derive(Debug)]
struct Correction {
    /// Nanoseconds of the quota at `at`; below zero to give back.
    nanos: i64,
    capacity: u64,
    at: u64,
}

impl Correction {
    /// What is left of it: the count at the server drains by one second a second, and what has drained is neither given back nor counted.
    fn nanos(&self, now: u64) -> i64 {
        let drained = i64::try_from(now.saturating_sub(self.at)).unwrap_or(i64::MAX);
        let left = self.nanos.saturating_abs().saturating_sub(drained);
        self.nanos.signum() * left.max(0)
    }
}

/// The corrections of all counts, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Corrections(Mutex<HashMap<Arc<str>, Correction, RandomKeyHash>>);

impl Corrections {
    /// Keeps a correction, together with an earlier one of the same count.
    pub(crate) fn keep(&self, key: Arc<str>, nanos: i64, capacity: u64, now: u64) {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if kept.len() >= COUNTS_MAX && !kept.contains_key(&key) {
            return;
        }
        let earlier = kept.get(&key).map_or(0, |earlier| earlier.nanos(now));
        let nanos = earlier.saturating_add(nanos);
        let correction = Correction {
            nanos,
            capacity,
            at: now,
        };
        kept.insert(key, correction);
    }

    /// Takes all: keys, nanoseconds and capacities.
    pub(crate) fn take(&self, now: u64) -> Vec<(Arc<str>, i64, u64)> {
        let mut kept = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let kept = std::mem::take(&mut *kept).into_iter();
        kept.map(|(key, one)| (key, one.nanos(now), one.capacity))
            .filter(|(_, nanos, _)| *nanos != 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Corrections of one count by their times, and what is left of them.
    fn check(kept: &[(i64, u64)], now: u64, left: i64) {
        let corrections = Corrections::default();
        for (nanos, at) in kept {
            corrections.keep("a".into(), *nanos, 100, *at);
        }
        let wanted = (left != 0).then(|| ("a".into(), left, 100));
        assert_eq!(corrections.take(now), Vec::from_iter(wanted), "{kept:?}");
        assert_eq!(corrections.take(now), []);
    }

    #[test]
    fn corrections_of_one_count_are_added_and_drain() {
        check(&[(-10, 0)], 0, -10);
        check(&[(-10, 0)], 3, -7);
        check(&[(10, 0)], 3, 7);
        check(&[(-10, 0)], 11, 0);
        check(&[(-10, 0), (-10, 4)], 4, -16);
        check(&[(-10, 0), (20, 4)], 5, 13);
    }

    #[test]
    fn at_most_so_many_counts_have_one() {
        let corrections = Corrections::default();
        for number in 0..=COUNTS_MAX {
            corrections.keep(number.to_string().into(), -1, 100, 0);
        }
        corrections.keep("0".into(), -1, 100, 0);
        let kept = corrections.take(0);
        assert_eq!(kept.len(), COUNTS_MAX);
        assert!(kept.contains(&("0".into(), -2, 100)));
    }
}
