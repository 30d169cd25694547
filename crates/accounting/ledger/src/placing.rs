//! Holds: placed on the credit in memory, queued for the disk, released, expired.

use std::collections::hash_map::Entry;

use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use tollgate_clock::{Reading, Timestamp};
use tollgate_money::{Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{Admission, Budget, Done, UnitOfWork};

use crate::accounts::{Acknowledgement, Ledger, Open, Shard, lock};
use crate::decision::Decision;
use crate::hold::{Durability, Hold};
use crate::hold_request::{HoldError, HoldRequest};
use crate::units::{log_refusal, unit};

impl Ledger {
    /// Reserves credit for an operation, or returns the refusal. If the amount exceeds the available credit, `fallback` gets the available
    /// amount, and may request a smaller amount. `fallback` is called at most once, may run under a lock, and must not call the ledger.
    ///
    /// A node with enough credit decides at once, and no other request comes between. One of several nodes takes missing credit from the
    /// account's shared balance, and recalls the unneeded credit of other nodes.
    pub fn hold<'l>(
        &'l self,
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros> + Send + 'l,
    ) -> Decision<'l, Result<Hold, HoldError>> {
        if !self.has_allotments {
            let mut shard = self.shard(request.account);
            return Decision::Now(self.place(&mut shard, request, fallback));
        }
        let budget = Budget::Account(request.account);
        self.place_or_take(budget, request, Ledger::place_all, fallback)
    }

    /// The smallest hold refused on an account without credit. One of several nodes learns of credit only by a take, so the hold has to be
    /// positive.
    pub fn least_hold(&self) -> Micros {
        Micros::new(i64::from(self.has_allotments))
    }

    fn store_new(&self, shard: &mut Shard, request: &HoldRequest) -> Result<Durability, HoldError> {
        if request.is_written {
            let queued = self.queue_hold(shard, request, Admission::Normal);
            return queued.map(Durability::Waiting);
        }
        let admitted = self.store.admit();
        admitted.map_err(|error| HoldError::from_commit(request.operation, error.into()))?;
        Ok(Durability::Unwritten)
    }

    /// Reserves credit under its shard's lock.
    pub(crate) fn place(
        &self,
        shard: &mut Shard,
        mut request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
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
            // The fallback amount depends on this balance. No other thread can change the balance before the hold is placed.
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
            None => self.store_new(shard, &request).inspect_err(|_| {
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
            ledger: self.clone(),
            request,
            durability,
            resolved: false,
            extra: None,
        })
    }

    /// Queues an open hold for the disk, under its shard's lock.
    pub(crate) fn queue_hold(
        &self,
        shard: &mut Shard,
        request: &HoldRequest,
        admission: Admission,
    ) -> Result<Acknowledgement, HoldError> {
        let request = *request;
        let operation = request.operation;
        let (sender, wait) = oneshot::channel();
        let this = self.clone();
        let done: Done = Box::new(move |result| {
            // Sent under the lock: a caller who finds the hold gone also finds the reason.
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
        &self,
        request: &HoldRequest,
    ) -> Result<Option<Acknowledgement>, HoldError> {
        let mut shard = self.shard(request.account);
        match shard.open.get(&request.operation) {
            Some(open) if !open.written => self
                .queue_hold(&mut shard, request, Admission::Normal)
                .map(Some),
            // The handover has queued the hold. The hold is durable together with the empty unit queued here.
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
            // The hold has expired; its settlement will report the expiry.
            None => Ok(None),
        }
    }

    /// Undoes a hold refused by the store, unless the hold was resolved in the meantime. Returns the lock of the shard.
    fn forget(&self, request: &HoldRequest) -> MutexGuard<'_, Shard> {
        let mut shard = self.shard(request.account);
        if shard.open.remove(&request.operation).is_some() {
            shard.held = shard.held.wrapping_sub(request.amount.get());
            shard.holder(request.account).release(request.amount);
            self.give_back(&mut shard, Budget::Account(request.account), request.at);
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
        shard.holder(request.account).release(request.amount);
        if written {
            self.write_release(&request, at);
        }
        self.give_back(shard, Budget::Account(request.account), at);
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
        // After a stop of the store the hold stays open, and the next start releases the hold.
        let _ = self
            .store
            .submit(unit(part, Admission::Always), Box::new(log_refusal));
    }

    /// Releases every hold past its deadline; returns the number of released holds. A backstop against tasks that neither end nor drop.
    pub fn sweep(&self, now: Reading) -> usize {
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
}
