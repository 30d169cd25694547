//! The checkpoint thread: moves the write-ahead log into the main file, so that commits do not have to.
//!
//! The log restarts only when the whole log has been moved, and under load a part of the log never is. So when the log has grown long,
//! the writer moves the remainder between two of its commits, and the next commit restarts the log. SQLite syncs the main file when the
//! log is fully moved. So the writer waits for the sync of the pages that the thread has moved since the last restart. These are pages of
//! a few seconds, or the pages of a long read.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Condvar, Mutex};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode};

use super::failure::failure;
use super::fence::Fence;
use crate::commit::Shared;
use crate::error::Failure;

/// Interval of the checkpoints.
const EVERY: Duration = Duration::from_secs(1);

/// The log size that calls for a restart. A sync of space that was written before is one write to the disk; a sync of a growing file is
/// three writes in sequence.
const LOG_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The handle of the thread.
pub(crate) struct Checkpointer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: Option<JoinHandle<()>>,
}

impl Checkpointer {
    /// Starts the thread with its own connection.
    pub(crate) fn start(
        path: PathBuf,
        shared: Arc<Shared>,
        connection: Connection,
        fence: Arc<Fence>,
        log_is_long: Arc<AtomicBool>,
    ) -> std::io::Result<Checkpointer> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(String::from("checkpoint"))
            .spawn(move || {
                if let Err(failure) =
                    run(&path, &shared, &connection, &fence, &log_is_long, &stopped)
                {
                    shared.fail(failure);
                }
            })?;
        let thread = Some(thread);
        Ok(Checkpointer { stop, thread })
    }
}

impl Drop for Checkpointer {
    /// Stops the thread and waits for its end.
    fn drop(&mut self) {
        let (flag, wake) = &*self.stop;
        *flag.lock() = true;
        wake.notify_one();
        if self
            .thread
            .take()
            .is_some_and(|thread| thread.join().is_err())
        {
            tracing::warn!("checkpoint thread panicked");
        }
    }
}

fn run(
    path: &Path,
    shared: &Shared,
    connection: &Connection,
    fence: &Fence,
    log_is_long: &AtomicBool,
    stop: &(Mutex<bool>, Condvar),
) -> Result<(), Failure> {
    let stopped_by = |error| failure(path, error);
    let mut epoch = fence.prepare(connection).map_err(stopped_by)?;
    let mut seen = 0;
    let (flag, wake) = stop;
    let mut stopped = flag.lock();
    while !*stopped {
        wake.wait_for(&mut stopped, EVERY);
        if *stopped {
            break;
        }
        // Also without a commit: a process that has lost the file must not respond either.
        fence.check(&mut epoch)?;
        let commits = shared.gauges.batch_size.count();
        if commits == seen {
            continue;
        }
        seen = commits;
        // A failed sync of the main file is as serious for the disk as a failed sync of the log.
        if let Some(log_bytes) = checkpoint(connection).map_err(stopped_by)? {
            shared.gauges.wal_bytes.store(log_bytes, Relaxed);
            log_is_long.store(log_bytes > LOG_BYTES_MAX, Relaxed);
        }
    }
    Ok(())
}

/// Moves the pages that no reader needs, without waiting for any lock. Returns the length of the log in bytes; `None` while another
/// checkpoint is running.
pub(crate) fn checkpoint(connection: &Connection) -> rusqlite::Result<Option<u64>> {
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    let frames = connection.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |row| {
        row.get::<_, i64>(1)
    });
    match frames {
        // `frames` is -1 if SQLite moved nothing.
        Ok(frames) => Ok(u64::try_from(page * frames).ok()),
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Ok(None),
        Err(error) => Err(error),
    }
}

/// How long a final close waits for readers of earlier commits.
const LAST_READERS: Duration = Duration::from_secs(2);

/// Moves the whole log into the main file, and empties the log unless another program reads it. Returns whether the file alone has every
/// commit; `false` while a reader of an earlier commit remains.
pub(crate) fn checkpoint_all(connection: &Connection) -> rusqlite::Result<bool> {
    let run = |mode: &str, wait| {
        connection.busy_timeout(wait)?;
        let sql = format!("PRAGMA wal_checkpoint({mode})");
        connection.query_row(&sql, [], |row| {
            Ok((row.get::<_, i64>(1)?, row.get::<_, i64>(2)?))
        })
    };
    let (frames, moved) = run("FULL", LAST_READERS)?;
    if frames != moved {
        return Ok(false);
    }
    // Litestream reads the log all the time, and now has the log to itself.
    run("TRUNCATE", Duration::ZERO)?;
    Ok(true)
}

/// How long the thread waits for another program's lock.
pub(crate) const BUSY: Duration = Duration::from_millis(20);

/// Opens the connection of the thread.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = super::file::open(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE, BUSY)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    // The writer closes last, and knows whether the file still belongs to this process.
    connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    Ok(connection)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_log_restarts_when_the_writer_checkpoints_the_remainder() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let writer = Connection::open(&path).expect("a new file");
        writer
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0; CREATE TABLE t (body BLOB)",
            )
            .expect("a table");
        let write = || {
            let rows = writer.execute("INSERT INTO t VALUES (randomblob(20000))", []);
            assert_eq!(rows, Ok(1));
        };
        let other = connect(&path).expect("a second connection");
        let log = |connection| checkpoint(connection).expect("a checkpoint");
        (0..50).for_each(|_| write());
        // As if the next rows were written during the thread's checkpoint: the checkpoint skips these rows.
        let reader = Connection::open(&path).expect("a third connection");
        reader
            .execute_batch("BEGIN; SELECT count(*) FROM t")
            .expect("a view");
        write();
        let long = log(&other);
        assert!(long > Some(1_000_000), "{long:?}");
        reader.execute_batch("COMMIT").expect("the end of the view");
        write();
        assert!(log(&writer) > long, "the log was appended to");
        write();
        let restarted = log(&other);
        assert!(restarted < Some(100_000), "{restarted:?}");
    }
}
