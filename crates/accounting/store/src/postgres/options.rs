//! Options for opening a store in a PostgreSQL database.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_clock::{Clock, Timestamp};

use crate::error::Failure;
use crate::outage::OutageTimes;
use crate::rows::RootSecret;
use tollgate_postgres::DatabaseUrl;

/// The role of a node in its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// The only node: it has all credit of every account.
    Alone,
    /// One of several nodes, each with a separate name, and with allotments of the accounts' credit.
    OneOfMany,
    /// Opens the node with this number, whose process has ended, to return its remaining state.
    Recovery(i64),
}

/// The spool of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// The spool's folder, on a local disk, of this node alone; created if missing.
    pub folder: PathBuf,
    /// Maximum size of the spool, in bytes.
    pub bytes_max: u64,
}

/// Options for opening a store.
pub struct Options {
    /// The database.
    pub url: DatabaseUrl,
    /// The password of the database's user, where the server asks for a password.
    pub password: Option<Box<[u8]>>,
    /// The node's name in the store.
    pub node_name: String,
    /// The role of the node in the database.
    pub role: NodeRole,
    /// A recovery that no operator has asked for: refused, without a wait, while the node's process may still end answers.
    pub is_automatic: bool,
    /// Maximum number of units in one commit.
    pub batch_max: usize,
    /// Maximum number of units in the queue; new operations are refused from three quarters of the queue on.
    pub queue_max: usize,
    /// Number of journal records from which on a posting is due, for any number of accounts.
    pub post_records: usize,
    /// The time of opening.
    pub now: Timestamp,
    /// The epoch of the run that has handed the store over and still serves requests: the run's holds and claims are not orphans.
    pub predecessor: Option<i64>,
    /// 32 random bytes, stored as the root secret if the store is new.
    pub random: RootSecret,
    /// A monotonic clock in microseconds, for the gauges.
    pub monotonic_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// How long the node goes on without the database.
    pub outage: OutageTimes,
    /// The clock of an outage.
    pub clock: Clock,
    /// Where charges are written while the database does not answer; with `None`, answers wait for the database.
    pub spool: Option<SpoolOptions>,
    /// Called once when the store stops for good, except by [`crate::Store::close`]; the process has to exit with an error. The call is
    /// made on a thread of the store and must not block.
    pub on_failure: Box<dyn Fn(&Failure) + Send + Sync>,
}

impl Options {
    /// The defaults: commits of up to 1024 units, a queue of 16,384.
    pub fn new(url: DatabaseUrl, now: Timestamp, random: RootSecret) -> Options {
        Options {
            url,
            password: None,
            node_name: String::from("gateway"),
            role: NodeRole::Alone,
            is_automatic: false,
            batch_max: 1024,
            queue_max: 16_384,
            post_records: 65_536,
            now,
            predecessor: None,
            random,
            monotonic_us: Arc::new(|| 0),
            outage: OutageTimes::default(),
            clock: Clock::system(),
            spool: None,
            on_failure: Box::new(|_| {}),
        }
    }
}
