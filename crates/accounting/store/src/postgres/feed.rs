//! The feed of changes: each node of a cluster follows the changes of cached state.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use tollgate_postgres::{Connection, Target};

use super::failure::{Names, failure};
use super::read::limit_reads_of_this_thread;
use super::ticker::Ticker;
use crate::commit::Shared;
use crate::engine::{EngineError, Fault, FeedBounds, RowError};
use crate::error::ReadError;
use crate::store::ChangeRow;
use crate::tables;

/// Pause between two reads of the feed.
const INTERVAL: Duration = Duration::from_millis(50);

/// Maximum number of changes per read.
const CHANGES_MAX: usize = 1000;

/// Time limit of each wait for the server, for the feed and for the reads of observers. A node that does not follow the feed for two
/// seconds answers no request with a key. So a connection that is silent for two seconds is replaced.
const WAIT: Duration = Duration::from_secs(2);

/// Reads the feed on a separate thread and connection.
pub(super) struct Feed {
    pub(super) target: Arc<Target>,
    pub(super) names: Arc<Names>,
    pub(super) connection: Option<Connection>,
    /// The last applied change.
    pub(super) number: i64,
    pub(super) shared: Arc<Shared>,
    pub(super) monotonic_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// Whether the last attempt has failed, for the log.
    pub(super) is_late: bool,
}

impl Feed {
    /// Starts the thread. The thread reads the changes after `number` once the store follows changes.
    pub(super) fn start(mut self) -> std::io::Result<Ticker> {
        self.shared.feed_number.store(self.number, Relaxed);
        let shared = Arc::clone(&self.shared);
        Ticker::start("feed", INTERVAL, &shared, move || {
            limit_reads_of_this_thread(WAIT);
            match self.shared.is_followed.load(Relaxed) {
                true => self.follow(),
                false => ControlFlow::Continue(()),
            }
        })
    }

    fn follow(&mut self) -> ControlFlow<()> {
        let began = (self.monotonic_us)();
        match self.read() {
            Ok((_, bounds)) if bounds.pruned > self.number || bounds.last < self.number => {
                let source = match bounds.last < self.number {
                    // The next changes get the numbers of the lost changes.
                    true => "the database lacks changes that it has read",
                    false => "changes were removed that it has not read",
                };
                self.shared.fail(failure(
                    &self.names,
                    EngineError {
                        fault: Fault::Fenced,
                        source: source.into(),
                    },
                ));
                return ControlFlow::Break(());
            }
            Ok((changes, _)) => match self.apply(&changes) {
                Ok(()) => {
                    // A full page is not the end of the feed.
                    if changes.len() < CHANGES_MAX {
                        let read = &self.shared.gauges.feed_read_us;
                        read.store(began.max(1), Relaxed);
                    }
                    if std::mem::take(&mut self.is_late) {
                        tracing::info!("reading the feed of changes again");
                    }
                }
                Err(error) => {
                    if !std::mem::replace(&mut self.is_late, true) {
                        tracing::warn!(%error, "applying a change of another node failed, retrying");
                    }
                }
            },
            Err(error) => {
                self.connection = None;
                if !std::mem::replace(&mut self.is_late, true) {
                    tracing::warn!(%error, "reading the feed of changes failed, retrying");
                }
            }
        }
        ControlFlow::Continue(())
    }

    fn apply(&mut self, changes: &[ChangeRow]) -> Result<(), ReadError> {
        let observers = self.shared.observers();
        for change in changes {
            observers.iter().try_for_each(|it| it.changed(change))?;
            self.number = change.number;
            self.shared.feed_number.store(self.number, Relaxed);
        }
        observers.iter().try_for_each(|it| it.changes_ended())
    }

    /// The changes after the last applied change. Even without a later change, the node may have missed changes: the feed's last change
    /// may be removed.
    fn read(&mut self) -> Result<(Vec<ChangeRow>, FeedBounds), RowError> {
        let connection = match &mut self.connection {
            Some(connection) => connection,
            missing => {
                let opened = Connection::reopen(&self.target)?;
                opened.limit(WAIT)?;
                missing.insert(opened)
            }
        };
        let mut found = Vec::new();
        let bounds =
            tables::allotment::changes(connection, self.number, CHANGES_MAX, &mut |change| {
                found.push(change)
            })?;
        Ok((found, bounds))
    }
}
