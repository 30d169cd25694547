#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod metric;
mod samples;

use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

pub use metric::{Kind, Metric};
pub use samples::{Samples, Source};

/// The label of [`Counters`]: an enum made by [`labels!`].
pub trait Label: Copy + Debug + 'static {
    /// A cell per value.
    type Cells: AsRef<[AtomicU64]> + Debug + Default;

    /// The values as written by the metrics, in the order of the cells.
    const WORDS: &'static [&'static str];

    /// The cell of the value.
    fn index(self) -> usize;
}

/// Monotonic counters, a counter per value of a label. No method takes a lock.
#[derive(Debug)]
pub struct Counters<L: Label> {
    cells: L::Cells,
}

impl<L: Label> Default for Counters<L> {
    fn default() -> Counters<L> {
        Counters {
            cells: L::Cells::default(),
        }
    }
}

impl<L: Label> Counters<L> {
    /// Counts an event.
    pub fn inc(&self, label: L) {
        self.inc_by(label, 1);
    }

    /// Counts several events.
    pub fn inc_by(&self, label: L, events: u64) {
        self.cells.as_ref()[label.index()].fetch_add(events, Relaxed);
    }

    /// The events counted so far.
    pub fn get(&self, label: L) -> u64 {
        self.cells.as_ref()[label.index()].load(Relaxed)
    }

    /// Every value of the label with its count.
    pub fn values(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = self.cells.as_ref().iter().map(|cell| cell.load(Relaxed));
        L::WORDS.iter().copied().zip(counts)
    }
}

/// Defines an enum that is a [`Label`]; a value has its word in the metrics.
#[macro_export]
macro_rules! labels {
    ($(#[$doc:meta])* $vis:vis enum $name:ident { $($(#[$of:meta])* $one:ident = $word:literal,)+ }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        $vis enum $name {
            $($(#[$of])* $one,)+
        }

        impl $crate::Label for $name {
            type Cells = [::std::sync::atomic::AtomicU64; [$($word),+].len()];

            const WORDS: &'static [&'static str] = &[$($word),+];

            fn index(self) -> usize {
                self as usize
            }
        }
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    labels! {
        /// Sides of a coin.
        enum Side {
            /// One.
            Heads = "heads",
            /// The other.
            Tails = "tails",
        }
    }

    #[test]
    fn each_value_is_counted_under_its_word() {
        let counters = Counters::default();
        counters.inc(Side::Tails);
        counters.inc_by(Side::Tails, 2);
        assert_eq!(
            (counters.get(Side::Heads), counters.get(Side::Tails)),
            (0, 3)
        );
        assert!(counters.values().eq([("heads", 0), ("tails", 3)]));
    }
}
