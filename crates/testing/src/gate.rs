//! A gate: a point where a stand-in server stops until the test releases it.

use std::sync::Arc;

use tokio::sync::{Semaphore, watch};

use crate::guard::within;

/// A gate within a response: the task that reaches it waits until the test releases it.
///
/// It replaces sleeps in tests: a test waits with [`Gate::reached_by`] until a response is at the gate, acts, and releases the response.
/// Clones are the same gate.
#[derive(Clone, Debug)]
pub struct Gate(Arc<GateState>);

#[derive(Debug)]
struct GateState {
    /// One permit lets one task pass; closed, every task passes.
    permits: Semaphore,
    /// How many tasks have reached the gate so far, including those that passed.
    arrived: watch::Sender<usize>,
}

impl Default for Gate {
    fn default() -> Self {
        Self(Arc::new(GateState {
            permits: Semaphore::new(0),
            arrived: watch::Sender::new(0),
        }))
    }
}

impl Gate {
    /// A closed gate without waiting tasks.
    pub fn new() -> Self {
        Self::default()
    }

    /// Lets `count` tasks pass, waiting ones first.
    pub fn release(&self, count: usize) {
        self.0.permits.add_permits(count);
    }

    /// Lets every task pass from now on.
    pub fn open(&self) {
        self.0.permits.close();
    }

    /// How many tasks have reached the gate since it was created, including those that passed.
    pub fn arrived(&self) -> usize {
        *self.0.arrived.borrow()
    }

    /// Waits until `count` tasks have reached the gate since it was created.
    ///
    /// # Panics
    ///
    /// When they do not arrive within a minute.
    pub async fn reached_by(&self, count: usize) {
        let mut arrived = self.0.arrived.subscribe();
        let what = format!("arrival {count} at a gate");
        // The sender lives in `self`, so the wait ends only by the condition.
        let _ = within(&what, arrived.wait_for(|here| *here >= count)).await;
    }

    /// Waits here until [`Gate::release`] or [`Gate::open`].
    pub async fn pass(&self) {
        self.0.arrived.send_modify(|here| *here += 1);
        if let Ok(permit) = self.0.permits.acquire().await {
            permit.forget();
        }
    }
}
