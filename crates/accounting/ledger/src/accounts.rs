//! The accounts in memory, in shards, and the handle on the accounts.

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

/// Larger than any account's balance. Without this limit the writer would detect an overflow, and could only stop.
pub(crate) const BALANCE_MAX: Micros = Micros::new(i64::MAX / 2);

/// A shard: accounts selected by id, with their open holds.
#[derive(Debug, Default)]
pub(crate) struct Shard {
    pub(crate) accounts: HashMap<AccountId, Resident, BuildHasherDefault<IdHasher>>,
    /// Loads of accounts under way.
    pub(crate) loading: HashMap<AccountId, Loading, BuildHasherDefault<IdHasher>>,
    /// Open holds. A hold can be removed from the map only once, so every hold is resolved only once.
    pub(crate) open: HashMap<OperationId, Open, BuildHasherDefault<IdHasher>>,
    /// Allotments of the shard's accounts. Empty on a node that is alone.
    pub(crate) allotments: HashMap<AccountId, Allotment, BuildHasherDefault<IdHasher>>,
    /// This node's allotments of key caps. A cap is in the shard of its key's id. Empty on a node that is alone.
    pub(crate) caps: HashMap<KeyCap, CapState, BuildHasherDefault<IdHasher>>,
    /// Debts of the shard's accounts from returned payments. Empty on one of several nodes.
    pub(crate) debts: HashMap<AccountId, Debts, BuildHasherDefault<IdHasher>>,
    /// The sum of the holds in `open`, in micro-credits. Wrapping: two absurd holds may overflow the sum, and the sum is only reported.
    pub(crate) held: i64,
    /// Another process now decides on the balances. Open holds still end here; no other decision is made.
    pub(crate) is_handed_over: bool,
}

/// Invariant kept by `Ledger::evict_idle`; the end of a hold relies on the invariant.
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
    /// Whether the hold was queued for the disk. A hold in memory only has no entry on the disk: its end is one charge, or no entry.
    pub(crate) written: bool,
}

/// The ledger of one node. A cheap clone: holds, settlements and store callbacks have one clone each.
///
/// Each operation has one file: `placing.rs`, `settling.rs`, `charging.rs`, `booking.rs`, `loading.rs` and further files.
#[derive(Clone)]
pub struct Ledger(pub(crate) Arc<Accounts>);

/// The state of a [`Ledger`].
///
/// Every movement of credit is queued under the lock of its decision. So the queue has the order of the decisions, and a balance rebuilt
/// from any prefix of the queue was true at some moment. The state after a crash never reserves credit twice.
pub struct Accounts {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) shards: Box<[Mutex<Shard>]>,
    /// The last time passed in by a caller, approximately. Used for dropped holds, which get no time from a caller.
    latest: AtomicI64,
    /// Holds of requests still running in the predecessor.
    pub(crate) adopted: Mutex<AdoptedHolds>,
    /// Spending of keys with a cap, on a node that is alone.
    pub(crate) spending: Arc<Spending>,
    /// Whether the node is one of several, with allotments of each account's credit.
    pub(crate) has_allotments: bool,
    /// Counter of moves of credit between this node and shared balances, for unique ids.
    pub(crate) moves: AtomicU64,
    pub(crate) counters: AllotmentCounters,
    pub(crate) loads: LoadCounters,
    /// Measures the wait of requests for other nodes.
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

    /// Records a time passed in by a caller. An earlier time also overwrites: a short clock error affects no later date. Two threads may
    /// overwrite a later time with a slightly earlier time. This race is acceptable: preventing the race is not worth a locked instruction
    /// at the start and end of each hold.
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
    // A panic under the lock is a broken invariant of one account. Other accounts must continue.
    shard.lock()
}
