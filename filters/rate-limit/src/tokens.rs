//! Token quota per owner: tokens used, and tokens reserved for running requests.
//!
//! Used tokens drain with time like requests do (`quota.rs`): one instant is stored, at which all of them will have drained. Reserved
//! tokens do not drain, because their true usage is not known yet: the reservation is kept beside the instant until its request is over,
//! and then the true usage replaces it. So nothing is counted twice, nothing is returned that has drained already, and a stream that runs
//! for minutes keeps its reservation for minutes.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use dashmap::DashMap;

use crate::Counters;
use crate::partitions::Partition;

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Insertions of owners between two sweeps of expired entries.
const SWEEP_EVERY: u64 = 4_096;

/// `limit` tokens in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenQuota {
    limit: NonZeroU64,
    window_secs: NonZeroU32,
}

/// The token count of one owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCount {
    /// Nanoseconds of a monotonic clock at which all used tokens will have drained.
    drained_at: u64,
    /// Tokens reserved for running requests.
    promised: u64,
}

/// The decision about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenVerdict {
    /// The reserved tokens; none when the request is refused.
    pub(crate) promised: Option<u64>,
    /// The tokens that could be reserved now, after this reservation.
    pub(crate) remaining: u64,
    /// Seconds, rounded up, at least 1: for a refused request the retry delay, else until the used tokens have drained.
    pub(crate) reset_secs: u64,
}

impl TokenQuota {
    /// `limit` tokens in `window_secs`.
    pub fn new(limit: NonZeroU64, window_secs: NonZeroU32) -> TokenQuota {
        TokenQuota { limit, window_secs }
    }

    /// Tokens a window.
    pub fn limit(&self) -> NonZeroU64 {
        self.limit
    }

    /// The window, in seconds.
    pub fn window_secs(&self) -> NonZeroU32 {
        self.window_secs
    }

    fn window(&self) -> u64 {
        u64::from(self.window_secs.get()) * NANOS_PER_SEC
    }

    /// The nanoseconds in which so many tokens drain, rounded up.
    fn nanos(&self, tokens: u64) -> u64 {
        let nanos = u128::from(tokens) * u128::from(self.window());
        u64::try_from(nanos.div_ceil(u128::from(self.limit.get()))).unwrap_or(u64::MAX)
    }

    /// Tokens that drain in so many nanoseconds, rounded down.
    fn tokens(&self, nanos: u64) -> u64 {
        let tokens = u128::from(nanos) * u128::from(self.limit.get()) / u128::from(self.window());
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// Reserves `tokens` at `now`, or refuses and changes nothing. A request that may need more than the whole quota reserves all of it.
    pub(crate) fn promise(&self, count: &mut TokenCount, tokens: u64, now: u64) -> TokenVerdict {
        let window = self.window();
        let wanted = tokens.min(self.limit.get());
        let used = count.drained_at.saturating_sub(now).min(window);
        let with_this = self.nanos(count.promised.saturating_add(wanted));
        let beyond = used.saturating_add(with_this).saturating_sub(window);
        let admitted = beyond == 0;
        if admitted {
            count.promised += wanted;
        }
        let wait = if admitted { used } else { beyond };
        TokenVerdict {
            promised: admitted.then_some(wanted),
            remaining: self.tokens(window - used).saturating_sub(count.promised),
            reset_secs: wait.div_ceil(NANOS_PER_SEC).max(1),
        }
    }

    /// Replaces the `promised` tokens by the `used` ones. More than the whole quota uses it up, and no wait exceeds a window.
    pub(crate) fn settle(&self, count: &mut TokenCount, promised: u64, used: u64, now: u64) {
        count.promised = count.promised.saturating_sub(promised);
        if used > 0 {
            let drained_at = count.drained_at.max(now).saturating_add(self.nanos(used));
            count.drained_at = drained_at.min(now + self.window());
        }
    }
}

/// The token counts of all owners that have used any.
#[derive(Debug, Default)]
pub(crate) struct TokenCounts {
    counts: DashMap<Partition, TokenCount>,
    added: AtomicU64,
}

impl TokenCounts {
    /// Reserves tokens for an owner; see [`TokenQuota::promise`].
    pub(crate) fn promise(
        &self,
        partition: Partition,
        quota: &TokenQuota,
        tokens: u64,
        now: u64,
    ) -> TokenVerdict {
        let mut added = false;
        let verdict = {
            let mut count = self.counts.entry(partition).or_insert_with(|| {
                added = true;
                TokenCount::default()
            });
            quota.promise(&mut count, tokens, now)
        };
        // After the entry's lock is released: a sweep takes every lock in turn.
        if added && (self.added.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(SWEEP_EVERY) {
            self.counts
                .retain(|_, count| count.promised > 0 || count.drained_at > now);
        }
        verdict
    }

    fn settle(&self, promise: &Promise, used: u64, now: u64) {
        if let Some(mut count) = self.counts.get_mut(&promise.partition) {
            promise.quota.settle(&mut count, promise.tokens, used, now);
        }
    }

    /// The number of tracked owners.
    pub(crate) fn population(&self) -> usize {
        self.counts.len()
    }
}

/// Tokens reserved for one request. Dropping it releases them: the request used none.
pub(crate) struct Promise {
    pub(crate) counters: Arc<Counters>,
    pub(crate) partition: Partition,
    pub(crate) quota: TokenQuota,
    pub(crate) tokens: u64,
}

impl Promise {
    /// Replaces the reservation by the request's usage.
    pub(crate) fn settle(mut self, used: u64, now: u64) {
        self.counters.tokens.settle(&self, used, now);
        self.tokens = 0;
    }
}

impl Drop for Promise {
    fn drop(&mut self) {
        if self.tokens > 0 {
            self.counters.tokens.settle(self, 0, 0);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quota(limit: u64, window_secs: u32) -> TokenQuota {
        let limit = NonZeroU64::new(limit).expect("not zero");
        TokenQuota::new(limit, NonZeroU32::new(window_secs).expect("not zero"))
    }

    #[test]
    fn what_is_promised_is_replaced_by_what_is_used() {
        let quota = quota(600, 60);
        let mut count = TokenCount::default();
        let first = quota.promise(&mut count, 500, 0);
        assert_eq!((first.promised, first.remaining), (Some(500), 100));
        let second = quota.promise(&mut count, 200, 0);
        assert_eq!(second.promised, None);
        assert_eq!((second.remaining, second.reset_secs), (100, 10));
        // A reservation does not drain, however long its request takes.
        let later = 3_600 * NANOS_PER_SEC;
        assert_eq!(quota.promise(&mut count, 200, later).promised, None);
        quota.settle(&mut count, 500, 100, later);
        let third = quota.promise(&mut count, 200, later);
        assert_eq!((third.promised, third.remaining), (Some(200), 300));
        assert_eq!(
            third.reset_secs, 10,
            "a hundred tokens drain in ten seconds"
        );
    }

    #[test]
    fn a_request_that_may_need_more_than_there_is_in_a_window_is_promised_all_of_it() {
        let quota = quota(600, 60);
        let mut count = TokenCount::default();
        assert_eq!(quota.promise(&mut count, 10_000, 0).promised, Some(600));
        quota.settle(&mut count, 600, 10_000, 0);
        let refused = quota.promise(&mut count, 1, 0);
        assert_eq!((refused.promised, refused.reset_secs), (None, 1));
        let whole = quota.promise(&mut count, 600, 0);
        assert_eq!(
            (whole.promised, whole.reset_secs),
            (None, 60),
            "a window at most"
        );
    }

    #[test]
    fn what_failed_is_as_if_it_had_never_been() {
        let quota = quota(600, 60);
        let mut count = TokenCount::default();
        quota.promise(&mut count, 600, 5);
        quota.settle(&mut count, 600, 0, 9);
        assert_eq!(count, TokenCount::default());
    }

    proptest! {
        /// Against a list of all usage and all running requests.
        #[test]
        fn promises_and_usage_never_come_to_more_than_the_quota_and_what_drains(
            limit in 1u64..5_000,
            window_secs in 1u32..100,
            steps in prop::collection::vec((0u64..200, 0u64..3_000, 0u64..4_000, any::<bool>()), 1..80),
        ) {
            let quota = quota(limit, window_secs);
            let window = u128::from(window_secs) * u128::from(NANOS_PER_SEC);
            let mut count = TokenCount::default();
            let mut open: Vec<u64> = Vec::new();
            // Tokens in use, times the window in nanoseconds so that they stay whole numbers, as of `at`.
            let (mut level, mut at) = (0u128, 0u64);
            let mut now = 1;
            for (tenths, wanted, used, close) in steps {
                now += tenths * u64::from(window_secs) * NANOS_PER_SEC / 100;
                level = level.saturating_sub(u128::from(now - at) * u128::from(limit));
                at = now;
                let promised: u64 = open.iter().sum();
                if close && !open.is_empty() {
                    let promise = open.remove(0);
                    quota.settle(&mut count, promise, used, now);
                    level = (level + u128::from(used) * window).min(u128::from(limit) * window);
                } else {
                    let wanted = wanted.min(limit);
                    let verdict = quota.promise(&mut count, wanted, now);
                    let fits = level + u128::from(promised + wanted) * window <= u128::from(limit) * window;
                    // Rounding up costs a nanosecond for each answer, so an exact fit may have to wait for one more.
                    let fits_well = level + u128::from(promised + wanted + 1) * window <= u128::from(limit) * window;
                    prop_assert!(fits || verdict.promised.is_none(), "more than there is was promised");
                    prop_assert!(!fits_well || verdict.promised.is_some() || wanted == limit, "what fits was refused");
                    open.extend(verdict.promised);
                    if verdict.promised.is_none() && open.is_empty() {
                        let later = now + verdict.reset_secs * NANOS_PER_SEC;
                        let mut copy = count;
                        prop_assert!(quota.promise(&mut copy, wanted, later).promised.is_some(), "the wait told was too short");
                    }
                }
                prop_assert_eq!(count.promised, open.iter().sum::<u64>());
            }
            for promise in open {
                quota.settle(&mut count, promise, 0, now);
            }
            prop_assert_eq!(count.promised, 0);
        }
    }
}
