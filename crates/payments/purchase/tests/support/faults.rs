//! Fault injection for calls to an in-memory payment provider.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tollgate_purchase::FailureKind;

/// The fault of one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// None.
    None,
    /// Carried out; the answer is lost.
    AnswerLost,
    /// Lost before it is carried out.
    CallLost,
    /// The provider is out of service.
    Unavailable,
    /// Carried out only after the test has released it.
    Hold,
    /// The process crashes before it is carried out.
    CrashBefore,
    /// The process crashes after it was carried out.
    CrashAfter,
}

/// The queued faults, one for each call; no fault when the queue is empty.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    queue: Arc<Mutex<VecDeque<Fault>>>,
    crashed: Arc<Notify>,
    held: Arc<Notify>,
    released: Arc<Notify>,
}

impl Faults {
    /// Replaces the queue.
    pub(crate) fn set(&self, faults: impl IntoIterator<Item = Fault>) {
        *self.queue() = faults.into_iter().collect();
    }

    /// Signals each crash of the process.
    pub(crate) fn crashed(&self) -> Arc<Notify> {
        self.crashed.clone()
    }

    /// Waits until a call is held.
    pub(crate) async fn held(&self) {
        self.held.notified().await;
    }

    /// Lets the call that is held, or the next one, continue.
    pub(crate) fn release(&self) {
        self.released.notify_one();
    }

    /// One call with its fault; the error class and message on failure.
    pub(crate) async fn call<T>(
        &self,
        act: impl FnOnce() -> Result<T, FailureKind>,
    ) -> Result<T, (FailureKind, String)> {
        let fault = self.queue().pop_front().unwrap_or(Fault::None);
        let failed = |kind| (kind, format!("{kind:?}, after {fault:?}"));
        match fault {
            Fault::Unavailable => return Err(failed(FailureKind::Unavailable)),
            Fault::CallLost => return Err(failed(FailureKind::OutcomeUnknown)),
            Fault::CrashBefore => self.crash().await,
            Fault::Hold => {
                self.held.notify_one();
                self.released.notified().await;
            }
            _ => {}
        }
        let done = act();
        match fault {
            Fault::AnswerLost => Err(failed(FailureKind::OutcomeUnknown)),
            Fault::CrashAfter => {
                self.crash().await;
                Err(failed(FailureKind::OutcomeUnknown))
            }
            _ => done.map_err(failed),
        }
    }

    async fn crash(&self) {
        self.crashed.notify_one();
        std::future::pending::<()>().await;
    }

    fn queue(&self) -> std::sync::MutexGuard<'_, VecDeque<Fault>> {
        self.queue.lock().expect("no code panics while holding it")
    }
}
