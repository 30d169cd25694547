//! State machine of a credit purchase. Only these transitions change a purchase row. Pure: no I/O, no clock.

use std::ops::Deref;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{Micros, Usd};
use tollgate_store::{Part, TopUpRow, TopUpState};

use super::decide::DECLINES_MAX;
use super::orders::FailureKind;
use super::schedule;
use crate::scheduled::Scheduled;

/// A stored purchase.
#[derive(Clone, Debug)]
pub(super) struct TopUp(Scheduled<TopUpRow>);

/// Whether a purchase in one state may come into another.
fn may_become(from: TopUpState, to: TopUpState) -> bool {
    use TopUpState::{Captured, Capturing, Created, Failed, Open, Pending};
    match (from, to) {
        // Credited: only its refunds change from here on.
        (Captured, _) => false,
        // Money that was taken counts whatever was stored.
        (_, Captured | Pending) => true,
        (Created | Capturing, Open) => true,
        (Created | Open, Capturing) => true,
        (Created | Open | Capturing | Pending, Failed) => true,
        _ => false,
    }
}

impl TopUp {
    pub(super) fn stored(row: TopUpRow) -> TopUp {
        TopUp(Scheduled::stored(row))
    }

    /// A stored row, read for the buyer.
    pub(super) fn asked(row: TopUpRow) -> TopUp {
        TopUp(Scheduled::asked(row))
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.is_asked()
    }

    /// The provider has an order for the purchase.
    pub(super) fn ordered(self, order: &str, approve_url: &str, now: Timestamp) -> TopUp {
        self.enter(TopUpState::Open, None, now, |row| {
            row.order = Some(Arc::from(order));
            row.approve_url = Some(Arc::from(approve_url));
        })
    }

    /// The payment is about to be captured, with this idempotency key.
    pub(super) fn capturing(self, key: &str, now: Timestamp) -> TopUp {
        self.enter(TopUpState::Capturing, None, now, |row| {
            row.capture_key = Some(Arc::from(key));
        })
    }

    /// No payment was captured, and the buyer has to approve again. A decline counts: the next capture gets a new key.
    pub(super) fn reopened(self, is_declined: bool, now: Timestamp) -> TopUp {
        let note = is_declined.then_some("declined");
        self.enter(TopUpState::Open, note, now, |row| {
            row.declines += u32::from(is_declined);
        })
    }

    /// The capture was refused, and the order shows no payment: the buyer may approve again, unless it was declined too often or for good.
    pub(super) fn capture_refused(self, kind: FailureKind, now: Timestamp) -> TopUp {
        let is_declined = kind == FailureKind::Declined;
        let is_last = is_declined && self.declines + 1 >= DECLINES_MAX;
        match kind {
            FailureKind::Refused => self.failed("refused", false, now),
            _ if is_last => self.failed("declined", true, now),
            _ => self.reopened(is_declined, now),
        }
    }

    /// The provider has accepted the payment, and not received its money.
    pub(super) fn pending(self, payment: &str, now: Timestamp) -> TopUp {
        self.enter(TopUpState::Pending, None, now, |row| {
            row.capture = Some(Arc::from(payment));
        })
    }

    /// The payment is complete; the credit is booked in this unit of work.
    pub(super) fn captured(self, payment: &str, now: Timestamp) -> TopUp {
        self.enter(TopUpState::Captured, None, now, |row| {
            row.capture = Some(Arc::from(payment));
        })
    }

    /// Ended without a payment.
    pub(super) fn failed(self, why: &str, is_declined: bool, now: Timestamp) -> TopUp {
        self.enter(TopUpState::Failed, Some(why), now, |row| {
            row.declines += u32::from(is_declined);
        })
    }

    /// `total` of the price was given back so far; `taken` of the credits are taken back in this unit of work.
    pub(super) fn returned(self, total: Usd, taken: Micros, now: Timestamp) -> TopUp {
        assert_eq!(
            self.state,
            TopUpState::Captured,
            "a payment is given back after it was credited"
        );
        let missing = self.missing(total);
        assert!(
            total >= self.returned && Micros::ZERO <= taken && taken <= missing,
            "{taken} of {missing} credits cannot be taken for {total} after {}",
            self.returned
        );
        let is_progress = total > self.returned || taken.is_positive();
        let is_attempt = !self.is_asked();
        self.change(now, |row| {
            row.returned = total;
            row.taken_back += taken;
            row.owed = missing - taken;
            row.attempts = match is_progress {
                true => 0,
                false => row.attempts + u32::from(is_attempt),
            };
            row.next_attempt_at = schedule::next(row, now);
        })
    }

    /// The credits that are to be taken back when `total` of the price was given back.
    pub(super) fn missing(&self, total: Usd) -> Micros {
        (credits_for(self, total) - self.taken_back).max(Micros::ZERO)
    }

    /// Every notification so far is covered by a read of the order.
    pub(super) fn acknowledged(self, now: Timestamp) -> TopUp {
        TopUp(self.0.acknowledged(now))
    }

    /// Reconciled without a change.
    pub(super) fn waits(self, now: Timestamp) -> TopUp {
        TopUp(self.0.attempted(now, |row| schedule::next(row, now)))
    }

    /// Nothing was attempted.
    pub(super) fn unchanged(self, now: Timestamp) -> TopUp {
        TopUp(self.0.next_attempt(now, |row| schedule::next(row, now)))
    }

    /// Reconciliation failed, and is tried again.
    pub(super) fn retries(self, now: Timestamp) -> TopUp {
        TopUp(self.0.attempted(now, |row| schedule::retry(row, now)))
    }

    /// A notification was stored about it: the buyer has come back, and the order could not be read.
    pub(super) fn notified(self, now: Timestamp) -> TopUp {
        self.change(now, |row| row.notifications += 1)
    }

    /// The purchase needs manual resolution.
    pub(super) fn stuck(self, why: &str, now: Timestamp) -> TopUp {
        TopUp(self.0.stuck(why, now, schedule::stuck(now)))
    }

    /// The part that replaces the stored version.
    pub(super) fn part(&self) -> Part {
        self.0.part()
    }

    /// The row after the commit of its part.
    pub(super) fn written(self) -> TopUp {
        TopUp(self.0.written())
    }

    pub(super) fn into_row(self) -> TopUpRow {
        self.0.into_row()
    }

    fn enter(
        self,
        state: TopUpState,
        note: Option<&str>,
        now: Timestamp,
        change: impl FnOnce(&mut TopUpRow),
    ) -> TopUp {
        assert!(
            may_become(self.state, state),
            "a purchase in state {:?} cannot become {state:?}",
            self.state
        );
        self.change(now, |row| {
            row.state = state;
            row.note = note.map(Arc::from);
            row.attempts = 0;
            change(row);
            row.next_attempt_at = schedule::next(row, now);
        })
    }

    fn change(self, now: Timestamp, change: impl FnOnce(&mut TopUpRow)) -> TopUp {
        TopUp(self.0.change(now, change))
    }
}

impl Deref for TopUp {
    type Target = TopUpRow;

    fn deref(&self) -> &TopUpRow {
        &self.0
    }
}

/// The credits for a part of the purchase's price, rounded down except for the whole.
fn credits_for(row: &TopUpRow, money: Usd) -> Micros {
    let credits =
        i128::from(row.credits.get()) * i128::from(money.cents()) / i128::from(row.price.cents());
    Micros::new(i64::try_from(credits).expect("a part of an i64 fits an i64"))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use tollgate_money::{AccountId, TopUpId};

    use super::*;
    use crate::topups::decide::{Decision, decide, decide_gone};
    use crate::topups::orders::{Capture, CaptureStatus, Order, OrderStatus};

    const PRICE: Usd = Usd::from_cents(2_000);

    fn begun() -> TopUp {
        TopUp::stored(TopUpRow {
            id: TopUpId::from_bytes([1; 16]),
            account: AccountId::from_bytes([2; 16]),
            state: TopUpState::Created,
            version: 0,
            price: PRICE,
            credits: Micros::new(1_999_999),
            create_key: Arc::from("create"),
            order: None,
            approve_url: None,
            capture_key: None,
            capture: None,
            declines: 0,
            returned: Usd::ZERO,
            taken_back: Micros::ZERO,
            owed: Micros::ZERO,
            note: None,
            attempts: 0,
            next_attempt_at: None,
            notifications: 0,
            acknowledged: 0,
            created_at: Timestamp::UNIX_EPOCH,
            updated_at: Timestamp::UNIX_EPOCH,
        })
    }

    fn any_order() -> impl Strategy<Value = Order> {
        use CaptureStatus as C;
        use OrderStatus::{Approved, Completed, Voided, Waiting};
        let status = prop::sample::select(vec![Waiting, Approved, Completed, Voided]);
        let capture = prop::sample::select(vec![
            None,
            Some(C::Declined),
            Some(C::Pending),
            Some(C::Completed),
        ]);
        (status, capture, 0..2_500i64).prop_map(|(status, capture, returned)| Order {
            status,
            price: Some(PRICE),
            top_up: Some(TopUpId::from_bytes([1; 16]).to_string()),
            capture: capture.map(|status| Capture {
                id: String::from("C"),
                status,
                amount: Some(PRICE),
            }),
            returned: Usd::from_cents(returned),
        })
    }

    /// What the provider answers to a capture that leaves the order unpaid; `None`: the answer is lost.
    fn any_refusal() -> impl Strategy<Value = Option<FailureKind>> {
        prop::sample::select(vec![
            None,
            Some(FailureKind::Declined),
            Some(FailureKind::Refused),
            Some(FailureKind::NotApproved),
        ])
    }

    /// The transition of a decision; `free` credits can be taken.
    fn apply(
        row: TopUp,
        decision: &Decision,
        refusal: Option<FailureKind>,
        free: i64,
        now: Timestamp,
    ) -> TopUp {
        let take = |row: TopUp, total| {
            let taken = row.missing(total).min(Micros::new(free));
            row.returned(total, taken, now)
        };
        match decision {
            Decision::Wait => row.waits(now),
            Decision::Capture => {
                let row = match row.state {
                    TopUpState::Capturing => row,
                    _ => row.capturing("key", now),
                };
                match refusal {
                    None => row.retries(now),
                    Some(kind) => row.capture_refused(kind, now),
                }
            }
            Decision::Reapprove => row.reopened(true, now),
            Decision::Paid => row.captured("C", now),
            Decision::Pending => row.pending("C", now),
            Decision::Over(why) => row.failed(why, false, now),
            Decision::Returned(total) => take(row, *total),
            Decision::Owed => {
                let total = row.returned;
                take(row, total)
            }
            Decision::Stuck(why) => row.stuck(why, now),
        }
    }

    proptest! {
        /// Whatever the provider shows, in any order: no decision asks for an illegal transition, a purchase is credited at most once and
        /// never uncredited, and what was taken back and what is owed are the credits of the money that was given back. `None` is an order
        /// that the provider no longer knows.
        #[test]
        fn every_sequence_of_orders_credits_at_most_once(
            steps in prop::collection::vec(
                (prop::option::weighted(0.9, any_order()), any::<bool>(), any_refusal(), 0..2_000_000i64, 0..10_000i64),
                1..40,
            ),
        ) {
            let mut now = Timestamp::UNIX_EPOCH;
            let mut row = begun().ordered("ORDER", "https://paypal.example", now);
            let mut credited = 0;
            for (order, is_notified, refusal, free, later) in steps {
                now = Timestamp::from_secs(now.as_secs() + later);
                let before = TopUp::stored(row.clone().into_row());
                let decision = match &order {
                    Some(order) => decide(&before, order, is_notified, now),
                    None => decide_gone(&before, is_notified, now).unwrap_or(Decision::Wait),
                };
                row = apply(before.clone(), &decision, refusal, free, now);
                credited += usize::from(decision == Decision::Paid);
                prop_assert_eq!(row.version, before.version + 1);
                prop_assert_eq!(row.state == TopUpState::Captured, credited == 1);
                prop_assert!(credited <= 1);
                prop_assert!(row.returned >= before.returned && row.returned <= PRICE);
                prop_assert_eq!(row.taken_back + row.owed, credits_for(&row, row.returned));
                prop_assert!(row.returned == Usd::ZERO || credited == 1, "nothing is given back before it is paid");
            }
        }
    }

    #[test]
    fn a_credited_purchase_changes_its_state_no_more() {
        for to in TopUpState::ALL {
            assert!(!may_become(TopUpState::Captured, *to), "{to:?}");
            assert!(!may_become(*to, TopUpState::Created), "{to:?}");
        }
    }
}
