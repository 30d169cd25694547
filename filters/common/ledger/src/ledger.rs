//! The public operations of a node's ledger: hold, settle, charge, credit, sweep.

use std::sync::Arc;

use tollgate_clock::{Clock, Reading, Timestamp};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};
use tollgate_store::{CommitError, EntryKind, Failure, Part, ReadError, Store, UsageRecord};

use crate::account::Balance;
use crate::accounts::Inner;
use crate::credit::{Credit, CreditError, Credited};
use crate::hold::{Hold, HoldError, HoldRequest};
use crate::settlement::{AttachedPart, Settlement};
use crate::totals::Totals;

/// The ledger of one node: every account in memory, every change queued for the store. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Ledger {
    inner: Arc<Inner>,
}

/// A charge without a previous hold: a cache hit, or a model without a price.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Charge {
    /// The operation.
    pub operation: OperationId,
    /// The account.
    pub account: AccountId,
    /// The cost; zero writes a usage record and no entry.
    pub amount: Micros,
    /// Its price version.
    pub price_version: Option<i64>,
    /// The usage.
    pub usage: UsageRecord,
    /// When it was charged.
    pub at: Timestamp,
}

/// Why a charge was not booked. Never for lack of credit: an uncovered cost is written off.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ChargeError {
    /// The account does not exist on this node.
    #[error("there is no account `{account}`")]
    NoAccount {
        /// The requested account.
        account: AccountId,
    },
    /// The store's queue is full: a 503 with `Retry-After`.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The store has stopped; the process is about to exit.
    #[error("could not write the charge of `{operation}`")]
    Store {
        /// The operation.
        operation: OperationId,
        /// The cause.
        #[source]
        source: Failure,
    },
}

/// Why the ledger could not be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// The accounts could not be read.
    #[error("could not load the accounts")]
    Read(#[source] ReadError),
    /// The file has contradictory data about one account.
    #[error("`{account}` has {held} held, and an open hold of {amount}; run `tollgate audit`")]
    Inconsistent {
        /// The account.
        account: AccountId,
        /// The stored held amount.
        held: Micros,
        /// The sum of its holds.
        amount: Micros,
    },
    /// The holds of an earlier run could not be released.
    #[error("could not release the holds of an earlier run")]
    Store(#[source] Failure),
}

/// The result of the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Started {
    /// Accounts loaded.
    pub accounts: usize,
    /// Holds of an earlier run that were released.
    pub orphans: usize,
    /// Their sum.
    pub orphans_amount: Micros,
}

impl Ledger {
    /// Loads every account and releases the unresolved holds of earlier runs of this node; blocks until that is durable. To be called once
    /// per store, before anything is written to it.
    pub fn start(store: Arc<dyn Store>, now: Timestamp) -> Result<(Ledger, Started), StartError> {
        let (inner, started) = Inner::start(store, now)?;
        Ok((Ledger { inner }, started))
    }

    /// Ends the decisions of this process before its store is handed over: open holds are queued for the disk, new ones are refused like those
    /// of an overloaded store, and a settlement charges its hold alone.
    pub fn hand_over(&self) {
        self.inner.hand_over();
    }

    /// Commits what the predecessor sends until it closes the connection: the end of a hold that it still had, or the usage of a request
    /// without cost, with what becomes durable together with it. Then releases the holds that it has left open, and returns their number.
    ///
    /// # Errors
    ///
    /// When the connection broke. The holds are released all the same.
    pub fn serve_predecessor(
        &self,
        stream: impl std::io::Read + std::io::Write,
        clock: &Clock,
    ) -> (std::io::Result<()>, usize) {
        let served = tollgate_store::serve_predecessor(stream, |units| {
            self.inner.commit_of_predecessor(units)
        });
        (served, self.inner.predecessor_ended(clock.now()))
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

    /// The available balance of an account; `None` when the account does not exist.
    pub fn available(&self, account: AccountId) -> Option<Micros> {
        self.balance(account).map(|balance| balance.available)
    }

    /// The balance of an account, available and held.
    pub fn balance(&self, account: AccountId) -> Option<Balance> {
        self.inner.balance(account)
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
        self.inner.charge(charge, attached)
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

    /// The credit of all accounts, available and held, without those below zero. Visits every account.
    pub fn owed(&self) -> Micros {
        self.inner.owed()
    }

    async fn book(&self, kind: EntryKind, credit: Credit) -> Result<Credited, CreditError> {
        self.book_with(kind, credit, Vec::new()).await
    }

    async fn book_with(
        &self,
        kind: EntryKind,
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        let part = credit.check(kind)?;
        let wait = self.inner.book(&credit, part, attached)?;
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
