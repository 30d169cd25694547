//! The entries of one process, and which of them go when there is no room.

use std::cell::Cell;
use std::sync::Arc;
use std::time::Duration;

use quick_cache::sync::Cache;
use quick_cache::{Lifecycle, OptionsBuilder, Weighter};
use tollgate_filter::CacheEntryId;

use crate::counters::{Counters, Removal};
use crate::entry::{Entry, OVERHEAD};
use crate::key::{BuildDigestHasher, Key};

/// Entries by key, within a bound of memory.
pub(crate) struct Shelf {
    entries: Cache<Key, Arc<Entry>, Weigh, BuildDigestHasher, Gone>,
    counters: Arc<Counters>,
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
        if REPLACED.get() != Some(key) {
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
        // Each part must have room for several of the largest entries, streams included, or it could not take one.
        let shards = (bytes_max / (16 * (entry_bytes_max + OVERHEAD))).clamp(1, 32);
        let options = OptionsBuilder::new()
            .estimated_items_capacity((bytes_max / 4096).clamp(16, 1 << 16))
            .weight_capacity(bytes_max as u64)
            .shards(1 << shards.ilog2())
            .build()
            .expect("all that has to be set is set");
        Shelf {
            entries: Cache::with_options(
                options,
                Weigh,
                BuildDigestHasher::default(),
                Gone(counters.clone()),
            ),
            counters,
        }
    }

    /// The entry of a key, unless its time is over. What time it is, is asked only where there is one.
    pub(crate) fn get(&self, key: &Key, now: impl FnOnce() -> Duration) -> Option<Arc<Entry>> {
        let entry = self.entries.get(key)?;
        let now = now();
        if now < entry.expires {
            return Some(entry);
        }
        let stale = |there: &Arc<Entry>| there.expires <= now;
        if self.entries.remove_if(key, stale).is_some() {
            self.counters.removed(Removal::Expired, 1);
        }
        None
    }

    /// Stores an entry, in place of an earlier one of its key.
    pub(crate) fn insert(&self, key: Key, entry: Arc<Entry>) {
        self.entries.insert(key, entry);
    }

    /// Puts another form of an entry in its place, unless it has gone meanwhile.
    pub(crate) fn replace(&self, key: Key, entry: Arc<Entry>) {
        // It has been purged or evicted; the reply under way has it still.
        REPLACED.set(Some(key));
        let _ = self.entries.replace(key, entry, false);
        REPLACED.set(None);
    }

    /// Removes what an operator wants gone, and says how many entries that were.
    pub(crate) fn purge(&self, what: &Purge) -> u64 {
        let removed = self.remove(|entry| match what {
            Purge::Entry(id) => entry.id == *id,
            Purge::Model(model) => entry.model == *model,
            Purge::All => true,
        });
        self.counters.removed(Removal::Purged, removed);
        removed
    }

    /// Removes what is out of date.
    pub(crate) fn sweep(&self, now: Duration) -> u64 {
        let removed = self.remove(|entry| entry.expires <= now);
        self.counters.removed(Removal::Expired, removed);
        removed
    }

    fn remove(&self, gone: impl Fn(&Entry) -> bool) -> u64 {
        let removed = Cell::new(0);
        self.entries.retain(|_, entry| {
            let goes = gone(entry);
            removed.set(removed.get() + u64::from(goes));
            !goes
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

#[cfg(test)]
mod tests {
    use tollgate_openai::{Endpoint, Kept};

    use super::*;

    const NOW: Duration = Duration::from_secs(1);

    fn entry(number: u64, words: usize, expires: u64) -> Arc<Entry> {
        let body = format!(
            r#"{{"choices":[{{"message":{{"content":"{}"}},"finish_reason":"stop"}}]}}"#,
            "word ".repeat(words)
        );
        let kept = Kept::of_answer(Endpoint::Chat, body.as_bytes(), "m", "x_svc", 1 << 20);
        let mut id = [0; 16];
        id[..8].copy_from_slice(&number.to_le_bytes());
        Arc::new(Entry {
            id: CacheEntryId(id),
            model: if number.is_multiple_of(2) {
                "even".into()
            } else {
                "odd".into()
            },
            tokens: None,
            expires: Duration::from_secs(expires),
            endpoint: Endpoint::Chat,
            answer: kept.expect("it can be kept").into(),
            events: [None, None],
        })
    }

    fn told(entry: &Entry, include_usage: bool) -> (Entry, Arc<tollgate_openai::KeptEvents>) {
        let kept = entry.kept("x_svc").expect("it is kept");
        entry
            .with_stream(kept, include_usage)
            .expect("it can be told")
    }

    fn key(number: u64) -> Key {
        Key(*blake3::hash(&number.to_le_bytes()).as_bytes())
    }

    fn shelf(bytes_max: usize) -> (Shelf, Arc<Counters>) {
        let counters = Arc::new(Counters::default());
        (
            Shelf::new(bytes_max, bytes_max / 16, counters.clone()),
            counters,
        )
    }

    #[test]
    fn a_flood_stays_within_its_room_whatever_the_sizes() {
        for words in [1, 20, 2000] {
            let (shelf, counters) = shelf(4 << 20);
            for number in 0..20_000 {
                let mut entry = entry(number, words, 9);
                if number % 3 == 0 {
                    // A stream of it is asked for, which makes it larger.
                    shelf.insert(key(number), entry.clone());
                    let (more, _) = told(&entry, number % 2 == 0);
                    entry = Arc::new(more);
                    shelf.replace(key(number), entry);
                } else {
                    shelf.insert(key(number), entry);
                }
                assert!(
                    shelf.weight() <= 4 << 20,
                    "{} bytes of entries",
                    shelf.weight()
                );
            }
            assert!(shelf.weight() >= 1 << 20, "most of the room is used");
            assert!(counters.removals(Removal::Evicted) > 0);
        }
    }

    #[test]
    fn what_is_asked_for_survives_a_flood_of_what_is_not() {
        let (shelf, _) = shelf(1 << 20);
        shelf.insert(key(0), entry(0, 1, 9));
        for number in 1..10_000 {
            assert!(
                shelf.get(&key(0), || NOW).is_some(),
                "gone after {number} others"
            );
            shelf.insert(key(number), entry(number, 1, 9));
        }
    }

    #[test]
    fn the_largest_entry_finds_a_place_in_the_smallest_shelf() {
        let (shelf, counters) = shelf(1 << 20);
        let large = entry(0, (1 << 16) / 5 - 40, 9);
        shelf.insert(key(0), large.clone());
        assert!(shelf.get(&key(0), || NOW).is_some());
        let (more, _) = told(&large, true);
        shelf.replace(key(0), Arc::new(more));
        assert!(
            shelf.get(&key(0), || NOW).is_some(),
            "its stream has a place too"
        );
        assert_eq!(counters.removals(Removal::Evicted), 0, "nothing has gone");
    }

    #[test]
    fn what_is_out_of_date_is_not_given_and_goes() {
        let (shelf, counters) = shelf(1 << 20);
        for number in 0..10 {
            shelf.insert(key(number), entry(number, 1, 5 + number));
        }
        assert!(shelf.get(&key(0), || Duration::from_secs(4)).is_some());
        assert!(
            shelf.get(&key(0), || Duration::from_secs(5)).is_none(),
            "to the second"
        );
        assert_eq!(shelf.len(), 9);
        assert_eq!(shelf.sweep(Duration::from_secs(9)), 4);
        assert_eq!((shelf.len(), counters.removals(Removal::Expired)), (5, 5));
    }

    #[test]
    fn a_purge_removes_what_it_names_and_nothing_comes_back() {
        let (shelf, counters) = shelf(1 << 20);
        for number in 0..10 {
            shelf.insert(key(number), entry(number, 1, 9));
        }
        assert_eq!(shelf.purge(&Purge::Entry(entry(3, 1, 9).id)), 1);
        assert_eq!(shelf.purge(&Purge::Model("even".into())), 5);
        assert_eq!(shelf.len(), 4);
        // A reply under way that adds its stream to an entry that has gone.
        let (more, _) = told(&entry(2, 1, 9), false);
        shelf.replace(key(2), Arc::new(more));
        assert!(shelf.get(&key(2), || NOW).is_none());
        assert_eq!(shelf.purge(&Purge::All), 4);
        assert_eq!((shelf.len(), shelf.weight()), (0, 0));
        assert_eq!(counters.removals(Removal::Purged), 10);
    }
}
