//! Counters of mandate events.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters since the process started.
        #[derive(Debug, Default)]
        pub struct MandateCounters {
            $(pub(super) $name: AtomicU64,)+
        }

        /// A snapshot of the counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MandateCounts {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl MandateCounters {
            /// The current values.
            pub fn counts(&self) -> MandateCounts {
                MandateCounts { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Mandates created.
    begun,
    /// Mandates whose first payment was verified.
    activated,
    /// Charges that bought a period, including the first of each mandate.
    paid,
    /// Provisional days granted for payments that were reported but not listed yet.
    advanced,
    /// Failed charges that the provider retries.
    past_due,
    /// Mandates that ended after at least one payment.
    ended,
    /// Mandates cancelled as duplicates.
    duplicates,
    /// Refunded charges.
    refunded,
    /// Charges that were refunded or reversed by another party.
    returned,
    /// Provider calls with an unknown outcome: lost or unreadable answers.
    unclear,
    /// Reconciliations that found a state that needs manual resolution.
    stuck,
}

impl MandateCounters {
    pub(super) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
