//! Spending caps of keys on a node that is alone: the recorded spending, and the reservations of running requests.
//!
//! Counted in memory: loaded from the usage records at the start, then increased by each charge. A request reserves its worst case against
//! the cap as it does against the account, so that concurrent requests cannot exceed it. One of several nodes has an allotment of each cap
//! instead (`caps.rs`).

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

/// Attempts of one load at spending that changes meanwhile.
const TRIES: usize = 10;

/// The spending of the credentials in use that have a cap. It is read from the usage records when a credential is first used.
#[derive(Default)]
pub(crate) struct Spending {
    cells: DashMap<CredentialId, Cell>,
    /// `None` when nothing is recorded.
    store: Option<Weak<dyn Store>>,
    loads: Arc<Loads<CredentialId, ()>>,
    /// The loads under way, and whether what they have read is out of date.
    loading: Mutex<HashMap<CredentialId, bool>>,
    /// When idle cells were last removed, in microseconds since 1970.
    evicted_at: AtomicI64,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// What the cap counts; `None` while there is none.
    period: Option<CapPeriod>,
    /// The month of `spent`, for a monthly cap.
    month: Month,
    spent: Micros,
    reserved: Micros,
    /// Whether it was used since idle cells were last removed.
    is_used: bool,
}

/// The part of a cap that is reserved for one request. Dropping it releases the reservation.
#[derive(Debug)]
pub(crate) struct Reservation {
    spending: Arc<Spending>,
    credential: CredentialId,
    amount: Micros,
}

/// The remainder of a cap is too small for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapReached {
    /// The cap.
    pub cap: SpendingCap,
    /// The part of it that is neither spent nor reserved; not negative.
    pub left: Micros,
    /// The end of the month, for a monthly cap.
    pub until: Option<Timestamp>,
}

impl Spending {
    /// Spending by the usage records of a store, before any request.
    pub(crate) fn open(store: &Arc<dyn Store>) -> Spending {
        Spending {
            store: Some(Arc::downgrade(store)),
            ..Spending::default()
        }
    }

    /// Reads what a credential has spent that is not in memory. All that ask for it at the same time share one read.
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

    /// The same; blocks.
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
                // Charges of requests that ended while it was in memory last may still be in the queue.
                flush(&**store)?;
                // The request may have been admitted before its cap was changed.
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
                // Then every charge that the read may have seen is announced (`Spending::count`), and none of them is announced later.
                flush(&**store)?;
            }
            let mut loading = self.loading();
            if loading.remove(&credential) == Some(false) {
                // Under the lock: what is announced from here on finds it.
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

    /// The cell of a credential in memory. Where there is none, what is being loaded is out of date.
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

    /// Removes cells that were not used in the last one or two times of `kept`, and have no reservation.
    pub(crate) fn evict_idle(&self, now: Timestamp, kept: Duration) {
        let evicted_at = Timestamp::from_micros(self.evicted_at.load(Relaxed));
        // Also when the clock was set back.
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

    /// Counts a charge of a process that this one has taken over from, where the credential has a cap. The month is that of the charge.
    pub(crate) fn count(&self, credential: CredentialId, charged: Micros, at: Timestamp) {
        self.announced(credential, |cell| {
            if let Some(period) = cell.period {
                cell.turn_to(period, at);
            }
            cell.spent = cell.spent.saturating_add(charged);
        });
    }

    /// The remainder of `cap` for `credential`; `None` when its spending has to be loaded first.
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

    /// Reserves `amount` of `cap` for a request, if so much is left; `None` when its spending has to be loaded first.
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
    /// A cap that is new or counts another period begins with what the usage records have; otherwise the count goes on. Requests that run
    /// without a cap when one is set are counted from the next start on.
    fn committed(&self, part: &Part, _: Effect) {
        let Part::ChangeCredential(change) = part else {
            return;
        };
        let period = change.spending_cap.map(|cap| cap.period);
        // The cell of a key without a cap stays for the reservations of its running requests.
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

/// Blocks until everything queued before is durable and its callers know.
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
    /// A cap that leaves so much.
    pub fn of(cap: SpendingCap, left: Micros, now: Timestamp) -> CapReached {
        CapReached {
            cap,
            left: left.max(Micros::ZERO),
            until: (cap.period == CapPeriod::Month).then(|| Month::of(now).next().start()),
        }
    }
}

impl Reservation {
    /// Replaces the reservation by the charge `at` a time. The month is that of the charge, as it is where the usage records
    /// are summed.
    pub(crate) fn settle(self, cap: SpendingCap, charged: Micros, at: Timestamp) {
        if let Some(mut cell) = self.spending.cells.get_mut(&self.credential) {
            cell.turn(cap, at);
            cell.spent = cell.spent.saturating_add(charged);
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
