//! The session of a writer, which begins and ends commits, and the values that select rows.
//!
//! An engine stores rows and decides nothing. The content of a commit, its packing and its seal, the time of a posting and the result of a
//! repair are decided above, and the statements are those of `tables`, once for all engines. An engine has its connections, the session of
//! its writer, and the acts for which there is no SQL.

use std::fs::File;
use std::ops::ControlFlow;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

use tollgate_sql::{EngineError, RowError, Sql};

use super::error::WriteError;
use crate::entries::Seal;
use crate::error::Failure;
use crate::usage::UsageDay;

/// Rows of the journal, in the order of their ids. Before them come the carried records of removed rows: each a body of its own, with the id
/// of its row. They count as posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalRows {
    /// Every row.
    All,
    /// The rows that each node has posted.
    Posted,
    /// The rows of each node after its last posted one.
    Unposted,
    /// The rows of one node.
    OfNode(i64),
    /// The rows of one node after its last posted one.
    UnpostedOfNode(i64),
    /// None: carried records alone.
    Carried,
}

/// Selects accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accounts<'a> {
    /// Every account.
    All,
    /// These.
    Of(&'a [AccountId]),
    /// At most so many after an account, in the order of their ids.
    After(Option<AccountId>, usize),
}

/// Selects credentials.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Credentials<'c> {
    /// Those neither revoked nor expired at a time.
    ValidAt(Timestamp),
    /// Those of one account, oldest first.
    OfAccount(AccountId),
    /// The one whose secret has this digest.
    WithHash(&'c [u8; 32]),
    /// The one with this id.
    WithId(CredentialId),
}

/// Selects pages of one account's postings that may have records in a range of time.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PageRange {
    pub(crate) account: AccountId,
    /// Inclusive.
    pub(crate) from: Timestamp,
    /// Exclusive.
    pub(crate) to: Timestamp,
    pub(crate) order: PageOrder,
}

/// Selects usage totals.
#[derive(Clone, Copy, Debug)]
pub(crate) enum DayRange {
    /// Every total of the records in the journal: without those of removed ones.
    Posted,
    /// Those of the days of one account that start in a range of time.
    Of {
        account: AccountId,
        /// Inclusive.
        from: Timestamp,
        /// Exclusive.
        to: Timestamp,
    },
}

/// The order of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageOrder {
    None,
    /// By the time of the last record, the latest first.
    NewestFirst,
    /// By the time of the last record, the earliest first.
    OldestFirst,
}

/// A page of postings: records of one account, packed like a row of the journal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Page<'p> {
    pub(crate) account: AccountId,
    /// The journal row of its last record.
    pub(crate) row: i64,
    /// The times of its first and its last record.
    pub(crate) at_min: Timestamp,
    pub(crate) at_max: Timestamp,
    pub(crate) body: &'p [u8],
}

/// Passes on pages to be inserted.
pub(crate) type PageFeed<'f> =
    dyn FnMut(&mut dyn FnMut(Page<'_>) -> Result<(), EngineError>) -> Result<(), EngineError> + 'f;

/// The fields of an account that the journal changes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Balance {
    pub(crate) available: i64,
    pub(crate) held: i64,
    pub(crate) credit_limit: i64,
    pub(crate) at: Timestamp,
}

/// What a reference of an account was booked as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Booking<'r> {
    pub(crate) account: AccountId,
    pub(crate) reference: &'r str,
    pub(crate) operation: OperationId,
    /// The code of its kind of entry.
    pub(crate) kind: i64,
    pub(crate) amount: Micros,
}

/// A new run of a node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NewRun<'r> {
    pub(crate) node: i64,
    /// The node's name.
    pub(crate) name: &'r str,
    pub(crate) now: Timestamp,
}

/// Receives each body, with the id of its row.
pub(crate) type EachBody<'a> = dyn FnMut(i64, &[u8]) -> Result<(), RowError> + 'a;

/// Receives pages until it breaks.
pub(crate) type EachPage<'a> = dyn FnMut(Page<'_>) -> Result<ControlFlow<()>, RowError> + 'a;

/// Receives the usage totals of an account.
pub(crate) type EachDay<'a> = dyn FnMut(AccountId, UsageDay) + 'a;

/// The runs of a node as the engine counts them.
pub(crate) trait Epochs: Sql {
    /// Raises the epoch of a node above each that the engine knows of: the runs before it are fenced off, and their holds are orphans.
    fn raise_epoch(&self, run: &NewRun<'_>) -> Result<i64, WriteError>;
}

/// Which changes the feed has, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FeedBounds {
    /// The number of the last change that is removed.
    pub(crate) pruned: i64,
    /// The number of the last change.
    pub(crate) last: i64,
}

/// How a commit has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    Durable,
    Sent,
}

/// One writer's connection, with the statements of every commit prepared.
///
/// A commit is `begin`, statements on `sql`, at most one `insert_commit`, and `commit`. An engine may delay `begin` until the first write, and
/// send a commit that is only `insert_commit` as one statement with the fence inside it.
pub(crate) trait Session {
    /// Whether commits are sent to a server, so that the next one can be sent before one is durable.
    const SENDS: bool = false;

    /// The connection, for statements of the open transaction.
    fn sql(&self) -> &dyn Sql;

    /// Begins a transaction and checks the fence: no later run of this node has opened the store. After an error no transaction is open.
    fn begin(&mut self) -> Result<(), WriteError>;

    /// The same for a transaction of statements whose results are not needed, which [`Session::send_commit`] may send as a whole.
    fn begin_write_only(&mut self) -> Result<(), WriteError> {
        self.begin()
    }

    /// Locks what all nodes of a cluster write, before it is read in this commit. Nothing to do for a node that is alone.
    fn lock_shared(&mut self) -> Result<(), WriteError> {
        Ok(())
    }

    /// Inserts the journal row of this commit.
    fn insert_commit(&mut self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), EngineError>;

    /// Ends the transaction durably. Returns only when its outcome is known.
    fn commit(&mut self) -> Result<(), EngineError>;

    /// Ends the transaction. If it is only sent, [`Session::wait_for_sent`] returns its outcome, and it is durable before all later ones; otherwise
    /// it is durable, and those that were sent before are.
    fn send_commit(&mut self) -> Result<Committed, EngineError> {
        self.commit().map(|()| Committed::Durable)
    }

    /// Waits until the oldest commit that was sent is durable, at most for a time; `false` when that is not known then. After an error none of
    /// those that were sent is known to be.
    fn wait_for_sent(&mut self, _within: Option<Duration>) -> Result<bool, EngineError> {
        Ok(true)
    }

    /// Ends the transaction without its changes.
    fn rollback(&mut self);

    /// Checks between two transactions that no later run of this node has begun, on an engine where that takes a moment of its own.
    fn check_fence(&self) -> Result<(), EngineError> {
        Ok(())
    }

    /// Whether [`Session::maintain`] has something to do before the next commit.
    fn needs_maintenance(&self) -> bool;

    /// Maintains the engine's files between two commits; `false` when nothing was done.
    fn maintain(&mut self) -> Result<bool, Failure>;
}

/// The writer's side of an open engine, moved to the writer's thread.
pub(crate) trait Engine: Send + 'static {
    /// Its connection while the writer runs.
    type Session<'e>: Session;

    /// Prepares the statements of every commit.
    fn session(&self) -> Result<Self::Session<'_>, Failure>;

    /// What an error of the engine means for the operator; the message names the store.
    fn failure(&self, error: EngineError) -> Failure;

    /// The name of the store, for messages.
    fn name(&self) -> String;

    /// Closes the connection after the writer has stopped for this reason. With `hands_over` the locks on the files stay held, and the open
    /// files that hold them are returned.
    fn close(self, stopped: Option<&Failure>, hands_over: bool) -> Vec<File>;
}
