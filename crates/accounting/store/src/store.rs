//! The store's traits (`Submit`, `Store`, `Observer`), independent of an engine, and the values of the store's reads.

use std::ops::Deref;
use std::sync::{Arc, mpsc};

use tokio::sync::{Semaphore, oneshot};
use tollgate_money::OperationId;

use crate::carry::OpeningNode;
use crate::codes::ChangeKind;
use crate::entries::{Entry, Seal};
use crate::error::{CommitError, Failure, ReadError, SubmitError};
use crate::gauges::Gauges;
use crate::handover::Handover;
use crate::node_settings::OtherSettings;
use crate::outage::Outage;
use crate::reader::Reader;
use crate::rows::{OpenHold, RootSecret, UsageRow};
use crate::spool::SpooledUnit;
use crate::threads;
use crate::unit::{Admission, Done, Effect, Part, Receipt, UnitOfWork};

/// The size of the database.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreSize {
    /// The store's size in bytes.
    pub bytes: u64,
    /// Free bytes of removed rows, to be reused; 0 for a server, since a server does not report free bytes.
    pub free_bytes: u64,
}

/// Exported commits, compared with the carried state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Their number.
    pub commits: u64,
    /// Whether the exported commits produce the carried state.
    pub is_carried: bool,
}

/// How much of a node's journal is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedJournal {
    /// The node.
    pub node: i64,
    /// The node's removed commits, if any.
    pub carried: Option<OpeningNode>,
    /// Epoch and number of the node's last posted commit, if any.
    pub posted: Option<(i64, i64)>,
}

/// One commit of the journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BatchRows {
    /// The seal.
    pub seal: Seal,
    /// The sealed content: the packed parts.
    pub body: Vec<u8>,
}

/// A change committed by a node of a cluster. Other nodes keep the changed data in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRow {
    /// The change's number, greater than the number of every earlier change.
    pub number: i64,
    /// The kind of the changed data.
    pub kind: ChangeKind,
    /// The id of the account, credential or grant.
    pub subject: [u8; 16],
}

/// All ledger data of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRows {
    /// The operation.
    pub id: OperationId,
    /// The operation's entries in the order of their phases: at most two.
    pub entries: Vec<Entry>,
    /// The operation's open hold.
    pub hold: Option<OpenHold>,
    /// The operation's usage record.
    pub usage: Option<UsageRow>,
    /// Whether the operation id was used more than once, against the rules.
    pub is_duplicate: bool,
}

/// Accepts units of work: the store, or a layer before the store that adds parts to every unit.
pub trait Submit: Send + Sync {
    /// Queues a unit of work and returns at once. `done` is called when the unit is durable, refused, or lost with the store. `done` is not
    /// called when `submit` returns an error.
    ///
    /// Units become durable in queue order: no unit is durable before an earlier unit.
    fn submit(&self, unit: UnitOfWork, done: Done) -> Result<(), SubmitError>;
}

/// A store that the process may write to. At most one process at a time has the store. A `Store` dereferences to the reader of its data.
pub trait Store: Deref<Target = Reader> + Submit {
    /// Whether a unit that starts an operation would be accepted now.
    fn admit(&self) -> Result<(), SubmitError>;

    /// Calls `observer` for every part committed from now on, except entries of single operations. The callers know the entries of single
    /// operations (holds, settlements, releases and charges).
    fn observe(&self, observer: Arc<dyn Observer>);

    /// Passes the changes of other nodes to the observers from now on, beginning with the changes since the store was opened.
    fn follow_changes(&self);

    /// Whether the node is the leader of the cluster. The leader runs the jobs of all nodes, such as the delivery of messages. A lone node
    /// is always the leader.
    fn is_leader(&self) -> bool;

    /// The node's number.
    fn node(&self) -> i64;

    /// Whether the node belongs to a cluster. The nodes of a cluster have allotments of an account's credit.
    fn has_allotments(&self) -> bool {
        crate::commit_id::has_allotments(self.node())
    }

    /// The number of the node's run; holds of an earlier run are orphans.
    fn epoch(&self) -> i64;

    /// The number of the first run whose requests may still be open: the present run, or the run that has handed over the store.
    fn earliest_epoch(&self) -> i64;

    /// 32 random bytes generated when the store was created.
    fn root_secret(&self) -> RootSecret;

    /// The metrics of the writer.
    fn gauges(&self) -> &Gauges;

    /// Authenticates later connections to the database's server with another password; open connections stay. No effect for a file.
    fn replace_password(&self, password: Option<&[u8]>);

    /// The state of the database's answers; `None` for a file.
    fn outage(&self) -> Option<&Outage> {
        None
    }

    /// The units in the spool of the node's earlier run that are not in the journal, in order. Empty after the first call.
    fn take_spooled(&self) -> Vec<SpooledUnit> {
        Vec::new()
    }

    /// Removes the units of [`Store::take_spooled`] from the spool: every unit is durable or void.
    fn spooled_is_durable(&self) {}

    /// Records the digest of the settings that all nodes must share, with the next renewal of the lease. A lone node records nothing.
    fn record_settings(&self, _digest: &str) {}

    /// The running nodes whose settings differ from the node's settings, as of the last renewal of the lease.
    fn other_settings(&self) -> Vec<OtherSettings> {
        Vec::new()
    }

    /// Why the store has stopped, if the store has stopped.
    fn failure(&self) -> Option<Failure>;

    /// Makes the queued units durable and closes the database for another process, without giving up the locks on the files. Later units
    /// wait for [`Handover::forward`]. Blocks.
    ///
    /// # Errors
    ///
    /// When the store has stopped.
    fn hand_over(&self) -> Result<Handover, Failure>;

    /// Accepts no more units, makes the queued units durable, and releases the file. Blocks; a second call does nothing.
    fn close(&self);
}

/// An observer that keeps stored data in memory up to date.
pub trait Observer: Send + Sync {
    /// A part is durable. Called on the writer's thread, in commit order, before a waiting caller is notified: the caller's next read
    /// includes the part. Must not block.
    fn committed(&self, part: &Part, effect: Effect);

    /// A node has changed data that this node keeps in memory. Called on a thread of the store, in commit order and some time after the
    /// commit, for the changes of this node too. May read from the store.
    ///
    /// # Errors
    ///
    /// A necessary read has failed: the change is repeated, before any later change.
    fn changed(&self, _change: &ChangeRow) -> Result<(), ReadError> {
        Ok(())
    }

    /// All changes of one read have been passed. For reads that are needed once per batch of changes.
    ///
    /// # Errors
    ///
    /// A necessary read has failed. The call is repeated, perhaps after further changes.
    fn changes_ended(&self) -> Result<(), ReadError> {
        Ok(())
    }
}

/// Queues a unit and waits until the unit is durable; blocks.
pub fn commit_blocking(store: &dyn Submit, unit: UnitOfWork) -> Result<Receipt, CommitError> {
    let (sender, wait) = mpsc::sync_channel(1);
    let done: Done = Box::new(move |result| {
        // The receiver is waited for below.
        let _ = sender.send(result);
    });
    store.submit(unit, done)?;
    let closed = |_| Err(CommitError::Stopped(Failure::closed()));
    threads::receive(&wait).unwrap_or_else(closed)
}

/// Queues a unit and waits until the unit is durable. Dropping the future does not undo the unit.
pub async fn commit(store: &dyn Submit, unit: UnitOfWork) -> Result<Receipt, CommitError> {
    let (sender, wait) = oneshot::channel();
    let done: Done = Box::new(move |result| {
        // The caller may have been cancelled; the unit is durable all the same.
        let _ = sender.send(result);
    });
    store.submit(unit, done)?;
    wait.await
        .unwrap_or_else(|_| Err(CommitError::Stopped(Failure::closed())))
}

/// [`commit`] for a request without a promise to its client. Refused with [`CommitError::CutOff`] when the database stops answering
/// meanwhile. The unit stays in the queue, and the caller queues a unit that undoes the effect.
pub async fn commit_unless_cut_off(
    store: &dyn Store,
    unit: UnitOfWork,
) -> Result<Receipt, CommitError> {
    let committed = commit(store, unit);
    match store.outage() {
        None => committed.await,
        Some(outage) => tokio::select! {
            biased;
            result = committed => result,
            () = outage.began() => Err(CommitError::CutOff),
        },
    }
}

/// Concurrent readers in total: pages of history read a lot, and must leave processor time to paid completions.
static READERS: Semaphore = Semaphore::const_new(8);

/// Reads on a blocking thread, for callers that must not block. Refused while the database does not answer new operations, also when an
/// outage begins during the read. Otherwise every read would wait for its time limit, and later reads for the earlier reads.
pub async fn reading<T: Send + 'static>(
    store: &Arc<dyn Store>,
    read: impl FnOnce(&Reader) -> Result<T, ReadError> + Send + 'static,
) -> Result<T, ReadError> {
    let failed = |source| ReadError::Engine {
        what: "the requested rows",
        source,
    };
    let of_store = Arc::clone(store);
    let reading = async {
        // A caller that is dropped during this wait has read nothing.
        let permit = READERS.acquire().await;
        let ended = threads::blocking(move || {
            let _permit = permit;
            read(&of_store)
        });
        ended
            .await
            .unwrap_or_else(|error| Err(failed(Box::new(error))))
    };
    match store.outage() {
        None => reading.await,
        Some(outage) => tokio::select! {
            biased;
            () = outage.began() => Err(failed("the database does not answer".into())),
            result = reading => result,
        },
    }
}

/// Waits until everything queued before is durable.
pub async fn flush(store: &dyn Store) -> Result<(), CommitError> {
    commit(store, UnitOfWork::of_all([], Admission::Always))
        .await
        .map(|_| ())
}
