//! Options for opening a store in a PostgreSQL database.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_clock::{Clock, Timestamp};

use crate::error::Failure;
use crate::outage::OutageTimes;
use crate::rows::RootSecret;
use tollgate_postgres::DatabaseUrl;

/// What a node is among those of its database.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeRole {
    /// The only one: it has all credit of every account.
    Alone,
    /// One of several, each with a name of its own, and with allotments of the accounts' credit.
    OneOfMany,
    /// The node with this number, whose process has ended: it is opened to return what it has left.
    Recovery(i64),
}

/// The spool of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SpoolOptions {
    /// Its folder, on a local disk, of this node alone; created if it is missing.
    pub folder: PathBuf,
    /// Bytes that it may have.
    pub bytes_max: u64,
}

/// Options for opening a store.
pub struct Options {
    /// The database.
    pub url: DatabaseUrl,
    /// The password of its user, where the server asks for one.
    pub password: Option<Box<[u8]>>,
    /// The node's name in the store.
    pub node_name: String,
    /// What the node is among those of the database.
    pub role: NodeRole,
    /// A recovery that no operator has asked for: it is refused, without a wait, while the node's process may still end answers.
    pub is_automatic: bool,
    /// Maximum number of units in one commit.
    pub batch_max: usize,
    /// Maximum number of units in the queue; new operations are refused from three quarters of it on.
    pub queue_max: usize,
    /// Number of journal records from which on they are posted for any number of accounts.
    pub post_records: usize,
    /// The time of opening.
    pub now: Timestamp,
    /// The run that has handed the store over and still serves requests: its holds and claims are not orphans.
    pub predecessor: Option<i64>,
    /// 32 random bytes, stored as the root secret if the store is new.
    pub random: RootSecret,
    /// A monotonic clock in microseconds, for the gauges.
    pub monotonic_us: Arc<dyn Fn() -> u64 + Send + Sync>,
    /// How long the node goes on without the database.
    pub outage: OutageTimes,
    /// The clock of an outage.
    pub clock: Clock,
    /// Where charges are written while the database does not answer; `None`: answers wait for it.
    pub spool: Option<SpoolOptions>,
    /// Called once when the store stops for good for any reason but [`crate::Store::close`]; the process has to exit with an error. The call
    /// is made on a thread of the store and must not block.
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
