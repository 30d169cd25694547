//! What became of mandates, in numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters since the process began.
        #[derive(Debug, Default)]
        pub struct MandateCounters {
            $(pub(super) $name: AtomicU64,)+
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct MandateCounts {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl MandateCounters {
            /// The counters now.
            pub fn counts(&self) -> MandateCounts {
                MandateCounts { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Mandates begun.
    begun,
    /// Mandates whose first payment was verified.
    activated,
    /// Charges that bought a period, the first of each mandate among them.
    paid,
    /// Days given for payments that were told and not listed yet.
    advanced,
    /// Charges that failed and are tried again.
    past_due,
    /// Mandates that have ended after they had paid for something.
    ended,
    /// Mandates that nobody wanted.
    duplicates,
    /// Charges given back.
    refunded,
    /// Charges whose money went back by another's doing.
    returned,
    /// Answers that were lost or could not be understood.
    unclear,
    /// Looks that found what only a person can put right.
    stuck,
}

impl MandateCounters {
    pub(super) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
