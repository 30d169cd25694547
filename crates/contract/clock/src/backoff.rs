//! Exponential backoff between attempts.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use crate::Entropy;

/// Waits that double from `base` to `max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Backoff {
    /// The first wait.
    pub base: Duration,
    /// The longest, before jitter.
    pub max: Duration,
    /// The random part of a wait.
    pub jitter: Jitter,
}

/// The random part of a wait: calls that failed together do not retry together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Jitter {
    /// No jitter: the waits are exact.
    None,
    /// A wait is shorter by up to 1/n, for the number n.
    Shorter(u32),
    /// A wait is longer by up to 1/n, for the number n.
    Longer(u32),
}

impl Backoff {
    /// The wait after the last failure, with `failures` failures before the last failure, without jitter.
    pub fn exact(self, failures: u32) -> Duration {
        let factor = 1_u32.checked_shl(failures).unwrap_or(u32::MAX);
        self.base.saturating_mul(factor).min(self.max)
    }

    /// The wait, with random jitter.
    pub fn random(self, failures: u32, entropy: &Entropy) -> Duration {
        self.with(failures, u16::from_le_bytes(entropy.bytes()))
    }

    /// The wait, with jitter derived from a key: the wait of stored work is equal in every run.
    pub fn derived(self, failures: u32, key: impl Hash) -> Duration {
        let mut hasher = DefaultHasher::new();
        (key, failures).hash(&mut hasher);
        let [first, ..] = hasher.finish().to_be_bytes();
        self.with(failures, u16::from(first) << 8)
    }

    /// `share`: how much of the jitter applies, in parts of 2^16.
    fn with(self, failures: u32, share: u16) -> Duration {
        let exact = self.exact(failures);
        let part = |of: u32| (exact / of).saturating_mul(share.into()) / (1 << 16);
        match self.jitter {
            Jitter::None => exact,
            Jitter::Shorter(of) => exact - part(of),
            Jitter::Longer(of) => exact.saturating_add(part(of)),
        }
    }
}

/// Counts consecutive failures of a retried call.
#[derive(Clone, Copy, Debug)]
pub struct Failures {
    backoff: Backoff,
    count: u32,
}

impl Failures {
    /// No failure yet.
    pub fn new(backoff: Backoff) -> Failures {
        Failures { backoff, count: 0 }
    }

    /// Counts a failure, and returns the wait after the failure.
    pub fn next(&mut self, entropy: &Entropy) -> Duration {
        let wait = self.backoff.random(self.count, entropy);
        self.count = self.count.saturating_add(1);
        wait
    }

    /// The next wait is the first again.
    pub fn reset(&mut self) {
        self.count = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const BASE: Duration = Duration::from_secs(2);
    const WAITS: [(u32, u64); 6] = [
        (0, 2),
        (1, 4),
        (8, 512),
        (9, 900),
        (20, 900),
        (u32::MAX, 900),
    ];

    fn backoff(jitter: Jitter) -> Backoff {
        Backoff {
            base: BASE,
            max: Duration::from_mins(15),
            jitter,
        }
    }

    #[test]
    fn waits_double_up_to_the_longest() {
        for (failures, secs) in WAITS {
            let wait = backoff(Jitter::None).exact(failures);
            assert_eq!(wait, Duration::from_secs(secs), "{failures}");
        }
        let day = Duration::from_hours(24);
        let long = Backoff {
            base: day,
            max: 365 * day,
            jitter: Jitter::None,
        };
        assert_eq!(long.exact(8), 256 * day);
        assert_eq!(long.exact(31), 365 * day, "the doubling saturates");
    }

    #[test]
    fn derived_jitter_is_within_its_part_and_equal_in_each_run() {
        let backoff = backoff(Jitter::Shorter(8));
        for (failures, secs) in WAITS {
            let exact = Duration::from_secs(secs);
            let waits = (0..50).map(|key| backoff.derived(failures, key));
            let waits: Vec<_> = waits.collect();
            let allowed = exact - exact / 8..=exact;
            assert!(waits.iter().all(|wait| allowed.contains(wait)), "{waits:?}");
            assert!(waits.iter().any(|wait| *wait != waits[0]), "{failures}");
            assert_eq!(waits[7], backoff.derived(failures, 7));
        }
    }

    #[test]
    fn random_jitter_is_within_its_part_and_uses_most_of_it() {
        let entropy = Entropy::seeded(5);
        for (jitter, least, most) in [
            (Jitter::None, BASE, BASE),
            (Jitter::Shorter(2), BASE / 2, BASE),
            (Jitter::Longer(1), BASE, 2 * BASE),
            (Jitter::Longer(4), BASE, BASE * 5 / 4),
        ] {
            let waits = (0..200).map(|_| backoff(jitter).random(0, &entropy));
            let waits: Vec<_> = waits.collect();
            let allowed = least..=most;
            assert!(waits.iter().all(|wait| allowed.contains(wait)), "{waits:?}");
            let spread = most - least;
            let (shortest, longest) = (waits.iter().min(), waits.iter().max());
            let found = longest.zip(shortest).map(|(long, short)| *long - *short);
            assert!(found >= Some(spread * 9 / 10), "{found:?} of {spread:?}");
        }
    }

    #[test]
    fn failures_in_a_row_wait_longer_until_a_success() {
        let entropy = Entropy::seeded(5);
        let mut failures = Failures::new(backoff(Jitter::None));
        let secs = [2, 4, 8, 16];
        for wanted in secs {
            assert_eq!(failures.next(&entropy), Duration::from_secs(wanted));
        }
        failures.reset();
        assert_eq!(failures.next(&entropy), BASE);
    }
}
