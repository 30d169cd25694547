//! Keys with a spending cap: the caps known to clients, and the possible states of the caps.

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId, SpendingCap};
use tollgate_store::{KeyCap, Reader};

use super::book::{Book, Operation, State};

/// A key of an account.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) account: AccountId,
    /// The caps of the key, in the order of the settings.
    pub(crate) settings: Vec<Setting>,
}

/// A cap setting: a cap, or a removal.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) cap: Option<SpendingCap>,
    /// The number of the change. A node that has read the change knows the setting. `None` while the change may not be durable.
    pub(crate) number: Option<i64>,
}

/// A request with a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyUse {
    pub(crate) credential: CredentialId,
    began_in: Month,
    /// The reserved amount, and the period of the cap.
    reserved: i64,
    period: Option<CapPeriod>,
    /// Whether the amount is still reserved.
    is_reserved: bool,
    /// When the full charge counted at the latest: the time, and a change read by every node that knows of the charge.
    counted: Option<(u64, i64)>,
}

/// The knowledge of a node at the arrival of a request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) at_us: u64,
    /// The last change read by the node.
    pub(crate) change: i64,
}

impl Known {
    fn has(&self, counted: (u64, i64)) -> bool {
        counted.0 < self.at_us && counted.1 <= self.change
    }
}

impl Key {
    /// Whether a change of the cap may be under way.
    pub(crate) fn is_changing(&self) -> bool {
        self.settings.iter().any(|it| it.number.is_none())
    }

    /// The setting known to a node; `None` before the key exists.
    pub(crate) fn known(&self, change: i64) -> Option<&Setting> {
        let mut durable = self.settings.iter().rev().filter(|it| it.number.is_some());
        let last = durable.clone().next();
        durable.find(|it| it.number <= Some(change)).or(last)
    }

    /// The maximum of a cap; `None` while the cap is not in force.
    fn max(&self, cap: KeyCap) -> Option<i64> {
        self.settings.last().and_then(|it| it.max(cap))
    }

    /// The largest maximum possible for a request; `None` without a limit.
    fn most(&self, cap: KeyCap, known: Known) -> Option<i64> {
        let is_known = |it: &Setting| it.number.is_some_and(|number| number <= known.change);
        // Any later setting may be in force.
        let first = self.settings.iter().rposition(is_known).unwrap_or(0);
        let maxima = self.settings[first..].iter().map(|it| it.max(cap));
        let maxima: Option<Vec<i64>> = maxima.collect();
        maxima.and_then(|maxima| maxima.into_iter().max())
    }
}

impl Setting {
    fn max(&self, cap: KeyCap) -> Option<i64> {
        let of_period = |it: &SpendingCap| (it.period == CapPeriod::Total) == cap.month.is_none();
        self.cap.filter(of_period).map(|it| it.max.get())
    }
}

impl KeyUse {
    pub(crate) fn new(credential: CredentialId, operation: OperationId) -> KeyUse {
        KeyUse {
            credential,
            began_in: Month::of(operation.began_at()),
            reserved: 0,
            period: None,
            is_reserved: false,
            counted: None,
        }
    }

    /// The larger of a request's reservation and its possible cost `amount`.
    pub(crate) fn has(&self, amount: i64) -> i64 {
        match self.is_reserved {
            true => self.reserved.max(amount),
            false => amount,
        }
    }

    pub(crate) fn counts(&self, cap: KeyCap) -> bool {
        self.credential == cap.credential && cap.month.is_none_or(|it| it == self.began_in)
    }
}

pub(crate) fn cap(max: i64, period: CapPeriod) -> SpendingCap {
    let max = Micros::new(max);
    SpendingCap { max, period }
}

impl Book {
    fn key_use(&mut self, number: u64) -> Option<&mut KeyUse> {
        let operation = self.operations.get_mut(&number).expect("it was asked");
        operation.key.as_mut()
    }

    /// A request has reserved a part of a cap. Checks that reservations and charges never exceed the cap.
    pub(crate) fn reserved(&mut self, number: u64, period: CapPeriod, amount: i64, known: Known) {
        let Some(of) = self.key_use(number) else {
            return;
        };
        (of.reserved, of.period, of.is_reserved) = (amount, Some(period), true);
        let month = (period == CapPeriod::Month).then_some(of.began_in);
        let credential = of.credential;
        let cap = KeyCap { credential, month };
        let most = self.keys[&credential].most(cap, known);
        let (Some(most), false) = (most, self.operations[&number].state == State::Lost) else {
            return;
        };
        let operations = self.operations.values();
        let counts = |it: &&Operation| it.key.is_some_and(|key| key.counts(cap));
        let sums = operations
            .filter(counts)
            .map(|it| self.counted_of(it, period, known));
        let sum: i64 = sums.sum();
        if sum > most {
            self.violation(format!(
                "the cap of key {credential} has {sum} reserved and charged of {most} since operation {number}"
            ));
        }
    }

    /// The part of an operation that surely counts against a cap, for a node with the knowledge `known`.
    fn counted_of(&self, operation: &Operation, period: CapPeriod, known: Known) -> i64 {
        let Some(key) = operation.key else { return 0 };
        let reserved = match key.period == Some(period) {
            true => key.reserved,
            false => 0,
        };
        match operation.state {
            State::Asked | State::Held if key.is_reserved => reserved,
            State::Charged(_) if self.may_be_late(operation) => 0,
            // The part above the reservation counts when durable, for a node that has read of the charge.
            State::Charged(charged) => match key.counted.is_some_and(|it| known.has(it)) {
                true => charged,
                false => charged.min(reserved),
            },
            State::Asked | State::Held | State::Free | State::Lost => 0,
        }
    }

    /// A reservation ends.
    pub(crate) fn unreserved(&mut self, number: u64) {
        if let Some(key) = self.key_use(number) {
            key.is_reserved = false;
        }
    }

    /// The full charge of an operation is durable, at a node that knows changes up to `known.change`.
    pub(crate) fn charge_counts(&mut self, number: u64, known: Known, last_change: i64) {
        let Some(KeyUse { credential, .. }) = self.key_use(number).copied() else {
            return;
        };
        let settings = &self.keys[&credential].settings;
        let is_known = |it: &Setting| it.number.is_some_and(|number| number <= known.change);
        if settings.iter().all(is_known)
            && let Some(key) = self.key_use(number)
        {
            key.counted = Some((known.at_us, last_change));
        }
    }

    /// The cap of a key for requests begun at a time, if in force.
    pub(crate) fn cap_of(&self, credential: CredentialId, at: Timestamp) -> Option<KeyCap> {
        let set = self.keys[&credential].settings.last()?.cap?;
        Some(KeyCap::at(credential, set.period, at))
    }

    /// The remainder of a cap according to the database. Before the first allotment, according to the clients.
    pub(crate) fn left_of(&self, reader: &Reader, cap: KeyCap) -> Option<i64> {
        let Some(max) = self.keys[&cap.credential].max(cap) else {
            return Some(i64::MAX);
        };
        let mut spent = None;
        let snapshot = reader.snapshot().ok()?;
        let read = snapshot.caps(&mut |shares| {
            if shares.cap == cap {
                let since = shares.nodes.iter().map(|node| node.since.get());
                let since = since.sum::<i64>() + shares.since_elsewhere.get();
                spent = Some(shares.posted.get() + since);
            }
        });
        read.ok()?;
        let known = || {
            let operations = self.operations.values();
            let of_cap = operations.filter(|it| it.key.is_some_and(|key| key.counts(cap)));
            let spent = of_cap.map(|it| match it.state {
                State::Charged(charged) => charged,
                State::Lost => it.amount,
                State::Asked | State::Held | State::Free => 0,
            });
            spent.sum::<i64>()
        };
        Some(max - spent.unwrap_or_else(known))
    }
}
