//! Counters of the meter, for the metrics.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use tollgate_counters::{Counters, labels};
use tollgate_money::Micros;

labels! {
    /// The meter's actions beyond its routine.
    pub enum MeterEvent {
        /// An answer whose provider reported more tokens than the request can have used was bounded.
        Bounded = "bounded",
        /// A request without a cap was clamped.
        Clamped = "clamped",
        /// A request was refused because its account has abandoned too much work.
        AbandonedLimit = "abandoned_limit",
        /// A request was refused for insufficient credit.
        Refused = "refused",
    }
}

/// Counters of a meter. Monotonic.
#[derive(Debug, Default)]
pub struct MeterCounters {
    /// By event.
    pub events: Counters<MeterEvent>,
    written_off_micros: AtomicU64,
}

impl MeterCounters {
    /// Micro-credits of usage that the account could not pay.
    pub fn written_off_micros(&self) -> u64 {
        self.written_off_micros.load(Relaxed)
    }

    pub(crate) fn written_off(&self, amount: Micros) {
        self.written_off_micros
            .fetch_add(u64::try_from(amount.get()).unwrap_or(0), Relaxed);
    }
}
