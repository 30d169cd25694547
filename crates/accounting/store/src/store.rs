//! The store's traits (`Submit`, `Store`, `Observer`), independent of an engine, and the values of its reads.

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
    /// Its bytes.
    pub bytes: u64,
    /// Bytes of removed rows that new ones will use; 0 for a server, which does not say it.
    pub free_bytes: u64,
}

/// Exported commits, compared with the carried state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Replayed {
    /// Their number.
    pub commits: u64,
    /// Whether the carried state is what they leave behind.
    pub is_carried: bool,
}

/// How much of a node's journal is in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetainedJournal {
    /// The node.
    pub node: i64,
    /// Its removed commits, if there are any.
    pub carried: Option<OpeningNode>,
    /// Epoch and number of its last posted commit, if there is one.
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

/// A change that a node of a cluster has committed, of what other nodes keep in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ChangeRow {
    /// Its number: greater than that of each change committed before.
    pub number: i64,
    /// What has changed.
    pub kind: ChangeKind,
    /// The id of that account, credential or grant.
    pub subject: [u8; 16],
}

/// All ledger data of one operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationRows {
    /// The operation.
    pub id: OperationId,
    /// Its entries in the order of their phases: at most two.
    pub entries: Vec<Entry>,
    /// Its open hold.
    pub hold: Option<OpenHold>,
    /// Its usage record.
    pub usage: Option<UsageRow>,
    /// An operation id was used more than once; each is used once.
    pub is_duplicate: bool,
}

/// Accepts units of work: the store, or what adds parts to each unit on its way there.
pub trait Submit: Send + Sync {
    /// Queues a unit of work and returns at once. `done` is called when the unit is durable, refused, or lost with the store; it
    /// is not called when this method returns an error.
    ///
    /// Units become durable in queue order: none is without all those before it.
    fn submit(&self, unit: UnitOfWork, done: Done) -> Result<(), SubmitError>;
}

/// A store that this process may write to. Only one process at a time has one. It dereferences to the reader of its data.
pub trait Store: Deref<Target = Reader> + Submit {
    /// Whether a unit that starts something would be accepted now.
    fn admit(&self) -> Result<(), SubmitError>;

    /// Calls `observer` for every part committed from now on, except entries of single operations (holds, settlements, releases and
    /// charges), which their callers know.
    fn observe(&self, observer: Arc<dyn Observer>);

    /// Passes the changes of other nodes to the observers from now on, those since the store was opened first.
    fn follow_changes(&self);

    /// Whether this node is the leader of the cluster, which runs the jobs of all nodes, such as the delivery of messages. A lone node is
    /// always the leader.
    fn is_leader(&self) -> bool;

    /// This node's number.
    fn node(&self) -> i64;

    /// Whether this node is one of several, which have allotments of each account's credit.
    fn has_allotments(&self) -> bool {
        crate::commit_id::has_allotments(self.node())
    }

    /// The number of this run of the node; holds of a smaller one are orphans.
    fn epoch(&self) -> i64;

    /// The number of the first run whose requests may still be open: this one, or the one that has handed its store over to it.
    fn earliest_epoch(&self) -> i64;

    /// 32 random bytes generated when the store was created.
    fn root_secret(&self) -> RootSecret;

    /// The metrics of the writer.
    fn gauges(&self) -> &Gauges;

    /// Authenticates connections to the server of the database from now on with another password; open ones stay. A file has none.
    fn replace_password(&self, password: Option<&[u8]>);

    /// What is known of the database's answers; `None` for a file.
    fn outage(&self) -> Option<&Outage> {
        None
    }

    /// The units that an earlier run of this node has left in its spool and that are not in the journal, in their order. Once.
    fn take_spooled(&self) -> Vec<SpooledUnit> {
        Vec::new()
    }

    /// Everything that [`Store::take_spooled`] has returned is durable or void, and is removed from the spool.
    fn spooled_is_durable(&self) {}

    /// Records what digest the settings in force have that all nodes must have in common, with the next renewal of the lease. A node that is alone
    /// records nothing.
    fn record_settings(&self, _digest: &str) {}

    /// The running nodes whose settings differ from those of this node, as of the last renewal of its lease.
    fn other_settings(&self) -> Vec<OtherSettings> {
        Vec::new()
    }

    /// Why the store has stopped, if it has.
    fn failure(&self) -> Option<Failure>;

    /// Makes the queued units durable and closes the database for another process, without giving up the locks on its files. Units that are
    /// queued from then on wait for [`Handover::forward`]. Blocks.
    ///
    /// # Errors
    ///
    /// When the store has stopped.
    fn hand_over(&self) -> Result<Handover, Failure>;

    /// Accepts no more units, makes the queued ones durable, and releases the file. Blocks; a second call does nothing.
    fn close(&self);
}

/// An observer that keeps stored data in memory up to date.
pub trait Observer: Send + Sync {
    /// A part is durable. Called on the writer's thread, in commit order, before any caller waiting for the part is notified: what a caller
    /// reads afterwards includes it. Must not block.
    fn committed(&self, part: &Part, effect: Effect);

    /// A node has changed what this one keeps in memory. Called on a thread of the store, in commit order and some time after the commit, for
    /// the changes of this node too. May read from the store.
    ///
    /// # Errors
    ///
    /// What is needed could not be read: the change is repeated, and no later one comes before it.
    fn changed(&self, _change: &ChangeRow) -> Result<(), ReadError> {
        Ok(())
    }

    /// All changes that were read at once have been passed: for what is read once for all of them.
    ///
    /// # Errors
    ///
    /// What is needed could not be read. It is called again, after further changes perhaps.
    fn changes_ended(&self) -> Result<(), ReadError> {
        Ok(())
    }
}

/// Queues a unit and waits until it is durable; blocks.
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

/// Queues a unit and waits until it is durable. Dropping the future does not undo it.
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

/// The same for a request that nothing was promised to yet: refused with [`CommitError::CutOff`] when the database stops answering meanwhile. The
/// unit stays in the queue then, and the caller queues what undoes it.
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

/// Reads on a blocking thread, for callers that must not block. Refused while the database does not answer new operations, also when that
/// begins meanwhile: each read would wait for its time limit, and the others for it.
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
        // A caller that is dropped while it waits here has read nothing.
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
