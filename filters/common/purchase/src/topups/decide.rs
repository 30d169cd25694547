//! What an order says about the purchase it belongs to: no I/O, no clock.

use tollgate_money::Usd;
use tollgate_store::{TopUpRow, TopUpState};

use super::orders::{CaptureStatus, Order, OrderStatus};
use super::schedule::EXPIRES;

/// Choices of one buyer that could not be charged, after which the purchase is over.
pub(super) const DECLINES_MAX: u32 = 5;

/// What there is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Finding {
    /// Nothing yet.
    Wait,
    /// The buyer has agreed: take the money.
    Take,
    /// The money is there: credit it.
    Paid,
    /// The money is on its way.
    Pending,
    /// It was not taken, and the buyer has to agree again.
    Again,
    /// It is over and nothing was taken, for this reason.
    Over(&'static str),
    /// So much has gone back to the buyer by now.
    Returned(Usd),
    /// Nothing new has gone back, and credits for what did are still owed.
    Owed,
    /// What must not be: nothing is done, and a person has to look.
    Stuck(&'static str),
}

/// Compares a purchase with its order. `bell`: somebody has said that there is news, so a choice that was declined may have changed.
pub(super) fn decide(row: &TopUpRow, order: &Order, bell: bool, now: i64) -> Finding {
    use TopUpState::{Captured, Capturing, Failed, Open, Pending};
    if order.top_up.as_deref() != Some(&*row.id.to_string()) {
        return Finding::Stuck("the order says that it is for another purchase");
    }
    let Some(capture) = &order.capture else {
        return unpaid(row, order, bell, now);
    };
    if row
        .capture
        .as_deref()
        .is_some_and(|known| *known != *capture.id)
    {
        return Finding::Stuck("the order has another payment than it had");
    }
    match (capture.status, row.state) {
        (CaptureStatus::Completed, Captured) if order.returned.min(row.price) > row.returned => {
            Finding::Returned(order.returned.min(row.price))
        }
        (CaptureStatus::Completed | CaptureStatus::Pending, Captured) if row.owed.is_positive() => {
            Finding::Owed
        }
        (CaptureStatus::Completed | CaptureStatus::Pending, Captured) => Finding::Wait,
        (CaptureStatus::Declined, Captured) => {
            Finding::Stuck("a payment that was credited is declined now")
        }
        (CaptureStatus::Completed, _) if capture.amount != Some(row.price) => {
            Finding::Stuck("another amount was paid than was asked for")
        }
        // Whatever we had thought: the money was taken, so it is credited.
        (CaptureStatus::Completed, _) => Finding::Paid,
        (CaptureStatus::Pending, Pending) => Finding::Wait,
        (CaptureStatus::Pending, _) => Finding::Pending,
        (CaptureStatus::Declined, Failed) => Finding::Wait,
        (CaptureStatus::Declined, Open | Capturing | Pending | _) => Finding::Over("declined"),
    }
}

fn unpaid(row: &TopUpRow, order: &Order, bell: bool, now: i64) -> Finding {
    use TopUpState::{Captured, Capturing, Created, Failed, Open, Pending};
    match (row.state, order.status) {
        (Captured, _) => Finding::Stuck("the payment that was credited is gone"),
        (Pending, _) => Finding::Stuck("the payment that was on its way is gone"),
        (Failed, _) => Finding::Wait,
        // Before any money is asked for, never after.
        (_, _) if order.price != Some(row.price) => Finding::Over("another price"),
        (_, OrderStatus::Voided) => Finding::Over("voided"),
        (Capturing, OrderStatus::Approved) => Finding::Take,
        (Capturing, OrderStatus::Waiting) => Finding::Again,
        (Open | Created, OrderStatus::Approved) if row.declines == 0 || bell => Finding::Take,
        (Open | Created, OrderStatus::Approved | OrderStatus::Waiting)
            if now - row.created_at >= EXPIRES =>
        {
            Finding::Over("expired")
        }
        // `Completed` without a payment to show for it is not yet an answer.
        _ => Finding::Wait,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tollgate_money::{AccountId, Micros, TopUpId};

    use super::*;
    use crate::topups::orders::Capture;

    const PRICE: Usd = Usd::from_cents(2_000);
    const NOW: i64 = 1_000_000_000_000_000;

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
            looks: 0,
            look_at: None,
            rings: 0,
            rings_heard: 0,
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
    fn every_state_meets_every_order() {
        use CaptureStatus as C;
        use OrderStatus::{Approved, Completed, Voided, Waiting};
        use TopUpState::{Captured, Capturing, Failed, Open, Pending};
        let over = Finding::Over;
        let stuck = |finding: &Finding| matches!(finding, Finding::Stuck(_));
        //   state      order      payment              what to do
        for (state, status, capture, expected) in [
            (Open, Waiting, None, Finding::Wait),
            (Open, Approved, None, Finding::Take),
            (Open, Voided, None, over("voided")),
            (Open, Completed, None, Finding::Wait),
            (Open, Completed, Some(C::Completed), Finding::Paid),
            (Capturing, Waiting, None, Finding::Again),
            (Capturing, Approved, None, Finding::Take),
            (Capturing, Completed, None, Finding::Wait),
            (Capturing, Completed, Some(C::Completed), Finding::Paid),
            (Capturing, Completed, Some(C::Pending), Finding::Pending),
            (Capturing, Completed, Some(C::Declined), over("declined")),
            (Pending, Completed, Some(C::Pending), Finding::Wait),
            (Pending, Completed, Some(C::Completed), Finding::Paid),
            (Pending, Completed, Some(C::Declined), over("declined")),
            (Captured, Completed, Some(C::Completed), Finding::Wait),
            (Failed, Approved, None, Finding::Wait),
            (Failed, Completed, Some(C::Completed), Finding::Paid),
            (Failed, Completed, Some(C::Declined), Finding::Wait),
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
    fn what_does_not_match_is_never_credited_and_never_taken() {
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
            assert!(matches!(found, Finding::Stuck(_)), "{found:?}");
        }
        let mut other_price = order(OrderStatus::Approved, None);
        other_price.price = Some(Usd::from_cents(1));
        let found = decide(&row(TopUpState::Open), &other_price, true, NOW);
        assert_eq!(found, Finding::Over("another price"));
        let mut second = order(OrderStatus::Completed, Some(CaptureStatus::Completed));
        second.capture.as_mut().expect("paid").id = String::from("OTHER");
        let found = decide(&row(TopUpState::Captured), &second, true, NOW);
        assert!(matches!(found, Finding::Stuck(_)), "{found:?}");
    }

    #[test]
    fn a_choice_that_was_declined_is_tried_again_only_when_there_is_news() {
        let declined = TopUpRow {
            declines: 1,
            ..row(TopUpState::Open)
        };
        let approved = order(OrderStatus::Approved, None);
        assert_eq!(decide(&declined, &approved, false, NOW), Finding::Wait);
        assert_eq!(decide(&declined, &approved, true, NOW), Finding::Take);
        let later = NOW + EXPIRES;
        assert_eq!(
            decide(&declined, &approved, false, later),
            Finding::Over("expired")
        );
        assert_eq!(
            decide(&row(TopUpState::Open), &approved, false, later),
            Finding::Take,
            "whoever has agreed and not been declined gets what was agreed"
        );
    }

    #[test]
    fn money_that_went_back_is_found_and_never_more_than_was_paid() {
        let mut back = order(OrderStatus::Completed, Some(CaptureStatus::Completed));
        back.returned = Usd::from_cents(500);
        let mut captured = row(TopUpState::Captured);
        assert_eq!(
            decide(&captured, &back, false, NOW),
            Finding::Returned(Usd::from_cents(500))
        );
        captured.returned = Usd::from_cents(500);
        assert_eq!(decide(&captured, &back, false, NOW), Finding::Wait);
        back.returned = Usd::from_cents(99_999);
        captured.owed = Micros::new(1);
        assert_eq!(
            decide(&captured, &back, false, NOW),
            Finding::Returned(PRICE),
            "what is new comes before what is owed, and is taken with it"
        );
        captured.returned = PRICE;
        assert_eq!(decide(&captured, &back, false, NOW), Finding::Owed);
    }
}
