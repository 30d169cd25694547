//! The embedded store: one SQLite file beside its log and its lock.
//!
//! One thread owns the writing connection and commits in groups: it takes whatever waits, writes it in one transaction, and while
//! the disk syncs the next group gathers. There is no timer; the sync is the window. A second thread moves the log into the main
//! file. Reads use connections of their own.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use crate::error::{Failure, OpenError};
use crate::rows::RootSecret;
use crate::store::{Read, Store};

/// What a commit survives.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Loss of power: every commit is synced to the disk.
    #[default]
    Power,
    /// The end of the process in any way, but not loss of power or of the operating system.
    Process,
}

/// How a store is opened.
pub struct Options {
    /// What a commit survives.
    pub durability: Durability,
    /// This node's number; one node has 1.
    pub node: i64,
    /// The name it goes by in the store.
    pub node_name: String,
    /// Units in one commit at most.
    pub batch_max: usize,
    /// Units in the queue at most; beginnings are refused from three quarters of it on.
    pub queue_max: usize,
    /// How long to wait for a lock that another program holds on the file.
    pub busy_timeout: Duration,
    /// The time of opening, in Unix microseconds.
    pub now: i64,
    /// 32 random bytes, kept as the root secret if the store is new.
    pub random: RootSecret,
    /// A clock that never goes back, in microseconds, for the gauges.
    pub monotonic_us: Box<dyn Fn() -> u64 + Send>,
    /// Called once, from the writer's thread, when the store stops for good for any reason but [`Store::close`]. The process
    /// has to end with an error.
    pub on_failure: Box<dyn Fn(&Failure) + Send>,
}

impl Options {
    /// The defaults: durable against loss of power, node 1, commits of up to 1024 units, a queue of 16,384.
    pub fn new(now: i64, random: RootSecret) -> Options {
        Options {
            durability: Durability::Power,
            node: 1,
            node_name: String::from("gateway"),
            batch_max: 1024,
            queue_max: 16_384,
            busy_timeout: Duration::from_secs(5),
            now,
            random,
            monotonic_us: Box::new(|| 0),
            on_failure: Box::new(|_| {}),
        }
    }
}

/// Opens the store at `path`, or makes it, and takes it for this process.
pub fn open(path: &Path, options: Options) -> Result<Arc<dyn Store>, OpenError> {
    let _ = (path, options);
    unimplemented!("written next")
}

/// Opens the store at `path` to look at it, beside a gateway that serves from it or with none.
pub fn open_read(path: &Path) -> Result<Arc<dyn Read>, OpenError> {
    let _ = path;
    unimplemented!("written next")
}

/// Writes a consistent copy of the store at `path` to the new file `to`, while a gateway serves from it or with none.
pub fn backup(path: &Path, to: &Path) -> Result<(), OpenError> {
    let _ = (path, to);
    unimplemented!("written next")
}
