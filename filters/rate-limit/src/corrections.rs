//! Corrections of counts that the server has not executed. A correction is kept until the server answers again.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_clock::RandomKeyHash;

/// The most counts with a correction. Further counts stay uncorrected, and drain.
const COUNTS_MAX: usize = 65_536;

/// The amount to add to a count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Correction {
    /// Nanoseconds of the quota; below zero to give back.
    pub(crate) nanos: i64,
    pub(crate) capacity: u64,
    /// Number of the server's data losses when the correction was made.
    pub(crate) losses: u64,
}

impl Correction {
    /// The rest of the correction after some time. The count at the server drains by a second per second, and the drained part is neither
    /// given back nor counted.
    fn after(self, elapsed: u64) -> Correction {
        let drained = i64::try_from(elapsed).unwrap_or(i64::MAX);
        let left = self.nanos.saturating_abs().saturating_sub(drained);
        let nanos = self.nanos.signum() * left.max(0);
        Correction { nanos, ..self }
    }

    /// The correction for a server with `losses` data losses. Reservations from before a loss are not given back: the present count belongs
    /// to later reservations.
    pub(crate) fn with_losses(self, losses: u64) -> Correction {
        let nanos = match self.losses == losses {
            true => self.nanos,
            false => self.nanos.max(0),
        };
        Correction {
            nanos,
            losses,
            ..self
        }
    }
}

/// The corrections of all counts, by their keys.
#[derive(Debug, Default)]
pub(crate) struct Corrections(Mutex<HashMap<Arc<str>, (Correction, u64), RandomKeyHash>>);

impl Corrections {
    /// Keeps a correction, together with an earlier correction of the count.
    pub(crate) fn keep(&self, key: Arc<str>, mut correction: Correction, now: u64) {
        let mut kept = self.0.lock();
        if kept.len() >= COUNTS_MAX && !kept.contains_key(&key) {
            return;
        }
        if let Some((earlier, at)) = kept.get(&key) {
            let earlier = earlier.after(now.saturating_sub(*at));
            let earlier = earlier.with_losses(correction.losses);
            correction.nanos = correction.nanos.saturating_add(earlier.nanos);
        }
        kept.insert(key, (correction, now));
    }

    /// Takes every correction, with the keys of the counts.
    pub(crate) fn take(&self, now: u64) -> Vec<(Arc<str>, Correction)> {
        let mut kept = self.0.lock();
        let kept = std::mem::take(&mut *kept).into_iter();
        kept.map(|(key, (one, at))| (key, one.after(now.saturating_sub(at))))
            .filter(|(_, one)| one.nanos != 0)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn correction(nanos: i64, losses: u64) -> Correction {
        Correction {
            nanos,
            capacity: 100,
            losses,
        }
    }

    /// Corrections of a count by their times, and the rest of the corrections.
    fn check(kept: &[(i64, u64)], now: u64, left: i64) {
        let corrections = Corrections::default();
        for (nanos, at) in kept {
            corrections.keep("a".into(), correction(*nanos, 0), *at);
        }
        let wanted = (left != 0).then(|| ("a".into(), correction(left, 0)));
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
    fn what_was_to_be_given_back_before_a_loss_is_not_given_back_after_it() {
        for (earlier, later, left) in [(-10, -3, -3), (10, -3, 7)] {
            let corrections = Corrections::default();
            corrections.keep("a".into(), correction(earlier, 0), 0);
            corrections.keep("a".into(), correction(later, 1), 0);
            let wanted = ("a".into(), correction(left, 1));
            assert_eq!(corrections.take(0), [wanted]);
        }
        assert_eq!(correction(-10, 1).with_losses(2), correction(0, 2));
    }

    #[test]
    fn at_most_so_many_counts_have_one() {
        let corrections = Corrections::default();
        for number in 0..=COUNTS_MAX {
            corrections.keep(number.to_string().into(), correction(-1, 0), 0);
        }
        corrections.keep("0".into(), correction(-1, 0), 0);
        let kept = corrections.take(0);
        assert_eq!(kept.len(), COUNTS_MAX);
        assert!(kept.contains(&("0".into(), correction(-2, 0))));
    }
}
