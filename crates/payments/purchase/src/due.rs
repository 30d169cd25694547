//! The worker of due work: reconciles stored rows at their time, with bounded concurrency and exponential backoff.
//!
//! Top-ups, mandates, signed transfers and owed credits each have a worker. A row under way or in backoff delays no other row: the read of
//! due rows is widened by the number of such rows. A backoff belongs to the failed version of the row: a newer version starts at its stored
//! time.

use std::collections::HashMap;
use std::error::Error as _;
use std::fmt;
use std::hash::Hash;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use async_trait::async_trait;
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;
use tokio::task::{JoinError, JoinSet};
use tollgate_clock::{Backoff, Clock, Deadline, Jitter, Timestamp};
use tollgate_store::ReadError;

use crate::tasks::PurchaseTasks;

/// Interval at which due rows are read from the store, unless the worker is woken.
const POLL_INTERVAL: Duration = Duration::from_secs(1);

/// Rows reconciled concurrently.
const CONCURRENCY_MAX: usize = 8;

/// The wait after a failed reconciliation without a write. A reconciliation with a write is due at the time stored in the row.
const RETRY: Backoff = Backoff {
    base: Duration::from_secs(2),
    max: Duration::from_mins(1),
    jitter: Jitter::Shorter(8),
};

/// Rows of one kind, each reconciled at a stored time or after a notification.
#[async_trait]
pub trait DueWork: Send + Sync + 'static {
    /// Identity of a row.
    type Key: Clone + Eq + Hash + Send + Sync + 'static;

    /// The kind of rows, for the log.
    const NAME: &'static str;

    /// At most `limit` rows that are due, the longest waiting first.
    ///
    /// # Errors
    ///
    /// The store could not be read; the worker reads it again later.
    async fn due(&self, now: Timestamp, limit: usize) -> Result<Vec<Due<Self::Key>>, ReadError>;

    /// Reconciles one row; `false` after a failure, which is retried.
    async fn reconcile(&self, key: Self::Key) -> bool;
}

/// A due row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Due<K> {
    /// The row.
    pub key: K,
    /// Version of the row. For rows without a version: a value that grows with each write.
    pub version: i64,
    /// Stored notifications about the row. A notification leaves the version unchanged but ends the backoff. 0 for rows without
    /// notifications.
    pub notifications: i64,
    /// The stored time of the next attempt; in the future for a row due by a notification.
    pub next_attempt_at: Option<Timestamp>,
}

/// Reconciles due rows of one kind.
pub struct DueWorker<W: DueWork> {
    work: Arc<W>,
    clock: Clock,
    tasks: PurchaseTasks,
    held: Arc<Mutex<Held<W::Key>>>,
    wake: Notify,
    /// Whether the last read of due rows failed, for one log line per change.
    is_read_failing: AtomicBool,
}

/// Rows named as due by the store but not started.
type Held<K> = HashMap<K, Hold>;

#[derive(Clone, Copy)]
struct Hold {
    version: i64,
    notifications: i64,
    failures: u32,
    /// The end of the backoff; `None` while the row is under way.
    until: Option<Deadline>,
}

impl<W: DueWork> DueWorker<W> {
    /// A worker; idle until [`DueWorker::run`].
    pub fn new(work: Arc<W>, clock: Clock, tasks: PurchaseTasks) -> DueWorker<W> {
        DueWorker {
            work,
            clock,
            tasks,
            held: Arc::default(),
            wake: Notify::new(),
            is_read_failing: AtomicBool::new(false),
        }
    }

    /// Leaves a row alone for the first wait of its backoff: another caller's attempt has just failed.
    pub fn hold_back(&self, key: W::Key) {
        let until = Deadline::after(self.clock.elapsed(), RETRY.derived(0, &key));
        self.held().entry(key).or_insert(Hold {
            version: i64::MAX,
            notifications: i64::MAX,
            failures: 0,
            until: Some(until),
        });
    }

    /// Reads due rows now, after a notification.
    pub fn wake(&self) {
        self.wake.notify_one();
    }

    /// Reconciles due rows until the future is dropped or the tasks are closed. Unfinished work of an earlier run is due at once.
    pub async fn run(&self) {
        let mut running = JoinSet::new();
        loop {
            self.start_due(&mut running).await;
            tokio::select! {
                () = self.wake.notified() => {}
                () = tokio::time::sleep(POLL_INTERVAL) => {}
                // A slot is free: the next row may start before the others end. After a failure the worker waits first, since the provider
                // may be down for every row.
                Some(ended) = running.join_next() => {
                    if !matches!(ended, Ok(true)) {
                        tokio::time::sleep(POLL_INTERVAL).await;
                    }
                }
            }
        }
    }

    /// Reconciles due rows, up to the bound, and waits for the end; returns the number of rows.
    pub async fn run_once(&self) -> usize {
        let mut running = JoinSet::new();
        let count = self.start_due(&mut running).await;
        while running.join_next().await.is_some() {}
        count
    }

    /// Starts due rows while slots are free; returns the number started.
    async fn start_due(&self, running: &mut JoinSet<bool>) -> usize {
        // Held until the rows are started: a shutdown in between waits for them.
        let Some(_round) = self.tasks.background() else {
            return 0;
        };
        while running.try_join_next().is_some() {}
        let free = CONCURRENCY_MAX - running.len();
        if free == 0 {
            return 0;
        }
        let limit = free + self.held().len();
        let due = self.work.due(self.clock.now(), limit).await;
        let was_failing = self.is_read_failing.swap(due.is_err(), Ordering::Relaxed);
        let due = match due {
            Ok(due) => due,
            Err(error) => {
                if !was_failing {
                    let cause = error.source().map(ToString::to_string);
                    tracing::error!(rows = W::NAME, %error, cause, "reading due rows failed, trying again each second");
                }
                return 0;
            }
        };
        if was_failing {
            tracing::info!(rows = W::NAME, "reading due rows again");
        }
        let due: Vec<_> = due
            .into_iter()
            .filter(|due| self.may_start(due))
            .take(free)
            .collect();
        let count = due.len();
        for due in due {
            let under_way = UnderWay::start(self, &due);
            let (key, work) = (due.key, self.work.clone());
            // Not in the set alone: dropping the worker must not cut off a payment.
            let task = self.tasks.spawn(async move {
                let is_done = work.reconcile(key).await;
                under_way.end(is_done);
                is_done
            });
            running.spawn(async move {
                let ended = task.await;
                if ended.as_ref().is_err_and(JoinError::is_panic) {
                    tracing::error!(rows = W::NAME, "reconciling a row panicked, retrying");
                }
                ended.unwrap_or(false)
            });
        }
        count
    }

    fn may_start(&self, due: &Due<W::Key>) -> bool {
        let elapsed = self.clock.elapsed();
        match self.held().get(&due.key) {
            None => true,
            Some(Hold { until: None, .. }) => false,
            Some(hold) if due.notifications > hold.notifications => true,
            // The row was written since, by the failed attempt or by another call.
            Some(hold) if due.version > hold.version => {
                due.next_attempt_at.is_none_or(|at| at <= self.clock.now())
            }
            Some(hold) => hold.until.is_some_and(|until| until.has_passed(elapsed)),
        }
    }

    fn held(&self) -> MutexGuard<'_, Held<W::Key>> {
        self.held.lock()
    }
}

/// The entry of a row under way. Dropping it removes the entry, or begins a backoff where the row is not done: a panic is a failure too.
struct UnderWay<K: Clone + Eq + Hash> {
    held: Arc<Mutex<Held<K>>>,
    clock: Clock,
    key: K,
    hold: Hold,
    is_done: bool,
}

impl<K: Clone + Eq + Hash> UnderWay<K> {
    fn start<W: DueWork<Key = K>>(worker: &DueWorker<W>, due: &Due<K>) -> UnderWay<K> {
        let mut rows = worker.held();
        let before = rows.get(&due.key);
        // The failures of a version that was written since are in the row, or over.
        let before = before.filter(|hold| hold.version >= due.version);
        let hold = Hold {
            version: due.version,
            notifications: due.notifications,
            failures: before.map_or(0, |hold| hold.failures),
            until: None,
        };
        rows.insert(due.key.clone(), hold);
        UnderWay {
            held: worker.held.clone(),
            clock: worker.clock.clone(),
            key: due.key.clone(),
            hold,
            is_done: false,
        }
    }

    fn end(mut self, is_done: bool) {
        self.is_done = is_done;
    }
}

impl<K: Clone + Eq + Hash> Drop for UnderWay<K> {
    fn drop(&mut self) {
        let elapsed = self.clock.elapsed();
        let mut rows = self.held.lock();
        // Another reconciliation, such as a buyer's, may have ended a row that failed here; the entry would stay for ever.
        rows.retain(|_, hold| {
            hold.until
                .is_none_or(|until| !until.has_passed(elapsed.saturating_sub(RETRY.max)))
        });
        if self.is_done {
            rows.remove(&self.key);
            return;
        }
        let wait = RETRY.derived(self.hold.failures, &self.key);
        self.hold.failures += 1;
        self.hold.until = Some(Deadline::after(elapsed, wait));
        rows.insert(self.key.clone(), self.hold);
    }
}

impl<W: DueWork> fmt::Debug for DueWorker<W> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DueWorker")
            .field("rows", &W::NAME)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use tokio::runtime::Handle;
    use tollgate_clock::ManualClock;

    use super::*;

    /// Rows by number, with what is stored about them; reconciling one removes it.
    #[derive(Default)]
    struct Rows {
        due: Mutex<BTreeMap<u32, Due<u32>>>,
        failing: Mutex<BTreeSet<u32>>,
        attempts: Mutex<Vec<u32>>,
        /// Rows that wait for `go` before they end.
        slow: BTreeSet<u32>,
        go: Notify,
    }

    #[async_trait]
    impl DueWork for Rows {
        type Key = u32;
        const NAME: &'static str = "rows";

        async fn due(&self, _: Timestamp, limit: usize) -> Result<Vec<Due<u32>>, ReadError> {
            let due = self.due.lock();
            Ok(due.values().take(limit).copied().collect())
        }

        async fn reconcile(&self, key: u32) -> bool {
            self.attempts.lock().push(key);
            if self.slow.contains(&key) {
                self.go.notified().await;
            }
            assert!(key != 99, "the row that panics");
            if self.failing.lock().contains(&key) {
                return false;
            }
            self.due.lock().remove(&key);
            true
        }
    }

    impl Rows {
        fn of(keys: impl IntoIterator<Item = u32>) -> Rows {
            Rows {
                due: Mutex::new(keys.into_iter().map(|key| (key, row(key))).collect()),
                ..Rows::default()
            }
        }

        fn fail(self, keys: impl IntoIterator<Item = u32>) -> Rows {
            self.failing.lock().extend(keys);
            self
        }

        /// Stores a change of a row.
        fn change(&self, key: u32, change: impl FnOnce(&mut Due<u32>)) {
            let mut due = self.due.lock();
            change(due.get_mut(&key).expect("a row"));
        }

        fn attempts(&self) -> Vec<u32> {
            std::mem::take(&mut *self.attempts.lock())
        }
    }

    fn row(key: u32) -> Due<u32> {
        Due {
            key,
            version: 0,
            notifications: 0,
            next_attempt_at: None,
        }
    }

    fn worker(rows: Rows) -> (DueWorker<Rows>, Arc<Rows>, ManualClock, PurchaseTasks) {
        let (clock, time) = Clock::manual(Timestamp::from_secs(1_000_000));
        let tasks = PurchaseTasks::new(Handle::current());
        let rows = Arc::new(rows);
        let worker = DueWorker::new(rows.clone(), clock, tasks.clone());
        (worker, rows, time, tasks)
    }

    #[tokio::test]
    async fn rows_that_fail_do_not_keep_the_others_from_their_turn() {
        // More failing rows than places, and all of them due before the others.
        let (worker, rows, time, _) = worker(Rows::of(0..40).fail(0..20));
        while worker.run_once().await > 0 {}
        let mut attempts = rows.attempts();
        attempts.sort_unstable();
        assert_eq!(attempts, (0..40).collect::<Vec<_>>(), "each once");
        time.advance(RETRY.base);
        rows.failing.lock().clear();
        while worker.run_once().await > 0 {}
        assert_eq!(rows.attempts().len(), 20, "those that failed, once more");
        assert!(worker.held().is_empty(), "nothing is kept of them");
    }

    #[tokio::test]
    async fn a_failing_row_backs_off_until_its_next_notification() {
        let (worker, rows, time, _) = worker(Rows::of([1]).fail([1]));
        assert_eq!(worker.run_once().await, 1);
        assert_eq!(worker.run_once().await, 0, "it backs off");
        rows.change(1, |row| row.notifications += 1);
        assert_eq!(worker.run_once().await, 1, "a notification ends that");
        time.advance(RETRY.base);
        assert_eq!(worker.run_once().await, 0, "the second wait is longer");
        time.advance(RETRY.base);
        assert_eq!(worker.run_once().await, 1);
    }

    #[tokio::test]
    async fn a_row_that_was_written_since_it_failed_starts_at_the_time_that_it_stores() {
        let (worker, rows, time, _) = worker(Rows::of([1]).fail([1]));
        for _ in 0..8 {
            assert_eq!(worker.run_once().await, 1);
            time.advance(RETRY.max);
        }
        assert_eq!(worker.run_once().await, 1);
        assert_eq!(worker.run_once().await, 0, "it backs off");
        // A buyer's own call has succeeded, and the row is due again.
        rows.change(1, |row| row.version += 1);
        assert_eq!(worker.run_once().await, 1, "the failures are over");
        time.advance(RETRY.base);
        assert_eq!(worker.run_once().await, 1, "the next wait is the first one");
    }

    #[tokio::test]
    async fn a_notified_row_that_stores_its_failure_waits_for_the_time_that_it_stores() {
        let (worker, rows, time, _) = worker(Rows::of([1]).fail([1]));
        let later = worker.clock.now() + 2 * RETRY.max;
        assert_eq!(worker.run_once().await, 1);
        // Its notification keeps it due.
        rows.change(1, |row| {
            row.version += 1;
            row.next_attempt_at = Some(later);
        });
        assert_eq!(worker.run_once().await, 0);
        time.advance(RETRY.max);
        assert_eq!(worker.run_once().await, 0, "not after the wait in memory");
        time.advance(RETRY.max);
        assert_eq!(worker.run_once().await, 1);
    }

    #[tokio::test]
    async fn a_slow_row_holds_one_place_alone() {
        let mut rows = Rows::of(0..30);
        rows.slow.insert(0);
        let (worker, rows, _, tasks) = worker(rows);
        let worker = Arc::new(worker);
        let running = worker.clone();
        let run = tokio::spawn(async move { running.run().await });
        while rows.due.lock().len() > 1 {
            tokio::task::yield_now().await;
        }
        assert_eq!(rows.attempts().len(), 30, "the slow one is under way");
        run.abort();
        assert!(run.await.expect_err("aborted").is_cancelled());
        // The worker is gone, and the row is not cut off.
        rows.go.notify_one();
        tasks.wait().await;
        assert!(rows.due.lock().is_empty());
    }

    #[tokio::test]
    async fn a_row_that_panics_backs_off_and_is_tried_again() {
        let (worker, rows, time, _) = worker(Rows::of([99]));
        assert_eq!(worker.run_once().await, 1);
        assert_eq!(worker.run_once().await, 0, "it backs off");
        time.advance(RETRY.base);
        assert_eq!(worker.run_once().await, 1);
        assert_eq!(rows.attempts(), [99, 99]);
    }

    #[tokio::test]
    async fn nothing_starts_once_the_tasks_are_closed() {
        let (worker, rows, _, tasks) = worker(Rows::of([1]));
        tasks.close();
        assert_eq!(worker.run_once().await, 0);
        assert!(rows.attempts().is_empty());
    }
}
