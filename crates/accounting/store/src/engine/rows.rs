//! The session of a writer, which begins and ends commits, and the values that select rows.
//!
//! An engine stores rows and decides nothing. The layer above decides the content of a commit, its packing and its seal, the time of a
//! posting and the result of a repair. The statements are in `tables`, shared by all engines. An engine has its connections, the session of
//! its writer, and the acts without SQL.

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

/// Rows of the journal, in the order of their ids. The carried records of removed rows precede the rows. A carried record has its own body,
/// with the id of the removed row. Carried records count as posted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum JournalRows {
    /// Every row.
    All,
    /// The rows that each node has posted.
    Posted,
    /// The rows of each node after the node's last posted row.
    Unposted,
    /// The rows of one node.
    OfNode(i64),
    /// The rows of a node after its last posted row.
    UnpostedOfNode(i64),
    /// No rows, only carried records.
    Carried,
}

/// Selects accounts.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Accounts<'a> {
    /// Every account.
    All,
    /// The named accounts.
    Of(&'a [AccountId]),
    /// At most a number of accounts after an account, in the order of their ids.
    After(Option<AccountId>, usize),
}

/// Selects credentials.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Credentials<'c> {
    /// Credentials neither revoked nor expired at a time.
    ValidAt(Timestamp),
    /// Credentials of an account, oldest first.
    OfAccount(AccountId),
    /// The credential whose secret has this digest.
    WithHash(&'c [u8; 32]),
    /// The credential with this id.
    WithId(CredentialId),
}

/// Selects pages of an account's postings that may have records in a range of time.
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
    /// Every total of the records in the journal, without removed records.
    Posted,
    /// Totals of an account's days that start in a range of time.
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
    /// The journal row of the last record.
    pub(crate) row: i64,
    /// The times of the first and the last record.
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

/// The booking of an account's reference.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Booking<'r> {
    pub(crate) account: AccountId,
    pub(crate) reference: &'r str,
    pub(crate) operation: OperationId,
    /// The code of the kind of entry.
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

/// Receives every body, with the id of its row.
pub(crate) type EachBody<'a> = dyn FnMut(i64, &[u8]) -> Result<(), RowError> + 'a;

/// Receives pages until the callback breaks.
pub(crate) type EachPage<'a> = dyn FnMut(Page<'_>) -> Result<ControlFlow<()>, RowError> + 'a;

/// Receives the usage totals of an account.
pub(crate) type EachDay<'a> = dyn FnMut(AccountId, UsageDay) + 'a;

/// The runs of a node as the engine counts the runs.
pub(crate) trait Epochs: Sql {
    /// Raises the node's epoch above every epoch known to the engine. Fences off earlier runs; the holds of earlier runs are orphans.
    fn raise_epoch(&self, run: &NewRun<'_>) -> Result<i64, WriteError>;
}

/// The range of changes in the feed, at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FeedBounds {
    /// The number of the last removed change.
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

/// A writer's connection, with the statements of every commit prepared.
///
/// A commit is `begin`, statements on `sql`, at most one `insert_commit`, and `commit`. An engine may delay `begin` until the first write.
/// An engine may send a commit with only `insert_commit` as a single statement with the fence inside.
pub(crate) trait Session {
    /// Whether commits are sent to a server: the next commit can be sent before the last commit is durable.
    const SENDS: bool = false;

    /// The connection, for statements of the open transaction.
    fn sql(&self) -> &dyn Sql;

    /// Begins a transaction and checks the fence: no later run of the node has opened the store. After an error no transaction is open.
    fn begin(&mut self) -> Result<(), WriteError>;

    /// [`Session::begin`] for statements whose results are not needed. [`Session::send_commit`] may send the transaction as a whole.
    fn begin_write_only(&mut self) -> Result<(), WriteError> {
        self.begin()
    }

    /// Locks the rows that all nodes of a cluster write, before the commit reads the rows. No effect on a lone node.
    fn lock_shared(&mut self) -> Result<(), WriteError> {
        Ok(())
    }

    /// Inserts the journal row of the commit.
    fn insert_commit(&mut self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), EngineError>;

    /// Ends the transaction durably. Returns only when the outcome is known.
    fn commit(&mut self) -> Result<(), EngineError>;

    /// Ends the transaction. For a transaction that is only sent, [`Session::wait_for_sent`] returns the outcome; the transaction is
    /// durable before all later transactions. Otherwise the transaction and every earlier sent transaction are durable.
    fn send_commit(&mut self) -> Result<Committed, EngineError> {
        self.commit().map(|()| Committed::Durable)
    }

    /// Waits until the oldest sent commit is durable, at most `within`; `false` when the outcome is unknown by the end. After an error no
    /// sent commit is known to be durable.
    fn wait_for_sent(&mut self, _within: Option<Duration>) -> Result<bool, EngineError> {
        Ok(true)
    }

    /// Ends the transaction without its changes.
    fn rollback(&mut self);

    /// Checks between two transactions that no later run of the node has begun, on an engine where the check takes time.
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
    /// The connection while the writer runs.
    type Session<'e>: Session;

    /// Prepares the statements of every commit.
    fn session(&self) -> Result<Self::Session<'_>, Failure>;

    /// The meaning of an engine error for the operator; the message names the store.
    fn failure(&self, error: EngineError) -> Failure;

    /// The name of the store, for messages.
    fn name(&self) -> String;

    /// Closes the connection after the writer has stopped, for the given reason. With `hands_over` the locks on the files stay held, and
    /// the open files that hold the locks are returned.
    fn close(self, stopped: Option<&Failure>, hands_over: bool) -> Vec<File>;
}
