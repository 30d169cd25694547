//! The shelf, both parts of it together.

mod threads;

use tollgate_openai::Endpoint;

use super::*;
use crate::flat::Form;

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
    fn flat(&self) -> Flat<'_> {
        let mut id = [0; 16];
        id[..8].copy_from_slice(&self.number.to_le_bytes());
        Flat {
            id: CacheEntryId(id),
            model: if self.number.is_multiple_of(2) {
                "even"
            } else {
                "odd"
            },
            tokens: None,
            expires: Duration::from_secs(self.expires),
            endpoint: Endpoint::Chat,
            form: Form::Came,
            body: self.body.as_bytes(),
        }
    }

    fn store(&self, shelf: &Shelf) {
        shelf.insert(key(self.number), &self.flat());
    }
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

fn store(shelf: &Shelf, number: u64) {
    answer(number, 1, 9).store(shelf);
}

/// Asks for a stream of what is stored.
fn tell(shelf: &Shelf, number: u64, include_usage: bool) -> bool {
    let Some(entry) = shelf.get(&key(number), || NOW) else {
        return false;
    };
    let kept = entry.kept("x_svc").expect("it is kept");
    let told = entry.with_stream(kept, include_usage);
    let (more, _) = told.expect("it can be told");
    shelf.replace(key(number), Arc::new(more));
    true
}

#[test]
fn a_flood_stays_within_its_room_whatever_the_sizes() {
    for words in [1, 20, 2000] {
        let (shelf, counters) = shelf(4 << 20);
        let mut known = 0;
        for number in 0..20_000 {
            answer(number, words, 9).store(&shelf);
            if number % 3 == 0 {
                // Asked for again, as a stream, which makes it larger.
                known += u64::from(tell(&shelf, number, number % 2 == 0));
            }
            assert!(
                shelf.weight() <= 4 << 20,
                "{} bytes of entries",
                shelf.weight()
            );
        }
        assert_eq!(known, 6667, "what has just been stored is there");
        assert!(shelf.weight() >= 3 << 20, "most of the room is used");
        let gone = counters.removals(Removal::Evicted);
        assert_eq!(gone + shelf.len() as u64, 20_000, "each is counted once");
    }
}

#[test]
fn what_nobody_asks_for_has_the_room_that_is_left_as_long_as_that_is_of_use() {
    let (shelf, _) = shelf(4 << 20);
    let flood = |from: u64, count: u64| {
        for number in from..from + count {
            answer(number, 200, 9).store(&shelf);
        }
        (shelf.len() - shelf.main.len(), shelf.weight())
    };
    let (alone, bytes) = flood(1000, 5000);
    assert!(bytes > 7 << 19, "{bytes} bytes");
    for number in 0..1000 {
        answer(number, 1000, 9).store(&shelf);
        shelf.get(&key(number), || NOW);
    }
    assert!(shelf.main.weight() > 3 << 20, "{}", shelf.main.weight());
    let (beside, bytes) = flood(20_000, 700);
    assert!(
        (alone / 31..alone / 4).contains(&beside),
        "{beside} of {alone}"
    );
    assert!(bytes <= 4 << 20);
    assert!(shelf.purge(&Purge::All) > 0);
    let (_, bytes) = flood(30_000, 500);
    assert!(bytes < 1 << 19, "{bytes} bytes: it was of no use");
    answer(30_100, 200, 9).store(&shelf);
    assert_eq!(shelf.main.len(), 1, "this one has gone and comes again");
    let (again, bytes) = flood(40_000, 5000);
    assert!(bytes > 7 << 19, "{bytes} bytes");
    assert!(again + 10 > alone, "{again} of {alone}");
    let (_, bytes) = flood(50_000, 5000);
    assert!(bytes < 1 << 19, "{bytes} bytes");
}

#[test]
fn what_is_asked_for_survives_a_flood_of_what_is_not() {
    let (shelf, _) = shelf(1 << 20);
    store(&shelf, 0);
    for number in 1..10_000 {
        assert!(
            shelf.get(&key(0), || NOW).is_some(),
            "gone after {number} others"
        );
        store(&shelf, number);
    }
}

#[test]
fn what_was_asked_for_twice_survives_a_flood_of_what_is_asked_for_once() {
    let (shelf, _) = shelf(1 << 20);
    store(&shelf, 0);
    assert!(shelf.get(&key(0), || NOW).is_some());
    for number in 1..10_000 {
        store(&shelf, number);
    }
    assert!(shelf.get(&key(0), || NOW).is_some());
}

#[test]
fn what_comes_again_after_it_has_gone_stays() {
    let (shelf, _) = shelf(1 << 20);
    let flood = |from: u64| {
        for number in from..from + 1600 {
            answer(number, 100, 9).store(&shelf);
        }
    };
    store(&shelf, 0);
    flood(1);
    assert!(shelf.get(&key(0), || NOW).is_none(), "nobody asked for it");
    store(&shelf, 0);
    flood(2000);
    flood(4000);
    assert!(shelf.get(&key(0), || NOW).is_some());
}

#[test]
fn the_largest_entry_finds_a_place_in_the_smallest_shelf() {
    let (shelf, counters) = shelf(1 << 20);
    answer(0, (1 << 16) / 5 - 40, 9).store(&shelf);
    assert!(tell(&shelf, 0, true));
    assert!(
        shelf.get(&key(0), || NOW).is_some(),
        "its stream has a place too"
    );
    assert_eq!(counters.removals(Removal::Evicted), 0, "nothing has gone");
}

#[test]
fn what_is_stored_anew_is_there_in_place_of_the_earlier() {
    let (shelf, counters) = shelf(1 << 20);
    let anew = |words| {
        answer(0, words, 9).store(&shelf);
        let entry = shelf.get(&key(0), || NOW).expect("it is there");
        let kept = entry.kept("x_svc").expect("it is kept");
        assert_eq!(kept.bytes(), answer(0, words, 9).body.len() + 15);
        assert_eq!(shelf.len(), 1);
    };
    // Small ones come by the probation, large ones straight to the main part; each is in the main part when the next one comes.
    for words in [1, 2, 4000, 4001, 3] {
        anew(words);
    }
    store(&shelf, 0);
    store(&shelf, 0);
    assert_eq!((shelf.len(), counters.removals(Removal::Evicted)), (1, 6));
    assert_eq!(shelf.purge(&Purge::All), 1);
    assert!(shelf.get(&key(0), || NOW).is_none());
}

#[test]
fn what_is_out_of_date_is_not_given_and_goes() {
    let (shelf, counters) = shelf(1 << 20);
    for number in 0..10 {
        answer(number, 1, 5 + number).store(&shelf);
    }
    let get = |number, at| shelf.get(&key(number), || Duration::from_secs(at));
    assert!(get(0, 4).is_some());
    assert!(get(0, 5).is_none(), "to the second, in the main part");
    assert!(get(1, 6).is_none(), "and before it");
    assert_eq!(shelf.len(), 8);
    assert!(get(2, 4).is_some(), "this one is in the main part");
    assert_eq!(shelf.sweep(Duration::from_secs(9)), 3);
    assert_eq!((shelf.len(), counters.removals(Removal::Expired)), (5, 5));
}

#[test]
fn a_purge_removes_what_it_names_and_nothing_comes_back() {
    let (shelf, counters) = shelf(1 << 20);
    for number in 0..10 {
        store(&shelf, number);
    }
    for number in [1, 2, 3, 4] {
        assert!(shelf.get(&key(number), || NOW).is_some(), "asked for again");
    }
    for number in [3, 5] {
        let id = answer(number, 1, 9).flat().id;
        assert_eq!(shelf.purge(&Purge::Entry(id)), 1);
        assert_eq!(shelf.purge(&Purge::Entry(id)), 0);
    }
    let under_way = shelf.get(&key(2), || NOW).expect("it is there");
    assert_eq!(shelf.purge(&Purge::Model("even".into())), 5);
    assert_eq!(shelf.len(), 3);
    // A reply under way that adds its stream to an entry that has gone.
    shelf.replace(key(2), under_way);
    assert!(shelf.get(&key(2), || NOW).is_none());
    assert_eq!(shelf.purge(&Purge::All), 3);
    assert_eq!((shelf.len(), shelf.weight()), (0, 0));
    assert_eq!(counters.removals(Removal::Purged), 10);
}

#[test]
fn what_is_added_to_a_purged_answer_leaves_alone_what_was_stored_since() {
    let (shelf, _) = shelf(1 << 20);
    store(&shelf, 2);
    let under_way = shelf.get(&key(2), || NOW).expect("it is there");
    assert_eq!(shelf.purge(&Purge::Entry(under_way.id)), 1);
    // Another answer to the same request, and it has been asked for again.
    let since = answer(4, 1, 9);
    shelf.insert(key(2), &since.flat());
    let id = || shelf.get(&key(2), || NOW).map(|entry| entry.id);
    assert_eq!(id(), Some(since.flat().id));
    shelf.replace(key(2), under_way);
    assert_eq!(id(), Some(since.flat().id));
}

#[test]
fn what_goes_because_its_streams_are_too_large_is_counted() {
    let (shelf, counters) = shelf(1 << 18);
    answer(0, 7000, 9).store(&shelf);
    assert!(tell(&shelf, 0, true));
    assert_eq!(shelf.len(), 1, "with one of them it has room");
    assert!(tell(&shelf, 0, false));
    assert_eq!((shelf.len(), counters.removals(Removal::Evicted)), (0, 1));
}
