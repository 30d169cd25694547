//! The queue against a simple one, and at its ends.

use std::collections::{HashMap, HashSet};

use proptest::prelude::*;
use tollgate_filter::CacheEntryId;
use tollgate_openai::Endpoint;

use super::*;
use crate::flat::Form;

const SIZES: Sizes = Sizes {
    segment: 4096,
    index: 1 << 16,
};

fn key(number: u8) -> Key {
    Key(*blake3::hash(&[number]).as_bytes())
}

fn flat(id: u8, expires: u64, body: &[u8]) -> Flat<'_> {
    Flat {
        id: CacheEntryId([id; 16]),
        model: if id.is_multiple_of(2) { "even" } else { "odd" },
        tokens: None,
        expires: Duration::from_secs(expires),
        endpoint: Endpoint::Chat,
        form: Form::Kept { has_usage: false },
        body,
    }
}

#[derive(Clone, Debug)]
enum Act {
    Put {
        key: u8,
        id: u8,
        expires: u64,
        bytes: usize,
    },
    Take {
        key: u8,
    },
    RemoveEven,
    Sweep {
        now: u64,
    },
    Give {
        segments: usize,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let put = (0_u8..40, any::<u8>(), 1_u64..60, 0_usize..1200);
    prop_oneof![
        20 => put.prop_map(|(key, id, expires, bytes)| Act::Put { key, id, expires, bytes }),
        6 => (0_u8..40).prop_map(|key| Act::Take { key }),
        1 => Just(Act::RemoveEven),
        1 => (0_u64..60).prop_map(|now| Act::Sweep { now }),
        1 => (1_usize..6).prop_map(|segments| Act::Give { segments }),
    ]
}

/// What has to be there: of each key the id, when it is out of date, and the segment it was written to.
#[derive(Default)]
struct Expected {
    live: HashMap<u8, (u8, u64, u64)>,
    ever: HashSet<u8>,
}

impl Expected {
    fn remove(&mut self, gone: impl Fn((u8, u64, u64)) -> bool) -> usize {
        let before = self.live.len();
        self.live.retain(|_, one| !gone(*one));
        before - self.live.len()
    }

    fn went_with_segments(&mut self, queue: &Probation) -> usize {
        self.remove(|(_, _, segment)| segment < queue.first)
    }
}

proptest! {
    #[test]
    fn what_was_put_is_there_until_it_is_taken_or_its_segment_goes(
        acts in proptest::collection::vec(act(), 0..300),
    ) {
        let mut queue = Probation::new(SIZES, 3);
        let mut expected = Expected::default();
        let body = [b'x'; 1200];
        for act in acts {
            match act {
                Act::Put { key: name, id, expires, bytes } => {
                    let flat = flat(id, expires, &body[..bytes]);
                    let earlier = usize::from(expected.live.remove(&name).is_some());
                    match queue.put(&key(name), &flat) {
                        Put::Here { evicted } => {
                            let went = expected.went_with_segments(&queue);
                            prop_assert_eq!(evicted, earlier + went);
                            let full = queue.segments.len() == queue.segments_max;
                            prop_assert!(went == 0 || full || queue.short);
                            let segment = queue.first + queue.segments.len() as u64 - 1;
                            expected.live.insert(name, (id, expires, segment));
                        }
                        Put::Beyond { evicted } => {
                            prop_assert_eq!(evicted, earlier);
                            let large = flat.bytes() > SIZES.segment / 4;
                            prop_assert!(large || earlier == 0 && expected.ever.contains(&name));
                        }
                    }
                    expected.ever.insert(name);
                }
                Act::Take { key: name } => {
                    let taken = queue.take(&key(name)).map(|entry| entry.id);
                    let there = expected.live.remove(&name);
                    prop_assert_eq!(taken, there.map(|(id, ..)| CacheEntryId([id; 16])));
                }
                Act::RemoveEven => {
                    let removed = queue.remove(|flat| flat.model == "even");
                    prop_assert_eq!(removed, expected.remove(|(id, ..)| id % 2 == 0));
                    prop_assert_eq!(expected.went_with_segments(&queue), 0);
                }
                Act::Sweep { now } => {
                    let removed = queue.sweep(Duration::from_secs(now));
                    prop_assert_eq!(removed, expected.remove(|(_, expires, _)| expires <= now));
                    prop_assert_eq!(expected.went_with_segments(&queue), 0);
                }
                Act::Give { segments } => {
                    let evicted = queue.give(segments);
                    prop_assert_eq!(evicted, expected.went_with_segments(&queue));
                }
            }
            prop_assert_eq!(queue.len(), expected.live.len());
            prop_assert!(queue.segments.len() <= queue.segments_max);
            prop_assert!(queue.bytes() <= queue.segments.len() * SIZES.segment);
            let live: usize = queue.segments.iter().map(|segment| segment.live).sum();
            prop_assert_eq!(queue.len(), live);
        }
    }
}

#[test]
fn keys_that_the_index_cannot_tell_apart_are_never_taken_for_each_other() {
    let mut queue = Probation::new(SIZES, 3);
    let mut other = [1; 32];
    other[31] = 2;
    let (one, other) = (Key([1; 32]), Key(other));
    let put = |queue: &mut Probation, key, id| queue.put(key, &flat(id, 9, b"{}"));
    let id = |entry: Option<Entry>| entry.map(|entry| entry.id.0[0]);
    assert_eq!(put(&mut queue, &one, 1), Put::Here { evicted: 0 });
    assert_eq!(id(queue.take(&other)), None);
    assert_eq!(put(&mut queue, &other, 2), Put::Here { evicted: 0 });
    assert_eq!(id(queue.take(&one)), Some(1));
    assert_eq!(put(&mut queue, &one, 3), Put::Here { evicted: 0 });
    assert_eq!(
        (id(queue.take(&other)), id(queue.take(&one))),
        (Some(2), Some(3))
    );
}

#[test]
fn what_comes_again_after_it_has_gone_is_sent_on() {
    let mut queue = Probation::new(SIZES, 2);
    let body = [b'x'; 800];
    let mut put = |number| {
        let put = queue.put(&key(number), &flat(number, 9, &body));
        matches!(put, Put::Here { .. })
    };
    assert!(put(0));
    assert!((1..12).all(&mut put));
    assert!(!put(0), "it has gone and comes again");
    assert!(put(0), "that is told once: it is in the main part now");
    assert!(queue.take(&key(0)).is_some());
    let put = queue.put(&key(0), &flat(0, 9, &body));
    assert!(
        matches!(put, Put::Here { .. }),
        "what was taken has not gone for want of room"
    );
}

#[test]
fn a_full_bucket_forgets_its_oldest_answer_and_counts_it() {
    let sizes = Sizes { index: 64, ..SIZES };
    let mut queue = Probation::new(sizes, 8);
    let mut evicted = 0;
    for number in 0..20 {
        match queue.put(&key(number), &flat(number, 9, b"{}")) {
            Put::Here { evicted: more } => evicted += more,
            Put::Beyond { .. } => panic!("{number} was never here"),
        }
    }
    assert_eq!((queue.len(), evicted), (8, 12));
    assert!(queue.take(&key(11)).is_none());
    assert!((12..20).all(|number| queue.take(&key(number)).is_some()));
    assert_eq!(queue.remove(|_| true), 0);
    assert_eq!(queue.bytes(), 0, "nothing is left to be found");
}

#[test]
fn when_places_run_out_they_are_given_anew() {
    let last = PLACE_MAX >> Probation::new(SIZES, 3).shift();
    // In the second case the queue becomes short on the very segment that has no place.
    for (first, of_use, short) in [(last - 1, last, false), (last - 6, last - 6, true)] {
        let mut queue = Probation::new(SIZES, 3);
        (queue.first, queue.of_use) = (first, of_use);
        let body = [b'x'; 900];
        for number in 0..30_u8 {
            let put = queue.put(&key(number), &flat(number, 9, &body));
            assert!(matches!(put, Put::Here { .. }));
            assert!(queue.newest() <= last, "answer {number}");
            if let Some(before) = number.checked_sub(1) {
                assert!(queue.take(&key(before)).is_some(), "{before}");
            }
        }
        assert_eq!(queue.short, short);
        assert!(queue.first < 20, "{}", queue.first);
    }
}

#[test]
fn a_queue_that_is_of_no_use_is_short_until_an_answer_comes_again() {
    let mut queue = Probation::new(SIZES, 8);
    // Four to a segment.
    let body = [b'x'; 900];
    let put = |queue: &mut Probation, number| {
        let put = queue.put(&key(number), &flat(number, 9, &body));
        matches!(put, Put::Here { .. })
    };
    let all = |queue: &mut Probation, mut numbers: std::ops::Range<u8>| {
        assert!(numbers.all(|number| put(queue, number)));
    };
    all(&mut queue, 0..60);
    assert!(
        queue.take(&key(40)).is_some(),
        "somebody asks for an old one"
    );
    all(&mut queue, 60..124);
    assert_eq!(queue.segments.len(), 8, "twice through since");
    assert!(
        queue.take(&key(122)).is_some(),
        "it would be in a short queue too"
    );
    all(&mut queue, 124..125);
    assert_eq!((queue.segments.len(), queue.len()), (SHORT, 4));
    assert!([120, 121, 123, 124].map(|number| queue.take(&key(number)).is_some()) == [true; 4]);
    all(&mut queue, 125..140);
    assert_eq!(queue.segments.len(), SHORT);
    assert!(!put(&mut queue, 126), "gone, and here again");
    all(&mut queue, 140..170);
    assert_eq!(queue.segments.len(), 8, "all the room is its own again");
}

#[test]
fn what_comes_again_after_a_long_time_makes_a_short_queue_long() {
    let key = |number: u32| Key(*blake3::hash(&number.to_le_bytes()).as_bytes());
    // There is room for some 1,200 answers, and an index for twice as many; a short one knows 320.
    let sizes = Sizes {
        index: 2560 * SLOT_BYTES,
        ..SIZES
    };
    let mut queue = Probation::new(sizes, 64);
    let mut put = |number: u32| {
        queue.put(&key(number), &flat(0, 9, &[b'x'; 100]));
        queue.short
    };
    assert!((0..10_000).any(&mut put), "nobody asks for anything old");
    // As many as the room would hold, and each of them again when all the others have passed.
    assert!((10_000..11_000).all(&mut put), "they are new ones");
    assert!(
        !(10_000..11_000).all(&mut put),
        "they would have been there"
    );
}

#[test]
fn the_room_is_divided_as_is_told() {
    let mib = 1 << 20;
    for (room, segment, index) in [
        (mib, 32 << 10, mib / 64),
        (16 * mib, 512 << 10, mib / 4),
        (64 * mib, mib, mib),
        (128 * mib, mib, 2 * mib),
    ] {
        assert_eq!(Sizes::new(room), Sizes { segment, index });
    }
}
