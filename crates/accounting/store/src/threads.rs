//! The threads of a store and their waits. Under a simulation the threads take turns, and the simulation's clock advances instead of a
//! wait.

use std::future::Future;
use std::io;
use std::sync::mpsc::{Receiver, RecvError, RecvTimeoutError};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

#[cfg(feature = "simulation")]
use tollgate_simulation::Actor;

/// Starts a thread.
pub(crate) fn spawn(
    name: &'static str,
    body: impl FnOnce() + Send + 'static,
) -> io::Result<JoinHandle<()>> {
    #[cfg(feature = "simulation")]
    if let Some(actor) = Actor::current() {
        return actor.spawn(name, body);
    }
    std::thread::Builder::new()
        .name(String::from(name))
        .spawn(body)
}

/// Waits for the end of a thread.
pub(crate) fn join(thread: JoinHandle<()>) -> std::thread::Result<()> {
    #[cfg(feature = "simulation")]
    if let Some(actor) = Actor::current() {
        actor.wait_for_thread(thread.thread().id());
    }
    thread.join()
}

/// Waits for a change without a notification: a database that starts again, a lease that ends.
#[expect(
    clippy::disallowed_methods,
    reason = "a database that starts again, or a lease that ends, sends no event"
)]
pub fn sleep(time: Duration) {
    #[cfg(feature = "simulation")]
    if let Some(actor) = Actor::current() {
        return actor.sleep(time);
    }
    std::thread::sleep(time);
}

/// Waits for a message.
pub(crate) fn receive<T>(messages: &Receiver<T>) -> Result<T, RecvError> {
    #[cfg(feature = "simulation")]
    if let Some(actor) = Actor::current() {
        return actor
            .receive(messages, Duration::MAX)
            .map_err(|_| RecvError);
    }
    messages.recv()
}

/// Waits for a message, at most for a time.
pub(crate) fn receive_within<T>(
    messages: &Receiver<T>,
    time: Duration,
) -> Result<T, RecvTimeoutError> {
    #[cfg(feature = "simulation")]
    if let Some(actor) = Actor::current() {
        return actor.receive(messages, time);
    }
    messages.recv_timeout(time)
}

/// Runs `body` on a thread that may block.
pub(crate) async fn blocking<T: Send + 'static>(
    body: impl FnOnce() -> T + Send + 'static,
) -> Result<T, tokio::task::JoinError> {
    #[cfg(feature = "simulation")]
    if Actor::current().is_some() {
        return Ok(body());
    }
    tokio::task::spawn_blocking(body).await
}

/// Runs a future to its end, with timers, on a separate thread; blocks, also within a runtime.
///
/// # Errors
///
/// The thread panicked, or has no runtime.
pub fn block_on<T: Send>(future: impl Future<Output = T> + Send) -> Result<T, String> {
    #[cfg(feature = "simulation")]
    if let Some(actor) = Actor::current() {
        return Ok(actor.block_on(future));
    }
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_time()
                .build();
            let runtime = runtime.map_err(|error| error.to_string())?;
            Ok(runtime.block_on(future))
        });
        let panicked = |_| Err(String::from("its thread panicked"));
        running.join().unwrap_or_else(panicked)
    })
}

/// A condition variable, for waits with a condition.
#[derive(Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    pub(crate) fn notify_one(&self) {
        #[cfg(feature = "simulation")]
        if let Some(actor) = Actor::current() {
            actor.notify(self.address());
        }
        self.0.notify_one();
    }

    /// Waits while `condition` holds. `guard` must belong to `mutex`.
    pub(crate) fn wait_while<'m, T>(
        &self,
        mutex: &'m Mutex<T>,
        mut guard: MutexGuard<'m, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'m, T> {
        #[cfg(feature = "simulation")]
        if let Some(actor) = Actor::current() {
            return actor.wait_while(self.address(), mutex, guard, Duration::MAX, condition);
        }
        let _ = mutex;
        self.0.wait_while(&mut guard, condition);
        guard
    }

    /// [`Condvar::wait_while`], at most for a time.
    pub(crate) fn wait_within<'m, T>(
        &self,
        mutex: &'m Mutex<T>,
        mut guard: MutexGuard<'m, T>,
        time: Duration,
        condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'m, T> {
        #[cfg(feature = "simulation")]
        if let Some(actor) = Actor::current() {
            return actor.wait_while(self.address(), mutex, guard, time, condition);
        }
        let _ = mutex;
        self.0.wait_while_for(&mut guard, condition, time);
        guard
    }

    #[cfg(feature = "simulation")]
    fn address(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }
}
