//! Credit admission: the accounts in use in memory, in shards, and the decisions on them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::hash::BuildHasherDefault;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::oneshot;
use tollgate_clock::{Clock, Reading, Timestamp};
use tollgate_money::{AccountId, CredentialId, IdHasher, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, CommitError, Done, Failure, KeyCap, Part, Purse, Store, SubmitError, UnitOfWork,
};

use crate::adopted::AdoptedHolds;
use crate::allotment_counters::AllotmentCounters;
use crate::allotment_state::{Allotment, CapState};
use crate::charge::{Charge, ChargeError, StartError, Started};
use crate::credit::{Credit, CreditError};
use crate::hold::{Durability, Hold};
use crate::hold_request::{HoldError, HoldRequest};
use crate::observer::CommitObserver;
use crate::resident::{Debts, LoadCounters, Loading, Resident};
use crate::settlement::{AttachedPart, Settlement};
use crate::units::{charged_at, log_refusal, settled, unit, unit_with};

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

/// An open hold.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) request: HoldRequest,
    /// Whether it has been queued for the disk. A hold that has not ends there without an entry of its own: as one charge, or as nothing.
    pub(crate) written: bool,
}

/// State shared by the handle, its holds and the store's callbacks.
///
/// Every movement of credit is queued under the lock that decided it. So the queue has the order of the decisions, and a balance rebuilt
/// from any prefix of the queue was true at some moment: what a crash leaves never reserves credit twice.
pub(crate) struct Inner {
    pub(crate) this: Weak<Inner>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) shards: Box<[Mutex<Shard>]>,
    /// The time that a caller has passed in last, approximately, for holds that are dropped and have no time of their own.
    latest: AtomicI64,
    /// Holds of requests that the predecessor still serves.
    pub(crate) adopted: Mutex<AdoptedHolds>,
    /// Counts charges of the predecessor.
    pub(crate) count_charge: OnceLock<CountCharge>,
    /// Whether the node is one of several, and has allotments of each account's credit.
    pub(crate) has_allotments: bool,
    /// Moves of credit between this node and shared balances, for unique ids.
    pub(crate) moves: AtomicU64,
    pub(crate) counters: AllotmentCounters,
    pub(crate) loads: LoadCounters,
    /// For the time that requests wait for other nodes.
    pub(crate) clock: Clock,
}

/// Counts what was charged to a credential.
pub(crate) type CountCharge = Box<dyn Fn(CredentialId, Micros, Timestamp) + Send + Sync>;

/// The wait for the result of a unit.
pub(crate) type Acknowledgement = oneshot::Receiver<Result<tollgate_store::Receipt, CommitError>>;

impl Inner {
    /// Releases the holds of an earlier run, and follows the store from there. Accounts are loaded when they are used.
    pub(crate) fn start(
        store: Arc<dyn Store>,
        now: Timestamp,
    ) -> Result<(Arc<Inner>, Started), StartError> {
        let inner = Arc::new_cyclic(|this| Inner {
            this: Weak::clone(this),
            has_allotments: store.has_allotments(),
            moves: AtomicU64::new(0),
            counters: AllotmentCounters::default(),
            loads: LoadCounters::default(),
            clock: Clock::system(),
            store,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            latest: AtomicI64::new(now.as_micros()),
            adopted: Mutex::default(),
            count_charge: OnceLock::new(),
        });
        inner.read_debts()?;
        let mut started = Started::default();
        let late = inner.recover(now, &mut started)?;
        inner.store.observe(Arc::new(CommitObserver::new(&inner)));
        inner.book_late(late, now, &mut started);
        Ok((inner, started))
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

    /// Reserves credit and queues the hold for the disk.
    pub(crate) fn hold(
        self: &Arc<Self>,
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Hold, HoldError> {
        self.place_hold(request, fallback, |shard, request| {
            self.queue_new_hold(shard, request)
        })
    }

    fn queue_new_hold(
        self: &Arc<Self>,
        shard: &mut Shard,
        request: &HoldRequest,
    ) -> Result<Durability, HoldError> {
        self.queue_hold(shard, request, Admission::Normal)
            .map(Durability::Waiting)
    }

    /// Reserves credit under its shard's lock, queued for the disk or in memory only.
    pub(crate) fn hold_in(
        self: &Arc<Self>,
        shard: &mut Shard,
        request: HoldRequest,
        is_written: bool,
    ) -> Result<Hold, HoldError> {
        self.place_in(
            shard,
            request,
            |_| None,
            |shard, request| match is_written {
                true => self.queue_new_hold(shard, request),
                false => self.admit(request),
            },
        )
    }

    fn admit(&self, request: &HoldRequest) -> Result<Durability, HoldError> {
        let admitted = self.store.admit();
        admitted.map_err(|error| HoldError::from_commit(request.operation, error.into()))?;
        Ok(Durability::Unwritten)
    }

    /// Reserves credit in memory only.
    pub(crate) fn reserve(
        self: &Arc<Self>,
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Hold, HoldError> {
        self.place_hold(request, fallback, |_, request| self.admit(request))
    }

    fn place_hold(
        self: &Arc<Self>,
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
        durability: impl FnOnce(&mut Shard, &HoldRequest) -> Result<Durability, HoldError>,
    ) -> Result<Hold, HoldError> {
        let mut shard = self.shard(request.account);
        self.place_in(&mut shard, request, fallback, durability)
    }

    /// Reserves credit under its shard's lock.
    fn place_in(
        self: &Arc<Self>,
        shard: &mut Shard,
        mut request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
        durability: impl FnOnce(&mut Shard, &HoldRequest) -> Result<Durability, HoldError>,
    ) -> Result<Hold, HoldError> {
        let HoldRequest {
            operation,
            account,
            amount,
            ..
        } = request;
        assert!(
            amount >= Micros::ZERO,
            "a hold of {amount} would give credit away"
        );
        self.note(request.at);
        if shard.is_handed_over {
            return Err(HoldError::Overloaded { waiting: 0 });
        }
        let Some(balance) = shard.accounts.get_mut(&account) else {
            return Err(HoldError::NoAccount { account });
        };
        let before = **balance;
        if !balance.hold(amount) {
            let available = balance.spendable();
            // The fallback amount is decided on this balance and no other: no other thread can change it before the hold is placed.
            match fallback(available).filter(|amount| balance.hold(*amount)) {
                Some(amount) => request.amount = amount,
                None => {
                    return Err(HoldError::InsufficientCredit {
                        account,
                        available,
                        requested: amount,
                    });
                }
            }
        }
        let written = false;
        let undo = match shard.open.entry(operation) {
            Entry::Occupied(_) => Some(HoldError::Repeated { operation }),
            Entry::Vacant(place) => {
                place.insert(Open { request, written });
                None
            }
        };
        let durability = match undo {
            Some(error) => Err(error),
            None => durability(shard, &request).inspect_err(|_| {
                shard.open.remove(&operation);
            }),
        };
        let durability = match durability {
            Ok(durability) => durability,
            Err(error) => {
                if let Some(balance) = shard.accounts.get_mut(&account) {
                    **balance = before;
                }
                return Err(error);
            }
        };
        shard.held = shard.held.wrapping_add(request.amount.get());
        Ok(Hold {
            ledger: Arc::clone(self),
            request,
            durability,
            resolved: false,
            extra: None,
        })
    }

    /// Queues an open hold for the disk, under its shard's lock.
    pub(crate) fn queue_hold(
        self: &Arc<Self>,
        shard: &mut Shard,
        request: &HoldRequest,
        admission: Admission,
    ) -> Result<Acknowledgement, HoldError> {
        let request = *request;
        let operation = request.operation;
        let (sender, wait) = oneshot::channel();
        let this = Arc::clone(self);
        let done: Done = Box::new(move |result| {
            // Reported under the lock: a caller that finds the hold gone also finds the reason.
            let _forgotten = result.is_err().then(|| this.forget(&request));
            let _ = sender.send(result);
        });
        let part = LedgerPart::Hold {
            operation,
            account: request.account,
            amount: request.amount,
            price_version: request.price_version,
            at: request.at,
            expires_at: request.expires_at,
        };
        self.store
            .submit(unit(part, admission), done)
            .map_err(|error| HoldError::from_commit(operation, error.into()))?;
        if let Some(open) = shard.open.get_mut(&operation) {
            open.written = true;
        }
        Ok(wait)
    }

    /// Queues a hold that exists only in memory, if it is still open.
    pub(crate) fn queue_reserved(
        self: &Arc<Self>,
        request: &HoldRequest,
    ) -> Result<Option<Acknowledgement>, HoldError> {
        let mut shard = self.shard(request.account);
        match shard.open.get(&request.operation) {
            Some(open) if !open.written => self
                .queue_hold(&mut shard, request, Admission::Normal)
                .map(Some),
            // The handover has written it: durable when what is queued now is.
            Some(_) => {
                let (sender, wait) = oneshot::channel();
                let done: Done = Box::new(move |result| {
                    let _ = sender.send(result);
                });
                self.store
                    .submit(UnitOfWork::of_all([], Admission::Always), done)
                    .map_err(|error| HoldError::from_commit(request.operation, error.into()))?;
                Ok(Some(wait))
            }
            // It has expired, which its settlement will report.
            None => Ok(None),
        }
    }

    /// Undoes a hold that the store refused, unless it was resolved in the meantime; its shard stays locked.
    fn forget(&self, request: &HoldRequest) -> MutexGuard<'_, Shard> {
        let mut shard = self.shard(request.account);
        if shard.open.remove(&request.operation).is_some() {
            shard.held = shard.held.wrapping_sub(request.amount.get());
            if let Some(balance) = shard.accounts.get_mut(&request.account) {
                balance.release(request.amount);
            }
            self.give_back(&mut shard, Purse::Account(request.account), request.at);
        }
        shard
    }

    pub(crate) fn release(&self, request: &HoldRequest, at: Timestamp) {
        self.note(at);
        let mut shard = self.shard(request.account);
        self.release_open(&mut shard, request.operation, at);
    }

    /// Releases a hold under its shard's lock; `false` when it was resolved before.
    fn release_open(&self, shard: &mut Shard, operation: OperationId, at: Timestamp) -> bool {
        let Some(Open { request, written }) = shard.open.remove(&operation) else {
            return false;
        };
        shard.held = shard.held.wrapping_sub(request.amount.get());
        if let Some(balance) = shard.accounts.get_mut(&request.account) {
            balance.release(request.amount);
        }
        if written {
            self.write_release(&request, at);
        }
        self.give_back(shard, Purse::Account(request.account), at);
        true
    }

    /// Queues the release of a hold that was queued for the disk.
    pub(crate) fn write_release(&self, request: &HoldRequest, at: Timestamp) {
        let part = LedgerPart::Release {
            operation: request.operation,
            account: request.account,
            held: request.amount,
            at,
        };
        // A stopped store keeps the hold, and the next start releases it.
        let _ = self
            .store
            .submit(unit(part, Admission::Always), Box::new(log_refusal));
    }

    pub(crate) fn sweep(&self, now: Reading) -> usize {
        self.note(now.now);
        let mut released = 0;
        for shard in &self.shards {
            let mut shard = lock(shard);
            let expired: Vec<OperationId> = shard
                .open
                .values()
                .filter(|open| open.request.deadline.has_passed(now.elapsed))
                .map(|open| open.request.operation)
                .collect();
            for operation in expired {
                released += usize::from(self.release_open(&mut shard, operation, now.now));
            }
        }
        released
    }

    /// Does what uses a hold. What is left of it is returned where the account is recalled.
    pub(crate) fn with_held<T>(
        &self,
        account: AccountId,
        held: Option<Hold>,
        act: impl FnOnce(Option<Hold>) -> T,
    ) -> T {
        let has_held = held.is_some();
        let done = act(held);
        if has_held {
            self.answer_recall(account);
        }
        done
    }

    pub(crate) fn charge(
        self: &Arc<Self>,
        charge: Charge,
        attached: Option<AttachedPart>,
        held: Option<Hold>,
    ) -> Result<Settlement, ChargeError> {
        let Charge {
            operation,
            account,
            amount,
            ..
        } = charge;
        assert!(
            amount >= Micros::ZERO,
            "a charge of {amount} would give credit away"
        );
        self.note(charge.at);
        let mut shard = self.shard(account);
        if let Some(held) = held {
            held.free_in(&mut shard);
        }
        let elsewhere = shard.elsewhere(account);
        if shard.is_handed_over && amount.is_positive() {
            return Err(ChargeError::Overloaded { waiting: 0 });
        }
        let Some(balance) = shard.accounts.get_mut(&account) else {
            return Err(ChargeError::NoAccount { account });
        };
        let taken = balance.charge(amount);
        let part = LedgerPart::Charge {
            operation,
            account,
            charged: taken.charged,
            written_off: taken.written_off,
            price_version: charge.price_version,
            usage: charge.usage,
            at: charged_at(operation, charge.at),
        };
        let mut settled = settled(taken, balance);
        settled.available += elsewhere;
        let undo = self.undo_of(&attached);
        let (done, wait) = self.charge_callback(account, taken.charged, None, undo.clone());
        // No caller waits for a record without cost.
        let admission = match taken.charged.is_positive() || attached.is_some() {
            true => Admission::Normal,
            false => Admission::BestEffort,
        };
        let unit = unit_with(part, attached, settled, admission);
        match self.store.submit(unit, done) {
            Ok(()) => Ok(Settlement {
                operation,
                settled,
                wait: Ok(wait),
                undo,
            }),
            Err(error) => {
                balance.available += taken.charged;
                Err(match error {
                    SubmitError::Overloaded { waiting } => ChargeError::Overloaded { waiting },
                    SubmitError::CutOff => ChargeError::CutOff,
                    SubmitError::Stopped(source) => ChargeError::Store { operation, source },
                    _ => ChargeError::Store {
                        operation,
                        source: Failure::closed(),
                    },
                })
            }
        }
    }

    /// Queues a movement of credit. Incoming credit counts once it is durable (`observer.rs`); outgoing credit counts at once and is
    /// restored when the store refuses it or knows its reference. `is_owed`: it takes back what returned payments owe.
    pub(crate) fn book(
        self: &Arc<Self>,
        credit: &Credit,
        parts: Vec<Part>,
        held: Option<Hold>,
        is_owed: bool,
    ) -> Result<Acknowledgement, CreditError> {
        let account = credit.account;
        self.note(credit.at);
        let mut shard = self.shard(account);
        if let Some(held) = held {
            held.free_in(&mut shard);
        }
        if shard.is_handed_over {
            return Err(CreditError::Overloaded { waiting: 0 });
        }
        let elsewhere = shard.elsewhere(account);
        let Some(balance) = shard.accounts.get_mut(&account) else {
            return Err(CreditError::NoAccount { account });
        };
        let total = balance.total().saturating_add(elsewhere);
        if total.saturating_add(credit.amount) > BALANCE_MAX {
            return Err(credit.too_much());
        }
        let outward = (-credit.amount).max(Micros::ZERO);
        let available = match is_owed {
            true => balance.collectable(),
            false => balance.spendable(),
        };
        if outward > available {
            return Err(CreditError::InsufficientCredit {
                account,
                available,
                requested: outward,
            });
        }
        balance.available -= outward;
        let queued = self.queue_booking(credit, parts, outward);
        if queued.is_err()
            && let Some(balance) = shard.accounts.get_mut(&account)
        {
            balance.available += outward;
        }
        queued
    }

    /// Queues a movement of credit that is booked already, for the parts that come with it: the store answers with the earlier operation.
    pub(crate) fn book_again(
        self: &Arc<Self>,
        credit: &Credit,
        parts: Vec<Part>,
    ) -> Result<Acknowledgement, CreditError> {
        // Locked until it is queued, so that no handover begins between.
        let shard = self.shard(credit.account);
        if shard.is_handed_over {
            return Err(CreditError::Overloaded { waiting: 0 });
        }
        self.queue_booking(credit, parts, Micros::ZERO)
    }

    /// Queues a movement for which `outward` was taken from the account, which gets it back where the store does not book it.
    fn queue_booking(
        self: &Arc<Self>,
        credit: &Credit,
        parts: Vec<Part>,
        outward: Micros,
    ) -> Result<Acknowledgement, CreditError> {
        let account = credit.account;
        let (sender, wait) = oneshot::channel();
        let this = Arc::clone(self);
        let done: Done = Box::new(move |result| {
            if !matches!(result, Ok(receipt) if receipt.repeated.is_none()) {
                this.credit_back(account, outward);
            }
            let _ = sender.send(result);
        });
        let unit = UnitOfWork::of_all(parts, Admission::Normal);
        let queued = self.store.submit(unit, done);
        queued.map_err(|error| credit.error(error.into()))?;
        Ok(wait)
    }

    /// Restores credit that the store has not taken.
    pub(crate) fn credit_back(&self, account: AccountId, amount: Micros) {
        self.add_credit(&mut self.shard(account), account, amount, false);
    }

    /// Returns what is not held of an account that is recalled.
    fn answer_recall(&self, account: AccountId) {
        let mut shard = self.shard(account);
        self.give_back(&mut shard, Purse::Account(account), self.latest());
    }

    /// Credit was booked here. With it this node's row answers no recall any more, and has to answer not before the credit is returned.
    pub(crate) fn apply_booked_credit(&self, account: AccountId, amount: Micros, is_payment: bool) {
        let mut shard = self.shard(account);
        if let Some(allotment) = shard.allotments.get_mut(&account) {
            allotment.answered = 0;
        }
        self.add_credit(&mut shard, account, amount, is_payment);
    }

    /// A payment was made that may have brought no credit.
    pub(crate) fn mark_paid(&self, account: AccountId) {
        self.add_credit(&mut self.shard(account), account, Micros::ZERO, true);
    }

    fn add_credit(&self, shard: &mut Shard, account: AccountId, amount: Micros, is_payment: bool) {
        if let Some(balance) = shard.accounts.get_mut(&account) {
            balance.available += amount;
            balance.has_paid |= is_payment;
        }
        self.give_back(shard, Purse::Account(account), self.latest());
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Inner").finish_non_exhaustive()
    }
}

pub(crate) fn lock(shard: &Mutex<Shard>) -> MutexGuard<'_, Shard> {
    // A panic under the lock is a broken invariant of one account; the others must continue.
    shard.lock()
}
