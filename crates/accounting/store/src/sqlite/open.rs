//! Opening of a store: lock, file, epoch, and the threads.

use std::cell::RefCell;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use super::checkpoint::{self, Checkpointer};
use super::engine::SqliteEngine;
use super::failure::{open_error, row_open_error, write_open_error};
use super::fence::Fence;
use super::file;
use super::inspection::Inspection;
use super::last_commit::{self, RecordState, Recorder};
use super::lock::Lock;
use super::name::{self, resolve};
use super::options::{Durability, Options};
use super::read::Pool;
use super::root_secret::root_secret;
use crate::commit::{self, Settings, Shared, StartError};
use crate::error::OpenError;
use crate::reader::{OpenedStore, Reader};
use crate::rows::RootSecret;
use crate::store::Store;

/// For how long a commit waits for another program's lock before the lock is reported; the wait then repeats.
const LOCK_STEP: Duration = Duration::from_millis(500);

/// Opens the store at `path`, or creates the store, with exclusive ownership.
pub fn open(path: &Path, mut options: Options) -> Result<Arc<dyn Store>, OpenError> {
    let path = &resolve(path);
    let lock = acquire_lock(path, &mut options)?;
    let failed = |action| {
        move |source| OpenError::File {
            action,
            path: path.to_owned(),
            source,
        }
    };
    let fence = Fence::new(path, options.node).map_err(failed("read"))?;
    let connection = file::connect(path, &options)?;
    let root_secret = root_secret(&connection, path)?;
    let raised = file::raise_epoch(&connection, path, &options)?;
    let fence = fence.with_epoch(raised, options.fenced);
    let recorder = start_recorder(path, &connection, &options, &root_secret, raised.epoch)?;
    // From here on the wait for a lock has short steps, so that the lock is reported while the lock lasts.
    let step = options.busy_timeout.min(LOCK_STEP);
    connection
        .busy_timeout(step)
        .map_err(|error| open_error(path, "open", error))?;
    // The header of the file shows the epoch to processes that cannot see the log.
    checkpoint::checkpoint(&connection).map_err(|error| open_error(path, "write", error))?;
    let thread = failed("start a thread for");
    let shared = Arc::new(Shared::new(options.queue_max, options.on_failure));
    let checkpoints = checkpoint::connect(path).map_err(|error| open_error(path, "open", error))?;
    let log_is_long = Arc::<AtomicBool>::default();
    let checkpointer = Checkpointer::start(
        path.to_owned(),
        Arc::clone(&shared),
        checkpoints,
        Arc::clone(&fence),
        Arc::clone(&log_is_long),
    )
    .map_err(thread)?;
    let connections = Pool::new(path).map_err(failed("open"))?;
    let engine = SqliteEngine {
        path: path.to_owned(),
        connection,
        fence,
        checkpointer: Some(checkpointer),
        log_is_long,
        recorder: RefCell::new(recorder),
        inspection: Inspection::start(path, &shared),
        lock,
    };
    let settings = Settings {
        node: options.node,
        epoch: raised.epoch,
        predecessor: options.predecessor,
        batch_max: options.batch_max,
        post_records: options.post_records,
        monotonic_us: options.monotonic_us,
        root_secret,
    };
    let writing = commit::start(engine, shared, settings).map_err(|error| match error {
        StartError::Row(error) => row_open_error(path, error),
        StartError::Write(error) => write_open_error(path, error),
        StartError::Failure(failure) => OpenError::Stopped(failure),
        StartError::Thread(error) => failed("start a thread for")(error),
    })?;
    Ok(Arc::new(OpenedStore {
        reader: Reader::new(Arc::new(connections)),
        writing,
    }))
}

/// Starts the record of the last commit, for a run whose epoch is durable. Without syncs the store has no record: after a loss of power
/// the record could name commits that were never on the disk.
fn start_recorder(
    path: &Path,
    connection: &rusqlite::Connection,
    options: &Options,
    root_secret: &RootSecret,
    epoch: i64,
) -> Result<Option<Recorder>, OpenError> {
    if options.durability == Durability::Process {
        return Ok(None);
    }
    let is_first_run = epoch == 1;
    if let RecordState::Unknown(problem) = last_commit::compare(path, connection)?
        && !is_first_run
    {
        tracing::warn!(
            path = %last_commit::path_of(path).display(),
            "the record of the last commit {problem}: a loss of commits before this start would not be noticed; it is kept from now on"
        );
    }
    Recorder::start(path, connection, options.node, root_secret).map(Some)
}

/// Takes the lock on the file at `path`, and creates a missing file.
pub(super) fn acquire_lock(path: &Path, options: &mut Options) -> Result<Lock, OpenError> {
    let mut lock = match options.lock.take() {
        Some(lock) => lock,
        None => Lock::acquire(path)?,
    };
    file::create_if_missing(path, options)?;
    lock.cover(path)?;
    Ok(lock)
}

/// An up-to-date connection to the store at `path`. No other process has the store while the lock exists.
pub(crate) fn open_exclusive(
    path: &Path,
    options: &mut Options,
) -> Result<(rusqlite::Connection, Lock), OpenError> {
    let path = &resolve(path);
    if !path.exists() {
        return Err(file::missing(path));
    }
    let lock = acquire_lock(path, options)?;
    Ok((file::connect(path, options)?, lock))
}

/// Opens the store at `path` for reading, with or without a running gateway.
pub fn open_read(path: &Path) -> Result<Arc<Reader>, OpenError> {
    let path = &resolve(path);
    name::check_links(path)?;
    Ok(Arc::new(Reader::new(Arc::new(Pool::open(path)?))))
}

/// Compares the database at `path` with its record, with or without a running gateway.
///
/// # Errors
///
/// When the database or the record cannot be read.
pub fn record_state(path: &Path) -> Result<RecordState, OpenError> {
    let path = &resolve(path);
    let (connection, _) = file::connect_source(path)?;
    last_commit::compare(path, &connection)
}

/// The writer's side of a new file at `path`, without a thread, and its epoch.
#[cfg(test)]
pub(crate) fn new_engine(path: &Path) -> (SqliteEngine, i64) {
    use tollgate_clock::Timestamp;

    let mut options = Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
    let lock = acquire_lock(path, &mut options).expect("a new file");
    let fence = Fence::new(path, options.node).expect("it is there");
    let connection = file::connect(path, &options).expect("it opens");
    let raised = file::raise_epoch(&connection, path, &options).expect("the first run");
    let engine = SqliteEngine {
        path: path.to_owned(),
        checkpointer: None,
        connection,
        fence: fence.with_epoch(raised, true),
        log_is_long: Arc::default(),
        recorder: RefCell::default(),
        inspection: None,
        lock,
    };
    (engine, raised.epoch)
}
