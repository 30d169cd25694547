//! Concurrency limit: requests in progress per owner.

use std::num::NonZeroU32;
use std::sync::Arc;

use dashmap::DashMap;
use dashmap::mapref::entry::Entry;

use crate::Counters;
use crate::partitions::Partition;

/// Requests in progress, by owner. Owners without any are removed.
#[derive(Debug, Default)]
pub(crate) struct Crowds {
    counts: DashMap<Partition, u32>,
}

/// The permit of one request in progress. Dropping it releases it.
pub(crate) struct UnderWay {
    counters: Arc<Counters>,
    partition: Partition,
}

impl Crowds {
    /// Issues one more permit, unless `max` are held.
    pub(crate) fn enter(
        counters: &Arc<Counters>,
        partition: Partition,
        max: NonZeroU32,
    ) -> Option<UnderWay> {
        let mut count = counters.crowds.counts.entry(partition).or_insert(0);
        if *count >= max.get() {
            return None;
        }
        *count += 1;
        Some(UnderWay {
            counters: Arc::clone(counters),
            partition,
        })
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        if let Entry::Occupied(mut count) = self.counters.crowds.counts.entry(self.partition) {
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
    fn as_many_as_allowed_are_let_in_and_nobody_is_remembered_afterwards() {
        let counters = Arc::new(Counters::default());
        let owner = |number| Partition {
            owner: Owner::Address(AddressPrefix::V6(number)),
            lane: 0,
        };
        let two = NonZeroU32::new(2).expect("not zero");
        let first = Crowds::enter(&counters, owner(1), two).expect("the first");
        let second = Crowds::enter(&counters, owner(1), two).expect("the second");
        assert!(Crowds::enter(&counters, owner(1), two).is_none());
        assert!(Crowds::enter(&counters, owner(2), two).is_some());
        drop(first);
        let third = Crowds::enter(&counters, owner(1), two).expect("one has left");
        assert!(Crowds::enter(&counters, owner(1), two).is_none());
        drop((second, third));
        assert_eq!(counters.crowds.counts.len(), 0);
    }
}
