//! Spending caps of credentials: the recorded spending, and the reservations of running requests.
//!
//! Counted in memory: loaded from the usage records at the start, then increased by each charge. A request reserves its worst case against
//! the cap as it does against the account, so that concurrent requests cannot exceed it. One of several nodes has an allotment of each cap
//! instead ([`tollgate_ledger::CapHold`]).

use std::sync::Arc;

use dashmap::DashMap;
use tollgate_clock::{Month, Timestamp};
use tollgate_ledger::CapHold;
use tollgate_money::{CapPeriod, CredentialId, Micros, SpendingCap};
use tollgate_store::{Effect, Observer, Part, Read, ReadError};

/// The spending of every credential that has a cap.
#[derive(Debug, Default)]
pub struct Spending {
    cells: DashMap<CredentialId, Cell>,
}

#[derive(Clone, Copy, Debug)]
struct Cell {
    /// What the cap counts; `None` while there is none.
    period: Option<CapPeriod>,
    /// The month of `spent`, for a monthly cap.
    month: Month,
    spent: Micros,
    reserved: Micros,
}

/// The part of a cap that is reserved for one request. Dropping it releases the reservation.
#[derive(Debug)]
pub(crate) struct Reserved {
    spending: Arc<Spending>,
    credential: CredentialId,
    amount: Micros,
}

/// What a request has reserved of its key's cap.
#[derive(Debug)]
pub(crate) enum Kept {
    /// On a node that is alone.
    Here(SpendingCap, Reserved),
    /// On one of several nodes.
    Allotted(CapHold),
}

impl Kept {
    /// Replaces the reservation by the charge `at` a time.
    pub(crate) fn settle(self, charged: Micros, at: Timestamp) {
        match self {
            Kept::Here(cap, reserved) => reserved.settle(cap, charged, at),
            Kept::Allotted(hold) => hold.settle(charged, at),
        }
    }
}

/// The remainder of a cap is too small for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapReached {
    pub(crate) cap: SpendingCap,
    /// The part of it that is neither spent nor reserved; not negative.
    pub(crate) left: Micros,
    /// The end of the month, for a monthly cap.
    pub(crate) until: Option<Timestamp>,
}

impl Spending {
    /// The spending of live credentials with a cap by the usage records, at `now`.
    pub fn open(store: &dyn Read, now: Timestamp) -> Result<Spending, ReadError> {
        let month = Month::of(now);
        let mut capped = Vec::new();
        store.credentials(now, &mut |row| {
            if let Some(cap) = row.made.spending_cap {
                capped.push((row.made.id, row.made.account, cap.period));
            }
        })?;
        let spending = Spending::default();
        for (credential, account, period) in capped {
            let since = match period {
                CapPeriod::Month => month.start(),
                CapPeriod::Total => Timestamp::MIN,
            };
            let cell = Cell {
                period: Some(period),
                month,
                spent: store.credential_spent(account, credential, since)?,
                reserved: Micros::ZERO,
            };
            spending.cells.insert(credential, cell);
        }
        Ok(spending)
    }

    /// Counts a charge of a process that this one has taken over from, where the credential has a cap. The month is that of the charge.
    pub(crate) fn count(&self, credential: CredentialId, charged: Micros, at: Timestamp) {
        if let Some(mut cell) = self.cells.get_mut(&credential) {
            if let Some(period) = cell.period {
                cell.turn_to(period, at);
            }
            cell.spent = cell.spent.saturating_add(charged);
        }
    }

    /// The remainder of `cap` for `credential`.
    pub(crate) fn left(
        &self,
        credential: CredentialId,
        cap: SpendingCap,
        now: Timestamp,
    ) -> Result<Micros, CapReached> {
        let mut cell = self
            .cells
            .entry(credential)
            .or_insert_with(Cell::new(Some(cap.period), now));
        let left = cell.left(cap, now);
        if left.is_positive() {
            Ok(left)
        } else {
            Err(CapReached::of(cap, left, now))
        }
    }

    /// Reserves `amount` of `cap` for a request, if so much is left.
    pub(crate) fn reserve(
        self: &Arc<Spending>,
        credential: CredentialId,
        cap: SpendingCap,
        amount: Micros,
        now: Timestamp,
    ) -> Result<Reserved, CapReached> {
        let mut cell = self
            .cells
            .entry(credential)
            .or_insert_with(Cell::new(Some(cap.period), now));
        let left = cell.left(cap, now);
        if amount > left {
            return Err(CapReached::of(cap, left, now));
        }
        cell.reserved = cell.reserved.saturating_add(amount);
        Ok(Reserved {
            spending: Arc::clone(self),
            credential,
            amount,
        })
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
        let mut cell = self
            .cells
            .entry(change.id)
            .or_insert_with(Cell::new(None, change.at));
        // The cell of a key without a cap stays for the reservations of its running requests.
        if cell.period != period {
            cell.period = period;
            cell.month = Month::of(change.at);
            cell.spent = change.spent;
        }
    }
}

impl Cell {
    fn new(period: Option<CapPeriod>, now: Timestamp) -> impl FnOnce() -> Cell {
        move || Cell {
            period,
            month: Month::of(now),
            spent: Micros::ZERO,
            reserved: Micros::ZERO,
        }
    }

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
        self.turn(cap, now);
        minus(minus(cap.max, self.spent), self.reserved)
    }
}

impl CapReached {
    pub(crate) fn of(cap: SpendingCap, left: Micros, now: Timestamp) -> CapReached {
        CapReached {
            cap,
            left: left.max(Micros::ZERO),
            until: (cap.period == CapPeriod::Month).then(|| Month::of(now).next().start()),
        }
    }
}

impl Reserved {
    /// Replaces the reservation by the charge `at` a time. The month is that of the charge, as it is where the usage records
    /// are summed.
    pub(crate) fn settle(self, cap: SpendingCap, charged: Micros, at: Timestamp) {
        if let Some(mut cell) = self.spending.cells.get_mut(&self.credential) {
            cell.turn(cap, at);
            cell.spent = cell.spent.saturating_add(charged);
        }
    }
}

impl Drop for Reserved {
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
mod tests {
    use proptest::prelude::*;
    use tollgate_money::AccountId;
    use tollgate_store::CredentialChange;

    use super::*;

    const KEY: CredentialId = CredentialId::from_bytes([1; 16]);
    /// 2026-11-30T23:59:59Z
    const NOVEMBER: Timestamp = Timestamp::from_secs(1_796_083_199);
    const DECEMBER: Timestamp = Timestamp::from_secs(1_796_083_200);

    fn cap(max: i64, period: CapPeriod) -> SpendingCap {
        SpendingCap {
            max: Micros::new(max),
            period,
        }
    }

    fn changed(spending: &Spending, cap: Option<SpendingCap>, spent: i64, at: Timestamp) {
        let change = CredentialChange {
            id: KEY,
            account: AccountId::from_bytes([1; 16]),
            version: 0,
            label: Arc::from("ci"),
            models: None,
            spending_cap: cap,
            spent: Micros::new(spent),
            expires_at: None,
            at,
        };
        spending.committed(&Part::ChangeCredential(Box::new(change)), Effect::Applied);
    }

    #[test]
    fn a_charge_of_another_process_counts_in_its_month() {
        let spending = Arc::new(Spending::default());
        let monthly = cap(100, CapPeriod::Month);
        assert_eq!(spending.left(KEY, monthly, NOVEMBER), Ok(Micros::new(100)));
        spending.count(KEY, Micros::new(60), NOVEMBER);
        assert_eq!(spending.left(KEY, monthly, NOVEMBER), Ok(Micros::new(40)));
        spending.count(KEY, Micros::new(30), DECEMBER);
        assert_eq!(spending.left(KEY, monthly, DECEMBER), Ok(Micros::new(70)));
        let other = CredentialId::from_bytes([2; 16]);
        spending.count(other, Micros::new(60), NOVEMBER);
        assert_eq!(
            spending.left(other, monthly, NOVEMBER),
            Ok(Micros::new(100)),
            "it had no cap"
        );
    }

    #[test]
    fn a_changed_cap_counts_what_was_spent_in_its_period() {
        let spending = Arc::new(Spending::default());
        let left = |cap, at| spending.left(KEY, cap, at).map_err(|reached| reached.left);
        let (month, total) = (cap(100, CapPeriod::Month), cap(100, CapPeriod::Total));
        changed(&spending, Some(month), 30, NOVEMBER);
        assert_eq!(left(month, NOVEMBER), Ok(Micros::new(70)));
        let running = spending.reserve(KEY, month, Micros::new(20), NOVEMBER);
        let running = running.expect("the cap allows it");
        // A higher cap of the same period goes on with what was counted here, however old the figure of the change is.
        let higher = cap(200, CapPeriod::Month);
        changed(&spending, Some(higher), 0, NOVEMBER);
        assert_eq!(left(higher, NOVEMBER), Ok(Micros::new(150)));
        changed(&spending, Some(total), 90, NOVEMBER);
        assert_eq!(left(total, NOVEMBER), Err(Micros::ZERO), "20 are reserved");
        // Without a cap in between, the reservation ends as it began.
        changed(&spending, None, 0, NOVEMBER);
        drop(running);
        changed(&spending, Some(month), 40, NOVEMBER);
        assert_eq!(left(month, NOVEMBER), Ok(Micros::new(60)));
        assert_eq!(left(month, DECEMBER), Ok(Micros::new(100)), "a new month");
    }

    #[test]
    fn reserved_spending_is_replaced_by_the_charge() {
        let spending = Arc::new(Spending::default());
        let cap = cap(100, CapPeriod::Total);
        let reserve = |amount| spending.reserve(KEY, cap, Micros::new(amount), NOVEMBER);
        let first = reserve(70).expect("the cap allows it");
        let left = |amount| {
            reserve(amount)
                .map(drop)
                .map_err(|reached| reached.left.get())
        };
        assert_eq!(left(31), Err(30));
        assert_eq!(left(30), Ok(()));
        first.settle(cap, Micros::new(20), NOVEMBER);
        assert_eq!(left(81), Err(80));
        drop(reserve(80).expect("the cap allows it"));
        assert_eq!(left(80), Ok(()), "what failed is free again");
        let rest = reserve(80).expect("the cap allows it");
        rest.settle(cap, Micros::new(80), NOVEMBER);
        assert!(spending.left(KEY, cap, NOVEMBER).is_err());
    }

    fn spend(spending: &Arc<Spending>, key: CredentialId, cap: SpendingCap, amount: i64) {
        let amount = Micros::new(amount);
        let reserved = spending.reserve(key, cap, amount, NOVEMBER);
        let reserved = reserved.expect("the cap allows it");
        reserved.settle(cap, amount, NOVEMBER);
    }

    #[test]
    fn the_first_charge_of_a_month_begins_it() {
        let spending = Arc::new(Spending::default());
        let monthly = cap(100, CapPeriod::Month);
        spend(&spending, KEY, monthly, 60);
        let over = spending.reserve(KEY, monthly, Micros::new(40), NOVEMBER);
        let over = over.expect("the cap allows it");
        over.settle(monthly, Micros::new(40), DECEMBER);
        assert_eq!(spending.left(KEY, monthly, DECEMBER), Ok(Micros::new(60)));
    }

    #[test]
    fn a_month_starts_with_nothing_spent_and_with_open_reservations() {
        let spending = Arc::new(Spending::default());
        let (monthly, total) = (cap(100, CapPeriod::Month), cap(100, CapPeriod::Total));
        let over = spending.reserve(KEY, monthly, Micros::new(40), NOVEMBER);
        let over = over.expect("the cap allows it");
        spend(&spending, KEY, monthly, 60);
        let reached = spending
            .left(KEY, monthly, NOVEMBER)
            .expect_err("all of it is gone");
        assert_eq!(reached.until, Some(DECEMBER));
        assert_eq!(spending.left(KEY, monthly, DECEMBER), Ok(Micros::new(60)));
        over.settle(monthly, Micros::new(30), DECEMBER);
        assert_eq!(
            spending.left(KEY, monthly, DECEMBER),
            Ok(Micros::new(70)),
            "it was charged in December, and is found there again after a restart"
        );
        let other = CredentialId::from_bytes([2; 16]);
        spend(&spending, other, total, 100);
        assert!(
            spending.left(other, total, DECEMBER).is_err(),
            "all time is all time"
        );
    }

    proptest! {
        #[test]
        fn no_order_of_requests_passes_the_cap(
            max in 1i64..1_000,
            steps in prop::collection::vec((0i64..400, any::<bool>(), any::<bool>()), 1..100),
        ) {
            let spending = Arc::new(Spending::default());
            let cap = cap(max, CapPeriod::Total);
            let (mut open, mut spent) = (Vec::new(), 0);
            for (amount, close, fails) in steps {
                if close && !open.is_empty() {
                    let (reserved, held): (Reserved, i64) = open.remove(0);
                    if fails {
                        drop(reserved);
                    } else {
                        let charged = held.min(amount);
                        reserved.settle(cap, Micros::new(charged), NOVEMBER);
                        spent += charged;
                    }
                } else if let Ok(reserved) = spending.reserve(KEY, cap, Micros::new(amount), NOVEMBER) {
                    open.push((reserved, amount));
                }
                let reserved: i64 = open.iter().map(|(_, held)| held).sum();
                prop_assert!(spent + reserved <= max);
            }
            open.clear();
            let left = spending.left(KEY, cap, NOVEMBER).map_or(0, Micros::get);
            prop_assert_eq!(left, max - spent);
        }
    }
}
