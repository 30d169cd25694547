//! The threads of a simulation, and the effect of a blocking call on a simulated thread.

use std::cell::RefCell;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::task::{Context, Poll, Waker};
use std::thread::{JoinHandle, ThreadId};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use super::process::Process;
use super::scheduler::{Scheduler, Wait};

thread_local! {
    static CURRENT: RefCell<Option<Actor>> = const { RefCell::new(None) };
}

/// How often a message is looked for.
const LOOK_US: u64 = 500;

/// A thread of a simulated process. The driver has no number and waits for nothing.
#[derive(Clone)]
pub struct Actor {
    pub(super) process: Arc<Process>,
    number: Option<usize>,
}

impl Actor {
    /// The actor of the current thread, within a simulation.
    pub fn current() -> Option<Actor> {
        CURRENT.with_borrow(Clone::clone)
    }

    /// Makes the current thread the driver, until the guard is dropped.
    pub(super) fn drive(process: &Arc<Process>) -> Driving {
        let driver = Actor {
            process: Arc::clone(process),
            number: None,
        };
        Driving(CURRENT.replace(Some(driver)))
    }

    pub(super) fn scheduler(&self) -> &Arc<Scheduler> {
        &self.process.world.scheduler
    }

    /// Starts a thread of the actor's process.
    ///
    /// # Errors
    ///
    /// The machine has no room for another thread.
    pub fn spawn(
        &self,
        name: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<JoinHandle<()>> {
        let number = self.process.start_actor(name, body)?;
        let thread = self.scheduler().take_thread(number);
        Ok(thread.expect("it was started just now"))
    }

    /// Ends the turn, except for the driver.
    pub(super) fn wait(&self, wait: Wait) {
        match self.number {
            Some(number) => self.scheduler().wait(number, wait),
            None => assert!(wait == Wait::Turn, "the driver does not wait"),
        }
    }

    pub(super) fn is_driver(&self) -> bool {
        self.number.is_none()
    }

    fn is_dead(&self) -> bool {
        self.process.is_dead.load(Relaxed)
    }

    pub(super) fn after(&self, time: Duration) -> u64 {
        let us = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        self.scheduler().now_us().saturating_add(us)
    }

    /// Lets a time pass.
    pub fn sleep(&self, time: Duration) {
        match self.is_dead() {
            // The awaited event does not happen any more.
            true => {
                self.process.hand.advance(Duration::from_secs(3600));
                self.wait(Wait::Turn);
            }
            false => self.wait(Wait::Until(self.after(time))),
        }
    }

    /// Wakes the actors that wait at a place.
    pub fn notify(&self, place: usize) {
        self.scheduler().notify(place);
    }

    /// Waits at `place` while `condition` holds, at most for a time.
    pub fn wait_while<'m, T>(
        &self,
        place: usize,
        mutex: &'m Mutex<T>,
        mut guard: MutexGuard<'m, T>,
        time: Duration,
        mut condition: impl FnMut(&mut T) -> bool,
    ) -> MutexGuard<'m, T> {
        let until = self.after(time);
        while condition(&mut guard) && self.scheduler().now_us() < until {
            drop(guard);
            match self.is_dead() && until != u64::MAX {
                true => {
                    self.wait(Wait::Turn);
                    return lock(mutex);
                }
                false => self.wait(Wait::Notified(place, until)),
            }
            guard = lock(mutex);
        }
        guard
    }

    /// Waits for a message, at most for a time.
    ///
    /// # Errors
    ///
    /// The time has passed, or every sender is gone.
    pub fn receive<T>(
        &self,
        messages: &Receiver<T>,
        time: Duration,
    ) -> Result<T, RecvTimeoutError> {
        let until = self.after(time);
        loop {
            match messages.try_recv() {
                Ok(message) => return Ok(message),
                Err(TryRecvError::Disconnected) => return Err(RecvTimeoutError::Disconnected),
                Err(TryRecvError::Empty) if self.scheduler().now_us() >= until => {
                    return Err(RecvTimeoutError::Timeout);
                }
                Err(TryRecvError::Empty) => self.wait(Wait::Until(self.look_at())),
            }
        }
    }

    /// Runs a future to its end.
    pub fn block_on<T>(&self, future: impl Future<Output = T>) -> T {
        let mut future = pin!(future);
        let mut context = Context::from_waker(Waker::noop());
        loop {
            if let Poll::Ready(done) = future.as_mut().poll(&mut context) {
                return done;
            }
            self.wait(Wait::Until(self.look_at()));
        }
    }

    /// Waits for the end of a thread of the simulation.
    pub fn wait_for_thread(&self, thread: ThreadId) {
        if let Some(actor) = self.scheduler().actor_of(thread)
            && !self.scheduler().has_actor_ended(actor)
        {
            self.wait(Wait::End(actor));
        }
    }

    fn look_at(&self) -> u64 {
        self.scheduler().now_us() + LOOK_US
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

/// The current thread is the driver of a simulation. Dropping the guard restores the thread's earlier actor.
pub struct Driving(Option<Actor>);

impl Drop for Driving {
    fn drop(&mut self) {
        CURRENT.set(self.0.take());
    }
}

/// The body of an actor's thread.
pub(super) fn run(process: Arc<Process>, number: usize, body: impl FnOnce()) {
    let scheduler = Arc::clone(&process.world.scheduler);
    scheduler.until_turn(number);
    /// Ends with the body, or with a panic in the body.
    struct LastTurn(Arc<Scheduler>, usize);
    impl Drop for LastTurn {
        fn drop(&mut self) {
            self.0.end(self.1);
        }
    }
    let _last = LastTurn(scheduler, number);
    let _timers = process.world.timers.enter();
    CURRENT.set(Some(Actor {
        process,
        number: Some(number),
    }));
    body();
}
