//! The row traits: how the store reads and writes the rows of an engine, and how it begins and ends a commit.
//!
//! An engine stores rows and decides nothing. What a commit contains, how it is packed and sealed, when it is posted and what a repair
//! keeps is decided above, and the statements for the rows are those of `tables`, once for all engines. An engine has its connections, the
//! session of its writer, and what SQL does not say.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

use tollgate_sql::{EngineError, RowError, Sql};

use super::error::WriteError;
use crate::allotment::{
    AllotmentRow, CapAllotmentRow, CapRow, KeyCap, KeySpending, Purse, Recall, SharedBalance,
};
use crate::audit_log::AuditRecord;
use crate::carry::{CarriedNode, CarriedRow, CarriedSum, RecordDigest, RowDigest};
use crate::codes::{ChangeKind, LoginKind};
use crate::entries::Seal;
use crate::error::Failure;
use crate::idempotency::{IdempotencyKey, IdempotencyRow};
use crate::plan::{PaymentRow, SubscriptionRow};
use crate::reads::DayTotals;
use crate::rows::{AccountRow, CredentialRow, LoginRow, OpenHold, PriceRow};
use crate::store::{BatchRows, ChangeRow, StoreSize};
use crate::unit::{LoadedAccount, Part};
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
pub(crate) trait Epochs {
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

/// Reads of rows. Within a transaction all of them see one snapshot.
pub(crate) trait Rows: Sql {
    /// Visits bodies of the journal.
    fn bodies(&self, which: JournalRows, each: &mut EachBody<'_>) -> Result<(), RowError>;

    /// Visits the bodies of one node, newest first, until `each` breaks.
    fn newest_bodies(
        &self,
        node: i64,
        each: &mut dyn FnMut(&[u8]) -> ControlFlow<()>,
    ) -> Result<(), RowError>;

    /// Visits every commit: body and seal.
    fn commits(&self, each: &mut dyn FnMut(BatchRows)) -> Result<(), RowError>;

    /// The size of the database.
    fn size(&self) -> Result<StoreSize, RowError>;

    /// The ids of all commits, in order.
    fn commit_ids(&self) -> Result<Vec<i64>, RowError>;

    /// The commits of a node after an id, in order, until `limit`.
    fn commits_after(
        &self,
        node: i64,
        after: i64,
        limit: usize,
    ) -> Result<Vec<BatchRows>, RowError>;

    /// The number of the last removal of commits, 0 before the first, and the digest of the carried rows.
    fn carry(&self) -> Result<(i64, RowDigest), RowError>;

    /// Visits all carried rows.
    fn carried(&self, each: &mut dyn FnMut(CarriedRow)) -> Result<(), RowError>;

    /// Visits the nodes whose journal has removed commits, in order.
    fn carried_nodes(&self, each: &mut dyn FnMut(CarriedNode)) -> Result<(), RowError>;

    /// The sums of the removed records of an account in the journal of a node.
    fn carried_sum(&self, account: AccountId, node: i64) -> Result<Option<CarriedSum>, RowError>;

    /// The carried total with the key of another one.
    fn carried_day(&self, account: AccountId, key: &UsageDay)
    -> Result<Option<UsageDay>, RowError>;

    /// Visits what the pages of accounts have of removed records.
    fn carried_pages(&self, each: &mut dyn FnMut(AccountId, RecordDigest)) -> Result<(), RowError>;

    /// One commit.
    fn commit(&self, id: i64) -> Result<Option<BatchRows>, RowError>;

    /// The hash of a node's last commit.
    fn last_hash(&self, node: i64) -> Result<Option<[u8; 32]>, RowError>;

    /// The number of the last commit of a run, 0 before the first.
    fn last_number(&self, node: i64, epoch: i64) -> Result<i64, RowError>;

    /// Visits every node with the id of its last posted row, 0 before the first, in the order of the nodes.
    fn posted_marks(&self, each: &mut dyn FnMut(i64, i64)) -> Result<(), RowError>;

    /// Visits the holds that were open when their node last posted, in no order.
    fn posted_holds(&self, each: &mut dyn FnMut(OpenHold)) -> Result<(), RowError>;

    /// Visits accounts as they were last posted.
    fn posted_accounts(
        &self,
        which: Accounts<'_>,
        each: &mut dyn FnMut(AccountRow),
    ) -> Result<(), RowError>;

    /// Visits accounts for the ledger of a node, as they were last posted.
    fn load_accounts(
        &self,
        node: i64,
        accounts: &[AccountId],
        each: &mut dyn FnMut(AccountId, LoadedAccount),
    ) -> Result<(), RowError>;

    /// The credit of all accounts as it was posted last, without those below zero.
    fn posted_owed(&self) -> Result<i64, RowError>;

    /// Every rate class that an account has.
    fn account_classes(&self) -> Result<Vec<Arc<str>>, RowError>;

    /// Visits the balances that a node has of accounts, as they were last posted; one that does not exist has none.
    fn posted_balances(
        &self,
        node: i64,
        accounts: &[AccountId],
        each: &mut dyn FnMut(AccountId, Balance),
    ) -> Result<(), RowError>;

    /// Visits the allotments of a node as they were last posted.
    fn allotments(&self, node: i64, each: &mut dyn FnMut(AllotmentRow)) -> Result<(), RowError>;

    /// Visits the shared balances of accounts; one that does not exist has none.
    fn shared_balances(
        &self,
        accounts: &[AccountId],
        each: &mut dyn FnMut(AccountId, SharedBalance),
    ) -> Result<(), RowError>;

    /// Whether a node other than this one has not answered a recall of a purse.
    fn is_recall_pending(&self, node: i64, purse: Purse, recall: i64) -> Result<bool, RowError>;

    /// Visits what a node has of caps, as it was last posted.
    fn cap_allotments(
        &self,
        node: i64,
        each: &mut dyn FnMut(CapAllotmentRow),
    ) -> Result<(), RowError>;

    /// The rows of a cap.
    fn cap_rows(&self, cap: KeyCap) -> Result<Vec<CapRow>, RowError>;

    /// The months in which nodes have parts of the monthly cap of a key.
    fn cap_months(&self, credential: CredentialId) -> Result<Vec<Month>, RowError>;

    /// The recall of a purse.
    fn recall(&self, purse: Purse) -> Result<Recall, RowError>;

    /// Visits the changes after a number, in the order of their commits, until `limit`.
    fn changes(
        &self,
        after: i64,
        limit: usize,
        each: &mut dyn FnMut(ChangeRow),
    ) -> Result<FeedBounds, RowError>;

    /// Visits the caps of keys whose changes some node has not read, of which other nodes have rows and this one has none.
    fn changed_caps_without(&self, node: i64, each: &mut dyn FnMut(KeyCap))
    -> Result<(), RowError>;

    /// Visits the recalls in force of accounts that a node has not answered, and those of all caps: purse and number.
    fn recalls(&self, node: i64, each: &mut dyn FnMut(Purse, i64)) -> Result<(), RowError>;

    /// Visits pages of one account.
    fn pages(&self, which: PageRange, each: &mut EachPage<'_>) -> Result<(), RowError>;

    /// Visits every page.
    fn all_pages(&self, each: &mut EachPage<'_>) -> Result<(), RowError>;

    /// Visits usage totals as they were last posted.
    fn usage_days(&self, which: DayRange, each: &mut EachDay<'_>) -> Result<(), RowError>;

    /// Whether the usage totals of every node include its last posted row.
    fn are_days_posted(&self) -> Result<bool, RowError>;

    /// Operation, code of the kind and amount that a reference of an account is booked as.
    fn booked(
        &self,
        account: AccountId,
        reference: &str,
    ) -> Result<Option<(OperationId, i64, Micros)>, RowError>;

    /// Visits every booked reference.
    fn bookings(&self, each: &mut dyn FnMut(Booking<'_>)) -> Result<(), RowError>;

    /// Visits every version of every price, in the order of their start.
    fn prices(&self, each: &mut dyn FnMut(PriceRow)) -> Result<(), RowError>;

    /// Visits every payment for the plan.
    fn payments(&self, each: &mut dyn FnMut(PaymentRow)) -> Result<(), RowError>;

    /// Visits every subscription.
    fn subscriptions(&self, each: &mut dyn FnMut(SubscriptionRow)) -> Result<(), RowError>;

    /// Visits every record of the audit log, by node and number.
    fn audit_records(&self, each: &mut dyn FnMut(AuditRecord)) -> Result<(), RowError>;

    /// Number and hash of the last record of a node in the audit log.
    fn last_audit_record(&self, node: i64) -> Result<Option<(i64, [u8; 32])>, RowError>;

    /// The account that a login signs in to.
    fn account_of_login(
        &self,
        kind: LoginKind,
        address: &str,
    ) -> Result<Option<AccountId>, RowError>;

    /// Visits the logins of one account.
    fn logins(&self, account: AccountId, each: &mut dyn FnMut(LoginRow)) -> Result<(), RowError>;

    /// Visits credentials.
    fn credentials(
        &self,
        which: Credentials<'_>,
        each: &mut dyn FnMut(CredentialRow),
    ) -> Result<(), RowError>;

    /// The state of an idempotency key.
    fn idempotency(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRow>, RowError>;
}

/// Writes of rows, in the open transaction.
pub(crate) trait WriteRows: Rows {
    /// Begins a unit of several parts: a savepoint.
    fn begin_unit(&self) -> Result<(), EngineError>;

    /// Keeps what was written since [`WriteRows::begin_unit`].
    fn keep_unit(&self) -> Result<(), EngineError>;

    /// Undoes what was written since [`WriteRows::begin_unit`].
    fn undo_unit(&self) -> Result<(), EngineError>;

    /// Adds a record to the audit log.
    fn insert_audit_record(&self, record: &AuditRecord) -> Result<(), EngineError>;

    /// Writes a part that is neither of the ledger nor of the audit log to its tables.
    fn write_part(&self, part: &Part) -> Result<(), WriteError>;

    /// Writes a row of the feed of changes.
    fn insert_change(
        &self,
        id: [u8; 16],
        at: Timestamp,
        kind: ChangeKind,
        subject: &[u8; 16],
        number: i64,
    ) -> Result<(), EngineError>;

    /// Removes changes that every node has read, some thousands at most.
    fn prune_changes(&self) -> Result<(), RowError>;

    /// The number of the next change of the cluster. The commit has the lock of what nodes share.
    fn next_number(&self) -> Result<i64, RowError>;

    /// Adds to the shared balances of accounts, or takes from them.
    fn move_shared(&self, moves: &BTreeMap<AccountId, i64>) -> Result<(), EngineError>;

    /// Inserts allotments of a node, or opens them again after they were empty, each with the recall that the node knows of.
    fn open_allotments(
        &self,
        node: i64,
        opened: &BTreeMap<AccountId, i64>,
    ) -> Result<(), EngineError>;

    /// Inserts a node's row of a cap; what other months of the key have is deleted, but for the month before.
    fn insert_cap_row(
        &self,
        node: i64,
        cap: KeyCap,
        granted: i64,
        spent: i64,
        recall: i64,
    ) -> Result<(), EngineError>;

    /// Opens a node's row of a cap again after it was empty, as [`WriteRows::open_allotments`].
    fn open_cap_row(&self, node: i64, cap: KeyCap, recall: i64) -> Result<(), EngineError>;

    /// Adds to what a node was granted of a cap, if it has a row.
    fn grant_cap(&self, node: i64, cap: KeyCap, by: i64) -> Result<(), EngineError>;

    /// The same; `false` when it has none.
    fn try_grant_cap(&self, node: i64, cap: KeyCap, by: i64) -> Result<bool, EngineError>;

    /// Adds what was charged to keys to what their node has spent of caps.
    fn spend_caps(&self, node: i64, spent: &KeySpending) -> Result<(), EngineError>;

    /// Records the answers of a node to recalls of accounts, each up to a number.
    fn answer_recalls(
        &self,
        node: i64,
        answers: &BTreeMap<AccountId, i64>,
    ) -> Result<(), EngineError>;

    /// Records the answer of a node to recalls of a cap up to a number.
    fn answer_cap_recall(&self, node: i64, cap: KeyCap, number: i64) -> Result<(), EngineError>;

    /// Answers every recall of every purse for a node.
    fn leave(&self, node: i64) -> Result<(), EngineError>;

    /// Begins or changes the recall of a purse, or ends it with the number 0.
    fn set_recall(&self, purse: Purse, recall: Recall) -> Result<(), EngineError>;

    /// Whether there is an account.
    fn account_exists(&self, account: AccountId) -> Result<bool, RowError>;

    /// Books a reference.
    fn book(&self, booking: Booking<'_>) -> Result<(), EngineError>;

    /// Sets the posted balances of a node, in the order of the accounts.
    fn post_balances(
        &self,
        node: i64,
        balances: &[(AccountId, Balance)],
    ) -> Result<(), EngineError>;

    /// Removes holds that have ended since they were posted.
    fn remove_holds(&self, ended: &[OperationId]) -> Result<(), EngineError>;

    /// Inserts holds that have begun since the last posting.
    fn insert_holds<'h>(
        &self,
        begun: impl Iterator<Item = &'h OpenHold>,
    ) -> Result<(), EngineError>;

    /// Inserts pages of postings, which `feed` passes on.
    fn insert_pages(&self, feed: &mut PageFeed<'_>) -> Result<(), EngineError>;

    /// Adds to the usage totals.
    fn add_usage_days(&self, totals: &DayTotals) -> Result<(), EngineError>;

    /// Removes all usage totals.
    fn remove_usage_days(&self) -> Result<(), EngineError>;

    /// Sets the mark of the usage totals of every node to its last posted row.
    fn set_days_posted(&self) -> Result<(), EngineError>;

    /// Sets the marks of the last posted row of a node, whose usage totals include it too.
    fn set_posted(&self, node: i64, row: i64) -> Result<(), EngineError>;

    /// Sets number of the last removal of commits and digest of the carried rows.
    fn put_carry(&self, number: i64, digest: &RowDigest) -> Result<(), EngineError>;

    /// Inserts a carried row, or replaces the one with its key.
    fn put_carried(&self, row: &CarriedRow) -> Result<(), EngineError>;

    /// Removes a carried record and returns it, if there is one.
    fn remove_carried_record(&self, operation: OperationId)
    -> Result<Option<CarriedRow>, RowError>;

    /// Adds to what the pages of an account have of removed records.
    fn add_carried_pages(&self, account: AccountId, more: RecordDigest) -> Result<(), RowError>;

    /// Takes a total off the posted one with its key.
    fn take_usage_day(&self, account: AccountId, day: &UsageDay) -> Result<(), EngineError>;

    /// Removes the pages of an account that end in a row of a range (both inclusive) and no later than `until`, and visits their bodies.
    fn remove_pages(
        &self,
        account: AccountId,
        rows: (i64, i64),
        until: Timestamp,
        each: &mut dyn FnMut(&[u8]),
    ) -> Result<(), RowError>;

    /// Removes the commits after an id, up to and including another of the same node.
    fn remove_commits(&self, after: i64, last: i64) -> Result<(), EngineError>;
}

/// Writes that a recovery alone makes, in the open transaction.
pub(crate) trait RecoverRows: WriteRows + Epochs {
    /// Removes everything derived from the journal: balances, holds, pages, usage totals, bookings and marks.
    fn remove_derived(&self) -> Result<(), EngineError>;

    /// Inserts a commit, or replaces the one with its id.
    fn put_commit(&self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), EngineError>;

    /// Removes a commit.
    fn remove_commit(&self, id: i64) -> Result<(), EngineError>;

    /// Inserts a node, or raises its epoch to at least this one.
    fn put_node(&self, node: i64, epoch: i64) -> Result<(), EngineError>;
}

/// How a commit has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Committed {
    Durable,
    Sent,
}

/// One writer's connection, with the statements of every commit prepared.
///
/// A commit is `begin`, writes to `rows`, at most one `insert_commit`, and `commit`. An engine may delay `begin` until the first write, and
/// send a commit that is only `insert_commit` as one statement with the fence inside it.
pub(crate) trait Session {
    /// The rows.
    type Rows: WriteRows;

    /// Whether commits are sent to a server, so that the next one can be sent before one is durable.
    const SENDS: bool = false;

    /// The rows of the open transaction.
    fn rows(&self) -> &Self::Rows;

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
