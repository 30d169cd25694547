//! Request admission by the generic cell rate algorithm (GCRA, ITU-T I.371) in integer nanoseconds.
//!
//! Instead of a request count, a single instant is stored for each limited owner: the *theoretical arrival time*. The time is the last
//! arrival of the admitted requests if they had come evenly spaced. A request moves the time an interval into the future. A request that
//! would move the time further ahead than the quota's capacity is refused and moves nothing.

use std::num::NonZeroU32;

const NANOS_PER_SEC: u64 = 1_000_000_000;
const NANOS_PER_MICRO: u64 = 1_000;

/// Keeps the interval of a share within 64 bits.
const NODES_MAX: u32 = 10_000;

/// A quota: `limit` requests a window on average, and bursts of at most `burst` requests.
///
/// With a burst as large as the limit, an idle partition can use its burst and, within the window, the replenished quota: up to twice the
/// limit in the worst window, and the limit in every later window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    limit: NonZeroU32,
    window_secs: NonZeroU32,
    /// Nanoseconds for a request.
    interval: u64,
    /// How far ahead of now the arrival time may be.
    capacity: u64,
}

/// The decision about a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// Whether the request is admitted.
    pub admitted: bool,
    /// The number of requests that would be admitted now, after this request.
    pub remaining: u32,
    /// Seconds, rounded up. With requests remaining, the time until the full burst is available. With no request remaining, the time until
    /// a request is admitted. For a refused request, the value is the retry delay, at least 1.
    pub reset_secs: u64,
}

impl Quota {
    /// A quota of `limit` requests in `window_secs`. A burst above the limit counts as the limit.
    pub fn new(limit: NonZeroU32, window_secs: NonZeroU32, burst: NonZeroU32) -> Quota {
        let window = u64::from(window_secs.get()) * NANOS_PER_SEC;
        // Rounded up: rounding down would admit a request too many in a long window.
        let interval = window.div_ceil(u64::from(limit.get()));
        Quota {
            limit,
            window_secs,
            interval,
            capacity: interval * u64::from(burst.min(limit).get()),
        }
    }

    /// Requests a window.
    pub fn limit(&self) -> NonZeroU32 {
        self.limit
    }

    /// The window, in seconds.
    pub fn window_secs(&self) -> NonZeroU32 {
        self.window_secs
    }

    /// Decides a request at `now` by the arrival time `arrival` (nanoseconds of a monotonic clock; zero for an unseen partition). Returns
    /// the arrival time to store. For a refused request, the returned time is `arrival` within the capacity.
    ///
    /// An arrival time out of this quota's range, stored under other settings, becomes the arrival time of a quota used up now: no wait
    /// exceeds the wait of the current settings. Otherwise each later refusal would count from its time again, until the range of the other
    /// settings has passed.
    pub fn take(&self, arrival: u64, now: u64) -> (Decision, u64) {
        let base = arrival.clamp(now, now + self.capacity);
        let next = base + self.interval;
        let admitted = next - now <= self.capacity;
        let after = if admitted { next } else { base };
        let decision = self.decision(admitted, after - now);
        (decision, after)
    }

    /// The decision with an arrival time `ahead` nanoseconds ahead of now.
    pub(crate) fn decision(&self, admitted: bool, ahead: u64) -> Decision {
        let remaining = self.remaining(ahead);
        let reset_secs = if remaining > 0 {
            ahead.div_ceil(NANOS_PER_SEC)
        } else {
            (ahead + self.interval)
                .saturating_sub(self.capacity)
                .div_ceil(NANOS_PER_SEC)
                .max(1)
        };
        Decision {
            admitted,
            remaining,
            reset_secs,
        }
    }

    /// The number of admitted requests while the arrival time is `ahead` nanoseconds ahead of now.
    pub(crate) fn remaining(&self, ahead: u64) -> u32 {
        // At most `burst`, which has 32 bits.
        (self.capacity.saturating_sub(ahead) / self.interval) as u32
    }

    /// Nanoseconds for a request, and how far ahead of now the arrival time may be.
    pub(crate) fn interval_and_capacity(&self) -> (u64, u64) {
        (self.interval, self.capacity)
    }

    /// The quota for a state in whole microseconds. Above 10,000 requests a second the interval stays unrounded: rounding would cost more
    /// than a hundredth of the rate, and several requests are counted in a call.
    pub(crate) fn in_micros(&self) -> Quota {
        if self.interval < 100 * NANOS_PER_MICRO {
            return *self;
        }
        let interval = self.interval.next_multiple_of(NANOS_PER_MICRO);
        Quota {
            interval,
            capacity: interval * (self.capacity / self.interval),
            ..*self
        }
    }

    /// The part of this quota that each of `nodes` nodes may use by itself. A burst of a single request is always admitted; the total rate
    /// is never more than the quota's rate.
    pub(crate) fn share(&self, nodes: u32) -> Quota {
        let nodes = u64::from(nodes.clamp(1, NODES_MAX));
        let interval = self.interval * nodes;
        let burst = (self.capacity / self.interval / nodes).max(1);
        Quota {
            interval,
            capacity: interval * burst,
            ..*self
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn shares_of_all_nodes_admit_no_more_than_the_quota_and_each_at_least_one_request() {
        for (limit, nodes, each) in [(100, 3, 33), (2, 3, 1), (60, 1, 60), (7, 7, 1)] {
            let quota = Quota::new(some(limit), some(60), some(limit));
            let share = quota.share(nodes);
            let mut arrival = 0;
            let admitted = (0..200).filter(|_| {
                let (decision, next) = share.take(arrival, 5);
                arrival = next;
                decision.admitted
            });
            assert_eq!(admitted.count(), each, "{limit} by {nodes}");
            assert_eq!(share.interval, quota.interval * u64::from(nodes));
        }
    }

    #[test]
    fn rounding_to_microseconds_never_raises_a_rate() {
        for (limit, window) in [(7, 60), (60, 60), (1_000_000, 1), (700_000, 1), (9_999, 1)] {
            let quota = Quota::new(some(limit), some(window), some(limit));
            let rounded = quota.in_micros();
            assert!(rounded.interval >= quota.interval);
            assert_eq!(rounded.remaining(0), limit, "the same burst");
            let error = rounded.interval - quota.interval;
            assert!(error * 100 <= quota.interval, "{limit} in {window} s");
        }
    }

    /// A reference model: a leaky bucket that fills by an interval with each request and drains by a nanosecond each nanosecond. Every
    /// figure is found by simulation, never by a formula.
    #[derive(Clone, Copy, Debug)]
    struct Bucket {
        interval: u64,
        capacity: u64,
        level: u64,
        at: u64,
    }

    impl Bucket {
        fn new(limit: u32, window_secs: u32, burst: u32) -> Bucket {
            let nanos = u64::from(window_secs) * NANOS_PER_SEC;
            let mut interval = nanos / u64::from(limit);
            if !nanos.is_multiple_of(u64::from(limit)) {
                interval += 1;
            }
            Bucket {
                interval,
                capacity: interval * u64::from(burst),
                level: 0,
                at: 0,
            }
        }

        fn wait_until(&mut self, now: u64) {
            self.level = self.level.saturating_sub(now - self.at);
            self.at = now;
        }

        fn take(&mut self) -> bool {
            let admitted = self.level + self.interval <= self.capacity;
            if admitted {
                self.level += self.interval;
            }
            admitted
        }

        fn takes_left(mut self) -> u32 {
            (0..).take_while(|_| self.take()).count() as u32
        }

        fn after_secs(mut self, secs: u64) -> Bucket {
            self.wait_until(self.at + secs * NANOS_PER_SEC);
            self
        }
    }

    fn some(value: u32) -> NonZeroU32 {
        NonZeroU32::new(value).expect("not zero")
    }

    proptest! {
        #[test]
        fn every_figure_is_what_a_brute_force_count_finds(
            limit in 1u32..60,
            window_secs in 1u32..120,
            burst_of_limit in 1u32..=60,
            steps in prop::collection::vec((0u64..40, 0u64..NANOS_PER_SEC), 1..80),
        ) {
            let burst = burst_of_limit.min(limit);
            let quota = Quota::new(some(limit), some(window_secs), some(burst));
            let mut model = Bucket::new(limit, window_secs, burst);
            let (mut arrival, mut now) = (0, 7);
            model.wait_until(now);
            for (tenths, nanos) in steps {
                // Mostly bursts, with occasional pauses that are long compared to the window.
                if tenths > 20 {
                    now += (tenths - 20) * u64::from(window_secs) * NANOS_PER_SEC / 10 + nanos;
                } else if tenths > 10 {
                    now += nanos;
                }
                model.wait_until(now);
                let (decision, kept) = quota.take(arrival, now);
                prop_assert_eq!(decision.admitted, model.take());
                prop_assert_eq!(decision.remaining, model.takes_left());
                if !decision.admitted {
                    prop_assert_eq!(kept, arrival, "a refusal costs nothing");
                }
                arrival = kept;

                let reset = decision.reset_secs;
                let (enough, goal) = if decision.remaining > 0 {
                    (burst, "the whole burst is back")
                } else {
                    prop_assert!(reset >= 1);
                    (1, "one request is admitted")
                };
                prop_assert!(model.after_secs(reset).takes_left() >= enough, "{} after {} s", goal, reset);
                if reset > 1 {
                    prop_assert!(model.after_secs(reset - 1).takes_left() < enough, "{} s would do", reset - 1);
                }
            }
        }

        #[test]
        fn no_window_admits_more_than_the_burst_and_what_flows_back(
            limit in 1u32..20,
            window_secs in 1u32..5,
            steps in prop::collection::vec(0u64..NANOS_PER_SEC / 4, 1..200),
        ) {
            let quota = Quota::new(some(limit), some(window_secs), some(limit));
            let window = u64::from(window_secs) * NANOS_PER_SEC;
            let (mut arrival, mut now) = (0, 0);
            let mut admitted: Vec<u64> = Vec::new();
            for step in steps {
                now += step;
                let (decision, kept) = quota.take(arrival, now);
                arrival = kept;
                if decision.admitted {
                    admitted.push(now);
                    let within = admitted.iter().filter(|&&at| now - at < window).count();
                    prop_assert!(within <= 2 * limit as usize, "{} in one window", within);
                }
            }
        }
    }

    #[test]
    fn a_quota_of_sixty_a_minute_counts_down_and_refills() {
        let quota = Quota::new(some(60), some(60), some(60));
        let now = 5 * NANOS_PER_SEC;
        let mut arrival = 0;
        for taken in 1..=60 {
            let (decision, kept) = quota.take(arrival, now);
            assert!(decision.admitted, "request {taken}");
            assert_eq!(decision.remaining, 60 - taken);
            arrival = kept;
        }
        let (refused, _) = quota.take(arrival, now);
        let wait = Decision {
            admitted: false,
            remaining: 0,
            reset_secs: 1,
        };
        assert_eq!(refused, wait);
        assert!(quota.take(arrival, now + NANOS_PER_SEC).0.admitted);
    }

    #[test]
    fn a_shorter_window_limits_the_wait_at_once() {
        let day = Quota::new(some(1), some(86_400), some(1));
        let minute = Quota::new(some(60), some(60), some(60));
        let (_, arrival) = day.take(0, 0);
        let (decision, arrival) = minute.take(arrival, 0);
        assert_eq!((decision.admitted, decision.reset_secs), (false, 1));
        assert!(minute.take(arrival, NANOS_PER_SEC).0.admitted);
    }
}
