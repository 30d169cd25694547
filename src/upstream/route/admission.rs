//! Admission control: the concurrency limit of a provider, and the queue of requests that wait for a permit.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;
use tokio::sync::{OwnedSemaphorePermit, Semaphore, TryAcquireError};

use crate::config::Concurrency;

/// The concurrency limit of one provider, shared by all workers.
#[derive(Debug, Default)]
pub(in crate::upstream) struct ConcurrencyLimit {
    calls: AtomicU32,
    queue: Option<Queue>,
}

/// The permits, and the waiting requests.
#[derive(Debug)]
struct Queue {
    /// Issues permits in the order of the requests.
    permits: Arc<Semaphore>,
    settings: Concurrency,
    waiting: AtomicU32,
    waited: AtomicU64,
    waited_micros: AtomicU64,
    rejected: AtomicU64,
}

/// A permit for a call, if their number is limited.
pub(in crate::upstream) type Permit = Option<OwnedSemaphorePermit>;

/// The counters of a queue, for the metrics.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct QueueCounts {
    /// Requests that wait.
    pub(super) waiting: u32,
    /// Requests with a permit after a wait, and their total wait.
    pub(super) waited: u64,
    pub(super) waited_micros: u64,
    /// Requests rejected by a full queue or timed out in the queue.
    pub(super) rejected: u64,
}

/// Counts a waiting request.
struct QueuedGuard<'a>(&'a AtomicU32);

impl Drop for QueuedGuard<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}

impl ConcurrencyLimit {
    pub(super) fn new(settings: Option<Concurrency>) -> ConcurrencyLimit {
        let queue = settings.map(|settings| Queue {
            permits: Arc::new(Semaphore::new(settings.calls_max)),
            settings,
            waiting: AtomicU32::new(0),
            waited: AtomicU64::new(0),
            waited_micros: AtomicU64::new(0),
            rejected: AtomicU64::new(0),
        });
        ConcurrencyLimit {
            calls: AtomicU32::new(0),
            queue,
        }
    }

    /// Calls under way.
    pub(super) fn calls(&self) -> u32 {
        self.calls.load(Relaxed)
    }

    /// Records the start of a call; [`ConcurrencyLimit::call_ended`] records its end.
    pub(super) fn call_started(&self) {
        self.calls.fetch_add(1, Relaxed);
    }

    pub(super) fn call_ended(&self) {
        self.calls.fetch_sub(1, Relaxed);
    }

    /// Whether a permit is available, as far as can be known without taking it.
    pub(super) fn has_permit(&self) -> bool {
        let queue = self.queue.as_ref();
        queue.is_none_or(|queue| queue.permits.available_permits() > 0)
    }

    /// Whether the queue accepts one more.
    pub(super) fn has_queue_space(&self) -> bool {
        self.queue
            .as_ref()
            .is_some_and(|queue| (queue.waiting.load(Relaxed) as usize) < queue.settings.queue_max)
    }

    /// The maximum wait for a permit.
    pub(in crate::upstream) fn queue_wait_max(&self) -> Duration {
        self.queue
            .as_ref()
            .map_or(Duration::ZERO, |queue| queue.settings.wait)
    }

    /// Takes a permit if one is free and the queue is empty.
    pub(super) fn try_acquire(&self) -> Option<Permit> {
        let Some(queue) = &self.queue else {
            return Some(None);
        };
        match queue.permits.clone().try_acquire_owned() {
            Ok(permit) => Some(Some(permit)),
            Err(TryAcquireError::NoPermits | TryAcquireError::Closed) => None,
        }
    }

    /// Waits for a permit at the end of the queue, for at most `limit`; the future leaves the queue when it is dropped.
    pub(in crate::upstream) async fn acquire_queued(&self, limit: Duration) -> Option<Permit> {
        let Some(queue) = &self.queue else {
            return Some(None);
        };
        // Counted before the comparison, so that the bound is never exceeded.
        let before = queue.waiting.fetch_add(1, Relaxed);
        let waiting = QueuedGuard(&queue.waiting);
        if before as usize >= queue.settings.queue_max {
            queue.rejected.fetch_add(1, Relaxed);
            return None;
        }
        let permit = queue.permits.clone().acquire_owned();
        let permit = tokio::time::timeout(limit, permit).await;
        drop(waiting);
        match permit {
            Ok(Ok(permit)) => Some(Some(permit)),
            // The semaphore is never closed.
            Ok(Err(_)) => Some(None),
            Err(_) => {
                queue.rejected.fetch_add(1, Relaxed);
                None
            }
        }
    }

    /// Records the wait of a request for its permit.
    pub(in crate::upstream) fn record_wait(&self, time: Duration) {
        if let Some(queue) = &self.queue {
            queue.waited.fetch_add(1, Relaxed);
            let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
            queue.waited_micros.fetch_add(micros, Relaxed);
        }
    }

    /// Records a request that the queue rejected.
    pub(super) fn record_rejection(&self) {
        if let Some(queue) = &self.queue {
            queue.rejected.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn queue_counts(&self) -> QueueCounts {
        self.queue
            .as_ref()
            .map_or_else(QueueCounts::default, |queue| QueueCounts {
                waiting: queue.waiting.load(Relaxed),
                waited: queue.waited.load(Relaxed),
                waited_micros: queue.waited_micros.load(Relaxed),
                rejected: queue.rejected.load(Relaxed),
            })
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::{Pin, pin};
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn limited(calls_max: usize, queue_max: usize) -> ConcurrencyLimit {
        ConcurrencyLimit::new(Some(Concurrency {
            calls_max,
            queue_max,
            wait: Duration::from_secs(10),
        }))
    }

    fn poll<F: Future>(future: Pin<&mut F>) -> Poll<F::Output> {
        future.poll(&mut Context::from_waker(Waker::noop()))
    }

    #[tokio::test]
    async fn the_queue_is_first_come_first_served() {
        let limit = limited(1, 2);
        let first = limit.try_acquire().expect("a free permit");
        assert!(limit.try_acquire().is_none() && !limit.has_permit());
        let wait_max = limit.queue_wait_max();
        let mut second = pin!(limit.acquire_queued(wait_max));
        let mut third = pin!(limit.acquire_queued(wait_max));
        assert!(poll(second.as_mut()).is_pending());
        assert!(poll(third.as_mut()).is_pending());
        assert_eq!(limit.queue_counts().waiting, 2);
        assert!(!limit.has_queue_space());
        assert!(
            limit.acquire_queued(wait_max).await.is_none(),
            "the queue is full"
        );
        drop(first);
        assert!(limit.try_acquire().is_none(), "the queue has precedence");
        assert!(poll(third.as_mut()).is_pending());
        let Poll::Ready(Some(permit)) = poll(second.as_mut()) else {
            panic!("the head of the queue has the permit");
        };
        drop(permit);
        assert!(poll(third.as_mut()).is_ready());
        assert_eq!(limit.queue_counts().rejected, 1);
    }

    #[tokio::test]
    async fn a_request_that_is_dropped_leaves_the_queue() {
        let limit = limited(1, 2);
        let first = limit.try_acquire().expect("a free permit");
        let wait_max = limit.queue_wait_max();
        let mut waiting = Box::pin(limit.acquire_queued(wait_max));
        {
            let mut dropped = Box::pin(limit.acquire_queued(wait_max));
            assert!(poll(dropped.as_mut()).is_pending());
            assert!(poll(waiting.as_mut()).is_pending());
        }
        assert_eq!(limit.queue_counts().waiting, 1);
        drop(first);
        assert!(poll(waiting.as_mut()).is_ready());
        assert_eq!(limit.queue_counts().waiting, 0);
    }

    #[tokio::test]
    async fn a_wait_in_the_queue_times_out() {
        let limit = limited(1, 2);
        let _first = limit.try_acquire().expect("a free permit");
        let queued = limit.acquire_queued(Duration::from_millis(1)).await;
        assert!(queued.is_none());
        assert_eq!(limit.queue_counts().waiting, 0);
        assert_eq!(limit.queue_counts().rejected, 1);
    }

    #[test]
    fn without_a_limit_there_is_always_a_permit() {
        let limit = ConcurrencyLimit::default();
        assert!(limit.has_permit() && !limit.has_queue_space());
        assert!(matches!(limit.try_acquire(), Some(None)));
    }
}
