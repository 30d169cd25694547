//! Flights of a kind, and their leads.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tollgate_clock::RandomKeyHash;

/// Rules of a kind of flights.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Number of tables for the keys: threads seldom contend for a lock.
    pub shards: usize,
    /// The fate of followers whose leader is dropped without a value.
    pub abandoned: Abandoned,
}

/// The fate of followers whose leader is dropped without a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Abandoned {
    /// The oldest follower leads.
    PassLead,
    /// Every follower ends without a value.
    EndAll,
}

/// The flights under way, by key. A flight has a label `T` of its leader.
#[derive(Debug)]
pub struct SingleFlight<K: Clone + Eq + Hash, V, T = ()> {
    shards: Box<[Shard<K, V, T>]>,
    hash: RandomKeyHash,
    rules: Rules,
}

/// The flights of some of the keys.
#[derive(Debug)]
struct Shard<K: Clone + Eq + Hash, V, T> {
    table: Mutex<Table<K, V, T>>,
    /// Values of leaders so far. Grows before the flight leaves the table.
    generation: AtomicU64,
}

type Table<K, V, T> = HashMap<K, Flight<K, V, T>, RandomKeyHash>;

#[derive(Debug)]
struct Flight<K: Clone + Eq + Hash, V, T> {
    label: T,
    waiting: VecDeque<oneshot::Sender<Handover<K, V, T>>>,
}

/// A count of completed values: unequal generations mean a value in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Generation(u64);

/// The role of a caller.
#[derive(Debug)]
pub enum Joined<K: Clone + Eq + Hash, V, T = ()> {
    /// First of the key: does the work.
    Leads(Leader<K, V, T>),
    /// Another caller leads, with this label: waits for the value.
    Follows(Waiter<K, V, T>, T),
}

/// The message of a leader to a follower.
#[derive(Debug)]
pub enum Handover<K: Clone + Eq + Hash, V, T = ()> {
    /// The value.
    Value(V),
    /// The lead, after a leader without a value.
    Lead(Leader<K, V, T>),
}

/// The receiver of a follower.
pub type Waiter<K, V, T = ()> = oneshot::Receiver<Handover<K, V, T>>;

/// The lead of a key. A drop without [`Leader::complete`] abandons the flight.
#[derive(Debug)]
pub struct Leader<K: Clone + Eq + Hash, V, T = ()> {
    flights: Arc<SingleFlight<K, V, T>>,
    key: K,
    is_ended: bool,
}

/// Waits for the value of a flight; `None` after a leader without a value.
pub async fn value<K: Clone + Eq + Hash, V, T>(waiter: Waiter<K, V, T>) -> Option<V> {
    match waiter.await {
        Ok(Handover::Value(value)) => Some(value),
        Ok(Handover::Lead(_)) | Err(_) => None,
    }
}

impl<K: Clone + Eq + Hash, V, T> SingleFlight<K, V, T> {
    /// No flights.
    pub fn new(rules: Rules) -> SingleFlight<K, V, T> {
        let shard = |_| Shard {
            table: Mutex::default(),
            generation: AtomicU64::new(0),
        };
        SingleFlight {
            shards: (0..rules.shards.max(1)).map(shard).collect(),
            hash: RandomKeyHash::default(),
            rules,
        }
    }

    /// Read before a look-up of `key`: while the generation stays equal, no leader has completed a value since.
    pub fn generation(&self, key: &K) -> Generation {
        Generation(self.shard(key).generation.load(Acquire))
    }

    /// Whether a flight of the key is under way.
    pub fn has(&self, key: &K) -> bool {
        self.table(key).contains_key(key)
    }

    /// Followers of the key, recent cancellations included.
    pub fn waiting_for(&self, key: &K) -> usize {
        let table = self.table(key);
        table.get(key).map_or(0, |flight| flight.waiting.len())
    }

    /// Followers of all keys that wait now.
    pub fn waiting(&self) -> usize {
        let of = |shard: &Shard<K, V, T>| {
            let table = shard.table.lock();
            let waiting = table.values().flat_map(|flight| &flight.waiting);
            waiting.filter(|one| !one.is_closed()).count()
        };
        self.shards.iter().map(of).sum()
    }

    fn table(&self, key: &K) -> MutexGuard<'_, Table<K, V, T>> {
        // Every change is an insertion or a removal, so a panic elsewhere leaves nothing half done.
        self.shard(key).table.lock()
    }

    fn shard(&self, key: &K) -> &Shard<K, V, T> {
        let shards = self.shards.len() as u64;
        match shards {
            1 => &self.shards[0],
            _ => &self.shards[(self.hash.hash_one(key) % shards) as usize],
        }
    }
}

impl<K: Clone + Eq + Hash, V, T: Clone> SingleFlight<K, V, T> {
    /// Leads, or follows the leader of this key.
    pub fn join(self: &Arc<Self>, key: K, label: T) -> Joined<K, V, T> {
        let table = self.table(&key);
        self.join_in(table, &key, label)
    }

    /// [`join`](Self::join) with a bound: `None` where the caller would lead beyond `flights_max` of a table.
    pub fn join_within(
        self: &Arc<Self>,
        key: K,
        label: T,
        flights_max: usize,
    ) -> Option<Joined<K, V, T>> {
        let table = self.table(&key);
        let has_room = table.len() < flights_max || table.contains_key(&key);
        has_room.then(|| self.join_in(table, &key, label))
    }

    fn join_in(
        self: &Arc<Self>,
        mut table: MutexGuard<'_, Table<K, V, T>>,
        key: &K,
        label: T,
    ) -> Joined<K, V, T> {
        if let Some(flight) = table.get_mut(key) {
            return Joined::Follows(flight.follow(), flight.label.clone());
        }
        let flight = Flight {
            label,
            waiting: VecDeque::new(),
        };
        table.insert(key.clone(), flight);
        drop(table);
        Joined::Leads(Leader {
            flights: self.clone(),
            key: key.clone(),
            is_ended: false,
        })
    }
}

impl<K: Clone + Eq + Hash, V, T> Flight<K, V, T> {
    fn follow(&mut self) -> Waiter<K, V, T> {
        let (sender, receiver) = oneshot::channel();
        // A follower that gave up leaves a closed channel; a hot key must not collect closed channels.
        if self.waiting.len() == self.waiting.capacity() {
            self.waiting.retain(|one| !one.is_closed());
        }
        self.waiting.push_back(sender);
        receiver
    }
}

impl<K: Clone + Eq + Hash, V, T> Leader<K, V, T> {
    /// A waiter for the flight, for a caller whose task does the work.
    pub fn follow(&self) -> Waiter<K, V, T> {
        let mut table = self.flights.table(&self.key);
        match table.get_mut(&self.key) {
            Some(flight) => flight.follow(),
            // A flight is in the table while the leader lives.
            None => oneshot::channel().1,
        }
    }

    /// Ends the flight and sends the value to every follower.
    pub fn complete(mut self, value: V)
    where
        V: Clone,
    {
        self.is_ended = true;
        let ended = {
            let mut table = self.flights.table(&self.key);
            // No other caller can lead before the lock is released, and the next leader sees the new generation.
            let generation = &self.flights.shard(&self.key).generation;
            generation.fetch_add(1, Release);
            table.remove(&self.key)
        };
        for one in ended.into_iter().flat_map(|flight| flight.waiting) {
            // A cancelled follower needs no value.
            let _ = one.send(Handover::Value(value.clone()));
        }
    }

    fn end_all(&self) {
        let ended = self.flights.table(&self.key).remove(&self.key);
        // Outside the lock: this wakes the followers.
        drop(ended);
    }

    fn pass_lead(&self) {
        loop {
            let next = {
                let mut table = self.flights.table(&self.key);
                let flight = table.get_mut(&self.key);
                let next = flight.and_then(|flight| flight.waiting.pop_front());
                if next.is_none() {
                    table.remove(&self.key);
                }
                next
            };
            let Some(next) = next else { return };
            let leader = Leader {
                flights: self.flights.clone(),
                key: self.key.clone(),
                is_ended: false,
            };
            match next.send(Handover::Lead(leader)) {
                Ok(()) => return,
                // A cancelled follower returns the lead. This loop passes the lead to the next follower, not the drop of the lead.
                Err(Handover::Lead(mut unused)) => unused.is_ended = true,
                Err(Handover::Value(_)) => return,
            }
        }
    }
}

impl<K: Clone + Eq + Hash, V, T> Drop for Leader<K, V, T> {
    fn drop(&mut self) {
        if self.is_ended {
            return;
        }
        match self.flights.rules.abandoned {
            Abandoned::EndAll => self.end_all(),
            Abandoned::PassLead => self.pass_lead(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type TestFlight = Arc<SingleFlight<u8, u32>>;

    fn flights(abandoned: Abandoned) -> TestFlight {
        Arc::new(SingleFlight::new(Rules {
            shards: 4,
            abandoned,
        }))
    }

    fn lead(flights: &TestFlight, key: u8) -> Leader<u8, u32> {
        match flights.join(key, ()) {
            Joined::Leads(leader) => leader,
            joined => panic!("another caller leads: {joined:?}"),
        }
    }

    fn follow(flights: &TestFlight, key: u8) -> Waiter<u8, u32> {
        match flights.join(key, ()) {
            Joined::Follows(waiter, ()) => waiter,
            joined => panic!("no caller leads: {joined:?}"),
        }
    }

    fn is_empty(flights: &TestFlight) -> bool {
        let mut shards = flights.shards.iter();
        shards.all(|shard| shard.table.lock().is_empty())
    }

    #[test]
    fn a_new_leader_sees_that_a_value_was_completed() {
        let flights = flights(Abandoned::PassLead);
        let before = flights.generation(&1);
        drop(lead(&flights, 1));
        assert_eq!(flights.generation(&1), before, "no value was completed");
        lead(&flights, 1).complete(7);
        let _leader = lead(&flights, 1);
        assert_ne!(flights.generation(&1), before);
    }

    #[test]
    fn all_followers_receive_the_value_and_the_next_caller_leads() {
        for abandoned in [Abandoned::PassLead, Abandoned::EndAll] {
            let flights = flights(abandoned);
            let leader = lead(&flights, 1);
            let _other = lead(&flights, 2);
            let mut waiting: Vec<_> = (0..100).map(|_| follow(&flights, 1)).collect();
            waiting.push(leader.follow());
            assert_eq!((flights.waiting(), flights.waiting_for(&1)), (101, 101));
            leader.complete(7);
            assert!(!flights.has(&1));
            for message in &mut waiting {
                assert!(matches!(message.try_recv(), Ok(Handover::Value(7))));
            }
            let _again = lead(&flights, 1);
        }
    }

    #[test]
    fn a_leader_that_fails_ends_every_wait() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.build().expect("a runtime");
        runtime.block_on(async {
            let flights = flights(Abandoned::EndAll);
            let leader = lead(&flights, 1);
            let waiting = [follow(&flights, 1), leader.follow(), follow(&flights, 1)];
            let failed = tokio::spawn(async move {
                let _leader = leader;
                panic!("a bug")
            });
            for waiter in waiting {
                assert_eq!(value(waiter).await, None);
            }
            assert!(failed.await.is_err() && is_empty(&flights));
            let again = lead(&flights, 1);
            let waiter = again.follow();
            again.complete(7);
            assert_eq!(value(waiter).await, Some(7));
        });
    }

    #[test]
    fn a_follower_learns_the_label_of_the_leader() {
        let flights = Arc::new(SingleFlight::<u8, u32, &str>::new(Rules {
            shards: 1,
            abandoned: Abandoned::EndAll,
        }));
        let leader = flights.join(1, "first");
        assert!(matches!(leader, Joined::Leads(_)));
        let follower = flights.join(1, "second");
        assert!(matches!(follower, Joined::Follows(_, "first")));
    }

    #[test]
    fn flights_beyond_the_bound_are_refused() {
        let flights = Arc::new(SingleFlight::<u8, u32>::new(Rules {
            shards: 1,
            abandoned: Abandoned::EndAll,
        }));
        let (one, _two) = (lead(&flights, 1), lead(&flights, 2));
        let join = |key| flights.join_within(key, (), 2);
        assert!(join(3).is_none());
        assert!(matches!(join(1), Some(Joined::Follows(..))));
        one.complete(7);
        assert!(matches!(join(3), Some(Joined::Leads(_))));
    }

    #[test]
    fn a_lead_without_a_value_goes_to_the_longest_waiting_follower_only() {
        let flights = flights(Abandoned::PassLead);
        let leader = lead(&flights, 1);
        let gone = follow(&flights, 1);
        let mut first = follow(&flights, 1);
        let mut second = follow(&flights, 1);
        drop(gone);
        drop(leader);
        let Ok(Handover::Lead(leader)) = first.try_recv() else {
            panic!("the longest waiting follower leads")
        };
        assert!(second.try_recv().is_err(), "the other keeps waiting");
        // A follower ends with the lead unread in the channel.
        let third = follow(&flights, 1);
        drop(leader);
        drop(third);
        let Ok(Handover::Lead(leader)) = second.try_recv() else {
            panic!("the lead is passed on")
        };
        drop(leader);
        assert!(is_empty(&flights));
    }

    #[test]
    fn a_lead_that_its_follower_never_receives_is_passed_on() {
        let flights = flights(Abandoned::PassLead);
        let leader = lead(&flights, 1);
        let (first, mut second) = (follow(&flights, 1), follow(&flights, 1));
        drop(leader);
        // The message is in the channel, and the receiver is dropped unread.
        drop(first);
        assert!(matches!(second.try_recv(), Ok(Handover::Lead(_))));
    }

    #[test]
    fn a_follower_that_gives_up_leaves_nothing_behind() {
        let flights = flights(Abandoned::PassLead);
        let leader = lead(&flights, 1);
        for _ in 0..10_000 {
            drop(follow(&flights, 1));
        }
        assert_eq!(flights.waiting(), 0);
        let places = flights.table(&1)[&1].waiting.capacity();
        assert!(places < 64, "{places} places are kept");
        drop(leader);
        assert!(is_empty(&flights));
    }

    #[test]
    fn across_threads_no_follower_waits_without_a_leader_and_one_leads_at_a_time() {
        use std::sync::atomic::{AtomicUsize, Ordering};
        const THREADS: usize = 4;
        let flights = flights(Abandoned::PassLead);
        let leading = [0; 3].map(AtomicUsize::new);
        std::thread::scope(|scope| {
            for thread in 0..THREADS {
                let (flights, leading) = (&flights, &leading);
                scope.spawn(move || {
                    let runtime = tokio::runtime::Builder::new_current_thread();
                    let runtime = { runtime }.build().expect("a runtime");
                    runtime.block_on(async {
                        for round in 0..500_usize {
                            let key = u8::try_from(round % 3).expect("small");
                            let leader = match flights.join(key, ()) {
                                Joined::Leads(leader) => leader,
                                // Some give up at once.
                                Joined::Follows(..) if round % 7 == 0 => continue,
                                Joined::Follows(message, ()) => {
                                    match message.await.expect("a message comes") {
                                        Handover::Lead(leader) => leader,
                                        Handover::Value(_) => continue,
                                    }
                                }
                            };
                            let leads = &leading[usize::from(key)];
                            assert_eq!(leads.fetch_add(1, Ordering::SeqCst), 0);
                            tokio::task::yield_now().await;
                            leads.fetch_sub(1, Ordering::SeqCst);
                            match (round + thread) % 3 {
                                0 => drop(leader),
                                _ => leader.complete(7),
                            }
                        }
                    });
                });
            }
        });
        assert!(is_empty(&flights));
    }
}
