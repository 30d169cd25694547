//! Counters of payment outcomes.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)+) => {
        /// Counters since the process started.
        #[derive(Debug, Default)]
        pub struct Counters {
            $(pub(crate) $name: AtomicU64,)+
        }

        /// A snapshot of the counters.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts {
            $($(#[$doc])* pub $name: u64,)+
        }

        impl Counters {
            /// Takes a snapshot.
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Relaxed),)+ }
            }
        }
    };
}

counters! {
    /// Payments that were settled and activated the plan.
    settled,
    /// Payments that were refused; no money moved.
    refused,
    /// Answers of the facilitator that left open whether money had moved.
    unclear,
    /// Payments that are proved never to have moved money.
    dead,
    /// Reconciliations without a result long after the payment had expired: an operator has to resolve them.
    stuck,
    /// Answers of the facilitator that the chain contradicts.
    contradicted,
    /// Payments that were refused after submission, where no node confirms that.
    unconfirmed,
    /// Payments whose block was reorganized out of the chain.
    vanished,
    /// Payments presented by another account than the one that presented them first.
    taken,
}

impl Counters {
    pub(crate) fn one(counter: &AtomicU64) {
        counter.fetch_add(1, Relaxed);
    }
}
