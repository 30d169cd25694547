//! Wake coalescing: wakes from other threads are queued, and one system call wakes the worker for the whole queue.
//!
//! The thread that writes the ledger completes dozens of waits with one commit. Each would wake the worker's event loop by a separate
//! system call, though the first call suffices. Here a wake from another thread goes into the worker's [`WakeQueue`], and only a wake into
//! an empty queue wakes the worker.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Wake, Waker};

use parking_lot::Mutex;
use tokio::sync::Notify;

thread_local! {
    /// The address distinguishes threads without a system call.
    static HERE: u8 = const { 0 };
}

fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// The pending wakes of one worker's exchanges.
#[derive(Debug)]
pub(crate) struct WakeQueue {
    worker: usize,
    waiting: Mutex<Vec<Waker>>,
    arrived: Notify,
}

impl WakeQueue {
    /// The queue of the current thread.
    pub(crate) fn of_this_thread() -> Arc<WakeQueue> {
        Arc::new(WakeQueue {
            worker: here(),
            waiting: Mutex::default(),
            arrived: Notify::new(),
        })
    }

    /// Delivers pending wakes, until dropped. The worker runs one such future.
    pub(crate) async fn deliver(&self) {
        let mut wakers = Vec::new();
        loop {
            self.arrived.notified().await;
            std::mem::swap(&mut wakers, &mut *self.lock());
            for waker in wakers.drain(..) {
                waker.wake();
            }
        }
    }

    fn put(&self, waker: Waker) {
        let mut waiting = self.lock();
        let is_first = waiting.is_empty();
        waiting.push(waker);
        drop(waiting);
        if is_first {
            self.arrived.notify_one();
        }
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock()
    }
}

/// Creates a future in its final place. `Box::pin` would copy the whole future, 13 KB for the future of a request.
#[inline(always)]
pub(crate) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

/// Runs a task of the worker. Wakes from other threads go through `queue`.
///
/// The task is passed in a box made by [`boxed`].
pub(crate) fn coalesce_wakes<F>(
    queue: Arc<WakeQueue>,
    mut future: Pin<Box<F>>,
) -> impl Future<Output = F::Output> + Send
where
    F: Future + Send,
{
    let mut known: Option<(Waker, Waker)> = None;
    poll_fn(move |cx| {
        let waker = match &known {
            Some((of, waker)) if of.will_wake(cx.waker()) => waker,
            _ => {
                let inner = cx.waker().clone();
                let waker = Waker::from(Arc::new(CoalescedWaker {
                    inner: inner.clone(),
                    queue: queue.clone(),
                }));
                &known.insert((inner, waker)).1
            }
        };
        future.as_mut().poll(&mut Context::from_waker(waker))
    })
}

struct CoalescedWaker {
    inner: Waker,
    queue: Arc<WakeQueue>,
}

impl Wake for CoalescedWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if here() == self.queue.worker {
            self.inner.wake_by_ref();
        } else {
            self.queue.put(self.inner.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicUsize;
    use std::sync::atomic::Ordering::Relaxed;

    use tokio::sync::oneshot;

    use super::*;

    #[test]
    fn wakes_by_another_thread_wake_the_worker_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let queue = WakeQueue::of_this_thread();
            let delivery = tokio::spawn({
                let queue = queue.clone();
                async move { queue.deliver().await }
            });
            let (mut senders, mut waits) = (Vec::new(), Vec::new());
            let started = Arc::new(AtomicUsize::new(0));
            for number in 0..100u32 {
                let (sender, wait) = oneshot::channel::<u32>();
                senders.push((number, sender));
                let started = started.clone();
                waits.push(tokio::spawn(coalesce_wakes(
                    queue.clone(),
                    Box::pin(async move {
                        started.fetch_add(1, Relaxed);
                        wait.await
                    }),
                )));
            }
            while started.load(Relaxed) < 100 {
                tokio::task::yield_now().await;
            }
            std::thread::spawn(move || {
                for (number, sender) in senders {
                    sender.send(number).expect("the task waits");
                }
            })
            .join()
            .expect("the thread ends");
            assert_eq!(
                queue.lock().len(),
                100,
                "all are queued, and the worker was woken for the first"
            );
            for (number, wait) in waits.into_iter().enumerate() {
                let answer = wait.await.expect("the task ends").expect("sent");
                assert_eq!(answer as usize, number);
            }
            delivery.abort();
        });
    }

    #[test]
    fn a_wake_on_the_workers_own_thread_is_not_queued() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            // No task delivers from the queue.
            let queue = WakeQueue::of_this_thread();
            let (sender, wait) = oneshot::channel();
            let waiting = tokio::spawn(coalesce_wakes(queue, Box::pin(wait)));
            tokio::task::yield_now().await;
            sender.send(7).expect("the task waits");
            assert_eq!(waiting.await.expect("the task ends"), Ok(7));
        });
    }
}
