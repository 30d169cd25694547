//! Abandoned work: the providers' work for clients that disconnected before any output, as a leaky bucket for each account.
//!
//! An abandoned request is free, because the client has received nothing. Without a limit an account could cause any cost at the providers.
//! The bucket drains evenly, and a request is refused while the bucket is full.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;
use tollgate_money::AccountId;

/// Tokens for a second of a provider's work: the output of a fast model in a second.
const TOKENS_PER_SECOND: u64 = 100;

/// The time in which a full bucket drains.
const WINDOW: Duration = Duration::from_secs(3_600);

/// The buckets of accounts with abandoned work. Empty buckets are removed.
#[derive(Debug, Default)]
pub(crate) struct Abandoned {
    buckets: DashMap<AccountId, Bucket>,
    /// The number of buckets, so that usually no request takes a lock.
    count: AtomicU64,
    tokens: AtomicU64,
}

/// Tokens at a reading of the monotonic clock.
#[derive(Clone, Copy, Debug)]
struct Bucket {
    tokens: u64,
    at: Duration,
}

impl Bucket {
    fn drained(self, tokens_max: NonZeroU64, now: Duration) -> u64 {
        let passed = now.saturating_sub(self.at).as_millis();
        let drained = u128::from(tokens_max.get()) * passed / WINDOW.as_millis();
        self.tokens
            .saturating_sub(u64::try_from(drained).unwrap_or(u64::MAX))
    }
}

/// The tokens of an abandoned request: the request's prompt, and the time of the provider's work.
pub(crate) fn work(prompt_tokens: u64, worked: Duration) -> u64 {
    let seconds = u64::try_from(worked.as_millis().div_ceil(1_000)).unwrap_or(u64::MAX);
    prompt_tokens.saturating_add(seconds.saturating_mul(TOKENS_PER_SECOND))
}

impl Abandoned {
    /// How long an account has to wait before its next request, if the account's bucket is full.
    pub(crate) fn wait(
        &self,
        account: AccountId,
        tokens_max: NonZeroU64,
        now: Duration,
    ) -> Option<Duration> {
        if self.count.load(Relaxed) == 0 {
            return None;
        }
        let Entry::Occupied(bucket) = self.buckets.entry(account) else {
            return None;
        };
        let tokens = bucket.get().drained(tokens_max, now);
        if tokens == 0 {
            bucket.remove();
            self.count.fetch_sub(1, Relaxed);
            return None;
        }
        let over = (tokens + 1).checked_sub(tokens_max.get())?;
        if over == 0 {
            return None;
        }
        let millis = u128::from(over) * WINDOW.as_millis() / u128::from(tokens_max.get());
        Some(
            Duration::from_millis(u64::try_from(millis).unwrap_or(u64::MAX))
                .max(Duration::from_secs(1)),
        )
    }

    /// Adds the work of an abandoned request.
    pub(crate) fn add(
        &self,
        account: AccountId,
        tokens: u64,
        tokens_max: NonZeroU64,
        now: Duration,
    ) {
        self.tokens.fetch_add(tokens, Relaxed);
        match self.buckets.entry(account) {
            Entry::Occupied(mut bucket) => {
                let bucket = bucket.get_mut();
                let left = bucket.drained(tokens_max, now);
                *bucket = Bucket {
                    tokens: left.saturating_add(tokens),
                    at: now,
                };
            }
            Entry::Vacant(place) => {
                place.insert(Bucket { tokens, at: now });
                self.count.fetch_add(1, Relaxed);
            }
        }
    }

    /// Tokens of abandoned work so far.
    pub(crate) fn tokens(&self) -> u64 {
        self.tokens.load(Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_bucket_refuses_until_it_has_drained() {
        let abandoned = Abandoned::default();
        let most = NonZeroU64::new(3_600).expect("not zero");
        let (one, other) = (
            AccountId::from_parts(1, [1; 10]),
            AccountId::from_parts(1, [2; 10]),
        );
        let second = Duration::from_secs;
        let wait = |account, at| abandoned.wait(account, most, second(at));
        assert_eq!(wait(one, 0), None);
        abandoned.add(
            one,
            work(3_000, Duration::from_millis(5_001)),
            most,
            second(0),
        );
        assert_eq!(
            wait(one, 0),
            Some(second(1)),
            "3,600 with six seconds of work"
        );
        assert_eq!(wait(other, 0), None);
        assert_eq!(wait(one, 1), None, "one token a second");
        abandoned.add(one, 10_000, most, second(1));
        assert_eq!(wait(one, 1), Some(second(10_000)));
        assert_eq!(wait(one, 10_001), None);
        assert_eq!(wait(one, 20_000), None);
        assert_eq!(abandoned.buckets.len(), 0, "an empty one is removed");
        assert_eq!(abandoned.tokens(), 13_600);
    }
}
