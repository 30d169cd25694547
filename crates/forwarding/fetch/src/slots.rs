//! Fetch slots: bounded concurrency, with a share for each requester. Without a free slot, the fetch with the longest run is cancelled, so
//! that slow hosts do not block other hosts' documents.

use std::net::IpAddr;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

/// Concurrent fetches.
const CONCURRENCY_MAX: usize = 8;

/// Slots of one requester.
const SHARE: usize = 2;

/// Minimum run before a cancellation: a working host has answered by then.
const CANCELLED_AFTER: Duration = Duration::from_secs(1);

/// The fetches under way, the oldest first. Cheap to clone.
#[derive(Clone, Default)]
pub(crate) struct Slots(Arc<Mutex<State>>);

#[derive(Default)]
struct State {
    next: u64,
    running: Vec<Running>,
}

struct Running {
    number: u64,
    requester: Option<Requester>,
    since: Duration,
    cancel: Arc<Notify>,
}

/// The addresses under one subscriber's control: an IPv4 address, the first 64 bits of an IPv6 address.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Requester {
    V4(u32),
    V6(u64),
}

impl Requester {
    fn of(address: IpAddr) -> Requester {
        match address.to_canonical() {
            IpAddr::V4(address) => Requester::V4(address.to_bits()),
            IpAddr::V6(address) => Requester::V6((address.to_bits() >> 64) as u64),
        }
    }
}

/// The slot of one fetch, given back on drop.
pub(crate) struct Slot {
    number: u64,
    slots: Slots,
    cancel: Arc<Notify>,
}

impl Slots {
    /// A slot for a fetch caused by this address; `None` as requester is not counted. `now` is on the monotonic clock.
    pub(crate) fn take(&self, requester: Option<IpAddr>, now: Duration) -> Option<Slot> {
        let requester = requester.map(Requester::of);
        let mut state = self.lock();
        let is_own = |one: &Running| requester.is_some() && one.requester == requester;
        let own = state.running.iter().filter(|one| is_own(one)).count();
        let oldest = if own >= SHARE {
            Some(state.running.iter().position(is_own)?)
        } else {
            (state.running.len() >= CONCURRENCY_MAX).then_some(0)
        };
        if let Some(oldest) = oldest {
            if now.saturating_sub(state.running[oldest].since) < CANCELLED_AFTER {
                return None;
            }
            state.running.remove(oldest).cancel.notify_one();
        }
        let (number, cancel) = (state.next, Arc::<Notify>::default());
        state.next += 1;
        state.running.push(Running {
            number,
            requester,
            since: now,
            cancel: cancel.clone(),
        });
        drop(state);
        Some(Slot {
            number,
            slots: self.clone(),
            cancel,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }
}

impl Slot {
    /// Completes when another fetch has taken the slot.
    pub(crate) async fn cancelled(&self) {
        self.cancel.notified().await;
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        let mut state = self.slots.lock();
        state.running.retain(|one| one.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requester(number: u8) -> Option<IpAddr> {
        Some(IpAddr::from([192, 0, 2, number]))
    }

    /// Eight requests that name hosts which never answer kept every other client document away for as long as they were repeated.
    #[tokio::test]
    async fn one_requester_has_a_share_and_the_oldest_gives_way() {
        let (slots, now) = (Slots::default(), Duration::ZERO);
        let later = now + CANCELLED_AFTER;
        let first = slots.take(requester(1), now).expect("a slot");
        let _second = slots.take(requester(1), now).expect("a slot");
        assert!(slots.take(requester(1), now).is_none(), "its share");
        let others: Vec<_> = (2..5)
            .flat_map(|number| [number, number])
            .map(|number| slots.take(requester(number), now).expect("a slot"))
            .collect();
        assert!(
            slots.take(requester(9), now).is_none(),
            "all may still answer"
        );
        let ninth = slots
            .take(requester(9), later)
            .expect("the place of the first");
        first.cancelled().await;
        assert!(
            slots.take(requester(1), later).is_some(),
            "the first was one of its two"
        );
        drop((first, ninth, others));
        assert!(slots.take(None, later).is_some());
    }

    #[tokio::test]
    async fn beyond_its_share_a_requester_cancels_its_own() {
        let (slots, now) = (Slots::default(), Duration::ZERO);
        let later = now + CANCELLED_AFTER;
        let other = slots.take(requester(2), now).expect("a slot");
        let first = slots.take(requester(1), now).expect("a slot");
        let _second = slots.take(requester(1), now).expect("a slot");
        let _third = slots
            .take(requester(1), later)
            .expect("the place of its first");
        first.cancelled().await;
        let state = slots.lock();
        assert_eq!(
            state.running[0].number, other.number,
            "the oldest of all stays"
        );
    }
}
