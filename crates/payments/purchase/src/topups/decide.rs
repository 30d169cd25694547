//! Decision table of purchase reconciliation: the next action, given the stored purchase and its order. No I/O, no clock.

use tollgate_clock::Timestamp;
use tollgate_money::Usd;
use tollgate_store::{TopUpRow, TopUpState};

use super::orders::{CaptureStatus, Order, OrderStatus};
use super::schedule::EXPIRES;

/// Declined captures after which a purchase fails.
pub(super) const DECLINES_MAX: u32 = 5;

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// None yet.
    Wait,
    /// The buyer has agreed: capture the payment.
    Capture,
    /// The payment is complete: credit it.
    Paid,
    /// The payment is pending.
    Pending,
    /// Not captured; the buyer has to approve again.
    Reapprove,
    /// Ended without a payment, with the reason.
    Over(&'static str),
    /// Total refunded to the buyer so far.
    Returned(Usd),
    /// No new refund; credits for an earlier one are still owed.
    Owed,
    /// An inconsistent state: change nothing and wait for manual resolution.
    Stuck(&'static str),
}

/// Compares a purchase with its order. `is_notified`: after a notification, the buyer may have changed a declined payment method.
pub(super) fn decide(row: &TopUpRow, order: &Order, is_notified: bool, now: Timestamp) -> Decision {
    use TopUpState::{Captured, Capturing, Failed, Open, Pending};
    if order.top_up.as_deref() != Some(&*row.id.to_string()) {
        return Decision::Stuck("the order names another purchase");
    }
    let Some(capture) = &order.capture else {
        return unpaid(row, order, is_notified, now);
    };
    if row
        .capture
        .as_deref()
        .is_some_and(|known| *known != *capture.id)
    {
        return Decision::Stuck("the order has another payment than before");
    }
    match (capture.status, row.state) {
        (CaptureStatus::Completed, Captured) if order.returned.min(row.price) > row.returned => {
            Decision::Returned(order.returned.min(row.price))
        }
        (CaptureStatus::Completed | CaptureStatus::Pending, Captured) if row.owed.is_positive() => {
            Decision::Owed
        }
        (CaptureStatus::Completed | CaptureStatus::Pending, Captured) => Decision::Wait,
        (CaptureStatus::Declined, Captured) => {
            Decision::Stuck("a credited payment is declined now")
        }
        (CaptureStatus::Completed, _) if capture.amount != Some(row.price) => {
            Decision::Stuck("the paid amount differs from the price")
        }
        // Credited in any stored state: the money was taken.
        (CaptureStatus::Completed, _) => Decision::Paid,
        (CaptureStatus::Pending, Pending) => Decision::Wait,
        (CaptureStatus::Pending, _) => Decision::Pending,
        (CaptureStatus::Declined, Failed) => Decision::Wait,
        (CaptureStatus::Declined, Open | Capturing | Pending | _) => Decision::Over("declined"),
    }
}

/// The decision about a purchase whose order the provider no longer knows; `None` if this may change. `is_notified`: a notification is not
/// acknowledged yet.
pub(super) fn decide_gone(row: &TopUpRow, is_notified: bool, now: Timestamp) -> Option<Decision> {
    use TopUpState::{Captured, Capturing, Created, Failed, Open, Pending};
    let is_old = now.duration_since(row.created_at) >= EXPIRES;
    match row.state {
        Open | Created if is_old => Some(Decision::Over("expired")),
        Captured if is_notified => Some(Decision::Stuck(
            "a notification names a payment whose order no longer exists",
        )),
        Capturing | Pending if is_old => Some(Decision::Stuck(
            "a capture was requested, and its order no longer exists",
        )),
        // The owed amount is known without the order.
        Captured if row.owed.is_positive() => Some(Decision::Owed),
        // The provider does not keep orders for ever; this purchase is finished.
        Captured | Failed => Some(Decision::Wait),
        _ => None,
    }
}

fn unpaid(row: &TopUpRow, order: &Order, is_notified: bool, now: Timestamp) -> Decision {
    use TopUpState::{Captured, Capturing, Created, Failed, Open, Pending};
    match (row.state, order.status) {
        (Captured, _) => Decision::Stuck("the credited payment is missing"),
        (Pending, _) => Decision::Stuck("the pending payment is missing"),
        (Failed, _) => Decision::Wait,
        // Only before a capture was requested.
        (_, _) if order.price != Some(row.price) => Decision::Over("another price"),
        (_, OrderStatus::Voided) => Decision::Over("voided"),
        (Capturing, OrderStatus::Approved) => Decision::Capture,
        (Capturing, OrderStatus::Waiting) => Decision::Reapprove,
        (Open | Created, OrderStatus::Approved) if row.declines == 0 || is_notified => {
            Decision::Capture
        }
        (Open | Created, OrderStatus::Approved | OrderStatus::Waiting)
            if now.duration_since(row.created_at) >= EXPIRES =>
        {
            Decision::Over("expired")
        }
        // `Completed` without a payment is not conclusive yet.
        _ => Decision::Wait,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_money::{AccountId, Micros, TopUpId};

    use super::*;
    use crate::topups::orders::Capture;

    const PRICE: Usd = Usd::from_cents(2_000);
    const NOW: Timestamp = Timestamp::from_secs(1_000_000_000);

    fn row(state: TopUpState) -> TopUpRow {
        TopUpRow {
            id: TopUpId::from_bytes([1; 16]),
            account: AccountId::from_bytes([2; 16]),
            state,
            version: 3,
            price: PRICE,
            credits: Micros::new(2_000_000_000),
            create_key: Arc::from("create"),
            order: Some(Arc::from("ORDER")),
            approve_url: None,
            capture_key: None,
            capture: matches!(state, TopUpState::Captured | TopUpState::Pending)
                .then(|| Arc::from("CAPTURE")),
            declines: 0,
            returned: Usd::ZERO,
            taken_back: Micros::ZERO,
            owed: Micros::ZERO,
            note: None,
            attempts: 0,
            next_attempt_at: None,
            notifications: 0,
            acknowledged: 0,
            created_at: NOW,
            updated_at: NOW,
        }
    }

    fn order(status: OrderStatus, capture: Option<CaptureStatus>) -> Order {
        Order {
            status,
            price: Some(PRICE),
            top_up: Some(TopUpId::from_bytes([1; 16]).to_string()),
            capture: capture.map(|status| Capture {
                id: String::from("CAPTURE"),
                status,
                amount: Some(PRICE),
            }),
            returned: Usd::ZERO,
        }
    }

    #[test]
    fn each_state_and_order_has_one_decision() {
        use CaptureStatus as C;
        use OrderStatus::{Approved, Completed, Voided, Waiting};
        use TopUpState::{Captured, Capturing, Failed, Open, Pending};
        let over = Decision::Over;
        let stuck = |decision: &Decision| matches!(decision, Decision::Stuck(_));
        //   state      order      payment              decision
        for (state, status, capture, expected) in [
            (Open, Waiting, None, Decision::Wait),
            (Open, Approved, None, Decision::Capture),
            (Open, Voided, None, over("voided")),
            (Open, Completed, None, Decision::Wait),
            (Open, Completed, Some(C::Completed), Decision::Paid),
            (Capturing, Waiting, None, Decision::Reapprove),
            (Capturing, Approved, None, Decision::Capture),
            (Capturing, Completed, None, Decision::Wait),
            (Capturing, Completed, Some(C::Completed), Decision::Paid),
            (Capturing, Completed, Some(C::Pending), Decision::Pending),
            (Capturing, Completed, Some(C::Declined), over("declined")),
            (Pending, Completed, Some(C::Pending), Decision::Wait),
            (Pending, Completed, Some(C::Completed), Decision::Paid),
            (Pending, Completed, Some(C::Declined), over("declined")),
            (Captured, Completed, Some(C::Completed), Decision::Wait),
            (Failed, Approved, None, Decision::Wait),
            (Failed, Completed, Some(C::Completed), Decision::Paid),
            (Failed, Completed, Some(C::Declined), Decision::Wait),
        ] {
            let found = decide(&row(state), &order(status, capture), false, NOW);
            assert_eq!(found, expected, "{state:?} meets {status:?}, {capture:?}");
        }
        for (state, status, capture) in [
            (Captured, Completed, None),
            (Captured, Completed, Some(C::Declined)),
            (Pending, Approved, None),
        ] {
            let found = decide(&row(state), &order(status, capture), true, NOW);
            assert!(
                stuck(&found),
                "{state:?} meets {status:?}, {capture:?}: {found:?}"
            );
        }
    }

    #[test]
    fn a_mismatch_is_never_credited_or_captured() {
        let paid = |change: fn(&mut Order)| {
            let mut order = order(OrderStatus::Completed, Some(CaptureStatus::Completed));
            change(&mut order);
            decide(&row(TopUpState::Capturing), &order, true, NOW)
        };
        for found in [
            paid(|order| order.top_up = None),
            paid(|order| order.top_up = Some(TopUpId::from_bytes([9; 16]).to_string())),
            paid(|order| order.capture.as_mut().expect("paid").amount = None),
            paid(|order| {
                order.capture.as_mut().expect("paid").amount = Some(Usd::from_cents(1_999));
            }),
        ] {
            assert!(matches!(found, Decision::Stuck(_)), "{found:?}");
        }
        let mut other_price = order(OrderStatus::Approved, None);
        other_price.price = Some(Usd::from_cents(1));
        let found = decide(&row(TopUpState::Open), &other_price, true, NOW);
        assert_eq!(found, Decision::Over("another price"));
        let mut second = order(OrderStatus::Completed, Some(CaptureStatus::Completed));
        second.capture.as_mut().expect("paid").id = String::from("OTHER");
        let found = decide(&row(TopUpState::Captured), &second, true, NOW);
        assert!(matches!(found, Decision::Stuck(_)), "{found:?}");
    }

    #[test]
    fn a_declined_capture_is_retried_only_after_a_notification() {
        let declined = TopUpRow {
            declines: 1,
            ..row(TopUpState::Open)
        };
        let approved = order(OrderStatus::Approved, None);
        assert_eq!(decide(&declined, &approved, false, NOW), Decision::Wait);
        assert_eq!(decide(&declined, &approved, true, NOW), Decision::Capture);
        let later = NOW + EXPIRES;
        assert_eq!(
            decide(&declined, &approved, false, later),
            Decision::Over("expired")
        );
        assert_eq!(
            decide(&row(TopUpState::Open), &approved, false, later),
            Decision::Capture,
            "an approved order that was not declined is captured"
        );
    }

    #[test]
    fn a_refund_is_found_and_bounded_by_the_price() {
        let mut back = order(OrderStatus::Completed, Some(CaptureStatus::Completed));
        back.returned = Usd::from_cents(500);
        let mut captured = row(TopUpState::Captured);
        assert_eq!(
            decide(&captured, &back, false, NOW),
            Decision::Returned(Usd::from_cents(500))
        );
        captured.returned = Usd::from_cents(500);
        assert_eq!(decide(&captured, &back, false, NOW), Decision::Wait);
        back.returned = Usd::from_cents(99_999);
        captured.owed = Micros::new(1);
        assert_eq!(
            decide(&captured, &back, false, NOW),
            Decision::Returned(PRICE),
            "what is new comes before what is owed, and is taken with it"
        );
        captured.returned = PRICE;
        assert_eq!(decide(&captured, &back, false, NOW), Decision::Owed);
    }
}
