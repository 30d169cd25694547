//! Loads of values that are kept in memory: single flight per key, with limits on concurrent reads and on time.

use std::hash::Hash;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Semaphore;
use tollgate_flight::{Abandoned, Joined, Rules, SingleFlight, value};

use crate::error::ReadError;

/// Concurrent reads for loads. Reads of pages have another limit, since page reads may be long.
const READS_MAX: usize = 8;
static READERS: Semaphore = Semaphore::const_new(READS_MAX);

/// Maximum number of loads of one kind that run or wait for a read. Further loads are refused: the earlier loads take some tenths of a
/// second, and a client that presents unknown keys must not delay other clients for longer.
const UNDER_WAY_MAX: usize = 1024;

/// How long a request waits for a load, and for the loads before the load.
const WAIT_MAX: Duration = Duration::from_secs(5);

/// Why a value was not loaded. Every reason is temporary: a 503 with `Retry-After`.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LoadError {
    /// The database has not answered in time, and the load goes on without its caller; or the load has failed.
    #[error("the database has not answered within {} s; try again", WAIT_MAX.as_secs())]
    TimedOut,
    /// The maximum number of loads is reached.
    #[error("too much is being loaded from the database; try again")]
    Overloaded,
    /// The value has changed during every read.
    #[error("the value changed while it was loaded; try again")]
    Changed,
    /// The database could not be read.
    #[error("could not read from the database")]
    Read(#[source] Arc<ReadError>),
}

impl From<ReadError> for LoadError {
    fn from(error: ReadError) -> LoadError {
        LoadError::Read(Arc::new(error))
    }
}

/// The loads of one kind that are under way, by key.
#[derive(Debug)]
pub struct Loads<K: Copy + Eq + Hash, V> {
    flights: Arc<LoadFlight<K, V>>,
}

type LoadFlight<K, V> = SingleFlight<K, Result<V, LoadError>>;

/// A panic in a read ends its load for all waiting callers.
const FLIGHTS: Rules = Rules {
    shards: 1,
    abandoned: Abandoned::EndAll,
};

impl<K: Copy + Eq + Hash, V> Default for Loads<K, V> {
    fn default() -> Loads<K, V> {
        Loads {
            flights: Arc::new(SingleFlight::new(FLIGHTS)),
        }
    }
}

impl<K, V> Loads<K, V>
where
    K: Copy + Eq + Hash + Send + 'static,
    V: Clone + Send + 'static,
{
    /// Runs `read` on a blocking thread and waits for the result, or joins the load of the key that is under way (single flight). A load
    /// whose callers are dropped continues, and its value is in memory afterwards.
    ///
    /// # Errors
    ///
    /// A database that fails, or does not answer within five seconds; too many loads under way.
    pub async fn load(
        &self,
        key: K,
        read: impl FnOnce() -> Result<V, LoadError> + Send + 'static,
    ) -> Result<V, LoadError> {
        let joined = self.flights.join_within(key, (), UNDER_WAY_MAX);
        let loaded = match joined.ok_or(LoadError::Overloaded)? {
            Joined::Leads(leader) => {
                let loaded = leader.follow();
                tokio::spawn(async move {
                    let permit = READERS.acquire().await;
                    let ended = tokio::task::spawn_blocking(move || {
                        let _permit = permit;
                        leader.complete(read());
                    });
                    // A panic has ended the flight without a result.
                    let _ = ended.await;
                });
                loaded
            }
            Joined::Follows(loaded, ()) => loaded,
        };
        match tokio::time::timeout(WAIT_MAX, value(loaded)).await {
            Ok(Some(result)) => result,
            Ok(None) | Err(_) => Err(LoadError::TimedOut),
        }
    }

    /// Whether a load of the key is under way.
    pub fn has(&self, key: &K) -> bool {
        self.flights.has(key)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
    use std::sync::mpsc::channel;

    use parking_lot::Mutex;
    use tokio::task::JoinSet;

    use super::*;

    fn run(test: impl Future<Output = ()>) {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().build().expect("a runtime");
        runtime.block_on(test);
    }

    #[test]
    fn all_that_ask_for_one_key_share_one_read_and_an_ended_one_is_not_repeated() {
        run(async {
            let loads = Arc::<Loads<u8, usize>>::default();
            let reads = Arc::<AtomicUsize>::default();
            let (open, gate) = channel();
            let gate = Arc::new(Mutex::new(gate));
            let mut asking = JoinSet::new();
            for _ in 0..3 {
                let (loads, reads, gate) = (loads.clone(), reads.clone(), gate.clone());
                asking.spawn(async move {
                    let read = move || {
                        let gate = gate.lock();
                        gate.recv().expect("the gate opens");
                        Ok(reads.fetch_add(1, SeqCst))
                    };
                    loads.load(1, read).await
                });
            }
            while loads.flights.waiting_for(&1) < 3 {
                tokio::task::yield_now().await;
            }
            open.send(()).expect("the read waits");
            while let Some(asked) = asking.join_next().await {
                let value = asked.expect("no panic").expect("it is loaded");
                assert_eq!(value, 0, "the first read has answered all");
            }
            open.send(()).expect("the gate is there");
            let read = move || {
                gate.lock().recv().expect("it is open");
                Ok(5)
            };
            let again = loads.load(1, read).await;
            assert_eq!(again.expect("it is loaded"), 5, "nothing is under way");
        });
    }

    #[test]
    fn loads_beyond_the_bound_of_reads_wait_for_one_before_them() {
        run(async {
            let loads = Arc::<Loads<usize, usize>>::default();
            let gate = Arc::new((Mutex::new((0, false)), parking_lot::Condvar::new()));
            let mut asking = JoinSet::new();
            for key in 0..READS_MAX + 4 {
                let (loads, gate) = (loads.clone(), gate.clone());
                asking.spawn(async move {
                    let read = move || {
                        let (state, changed) = &*gate;
                        let mut state = state.lock();
                        state.0 += 1;
                        changed.wait_while(&mut state, |state| !state.1);
                        state.0 -= 1;
                        Ok(key)
                    };
                    (key, loads.load(key, read).await)
                });
            }
            let reading = || gate.0.lock().0;
            while !loads.has(&(READS_MAX + 3)) || reading() < READS_MAX {
                tokio::task::yield_now().await;
            }
            assert_eq!(reading(), READS_MAX, "the others have not begun");
            gate.0.lock().1 = true;
            gate.1.notify_all();
            while let Some(asked) = asking.join_next().await {
                let (key, loaded) = asked.expect("no panic");
                assert_eq!(loaded.expect("it is loaded"), key);
            }
        });
    }

    #[test]
    fn loads_beyond_those_that_may_be_under_way_are_refused() {
        run(async {
            let loads = Loads::<usize, ()>::default();
            let begin = |key| loads.flights.join(key, ());
            let leaders: Vec<_> = (0..UNDER_WAY_MAX).map(begin).collect();
            assert!(leaders.iter().all(|one| matches!(one, Joined::Leads(_))));
            let refused = loads.load(UNDER_WAY_MAX, || Ok(())).await;
            assert!(matches!(refused, Err(LoadError::Overloaded)), "{refused:?}");
            assert!(matches!(begin(0), Joined::Follows(..)), "it has begun");
        });
    }

    #[test]
    fn a_read_that_panics_ends_the_wait_and_the_next_one_is_made() {
        run(async {
            let loads = Arc::<Loads<u8, u8>>::default();
            let broken = loads.load(1, || panic!("a broken invariant")).await;
            assert!(broken.is_err(), "{broken:?}");
            assert_eq!(loads.load(1, || Ok(3)).await.expect("it is loaded"), 3);
        });
    }
}
