//! The feed of changes: what the nodes of a cluster keep in memory, followed by each of them.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::connection::{Connection, Target};
use super::failure::{Names, failure};
use super::read::limit_reads_of_this_thread;
use crate::commit::Shared;
use crate::engine::{EngineError, Fault, FeedBounds, RowError, Rows as _};
use crate::error::ReadError;
use crate::store::ChangeRow;
use crate::threads::{self, Condvar};

/// Pause between two reads of the feed.
const INTERVAL: Duration = Duration::from_millis(50);

/// Changes of one read.
const CHANGES_MAX: usize = 1000;

/// Time limit of each wait for the server, for the feed and for what observers read: a node that does not follow the feed for two seconds
/// answers no request with a key, so a connection that is silent for as long is replaced by another one.
const WAIT: Duration = Duration::from_secs(2);

/// The thread that reads the feed, on a connection of its own.
pub(super) struct Feed {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Feed {
    /// Starts the thread. It reads the changes after `number` once the store follows them.
    pub(super) fn start(
        target: Arc<Target>,
        names: Arc<Names>,
        number: i64,
        shared: Arc<Shared>,
        monotonic_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    ) -> std::io::Result<Feed> {
        shared.feed_number.store(number, Relaxed);
        let stop = Arc::new((Mutex::new(false), Condvar::default()));
        let stopped = Arc::clone(&stop);
        let thread = threads::spawn("feed", move || {
            run((&target, &names), number, &shared, &*monotonic_us, &stopped);
        })?;
        Ok(Feed {
            stop,
            thread: Some(thread),
        })
    }
}

impl Drop for Feed {
    /// Stops the thread and waits for it.
    fn drop(&mut self) {
        let (flag, wake) = &*self.stop;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_one();
        let thread = self.thread.take();
        if thread.is_some_and(|thread| threads::join(thread).is_err()) {
            tracing::warn!("feed thread panicked");
        }
    }
}

fn run(
    (target, names): (&Target, &Names),
    mut number: i64,
    shared: &Shared,
    monotonic_us: &dyn Fn() -> u64,
    (flag, wake): &(Mutex<bool>, Condvar),
) {
    limit_reads_of_this_thread(WAIT);
    let mut connection = None;
    let mut is_late = false;
    let mut stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        stopped = wake.wait_within(flag, stopped, INTERVAL, |stopped| !*stopped);
        if *stopped {
            return;
        }
        if !shared.is_followed.load(Relaxed) {
            continue;
        }
        drop(stopped);
        let began = monotonic_us();
        match read(target, &mut connection, number) {
            Ok((_, bounds)) if bounds.pruned > number || bounds.last < number => {
                let source = match bounds.last < number {
                    // Those that come get the numbers of the lost ones.
                    true => "the database lacks changes that it has read",
                    false => "changes were removed that it has not read",
                };
                return shared.fail(failure(
                    names,
                    EngineError {
                        fault: Fault::Fenced,
                        source: source.into(),
                    },
                ));
            }
            Ok((changes, _)) => {
                let observers = shared.observers();
                let mut all = changes.iter();
                let applied = all.try_for_each(|change| {
                    observers
                        .iter()
                        .try_for_each(|observer| observer.changed(change))?;
                    number = change.number;
                    shared.feed_number.store(number, Relaxed);
                    Ok::<_, ReadError>(())
                });
                let ended = || observers.iter().try_for_each(|it| it.changes_ended());
                if let Err(error) = applied.and_then(|()| ended()) {
                    if !std::mem::replace(&mut is_late, true) {
                        tracing::warn!(%error, "applying a change of another node failed, retrying");
                    }
                    stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                // A full page is not the end of the feed.
                if changes.len() < CHANGES_MAX {
                    shared.gauges.feed_read_us.store(began.max(1), Relaxed);
                }
                if std::mem::take(&mut is_late) {
                    tracing::info!("reading the feed of changes again");
                }
            }
            Err(error) => {
                connection = None;
                if !std::mem::replace(&mut is_late, true) {
                    tracing::warn!(%error, "reading the feed of changes failed, retrying");
                }
            }
        }
        stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
    }
}

/// The changes after a number. Where it finds none the node may have missed some all the same: the last change of all may be removed.
fn read(
    target: &Target,
    connection: &mut Option<Connection>,
    after: i64,
) -> Result<(Vec<ChangeRow>, FeedBounds), RowError> {
    let connection = match connection {
        Some(connection) => connection,
        None => {
            let opened = Connection::reopen(target)?;
            opened.limit(WAIT)?;
            connection.insert(opened)
        }
    };
    let mut found = Vec::new();
    let bounds = connection.changes(after, CHANGES_MAX, &mut |change| found.push(change))?;
    Ok((found, bounds))
}
