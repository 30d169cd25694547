//! State machine of a payment for the plan: kept, returned with credits still owed, returned in full. Pure: rows in, rows out.

use std::ops::Deref;
use std::time::Duration;

use tollgate_clock::{Backoff, Jitter, Timestamp};
use tollgate_money::Micros;
use tollgate_store::{PaymentRow, PaymentStatus, PlanPart};

/// Waits between attempts to take owed credits back: they become free when a hold ends, or with the next purchase.
const COLLECT: Backoff = Backoff {
    base: Duration::from_mins(1),
    max: Duration::from_hours(24),
    jitter: Jitter::Shorter(8),
};

/// A payment for the plan, read through `Deref` and changed by its transitions alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Payment(PaymentRow);

impl Payment {
    /// A payment, stored or about to be stored.
    pub(super) fn new(row: PaymentRow) -> Payment {
        Payment(row)
    }

    /// The payment after the return of its money. `taken` of its credits were free and taken back. `None` when given back before.
    pub(super) fn returned(&self, taken: Micros, now: Timestamp) -> Option<Payment> {
        if self.status != PaymentStatus::Paid {
            return None;
        }
        let mut row = self.0.clone();
        row.status = PaymentStatus::Returned;
        row.returned_at = Some(now);
        Some(Payment(row).owing(self.credits - taken, now))
    }

    /// The payment after a further collection of owed credits, `taken`. `None` without owed credits.
    pub(super) fn collected(&self, taken: Micros, now: Timestamp) -> Option<Payment> {
        let owed = self.owed.filter(|owed| owed.is_positive())?;
        let mut row = self.0.clone();
        row.attempts = match taken.is_positive() {
            true => 0,
            false => row.attempts + 1,
        };
        Some(Payment(row).owing(owed - taken, now))
    }

    fn owing(mut self, owed: Micros, now: Timestamp) -> Payment {
        assert!(
            Micros::ZERO <= owed && owed <= self.credits,
            "{owed} of {} credits cannot be owed",
            self.credits
        );
        self.0.owed = Some(owed);
        let wait = COLLECT.derived(self.attempts, &self.provider_ref);
        self.0.next_attempt_at = owed.is_positive().then(|| now + wait);
        self
    }

    /// The part that replaces `before`.
    pub(super) fn replacing(self, before: &Payment) -> PlanPart {
        PlanPart::ChangePayment {
            row: self.0,
            before: (before.status, before.owed),
        }
    }
}

impl Deref for Payment {
    type Target = PaymentRow;

    fn deref(&self) -> &PaymentRow {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use tollgate_money::{AccountId, PaymentId, SubscriptionId, Usd};
    use tollgate_store::Route;

    use super::*;

    const CREDITS: i64 = 100;

    fn paid() -> Payment {
        Payment::new(PaymentRow {
            id: PaymentId::from_bytes([1; 16]),
            account: AccountId::from_bytes([2; 16]),
            subscription: SubscriptionId::from_bytes([3; 16]),
            route: Route::PayPal,
            provider_ref: Arc::from("c"),
            amount: Usd::from_cents(19_900),
            credits: Micros::new(CREDITS),
            period_start: Timestamp::UNIX_EPOCH,
            period_end: Timestamp::MAX,
            status: PaymentStatus::Paid,
            receipt: None,
            at: Timestamp::UNIX_EPOCH,
            returned_at: None,
            owed: None,
            attempts: 0,
            next_attempt_at: None,
        })
    }

    proptest! {
        /// Under any sequence of returns and attempts to collect: it is returned once, what was taken and what is owed are its credits
        /// together, and it is due exactly while something is owed.
        #[test]
        fn no_credit_is_taken_twice_or_forgotten(acts in prop::collection::vec((any::<bool>(), 0..=CREDITS, 0..100i64), 0..20)) {
            let mut row = paid();
            let (mut now, mut returned_at) = (Timestamp::from_secs(7), None);
            let (mut taken, mut returns) = (0, 0);
            for (is_return, free, later) in acts {
                now += Duration::from_secs(later.unsigned_abs());
                let left = row.owed.map_or(CREDITS, Micros::get);
                let part = Micros::new(free.min(left));
                let next = match is_return {
                    true => row.returned(part, now),
                    false => row.collected(part, now),
                };
                let Some(next) = next else { continue };
                returns += usize::from(is_return);
                returned_at.get_or_insert(now);
                taken += part.get();
                row = next;
                prop_assert_eq!(row.status, PaymentStatus::Returned);
                prop_assert_eq!(taken + row.owed.map_or(-1, Micros::get), CREDITS);
                prop_assert_eq!(row.next_attempt_at.is_some(), row.owed > Some(Micros::ZERO));
                prop_assert_eq!(row.returned_at, returned_at);
            }
            prop_assert!(returns <= 1);
            prop_assert_eq!(returns == 1, row.status == PaymentStatus::Returned, "nothing is collected before it is returned");
        }
    }
}
