//! Exponential backoff with jitter.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

/// Waits that double from `first` to `max`.
#[derive(Clone, Copy, Debug)]
pub struct Backoff {
    /// The first wait.
    pub first: Duration,
    /// The longest.
    pub max: Duration,
}

/// Greatest share of a wait removed by jitter: 1/`JITTER`.
const JITTER: u32 = 8;

impl Backoff {
    /// The wait after `attempts` attempts for the row of `key`: exact doubling, shortened by at most an eighth. Jitter spreads rows that
    /// failed together. The jitter derives from the key, so a row waits equally long in each run.
    pub fn after(self, attempts: u32, key: impl Hash) -> Duration {
        let exact = self
            .first
            .saturating_mul(1 << attempts.min(20))
            .min(self.max);
        let mut hasher = DefaultHasher::new();
        (key, attempts).hash(&mut hasher);
        let share = u32::from(hasher.finish().to_be_bytes()[0]);
        exact - exact / JITTER * share / 256
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_double_up_to_the_longest_and_differ_between_rows() {
        let backoff = Backoff {
            first: Duration::from_secs(2),
            max: Duration::from_mins(15),
        };
        for (attempts, secs) in [
            (0, 2),
            (1, 4),
            (8, 512),
            (9, 900),
            (20, 900),
            (u32::MAX, 900),
        ] {
            let exact = Duration::from_secs(secs);
            let waits: Vec<_> = (0..50).map(|key| backoff.after(attempts, key)).collect();
            assert!(
                waits
                    .iter()
                    .all(|wait| (exact - exact / JITTER..=exact).contains(wait)),
                "{attempts}: {waits:?}"
            );
            assert!(waits.iter().any(|wait| *wait != waits[0]), "{attempts}");
            assert_eq!(waits[7], backoff.after(attempts, 7), "the same again");
        }
    }
}
