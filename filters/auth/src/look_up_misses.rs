//! The limit of look-ups of credentials that do not exist, per address: each is a read of the database.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_filter::AddressPrefix;

use crate::refusal::Refusal;

/// Look-ups of unknown credentials in one window, per prefix. A credential in memory needs none.
const MISSES_MAX: u32 = 600;
const WINDOW: Duration = Duration::from_secs(60);

/// Prefixes that are counted. When there are more, the look-ups are bounded by the store alone.
const PREFIXES_MAX: usize = 65_536;

/// Look-ups by address prefix: those under way, and those that found nothing.
#[derive(Default)]
pub(crate) struct LookUpMisses {
    prefixes: Mutex<HashMap<AddressPrefix, Window>>,
}

#[derive(Clone, Copy)]
struct Window {
    began: Timestamp,
    misses: u32,
}

impl Window {
    fn is_over(&self, now: Timestamp) -> bool {
        // Also when the clock was set back.
        now >= self.began + WINDOW || now < self.began
    }
}

/// A look-up that was counted in the window that began then.
pub(crate) struct Counted(Option<(AddressPrefix, Timestamp)>);

impl LookUpMisses {
    fn prefixes(&self) -> MutexGuard<'_, HashMap<AddressPrefix, Window>> {
        self.prefixes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts a look-up before it is made. A trusted proxy's own address is shared by many clients, and not counted.
    pub(crate) fn count(
        &self,
        prefix: Option<AddressPrefix>,
        now: Timestamp,
    ) -> Result<Counted, Refusal> {
        let Some(prefix) = prefix else {
            return Ok(Counted(None));
        };
        let mut prefixes = self.prefixes();
        if prefixes.len() >= PREFIXES_MAX && !prefixes.contains_key(&prefix) {
            prefixes.retain(|_, window| !window.is_over(now) && window.misses > 0);
            if prefixes.len() >= PREFIXES_MAX {
                return Ok(Counted(None));
            }
        }
        let new = Window {
            began: now,
            misses: 0,
        };
        let window = prefixes.entry(prefix).or_insert(new);
        if window.is_over(now) {
            *window = new;
        }
        if window.misses >= MISSES_MAX {
            let wait = (window.began + WINDOW).duration_since(now);
            return Err(Refusal::Misses { wait });
        }
        window.misses += 1;
        Ok(Counted(Some((prefix, window.began))))
    }

    /// The look-up has found a credential, or could not be made.
    pub(crate) fn found(&self, counted: Counted) {
        let Some((prefix, began)) = counted.0 else {
            return;
        };
        if let Some(window) = self.prefixes().get_mut(&prefix)
            && window.began == began
        {
            window.misses -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_may_look_up_only_so_many_unknown_credentials_in_a_minute() {
        let misses = LookUpMisses::default();
        let now = Timestamp::from_secs(1_800_000_000);
        let (one, other) = (AddressPrefix::V4(1), AddressPrefix::V4(2));
        for _ in 0..MISSES_MAX - 1 {
            assert!(misses.count(Some(one), now).is_ok());
        }
        for _ in 0..3 {
            let counted = misses.count(Some(one), now).expect("one is left");
            let refused = misses.count(Some(one), now + Duration::from_secs(20));
            let wait = Duration::from_secs(40);
            assert!(matches!(refused, Err(Refusal::Misses { wait: it }) if it == wait));
            // It exists: what exists is not counted.
            misses.found(counted);
        }
        assert!(misses.count(Some(one), now).is_ok());
        assert!(misses.count(Some(one), now).is_err());
        assert!(misses.count(Some(other), now).is_ok(), "another address");
        assert!(misses.count(None, now).is_ok(), "a trusted proxy");
        let later = now + WINDOW;
        assert!(misses.count(Some(one), later).is_ok(), "the next minute");
    }
}
