//! The stored answers of one process: a weighted S3-FIFO cache (`quick_cache`), bounded in bytes.
//!
//! S3-FIFO (Yang and others, "FIFO queues are all you need for cache eviction", SOSP 2023): a new entry enters a small queue, and moves to
//! the main queue only when it is requested again, so that a flood of new entries does not evict those in use. Evicted keys are remembered
//! for a while; an entry that is stored again under one of them enters the main queue at once.

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

/// Locks for writers of the same key. Two keys that share one by chance wait for each other's insertion, which is short.
const WRITE_LOCKS: usize = 16;

/// Entries by key, within a bound of memory.
pub(crate) struct EntryStore {
    entries: Cache<Key, Arc<Entry>, Weigh, BuildDigestHasher, CountEvictions>,
    /// Held by [`EntryStore::insert`] and [`EntryStore::replace`], so that the latter compares and swaps.
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

/// Counts the entries that one call evicts. An entry that is overwritten is one of them.
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
        // A shard takes no entry larger than itself, so each has room for several of the largest, streamed forms included.
        let shards = (bytes_max / (16 * (entry_bytes_max + OVERHEAD))).clamp(1, 32);
        let options = OptionsBuilder::new()
            // As many evicted keys are remembered as there are entries of two kilobytes, the ordinary ones with what they cost.
            .estimated_items_capacity((bytes_max / 2048).clamp(16, 1 << 17))
            .ghost_allocation(1.0)
            .weight_capacity(bytes_max as u64)
            // The small queue has a tenth, as in the paper. With less, an answer is evicted before it is requested again.
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

    /// The entry of a key, unless it has expired. The clock is read only where there is one.
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

    /// Stores an entry, in place of an earlier one of its key.
    pub(crate) fn insert(&self, key: Key, entry: Arc<Entry>) {
        let mut evicted = 0;
        self.write(key, |key| {
            self.entries.insert_with_lifecycle(key, entry, &mut evicted);
        });
        self.counters.removals.inc_by(Removal::Evicted, evicted);
    }

    /// Puts another form of an entry in its place, unless that has been removed or overwritten meanwhile.
    pub(crate) fn replace(&self, key: Key, entry: Arc<Entry>) {
        let mut evicted = 0;
        let replaced = self.write(key, |key| {
            // Under the lock no other answer is stored for this key between the comparison and the change. It may still be purged or
            // evicted in between, and then nothing is put in.
            let there = self.entries.peek(&key).map(|there| there.id);
            there == Some(entry.id)
                && self
                    .entries
                    .replace_with_lifecycle(key, entry, false, &mut evicted)
                    .is_ok()
        });
        // The form before this one is reported as evicted, and is not.
        self.counters
            .removals
            .inc_by(Removal::Evicted, evicted - u64::from(replaced));
    }

    fn write<T>(&self, key: Key, change: impl FnOnce(Key) -> T) -> T {
        // Not one of the bytes that the cache chooses its shard by.
        let lock = &self.write_locks[usize::from(key.0[8]) % WRITE_LOCKS];
        let _guard = lock.lock();
        change(key)
    }

    /// Purges entries for an operator, and returns their number.
    pub(crate) fn purge(&self, what: &Purge) -> u64 {
        self.purge_where(|entry| what.matches(entry))
    }

    /// The same for those that match.
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

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Bytes that they count for.
    pub(crate) fn weight(&self) -> u64 {
        self.entries.weight()
    }
}
