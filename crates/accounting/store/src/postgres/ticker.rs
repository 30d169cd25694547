//! A thread of a store that runs a function at intervals until a stop.

use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::Mutex;

use crate::commit::Shared;
use crate::error::{Failure, FailureKind};
use crate::threads::{self, Condvar};

/// The thread; the drop stops the thread and waits for its end.
pub(super) struct Ticker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the thread. The thread calls `tick` at once and after each interval, until `tick` breaks. A panic in `tick` stops the
    /// store: otherwise a node without the thread would go on without its lease or without the other nodes' changes.
    pub(super) fn start(
        name: &'static str,
        interval: Duration,
        shared: &Arc<Shared>,
        mut tick: impl FnMut() -> ControlFlow<()> + Send + 'static,
    ) -> std::io::Result<Ticker> {
        let stop = Arc::new((Mutex::new(false), Condvar::default()));
        let stopped = Arc::clone(&stop);
        let shared = Arc::clone(shared);
        let thread = threads::spawn(name, move || {
            let run = || while tick().is_continue() && !waited(&stopped, interval) {};
            if catch_unwind(AssertUnwindSafe(run)).is_err() {
                shared.fail(Failure {
                    kind: FailureKind::Inconsistent,
                    message: Arc::from(format!(
                        "the thread `{name}` of the store violated an invariant; start again and run `tollgate audit`"
                    )),
                });
            }
        })?;
        let thread = Some(thread);
        Ok(Ticker { stop, thread })
    }
}

/// Waits for the interval; `true` when the thread has been stopped.
fn waited((flag, wake): &(Mutex<bool>, Condvar), interval: Duration) -> bool {
    let stopped = flag.lock();
    *wake.wait_within(flag, stopped, interval, |stopped| !*stopped)
}

impl Drop for Ticker {
    fn drop(&mut self) {
        let (flag, wake) = &*self.stop;
        *flag.lock() = true;
        wake.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread's panic has stopped the store.
            let _ = threads::join(thread);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_of_a_thread_stops_the_store() {
        let (sender, failures) = std::sync::mpsc::channel();
        let on_failure = move |failure: &Failure| sender.send(failure.clone()).expect("a test");
        let shared = Arc::new(Shared::new(8, Box::new(on_failure)));
        let tick = || panic!("as an observer of the feed might");
        let ticker = Ticker::start("feed", Duration::ZERO, &shared, tick).expect("a thread");
        let failure = failures.recv().expect("the store has failed");
        assert_eq!(failure.kind, FailureKind::Inconsistent);
        assert!(failure.message.contains("`feed`"), "{}", failure.message);
        drop(ticker);
        assert!(shared.queue.failure().is_some());
    }
}
