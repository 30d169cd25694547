//! Equal requests at the same time: one of them leads, the others wait for what it brings.
//!
//! Whoever leads holds a [`Leader`]. It ends in one of two ways: with an answer, which all who wait are given at once, or by being
//! dropped, for whatever reason, and then the first who still waits is made leader. A leader on its way to somebody who has stopped
//! waiting is dropped with the message it was in, so the lead goes on to the next: it is never lost, and never held twice.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use tokio::sync::oneshot;

use crate::entry::Entry;
use crate::key::{BuildDigestHasher, Key};

/// Tables that requests are spread over, so that workers seldom meet.
const SHARDS: usize = 16;

type Table = HashMap<Key, VecDeque<oneshot::Sender<Turn>>, BuildDigestHasher>;

/// The requests under way, by key.
#[derive(Debug, Default)]
pub(crate) struct Flights {
    shards: [Shard; SHARDS],
}

/// The requests of some of the keys.
#[derive(Debug, Default)]
struct Shard {
    table: Mutex<Table>,
    /// Answers that leaders have brought. Grows before the leader is gone from the table.
    brought: AtomicU64,
}

/// How many answers leaders had brought when somebody looked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Brought(u64);

/// What a request that asks to fly is told.
#[derive(Debug)]
pub(crate) enum Joined {
    /// Nobody is under way: go.
    Leads(Leader),
    /// Somebody is: wait.
    Follows(oneshot::Receiver<Turn>),
}

/// What a request that waits is given.
#[derive(Debug)]
pub(crate) enum Turn {
    /// The answer.
    Answer(Arc<Entry>),
    /// The lead: whoever had it brought nothing.
    Lead(Leader),
}

/// The one request of its key that is under way.
#[derive(Debug)]
pub(crate) struct Leader {
    flights: Arc<Flights>,
    key: Key,
    over: bool,
}

impl Flights {
    /// To be asked before an answer to `key` is looked for. As long as it stays the same, no leader has brought one since.
    pub(crate) fn brought(&self, key: &Key) -> Brought {
        Brought(self.shard(key).brought.load(Acquire))
    }

    /// Leads if nobody does, else follows.
    pub(crate) fn join(self: &Arc<Self>, key: Key) -> Joined {
        let mut table = self.table(&key);
        match table.get_mut(&key) {
            None => {
                table.insert(key, VecDeque::new());
                Joined::Leads(Leader {
                    flights: self.clone(),
                    key,
                    over: false,
                })
            }
            Some(waiting) => {
                let (sender, receiver) = oneshot::channel();
                // Those who gave up leave their place behind; a hot key must not collect them.
                if waiting.len() == waiting.capacity() {
                    waiting.retain(|one| !one.is_closed());
                }
                waiting.push_back(sender);
                Joined::Follows(receiver)
            }
        }
    }

    /// How many wait now.
    pub(crate) fn waiting(&self) -> usize {
        let of = |shard: &Shard| {
            let table = shard.table.lock().unwrap_or_else(PoisonError::into_inner);
            let waiting = table.values().flatten();
            waiting.filter(|one| !one.is_closed()).count()
        };
        self.shards.iter().map(of).sum()
    }

    fn table(&self, key: &Key) -> MutexGuard<'_, Table> {
        // Every change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        let table = &self.shard(key).table;
        table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn shard(&self, key: &Key) -> &Shard {
        &self.shards[usize::from(key.0[31]) % SHARDS]
    }
}

impl Leader {
    /// Gives the answer to all who wait.
    pub(crate) fn complete(mut self, entry: &Arc<Entry>) {
        self.over = true;
        let waiting = {
            let mut table = self.flights.table(&self.key);
            // Nobody can lead anew before the lock is given back, and whoever does then sees it.
            let brought = &self.flights.shard(&self.key).brought;
            brought.fetch_add(1, Release);
            table.remove(&self.key)
        };
        for one in waiting.into_iter().flatten() {
            // Whoever has left needs no answer.
            let _ = one.send(Turn::Answer(entry.clone()));
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        if self.over {
            return;
        }
        loop {
            let next = {
                let mut table = self.flights.table(&self.key);
                let next = table.get_mut(&self.key).and_then(VecDeque::pop_front);
                if next.is_none() {
                    table.remove(&self.key);
                }
                next
            };
            let Some(next) = next else { return };
            let leader = Leader {
                flights: self.flights.clone(),
                key: self.key,
                over: false,
            };
            match next.send(Turn::Lead(leader)) {
                Ok(()) => return,
                // It has left. The lead comes back and goes to the next from here, not from within its own end.
                Err(Turn::Lead(mut unused)) => unused.over = true,
                Err(Turn::Answer(_)) => return,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tollgate_filter::CacheEntryId;
    use tollgate_openai::{Endpoint, Kept};

    use super::*;

    fn entry() -> Arc<Entry> {
        let body = br#"{"choices":[{"message":{"content":"x"}}]}"#;
        Arc::new(Entry {
            id: CacheEntryId([7; 16]),
            model: "m".into(),
            tokens: None,
            expires: Duration::MAX,
            endpoint: Endpoint::Chat,
            answer: Kept::of_answer(Endpoint::Chat, body, "m", "x_svc", 1000)
                .expect("kept")
                .into(),
            events: [None, None],
        })
    }

    fn lead(flights: &Arc<Flights>, key: Key) -> Leader {
        match flights.join(key) {
            Joined::Leads(leader) => leader,
            Joined::Follows(_) => panic!("somebody leads already"),
        }
    }

    fn follow(flights: &Arc<Flights>, key: Key) -> oneshot::Receiver<Turn> {
        match flights.join(key) {
            Joined::Follows(turn) => turn,
            Joined::Leads(_) => panic!("nobody leads"),
        }
    }

    fn is_over(flights: &Arc<Flights>) -> bool {
        flights
            .shards
            .iter()
            .all(|shard| shard.table.lock().expect("no panic").is_empty())
    }

    #[test]
    fn whoever_leads_after_an_answer_has_come_can_see_that_it_has() {
        let flights = Arc::new(Flights::default());
        let key = Key([1; 32]);
        let before = flights.brought(&key);
        drop(lead(&flights, key));
        assert_eq!(flights.brought(&key), before, "nothing was brought");
        lead(&flights, key).complete(&entry());
        let _leader = lead(&flights, key);
        assert_ne!(flights.brought(&key), before);
    }

    #[test]
    fn all_who_wait_are_given_the_answer_and_others_start_anew() {
        let flights = Arc::new(Flights::default());
        let (one, other) = (Key([1; 32]), Key([2; 32]));
        let leader = lead(&flights, one);
        let _other = lead(&flights, other);
        let mut waiting: Vec<_> = (0..100).map(|_| follow(&flights, one)).collect();
        assert_eq!(flights.waiting(), 100);
        leader.complete(&entry());
        for turn in &mut waiting {
            assert!(matches!(turn.try_recv(), Ok(Turn::Answer(_))));
        }
        let _again = lead(&flights, one);
    }

    #[test]
    fn a_lead_that_brings_nothing_goes_to_the_next_who_still_waits_and_to_nobody_else() {
        let flights = Arc::new(Flights::default());
        let key = Key([1; 32]);
        let leader = lead(&flights, key);
        let gone = follow(&flights, key);
        let mut first = follow(&flights, key);
        let mut second = follow(&flights, key);
        drop(gone);
        drop(leader);
        let Ok(Turn::Lead(leader)) = first.try_recv() else {
            panic!("the first who waits leads")
        };
        assert!(second.try_recv().is_err(), "the other waits on");
        // One who leaves with the lead in its hands, unread.
        let third = follow(&flights, key);
        drop(leader);
        drop(third);
        let Ok(Turn::Lead(leader)) = second.try_recv() else {
            panic!("the lead goes on")
        };
        drop(leader);
        assert!(is_over(&flights));
    }

    #[test]
    fn a_lead_that_its_heir_never_picks_up_goes_on() {
        let flights = Arc::new(Flights::default());
        let key = Key([1; 32]);
        let leader = lead(&flights, key);
        let (first, mut second) = (follow(&flights, key), follow(&flights, key));
        drop(leader);
        // The message is there, and its reader leaves without a look at it.
        drop(first);
        assert!(matches!(second.try_recv(), Ok(Turn::Lead(_))));
    }

    #[test]
    fn who_gives_up_leaves_nothing_behind() {
        let flights = Arc::new(Flights::default());
        let key = Key([1; 32]);
        let leader = lead(&flights, key);
        for _ in 0..10_000 {
            drop(follow(&flights, key));
        }
        assert_eq!(flights.waiting(), 0);
        let places = flights.table(&key)[&key].capacity();
        assert!(places < 64, "{places} places are kept");
        drop(leader);
        assert!(is_over(&flights));
    }

    #[test]
    fn across_threads_nobody_is_left_waiting_and_one_leads_at_a_time() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        const THREADS: usize = 4;
        let flights = Arc::new(Flights::default());
        let (leading, served) = (AtomicUsize::new(0), AtomicUsize::new(0));
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (flights, leading, served) = (&flights, &leading, &served);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread()
                        .build()
                        .expect("a runtime");
                    runtime.block_on(async {
                        for round in 0..500 {
                            let key = Key([u8::try_from(round % 3).expect("small"); 32]);
                            let leader = match flights.join(key) {
                                Joined::Leads(leader) => Some(leader),
                                // Some leave before their turn comes.
                                Joined::Follows(_) if round % 7 == 0 => continue,
                                Joined::Follows(turn) => match turn.await.expect("a turn comes") {
                                    Turn::Lead(leader) => Some(leader),
                                    Turn::Answer(_) => {
                                        served.fetch_add(1, Ordering::Relaxed);
                                        None
                                    }
                                },
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
        assert!(is_over(&flights));
    }
}
