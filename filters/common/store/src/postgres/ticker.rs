//! A thread that does one thing at intervals until it is stopped.

use std::ops::ControlFlow;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use crate::threads::{self, Condvar};

/// The thread; dropping it stops the thread and waits for it.
pub(super) struct Ticker {
    stop: Arc<(Mutex<bool>, Condvar)>,
    name: &'static str,
    thread: Option<JoinHandle<()>>,
}

impl Ticker {
    /// Starts the thread. `tick` is called at once and after each interval, until it breaks.
    pub(super) fn start(
        name: &'static str,
        interval: Duration,
        mut tick: impl FnMut() -> ControlFlow<()> + Send + 'static,
    ) -> std::io::Result<Ticker> {
        let stop = Arc::new((Mutex::new(false), Condvar::default()));
        let stopped = Arc::clone(&stop);
        let thread = threads::spawn(name, move || {
            while tick().is_continue() && !waited(&stopped, interval) {}
        })?;
        Ok(Ticker {
            stop,
            name,
            thread: Some(thread),
        })
    }
}

/// Waits for the interval; `true` when the thread has been stopped.
fn waited((flag, wake): &(Mutex<bool>, Condvar), interval: Duration) -> bool {
    let stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
    *wake.wait_within(flag, stopped, interval, |stopped| !*stopped)
}

impl Drop for Ticker {
    fn drop(&mut self) {
        let (flag, wake) = &*self.stop;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_one();
        let thread = self.thread.take();
        if thread.is_some_and(|thread| threads::join(thread).is_err()) {
            tracing::warn!(name = self.name, "thread of the store panicked");
        }
    }
}
