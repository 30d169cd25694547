//! Spending caps of keys on a node that is alone: the recorded spending, and the reservations of running requests.
//!
//! The spending is counted in memory: a load reads the usage records, and each charge increases the sum. A request reserves its worst case
//! against the cap, as against the account, so that concurrent requests cannot exceed the cap. One of several nodes has an allotment of
//! each cap instead (`caps.rs`).

use std::collections::HashMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, Ordering::Relaxed};
use std::sync::{Arc, Weak};
use std::time::Duration;

use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, SpendingCap};
use tollgate_store::{
    Admission, Effect, LoadError, Loads, Observer, Part, Store, UnitOfWork, commit_blocking,
};

/// Attempts of one load while the spending changes.
const TRIES: usize = 10;

/// The spending of credentials in use that have a cap. The first use of a credential reads its usage records.
#[derive(Default)]
pub(crate) struct Spending {
    cells: DashMap<CredentialId, Cell>,
    /// `None` without recorded usage.
    store: Option<Weak<dyn Store>>,
    loads: Arc<Loads<CredentialId, ()>>,
    /// The loads under way. `true`: the read data is out of date.
    loading: Mutex<HashMap<CredentialId, bool>>,
    /// When idle cells were last removed, in microseconds since 1970.
    evicted_at: AtomicI64,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// The period of the cap; `None` without a cap.
    period: Option<CapPeriod>,
    /// The month of `spent`, for a monthly cap.
    month: Month,
    spent: Micros,
    reserved: Micros,
    /// Whether the cell was used since the last removal of idle cells.
    is_used: bool,
}

/// The part of a cap reserved for one request. A drop releases the reservation.
#[derive(Debug)]
pub(crate) struct Reservation {
    spending: Arc<Spending>,
    credential: CredentialId,
    amount: Micros,
}

/// A charge that has replaced a reservation.
pub(crate) struct CountedSpending {
    spending: Arc<Spending>,
    credential: CredentialId,
    /// The month of its cell; `None` without a cell.
    month: Option<Month>,
}

/// The remainder of a cap is too small for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapReached {
    /// The cap.
    pub cap: SpendingCap,
    /// The part of the cap that is neither spent nor reserved; not negative.
    pub left: Micros,
    /// The end of the month, for a monthly cap.
    pub until: Option<Timestamp>,
}

impl Spending {
    /// Spending from the usage records of a store, before any request.
    pub(crate) fn open(store: &Arc<dyn Store>) -> Spending {
        Spending {
            store: Some(Arc::downgrade(store)),
            ..Spending::default()
        }
    }

    /// Loads the spending of a credential outside memory. Concurrent callers share one read.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or not within some seconds.
    pub(crate) async fn load(
        self: &Arc<Spending>,
        (credential, account): (CredentialId, AccountId),
        cap: SpendingCap,
        now: Timestamp,
    ) -> Result<(), LoadError> {
        let this = Arc::clone(self);
        let read = move || this.read((credential, account), cap.period, now);
        self.loads.load(credential, read).await
    }

    /// The read of [`Spending::load`]; blocks.
    fn read(
        &self,
        (credential, account): (CredentialId, AccountId),
        period: CapPeriod,
        now: Timestamp,
    ) -> Result<(), LoadError> {
        let store = match &self.store {
            Some(store) => Some(store.upgrade().ok_or(LoadError::TimedOut)?),
            None => None,
        };
        let month = Month::of(now);
        for _ in 0..TRIES {
            self.loading().insert(credential, false);
            let mut period = Some(period);
            let mut spent = Micros::ZERO;
            if let Some(store) = &store {
                // The queue may still have charges of requests that ended before the last eviction of the cell.
                flush(&**store)?;
                // The request may have been admitted before a change of its cap.
                let row = store.credential(credential)?;
                let cap = row.and_then(|row| row.made.spending_cap);
                period = cap.map(|cap| cap.period);
                let since = match period {
                    Some(CapPeriod::Month) => month.start(),
                    Some(CapPeriod::Total) | None => Timestamp::MIN,
                };
                if period.is_some() {
                    spent = store.credential_spent(account, credential, since)?;
                }
                // After this flush, every charge visible to the read was announced (`Spending::count`), and no such charge is announced
                // later.
                flush(&**store)?;
            }
            let mut loading = self.loading();
            if loading.remove(&credential) == Some(false) {
                // Under the lock: later announcements find the cell.
                self.cells.entry(credential).or_insert(Cell {
                    period,
                    month,
                    spent,
                    reserved: Micros::ZERO,
                    is_used: true,
                });
                return Ok(());
            }
        }
        Err(LoadError::Changed)
    }

    fn loading(&self) -> MutexGuard<'_, HashMap<CredentialId, bool>> {
        self.loading.lock()
    }

    /// Changes the cell of a credential. Without a cell, marks a load under way as out of date.
    fn announced(&self, credential: CredentialId, change: impl FnOnce(&mut Cell)) {
        let mut loading = self.loading();
        match self.cells.get_mut(&credential) {
            Some(mut cell) => change(&mut cell),
            None => {
                if let Some(is_outdated) = loading.get_mut(&credential) {
                    *is_outdated = true;
                }
            }
        }
    }

    /// Removes idle cells: cells without a reservation, and without use in the last one or two intervals of `kept`.
    pub(crate) fn evict_idle(&self, now: Timestamp, kept: Duration) {
        let evicted_at = Timestamp::from_micros(self.evicted_at.load(Relaxed));
        // A clock that was set back also causes a removal.
        if now < evicted_at + kept && now >= evicted_at {
            return;
        }
        self.evicted_at.store(now.as_micros(), Relaxed);
        self.cells.retain(|_, cell| {
            let is_kept = cell.is_used || cell.reserved != Micros::ZERO;
            cell.is_used = false;
            is_kept
        });
    }

    /// Number of credentials in memory.
    #[cfg(test)]
    fn len(&self) -> usize {
        self.cells.len()
    }

    /// Counts a charge of the predecessor process, if the credential has a cap. The month is the month of the charge.
    pub(crate) fn count(&self, credential: CredentialId, charged: Micros, at: Timestamp) {
        self.announced(credential, |cell| {
            if let Some(period) = cell.period {
                cell.turn_to(period, at);
            }
            cell.spent = cell.spent.saturating_add(charged);
        });
    }

    /// The remainder of `cap` for `credential`; `None` when the spending has to be loaded first.
    pub(crate) fn left(
        &self,
        credential: CredentialId,
        cap: SpendingCap,
        now: Timestamp,
    ) -> Option<Result<Micros, CapReached>> {
        let left = self.cells.get_mut(&credential)?.left(cap, now);
        Some(match left.is_positive() {
            true => Ok(left),
            false => Err(CapReached::of(cap, left, now)),
        })
    }

    /// Reserves `amount` of `cap` for a request, if `amount` is left; `None` when the spending has to be loaded first.
    pub(crate) fn reserve(
        self: &Arc<Spending>,
        credential: CredentialId,
        cap: SpendingCap,
        amount: Micros,
        now: Timestamp,
    ) -> Option<Result<Reservation, CapReached>> {
        let mut cell = self.cells.get_mut(&credential)?;
        let left = cell.left(cap, now);
        if amount > left {
            return Some(Err(CapReached::of(cap, left, now)));
        }
        cell.reserved = cell.reserved.saturating_add(amount);
        Some(Ok(Reservation {
            spending: Arc::clone(self),
            credential,
            amount,
        }))
    }
}

impl Observer for Spending {
    /// A new cap, or a cap with another period, begins with the sum of the usage records. Otherwise the count goes on. Requests that run
    /// without a cap when a cap is set count from the next start on.
    fn committed(&self, part: &Part, _: Effect) {
        let Part::ChangeCredential(change) = part else {
            return;
        };
        let period = change.spending_cap.map(|cap| cap.period);
        // The cell of a key without a cap stays for the reservations of running requests.
        self.announced(change.id, |cell| {
            if cell.period != period {
                cell.period = period;
                cell.month = Month::of(change.at);
                cell.spent = change.spent;
            }
        });
    }
}

impl fmt::Debug for Spending {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Spending").finish_non_exhaustive()
    }
}

/// Blocks until earlier units are durable and their callers are notified.
fn flush(store: &dyn Store) -> Result<(), LoadError> {
    let unit = UnitOfWork::of_all([], Admission::Always);
    commit_blocking(store, unit)
        .map(|_| ())
        .map_err(|_| LoadError::TimedOut)
}

impl Cell {
    /// A new month starts with nothing spent; reservations stay.
    fn turn(&mut self, cap: SpendingCap, now: Timestamp) {
        self.turn_to(cap.period, now);
    }

    fn turn_to(&mut self, period: CapPeriod, now: Timestamp) {
        let month = Month::of(now);
        if month > self.month {
            self.month = month;
            if period == CapPeriod::Month {
                self.spent = Micros::ZERO;
            }
        }
    }

    fn left(&mut self, cap: SpendingCap, now: Timestamp) -> Micros {
        self.is_used = true;
        self.turn(cap, now);
        minus(minus(cap.max, self.spent), self.reserved)
    }
}

impl CapReached {
    /// A cap with the remainder `left`.
    pub fn of(cap: SpendingCap, left: Micros, now: Timestamp) -> CapReached {
        CapReached {
            cap,
            left: left.max(Micros::ZERO),
            until: (cap.period == CapPeriod::Month).then(|| Month::of(now).next().start()),
        }
    }
}

impl Reservation {
    /// Replaces the reservation by the charge; `at`: the time of the charge. The month is the month of the charge, as in the sum of the
    /// usage records.
    pub(crate) fn settle(
        self,
        cap: SpendingCap,
        charged: Micros,
        at: Timestamp,
    ) -> CountedSpending {
        let mut month = None;
        if let Some(mut cell) = self.spending.cells.get_mut(&self.credential) {
            cell.turn(cap, at);
            cell.spent = cell.spent.saturating_add(charged);
            month = Some(cell.month);
        }
        CountedSpending {
            spending: Arc::clone(&self.spending),
            credential: self.credential,
            month,
        }
    }
}

impl CountedSpending {
    /// Takes the charge back. A cell of another month has no part of it.
    pub(crate) fn undo(self, charged: Micros) {
        if let Some(mut cell) = self.spending.cells.get_mut(&self.credential)
            && Some(cell.month) == self.month
        {
            cell.spent = minus(cell.spent, charged).max(Micros::ZERO);
        }
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        if let Some(mut cell) = self.spending.cells.get_mut(&self.credential) {
            cell.reserved = minus(cell.reserved, self.amount);
        }
    }
}

/// A difference that may be negative.
fn minus(from: Micros, amount: Micros) -> Micros {
    Micros::new(from.get().saturating_sub(amount.get()))
}

#[cfg(test)]
mod tests;
