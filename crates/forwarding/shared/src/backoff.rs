//! Exponential backoff with jitter between attempts to connect.

use std::time::Duration;

use tollgate_clock::Entropy;

const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// The delays between attempts.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The delay before the next attempt: doubled for each failure, less a random part of up to a half. The random part spreads the return
    /// of nodes that lost the server together.
    pub(crate) fn next(&mut self, entropy: &Entropy) -> Duration {
        let doubled = FIRST.saturating_mul(1 << self.failures.min(10));
        self.failures = self.failures.saturating_add(1);
        let micros = doubled.min(LONGEST).as_micros() as u64;
        let jitter = u64::from_le_bytes(entropy.bytes()) % (micros / 2 + 1);
        Duration::from_micros(micros - jitter)
    }

    /// The next delay is the shortest again.
    pub(crate) fn reset(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn delays_double_up_to_a_limit_with_jitter_of_half() {
        let entropy = Entropy::seeded(5);
        let mut backoff = Backoff::default();
        for wanted in [100, 200, 400, 800, 1600, 3200, 5000, 5000] {
            let delay = backoff.next(&entropy).as_millis();
            assert!(
                (wanted / 2..=wanted).contains(&delay),
                "{delay} of {wanted}"
            );
        }
        backoff.reset();
        assert!(backoff.next(&entropy) <= FIRST);
    }
}
