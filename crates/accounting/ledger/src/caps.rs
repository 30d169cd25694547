//! Spending caps of keys. A lone node reserves in [`crate::spending`]. One of several nodes has an allotment of each cap, as of an account's
//! credit.
//!
//! `Balance::available` is the granted amount, less spent and reserved amounts. A charge of a key counts while the node has an allotment of
//! the key's cap, with or without a reservation: the cap may have been set while the request ran. A charge above the reservation and the
//! available amount counts in the database ([`AllotmentPart::Overspent`]).

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

/// A reservation against the cap of a key. A drop releases the reservation.
#[derive(Debug)]
pub struct CapHold {
    ledger: Ledger,
    amount: Micros,
    share: Share,
}

/// The reserved part of a cap.
#[derive(Debug)]
enum Share {
    /// Part of the whole cap, on a node that is alone.
    Whole(SpendingCap, Reservation),
    /// Part of this node's allotment.
    Allotted {
        cap: KeyCap,
        operation: OperationId,
        at: Timestamp,
    },
    /// Replaced by a charge.
    Charged,
}

impl CapHold {
    pub fn amount(&self) -> Micros {
        self.amount
    }

    /// Replaces the reservation by the charge; `at`: the time of the charge.
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

/// A charge, and the caps against which the charge was counted.
#[derive(Debug)]
pub struct CountedCharge {
    ledger: Ledger,
    caps: Vec<KeyCap>,
    charged: Micros,
    at: Timestamp,
}

impl CountedCharge {
    /// Returns the charge to the caps if the store refuses the settlement, even without a caller waiting for the settlement.
    pub fn follow(self, settlement: &Settlement) {
        if let Some(undo) = settlement.undo.as_ref().filter(|_| !self.caps.is_empty()) {
            undo.set(move || self.undo());
        }
    }

    /// A part of the charge above a cap's allotment was granted by the database, so the full charge is returned.
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

    /// Loads this node's allotments of caps. While a predecessor runs, the allotments are reserved for the predecessor's requests.
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

    /// Loads the spending of a request's key, on a node that is alone, where the spending decides the cap.
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

    /// The cap of a key, if the cap is known to be used up. Always `None` on one of several nodes, which must reserve instead
    /// ([`Ledger::hold_cap`]).
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

    /// Removes the spending of idle keys from memory: keys without a reservation, and without use in the last one or two intervals of
    /// `kept`.
    pub fn evict_spending(&self, now: Timestamp, kept: Duration) {
        self.spending.evict_idle(now, kept);
    }

    /// Reserves a part of the spending cap of a request's key. A node that is alone decides at once. One of several nodes takes the missing
    /// amount from the cap, and recalls the unneeded allotments of other nodes. `fallback` is asked for a smaller amount at most once. In
    /// [`HoldError::InsufficientCredit`] `available` is the remainder of the cap.
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
        self.place_or_take(Budget::Cap(cap), request, place, fallback)
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

    /// Counts a settlement against the cap of its key, with or without a reservation: the cap may have been set while the request ran. On a
    /// node that is alone the settlement counts when durable, or when its wait is dropped. On one of several nodes the settlement counts at
    /// once, and is returned to the cap if the store refuses the settlement.
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
            None if !self.has_allotments => return,
            None => self.count_uncapped(credential, charged, (settlement.operation, at)),
        };
        counted.follow(settlement);
    }

    /// Counts a charge of a key without a reservation ([`Ledger::hold_cap`]); `of`: operation and time of the charge. No effect on a node
    /// that is alone.
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

    /// Counts a charge against this node's allotments of the key's caps, and ends the reservation. Returns the counted caps.
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
                // This node may have had an allotment of a past month's cap, or may hear of the cap only later.
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

    /// Has the database sum the charges of a key again, for caps of the month of `operation` without an allotment on this node. The unit is
    /// queued behind the charges. Other nodes may have begun to count without the charges.
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

    /// Counts a charge of the predecessor, whose reservations are in this process.
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

    /// Frees the unspent reservations of the predecessor.
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

    /// Returns unreserved allotments of caps before the handover of the store. The successor keeps the rest for the requests of this
    /// process.
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

    /// A key was changed, or one of its caps is recalled.
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
            // Charges count here from now on. Earlier charges may have come after another node's first take, also in the month before.
            self.overspend(cap, Micros::ZERO, now);
            if let Some(month) = cap.month {
                let month = Some(Month::from_number(month.number() - 1));
                self.overspend(KeyCap { month, ..cap }, Micros::ZERO, now);
            }
        }
        Ok(())
    }

    /// Has the database sum the charges of keys again, for caps whose changes this run or the run before may not have read. Nodes which had
    /// read the changes did not count the charges of this node.
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
        // After a stop of the store the charge is in its journal. The next start finds the charge.
        let _ = self.store.submit(unit, Box::new(log_refusal));
    }
}

impl Shard {
    /// Removes caps of months before the last month, if this node has no allotment of the cap. Returns the removed caps. Caps of the last
    /// month stay: the clock may be ahead. After a clock correction, charges in that month still have to count.
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
