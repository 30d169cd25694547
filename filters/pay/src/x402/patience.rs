//! How often an account may have the facilitator look at signatures that are not plainly good.
//!
//! A signature that does not give back its wallet is probably wrong, and may be that of a wallet that is a contract: only the chain can
//! say. Each costs a call to the facilitator, so that an account has few of them.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate_money::AccountId;

/// How many at once.
const BURST: u32 = 5;

/// How long until there is another one.
const EACH: Duration = Duration::from_secs(20);

/// Accounts that are remembered; above it those that have all of theirs again are forgotten.
const ACCOUNTS: usize = 4_096;

/// What each account has used: the moment at which it has all of them again.
#[derive(Debug, Default)]
pub(crate) struct Patience {
    full_at: Mutex<HashMap<AccountId, Duration>>,
}

impl Patience {
    /// Takes one at `now` (a clock that never goes back), or says how long there is none.
    pub(crate) fn take(&self, account: AccountId, now: Duration) -> Result<(), Duration> {
        let mut full_at = self.full_at.lock().unwrap_or_else(PoisonError::into_inner);
        if full_at.len() >= ACCOUNTS {
            full_at.retain(|_, at| *at > now);
        }
        let at = full_at.entry(account).or_insert(now);
        let next = (*at).max(now) + EACH;
        let over = next.saturating_sub(now + EACH * BURST);
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
        let patience = Patience::default();
        let account = AccountId::from_bytes([1; 16]);
        let now = Duration::from_secs(1_000);
        for _ in 0..BURST {
            assert_eq!(patience.take(account, now), Ok(()));
        }
        assert_eq!(patience.take(account, now), Err(EACH));
        assert_eq!(
            patience.take(AccountId::from_bytes([2; 16]), now),
            Ok(()),
            "another account has its own"
        );
        let half = now + EACH / 2;
        assert_eq!(patience.take(account, half), Err(EACH / 2));
        assert_eq!(patience.take(account, now + EACH), Ok(()));
        assert_eq!(patience.take(account, now + EACH), Err(EACH));
    }
}
