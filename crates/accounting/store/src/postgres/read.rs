//! The connection pool for reads.

use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::Clock;

use crate::engine::{Reading as _, RowError, Sql};
use crate::error::ReadError;
use crate::reader::{Connections, View};
use tollgate_postgres::{Connection, Target, WAIT};

/// Connections kept for the next reader.
const IDLE_MAX: usize = 8;

/// Maximum idle time of a reused connection. After this time the other end may be gone without a sign: a firewall forgets connections,
/// and an address moves to another server.
const REUSE: Duration = Duration::from_mins(1);

thread_local! {
    /// The time limit of each wait for the server in reads of this thread, if the thread has a separate limit.
    static LIMIT: Cell<Option<Duration>> = const { Cell::new(None) };
}

/// Sets the time limit of each wait for the server in reads of this thread.
pub(super) fn limit_reads_of_this_thread(limit: Duration) {
    LIMIT.set(Some(limit));
}

/// Begins a read of several statements that see one state of the database.
const BEGIN: &str = "BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY";

/// A connection pool: opens connections on demand, and keeps a few.
pub(super) struct Pool {
    target: Arc<Target>,
    /// In order of release; the connection released last is the last.
    idle: Mutex<Vec<Idle>>,
    /// Whether the pool has made a connection.
    is_connected: AtomicBool,
    clock: Clock,
}

struct Idle {
    connection: Connection,
    since: Duration,
}

impl Pool {
    pub(super) fn new(target: Arc<Target>) -> Pool {
        Pool {
            target,
            idle: Mutex::default(),
            is_connected: AtomicBool::new(false),
            clock: clock(),
        }
    }

    /// The connection released last, unless the connection has been idle for too long: the remaining connections have then been idle for
    /// longer.
    fn pop(&self) -> Option<Connection> {
        let last = self.idle().pop()?;
        if self.clock.elapsed().saturating_sub(last.since) > REUSE {
            self.drop_idle();
            return None;
        }
        Some(last.connection)
    }

    fn drop_idle(&self) {
        // Closed without the lock.
        let idle = std::mem::take(&mut *self.idle());
        drop(idle);
    }

    fn idle(&self) -> MutexGuard<'_, Vec<Idle>> {
        self.idle.lock()
    }

    /// Takes an idle connection, or opens one.
    fn acquire(&self, what: &'static str) -> Result<Connection, ReadError> {
        // The server may have closed the idle connections.
        let reused = std::iter::from_fn(|| self.pop()).find(Connection::is_reusable);
        let connection = match reused {
            Some(connection) => Ok(connection),
            // The first login belongs to a start or a command, which tries once: the login has the time limit of an opening.
            None if !self.is_connected.load(Ordering::Relaxed) => Connection::open(&self.target),
            None => Connection::reopen(&self.target),
        };
        if connection.is_ok() {
            self.is_connected.store(true, Ordering::Relaxed);
        }
        let limited = connection.and_then(|connection| {
            if let Some(limit) = LIMIT.get() {
                connection.limit(limit)?;
            }
            Ok(connection)
        });
        limited.map_err(|error| RowError::from(error).reading(what))
    }

    /// Keeps a connection for the next read.
    fn release(&self, connection: Connection) {
        if connection.is_lost() {
            // The cause of the loss has also cut off the idle connections. Each of these would need its time limit to report the loss.
            return self.drop_idle();
        }
        if LIMIT.get().is_some() && connection.limit(WAIT).is_err() {
            return;
        }
        let since = self.clock.elapsed();
        let mut idle = self.idle();
        if idle.len() < IDLE_MAX && connection.is_reusable() {
            idle.push(Idle { connection, since });
        }
    }

    fn view(&self, connection: Connection) -> PoolView<'_> {
        PoolView {
            pool: self,
            connection: Some(connection),
            in_transaction: false,
        }
    }
}

/// The clock of a pool. Under a simulation no connection is idle for too long: the system's clock would decide differently in each run.
fn clock() -> Clock {
    #[cfg(feature = "simulation")]
    if tollgate_simulation::Actor::current().is_some() {
        return Clock::manual(tollgate_clock::Timestamp::UNIX_EPOCH).0;
    }
    Clock::system()
}

impl Connections for Pool {
    fn replace_password(&self, password: Option<&[u8]>) {
        self.target.replace_password(password);
    }

    fn connection(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError> {
        Ok(Box::new(self.view(self.acquire(what)?)))
    }

    fn snapshot(&self, what: &'static str) -> Result<Box<dyn View + '_>, ReadError> {
        let connection = self.acquire(what)?;
        let begun = connection.run(BEGIN, &[]);
        let mut view = self.view(connection);
        begun.map_err(|error| RowError::from(error).reading(what))?;
        view.in_transaction = true;
        Ok(Box::new(view))
    }
}

/// A connection of the pool during a read.
struct PoolView<'p> {
    pool: &'p Pool,
    /// Present until the drop.
    connection: Option<Connection>,
    in_transaction: bool,
}

impl PoolView<'_> {
    fn release(&mut self) -> Result<(), RowError> {
        let Some(connection) = self.connection.take() else {
            return Ok(());
        };
        let ended = match self.in_transaction {
            true => connection.run("ROLLBACK", &[]).map(|_| ()),
            false => Ok(()),
        };
        // A lost connection, or a connection still in the transaction, is not kept.
        self.pool.release(connection);
        Ok(ended?)
    }
}

impl View for PoolView<'_> {
    fn sql(&self) -> &dyn Sql {
        self.connection.as_ref().expect("present until the drop")
    }

    fn end(mut self: Box<Self>) -> Result<(), RowError> {
        self.release()
    }
}

impl Drop for PoolView<'_> {
    fn drop(&mut self) {
        // After a panic the state of the connection is unknown; otherwise the results of the reads are known by now.
        if !std::thread::panicking() {
            let _ = self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use tollgate_clock::{ManualClock, Timestamp};
    use tollgate_testing::Postgres;

    use super::super::failure::PROFILE;
    use super::*;
    use crate::engine::{Select as _, values};
    use crate::postgres::DatabaseUrl;

    fn pool() -> (Pool, ManualClock) {
        let url = DatabaseUrl::parse(&Postgres::shared().database()).expect("an address");
        let mut pool = Pool::new(Arc::new(Target::new(url, None, &PROFILE).expect("no TLS")));
        let (clock, time) = Clock::manual(Timestamp::UNIX_EPOCH);
        pool.clock = clock;
        (pool, time)
    }

    fn acquire(pool: &Pool) -> (Connection, i64) {
        let connection = pool.acquire("a test").expect("it opens");
        let process = connection.number("SELECT pg_backend_pid()", values![]);
        (connection, process.expect("a read"))
    }

    #[test]
    fn a_connection_that_was_idle_for_more_than_a_minute_is_not_reused() {
        let (pool, time) = pool();
        let (first, second) = (acquire(&pool), acquire(&pool));
        pool.release(first.0);
        pool.release(second.0);
        time.advance(REUSE);
        let (connection, process) = acquire(&pool);
        assert_eq!(process, second.1);
        pool.release(connection);
        time.advance(REUSE + Duration::from_millis(1));
        let (_connection, process) = acquire(&pool);
        assert!(![first.1, second.1].contains(&process));
        assert_eq!(pool.idle().len(), 0, "the other one is closed too");
    }

    #[test]
    fn after_a_lost_connection_the_idle_ones_are_not_reused() {
        let (pool, _) = pool();
        let (idle, lost) = (acquire(&pool), acquire(&pool));
        pool.release(idle.0);
        let end = format!("SELECT pg_terminate_backend({}, 60000)", lost.1);
        assert_eq!(Postgres::shared().run("postgres", &end), "t");
        lost.0.run("SELECT 1", &[]).expect_err("it is lost");
        pool.release(lost.0);
        let (_connection, process) = acquire(&pool);
        assert_ne!(process, idle.1);
    }
}
