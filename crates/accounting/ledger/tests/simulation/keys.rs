//! Keys with a spending cap: what clients know of their caps, and what may be true by that.

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId, SpendingCap};
use tollgate_store::{KeyCap, Reader};

use super::book::{Book, Operation, State};

/// A key of an account.
#[derive(Clone, Debug)]
pub(crate) struct Key {
    pub(crate) account: AccountId,
    /// Its caps, in the order in which they were set.
    pub(crate) settings: Vec<Setting>,
}

/// A cap that was set, or removed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Setting {
    pub(crate) cap: Option<SpendingCap>,
    /// A node that has read the change with this number knows it; `None` while it may not be durable.
    pub(crate) number: Option<i64>,
}

/// A request with a key.
#[derive(Clone, Copy, Debug)]
pub(crate) struct KeyUse {
    pub(crate) credential: CredentialId,
    began_in: Month,
    /// What it has reserved, and of which cap.
    reserved: i64,
    period: Option<CapPeriod>,
    /// Whether that is reserved still.
    is_reserved: bool,
    /// When all that it was charged counted at the latest: the time, and a change that every node has read which knows of it.
    counted: Option<(u64, i64)>,
}

/// What a node knew when a request came.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Known {
    pub(crate) at_us: u64,
    /// The last change that it had read.
    pub(crate) change: i64,
}

impl Known {
    fn has(&self, counted: (u64, i64)) -> bool {
        counted.0 < self.at_us && counted.1 <= self.change
    }
}

impl Key {
    /// Whether a change of its cap may be under way.
    pub(crate) fn is_changing(&self) -> bool {
        self.settings.iter().any(|it| it.number.is_none())
    }

    /// The setting that a node knows of; none before the key is there.
    pub(crate) fn known(&self, change: i64) -> Option<&Setting> {
        let mut durable = self.settings.iter().rev().filter(|it| it.number.is_some());
        let last = durable.clone().next();
        durable.find(|it| it.number <= Some(change)).or(last)
    }

    /// What a cap allows; `None` while it is not in force.
    fn max(&self, cap: KeyCap) -> Option<i64> {
        self.settings.last().and_then(|it| it.max(cap))
    }

    /// The most that a cap may have allowed to a request; `None` without a limit.
    fn most(&self, cap: KeyCap, known: Known) -> Option<i64> {
        let is_known = |it: &Setting| it.number.is_some_and(|number| number <= known.change);
        // What follows may be in force.
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

    /// The most that a request has of its cap, which may cost `amount`.
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

    /// A request has reserved a part of a cap: never more is reserved and charged than the cap allows.
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

    /// What counts of an operation against a cap, surely and for a node.
    fn counted_of(&self, operation: &Operation, period: CapPeriod, known: Known) -> i64 {
        let Some(key) = operation.key else { return 0 };
        let reserved = match key.period == Some(period) {
            true => key.reserved,
            false => 0,
        };
        match operation.state {
            State::Asked | State::Held if key.is_reserved => reserved,
            State::Charged(_) if self.may_be_late(operation) => 0,
            // What exceeds the reservation counts when it is durable, and for a node that has read of it.
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

    /// All that an operation was charged is durable, at a node that knows of changes up to `change`.
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

    /// The cap of a key for the requests that begin at a time, if one is in force.
    pub(crate) fn cap_of(&self, credential: CredentialId, at: Timestamp) -> Option<KeyCap> {
        let set = self.keys[&credential].settings.last()?.cap?;
        Some(KeyCap::at(credential, set.period, at))
    }

    /// What a cap leaves by what is in the database. Before any node has a part of it, by what clients know.
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
