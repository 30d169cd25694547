//! Rate limit per account for signatures without local verification (GCRA).
//!
//! A signature without recovery to its wallet is probably invalid, but may be a contract wallet's: only the chain can verify a contract
//! wallet's signature. Each attempt costs a call to the facilitator, so an account has few attempts.

use std::collections::HashMap;
use std::time::Duration;

use parking_lot::Mutex;
use tollgate_money::AccountId;

const BURST: u32 = 5;

const EMISSION_INTERVAL: Duration = Duration::from_secs(20);

/// Maximum of tracked accounts; above it, accounts with a full burst are evicted.
const ACCOUNTS_MAX: usize = 4_096;

/// The theoretical arrival time of each account: the time of the next full burst.
#[derive(Debug, Default)]
pub(crate) struct UnverifiedSignatureLimit {
    full_at: Mutex<HashMap<AccountId, Duration>>,
}

impl UnverifiedSignatureLimit {
    /// Admits one signature at `now` (a monotonic clock), or returns the time until the next admission.
    pub(crate) fn take(&self, account: AccountId, now: Duration) -> Result<(), Duration> {
        let mut full_at = self.full_at.lock();
        if full_at.len() >= ACCOUNTS_MAX {
            full_at.retain(|_, at| *at > now);
        }
        let at = full_at.entry(account).or_insert(now);
        let next = (*at).max(now) + EMISSION_INTERVAL;
        let over = next.saturating_sub(now + EMISSION_INTERVAL * BURST);
        if !over.is_zero() {
            return Err(over);
        }
        *at = next;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn five_at_once_and_then_three_a_minute() {
        let signature_limit = UnverifiedSignatureLimit::default();
        let account = AccountId::from_bytes([1; 16]);
        let now = Duration::from_secs(1_000);
        for _ in 0..BURST {
            assert_eq!(signature_limit.take(account, now), Ok(()));
        }
        assert_eq!(signature_limit.take(account, now), Err(EMISSION_INTERVAL));
        assert_eq!(
            signature_limit.take(AccountId::from_bytes([2; 16]), now),
            Ok(()),
            "another account has its own"
        );
        let half = now + EMISSION_INTERVAL / 2;
        assert_eq!(
            signature_limit.take(account, half),
            Err(EMISSION_INTERVAL / 2)
        );
        assert_eq!(
            signature_limit.take(account, now + EMISSION_INTERVAL),
            Ok(())
        );
        assert_eq!(
            signature_limit.take(account, now + EMISSION_INTERVAL),
            Err(EMISSION_INTERVAL)
        );
    }
}
