//! Movements of credit between an account and the outside: decided on the account, queued, idempotent by reference.

use tokio::sync::oneshot;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{
    Admission, Budget, CommitError, Done, EntryKind, Failure, Part, UnitOfWork, flush, reading,
};

use crate::accounts::{Acknowledgement, BALANCE_MAX, Ledger, Shard};
use crate::credit::{Credit, CreditError, Credited};
use crate::hold::Hold;
use crate::hold_request::HoldRequest;

impl Ledger {
    /// Books credit bought with outside money.
    pub async fn top_up(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book_alone(EntryKind::TopUp, credit).await
    }

    /// Books the credit together with a part of the purchase: one commit has both, or neither. A repeated reference still writes the part.
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
        self.book_alone(EntryKind::Grant, credit).await
    }

    /// Books the credit together with parts: one commit has every part, or no part. A repeated reference still writes the parts.
    pub async fn grant_with(
        &self,
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        self.book_with(EntryKind::Grant, credit, attached).await
    }

    /// Books revenue refunded as credit.
    pub async fn refund(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book_alone(EntryKind::Refund, credit).await
    }

    /// Books a correction by the operator, up or down.
    pub async fn correct(&self, credit: Credit) -> Result<Credited, CreditError> {
        self.book_alone(EntryKind::Correction, credit).await
    }

    /// Books the correction together with parts: one commit has every part, or no part.
    pub async fn correct_with(
        &self,
        credit: Credit,
        attached: Vec<Part>,
    ) -> Result<Credited, CreditError> {
        self.book_with(EntryKind::Correction, credit, attached)
            .await
    }

    /// Takes back credits of a returned payment, owed credits included. No other operation can take owed credits.
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
        self.book_alone(EntryKind::Expiry, credit).await
    }

    async fn book_alone(&self, kind: EntryKind, credit: Credit) -> Result<Credited, CreditError> {
        self.book_with(kind, credit, Vec::new()).await
    }

    /// Holds outgoing credit of an account on this node.
    async fn hold_for(&self, credit: &Credit, is_owed: bool) -> Result<Hold, CreditError> {
        let request =
            HoldRequest::brief(credit.operation, credit.account, -credit.amount, credit.at);
        let held = match is_owed {
            true => self.acquire_owed(request).await,
            false => self.acquire(request, |_| None).await,
        };
        held.map_err(|error| credit.hold_error(error))
    }

    /// Decides a movement by the account's balance, and queues the movement.
    async fn decide(
        &self,
        credit: &Credit,
        parts: Vec<Part>,
        is_owed: bool,
    ) -> Result<Acknowledgement, CreditError> {
        let held = match credit.amount.is_positive() || !self.has_allotments {
            true => None,
            false => Some(self.hold_for(credit, is_owed).await?),
        };
        let booked = |held| self.queue_decided(credit, parts, held, is_owed);
        self.with_held(credit.account, held, booked)
    }

    /// Whether the reference of a movement is booked, after a flush of the queue. The first attempt may have taken the credit without being
    /// durable.
    async fn is_booked(&self, credit: &Credit) -> Result<bool, CreditError> {
        let store = &self.store;
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
        let loaded = self.load(credit.account).await;
        loaded.map_err(|error| credit.load_error(error))?;
        let parts = std::iter::once(part).chain(attached);
        let parts: Vec<Part> = parts.collect();
        let wait = match self.decide(&credit, parts.clone(), is_owed).await {
            // The present balance does not decide a movement that is already booked.
            Err(CreditError::InsufficientCredit { .. } | CreditError::TooMuch { .. })
                if self.is_booked(&credit).await? =>
            {
                self.book_again(&credit, parts)
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

    /// Queues a movement of credit. Incoming credit counts when durable (`observer.rs`). Outgoing credit counts at once, and is restored
    /// when the store refuses the movement or knows its reference. `is_owed`: the movement takes back credits owed by returned payments.
    pub(crate) fn queue_decided(
        &self,
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

    /// Queues a movement that is already booked, for its attached parts. The store answers with the earlier operation.
    pub(crate) fn book_again(
        &self,
        credit: &Credit,
        parts: Vec<Part>,
    ) -> Result<Acknowledgement, CreditError> {
        // Locked until the unit is queued, so that no handover begins in between.
        let shard = self.shard(credit.account);
        if shard.is_handed_over {
            return Err(CreditError::Overloaded { waiting: 0 });
        }
        self.queue_booking(credit, parts, Micros::ZERO)
    }

    /// Queues a movement whose `outward` amount was taken from the account. The account gets `outward` back if the store does not book the
    /// movement.
    fn queue_booking(
        &self,
        credit: &Credit,
        parts: Vec<Part>,
        outward: Micros,
    ) -> Result<Acknowledgement, CreditError> {
        let account = credit.account;
        let (sender, wait) = oneshot::channel();
        let this = self.clone();
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

    /// Restores credit of a refused unit.
    pub(crate) fn credit_back(&self, account: AccountId, amount: Micros) {
        self.add_credit(&mut self.shard(account), account, amount, false);
    }

    /// Credit was booked on this node. This node's row answers no recall any more, and must not answer before the credit is returned.
    pub(crate) fn apply_booked_credit(&self, account: AccountId, amount: Micros, is_payment: bool) {
        let mut shard = self.shard(account);
        if let Some(allotment) = shard.allotments.get_mut(&account) {
            allotment.answered = 0;
        }
        self.add_credit(&mut shard, account, amount, is_payment);
    }

    /// A payment was made, possibly without credit.
    pub(crate) fn mark_paid(&self, account: AccountId) {
        self.add_credit(&mut self.shard(account), account, Micros::ZERO, true);
    }

    fn add_credit(&self, shard: &mut Shard, account: AccountId, amount: Micros, is_payment: bool) {
        if let Some(balance) = shard.accounts.get_mut(&account) {
            balance.available += amount;
            balance.has_paid |= is_payment;
        }
        self.give_back(shard, Budget::Account(account), self.latest());
    }
}
