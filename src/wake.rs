//! Coalesced wakes from other threads: one for all the exchanges of a worker that a commit has completed.
//!
//! The thread that writes the ledger completes dozens of waits with one commit. Each of them would wake the worker's event loop with a
//! system call of its own, though the first has done it for all. Here a wake from another thread goes into the worker's [`Inbox`], and only
//! the one that finds it empty wakes the worker.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Wake, Waker};

use tokio::sync::Notify;

thread_local! {
    /// Its address distinguishes threads without a system call.
    static HERE: u8 = const { 0 };
}

fn here() -> usize {
    HERE.with(|here| std::ptr::from_ref(here).addr())
}

/// Pending wakes for one worker's exchanges.
#[derive(Debug)]
pub(crate) struct Inbox {
    worker: usize,
    waiting: Mutex<Vec<Waker>>,
    arrived: Notify,
}

impl Inbox {
    /// The inbox of the current thread.
    pub(crate) fn of_this_thread() -> Arc<Inbox> {
        Arc::new(Inbox {
            worker: here(),
            waiting: Mutex::default(),
            arrived: Notify::new(),
        })
    }

    /// Delivers pending wakes, until dropped. The worker runs one of these.
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

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a future in its final place. `Box::pin` would copy it there whole, and the future that serves a request is 13 KB.
#[inline(always)]
pub(crate) fn boxed<F: Future>(make: impl FnOnce() -> F) -> Pin<Box<F>> {
    Box::into_pin(Box::write(Box::new_uninit(), make()))
}

/// Runs a task of the worker whose wakes from other threads go through `inbox`.
///
/// It takes the task in its box, made by [`boxed`].
pub(crate) fn joined<F>(
    inbox: Arc<Inbox>,
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
                let waker = Waker::from(Arc::new(Joined {
                    inner: inner.clone(),
                    inbox: inbox.clone(),
                }));
                &known.insert((inner, waker)).1
            }
        };
        future.as_mut().poll(&mut Context::from_waker(waker))
    })
}

struct Joined {
    inner: Waker,
    inbox: Arc<Inbox>,
}

impl Wake for Joined {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if here() == self.inbox.worker {
            self.inner.wake_by_ref();
        } else {
            self.inbox.put(self.inner.clone());
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
    fn waits_ended_by_another_thread_end_and_rouse_the_worker_once() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            let inbox = Inbox::of_this_thread();
            let delivering = tokio::spawn({
                let inbox = inbox.clone();
                async move { inbox.deliver().await }
            });
            let (mut told, mut waits) = (Vec::new(), Vec::new());
            let begun = Arc::new(AtomicUsize::new(0));
            for number in 0..100u32 {
                let (tell, wait) = oneshot::channel::<u32>();
                told.push((number, tell));
                let begun = begun.clone();
                waits.push(tokio::spawn(joined(
                    inbox.clone(),
                    Box::pin(async move {
                        begun.fetch_add(1, Relaxed);
                        wait.await
                    }),
                )));
            }
            while begun.load(Relaxed) < 100 {
                tokio::task::yield_now().await;
            }
            std::thread::spawn(move || {
                for (number, tell) in told {
                    tell.send(number).expect("somebody waits");
                }
            })
            .join()
            .expect("the thread ends");
            assert_eq!(
                inbox.lock().len(),
                100,
                "all wait for the worker to look, which was roused for the first"
            );
            for (number, wait) in waits.into_iter().enumerate() {
                let answer = wait.await.expect("the task ends").expect("told");
                assert_eq!(answer as usize, number);
            }
            delivering.abort();
        });
    }

    #[test]
    fn a_wake_on_the_workers_own_thread_takes_no_detour() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .build()
            .expect("a runtime");
        runtime.block_on(async {
            // No task delivers from this inbox.
            let inbox = Inbox::of_this_thread();
            let (tell, wait) = oneshot::channel();
            let waiting = tokio::spawn(joined(inbox, Box::pin(wait)));
            tokio::task::yield_now().await;
            tell.send(7).expect("somebody waits");
            assert_eq!(waiting.await.expect("the task ends"), Ok(7));
        });
    }
}
