//! Counters of the meter, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

/// Monotonic counters for the metrics endpoint.
#[derive(Debug, Default)]
pub struct Counters {
    estimated: AtomicU64,
    bounded: AtomicU64,
    clamped: AtomicU64,
    refused: AtomicU64,
    written_off_micros: AtomicU64,
}

/// A snapshot of the [`Counters`].
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counted {
    /// Answers whose tokens were counted by us.
    pub estimated: u64,
    /// Answers whose provider reported more tokens than the request can have used.
    pub bounded: u64,
    /// Requests without a cap that were clamped.
    pub clamped: u64,
    /// Requests refused for insufficient credit.
    pub refused: u64,
    /// Micro-credits of usage that the account could not pay.
    pub written_off_micros: u64,
}

impl Counters {
    /// Takes a snapshot.
    pub fn read(&self) -> Counted {
        Counted {
            estimated: self.estimated.load(Relaxed),
            bounded: self.bounded.load(Relaxed),
            clamped: self.clamped.load(Relaxed),
            refused: self.refused.load(Relaxed),
            written_off_micros: self.written_off_micros.load(Relaxed),
        }
    }

    pub(crate) fn estimated(&self) {
        self.estimated.fetch_add(1, Relaxed);
    }

    pub(crate) fn bounded(&self) {
        self.bounded.fetch_add(1, Relaxed);
    }

    pub(crate) fn clamped(&self) {
        self.clamped.fetch_add(1, Relaxed);
    }

    pub(crate) fn refused(&self) {
        self.refused.fetch_add(1, Relaxed);
    }

    pub(crate) fn written_off(&self, micros: i64) {
        self.written_off_micros
            .fetch_add(u64::try_from(micros).unwrap_or(0), Relaxed);
    }
}
