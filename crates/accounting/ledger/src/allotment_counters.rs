//! Counters of allotments on one of several nodes, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate_money::Micros;
use tollgate_store::Histogram;

/// Moves of credit and of spending caps between a node and the shared balances, and waits for other nodes.
#[derive(Debug, Default)]
pub struct AllotmentCounters {
    /// Takes with an amount.
    pub takes: AtomicU64,
    /// Micro-credits taken.
    pub taken: AtomicU64,
    /// Returns.
    pub returns: AtomicU64,
    /// Micro-credits returned.
    pub returned: AtomicU64,
    /// Requests that wait for a take.
    pub waiting: AtomicU64,
    /// Microseconds of requests waiting for other nodes to return unneeded credit.
    pub recall_us: Histogram,
    /// Requests refused because another node had not answered.
    pub unavailable: AtomicU64,
}

impl AllotmentCounters {
    pub(crate) fn took(&self, amount: Micros) {
        self.takes.fetch_add(1, Relaxed);
        self.taken.fetch_add(micros(amount), Relaxed);
    }

    pub(crate) fn returned(&self, amount: Micros) {
        if amount.is_positive() {
            self.returns.fetch_add(1, Relaxed);
            self.returned.fetch_add(micros(amount), Relaxed);
        }
    }

    /// Counts a waiting request until the value is dropped.
    pub(crate) fn wait(&self) -> Waiting<'_> {
        self.waiting.fetch_add(1, Relaxed);
        Waiting(&self.waiting)
    }
}

fn micros(amount: Micros) -> u64 {
    amount.get().max(0).unsigned_abs()
}

pub(crate) struct Waiting<'c>(&'c AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Relaxed);
    }
}
