//! Idle connections to the providers, for one worker.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Mutex;
use std::time::Duration;

use tokio::net::TcpStream;

use super::h1::Connection;

/// After this long a provider or something on the way may have forgotten the connection.
const IDLE_MAX: Duration = Duration::from_secs(60);

type Plain = Connection<TcpStream>;

/// Idle connections by provider and address, the most recently used last.
///
/// Only one thread uses a pool, so its lock is never waited for.
#[derive(Default)]
pub(super) struct Pool {
    idle: Mutex<HashMap<(usize, SocketAddr), Vec<Idle>>>,
}

struct Idle {
    connection: Plain,
    since: Duration,
}

impl Pool {
    /// A connection that was alive a moment ago.
    pub(super) fn take(&self, key: (usize, SocketAddr), now: Duration) -> Option<Plain> {
        let mut idle = self.idle.lock().expect("no panic under this lock");
        let streams = idle.get_mut(&key)?;
        while let Some(mut one) = streams.pop() {
            if now.saturating_sub(one.since) > IDLE_MAX {
                // Those below it are older still.
                streams.clear();
                return None;
            }
            if one.connection.is_quiet() {
                return Some(one.connection);
            }
        }
        None
    }

    /// Keeps a connection for the next call.
    pub(super) fn put(
        &self,
        key: (usize, SocketAddr),
        connection: Plain,
        now: Duration,
        idle_max: usize,
    ) {
        let mut idle = self.idle.lock().expect("no panic under this lock");
        let streams = idle.entry(key).or_default();
        if streams
            .first()
            .is_some_and(|oldest| now.saturating_sub(oldest.since) > IDLE_MAX)
        {
            streams.retain(|one| now.saturating_sub(one.since) <= IDLE_MAX);
        }
        if streams.len() >= idle_max {
            if idle_max == 0 {
                return;
            }
            streams.remove(0);
        }
        streams.push(Idle {
            connection,
            since: now,
        });
    }
}
