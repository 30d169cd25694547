//! Single flight: of equal requests at the same time one leads and calls the provider, the others follow and wait for its answer.
//!
//! The leading request holds a [`Leader`]. It ends in one of two ways: with an answer, which every follower receives, or by being dropped,
//! for any reason, and then the follower that has waited longest becomes the leader. A `Leader` sent to a follower that has stopped waiting
//! is dropped with its message, so the lead goes to the next follower: it is never lost, and never held twice.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;

use crate::entry::Entry;
use crate::key::{BuildDigestHasher, Key};

/// Tables that keys are spread over, so that workers seldom contend for a lock.
const SHARDS: usize = 16;

type Table = HashMap<Key, VecDeque<oneshot::Sender<Handover>>, BuildDigestHasher>;

/// The requests under way, by key.
#[derive(Debug, Default)]
pub(crate) struct SingleFlight {
    shards: [Shard; SHARDS],
}

/// The requests of some of the keys.
#[derive(Debug, Default)]
struct Shard {
    table: Mutex<Table>,
    /// Answers of leaders so far. Grows before the leader is removed from the table.
    generation: AtomicU64,
}

/// A count of the answers that leaders have completed: unequal generations mean that an answer came in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Generation(u64);

/// The role of a request among equal ones.
#[derive(Debug)]
pub(crate) enum Joined {
    /// The first of its key: calls the provider.
    Leads(Leader),
    /// Another request leads: waits for its answer.
    Follows(oneshot::Receiver<Handover>),
}

/// What a follower receives.
#[derive(Debug)]
pub(crate) enum Handover {
    /// The answer.
    Answer(Arc<Entry>),
    /// The lead: the request that had it ended without an answer.
    Lead(Leader),
}

/// The lead of one key.
#[derive(Debug)]
pub(crate) struct Leader {
    flight: Arc<SingleFlight>,
    key: Key,
    completed: bool,
}

impl SingleFlight {
    /// To be read before the lookup of `key`: while it stays the same, no leader has completed an answer since.
    pub(crate) fn generation(&self, key: &Key) -> Generation {
        Generation(self.shard(key).generation.load(Acquire))
    }

    /// Leads if no other request of this key does, else follows.
    pub(crate) fn join(self: &Arc<Self>, key: Key) -> Joined {
        let mut table = self.table(&key);
        match table.get_mut(&key) {
            None => {
                table.insert(key, VecDeque::new());
                Joined::Leads(Leader {
                    flight: self.clone(),
                    key,
                    completed: false,
                })
            }
            Some(waiting) => {
                let (sender, receiver) = oneshot::channel();
                // Followers that gave up leave closed channels behind; a hot key must not collect them.
                if waiting.len() == waiting.capacity() {
                    waiting.retain(|one| !one.is_closed());
                }
                waiting.push_back(sender);
                Joined::Follows(receiver)
            }
        }
    }

    /// How many followers wait now.
    pub(crate) fn waiting(&self) -> usize {
        let of = |shard: &Shard| {
            let table = shard.table.lock();
            let waiting = table.values().flatten();
            waiting.filter(|one| !one.is_closed()).count()
        };
        self.shards.iter().map(of).sum()
    }

    fn table(&self, key: &Key) -> MutexGuard<'_, Table> {
        // Every change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        let table = &self.shard(key).table;
        table.lock()
    }

    fn shard(&self, key: &Key) -> &Shard {
        &self.shards[usize::from(key.0[31]) % SHARDS]
    }
}

impl Leader {
    /// Sends the answer to every follower.
    pub(crate) fn complete(mut self, entry: &Arc<Entry>) {
        self.completed = true;
        let waiting = {
            let mut table = self.flight.table(&self.key);
            // No other request can lead before the lock is released, and the next leader sees the new generation.
            let generation = &self.flight.shard(&self.key).generation;
            generation.fetch_add(1, Release);
            table.remove(&self.key)
        };
        for one in waiting.into_iter().flatten() {
            // A follower that has disconnected needs no answer.
            let _ = one.send(Handover::Answer(entry.clone()));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.completed {
            return;
        }
        loop {
            let next = {
                let mut table = self.flight.table(&self.key);
                let next = table.get_mut(&self.key).and_then(VecDeque::pop_front);
                if next.is_none() {
                    table.remove(&self.key);
                }
                next
            };
            let Some(next) = next else { return };
            let leader = Leader {
                flight: self.flight.clone(),
                key: self.key,
                completed: false,
            };
            match next.send(Handover::Lead(leader)) {
                Ok(()) => return,
                // The follower has disconnected. The lead is returned, and passed to the next follower by this loop, not by its own drop.
                Err(Handover::Lead(mut unused)) => unused.completed = true,
                Err(Handover::Answer(_)) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_filter::CacheEntryId;
    use tollgate_openai::{Endpoint, StoredAnswer};

    use super::*;

    fn entry() -> Arc<Entry> {
        let body = br#"{"choices":[{"message":{"content":"x"}}]}"#;
        Arc::new(Entry {
            id: CacheEntryId([7; 16]),
            model: "m".into(),
            tokens: None,
            expires: Duration::MAX,
            endpoint: Endpoint::Chat,
            answer: StoredAnswer::of_answer(Endpoint::Chat, body, "m", "x_svc", 1000)
                .expect("kept")
                .into(),
            events: [None, None],
        })
    }

    fn lead(flight: &Arc<SingleFlight>, key: Key) -> Leader {
        match flight.join(key) {
            Joined::Leads(leader) => leader,
            Joined::Follows(_) => panic!("another request leads"),
        }
    }

    fn follow(flight: &Arc<SingleFlight>, key: Key) -> oneshot::Receiver<Handover> {
        match flight.join(key) {
            Joined::Follows(message) => message,
            Joined::Leads(_) => panic!("no request leads"),
        }
    }

    fn is_empty(flight: &Arc<SingleFlight>) -> bool {
        flight
            .shards
            .iter()
            .all(|shard| shard.table.lock().is_empty())
    }

    #[test]
    fn a_new_leader_sees_that_an_answer_was_completed() {
        let flight = Arc::new(SingleFlight::default());
        let key = Key([1; 32]);
        let before = flight.generation(&key);
        drop(lead(&flight, key));
        assert_eq!(flight.generation(&key), before, "no answer was completed");
        lead(&flight, key).complete(&entry());
        let _leader = lead(&flight, key);
        assert_ne!(flight.generation(&key), before);
    }

    #[test]
    fn all_followers_receive_the_answer_and_the_next_request_leads() {
        let flight = Arc::new(SingleFlight::default());
        let (one, other) = (Key([1; 32]), Key([2; 32]));
        let leader = lead(&flight, one);
        let _other = lead(&flight, other);
        let mut waiting: Vec<_> = (0..100).map(|_| follow(&flight, one)).collect();
        assert_eq!(flight.waiting(), 100);
        leader.complete(&entry());
        for message in &mut waiting {
            assert!(matches!(message.try_recv(), Ok(Handover::Answer(_))));
        }
        let _again = lead(&flight, one);
    }

    #[test]
    fn a_lead_without_an_answer_goes_to_the_longest_waiting_follower_only() {
        let flight = Arc::new(SingleFlight::default());
        let key = Key([1; 32]);
        let leader = lead(&flight, key);
        let gone = follow(&flight, key);
        let mut first = follow(&flight, key);
        let mut second = follow(&flight, key);
        drop(gone);
        drop(leader);
        let Ok(Handover::Lead(leader)) = first.try_recv() else {
            panic!("the longest waiting follower leads")
        };
        assert!(second.try_recv().is_err(), "the other keeps waiting");
        // A follower that goes with the lead in its channel, unread.
        let third = follow(&flight, key);
        drop(leader);
        drop(third);
        let Ok(Handover::Lead(leader)) = second.try_recv() else {
            panic!("the lead is passed on")
        };
        drop(leader);
        assert!(is_empty(&flight));
    }

    #[test]
    fn a_lead_that_its_follower_never_receives_is_passed_on() {
        let flight = Arc::new(SingleFlight::default());
        let key = Key([1; 32]);
        let leader = lead(&flight, key);
        let (first, mut second) = (follow(&flight, key), follow(&flight, key));
        drop(leader);
        // The message is in the channel, and its receiver is dropped without reading it.
        drop(first);
        assert!(matches!(second.try_recv(), Ok(Handover::Lead(_))));
    }

    #[test]
    fn a_follower_that_gives_up_leaves_nothing_behind() {
        let flight = Arc::new(SingleFlight::default());
        let key = Key([1; 32]);
        let leader = lead(&flight, key);
        for _ in 0..10_000 {
            drop(follow(&flight, key));
        }
        assert_eq!(flight.waiting(), 0);
        let places = flight.table(&key)[&key].capacity();
        assert!(places < 64, "{places} places are kept");
        drop(leader);
        assert!(is_empty(&flight));
    }

    #[test]
    fn across_threads_no_follower_is_left_waiting_and_one_leads_at_a_time() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        const THREADS: usize = 4;
        let flight = Arc::new(SingleFlight::default());
        let (leading, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (flight, leading, served) = (&flight, &leading, &served);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .build()
                        .expect("a runtime");
                    runtime.block_on(async {
                        for round in 0..500 {
                            let key = Key([u8::try_from(round % 3).expect("small"); 32]);
                            let leader = match flight.join(key) {
                                Joined::Leads(leader) => Some(leader),
                                // Some give up at once.
                                Joined::Follows(_) if round % 7 == 0 => continue,
                                Joined::Follows(message) => {
                                    match message.await.expect("a message comes") {
                                        Handover::Lead(leader) => Some(leader),
                                        Handover::Answer(_) => {
                                            served.fetch_add(1, Ordering::Relaxed);
                                            None
                                        }
                                    }
                                }
                            };
                            if let Some(leader) = leader {
                                assert!(leading.fetch_add(1, Ordering::SeqCst) < 3);
                                tokio::task::yield_now().await;
                                leading.fetch_sub(1, Ordering::SeqCst);
                                match (round + thread) % 3 {
                                    0 => drop(leader),
                                    _ => leader.complete(&entry()),
                                }
                            }
                        }
                    });
                });
            }
        });
        assert!(is_empty(&flight));
    }
}
