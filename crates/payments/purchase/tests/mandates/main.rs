//! Mandates against a provider that loses calls and answers, with a process crash at any call.

mod checkouts;
mod late_charges;
mod other_nodes;
mod rail;
mod random;
mod reopen;
mod resume;
#[path = "../support/mod.rs"]
mod support;
mod testbed;

use std::sync::Arc;
use std::time::Duration;

use support::process::DAY;
use support::recurring_provider::{Fault, Funding, MONTH};
use testbed::TestBed;
use tollgate_money::Usd;
use tollgate_purchase::mandates::{
    AttachParts, ChangeError, ChargeStatus, MandateEvent, OpenError, Status, Verified, VerifyError,
};
use tollgate_purchase::plan::{PRICE, PayOutcome};
use tollgate_store::{
    Endpoint, IdempotencyKey, IdempotencyPart, KeptAnswer, MandateState, Part, SubscriptionStatus,
};

const FAULTS: [Fault; 5] = [
    Fault::AnswerLost,
    Fault::CallLost,
    Fault::Unavailable,
    Fault::CrashBefore,
    Fault::CrashAfter,
];

#[test]
fn a_mandate_is_charged_each_month_and_every_charge_counts_once() {
    let mut bed = TestBed::new();
    let row = bed.open().expect("alive").expect("is offered");
    assert_eq!(row.state, MandateState::Open);
    assert!(row.approve_url.is_some());
    assert_eq!(
        &*row.return_url,
        format!("https://example.com/back/{}", row.id)
    );
    let again = bed.open().expect("alive").expect("is offered");
    assert_eq!(row, again, "asked again it is the same one");
    let verified = bed.verify(row.id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Waiting(_)), "{verified:?}");
    bed.provider.approve(row.id);
    let agreed_at = bed.provider.now();
    for _ in 0..3 {
        let verified = bed.verify(row.id).expect("alive").expect("answered");
        let Verified::Paid(subscription, mandate) = verified else {
            panic!("{verified:?}");
        };
        assert_eq!(subscription.period_end, agreed_at + MONTH + DAY);
        assert!(subscription.renews);
        assert_eq!(mandate.activated_at, Some(agreed_at));
    }
    assert!(matches!(
        bed.open().expect("alive"),
        Err(OpenError::AlreadyActive(_))
    ));
    bed.pass(95);
    assert_eq!(bed.payments().len(), 4);
    assert!(bed.state().is_active());
    assert_eq!(
        bed.row(row.id).activated_at,
        Some(agreed_at),
        "the first time stays"
    );
    bed.check_books();
}

#[test]
fn attached_parts_are_written_with_the_payment_or_neither_is() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.approve(id);
    // Storing an answer under an unclaimed key is refused.
    let refused: AttachParts = Arc::new(|subscription, mandate| {
        assert_eq!(Some(&subscription.reference), mandate.provider_ref.as_ref());
        assert!(mandate.activated_at.is_some());
        vec![Part::Idempotency(Box::new(IdempotencyPart::Keep {
            key: IdempotencyKey {
                account: subscription.account,
                endpoint: Endpoint::Mpp,
                key: Arc::from("k"),
            },
            token: 1,
            answer: KeptAnswer {
                status: 200,
                headers: Arc::from(""),
                body: None,
            },
        }))]
    });
    let verified =
        bed.run(|processor| async move { processor.verify_with(id, Some(refused)).await });
    let verified = verified.expect("alive");
    assert!(
        matches!(verified, Err(VerifyError::Plan(_))),
        "{verified:?}"
    );
    assert!(bed.payments().is_empty());
    assert!(!bed.state().is_active());
    let verified = bed.verify(id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
    assert_eq!(bed.payments().len(), 1);
    bed.check_books();
}

#[test]
fn a_subscription_is_created_once_when_the_response_is_lost() {
    for fault in FAULTS {
        let mut bed = TestBed::new();
        bed.provider.faults([fault]);
        let lost = bed.open();
        assert!(!matches!(lost, Some(Ok(_))), "{fault:?}");
        bed.opened();
        assert_eq!(bed.provider.all().len(), 1, "{fault:?}");
        assert_eq!(bed.rows().len(), 1, "{fault:?}");
    }
}

/// A crash or a lost answer at each call of a first payment in turn: one payment, one plan, and the buyer does nothing more.
#[test]
fn any_fault_after_approval_still_grants_the_plan_once() {
    for fault in FAULTS {
        for at in 0..3 {
            let mut bed = TestBed::new();
            let id = bed.opened();
            bed.provider.approve(id);
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            bed.provider.faults(faults);
            bed.verify(id);
            bed.pass(1);
            let what = format!("{fault:?} at call {at}");
            assert_eq!(bed.row(id).state, MandateState::Active, "{what}");
            assert!(bed.state().is_active(), "{what}");
            assert_eq!(bed.payments().len(), 1, "{what}");
            bed.check_books();
        }
    }
}

#[test]
fn an_active_subscription_is_no_proof_of_payment() {
    for (arrives, state) in [(true, MandateState::Active), (false, MandateState::Agreed)] {
        let mut bed = TestBed::new();
        let id = bed.opened();
        bed.provider.change(id, |made| made.funding = Funding::Slow);
        bed.provider.approve(id);
        let verified = bed.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Unpaid(_)), "{verified:?}");
        assert!(!bed.state().is_active());
        assert!(bed.state().awaits_first_charge());
        let open = bed.open().expect("alive");
        assert!(matches!(open, Err(OpenError::Processing(_))), "{open:?}");
        bed.pass(4);
        assert_eq!(bed.row(id).state, MandateState::Agreed);
        bed.provider.resolve(id, arrives);
        bed.pass(1);
        assert_eq!(bed.row(id).state, state, "arrives: {arrives}");
        assert_eq!(bed.state().is_active(), arrives);
        bed.check_books();
    }
}

#[test]
fn a_reported_payment_that_is_not_listed_grants_a_day() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.approve(id);
    bed.provider.change(id, |made| made.unlisted = 3);
    let verified = bed.verify(id).expect("alive").expect("answered");
    let Verified::Paid(subscription, _) = verified else {
        panic!("{verified:?}");
    };
    assert_eq!(subscription.period_end, bed.provider.now() + DAY);
    assert_eq!(bed.payments().len(), 0, "nothing is noted yet");
    let approved_at = bed.provider.now();
    bed.pass(1);
    assert_eq!(bed.payments().len(), 1);
    let subscription = bed.state().subscription.expect("paid");
    assert_eq!(subscription.period_end, approved_at + MONTH + DAY);
    bed.check_books();
}

#[test]
fn a_provisional_day_is_granted_once_for_a_payment_that_is_never_listed() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.approve(id);
    bed.provider.change(id, |made| made.unlisted = u32::MAX);
    bed.verify(id);
    bed.pass(5);
    assert!(!bed.state().is_active());
    assert_eq!(bed.count(MandateEvent::Advanced), 1);
    bed.provider.change(id, |made| made.unlisted = 0);
    bed.pass(1);
    assert!(bed.state().is_active());
    bed.check_books();
}

#[test]
fn after_three_hours_another_is_offered_and_the_first_that_is_paid_is_kept() {
    // Which of the two the buyer agrees to, and in which order.
    for order in [[0, 1], [1, 0]] {
        let mut bed = TestBed::new();
        let first = bed.opened();
        bed.provider.advance(DAY / 4);
        let second = bed.opened();
        assert_ne!(first, second);
        assert_eq!(bed.row(first).state, MandateState::Dropped);
        let both = [first, second];
        let [kept, other] = order.map(|at| both[at]);
        bed.provider.approve(kept);
        bed.pass(2);
        assert_eq!(bed.row(kept).state, MandateState::Active);
        assert_eq!(bed.row(other).state, MandateState::Dropped);
        bed.provider.approve(other);
        bed.pass(2);
        assert_eq!(bed.row(other).state, MandateState::Over);
        let other = bed.provider.of(other).expect("made");
        assert_eq!(other.status, Status::Cancelled);
        assert!(
            other
                .charges
                .iter()
                .all(|charge| charge.status == ChargeStatus::Returned)
        );
        assert_eq!(bed.payments().len(), 1);
        bed.check_books();
    }
}

#[test]
fn a_payment_of_an_expired_offer_is_found_before_another_is_offered() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.approve(id);
    bed.provider.advance(DAY / 4);
    let open = bed.open().expect("alive");
    assert!(matches!(open, Err(OpenError::AlreadyActive(_))), "{open:?}");
    assert_eq!(bed.provider.all().len(), 1);
    bed.check_books();
}

/// A provider outage or a crash while a duplicate charge is refunded: it is refunded once, and the mandate ends.
#[test]
fn a_duplicate_charge_is_refunded_despite_any_fault() {
    for fault in FAULTS {
        for at in 0..7 {
            let mut bed = TestBed::new();
            let id = bed.opened();
            let done = bed.transfer("0xabc");
            assert!(matches!(done, PayOutcome::New(_)));
            bed.provider.approve(id);
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            bed.provider.faults(faults);
            bed.verify(id);
            bed.pass(1);
            let what = format!("{fault:?} at call {at}");
            assert_eq!(bed.row(id).state, MandateState::Over, "{what}");
            let made = bed.provider.of(id).expect("made");
            assert_eq!(made.status, Status::Cancelled, "{what}");
            assert_eq!(made.charges[0].status, ChargeStatus::Returned, "{what}");
            assert_eq!(bed.payments().len(), 1, "{what}");
            assert!(bed.provider.kept().is_empty(), "{what}");
        }
    }
}

#[test]
fn a_transfer_during_a_mandate_adds_its_days_and_the_mandate_stays() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    let began = bed.provider.now();
    bed.transfer("0xabc");
    let end = bed.state().subscription.expect("paid").period_end;
    assert_eq!(end, began + MONTH + DAY + 30 * DAY);
    bed.pass(32);
    assert_eq!(bed.row(id).state, MandateState::Active);
    let end = bed.state().subscription.expect("paid").period_end;
    assert_eq!(
        end,
        began + 2 * MONTH + DAY + 30 * DAY,
        "nothing of either is lost"
    );
    assert_eq!(bed.payments().len(), 3);
}

#[test]
fn a_cancellation_keeps_the_paid_period_and_stops_the_charges() {
    for fault in FAULTS {
        for at in 0..6 {
            let mut bed = TestBed::new();
            let id = bed.paid();
            let end = bed.state().subscription.expect("paid").period_end;
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            bed.provider.faults(faults);
            bed.run(|processor| async move { processor.cancel(testbed::ACCOUNT).await });
            let what = format!("{fault:?} at call {at}");
            bed.pass(1);
            assert_eq!(bed.row(id).state, MandateState::CancelAtEnd, "{what}");
            let made = bed.provider.of(id).expect("made");
            assert_eq!(made.status, Status::Suspended, "{what}");
            let subscription = bed.state().subscription.expect("paid");
            assert_eq!((subscription.renews, subscription.period_end), (false, end));
            bed.pass(40);
            assert_eq!(bed.row(id).state, MandateState::Ended, "{what}");
            let made = bed.provider.of(id).expect("made");
            assert_eq!(made.status, Status::Cancelled, "{what}");
            assert_eq!(bed.payments().len(), 1, "{what}");
            assert!(!bed.state().is_active(), "{what}");
            bed.check_books();
        }
    }
}

#[test]
fn an_offered_or_agreed_mandate_can_be_cancelled() {
    let mut bed = TestBed::new();
    let nothing = bed.run(|processor| async move { processor.cancel(testbed::ACCOUNT).await });
    assert!(matches!(nothing, Some(Err(ChangeError::Nothing))));
    let offered = bed.opened();
    let left = bed.run(|processor| async move { processor.cancel(testbed::ACCOUNT).await });
    assert!(matches!(left, Some(Ok(_))), "{left:?}");
    assert_eq!(bed.row(offered).state, MandateState::Dropped);
    let slow = bed.opened();
    bed.provider
        .change(slow, |made| made.funding = Funding::Slow);
    bed.provider.approve(slow);
    bed.verify(slow);
    bed.run(|processor| async move { processor.cancel(testbed::ACCOUNT).await });
    assert_eq!(
        bed.row(slow).state,
        MandateState::Duplicate,
        "the money is on its way"
    );
    bed.provider.resolve(slow, true);
    bed.pass(1);
    assert_eq!(bed.row(slow).state, MandateState::Over);
    assert!(bed.provider.kept().is_empty(), "it went back");
    bed.check_books();
}

#[test]
fn a_failed_charge_is_past_due_until_the_next_one_succeeds() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider
        .change(id, |made| made.funding = Funding::Empty);
    bed.pass(31);
    let subscription = bed.state().subscription.expect("paid");
    assert_eq!(subscription.status, SubscriptionStatus::PastDue);
    assert_eq!(bed.count(MandateEvent::PastDue), 1);
    bed.provider
        .change(id, |made| made.funding = Funding::Instant);
    bed.pass(6);
    let subscription = bed.state().subscription.expect("paid");
    assert_eq!(subscription.status, SubscriptionStatus::Active);
    assert!(bed.state().is_active());
    assert_eq!(bed.payments().len(), 2);
    bed.pass(30);
    assert_eq!(bed.payments().len(), 3);
    bed.check_books();
}

#[test]
fn a_suspended_mandate_renews_nothing_and_can_be_replaced() {
    let mut bed = TestBed::new();
    let old = bed.paid();
    bed.provider
        .change(old, |made| made.funding = Funding::Empty);
    bed.pass(45);
    assert_eq!(
        bed.provider.of(old).expect("made").status,
        Status::Suspended
    );
    assert_eq!(bed.row(old).state, MandateState::Ended);
    assert!(!bed.state().is_active());
    let new = bed.paid();
    bed.pass(1);
    assert_eq!(bed.row(new).state, MandateState::Active);
    assert_eq!(
        bed.provider.of(old).expect("made").status,
        Status::Cancelled,
        "it cannot be resumed beside the new one"
    );
    bed.check_books();
}

#[test]
fn a_lapsed_mandate_can_be_replaced_while_the_provider_retries() {
    let mut bed = TestBed::new();
    let old = bed.paid();
    bed.provider
        .change(old, |made| made.funding = Funding::Empty);
    bed.pass(33);
    assert!(!bed.state().is_active());
    let new = bed.opened();
    bed.provider
        .change(old, |made| made.funding = Funding::Instant);
    bed.provider.approve(new);
    bed.pass(8);
    assert_eq!(bed.row(new).state, MandateState::Active);
    assert_eq!(
        bed.provider.of(old).expect("made").status,
        Status::Cancelled
    );
    assert_eq!(bed.payments().len(), 2);
    bed.check_books();
}

#[test]
fn a_refund_ends_its_period_and_cancels_the_mandate() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider
        .change(id, |made| made.charges[0].status = ChargeStatus::Returned);
    bed.pass(2);
    assert!(!bed.state().is_active());
    assert_eq!(bed.row(id).state, MandateState::Ended);
    assert_eq!(bed.provider.of(id).expect("made").status, Status::Cancelled);
    assert_eq!(bed.count(MandateEvent::Returned), 1);
    bed.check_books();
}

#[test]
fn charges_of_missed_months_are_found() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider.advance(3 * MONTH + DAY);
    assert!(!bed.state().is_active());
    bed.pass(1);
    assert!(bed.state().is_active());
    assert_eq!(bed.payments().len(), 4);
    assert_eq!(bed.row(id).state, MandateState::Active);
    bed.check_books();
}

#[test]
fn a_subscription_paid_and_ended_between_reconciliations_grants_its_month() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.approve(id);
    bed.provider
        .change(id, |made| made.status = Status::Cancelled);
    let verified = bed.verify(id).expect("alive").expect("answered");
    let Verified::Paid(subscription, row) = verified else {
        panic!("{verified:?}");
    };
    assert_eq!(row.state, MandateState::Ended);
    assert!(!subscription.renews);
    assert!(subscription.period_end >= bed.provider.now() + 28 * DAY);
    bed.check_books();
}

#[test]
fn a_charge_of_another_price_is_refunded() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider
        .change(id, |made| made.price = Usd::from_cents(24_900));
    bed.provider.approve(id);
    let verified = bed.verify(id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Over(_)), "{verified:?}");
    bed.pass(1);
    assert_eq!(bed.row(id).state, MandateState::Over);
    assert!(bed.provider.kept().is_empty());
    assert!(!bed.state().is_active());
    bed.check_books();
}

#[test]
fn a_second_charge_for_one_month_is_refunded_and_the_mandate_stays() {
    let mut bed = TestBed::new();
    let id = bed.paid();
    bed.provider.advance(DAY);
    let now = bed.provider.now();
    bed.provider.change(id, |made| {
        let mut second = made.charges[0].clone();
        second.id = String::from("T-SECOND");
        second.at = now;
        made.charges.push(second);
    });
    bed.pass(2);
    assert_eq!(bed.row(id).state, MandateState::Active);
    assert_eq!(bed.provider.kept().len(), 1);
    bed.pass(30);
    assert_eq!(bed.payments().len(), 2);
    bed.check_books();
}

#[test]
fn a_subscription_of_another_mandate_grants_nothing_and_stays_unchanged() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.approve(id);
    bed.provider
        .change(id, |made| made.mandate = String::from("mandate_of_another"));
    for _ in 0..3 {
        bed.verify(id);
    }
    assert!(!bed.state().is_active());
    assert_eq!(
        bed.count(MandateEvent::Stuck),
        0,
        "a question raises no alert"
    );
    assert_eq!(bed.row(id).attempts, 0, "and is no attempt");
    bed.provider.advance(Duration::from_mins(1));
    bed.pass(0);
    assert_eq!(bed.count(MandateEvent::Stuck), 1, "the worker raises it");
    assert_eq!(bed.provider.all()[0].status, Status::Active);
}

#[test]
fn an_offer_that_the_provider_lost_can_be_replaced() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.lose(id);
    for _ in 0..2 {
        let verified = bed.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Over(_)), "{verified:?}");
        assert_eq!(
            bed.row(id).state,
            MandateState::Dropped,
            "not believed at once"
        );
    }
    assert_ne!(bed.opened(), id);
    bed.pass(1);
    assert_eq!(bed.row(id).state, MandateState::Over, "twice");
}

#[test]
fn a_plan_that_was_changed_at_the_provider_is_not_sold() {
    let mut bed = TestBed::new();
    bed.provider.reprice(Some(Usd::from_cents(100)));
    let open = bed.open().expect("alive");
    assert!(matches!(open, Err(OpenError::Closed(_))), "{open:?}");
    assert!(bed.provider.all().is_empty());
    bed.provider.reprice(Some(PRICE));
    bed.provider.advance(Duration::from_mins(1));
    bed.opened();
}

/// Also on a node that is not the leader, which checks the plan only when it is asked.
#[test]
fn a_plan_that_could_not_be_sold_is_checked_again_when_it_is_shown() {
    let bed = TestBed::new();
    bed.provider.reprice(None);
    assert!(!bed.is_sold());
    bed.provider.reprice(Some(PRICE));
    assert!(!bed.is_sold(), "it was checked a moment ago");
    for (monthly, interval) in [
        (Some(PRICE), Duration::from_mins(1)),
        (None, Duration::from_hours(1)),
    ] {
        bed.provider.reprice(monthly);
        bed.provider.advance(interval);
        // The first caller does not wait for the check.
        assert_eq!(bed.is_sold(), monthly.is_none());
        assert_eq!(bed.is_sold(), monthly.is_some());
    }
}

#[test]
fn a_stale_status_only_delays_the_outcome() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.change(id, |made| made.lag = 3);
    bed.provider.approve(id);
    for _ in 0..3 {
        let verified = bed.verify(id).expect("alive").expect("answered");
        assert!(matches!(verified, Verified::Waiting(_)), "{verified:?}");
    }
    let verified = bed.verify(id).expect("alive").expect("answered");
    assert!(matches!(verified, Verified::Paid(..)), "{verified:?}");
    bed.check_books();
}
