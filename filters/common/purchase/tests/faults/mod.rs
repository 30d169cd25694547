//! What befalls the calls to a payment provider in memory, whatever it sells.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;
use tollgate_purchase::FailureKind;

/// What happens to one call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Nothing.
    None,
    /// It is done and the answer is lost.
    AnswerLost,
    /// It is lost before it is done.
    CallLost,
    /// The provider is out of service.
    Unavailable,
    /// The process dies before it is done.
    DeathBefore,
    /// The process dies after it was done.
    DeathAfter,
}

/// The faults to come, one for each call; none when they are used up.
#[derive(Clone, Default)]
pub(crate) struct Faults {
    to_come: Arc<Mutex<VecDeque<Fault>>>,
    died: Arc<Notify>,
}

impl Faults {
    /// These are to come, and no others.
    pub(crate) fn set(&self, faults: impl IntoIterator<Item = Fault>) {
        *self.to_come() = faults.into_iter().collect();
    }

    /// Tells of each death of the process.
    pub(crate) fn died(&self) -> Arc<Notify> {
        self.died.clone()
    }

    /// One call, with whatever befalls it; what it fails with, and that in words.
    pub(crate) async fn call<T>(
        &self,
        act: impl FnOnce() -> Result<T, FailureKind>,
    ) -> Result<T, (FailureKind, String)> {
        let fault = self.to_come().pop_front().unwrap_or(Fault::None);
        let failed = |trouble| (trouble, format!("{trouble:?}, after {fault:?}"));
        match fault {
            Fault::Unavailable => return Err(failed(FailureKind::Unavailable)),
            Fault::CallLost => return Err(failed(FailureKind::OutcomeUnknown)),
            Fault::DeathBefore => self.die().await,
            _ => {}
        }
        let done = act();
        match fault {
            Fault::AnswerLost => Err(failed(FailureKind::OutcomeUnknown)),
            Fault::DeathAfter => {
                self.die().await;
                Err(failed(FailureKind::OutcomeUnknown))
            }
            _ => done.map_err(failed),
        }
    }

    async fn die(&self) {
        self.died.notify_one();
        std::future::pending::<()>().await;
    }

    fn to_come(&self) -> std::sync::MutexGuard<'_, VecDeque<Fault>> {
        self.to_come.lock().expect("nobody panics while holding it")
    }
}
