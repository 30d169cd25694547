//! The accounts in use in memory, in shards, and the handle on them.

use std::collections::HashMap;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tollgate_clock::{Clock, Timestamp};
use tollgate_money::{AccountId, IdHasher, Micros, OperationId};
use tollgate_store::{CommitError, KeyCap, Store};

use crate::adopted::AdoptedHolds;
use crate::allotment_counters::AllotmentCounters;
use crate::allotment_state::{Allotment, CapState};
use crate::hold_request::HoldRequest;
use crate::resident::{Debts, LoadCounters, Loading, Resident};
use crate::spending::Spending;

pub(crate) const SHARDS: usize = 64;

/// Larger than any account's balance. Without this refusal the writer would detect it, and could only stop.
pub(crate) const BALANCE_MAX: Micros = Micros::new(i64::MAX / 2);

/// A shard: accounts selected by id, with their open holds.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) accounts: HashMap<AccountId, Resident, BuildHasherDefault<IdHasher>>,
    /// Loads of accounts under way.
    pub(crate) loading: HashMap<AccountId, Loading, BuildHasherDefault<IdHasher>>,
    /// Removing a hold from this map resolves it; since it can be removed only once, every hold is resolved only once.
    pub(crate) open: HashMap<OperationId, Open, BuildHasherDefault<IdHasher>>,
    /// What this node has to know of the shared balances of these accounts. Empty for a node that is alone.
    pub(crate) allotments: HashMap<AccountId, Allotment, BuildHasherDefault<IdHasher>>,
    /// What this node has of the caps of keys, which are in the shard of their id. Empty for a node that is alone.
    pub(crate) caps: HashMap<KeyCap, CapState, BuildHasherDefault<IdHasher>>,
    /// What returned payments of these accounts owe. Empty on one of several nodes.
    pub(crate) debts: HashMap<AccountId, Debts, BuildHasherDefault<IdHasher>>,
    /// The sum of the holds in `open`, in micro-credits; wrapping, since two absurd holds may overflow, and it is only reported.
    pub(crate) held: i64,
    /// Another process decides on the balances now. Open holds end here, and nothing beyond them is decided.
    pub(crate) is_handed_over: bool,
}

/// Kept by `Ledger::evict_idle`, and relied on where a hold ends.
pub(crate) const HOLDER_IN_MEMORY: &str = "an account that has a hold is never removed";

impl Shard {
    /// The account of an open hold.
    pub(crate) fn holder(&mut self, account: AccountId) -> &mut Resident {
        self.accounts.get_mut(&account).expect(HOLDER_IN_MEMORY)
    }
}

/// An open hold.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) request: HoldRequest,
    /// Whether it has been queued for the disk. A hold that has not ends there without an entry of its own: as one charge, or as nothing.
    pub(crate) written: bool,
}

/// The ledger of one node. A cheap clone: holds, settlements and the callbacks of the store have one each.
///
/// Its acts are in one file each: `placing.rs`, `settling.rs`, `charging.rs`, `booking.rs`, `loading.rs` and further ones.
#[derive(Clone)]
pub struct Ledger(pub(crate) Arc<Accounts>);

/// The state of a [`Ledger`].
///
/// Every movement of credit is queued under the lock that decided it. So the queue has the order of the decisions, and a balance rebuilt
/// from any prefix of the queue was true at some moment: what a crash leaves never reserves credit twice.
pub struct Accounts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) shards: Box<[Mutex<Shard>]>,
    /// The time that a caller has passed in last, approximately, for holds that are dropped and have no time of their own.
    latest: AtomicI64,
    /// Holds of requests that the predecessor still serves.
    pub(crate) adopted: Mutex<AdoptedHolds>,
    /// What keys with a cap have spent, on a node that is alone.
    pub(crate) spending: Arc<Spending>,
    /// Whether the node is one of several, and has allotments of each account's credit.
    pub(crate) has_allotments: bool,
    /// Moves of credit between this node and shared balances, for unique ids.
    pub(crate) moves: AtomicU64,
    pub(crate) counters: AllotmentCounters,
    pub(crate) loads: LoadCounters,
    /// For the time that requests wait for other nodes.
    pub(crate) clock: Clock,
}

/// The wait for the result of a unit.
pub(crate) type Acknowledgement = oneshot::Receiver<Result<tollgate_store::Receipt, CommitError>>;

impl Deref for Ledger {
    type Target = Accounts;

    fn deref(&self) -> &Accounts {
        &self.0
    }
}

impl Accounts {
    pub(crate) fn new(store: Arc<dyn Store>, now: Timestamp) -> Accounts {
        Accounts {
            has_allotments: store.has_allotments(),
            moves: AtomicU64::new(0),
            counters: AllotmentCounters::default(),
            loads: LoadCounters::default(),
            clock: Clock::system(),
            spending: Arc::new(Spending::open(&store)),
            store,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            latest: AtomicI64::new(now.as_micros()),
            adopted: Mutex::default(),
        }
    }

    /// Records a time passed in by a caller, also an earlier one: a clock that was wrong for a moment dates nothing after that. Two threads may
    /// overwrite a later time with an earlier one of the same moment, which is acceptable: it is not worth a locked instruction at each hold and
    /// each end.
    pub(crate) fn note(&self, at: Timestamp) {
        self.latest.store(at.as_micros(), Relaxed);
    }

    pub(crate) fn adopted(&self) -> MutexGuard<'_, AdoptedHolds> {
        self.adopted.lock()
    }

    pub(crate) fn latest(&self) -> Timestamp {
        Timestamp::from_micros(self.latest.load(Relaxed))
    }

    pub(crate) fn shard(&self, account: AccountId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(account.as_bytes()[15]) % SHARDS])
    }
}

impl fmt::Debug for Ledger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ledger").finish_non_exhaustive()
    }
}

pub(crate) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // A panic under the lock is a broken invariant of one account; the others must continue.
    shard.lock()
}
