//! What is stored, what is evicted and what is removed.

mod threads;

use tollgate_filter::CacheEntryId;
use tollgate_openai::Family;

use super::*;
use crate::entry::Answer as StoredAnswer;

const NOW: Duration = Duration::from_secs(1);

/// An answer with a few parts of its own, the rest the same for all.
struct Answer {
    number: u64,
    body: String,
    expires: u64,
}

fn answer(number: u64, words: usize, expires: u64) -> Answer {
    let body = format!(
        r#"{{"choices":[{{"message":{{"content":"{}"}},"finish_reason":"stop"}}]}}"#,
        "word ".repeat(words)
    );
    Answer {
        number,
        body,
        expires,
    }
}

impl Answer {
    fn entry(&self) -> Entry {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.number.to_le_bytes());
        Entry {
            id: CacheEntryId(id),
            model: if self.number.is_multiple_of(2) {
                "even".into()
            } else {
                "odd".into()
            },
            tokens: None,
            expires: Duration::from_secs(self.expires),
            family: Family::CHAT,
            answer: StoredAnswer::as_sent(self.body.as_bytes()),
            events: [None, None],
        }
    }

    fn put(&self, store: &EntryStore) {
        store.insert(key(self.number), Arc::new(self.entry()));
    }
}

fn key(number: u64) -> Key {
    Key(*blake3::hash(&number.to_le_bytes()).as_bytes())
}

fn store(bytes_max: usize) -> (EntryStore, Arc<CacheCounters>) {
    let counters = Arc::new(CacheCounters::default());
    (
        EntryStore::new(bytes_max, bytes_max / 16, counters.clone()),
        counters,
    )
}

fn put(store: &EntryStore, number: u64) {
    answer(number, 1, 9).put(store);
}

/// Asks for a stream of what is stored.
fn serve(store: &EntryStore, number: u64, include_usage: bool) -> bool {
    let Some(entry) = store.get(&key(number), || NOW) else {
        return false;
    };
    let kept = entry.stored("x_svc").expect("it is kept");
    let made = entry.with_stream(kept, include_usage);
    let (more, _) = made.expect("it has events");
    store.replace(key(number), Arc::new(more));
    true
}

#[test]
fn a_flood_stays_within_max_bytes_for_any_sizes() {
    for words in [1, 20, 2000] {
        let (store, counters) = store(4 << 20);
        let mut known = 0;
        for number in 0..20_000 {
            answer(number, words, 9).put(&store);
            if number % 3 == 0 {
                // Asked for again, as a stream, which makes it larger.
                known += u64::from(serve(&store, number, number % 2 == 0));
            }
            assert!(
                store.weight() <= 4 << 20,
                "{} bytes of entries",
                store.weight()
            );
        }
        assert_eq!(known, 6667, "what has just been stored is there");
        assert!(store.weight() >= 3 << 20, "most of the room is used");
        let removed_count = counters.removals.get(Removal::Evicted);
        assert_eq!(
            removed_count + store.len() as u64,
            20_000,
            "each is counted once"
        );
    }
}

#[test]
fn entries_in_use_survive_a_flood_of_unused_ones() {
    let (store, _) = store(1 << 20);
    put(&store, 0);
    for number in 1..10_000 {
        assert!(
            store.get(&key(0), || NOW).is_some(),
            "gone after {number} others"
        );
        put(&store, number);
    }
}

#[test]
fn entries_requested_twice_survive_a_flood_of_entries_requested_once() {
    let (store, _) = store(1 << 20);
    put(&store, 0);
    assert!(store.get(&key(0), || NOW).is_some());
    for number in 1..10_000 {
        put(&store, number);
    }
    assert!(store.get(&key(0), || NOW).is_some());
}

#[test]
fn an_entry_stored_again_after_eviction_stays() {
    let (store, _) = store(1 << 20);
    let flood = |from: u64, count: u64| {
        for number in from..from + count {
            answer(number, 100, 9).put(&store);
        }
    };
    // While there is room, entries go to the main queue at once.
    flood(1000, 2000);
    flood(0, 1);
    flood(4000, 200);
    assert!(store.get(&key(0), || NOW).is_none(), "it was evicted");
    flood(0, 1);
    flood(5000, 2000);
    flood(8000, 2000);
    assert!(store.get(&key(0), || NOW).is_some());
}

#[test]
fn the_largest_entry_finds_a_place_in_the_smallest_store() {
    let (store, counters) = store(1 << 20);
    answer(0, (1 << 16) / 5 - 40, 9).put(&store);
    assert!(serve(&store, 0, true));
    assert!(
        store.get(&key(0), || NOW).is_some(),
        "its stream has a place too"
    );
    assert_eq!(
        counters.removals.get(Removal::Evicted),
        0,
        "nothing was evicted"
    );
}

#[test]
fn a_stored_entry_replaces_the_earlier_one() {
    let (store, counters) = store(1 << 20);
    let store_again = |words| {
        answer(0, words, 9).put(&store);
        let entry = store.get(&key(0), || NOW).expect("it is there");
        let kept = entry.stored("x_svc").expect("it is kept");
        assert_eq!(kept.bytes(), answer(0, words, 9).body.len() + 15);
        assert_eq!(store.len(), 1);
    };
    for words in [1, 2, 4000, 4001, 3] {
        store_again(words);
    }
    put(&store, 0);
    put(&store, 0);
    assert_eq!(
        (store.len(), counters.removals.get(Removal::Evicted)),
        (1, 6)
    );
    assert_eq!(store.purge(&Purge::All), 1);
    assert!(store.get(&key(0), || NOW).is_none());
}

#[test]
fn an_expired_entry_is_not_served_and_is_removed() {
    let (store, counters) = store(1 << 20);
    for number in 0..10 {
        answer(number, 1, 5 + number).put(&store);
    }
    let get = |number, at| store.get(&key(number), || Duration::from_secs(at));
    assert!(get(0, 4).is_some());
    assert!(get(0, 5).is_none(), "to the second, in the main part");
    assert!(get(1, 6).is_none(), "and before it");
    assert_eq!(store.len(), 8);
    assert!(get(2, 4).is_some(), "this one is in the main part");
    assert_eq!(store.sweep(Duration::from_secs(9)), 3);
    assert_eq!(
        (store.len(), counters.removals.get(Removal::Expired)),
        (5, 5)
    );
}

#[test]
fn a_purge_removes_what_it_names_and_nothing_comes_back() {
    let (store, counters) = store(1 << 20);
    for number in 0..10 {
        put(&store, number);
    }
    for number in [1, 2, 3, 4] {
        assert!(store.get(&key(number), || NOW).is_some(), "asked for again");
    }
    for number in [3, 5] {
        let id = answer(number, 1, 9).entry().id;
        assert_eq!(store.purge(&Purge::Entry(id)), 1);
        assert_eq!(store.purge(&Purge::Entry(id)), 0);
    }
    let under_way = store.get(&key(2), || NOW).expect("it is there");
    assert_eq!(store.purge(&Purge::Model("even".into())), 5);
    assert_eq!(store.len(), 3);
    // A reply under way that adds its stream to an entry that has gone.
    store.replace(key(2), under_way);
    assert!(store.get(&key(2), || NOW).is_none());
    assert_eq!(store.purge(&Purge::All), 3);
    assert_eq!((store.len(), store.weight()), (0, 0));
    assert_eq!(counters.removals.get(Removal::Purged), 10);
}

#[test]
fn a_stream_added_to_a_purged_entry_does_not_replace_a_newer_one() {
    let (store, _) = store(1 << 20);
    put(&store, 2);
    let under_way = store.get(&key(2), || NOW).expect("it is there");
    assert_eq!(store.purge(&Purge::Entry(under_way.id)), 1);
    // Another answer to the same request, and it has been asked for again.
    let since = answer(4, 1, 9);
    store.insert(key(2), Arc::new(since.entry()));
    let id = || store.get(&key(2), || NOW).map(|entry| entry.id);
    assert_eq!(id(), Some(since.entry().id));
    store.replace(key(2), under_way);
    assert_eq!(id(), Some(since.entry().id));
}

#[test]
fn an_entry_evicted_for_its_streamed_forms_is_counted() {
    let (store, counters) = store(1 << 18);
    answer(0, 9000, 9).put(&store);
    assert!(serve(&store, 0, true));
    assert_eq!(store.len(), 1, "with one of them it fits");
    assert!(serve(&store, 0, false));
    assert_eq!(
        (store.len(), counters.removals.get(Removal::Evicted)),
        (0, 1)
    );
}
