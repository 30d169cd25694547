//! Token quota per owner (GCRA over tokens): tokens used, and tokens reserved for running requests.
//!
//! Used tokens drain with time like requests (`quota.rs`): a single instant is stored, the time at which every used token will have
//! drained. Reserved tokens do not drain, because their true usage is not known yet. The reservation is kept beside the instant until its
//! request is over. At this point the true usage replaces the reservation. No token is therefore counted twice, no drained token is
//! returned, and a stream that runs for minutes keeps its reservation for minutes.

use std::num::{NonZeroU32, NonZeroU64};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::counters::Counters;
use crate::partitions::{ByPartition, Partition};

const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Insertions of owners between two sweeps of expired entries.
const SWEEP_EVERY: u64 = 4_096;

/// `limit` tokens in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenQuota {
    limit: NonZeroU64,
    window_secs: NonZeroU32,
}

/// The token count of an owner.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct TokenCount {
    /// Time on a monotonic clock, in nanoseconds, at which every used token will have drained.
    drained_at: u64,
    /// Tokens reserved for running requests.
    reserved: u64,
}

/// The decision about a reservation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TokenDecision {
    /// The reserved tokens; `None` for a refused request.
    pub(crate) reserved: Option<u64>,
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

    pub(crate) fn window(&self) -> u64 {
        u64::from(self.window_secs.get()) * NANOS_PER_SEC
    }

    /// The nanoseconds in which `tokens` tokens drain, rounded up.
    pub(crate) fn nanos(&self, tokens: u64) -> u64 {
        let nanos = u128::from(tokens) * u128::from(self.window());
        u64::try_from(nanos.div_ceil(u128::from(self.limit.get()))).unwrap_or(u64::MAX)
    }

    /// Tokens that drain in `nanos` nanoseconds, rounded down.
    fn tokens(&self, nanos: u64) -> u64 {
        let tokens = u128::from(nanos) * u128::from(self.limit.get()) / u128::from(self.window());
        u64::try_from(tokens).unwrap_or(u64::MAX)
    }

    /// The part of this quota that each of `nodes` nodes may use by itself, at least a token.
    pub(crate) fn share(&self, nodes: u32) -> TokenQuota {
        let tokens = self.limit.get() / u64::from(nodes.max(1));
        TokenQuota {
            limit: NonZeroU64::new(tokens).unwrap_or(NonZeroU64::MIN),
            ..*self
        }
    }

    /// The decision on a request whose tokens take `cost` nanoseconds, where every counted token will have drained `ahead` nanoseconds from
    /// now.
    pub(crate) fn decision(&self, reserved: Option<u64>, cost: u64, ahead: u64) -> TokenDecision {
        let window = self.window();
        let wait = match reserved {
            Some(_) => ahead,
            None => ahead.saturating_add(cost).saturating_sub(window),
        };
        TokenDecision {
            reserved,
            remaining: self.tokens(window.saturating_sub(ahead)),
            reset_secs: wait.div_ceil(NANOS_PER_SEC).max(1),
        }
    }

    /// Reserves `tokens` at `now`, or refuses. A request that may need more than the whole quota reserves the whole quota. A time to drain
    /// that is longer than the window, from other settings, is shortened to the window.
    pub(crate) fn reserve(&self, count: &mut TokenCount, tokens: u64, now: u64) -> TokenDecision {
        let window = self.window();
        let wanted = tokens.min(self.limit.get());
        count.drained_at = count.drained_at.min(now + window);
        let used = count.drained_at.saturating_sub(now);
        let with_this = self.nanos(count.reserved.saturating_add(wanted));
        let beyond = used.saturating_add(with_this).saturating_sub(window);
        let admitted = beyond == 0;
        if admitted {
            count.reserved += wanted;
        }
        let wait = if admitted { used } else { beyond };
        TokenDecision {
            reserved: admitted.then_some(wanted),
            remaining: self.tokens(window - used).saturating_sub(count.reserved),
            reset_secs: wait.div_ceil(NANOS_PER_SEC).max(1),
        }
    }

    /// Replaces the `reserved` tokens by the `used` tokens. Use beyond the whole quota uses the quota up, and no wait exceeds a window.
    pub(crate) fn settle(&self, count: &mut TokenCount, reserved: u64, used: u64, now: u64) {
        count.reserved = count.reserved.saturating_sub(reserved);
        if used > 0 {
            let drained_at = count.drained_at.max(now).saturating_add(self.nanos(used));
            count.drained_at = drained_at.min(now + self.window());
        }
    }
}

/// The token counts of owners with used tokens.
#[derive(Debug, Default)]
pub(crate) struct TokenCounts {
    counts: ByPartition<TokenCount>,
    added: AtomicU64,
}

impl TokenCounts {
    /// Reserves tokens for an owner; see [`TokenQuota::reserve`].
    pub(crate) fn reserve(
        &self,
        partition: Partition,
        quota: &TokenQuota,
        tokens: u64,
        now: u64,
    ) -> TokenDecision {
        let mut added = false;
        let decision = {
            let mut count = self.counts.entry(partition).or_insert_with(|| {
                added = true;
                TokenCount::default()
            });
            quota.reserve(&mut count, tokens, now)
        };
        // After the entry's lock is released: a sweep takes every lock in turn.
        if added && (self.added.fetch_add(1, Ordering::Relaxed) + 1).is_multiple_of(SWEEP_EVERY) {
            self.counts
                .retain(|_, count| count.reserved > 0 || count.drained_at > now);
        }
        decision
    }

    fn settle(&self, reservation: &TokenReservation, used: u64, now: u64) {
        if let Some(mut count) = self.counts.get_mut(&reservation.partition) {
            reservation
                .quota
                .settle(&mut count, reservation.tokens, used, now);
        }
    }

    /// The number of tracked owners.
    pub(crate) fn population(&self) -> usize {
        self.counts.len()
    }
}

/// Tokens reserved for a request. The drop releases the tokens: the request used no tokens.
pub(crate) struct TokenReservation {
    pub(crate) counters: Arc<Counters>,
    pub(crate) partition: Partition,
    pub(crate) quota: TokenQuota,
    pub(crate) tokens: u64,
}

impl TokenReservation {
    /// Replaces the reservation by the request's usage.
    pub(crate) fn settle(mut self, used: u64, now: u64) {
        self.counters.tokens.settle(&self, used, now);
        self.tokens = 0;
    }
}

impl Drop for TokenReservation {
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
    fn reserved_tokens_are_replaced_by_used_ones() {
        let quota = quota(600, 60);
        let mut count = TokenCount::default();
        let first = quota.reserve(&mut count, 500, 0);
        assert_eq!((first.reserved, first.remaining), (Some(500), 100));
        let second = quota.reserve(&mut count, 200, 0);
        assert_eq!(second.reserved, None);
        assert_eq!((second.remaining, second.reset_secs), (100, 10));
        // A reservation does not drain, however long its request takes.
        let later = 3_600 * NANOS_PER_SEC;
        assert_eq!(quota.reserve(&mut count, 200, later).reserved, None);
        quota.settle(&mut count, 500, 100, later);
        let third = quota.reserve(&mut count, 200, later);
        assert_eq!((third.reserved, third.remaining), (Some(200), 300));
        assert_eq!(
            third.reset_secs, 10,
            "a hundred tokens drain in ten seconds"
        );
    }

    #[test]
    fn a_request_above_the_window_quota_reserves_the_whole_quota() {
        let quota = quota(600, 60);
        let mut count = TokenCount::default();
        assert_eq!(quota.reserve(&mut count, 10_000, 0).reserved, Some(600));
        quota.settle(&mut count, 600, 10_000, 0);
        let refused = quota.reserve(&mut count, 1, 0);
        assert_eq!((refused.reserved, refused.reset_secs), (None, 1));
        let whole = quota.reserve(&mut count, 600, 0);
        assert_eq!(
            (whole.reserved, whole.reset_secs),
            (None, 60),
            "a window at most"
        );
    }

    #[test]
    fn a_failed_part_leaves_no_trace() {
        let quota = quota(600, 60);
        let mut count = TokenCount::default();
        quota.reserve(&mut count, 600, 5);
        quota.settle(&mut count, 600, 0, 9);
        assert_eq!(count, TokenCount::default());
    }

    proptest! {
        /// Against a list of the whole usage and every running request.
        #[test]
        fn reservations_and_usage_never_exceed_the_quota_and_its_refill(
            limit in 1u64..5_000,
            window_secs in 1u32..100,
            steps in prop::collection::vec((0u64..200, 0u64..3_000, 0u64..4_000, any::<bool>()), 1..80),
        ) {
            let quota = quota(limit, window_secs);
            let window = u128::from(window_secs) * u128::from(NANOS_PER_SEC);
            let mut count = TokenCount::default();
            let mut open: Vec<u64> = Vec::new();
            // Tokens in use, times the window in nanoseconds so that the numbers stay whole, as of `at`.
            let (mut level, mut at) = (0u128, 0u64);
            let mut now = 1;
            for (tenths, wanted, used, close) in steps {
                now += tenths * u64::from(window_secs) * NANOS_PER_SEC / 100;
                level = level.saturating_sub(u128::from(now - at) * u128::from(limit));
                at = now;
                let reserved: u64 = open.iter().sum();
                if close && !open.is_empty() {
                    let reservation = open.remove(0);
                    quota.settle(&mut count, reservation, used, now);
                    level = (level + u128::from(used) * window).min(u128::from(limit) * window);
                } else {
                    let wanted = wanted.min(limit);
                    let decision = quota.reserve(&mut count, wanted, now);
                    let fits = level + u128::from(reserved + wanted) * window <= u128::from(limit) * window;
                    // Rounding up costs a nanosecond for each answer, so that an exact fit may have to wait for a further nanosecond.
                    let fits_well = level + u128::from(reserved + wanted + 1) * window <= u128::from(limit) * window;
                    prop_assert!(fits || decision.reserved.is_none(), "more than there is was reserved");
                    prop_assert!(!fits_well || decision.reserved.is_some() || wanted == limit, "what fits was refused");
                    open.extend(decision.reserved);
                    if decision.reserved.is_none() && open.is_empty() {
                        let later = now + decision.reset_secs * NANOS_PER_SEC;
                        let mut copy = count;
                        prop_assert!(quota.reserve(&mut copy, wanted, later).reserved.is_some(), "the reported wait was too short");
                    }
                }
                prop_assert_eq!(count.reserved, open.iter().sum::<u64>());
            }
            for reservation in open {
                quota.settle(&mut count, reservation, 0, now);
            }
            prop_assert_eq!(count.reserved, 0);
        }
    }
}
