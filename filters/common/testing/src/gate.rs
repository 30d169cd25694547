//! A place where a stand-in stops until the test lets it go on.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::guard::within;

/// A gate in the course of an answer: whoever reaches it stops there until the test says otherwise.
///
/// This is how a test says "now": instead of sleeping it waits with [`Gate::reached_by`] until an answer stands at the
/// gate, does what it came for, and lets the answer go on. Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    /// One permit lets one pass; closed, everybody passes.
    permits: Semaphore,
    /// How many have come to the gate so far, those that passed included.
    arrived: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(Inner {
            permits: Semaphore::new(0),
            arrived: watch::Sender::new(0),
        }))
    }
}

impl Gate {
    /// A closed gate at which nobody stands yet.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `count` pass, those who wait first.
    pub fn release(&self, count: usize) {
        self.0.permits.add_permits(count);
    }

    /// Lets everybody pass from now on.
    pub fn open(&self) {
        self.0.permits.close();
    }

    /// How many have come to the gate since it was made, those that passed included.
    pub fn arrived(&self) -> usize {
        *self.0.arrived.borrow()
    }

    /// Waits until `count` have come to the gate since it was made.
    ///
    /// # Panics
    ///
    /// When they do not come within a minute.
    pub async fn reached_by(&self, count: usize) {
        let mut arrived = self.0.arrived.subscribe();
        let what = format!("arrival {count} at a gate");
        // The sender lives in `self`, so the only way out is the condition.
        let _ = within(&what, arrived.wait_for(|here| *here >= count)).await;
    }

    /// Stops here until [`Gate::release`] or [`Gate::open`].
    pub async fn pass(&self) {
        self.0.arrived.send_modify(|here| *here += 1);
        if let Ok(permit) = self.0.permits.acquire().await {
            permit.forget();
        }
    }
}
