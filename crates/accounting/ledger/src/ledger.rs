//! The public operations of a node's ledger: hold, settle, charge, credit, sweep.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tollgate_clock::{Clock, Deadline, Reading, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId};
use tollgate_store::{
    Admission, CommitError, EntryKind, Failure, FailureKind, IdempotencyPart, KeyCap, Part, Store,
    UnitOfWork, first_token, flush, reading,
};

use crate::account::Balance;
use crate::accounts::{Acknowledgement, Inner, SHARDS};
use crate::allotment_counters::AllotmentCounters;
use crate::caps::{CapHold, CountedCharge};
use crate::charge::{Charge, ChargeError, StartError, Started};
use crate::credit::{Credit, CreditError, Credited};
use crate::hold::Hold;
use crate::hold_request::{HoldError, HoldRequest};
use crate::resident::{BalanceError, LoadError};
use crate::settlement::{AttachedPart, Settlement};
use crate::totals::Totals;
use crate::units::log_refusal;

/// The ledger of one node: the accounts in use in memory, every change queued for the store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Inner>,
}

impl Ledger {
    /// Parts of the accounts for [`Ledger::return_idle`].
    pub const PARTS: usize = SHARDS;

    /// Releases the unresolved holds of earlier runs of this node; blocks until that is durable. To be called once per store, before anything
    /// is written to it. Accounts are loaded when they are used ([`Ledger::load`]).
    pub fn start(store: Arc<dyn Store>, now: Timestamp) -> Result<(Ledger, Started), StartError> {
        let (inner, started) = Inner::start(store, now)?;
        Ok((Ledger { inner }, started))
    }

    /// Recovers a node whose process has ended, with its store opened for that: releases its holds, returns its credit to the shared balances,
    /// lets other requests take over the idempotency keys that its requests have claimed, writes `record` with that, and closes the store. Blocks.
    ///
    /// # Errors
    ///
    /// When the store fails meanwhile. What is left is found by the next recovery.
    pub fn recover_node(
        store: Arc<dyn Store>,
        now: Timestamp,
        record: Option<Part>,
    ) -> Result<Started, StartError> {
        let (ledger, started) = Ledger::start(store.clone(), now)?;
        let token = first_token(store.node(), store.epoch());
        // Not freed: an answer in the spool of the node is stored with its late charge, unless its request was made again meanwhile.
        let lapse = Part::Idempotency(Box::new(IdempotencyPart::LapseBefore { token }));
        // A store that has stopped reports it below.
        let _ = store.submit(
            UnitOfWork::of_all(std::iter::once(lapse).chain(record), Admission::Always),
            Box::new(log_refusal),
        );
        ledger.return_all();
        store.close();
        match store.failure() {
            Some(failure) if failure.kind != FailureKind::Closed => Err(StartError::Store(failure)),
            _ => Ok(started),
        }
    }

    /// Ends the decisions of this process before its store is handed over: open holds are queued for the disk, new ones are refused like those
    /// of an overloaded store, and a settlement charges its hold alone.
    pub fn hand_over(&self) {
        self.inner.hand_over();
    }

    /// Commits what a predecessor sends until it closes the connection, or `goes_on` returns `false` between two messages: the end of a hold
    /// that it still had, or the usage of a request without cost, with what becomes durable together with it.
    ///
    /// # Errors
    ///
    /// When the connection broke.
    pub fn serve_predecessor<S: std::io::Read + std::io::Write>(
        &self,
        stream: &mut S,
        goes_on: impl FnMut(&S) -> std::io::Result<bool>,
    ) -> std::io::Result<()> {
        tollgate_store::serve_predecessor(stream, goes_on, |units| {
            self.inner.commit_of_predecessor(units)
        })
    }

    /// Releases the holds that a run of this node has left open whose process has ended; those of all earlier runs without a number, when none
    /// of them serves requests any more. Returns how many they were.
    pub fn release_adopted(&self, of: Option<i64>, clock: &Clock) -> usize {
        self.inner.release_adopted(of, clock.now())
    }

    /// Has `count` called for each charge of the predecessor to a credential when it is durable, on the thread of the store. Once.
    pub fn count_charges_of_predecessor(
        &self,
        count: impl Fn(CredentialId, Micros, Timestamp) + Send + Sync + 'static,
    ) {
        // There is one that counts.
        let _ = self.inner.count_charge.set(Box::new(count));
    }

    /// The number of holds that the predecessor still has.
    pub fn adopted_holds(&self) -> usize {
        self.inner.adopted_holds()
    }

    /// Loads an account that is not in memory, and waits only then. It stays there at least until the second call of [`Ledger::evict_idle`] from
    /// now. An account that does not exist is not in memory afterwards either.
    ///
    /// # Errors
    ///
    /// The store does not accept new work, or has stopped.
    pub async fn load(&self, account: AccountId) -> Result<(), LoadError> {
        self.inner.load(account).await
    }

    /// Removes accounts from memory that were not used since the last call, and of which nothing is open here; returns their number. To be called
    /// every some minutes: longer than a request waits before its hold.
    pub fn evict_idle(&self) -> usize {
        self.inner.evict_idle()
    }

    /// Number of accounts in memory.
    pub fn resident_accounts(&self) -> usize {
        self.inner.resident_accounts()
    }

    /// Loads of accounts so far that have found one, and those that have not.
    pub fn account_loads(&self) -> (u64, u64) {
        let loads = &self.inner.loads;
        (loads.found.load(Relaxed), loads.unknown.load(Relaxed))
    }

    /// The available balance of an account; `None` when it is not in memory.
    pub fn available(&self, account: AccountId) -> Option<Micros> {
        self.balance(account).map(|balance| balance.available)
    }

    /// The available balance of an account, zero without one. On one of several nodes it is read, with what each of them has and has not posted:
    /// what is to be taken back must not depend on what this node has last seen of the others.
    pub async fn total_available(&self, account: AccountId) -> Result<Micros, BalanceError> {
        let available = if self.has_allotments() {
            let row = reading(&self.inner.store, move |store| store.account(account)).await?;
            row.map(|row| row.available)
        } else {
            self.load(account).await?;
            self.available(account)
        };
        Ok(available.unwrap_or_default())
    }

    /// On one of several nodes: has all of them return what they do not hold of an account, now and when a hold ends, before credits of a returned
    /// payment become owed. Does nothing on a node that is alone.
    ///
    /// # Errors
    ///
    /// A node has not answered, or the database.
    pub async fn recall(&self, account: AccountId, at: Timestamp) -> Result<(), HoldError> {
        match self.has_allotments() {
            true => self.inner.recall_account(account, at).await,
            false => Ok(()),
        }
    }

    /// The balance of an account, available and held; `None` when it is not in memory.
    pub fn balance(&self, account: AccountId) -> Option<Balance> {
        self.inner.known_balance(account)
    }

    /// Whether an account that is in memory has credit that is not held.
    pub fn has_free_credit(&self, account: AccountId) -> bool {
        let balance = self.balance(account);
        balance.is_some_and(|balance| balance.available.is_positive())
    }

    /// Whether the database has refused a hold of this account because it had nothing to spend, a tenth of a second ago at most: the next one
    /// would be refused without asking it. Never on a node that is alone, which knows all balances.
    pub fn is_refused(&self, account: AccountId, at: Timestamp) -> bool {
        self.inner.is_refused(account, at)
    }

    /// Reserves credit for an operation, or returns the refusal. Decided in memory and queued for the disk; returns at once.
    pub fn hold(&self, request: HoldRequest) -> Result<Hold, HoldError> {
        self.inner.hold(request, |_| None)
    }

    /// The same, but where the amount exceeds the available credit, `fallback` receives the available amount and may request an amount
    /// within it. Both are one atomic decision: no other request comes between. `fallback` runs under a lock and must not call the ledger.
    pub fn hold_within(
        &self,
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Hold, HoldError> {
        self.inner.hold(request, fallback)
    }

    /// Reserves credit in memory only, for an operation that shows nothing before it is settled: its end is one charge on the disk, or
    /// nothing. A crash loses it. After [`Hold::durable`] it is stored like any other.
    pub fn reserve(&self, request: HoldRequest) -> Result<Hold, HoldError> {
        self.inner.reserve(request, |_| None)
    }

    /// [`Ledger::reserve`] with a fallback amount, as in [`Ledger::hold_within`].
    pub fn reserve_within(
        &self,
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Hold, HoldError> {
        self.inner.reserve(request, fallback)
    }

    /// Whether this node is one of several: [`Ledger::hold_within`] and [`Ledger::reserve_within`] then know only of the credit that it has, and
    /// [`Ledger::acquire`] of all.
    pub fn has_allotments(&self) -> bool {
        self.inner.has_allotments
    }

    /// Places a hold on a node that is one of several: takes credit from the account's shared balance where this node has less, and has
    /// other nodes return what they do not need. Queued for the disk with `is_written`, in memory only without.
    pub async fn acquire(
        &self,
        request: HoldRequest,
        is_written: bool,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Hold, HoldError> {
        self.inner.acquire(request, is_written, fallback).await
    }

    /// Reserves a part of the spending cap of the key of a request, on a node that is one of several: takes from the cap what this node lacks,
    /// and has other nodes return what they do not need. `fallback` is asked for a smaller amount at most once. In
    /// [`HoldError::InsufficientCredit`] `available` is what the cap leaves.
    pub async fn acquire_cap(
        &self,
        (credential, period): (CredentialId, CapPeriod),
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<CapHold, HoldError> {
        let cap = KeyCap::of(credential, period, request.operation);
        self.inner.acquire_cap(cap, request, fallback).await
    }

    /// Counts a charge of a key, by operation and time, that had no reservation ([`Ledger::acquire_cap`]); does nothing on a node that is
    /// alone.
    pub fn count_uncapped(
        &self,
        credential: CredentialId,
        charged: Micros,
        of: (OperationId, Timestamp),
    ) -> CountedCharge {
        CountedCharge {
            ledger: Arc::clone(&self.inner),
            caps: self.inner.count_charge(credential, charged, of, None),
            charged,
            at: of.1,
        }
    }

    /// Returns the credit of those accounts of one of [`Ledger::PARTS`] that have placed no hold since the last call for it to their shared
    /// balances. To be called for each part every half a minute, one after the other with pauses, since requests wait for the commits of what is
    /// returned; does nothing on a node that is alone.
    pub fn return_idle(&self, part: usize, now: Timestamp) {
        self.inner.return_idle(part, now);
    }

    /// Returns all credit that is not held to the shared balances, before the store is closed.
    pub fn return_all(&self) {
        self.inner.return_all(self.inner.latest());
    }

    /// Charges a cost that had no hold, at most the available balance. Decided in memory and queued for the disk; returns at once.
    pub fn charge(&self, charge: Charge) -> Result<Settlement, ChargeError> {
        self.charge_with(charge, None)
    }

    /// The same, with a part that becomes durable in the same commit or not at all.
    pub fn charge_with(
        &self,
        charge: Charge,
        attached: Option<AttachedPart>,
    ) -> Result<Settlement, ChargeError> {
        self.inner.charge(charge, attached, None)
    }

    /// The same, with the credit of a hold that exists in memory only ([`Ledger::cover`]).
    pub fn charge_held(
        &self,
        charge: Charge,
        attached: Option<AttachedPart>,
        held: Option<Hold>,
    ) -> Result<Settlement, ChargeError> {
        let account = charge.account;
        let charged = |held| self.inner.charge(charge, attached, held);
        self.inner.with_held(account, held, charged)
    }

    /// Takes credit for a charge without a hold, on a node that is one of several: as much as the account has; none on a node that is alone.
    ///
    /// # Errors
    ///
    /// What the account has could not be decided: the charge would write off what another node may have of it.
    pub async fn cover(
        &self,
        account: AccountId,
        amount: Micros,
        at: Timestamp,
    ) -> Result<Option<Hold>, HoldError> {
        if !self.has_allotments() || !amount.is_positive() {
            return Ok(None);
        }
        let request = HoldRequest {
            operation: self.inner.next_move(at),
            account,
            amount,
            price_version: None,
            at,
            deadline: Deadline::NEVER,
            expires_at: at,
        };
        let rest = |available: Micros| available.is_positive().then_some(available);
        match self.inner.acquire(request, false, rest).await {
            Err(HoldError::InsufficientCredit { .. }) => Ok(None),
            acquired => acquired.map(Some),
        }
    }

    /// Books credit bought with outside money.
    pub async fn top_up(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book(EntryKind::TopUp, credit).await
    }

    /// The same, with a part that becomes durable in the same commit or not at all: the purchase that it belongs to. If the reference was
    /// booked before, the part is written all the same.
    pub async fn top_up_with(
        &self,
        credit: Credit,
        attached: Part,
    ) -> Result<Credited, CreditError> {
        self.book_with(EntryKind::TopUp, credit, vec![attached])
            .await
    }

    /// Books credit granted by the operator.
    pub async fn grant(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book(EntryKind::Grant, credit).await
    }

    /// The same, with parts that become durable in the same commit or not at all. If the reference was booked before, they are written all
    /// the same.
    pub async fn grant_with(
        &self,
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        self.book_with(EntryKind::Grant, credit, attached).await
    }

    /// Books revenue refunded as credit.
    pub async fn refund(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book(EntryKind::Refund, credit).await
    }

    /// Books a correction by the operator, up or down.
    pub async fn correct(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book(EntryKind::Correction, credit).await
    }

    /// The same, with parts that become durable in the same commit or not at all.
    pub async fn correct_with(
        &self,
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        self.book_with(EntryKind::Correction, credit, attached)
            .await
    }

    /// Books a correction that takes back credits of a returned payment: also those that are owed, which nothing else can take.
    pub async fn take_back(
        &self,
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        self.book_as((EntryKind::Correction, true), credit, attached)
            .await
    }

    /// Books expired credit; the amount is negative.
    pub async fn expire(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book(EntryKind::Expiry, credit).await
    }

    /// Releases every hold whose deadline has passed; returns their number. A backstop against tasks that neither end nor drop.
    pub fn sweep(&self, now: Reading) -> usize {
        self.inner.sweep(now)
    }

    /// Number and sum of the open holds.
    pub fn totals(&self) -> Totals {
        self.inner.totals()
    }

    /// The credit of accounts that this node has, available and held; nothing on a node that is alone. Visits the accounts in
    /// memory.
    pub fn allotted(&self) -> Micros {
        self.inner.allotted()
    }

    /// What this node counts of its allotments.
    pub fn allotment_counters(&self) -> &AllotmentCounters {
        &self.inner.counters
    }

    async fn book(&self, kind: EntryKind, credit: Credit) -> Result<Credited, CreditError> {
        self.book_with(kind, credit, Vec::new()).await
    }

    /// Credit that is to be taken from an account, held on this node.
    async fn hold_for(&self, credit: &Credit, is_owed: bool) -> Result<Hold, CreditError> {
        let request = HoldRequest {
            operation: credit.operation,
            account: credit.account,
            amount: -credit.amount,
            price_version: None,
            at: credit.at,
            deadline: Deadline::NEVER,
            expires_at: credit.at,
        };
        let held = match is_owed {
            true => self.inner.acquire_owed(request).await,
            false => self.inner.acquire(request, false, |_| None).await,
        };
        held.map_err(|error| credit.hold_error(error))
    }

    /// Decides a movement on what the account has, and queues it.
    async fn decide(
        &self,
        credit: &Credit,
        parts: Vec<Part>,
        is_owed: bool,
    ) -> Result<Acknowledgement, CreditError> {
        let held = match credit.amount.is_positive() || !self.has_allotments() {
            true => None,
            false => Some(self.hold_for(credit, is_owed).await?),
        };
        let booked = |held| self.inner.book(credit, parts, held, is_owed);
        self.inner.with_held(credit.account, held, booked)
    }

    /// Whether the reference of a movement is booked, after all that is queued: the first attempt may have taken the credit and not be durable.
    async fn is_booked(&self, credit: &Credit) -> Result<bool, CreditError> {
        let store = &self.inner.store;
        let flushed = flush(&**store).await;
        flushed.map_err(|error| credit.error(error))?;
        let (account, reference) = (credit.account, credit.reference.clone());
        let read = reading(store, move |store| store.is_booked(account, &reference)).await;
        read.map_err(|error| {
            tracing::warn!(%error, "looking up the reference of a movement of credit failed");
            CreditError::CutOff
        })
    }

    async fn book_with(
        &self,
        kind: EntryKind,
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        self.book_as((kind, false), credit, attached).await
    }

    async fn book_as(
        &self,
        (kind, is_owed): (EntryKind, bool),
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        let part = credit.check(kind)?;
        let loaded = self.inner.load(credit.account).await;
        loaded.map_err(|error| credit.load_error(error))?;
        let parts = std::iter::once(part).chain(attached);
        let parts: Vec<Part> = parts.collect();
        let wait = match self.decide(&credit, parts.clone(), is_owed).await {
            // What the account has now says nothing of a movement that is booked already.
            Err(CreditError::InsufficientCredit { .. } | CreditError::TooMuch { .. })
                if self.is_booked(&credit).await? =>
            {
                self.inner.book_again(&credit, parts)
            }
            decided => decided,
        }?;
        let receipt = match wait.await {
            Ok(answer) => answer.map_err(|error| credit.error(error))?,
            Err(_) => return Err(credit.error(CommitError::Stopped(Failure::closed()))),
        };
        Ok(Credited {
            operation: receipt.repeated.unwrap_or(credit.operation),
            repeated: receipt.repeated.is_some(),
            available: self.available(credit.account).unwrap_or_default(),
        })
    }
}
