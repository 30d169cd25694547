//! Options for opening a store in an SQLite file.

use std::time::Duration;

use tollgate_clock::Timestamp;

use super::lock::Lock;
use crate::engine::NewRun;
use crate::error::Failure;
use crate::rows::RootSecret;

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
    /// This node's number; a single node has 1.
    pub node: i64,
    /// The node's name in the store.
    pub node_name: String,
    /// Maximum number of units in one commit.
    pub batch_max: usize,
    /// Maximum number of units in the queue; new operations are refused from three quarters of the queue on.
    pub queue_max: usize,
    /// Number of journal records from which on a posting is due, for any number of accounts; for few accounts the posting is due sooner.
    /// The number limits the records that readers add up and a start replays.
    pub post_records: usize,
    /// How long an opening waits for another program's lock on the file.
    pub busy_timeout: Duration,
    /// The maximum size of the file in pages of 4096 bytes; beyond the maximum the store stops as on a full disk. `None` for no limit.
    pub pages_max: Option<u32>,
    /// The time of opening.
    pub now: Timestamp,
    /// 32 random bytes, stored as the root secret if the store is new.
    pub random: RootSecret,
    /// A monotonic clock in microseconds, for the gauges.
    pub monotonic_us: Box<dyn Fn() -> u64 + Send>,
    /// Called once when the store stops for good, except by [`crate::Store::close`]; the process has to exit with an error. The call is
    /// made on a thread of the store and must not block.
    pub on_failure: Box<dyn Fn(&Failure) + Send + Sync>,
    /// The lock on the file, when received from another process; `None` to take the lock.
    pub lock: Option<Lock>,
    /// The epoch of the run that has handed the store over and still serves requests: the run's holds and claims are not orphans.
    pub predecessor: Option<i64>,
    /// Whether the file may lack durable commits: an operator has accepted their loss.
    pub accepts_loss: bool,
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
            predecessor: None,
            accepts_loss: false,
            fenced: true,
        }
    }

    /// The run of the node that opens the store.
    pub(crate) fn run(&self) -> NewRun<'_> {
        NewRun {
            node: self.node,
            name: &self.node_name,
            now: self.now,
        }
    }
}
