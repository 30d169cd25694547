//! The thread that moves the log into the main file, so that no commit has to.

use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::failure::failure;
use super::writer::Shared;

/// How often what has gathered is moved.
const EVERY: Duration = Duration::from_secs(1);

/// The log's size from which on writers wait for it to begin anew.
const LOG_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// How many rounds to leave the writers alone after readers were in the way of beginning anew.
const ROUNDS_AFTER_BUSY: u32 = 10;

/// The handle of the thread.
pub(crate) struct Checkpointer {
    stop: Arc<(Mutex<bool>, Condvar)>,
    thread: JoinHandle<()>,
}

impl Checkpointer {
    /// Starts the thread on a connection of its own.
    pub(crate) fn start(
        shared: Arc<Shared>,
        connection: Connection,
    ) -> std::io::Result<Checkpointer> {
        let stop = Arc::new((Mutex::new(false), Condvar::new()));
        let stopped = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(String::from("checkpoint"))
            .spawn(move || run(&shared, &connection, &stopped))?;
        Ok(Checkpointer { stop, thread })
    }

    /// Ends the thread and waits for it.
    pub(crate) fn stop(self) {
        let (flag, wake) = &*self.stop;
        *flag.lock().unwrap_or_else(PoisonError::into_inner) = true;
        wake.notify_one();
        if self.thread.join().is_err() {
            tracing::warn!("the checkpoint thread ended in a panic");
        }
    }
}

fn run(shared: &Shared, connection: &Connection, stop: &(Mutex<bool>, Condvar)) {
    let mut seen = 0;
    let mut pause = 0;
    let (flag, wake) = stop;
    let mut stopped = flag.lock().unwrap_or_else(PoisonError::into_inner);
    while !*stopped {
        (stopped, _) = wake
            .wait_timeout(stopped, EVERY)
            .unwrap_or_else(PoisonError::into_inner);
        let commits = shared.gauges.batch_size.count();
        if *stopped || commits == seen {
            continue;
        }
        seen = commits;
        pause = u32::saturating_sub(pause, 1);
        let large = shared.gauges.wal_bytes.load(Relaxed) > LOG_BYTES_MAX && pause == 0;
        match checkpoint(connection, if large { "RESTART" } else { "PASSIVE" }) {
            Ok(moved) => {
                shared.gauges.wal_bytes.store(moved.log_bytes, Relaxed);
                if large && moved.busy {
                    // A long read (an audit, a backup) keeps the log. Trying again at once would only hold up the writer.
                    pause = ROUNDS_AFTER_BUSY;
                }
            }
            Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {}
            Err(error) => {
                // A failed sync of the main file says the same about the disk as one of the log.
                shared.fail(failure(&shared.path, &error));
                return;
            }
        }
    }
}

struct Moved {
    busy: bool,
    /// The length of the log that was used when the checkpoint began.
    log_bytes: u64,
}

fn checkpoint(connection: &Connection, mode: &str) -> rusqlite::Result<Moved> {
    let page: i64 = connection.pragma_query_value(None, "page_size", |row| row.get(0))?;
    connection.query_row(&format!("PRAGMA wal_checkpoint({mode})"), [], |row| {
        let frames: i64 = row.get(1)?;
        Ok(Moved {
            busy: row.get::<_, i64>(0)? != 0,
            log_bytes: u64::try_from(frames * page).unwrap_or(0),
        })
    })
}

/// How long a checkpoint waits for readers: short, since writers wait with it.
pub(crate) const BUSY: Duration = Duration::from_millis(20);

/// Opens the connection of the thread.
pub(crate) fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let connection = super::file::open(path, rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE, BUSY)?;
    connection.pragma_update(None, "synchronous", "FULL")?;
    Ok(connection)
}
