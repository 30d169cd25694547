//! The entries of one process, and which of them go when there is no room.
//!
//! What is stored stands in the [probation](crate::probation) first. Asked for a second time it goes to the main part, where what is
//! asked for again and again stays longest. The main part grows as it needs to, up to seven eighths, and the probation has as many whole
//! segments as fit in what it leaves.

#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use tollgate_filter::CacheEntryId;

use crate::counters::{Counters, Removal};
use crate::entry::{Entry, OVERHEAD};
use crate::flat::Flat;
use crate::key::{BuildDigestHasher, Key};
use crate::probation::{Probation, Put, Sizes};

/// Bytes of the shelf for which the probation is divided once more, so that workers seldom meet.
const PART_BYTES: usize = 64 << 20;

/// Entries by key, within a bound of memory.
pub(crate) struct Shelf {
    main: Cache<Key, Arc<Entry>, Weigh, BuildDigestHasher, Gone>,
    /// What a key is in at any time is changed with its part locked, so that whoever looks there first and in the main part then
    /// finds what there is.
    probation: Box<[Mutex<Probation>]>,
    room: Mutex<Room>,
    counters: Arc<Counters>,
}

/// How the two share.
struct Room {
    /// Bytes for both.
    bytes: usize,
    /// Bytes of one segment of every part of the probation.
    segment_bytes: usize,
    /// Segments that every part may have now.
    segments: usize,
}

#[derive(Clone, Copy)]
struct Weigh;

impl Weighter<Key, Arc<Entry>> for Weigh {
    fn weight(&self, _: &Key, entry: &Arc<Entry>) -> u64 {
        entry.weight() as u64
    }
}

thread_local! {
    /// The key whose entry gets another form: the form before it leaves the shelf like one that is put out, and is none.
    static REPLACED: Cell<Option<Key>> = const { Cell::new(None) };
}

/// Counts what is put out.
#[derive(Clone)]
struct Gone(Arc<Counters>);

impl Lifecycle<Key, Arc<Entry>> for Gone {
    type RequestState = ();

    fn on_evict(&self, (): &mut (), key: Key, _: Arc<Entry>) {
        // Once: the larger form may have to go in its turn.
        if REPLACED.get() == Some(key) {
            REPLACED.set(None);
        } else {
            self.0.removed(Removal::Evicted, 1);
        }
    }
}

/// Which entries an operator wants gone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Purge {
    /// The one of this id.
    Entry(CacheEntryId),
    /// All of this model.
    Model(Arc<str>),
    /// All.
    All,
}

impl Shelf {
    /// A shelf that holds at most `bytes_max` bytes; no entry is larger than `entry_bytes_max`.
    pub(crate) fn new(bytes_max: usize, entry_bytes_max: usize, counters: Arc<Counters>) -> Shelf {
        let parts = 1 << (bytes_max / PART_BYTES).clamp(1, 16).ilog2();
        let sizes = Sizes::new(bytes_max / parts);
        let bytes = bytes_max - parts * sizes.beside();
        let main = bytes / 8 * 7;
        // Each shard must have room for several of the largest entries, streams included, or it could not take one.
        let shards = (main / (14 * (entry_bytes_max + OVERHEAD))).clamp(1, 32);
        let options = OptionsBuilder::new()
            .estimated_items_capacity((bytes_max / 4096).clamp(16, 1 << 16))
            .weight_capacity(main as u64)
            // All that is there has been asked for twice. What has not been asked for since it came has a tenth to wait in.
            .hot_allocation(0.9)
            .shards(1 << shards.ilog2())
            .build()
            .expect("all that has to be set is set");
        let segment_bytes = parts * sizes.segment;
        let segments = bytes / segment_bytes;
        let part = || Mutex::new(Probation::new(sizes, segments));
        Shelf {
            main: Cache::with_options(
                options,
                Weigh,
                BuildDigestHasher::default(),
                Gone(counters.clone()),
            ),
            probation: std::iter::repeat_with(part).take(parts).collect(),
            room: Mutex::new(Room {
                bytes,
                segment_bytes,
                segments,
            }),
            counters,
        }
    }

    /// The entry of a key, unless its time is over. What time it is, is asked only where there is one.
    pub(crate) fn get(&self, key: &Key, now: impl FnOnce() -> Duration) -> Option<Arc<Entry>> {
        let mut part = self.part(key);
        let Some(entry) = part.take(key) else {
            drop(part);
            return self.get_from_main(key, now);
        };
        if entry.expires <= now() {
            self.counters.removed(Removal::Expired, 1);
            return None;
        }
        let entry = Arc::new(entry);
        self.main.insert(*key, entry.clone());
        drop(part);
        self.share();
        Some(entry)
    }

    fn get_from_main(&self, key: &Key, now: impl FnOnce() -> Duration) -> Option<Arc<Entry>> {
        let entry = self.main.get(key)?;
        let now = now();
        if now < entry.expires {
            return Some(entry);
        }
        let stale = |there: &Arc<Entry>| there.expires <= now;
        if self.main.remove_if(key, stale).is_some() {
            self.counters.removed(Removal::Expired, 1);
        }
        None
    }

    /// Stores an answer, in place of an earlier one of its key.
    pub(crate) fn insert(&self, key: Key, flat: &Flat<'_>) {
        let mut part = self.part(&key);
        // It would come to light again when this one has gone.
        let earlier = usize::from(self.main.remove(&key).is_some());
        let put = part.put(&key, flat);
        if let Put::Beyond { .. } = put {
            self.main.insert(key, Arc::new(flat.entry()));
        }
        drop(part);
        let (Put::Here { evicted } | Put::Beyond { evicted }) = put;
        if evicted + earlier > 0 {
            let evicted = (evicted + earlier) as u64;
            self.counters.removed(Removal::Evicted, evicted);
        }
        if let Put::Beyond { .. } = put {
            self.share();
        }
    }

    /// Puts another form of an entry in its place, unless it has gone meanwhile.
    pub(crate) fn replace(&self, key: Key, entry: Arc<Entry>) {
        // Locked, nothing is stored under this key between the look and the change.
        let part = self.part(&key);
        let there = self.main.peek(&key).map(|there| there.id);
        if there != Some(entry.id) {
            // It has been purged or evicted, and maybe another stored since; the reply under way has it still.
            return;
        }
        REPLACED.set(Some(key));
        let kept = self.main.replace(key, entry, false);
        if REPLACED.take().is_none() && kept.is_err() {
            // Larger than what there is room for, and the form before it has gone all the same.
            self.counters.removed(Removal::Evicted, 1);
        }
        drop(part);
        self.share();
    }

    /// Removes what an operator wants gone, and says how many entries that were.
    pub(crate) fn purge(&self, what: &Purge) -> u64 {
        let wanted = |id: CacheEntryId, model: &str| match what {
            Purge::Entry(one) => id == *one,
            Purge::Model(one) => *model == **one,
            Purge::All => true,
        };
        let removed = self.remove(
            |part| part.remove(|flat| wanted(flat.id, flat.model)),
            |entry| wanted(entry.id, &entry.model),
        );
        self.counters.removed(Removal::Purged, removed);
        removed
    }

    /// Removes what is out of date.
    pub(crate) fn sweep(&self, now: Duration) -> u64 {
        let removed = self.remove(|part| part.sweep(now), |entry| entry.expires <= now);
        self.counters.removed(Removal::Expired, removed);
        removed
    }

    /// First where entries come from, then where they go to: none slips through between the two.
    fn remove(
        &self,
        from_part: impl Fn(&mut Probation) -> usize,
        from_main: impl Fn(&Entry) -> bool,
    ) -> u64 {
        let parts = self.probation.iter();
        let removed: usize = parts.map(|part| from_part(&mut lock(part))).sum();
        let removed = Cell::new(removed as u64);
        self.main.retain(|_, entry| {
            let goes = from_main(entry);
            removed.set(removed.get() + u64::from(goes));
            !goes
        });
        self.share();
        removed.get()
    }

    /// How many entries there are.
    pub(crate) fn len(&self) -> usize {
        let parts = self.probation.iter();
        self.main.len() + parts.map(|part| lock(part).len()).sum::<usize>()
    }

    /// Bytes that they count for.
    pub(crate) fn weight(&self) -> u64 {
        let parts = self.probation.iter();
        let bytes: usize = parts.map(|part| lock(part).bytes()).sum();
        self.main.weight() + bytes as u64
    }

    /// Gives the probation the room that the main part leaves. To be called, with no part locked, when the main part has changed.
    fn share(&self) {
        let mut room = lock(&self.room);
        let main = usize::try_from(self.main.weight()).unwrap_or(usize::MAX);
        let segments = (room.bytes.saturating_sub(main) / room.segment_bytes).max(1);
        if segments == room.segments {
            return;
        }
        room.segments = segments;
        let parts = self.probation.iter();
        let evicted: usize = parts.map(|part| lock(part).give(segments)).sum();
        if evicted > 0 {
            self.counters.removed(Removal::Evicted, evicted as u64);
        }
    }

    fn part(&self, key: &Key) -> MutexGuard<'_, Probation> {
        // Not one of the bytes that places within a part go by.
        lock(&self.probation[usize::from(key.0[8]) % self.probation.len()])
    }
}

fn lock<T>(what: &Mutex<T>) -> MutexGuard<'_, T> {
    what.lock().unwrap_or_else(PoisonError::into_inner)
}
