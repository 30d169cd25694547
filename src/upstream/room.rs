//! Admission control: the concurrency limit of a provider, and the queue of requests that wait for a permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::config::Crowd;

/// The calls to one provider, from all workers.
#[derive(Debug, Default)]
pub(super) struct Room {
    calls: AtomicU32,
    bound: Option<Bound>,
}

#[derive(Debug)]
struct Bound {
    /// Issues permits in the order of the requests.
    places: Arc<Semaphore>,
    terms: Crowd,
    waiting: AtomicU32,
    waited: AtomicU64,
    waited_micros: AtomicU64,
    turned_away: AtomicU64,
}

/// A permit for a call, if their number is bounded.
pub(super) type Place = Option<OwnedSemaphorePermit>;

/// The counters of a queue, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Seen {
    /// Requests that wait.
    pub(super) waiting: u32,
    /// Requests that waited and received a permit, and their total wait.
    pub(super) waited: u64,
    pub(super) waited_micros: u64,
    /// Requests that were rejected by a full queue or timed out in it.
    pub(super) turned_away: u64,
}

/// Counts a waiting request.
struct Waiting<'a>(&'a AtomicU32);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl Room {
    pub(super) fn new(terms: Option<Crowd>) -> Room {
        let bound = terms.map(|terms| Bound {
            places: Arc::new(Semaphore::new(terms.calls_max)),
            terms,
            waiting: AtomicU32::new(0),
            waited: AtomicU64::new(0),
            waited_micros: AtomicU64::new(0),
            turned_away: AtomicU64::new(0),
        });
        Room {
            calls: AtomicU32::new(0),
            bound,
        }
    }

    /// Calls under way.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    /// Records the start of a call; [`Room::left`] records its end.
    pub(super) fn entered(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    pub(super) fn left(&self) {
        self.calls.fetch_sub(1, Relaxed);
    }

    /// Whether a permit is available, as far as can be known without taking it.
    pub(super) fn is_free(&self) -> bool {
        let bound = self.bound.as_ref();
        bound.is_none_or(|bound| bound.places.available_permits() > 0)
    }

    /// Whether the queue accepts one more.
    pub(super) fn may_wait(&self) -> bool {
        self.bound
            .as_ref()
            .is_some_and(|bound| (bound.waiting.load(Relaxed) as usize) < bound.terms.queue_max)
    }

    /// The maximum wait for a permit.
    pub(super) fn wait_max(&self) -> Duration {
        self.bound
            .as_ref()
            .map_or(Duration::ZERO, |bound| bound.terms.wait)
    }

    /// Takes a permit if one is free and the queue is empty.
    pub(super) fn take(&self) -> Option<Place> {
        let Some(bound) = &self.bound else {
            return Some(None);
        };
        match bound.places.clone().try_acquire_owned() {
            Ok(place) => Some(Some(place)),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => None,
        }
    }

    /// Waits for a permit at the end of the queue, for at most `limit`; the future leaves the queue when it is dropped.
    pub(super) async fn wait(&self, limit: Duration) -> Option<Place> {
        let Some(bound) = &self.bound else {
            return Some(None);
        };
        // Counted before it is compared, so that the bound is never exceeded.
        let before = bound.waiting.fetch_add(1, Relaxed);
        let waiting = Waiting(&bound.waiting);
        if before as usize >= bound.terms.queue_max {
            bound.turned_away.fetch_add(1, Relaxed);
            return None;
        }
        let place = bound.places.clone().acquire_owned();
        let place = tokio::time::timeout(limit, place).await;
        drop(waiting);
        match place {
            Ok(Ok(place)) => Some(Some(place)),
            // The semaphore is never closed.
            Ok(Err(_)) => Some(None),
            Err(_) => {
                bound.turned_away.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// Records the wait of a request for its permit.
    pub(super) fn waited(&self, time: Duration) {
        if let Some(bound) = &self.bound {
            bound.waited.fetch_add(1, Relaxed);
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            bound.waited_micros.fetch_add(micros, Relaxed);
        }
    }

    /// Records a request that the queue rejected.
    pub(super) fn turned_away(&self) {
        if let Some(bound) = &self.bound {
            bound.turned_away.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn seen(&self) -> Seen {
        self.bound
            .as_ref()
            .map_or_else(Seen::default, |bound| Seen {
                waiting: bound.waiting.load(Relaxed),
                waited: bound.waited.load(Relaxed),
                waited_micros: bound.waited_micros.load(Relaxed),
                turned_away: bound.turned_away.load(Relaxed),
            })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn room(calls_max: usize, queue_max: usize) -> Room {
        Room::new(Some(Crowd {
            calls_max,
            queue_max,
            wait: Duration::from_secs(10),
        }))
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn those_who_wait_are_served_in_the_order_they_came() {
        let room = room(1, 2);
        let first = room.take().expect("a free place");
        assert!(room.take().is_none() && !room.is_free());
        let limit = room.wait_max();
        let mut second = pin!(room.wait(limit));
        let mut third = pin!(room.wait(limit));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        assert_eq!(room.seen().waiting, 2);
        assert!(!room.may_wait());
        assert!(room.wait(limit).await.is_none(), "the queue is full");
        drop(first);
        assert!(room.take().is_none(), "nobody passes those who wait");
        assert!(poll(third.as_mut()).is_pending());
        let Poll::Ready(Some(place)) = poll(second.as_mut()) else {
            panic!("the first of those who wait has the place");
        };
        drop(place);
        assert!(poll(third.as_mut()).is_ready());
        assert_eq!(room.seen().turned_away, 1);
    }

    #[tokio::test]
    async fn one_that_leaves_the_queue_is_passed_over() {
        let room = room(1, 2);
        let first = room.take().expect("a free place");
        let limit = room.wait_max();
        let mut stays = Box::pin(room.wait(limit));
        {
            let mut leaves = Box::pin(room.wait(limit));
            assert!(poll(leaves.as_mut()).is_pending());
            assert!(poll(stays.as_mut()).is_pending());
        }
        assert_eq!(room.seen().waiting, 1);
        drop(first);
        assert!(poll(stays.as_mut()).is_ready());
        assert_eq!(room.seen().waiting, 0);
    }

    #[tokio::test]
    async fn a_wait_has_an_end() {
        let room = room(1, 2);
        let _first = room.take().expect("a free place");
        assert!(room.wait(Duration::from_millis(1)).await.is_none());
        assert_eq!(room.seen().waiting, 0);
        assert_eq!(room.seen().turned_away, 1);
    }

    #[test]
    fn without_a_bound_there_is_always_room() {
        let room = Room::default();
        assert!(room.is_free() && !room.may_wait());
        assert!(matches!(room.take(), Some(None)));
    }
}
