//! The writing connection: the transaction of a commit with the fence inside, and the checkpoint between two commits.

use std::cell::RefCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, Statement, params};

use super::checkpoint::{Checkpointer, checkpoint, checkpoint_all};
use super::failure::failure;
use super::fence::Fence;
use super::inspection::Inspection;
use super::last_commit::{COUNT_COMMIT, Recorder, Row};
use super::lock::Lock;
use crate::engine::{Committed, Engine, EngineError, Session, Sql, WriteError};
use crate::entries::Seal;
use crate::error::{Failure, FailureKind};

const INSERT_COMMIT: &str = "INSERT INTO journal (id, entries, sum_avail, sum_held, prev, hash, at, body) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)";

/// A file that is open for writing.
pub(crate) struct SqliteEngine {
    pub(crate) path: PathBuf,
    /// Stopped before the connection is closed. A writer without a checkpointer does all checkpoints itself.
    pub(crate) checkpointer: Option<Checkpointer>,
    pub(crate) connection: Connection,
    pub(crate) fence: Arc<Fence>,
    /// Whether the log should be restarted.
    pub(crate) log_is_long: Arc<AtomicBool>,
    /// Ended before the connection is closed.
    pub(crate) inspection: Option<Inspection>,
    /// `None` if commits are not synced.
    pub(crate) recorder: RefCell<Option<Recorder>>,
    /// Released last, when this process no longer accesses the file.
    pub(crate) lock: Lock,
}

impl Engine for SqliteEngine {
    type Session<'e> = SqliteSession<'e>;

    fn session(&self) -> Result<SqliteSession<'_>, Failure> {
        let prepare = || -> rusqlite::Result<SqliteSession<'_>> {
            Ok(SqliteSession {
                engine: self,
                insert_commit: self.connection.prepare(INSERT_COMMIT)?,
                begin: self.connection.prepare("BEGIN IMMEDIATE")?,
                commit: self.connection.prepare("COMMIT")?,
                epoch: self.fence.prepare(&self.connection)?,
                count: self.connection.prepare(COUNT_COMMIT)?,
                inserted: None,
                changes_before: 0,
            })
        };
        prepare().map_err(|error| failure(&self.path, error))
    }

    fn failure(&self, error: EngineError) -> Failure {
        failure(&self.path, error)
    }

    fn name(&self) -> String {
        self.path.display().to_string()
    }

    fn close(self, stopped: Option<&Failure>, hands_over: bool) -> Vec<File> {
        drop((self.inspection, self.checkpointer));
        let is_lost = is_lost(&self.path, &self.connection, &self.fence, stopped);
        // A failed disk is not touched, and a successor continues the log as left.
        let is_final = !hands_over && stopped.is_none_or(|it| it.kind == FailureKind::Closed);
        if is_final && !is_lost {
            move_log(&self.path, &self.connection);
        } else if let Err(error) = self
            .connection
            .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        {
            tracing::warn!(%error, "disabling the checkpoint at close failed");
        }
        if let Err((_, error)) = self.connection.close() {
            tracing::warn!(%error, "closing the database failed; the next start recovers it");
        }
        if !hands_over {
            return Vec::new();
        }
        let files = self.lock.into_files().unwrap_or_else(|error| {
            tracing::warn!(%error, "passing the lock on the database on failed; its successor takes it anew");
            None
        });
        files.map(Vec::from).unwrap_or_default()
    }
}

/// Moves the log into the file at a final close: a copy of the file alone is then the whole store.
fn move_log(path: &Path, connection: &Connection) {
    let path = path.display();
    match checkpoint_all(connection) {
        Ok(true) => {}
        Ok(false) => tracing::warn!(
            %path,
            "moving the log into the database waits for a program that reads it: copy `{path}-wal` with it until the next stop"
        ),
        Err(error) => tracing::warn!(
            %error,
            %path,
            "moving the log into the database failed: copy `{path}-wal` with it until the next stop"
        ),
    }
}

/// Whether this process has lost, or may have lost, the file. A clean close checks once more: the run may have had no commit since the
/// loss.
fn is_lost(path: &Path, connection: &Connection, fence: &Fence, stopped: Option<&Failure>) -> bool {
    let checked = fence
        .prepare(connection)
        .map_err(|error| failure(path, error))
        .and_then(|mut epoch| fence.check(&mut epoch));
    let is_refused = checked.as_ref().is_err_and(|failure| {
        tracing::warn!(%failure, "closing the database without a checkpoint");
        true
    });
    let lost =
        |failure: &Failure| matches!(failure.kind, FailureKind::Fenced | FailureKind::Replaced);
    is_refused || stopped.is_some_and(lost)
}

/// The statements of every commit. Rarer statements are prepared on use and cached by the connection.
pub(crate) struct SqliteSession<'e> {
    engine: &'e SqliteEngine,
    insert_commit: Statement<'e>,
    begin: Statement<'e>,
    commit: Statement<'e>,
    /// Reads the epoch for the fence.
    epoch: Statement<'e>,
    /// Counts a commit without a row.
    count: Statement<'e>,
    /// The row of the open transaction, and the number of its entries.
    inserted: Option<(Row, i64)>,
    /// Total changes of the connection before the open transaction.
    changes_before: u64,
}

impl Session for SqliteSession<'_> {
    fn sql(&self) -> &dyn Sql {
        &self.engine.connection
    }

    fn begin(&mut self) -> Result<(), WriteError> {
        self.begin.execute([])?;
        self.inserted = None;
        self.changes_before = self.engine.connection.total_changes();
        // From here on no other writer of this log can increment the epoch before the commit.
        self.engine.fence.check(&mut self.epoch).map_err(|failure| {
            self.rollback();
            WriteError::Stopped(failure)
        })
    }

    fn insert_commit(&mut self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), EngineError> {
        self.insert_commit.execute(params![
            id,
            seal.entries,
            seal.sum_available.get(),
            seal.sum_held.get(),
            &seal.previous[..],
            &seal.hash[..],
            seal.at.as_micros(),
            body,
        ])?;
        let row = Row {
            id,
            hash: seal.hash,
            at: seal.at,
        };
        self.inserted = Some((row, seal.entries));
        Ok(())
    }

    fn commit(&mut self) -> Result<(), EngineError> {
        self.commit.execute([])?;
        Ok(())
    }

    /// The commit of units. The record of the last commit covers commits of units; commits of derived data are not recorded.
    fn send_commit(&mut self) -> Result<Committed, EngineError> {
        let row = self.inserted.take();
        let mut recorder = self.engine.recorder.borrow_mut();
        // A commit without changes writes nothing; a commit without a row is counted.
        let recorder = recorder.as_mut().filter(|_| {
            row.is_some() || self.engine.connection.total_changes() != self.changes_before
        });
        if recorder.is_some() && row.is_none() {
            self.count.execute([])?;
        }
        self.commit.execute([])?;
        if let Some(recorder) = recorder {
            recorder.committed(row);
        }
        Ok(Committed::Durable)
    }

    fn rollback(&mut self) {
        // The engine may have rolled back already.
        let _ = self.engine.connection.execute_batch("ROLLBACK");
    }

    fn needs_maintenance(&self) -> bool {
        self.engine.log_is_long.load(Relaxed)
    }

    fn maintain(&mut self) -> Result<bool, Failure> {
        self.engine.log_is_long.store(false, Relaxed);
        self.engine.fence.check(&mut self.epoch)?;
        checkpoint(&self.engine.connection)
            .map(|log_bytes| log_bytes.is_some())
            .map_err(|error| failure(&self.engine.path, error))
    }
}
