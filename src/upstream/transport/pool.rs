//! Connection pool of one worker: idle connections to the providers and other upstreams.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash};
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tollgate_money::IdHasher;

use super::h1::Connection;

/// Idle time after which a provider or a middlebox may have dropped the connection.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// A stale pooled connection reports its close within this time after the write of a request. A connection with a later break was not
/// stale: the request may be under way.
pub(super) const STALE_DETECTED_WITHIN: Duration = Duration::from_secs(1);

type Plain = Connection<TcpStream>;

/// Idle connections by provider and address (or by another key), the most recently used last.
///
/// The keys are addresses of the settings' providers, not of clients. Only one thread uses a pool, so the lock is never contended.
pub(super) struct Pool<C = Plain, K = (usize, SocketAddr)> {
    state: Mutex<PoolState<C, K>>,
    idle_time_max: Duration,
}

struct PoolState<C, K> {
    idle: HashMap<K, Vec<Idle<C>>, BuildHasherDefault<IdHasher>>,
    /// Time of the last sweep of every address: no call takes connections to the old address of a moved provider.
    swept_at: Duration,
}

struct Idle<C> {
    connection: C,
    since: Duration,
}

impl<C> Default for Pool<C> {
    fn default() -> Pool<C> {
        Pool::with_idle_time(IDLE_MAX)
    }
}

impl<C, K> Pool<C, K> {
    /// A pool that closes connections after this idle time.
    pub(super) fn with_idle_time(idle_time_max: Duration) -> Pool<C, K> {
        Pool {
            state: Mutex::new(PoolState {
                idle: HashMap::default(),
                swept_at: Duration::ZERO,
            }),
            idle_time_max,
        }
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin, K: Eq + Hash> Pool<Connection<S>, K> {
    /// Takes an idle connection that has not been closed, as far as can be known.
    pub(super) fn take(&self, key: K, now: Duration) -> Option<Connection<S>> {
        let mut state = self.state.lock().expect("no panic under this lock");
        let streams = state.idle.get_mut(&key)?;
        while let Some(mut one) = streams.pop() {
            if now.saturating_sub(one.since) > self.idle_time_max {
                // The connections below are older still.
                streams.clear();
                return None;
            }
            if one.connection.is_reusable() {
                return Some(one.connection);
            }
        }
        None
    }
}

impl<C, K: Eq + Hash> Pool<C, K> {
    /// Keeps a connection for the next call.
    pub(super) fn put(&self, key: K, connection: C, now: Duration, idle_max: usize) {
        let mut state = self.state.lock().expect("no panic under this lock");
        if now.saturating_sub(state.swept_at) > self.idle_time_max {
            state.sweep(now, self.idle_time_max);
        }
        if idle_max == 0 {
            return;
        }
        let streams = state.idle.entry(key).or_default();
        if streams.len() >= idle_max {
            streams.remove(0);
        }
        streams.push(Idle {
            connection,
            since: now,
        });
    }
}

impl<C, K> PoolState<C, K> {
    /// Closes connections that have been idle for too long, at every address.
    #[cold]
    fn sweep(&mut self, now: Duration, idle_time_max: Duration) {
        self.swept_at = now;
        self.idle.retain(|_, streams| {
            streams.retain(|one| now.saturating_sub(one.since) <= idle_time_max);
            !streams.is_empty()
        });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_to_an_unused_address_are_closed_after_the_idle_time() {
        let key = |port| (0, SocketAddr::from(([127, 0, 0, 1], port)));
        let pool = Pool::<&str>::default();
        let kept = |port| {
            let state = pool.state.lock().expect("no panic under this lock");
            let streams = state.idle.get(&key(port));
            streams.map(|all| all.iter().map(|one| one.connection).collect::<Vec<_>>())
        };
        let secs = Duration::from_secs;
        pool.put(key(1), "left", secs(1), 2);
        pool.put(key(2), "old", secs(2), 2);
        pool.put(key(2), "young", secs(30), 2);
        assert_eq!(kept(1), Some(vec!["left"]));
        pool.put(key(2), "new", secs(63), 3);
        assert_eq!(kept(1), None, "with its entry");
        assert_eq!(kept(2), Some(vec!["young", "new"]));
        pool.put(key(2), "newer", secs(64), 2);
        assert_eq!(kept(2), Some(vec!["new", "newer"]), "the oldest is evicted");
        pool.put(key(3), "none", secs(64), 0);
        assert_eq!(kept(3), None);
    }
}
