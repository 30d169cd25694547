//! The stored answers of one process: a weighted S3-FIFO cache (`quick_cache`), bounded in bytes.
//!
//! S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023): a new entry enters a small queue, and moves to
//! the main queue only at a further request. A flood of new entries therefore does not evict entries in use. Evicted keys are remembered
//! for a while. An entry stored again under a remembered key enters the main queue immediately.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};

use crate::counters::{CacheCounters, Removal};
use crate::entry::{Entry, OVERHEAD};
use crate::key::{BuildDigestHasher, Key};
use crate::purge::Purge;

/// Locks for writers of a key. Two keys with a common lock by chance wait for each other's insertion, which is short.
const WRITE_LOCKS: usize = 16;

/// Entries by key, within a bound of memory.
pub(crate) struct EntryStore {
    entries: Cache<Key, Arc<Entry>, Weigh, BuildDigestHasher, CountEvictions>,
    /// Held by [`EntryStore::insert`] and [`EntryStore::replace`], so that `replace` compares and swaps.
    write_locks: [Mutex<()>; WRITE_LOCKS],
    counters: Arc<CacheCounters>,
}

#[derive(Clone, Copy)]
struct Weigh;

impl Weighter<Key, Arc<Entry>> for Weigh {
    fn weight(&self, _: &Key, entry: &Arc<Entry>) -> u64 {
        entry.weight() as u64
    }
}

/// Counts the entries that a call evicts. An overwritten entry counts as evicted.
#[derive(Clone, Copy)]
struct CountEvictions;

impl Lifecycle<Key, Arc<Entry>> for CountEvictions {
    type RequestState = u64;

    fn on_evict(&self, evicted: &mut u64, _: Key, _: Arc<Entry>) {
        *evicted += 1;
    }
}

impl EntryStore {
    /// An empty store that holds at most `bytes_max` bytes; no entry is larger than `entry_bytes_max`.
    pub(crate) fn new(
        bytes_max: usize,
        entry_bytes_max: usize,
        counters: Arc<CacheCounters>,
    ) -> EntryStore {
        // A shard takes no entry larger than the shard, so that each shard has room for several of the largest entries, streamed forms
        // included.
        let shards = (bytes_max / (16 * (entry_bytes_max + OVERHEAD))).clamp(1, 32);
        let options = OptionsBuilder::new()
            // The number of remembered evicted keys equals the number of entries of two kilobytes, the cost of an ordinary entry.
            .estimated_items_capacity((bytes_max / 2048).clamp(16, 1 << 17))
            .ghost_allocation(1.0)
            .weight_capacity(bytes_max as u64)
            // The small queue has a tenth, as in the paper. With less, an answer is evicted before its next request.
            .hot_allocation(0.9)
            .shards(1 << shards.ilog2())
            .build()
            .expect("all that has to be set is set");
        EntryStore {
            entries: Cache::with_options(
                options,
                Weigh,
                BuildDigestHasher::default(),
                CountEvictions,
            ),
            write_locks: Default::default(),
            counters,
        }
    }

    /// The entry of a key, unless the entry has expired. The clock is read only for an existing entry.
    pub(crate) fn get(&self, key: &Key, now: impl FnOnce() -> Duration) -> Option<Arc<Entry>> {
        let entry = self.entries.get(key)?;
        let now = now();
        if now < entry.expires {
            return Some(entry);
        }
        let stale = |there: &Arc<Entry>| there.expires <= now;
        if self.entries.remove_if(key, stale).is_some() {
            self.counters.removals.inc_by(Removal::Expired, 1);
        }
        None
    }

    /// Stores an entry, in place of an earlier entry of the key.
    pub(crate) fn insert(&self, key: Key, entry: Arc<Entry>) {
        let mut evicted = 0;
        self.write(key, |key| {
            self.entries.insert_with_lifecycle(key, entry, &mut evicted);
        });
        self.counters.removals.inc_by(Removal::Evicted, evicted);
    }

    /// Puts another form of an entry in the entry's place, unless the entry has been removed or overwritten meanwhile.
    pub(crate) fn replace(&self, key: Key, entry: Arc<Entry>) {
        let mut evicted = 0;
        let replaced = self.write(key, |key| {
            // Under the lock no other answer is stored for this key between the comparison and the change. The entry may still be purged or
            // evicted in between. In this case no entry is stored.
            let there = self.entries.peek(&key).map(|there| there.id);
            there == Some(entry.id)
                && self
                    .entries
                    .replace_with_lifecycle(key, entry, false, &mut evicted)
                    .is_ok()
        });
        // The earlier form is reported as evicted, but is not evicted.
        self.counters
            .removals
            .inc_by(Removal::Evicted, evicted - u64::from(replaced));
    }

    fn write<T>(&self, key: Key, change: impl FnOnce(Key) -> T) -> T {
        // This byte is not among the bytes by which the cache chooses a shard.
        let lock = &self.write_locks[usize::from(key.0[8]) % WRITE_LOCKS];
        let _guard = lock.lock();
        change(key)
    }

    /// Purges entries for an operator, and returns their number.
    pub(crate) fn purge(&self, what: &Purge) -> u64 {
        self.purge_where(|entry| what.matches(entry))
    }

    /// Purges matching entries, and returns their number.
    pub(crate) fn purge_where(&self, matches: impl Fn(&Entry) -> bool) -> u64 {
        let removed = self.remove(matches);
        self.counters.removals.inc_by(Removal::Purged, removed);
        removed
    }

    /// Removes expired entries, and returns their number.
    pub(crate) fn sweep(&self, now: Duration) -> u64 {
        let removed = self.remove(|entry| entry.expires <= now);
        self.counters.removals.inc_by(Removal::Expired, removed);
        removed
    }

    fn remove(&self, matches: impl Fn(&Entry) -> bool) -> u64 {
        let removed = Cell::new(0);
        self.entries.retain(|_, entry| {
            let is_removed = matches(entry);
            removed.set(removed.get() + u64::from(is_removed));
            !is_removed
        });
        removed.get()
    }

    /// The number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// The weight of the entries in bytes.
    pub(crate) fn weight(&self) -> u64 {
        self.entries.weight()
    }
}
