//! The embedded store: one SQLite file with its log and its lock.
//!
//! One thread owns the writing connection and uses group commit: it takes all waiting units, writes them in one transaction, and while the
//! disk syncs the next group accumulates. There is no timer; the sync is the window. A second thread checkpoints the log into the main
//! file. Reads use their own connections.
//!
//! The ledger is a write-ahead journal: one row per commit, with all its records packed into one value, sealed and chained to the previous
//! row. That is the cost of a request. Balances, open holds and the owners' views are derived from the journal from time to time
//! (*posted*), at some rows per account instead of one per request; readers add the journal's unposted tail. The writer keeps open holds,
//! the last hundred thousand operations and the unposted balances in memory, and refuses there what would violate an invariant: a second
//! start or end of an operation, a balance below its limit.

mod backup;
mod batch;
mod checkout;
mod checkpoint;
mod coalesce;
mod columns;
mod descriptor;
mod failure;
mod fence;
mod file;
mod journal;
mod journal_tail;
mod keys;
mod lock;
mod mandate;
mod name;
mod oauth;
mod parts;
mod plan;
mod read;
mod rebuild_postings;
mod recent_operations;
mod records;
mod repair;
mod signin;
mod snapshot;
mod statement;
mod statements;
mod topup;
mod usage;
mod versioned;
mod writer;
mod x402;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_clock::Timestamp;

use self::batch::Batch;
use self::checkpoint::Checkpointer;
use self::failure::{open_error, row_open_error, write_open_error};
use self::fence::Fence;
use self::read::{Pool, SqliteStore};
use self::writer::{Shared, Writer};
use crate::error::{Failure, FailureKind, OpenError, SubmitError};
use crate::gauges::Gauges;
use crate::rows::RootSecret;
use crate::store::{Observer, Read, Store};
use crate::unit::{Done, UnitOfWork};

pub use self::backup::{BackupError, backup, export};
pub use self::lock::Lock;
pub use self::name::resolve;
pub use self::rebuild_postings::rebuild_postings;
pub use self::repair::{Action, BalanceChange, Finding, Repair, repair};

/// Durability of a commit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Power loss: every commit is synced to the disk.
    #[default]
    Power,
    /// Any termination of the process, but not loss of power or an operating system crash.
    Process,
}

/// Options for opening a store.
pub struct Options {
    /// Durability of a commit.
    pub durability: Durability,
    /// This node's number; one node has 1.
    pub node: i64,
    /// The node's name in the store.
    pub node_name: String,
    /// Maximum number of units in one commit.
    pub batch_max: usize,
    /// Maximum number of units in the queue; new operations are refused from three quarters of it on.
    pub queue_max: usize,
    /// Number of journal records from which on they are posted for any number of accounts, and for few accounts sooner: it bounds what
    /// readers add up, and what a start replays.
    pub post_records: usize,
    /// How long to wait for another program's lock on the file.
    pub busy_timeout: Duration,
    /// The maximum size of the file in pages of 4096 bytes; beyond it the store stops as on a full disk. `None` for no limit.
    pub pages_max: Option<u32>,
    /// The time of opening.
    pub now: Timestamp,
    /// 32 random bytes, stored as the root secret if the store is new.
    pub random: RootSecret,
    /// A monotonic clock in microseconds, for the gauges.
    pub monotonic_us: Box<dyn Fn() -> u64 + Send>,
    /// Called once when the store stops for good for any reason but [`Store::close`]; the process has to exit with an error. The call is
    /// made on a thread of the store and must not block.
    pub on_failure: Box<dyn Fn(&Failure) + Send + Sync>,
    /// The lock on the file, when received from another process; `None` to take it.
    pub lock: Option<Lock>,
    /// Whether commits check the node's epoch. Always, except in tests that need a ledger damaged by two writers.
    #[doc(hidden)]
    pub fenced: bool,
}

impl Options {
    /// The defaults: durable against power loss, node 1, commits of up to 1024 units, a queue of 16,384.
    pub fn new(now: Timestamp, random: RootSecret) -> Options {
        Options {
            durability: Durability::Power,
            node: 1,
            node_name: String::from("gateway"),
            batch_max: 1024,
            queue_max: 16_384,
            post_records: 65_536,
            busy_timeout: Duration::from_secs(5),
            pages_max: None,
            now,
            random,
            monotonic_us: Box::new(|| 0),
            on_failure: Box::new(|_| {}),
            lock: None,
            fenced: true,
        }
    }
}

/// Opens the store at `path`, or creates it, with exclusive ownership.
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
    let root_secret = file::root_secret(&connection, path)?;
    let raised = file::raise_epoch(&connection, path, &options)?;
    let epoch = raised.epoch;
    let fence = fence.with_epoch(raised, options.fenced);
    // The header of the file shows the epoch to processes that cannot see the log.
    checkpoint::checkpoint(&connection).map_err(|error| open_error(path, "write", error))?;
    let mut batch = Batch::load(&connection, options.node, epoch, options.post_records)
        .map_err(|error| row_open_error(path, error))?;
    // Posts the tail of the previous run once, so that readers need not.
    writer::post(&connection, &mut batch, &fence).map_err(|error| write_open_error(path, error))?;
    let thread = failed("start a thread for");
    let shared = Arc::new(Shared::new(
        path.to_owned(),
        options.queue_max,
        options.on_failure,
    ));
    let checkpoints = checkpoint::connect(path).map_err(|error| open_error(path, "open", error))?;
    let checkpointer = Checkpointer::start(Arc::clone(&shared), checkpoints, Arc::clone(&fence))
        .map_err(thread)?;
    let connections = Pool::new(path).map_err(failed("open"))?;
    let writer = Writer {
        shared: Arc::clone(&shared),
        connection,
        batch,
        batch_max: options.batch_max.max(1),
        monotonic_us: options.monotonic_us,
        checkpointer,
        fence,
        lock,
    };
    let writer = std::thread::Builder::new()
        .name(String::from("store"))
        .spawn(move || writer.run())
        .map_err(thread)?;
    Ok(Arc::new(SqliteStore {
        connections,
        writing: Writing {
            shared,
            thread: Mutex::new(Some(writer)),
            node: options.node,
            epoch,
            root_secret,
        },
    }))
}

/// Takes the lock on the file at `path`, and creates the file when there is none.
fn acquire_lock(path: &Path, options: &mut Options) -> Result<Lock, OpenError> {
    let mut lock = match options.lock.take() {
        Some(lock) => lock,
        None => Lock::acquire(path)?,
    };
    file::create_if_missing(path, options)?;
    lock.cover(path)?;
    Ok(lock)
}

/// Opens the store at `path` for reading, with or without a running gateway.
pub fn open_read(path: &Path) -> Result<Arc<dyn Read>, OpenError> {
    let path = &resolve(path);
    name::check_links(path)?;
    Ok(Arc::new(SqliteStore {
        connections: Pool::open(path)?,
        writing: (),
    }))
}

/// The handle of the writer.
struct Writing {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    node: i64,
    epoch: i64,
    root_secret: RootSecret,
}

impl Writing {
    fn close(&self) {
        self.shared.queue.stop(Failure {
            kind: FailureKind::Closed,
            message: Arc::from("the store was closed"),
        });
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        // The last owner may be a callback, which runs on the writer's own thread; that thread then ends by itself.
        let elsewhere = thread.filter(|thread| thread.thread().id() != std::thread::current().id());
        if elsewhere.is_some_and(|thread| thread.join().is_err()) {
            tracing::error!("store writer thread panicked");
        }
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.close();
    }
}

impl Store for SqliteStore<Writing> {
    fn submit(&self, unit: UnitOfWork, done: Done) -> Result<(), SubmitError> {
        self.writing.shared.queue.push(unit, done)
    }

    fn admit(&self) -> Result<(), SubmitError> {
        self.writing.shared.queue.admit()
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.writing
            .shared
            .observers
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(observer);
    }

    fn node(&self) -> i64 {
        self.writing.node
    }

    fn epoch(&self) -> i64 {
        self.writing.epoch
    }

    fn root_secret(&self) -> RootSecret {
        self.writing.root_secret.clone()
    }

    fn gauges(&self) -> &Gauges {
        &self.writing.shared.gauges
    }

    fn failure(&self) -> Option<Failure> {
        self.writing.shared.queue.failure()
    }

    fn close(&self) {
        self.writing.close();
    }
}
