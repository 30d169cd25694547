//! The store while several threads use it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use parking_lot::MutexGuard;

use super::*;

#[test]
fn across_threads_an_entry_is_found_while_it_changes_queues() {
    let (store, _) = store(1 << 20);
    for number in 0..200 {
        put(&store, number);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| assert!(store.get(&key(number), || NOW).is_some()));
            }
        });
    }
    assert_eq!(store.len(), 200);
}

const THREADS: u64 = 4;
const STEPS: u64 = 20_000;
const KEYS: u64 = 300;

/// What the threads share.
struct Mixed {
    store: EntryStore,
    stored: AtomicU64,
    /// Seconds.
    now: AtomicU64,
    /// Ids whose purge is over, with how many there were before.
    purged: Mutex<HashMap<CacheEntryId, usize>>,
}

impl Mixed {
    fn now(&self) -> Duration {
        Duration::from_secs(self.now.load(Relaxed))
    }

    fn purged(&self) -> MutexGuard<'_, HashMap<CacheEntryId, usize>> {
        self.purged.lock()
    }

    /// Stores an answer whose id and text tell whose it is. No two ids are equal.
    fn store(&self, number: u64, random: u64) {
        let serial = self.stored.fetch_add(1, Relaxed);
        let words = "word ".repeat(random as usize % 500);
        let body = format!(
            r#"{{"choices":[{{"message":{{"content":"{number} {words}"}},"finish_reason":"stop"}}]}}"#
        );
        let expires = self.now.load(Relaxed) + 1 + random % 30;
        let answer = Answer {
            number,
            body,
            expires,
        };
        let mut entry = answer.entry();
        entry.id.0[8..].copy_from_slice(&serial.to_le_bytes());
        self.store.insert(key(number), Arc::new(entry));
    }

    fn get(&self, number: u64) -> Option<Arc<Entry>> {
        let purged = self.purged().len();
        let entry = self.store.get(&key(number), || self.now())?;
        let since = self.purged().get(&entry.id).copied();
        assert!(since.is_none_or(|since| since >= purged), "it was purged");
        assert_eq!(entry.id.0[..8], number.to_le_bytes(), "another's answer");
        let mut text = String::new();
        let kept = entry.stored("x_svc").expect("it is kept");
        kept.append_text(&mut text);
        assert!(text.starts_with(&format!("{number} ")), "{number}: {text}");
        Some(entry)
    }

    fn step(&self, random: u64) {
        // Few are asked for often, and many seldom.
        let number = (random >> 32) % KEYS * ((random >> 20) % 8) / 7;
        match random % 1000 {
            0 => drop(self.store.purge(&Purge::Model("odd".into()))),
            1..5 => drop(self.store.sweep(self.now())),
            5..10 => drop(self.now.fetch_add(1, Relaxed)),
            10..400 => self.store(number, random >> 10),
            400..600 => {
                let Some(entry) = self.get(number) else {
                    return;
                };
                let kept = entry.stored("x_svc").expect("it is kept");
                let made = entry.with_stream(kept, random & 1024 == 0);
                let (more, _) = made.expect("it has events");
                // Others store and purge meanwhile.
                std::thread::yield_now();
                self.store.replace(key(number), Arc::new(more));
            }
            600..650 => {
                let Some(entry) = self.get(number) else {
                    return;
                };
                self.store.purge(&Purge::Entry(entry.id));
                let mut purged = self.purged();
                let before = purged.len();
                purged.entry(entry.id).or_insert(before);
            }
            _ => drop(self.get(number)),
        }
    }
}

#[test]
fn across_threads_each_answer_is_its_keys_own_and_is_counted_once() {
    let counters = Arc::new(CacheCounters::default());
    let mixed = Mixed {
        store: EntryStore::new(1 << 18, 1 << 10, counters.clone()),
        stored: AtomicU64::new(0),
        now: AtomicU64::new(1),
        purged: Mutex::default(),
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let mixed = &mixed;
            scope.spawn(move || {
                for step in 0..STEPS {
                    let random = blake3::hash(&(thread * STEPS + step).to_le_bytes());
                    let random = random.as_bytes().first_chunk().copied();
                    mixed.step(u64::from_le_bytes(random.expect("it is long enough")));
                }
            });
        }
    });
    let removed = || {
        [Removal::Evicted, Removal::Expired, Removal::Purged].map(|why| counters.removals.get(why))
    };
    let (stored, there) = (mixed.stored.load(Relaxed), mixed.store.len() as u64);
    let gone = removed();
    assert!(
        there > 0 && gone.iter().all(|&count| count > 100),
        "{there} and {gone:?}"
    );
    assert_eq!(
        stored,
        there + gone.iter().sum::<u64>(),
        "{there} and {gone:?}"
    );
    assert_eq!(mixed.store.purge(&Purge::All), there);
    assert_eq!((mixed.store.len(), mixed.store.weight()), (0, 0));
    assert_eq!(stored, removed().iter().sum::<u64>());
}
