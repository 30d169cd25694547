//! What became of payments, in numbers.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters since the process began.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub(crate) $name: AtomicU64,)+
        }

        /// The counters at one moment.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// The counters now.
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Payments that were settled, and for which the plan was given.
    settled,
    /// Payments that were refused; nothing moved.
    refused,
    /// Answers of the facilitator that left open whether money had moved.
    unclear,
    /// Payments of which it is proved that they never moved money.
    dead,
    /// Looks that ended without an answer long after the payment had ended: somebody has to help.
    stuck,
    /// Answers of the facilitator that the chain contradicts.
    contradicted,
    /// Payments that were refused after submission, where no node confirms that.
    unconfirmed,
    /// Payments that were in a block and are in none any more.
    vanished,
    /// Payments brought by another account than the one that brought them first.
    taken,
}

impl Counters {
    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
