//! Spending caps of keys on a node that is one of several: each is a budget, of which the node has an allotment as it has of an account's credit.
//!
//! `Balance::available` is what the node was granted and has neither spent nor reserved. Every charge of a key counts here while the node has
//! an allotment of its cap, with a reservation or without: the cap may have been set while the request ran. What no
//! reservation and nothing available covers counts in the database all the same ([`AllotmentPart::Overspent`]).

use std::time::Duration;

use parking_lot::MutexGuard;
use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId, SpendingCap};
use tollgate_store::{
    Admission, AllotmentPart, Answer, Budget, KeyCap, Part, ReadError, UnitOfWork,
};

use crate::accounts::{Ledger, SHARDS, Shard, lock};
use crate::decision::Decision;
use crate::hold_request::{HoldError, HoldRequest};
use crate::settlement::Settlement;
use crate::spending::{CapReached, Reservation};
use crate::units::log_refusal;

/// A reservation against the cap of a key. Dropping it releases it.
#[derive(Debug)]
pub struct CapHold {
    ledger: Ledger,
    amount: Micros,
    share: Share,
}

/// The part of a cap that is reserved.
#[derive(Debug)]
enum Share {
    /// Of the whole cap, on a node that is alone.
    Whole(SpendingCap, Reservation),
    /// Of this node's allotment.
    Allotted {
        cap: KeyCap,
        operation: OperationId,
        at: Timestamp,
    },
    /// Replaced by a charge.
    Charged,
}

impl CapHold {
    /// The reserved amount.
    pub fn amount(&self) -> Micros {
        self.amount
    }

    /// Replaces the reservation by the charge `at` a time.
    pub fn settle(mut self, charged: Micros, at: Timestamp) -> CountedCharge {
        let ledger = self.ledger.clone();
        let caps = match std::mem::replace(&mut self.share, Share::Charged) {
            Share::Whole(cap, reservation) => {
                reservation.settle(cap, charged, at);
                Vec::new()
            }
            Share::Allotted { cap, operation, .. } => {
                let of = (operation, at);
                ledger.count_charge(cap.credential, charged, of, Some((cap, self.amount)))
            }
            Share::Charged => Vec::new(),
        };
        CountedCharge {
            ledger,
            caps,
            charged,
            at,
        }
    }
}

impl Drop for CapHold {
    fn drop(&mut self) {
        if let Share::Allotted { cap, at, .. } = self.share {
            let mut shard = self.ledger.shard_of_caps(cap.credential);
            if let Some(state) = shard.caps.get_mut(&cap) {
                state.balance.release(self.amount);
            }
            let at = self.ledger.latest().max(at);
            self.ledger.give_back(&mut shard, Budget::Cap(cap), at);
        }
    }
}

/// A charge, and the caps of its key that it was counted against.
#[derive(Debug)]
pub struct CountedCharge {
    ledger: Ledger,
    caps: Vec<KeyCap>,
    charged: Micros,
    at: Timestamp,
}

impl CountedCharge {
    /// Returns it to the caps if the store refuses its settlement, also where no caller waits for that.
    pub fn follow(self, settlement: &Settlement) {
        if let Some(undo) = settlement.undo.as_ref().filter(|_| !self.caps.is_empty()) {
            undo.set(move || self.undo());
        }
    }

    /// What the caps did not have of it the database has granted.
    fn undo(self) {
        for cap in self.caps {
            let mut shard = self.ledger.shard_of_caps(cap.credential);
            if let Some(state) = shard.caps.get_mut(&cap) {
                state.balance.available += self.charged;
            }
            self.ledger.give_back(&mut shard, Budget::Cap(cap), self.at);
        }
    }
}

impl Ledger {
    pub(crate) fn shard_of_caps(&self, credential: CredentialId) -> MutexGuard<'_, Shard> {
        lock(&self.shards[usize::from(credential.as_bytes()[15]) % SHARDS])
    }

    /// Loads what this node has of caps. What it has is reserved for the requests of the predecessor while there is one.
    pub(crate) fn load_caps(&self) -> Result<(), ReadError> {
        let has_predecessor = self.store.earliest_epoch() < self.store.epoch();
        let mut overspent = Vec::new();
        self.store.cap_allotments(self.store.node(), &mut |row| {
            let mut shard = self.shard_of_caps(row.cap.credential);
            let state = shard.caps.entry(row.cap).or_default();
            let left = row.left.max(Micros::ZERO);
            if left > row.left {
                overspent.push((row.cap, left - row.left));
            }
            match has_predecessor {
                true => (state.balance.held, state.adopted) = (left, left),
                false => state.balance.available = left,
            }
        })?;
        for (cap, amount) in overspent {
            self.overspend(cap, amount, self.latest());
        }
        Ok(())
    }

    /// Reads what the key of a request has spent where that decides its cap and is not in memory: on a node that is alone.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or not within some seconds.
    pub async fn load_spending(
        &self,
        of: (CredentialId, AccountId),
        cap: SpendingCap,
        now: Timestamp,
    ) -> Result<(), tollgate_store::LoadError> {
        match self.has_allotments {
            true => Ok(()),
            false => self.spending.load(of, cap, now).await,
        }
    }

    /// The cap of a key, if it is known to leave nothing; one of several nodes knows by a reservation alone ([`Ledger::hold_cap`]).
    ///
    /// # Errors
    ///
    /// [`HoldError::NotLoaded`]: the spending of the key has to be loaded first ([`Ledger::load_spending`]).
    pub fn reached_cap(
        &self,
        credential: CredentialId,
        cap: SpendingCap,
        now: Timestamp,
    ) -> Result<Option<CapReached>, HoldError> {
        if self.has_allotments {
            return Ok(None);
        }
        let left = self.spending.left(credential, cap, now);
        left.map(Result::err).ok_or(HoldError::NotLoaded)
    }

    /// Removes from memory the spending of keys that were not used in the last one or two times of `kept`, and have no reservation.
    pub fn evict_spending(&self, now: Timestamp, kept: Duration) {
        self.spending.evict_idle(now, kept);
    }

    /// Reserves a part of the spending cap of the key of a request. Decided at once on a node that is alone. One of several nodes takes from
    /// the cap what it lacks, and has other nodes return what they do not need. `fallback` is asked for a smaller amount at most once. In
    /// [`HoldError::InsufficientCredit`] `available` is what the cap leaves.
    pub fn hold_cap<'l>(
        &'l self,
        (credential, cap): (CredentialId, SpendingCap),
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros> + Send + 'l,
    ) -> Decision<'l, Result<CapHold, HoldError>> {
        if !self.has_allotments {
            return Decision::Now(self.hold_of_whole((credential, cap), request, fallback));
        }
        let cap = KeyCap::of(credential, cap.period, request.operation);
        let place = move |ledger: &Ledger, shard: &mut Shard, request| {
            ledger.place_cap(shard, cap, request)
        };
        let acquired = self.acquire_from(Budget::Cap(cap), request, place, fallback, false);
        Decision::later(acquired)
    }

    fn hold_of_whole(
        &self,
        (credential, cap): (CredentialId, SpendingCap),
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<CapHold, HoldError> {
        let reserve = |amount| {
            let reserved = self.spending.reserve(credential, cap, amount, request.at);
            Ok(reserved
                .ok_or(HoldError::NotLoaded)?
                .map(|reservation| CapHold {
                    ledger: self.clone(),
                    amount,
                    share: Share::Whole(cap, reservation),
                }))
        };
        let reserved = match reserve(request.amount)? {
            Err(reached) => match fallback(reached.left) {
                Some(amount) => reserve(amount)?,
                None => Err(reached),
            },
            reserved => reserved,
        };
        reserved.map_err(|reached| HoldError::InsufficientCredit {
            account: request.account,
            available: reached.left,
            requested: request.amount,
        })
    }

    /// Counts a settlement against the cap of its key, with the reservation of its request or without: the cap may have been set while the
    /// request ran. On a node that is alone it counts when it is durable, or nobody waits for it any more; on one of several at once,
    /// and is returned to the cap if the store refuses it.
    pub fn count(
        &self,
        settlement: &mut Settlement,
        credential: CredentialId,
        reserved: Option<CapHold>,
        at: Timestamp,
    ) {
        let charged = settlement.settled.charged;
        let counted = match reserved {
            Some(mut reserved) => match std::mem::replace(&mut reserved.share, Share::Charged) {
                Share::Whole(cap, reservation) => {
                    settlement.reserved = Some(Box::new((cap, reservation, at)));
                    return;
                }
                share => {
                    reserved.share = share;
                    reserved.settle(charged, at)
                }
            },
            None => self.count_uncapped(credential, charged, (settlement.operation, at)),
        };
        counted.follow(settlement);
    }

    /// Counts a charge of a key, by operation and time, that had no reservation ([`Ledger::hold_cap`]); does nothing on a node that is
    /// alone.
    pub fn count_uncapped(
        &self,
        credential: CredentialId,
        charged: Micros,
        of: (OperationId, Timestamp),
    ) -> CountedCharge {
        CountedCharge {
            ledger: self.clone(),
            caps: self.count_charge(credential, charged, of, None),
            charged,
            at: of.1,
        }
    }

    fn place_cap(
        &self,
        shard: &mut Shard,
        cap: KeyCap,
        request: HoldRequest,
    ) -> Result<CapHold, HoldError> {
        self.note(request.at);
        if shard.is_handed_over {
            return Err(HoldError::Overloaded { waiting: 0 });
        }
        let balance = &mut shard.caps.entry(cap).or_default().balance;
        if !balance.hold(request.amount) {
            return Err(HoldError::InsufficientCredit {
                account: request.account,
                available: balance.spendable(),
                requested: request.amount,
            });
        }
        Ok(CapHold {
            ledger: self.clone(),
            amount: request.amount,
            share: Share::Allotted {
                cap,
                operation: request.operation,
                at: request.at,
            },
        })
    }

    /// Counts a charge against every cap of the key that this node has an allotment of, which it returns, and ends its reservation.
    pub(crate) fn count_charge(
        &self,
        credential: CredentialId,
        charged: Micros,
        (operation, at): (OperationId, Timestamp),
        reserved: Option<(KeyCap, Micros)>,
    ) -> Vec<KeyCap> {
        let mut counted = Vec::new();
        if !self.has_allotments {
            return counted;
        }
        let mut shard = self.shard_of_caps(credential);
        if let Some((cap, amount)) = reserved
            && let Some(state) = shard.caps.get_mut(&cap)
        {
            state.balance.release(amount);
        }
        for period in [CapPeriod::Total, CapPeriod::Month] {
            let cap = KeyCap::of(credential, period, operation);
            let Some(state) = shard.caps.get_mut(&cap) else {
                // Of a month that is over this node may have had a part, or hear only later that there was a cap.
                let is_over = cap.month.is_some_and(|it| it < Month::of(self.latest()));
                if is_over && charged.is_positive() {
                    self.overspend(cap, charged, at);
                }
                continue;
            };
            let beyond = state.balance.charge(charged).written_off;
            if beyond.is_positive() {
                self.overspend(cap, beyond, at);
            }
            self.give_back(&mut shard, Budget::Cap(cap), at);
            counted.push(cap);
        }
        counted
    }

    /// Has what a key was charged summed again, queued behind the charges, for the caps of the month of `operation` of which this node has nothing:
    /// others may have begun to count without them.
    pub(crate) fn announce_charges(
        &self,
        credential: CredentialId,
        (operation, at): (OperationId, Timestamp),
    ) {
        if !self.has_allotments {
            return;
        }
        for period in [CapPeriod::Total, CapPeriod::Month] {
            let cap = KeyCap::of(credential, period, operation);
            if !self.shard_of_caps(credential).caps.contains_key(&cap) {
                self.overspend(cap, Micros::ZERO, at);
            }
        }
    }

    /// Counts a charge of the predecessor, which has its reservations in this process.
    pub(crate) fn count_charge_of_predecessor(
        &self,
        credential: CredentialId,
        charged: Micros,
        (operation, at): (OperationId, Timestamp),
    ) {
        if !self.has_allotments {
            return;
        }
        let mut shard = self.shard_of_caps(credential);
        for period in [CapPeriod::Total, CapPeriod::Month] {
            let cap = KeyCap::of(credential, period, operation);
            if let Some(state) = shard.caps.get_mut(&cap) {
                let covered = charged.min(state.adopted);
                state.adopted -= covered;
                state.balance.release(covered);
            }
        }
        drop(shard);
        self.count_charge(credential, charged, (operation, at), None);
    }

    /// Frees what the requests of the predecessor have not spent.
    pub(crate) fn release_adopted_caps(&self, at: Timestamp) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            let mut freed = Vec::new();
            for (cap, state) in &mut shard.caps {
                state.balance.release(state.adopted);
                state.adopted = Micros::ZERO;
                freed.push(*cap);
            }
            for cap in freed {
                self.give_back(&mut shard, Budget::Cap(cap), at);
            }
        }
    }

    /// Returns what is not reserved, before the store is handed over: the successor keeps the rest for the requests of this process.
    pub(crate) fn return_caps(&self, shard: &mut Shard, at: Timestamp) {
        let found = shard.caps.iter();
        let found: Vec<_> = found
            .filter(|(_, state)| state.balance.available.is_positive())
            .map(|(cap, state)| (*cap, state.balance.available))
            .collect();
        for (cap, available) in found {
            self.give(shard, Budget::Cap(cap), available, Answer::None, at);
        }
    }

    /// A key was changed, or a cap of it is recalled.
    pub(crate) fn credential_changed(
        &self,
        credential: CredentialId,
        number: i64,
    ) -> Result<(), ReadError> {
        let Some(row) = self.store.credential(credential)? else {
            return Ok(());
        };
        let mut caps: Vec<KeyCap> = {
            let shard = self.shard_of_caps(credential);
            let all = shard.caps.keys().copied();
            all.filter(|cap| cap.credential == credential).collect()
        };
        let now = self.latest();
        let in_force = (row.made.spending_cap).map(|cap| KeyCap::at(credential, cap.period, now));
        let begun = in_force.filter(|cap| !caps.contains(cap));
        caps.extend(begun);
        for cap in caps {
            let budget = Budget::Cap(cap);
            self.set_recall(budget, self.store.recall(budget)?, number);
        }
        if let Some(cap) = begun {
            // Charges count here from now on. Those before may have come after another node's first take, also in the month before.
            self.overspend(cap, Micros::ZERO, now);
            if let Some(month) = cap.month {
                let month = Some(Month::from_number(month.number() - 1));
                self.overspend(KeyCap { month, ..cap }, Micros::ZERO, now);
            }
        }
        Ok(())
    }

    /// Has what keys were charged summed again for caps whose changes this run, or the one before, may not have read: what it has charged them was not
    /// counted by those that had.
    pub(crate) fn announce_unread_caps(&self) -> Result<(), ReadError> {
        let mut caps = Vec::new();
        let node = self.store.node();
        self.store
            .changed_caps_without(node, &mut |cap| caps.push(cap))?;
        for cap in caps {
            self.overspend(cap, Micros::ZERO, self.latest());
        }
        Ok(())
    }

    fn overspend(&self, cap: KeyCap, amount: Micros, at: Timestamp) {
        let part = AllotmentPart::Overspent { cap, amount, at };
        let unit = UnitOfWork::of(Part::Allotment(part), Admission::Always);
        // A stopped store has the charge in its journal, where the next start finds it.
        let _ = self.store.submit(unit, Box::new(log_refusal));
    }
}

impl Shard {
    /// Removes the caps of which this node has nothing, of months before the last one, and returns them. Those of the last month stay: the clock may
    /// be ahead, and what is charged in that month once it is set back has to count.
    pub(crate) fn forget_caps(&mut self, now: Timestamp) -> Vec<KeyCap> {
        let month = Month::of(now);
        let mut forgotten = Vec::new();
        self.caps.retain(|cap, state| {
            let is_over = cap.month.is_some_and(|it| it.next() < month);
            let is_empty = state.balance.total() == Micros::ZERO && state.allotment.takes == 0;
            if is_over && is_empty {
                forgotten.push(*cap);
            }
            !(is_over && is_empty)
        });
        forgotten
    }
}
