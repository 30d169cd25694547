//! The limit of look-ups of unknown credentials, per address: each look-up is a read of the database.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::Timestamp;
use tollgate_filter::AddressPrefix;

use crate::refusal::Refusal;

/// Reads without a result in one window, per prefix. A credential in memory needs no read.
const MISSES_MAX: u32 = 600;
const WINDOW: Duration = Duration::from_secs(60);

/// Concurrent reads, per prefix: half of the store's limit, so that one address leaves capacity for others.
const UNDER_WAY_MAX: u32 = 512;

/// Counted prefixes. Above this number, only the store bounds the look-ups.
const PREFIXES_MAX: usize = 65_536;

/// Minimum time between two searches of all prefixes for expired counts. Requests with a read wait during a search.
const SWEEP_EVERY: Duration = Duration::from_secs(1);

/// Reads by address prefix: reads under way, and reads without a result.
#[derive(Default)]
pub(crate) struct LookUpMisses {
    prefixes: Mutex<Prefixes>,
}

#[derive(Default)]
struct Prefixes {
    reads: HashMap<AddressPrefix, Reads>,
    swept: Option<Timestamp>,
}

impl Prefixes {
    /// Whether another prefix can be counted.
    fn has_room(&mut self, now: Timestamp) -> bool {
        // Also when the clock was set back.
        let is_recent = |swept| swept <= now && now < swept + SWEEP_EVERY;
        if self.reads.len() >= PREFIXES_MAX && !self.swept.is_some_and(is_recent) {
            self.swept = Some(now);
            let counts = |reads: &Reads| !reads.is_over(now) && reads.misses > 0;
            self.reads
                .retain(|_, reads| reads.under_way > 0 || counts(reads));
        }
        self.reads.len() < PREFIXES_MAX
    }
}

#[derive(Clone, Copy)]
struct Reads {
    under_way: u32,
    /// When the window began.
    began: Timestamp,
    misses: u32,
}

impl Reads {
    fn is_over(&self, now: Timestamp) -> bool {
        // Also when the clock was set back.
        now >= self.began + WINDOW || now < self.began
    }
}

/// A read under way. A dropped request counts as a read without a result, since the store still reads.
pub(crate) struct LookUp {
    misses: Arc<LookUpMisses>,
    /// `None` if not counted.
    prefix: Option<AddressPrefix>,
    is_miss: bool,
}

impl LookUpMisses {
    fn prefixes(&self) -> MutexGuard<'_, Prefixes> {
        self.prefixes.lock()
    }

    /// Counts a read before it is made. A trusted proxy's own address is shared by many clients, and not counted.
    pub(crate) fn begin(
        self: &Arc<Self>,
        prefix: Option<AddressPrefix>,
        now: Timestamp,
    ) -> Result<LookUp, Refusal> {
        let look_up = |prefix| LookUp {
            misses: Arc::clone(self),
            prefix,
            is_miss: true,
        };
        let Some(prefix) = prefix else {
            return Ok(look_up(None));
        };
        let mut prefixes = self.prefixes();
        if !prefixes.reads.contains_key(&prefix) && !prefixes.has_room(now) {
            return Ok(look_up(None));
        }
        let reads = prefixes.reads.entry(prefix).or_insert(Reads {
            under_way: 0,
            began: now,
            misses: 0,
        });
        if reads.is_over(now) {
            reads.began = now;
            reads.misses = 0;
        }
        if reads.misses >= MISSES_MAX {
            let wait = (reads.began + WINDOW).duration_since(now);
            return Err(Refusal::Misses { wait });
        }
        if reads.under_way >= UNDER_WAY_MAX {
            return Err(Refusal::NotRead);
        }
        reads.under_way += 1;
        Ok(look_up(Some(prefix)))
    }
}

impl LookUp {
    /// The read has found a credential, or could not be made.
    pub(crate) fn found(mut self) {
        self.is_miss = false;
    }
}

impl Drop for LookUp {
    fn drop(&mut self) {
        let Some(prefix) = self.prefix else {
            return;
        };
        if let Some(reads) = self.misses.prefixes().reads.get_mut(&prefix) {
            reads.under_way -= 1;
            reads.misses += u32::from(self.is_miss);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const ONE: Option<AddressPrefix> = Some(AddressPrefix::V4(1));
    const OTHER: Option<AddressPrefix> = Some(AddressPrefix::V4(2));

    #[test]
    fn an_address_may_look_up_only_so_many_unknown_credentials_in_a_minute() {
        let misses = Arc::new(LookUpMisses::default());
        for _ in 0..MISSES_MAX - 1 {
            assert!(misses.begin(ONE, NOW).is_ok());
        }
        for _ in 0..3 {
            // It exists: what exists is not counted.
            misses.begin(ONE, NOW).expect("one is left").found();
        }
        drop(misses.begin(ONE, NOW).expect("one is left"));
        let refused = misses.begin(ONE, NOW + Duration::from_secs(20));
        let wait = Duration::from_secs(40);
        assert!(matches!(refused, Err(Refusal::Misses { wait: it }) if it == wait));
        assert!(misses.begin(OTHER, NOW).is_ok(), "another address");
        assert!(misses.begin(None, NOW).is_ok(), "a trusted proxy");
        let later = NOW + WINDOW;
        assert!(misses.begin(ONE, later).is_ok(), "the next minute");
    }

    #[test]
    fn reads_under_way_are_no_misses_and_are_bounded_for_each_address() {
        let misses = Arc::new(LookUpMisses::default());
        let begin = |now| misses.begin(ONE, now);
        let under_way: Vec<_> = (0..UNDER_WAY_MAX).map_while(|_| begin(NOW).ok()).collect();
        assert_eq!(under_way.len(), UNDER_WAY_MAX as usize);
        // Also when the next window has begun.
        for now in [NOW, NOW + WINDOW] {
            assert!(matches!(begin(now), Err(Refusal::NotRead)));
        }
        assert!(misses.begin(OTHER, NOW).is_ok(), "another address");
        under_way.into_iter().for_each(LookUp::found);
        let again = (0..MISSES_MAX).map_while(|_| begin(NOW + WINDOW).ok());
        assert_eq!(again.count(), MISSES_MAX as usize, "none was a miss");
    }

    /// Each new prefix beyond those that are counted searched all of them, under the lock that every read takes.
    #[test]
    fn all_prefixes_are_searched_at_most_once_a_second() {
        let misses = Arc::new(LookUpMisses::default());
        let begin = |number: usize, now| {
            let prefix = AddressPrefix::V6(number as u64);
            misses.begin(Some(prefix), now).expect("few of each")
        };
        let is_counted = |now| begin(PREFIXES_MAX, now).prefix.is_some();
        let under_way: Vec<_> = (0..PREFIXES_MAX).map(|number| begin(number, NOW)).collect();
        assert!(!is_counted(NOW), "all of them count");
        under_way.into_iter().for_each(LookUp::found);
        assert!(!is_counted(NOW + SWEEP_EVERY / 2));
        assert!(is_counted(NOW + SWEEP_EVERY));
    }
}
