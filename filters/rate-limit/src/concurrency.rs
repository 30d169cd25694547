//! Concurrency limit: a permit for each request in progress, counted per owner.

use std::num::NonZeroU32;
use std::sync::Arc;

use dashmap::mapref::entry::Entry;

use crate::counters::Counters;
use crate::partitions::{ByPartition, Partition};

/// Requests in progress, by owner. Owners without any are removed.
#[derive(Debug, Default)]
pub(crate) struct ConcurrencyLimit {
    counts: ByPartition<u32>,
}

/// The permit of a request in progress. The drop releases the permit.
pub(crate) struct Permit {
    counters: Arc<Counters>,
    partition: Partition,
}

impl ConcurrencyLimit {
    /// Issues a further permit, unless `max` permits are held.
    pub(crate) fn acquire(
        counters: &Arc<Counters>,
        partition: Partition,
        max: NonZeroU32,
    ) -> Option<Permit> {
        let mut count = counters.concurrency.counts.entry(partition).or_insert(0);
        if *count >= max.get() {
            return None;
        }
        *count += 1;
        Some(Permit {
            counters: Arc::clone(counters),
            partition,
        })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.counters.concurrency.counts.entry(self.partition) {
            *count.get_mut() -= 1;
            if *count.get() == 0 {
                count.remove();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_filter::AddressPrefix;

    use super::*;
    use crate::partitions::Owner;

    #[test]
    fn as_many_permits_as_allowed_are_issued_and_released_owners_are_removed() {
        let counters = Arc::new(Counters::default());
        let owner = |number| Partition {
            owner: Owner::Address(AddressPrefix::V6(number)),
            lane: 0,
        };
        let two = NonZeroU32::new(2).expect("not zero");
        let first = ConcurrencyLimit::acquire(&counters, owner(1), two).expect("the first");
        let second = ConcurrencyLimit::acquire(&counters, owner(1), two).expect("the second");
        assert!(ConcurrencyLimit::acquire(&counters, owner(1), two).is_none());
        assert!(ConcurrencyLimit::acquire(&counters, owner(2), two).is_some());
        drop(first);
        let third = ConcurrencyLimit::acquire(&counters, owner(1), two).expect("one has left");
        assert!(ConcurrencyLimit::acquire(&counters, owner(1), two).is_none());
        drop((second, third));
        assert_eq!(counters.concurrency.counts.len(), 0);
    }
}
