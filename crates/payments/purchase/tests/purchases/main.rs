//! Purchases of credits against a provider that loses calls and answers, with a process crash at any call.

mod plan;
mod provider;
#[path = "../support/mod.rs"]
mod support;
mod testbed;

use proptest::prelude::*;
use support::faults::Fault;
use testbed::{CREDITS, PRICE, TestBed};
use tollgate_money::{TopUpId, Usd};
use tollgate_purchase::{
    BeginError, CaptureStatus, Notification, OrderStatus, PurchaseRequest, TopUpEvent,
};
use tollgate_store::{TopUpState, TopUpSubject};

fn id(number: u8) -> TopUpId {
    TopUpId::from_bytes([number; 16])
}

fn approve(bed: &TestBed, number: u8) {
    bed.provider.change(&id(number).to_string(), |made| {
        if made.status == OrderStatus::Waiting {
            made.status = OrderStatus::Approved;
        }
    });
}

fn reconcile(bed: &mut TestBed, number: u8) {
    bed.run(|processor| async move { processor.reconcile(id(number), true).await });
}

fn state(bed: &TestBed, number: u8) -> TopUpState {
    bed.row(id(number)).expect("a purchase").state
}

#[test]
fn a_paid_purchase_is_credited_once_however_often_it_is_reconciled() {
    let mut bed = TestBed::new();
    let begun = bed.begin(id(1)).expect("alive").expect("begins");
    assert_eq!(begun.state, TopUpState::Open);
    assert!(begun.approve_url.is_some());
    reconcile(&mut bed, 1);
    assert_eq!(state(&bed, 1), TopUpState::Open, "not approved");
    approve(&bed, 1);
    reconcile(&mut bed, 1);
    assert_eq!(state(&bed, 1), TopUpState::Captured);
    for _ in 0..3 {
        reconcile(&mut bed, 1);
    }
    bed.settle();
    assert_eq!(bed.available(), CREDITS);
    assert_eq!(bed.provider.takings(), 1);
    bed.check_books();
}

#[test]
fn a_purchase_is_credited_although_credits_are_no_longer_sold() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    bed.unprice();
    let refused = bed.begin(id(2)).expect("alive");
    assert!(matches!(refused, Err(BeginError::NotSold)), "{refused:?}");
    reconcile(&mut bed, 1);
    bed.settle();
    assert_eq!(state(&bed, 1), TopUpState::Captured);
    assert_eq!(bed.available(), CREDITS);
    bed.check_books();
}

#[test]
fn a_form_that_is_sent_twice_is_one_purchase() {
    let mut bed = TestBed::new();
    let first = bed.begin(id(1)).expect("alive").expect("begins");
    let second = bed.begin(id(1)).expect("alive").expect("is found");
    assert_eq!(first, second);
    assert_eq!(bed.provider.orders_of(&id(1).to_string()).len(), 1);
    let other = PurchaseRequest {
        id: id(1),
        account: testbed::ACCOUNT,
        price: Usd::from_cents(4_000),
        return_url: String::new(),
        cancel_url: String::new(),
    };
    let other = bed.run(|processor| async move { processor.begin(other).await });
    assert!(matches!(
        other.expect("alive"),
        Err(BeginError::OtherPurchase(_))
    ));
}

#[test]
fn an_order_whose_creation_was_lost_is_created_once() {
    for fault in [Fault::AnswerLost, Fault::CallLost, Fault::Unavailable] {
        let mut bed = TestBed::new();
        bed.provider.faults([fault]);
        let lost = bed.begin(id(1)).expect("alive");
        assert!(matches!(lost, Err(BeginError::Provider(_))), "{fault:?}");
        bed.begin(id(1)).expect("alive").expect("begins");
        assert_eq!(
            bed.provider.orders_of(&id(1).to_string()).len(),
            1,
            "{fault:?}"
        );
    }
}

/// A crash or a lost answer at each call of a purchase in turn: one payment, one credit, and the buyer does nothing more.
#[test]
fn any_fault_after_approval_still_credits_once() {
    for fault in [
        Fault::AnswerLost,
        Fault::CallLost,
        Fault::Unavailable,
        Fault::CrashBefore,
        Fault::CrashAfter,
    ] {
        for at in 0..4 {
            let mut bed = TestBed::new();
            bed.begin(id(1)).expect("alive").expect("begins");
            approve(&bed, 1);
            let mut faults = vec![Fault::None; at];
            faults.push(fault);
            bed.provider.faults(faults);
            reconcile(&mut bed, 1);
            bed.settle();
            let what = format!("{fault:?} at call {at}");
            assert_eq!(state(&bed, 1), TopUpState::Captured, "{what}");
            assert_eq!(bed.available(), CREDITS, "{what}");
            assert_eq!(bed.provider.takings(), 1, "{what}");
            bed.check_books();
        }
    }
}

#[test]
fn a_declined_capture_costs_nothing_and_the_next_one_pays() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    bed.provider
        .change(&id(1).to_string(), |made| made.declines = true);
    reconcile(&mut bed, 1);
    let row = bed.row(id(1)).expect("stored");
    assert_eq!((row.state, row.declines), (TopUpState::Open, 1));
    assert_eq!(bed.available(), 0);
    // Not retried by itself; the returning buyer is a notification.
    bed.run(|processor| async move { processor.reconcile(id(1), false).await });
    assert_eq!(bed.provider.takings(), 0);
    reconcile(&mut bed, 1);
    assert_eq!(state(&bed, 1), TopUpState::Captured);
    assert_eq!(bed.available(), CREDITS);
}

#[test]
fn a_notification_before_a_lost_answer_stays_unacknowledged() {
    for is_notified in [false, true] {
        let mut bed = TestBed::new();
        bed.begin(id(1)).expect("alive").expect("begins");
        approve(&bed, 1);
        bed.provider
            .change(&id(1).to_string(), |made| made.declines = true);
        reconcile(&mut bed, 1);
        assert_eq!(bed.row(id(1)).expect("stored").declines, 1);
        // The buyer approves again, and comes back or PayPal sends a notification; the first read of the order is lost.
        bed.provider.faults([Fault::CallLost]);
        if is_notified {
            let notice = Notification {
                id: String::from("WH-1"),
                kind: String::from("CHECKOUT.ORDER.APPROVED"),
                about: Some(TopUpSubject::TopUp(id(1))),
            };
            bed.run(|processor| async move { processor.record_notification(notice).await });
            let reconciled = bed.run(|processor| async move { processor.reconcile_due().await });
            assert_eq!(reconciled, Some(1));
        } else {
            reconcile(&mut bed, 1);
        }
        assert_eq!(state(&bed, 1), TopUpState::Open);
        let reconciled = bed.run(|processor| async move { processor.reconcile_due().await });
        assert_eq!(reconciled, Some(0), "backing off after a failure");
        bed.provider.advance(60);
        bed.run(|processor| async move { processor.reconcile_due().await });
        assert_eq!(
            state(&bed, 1),
            TopUpState::Captured,
            "is_notified: {is_notified}"
        );
        assert_eq!(bed.available(), CREDITS);
        let row = bed.row(id(1)).expect("stored");
        assert_eq!(row.notifications, row.acknowledged);
    }
}

#[test]
fn a_purchase_fails_after_too_many_declines() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    for _ in 0..5 {
        bed.provider
            .change(&id(1).to_string(), |made| made.declines = true);
        reconcile(&mut bed, 1);
    }
    assert_eq!(state(&bed, 1), TopUpState::Failed);
    bed.settle();
    assert_eq!((bed.available(), bed.provider.takings()), (0, 0));
}

#[test]
fn a_pending_payment_is_credited_on_completion_and_not_before() {
    for (then, credits, end) in [
        (CaptureStatus::Completed, CREDITS, TopUpState::Captured),
        (CaptureStatus::Declined, 0, TopUpState::Failed),
    ] {
        let mut bed = TestBed::new();
        bed.begin(id(1)).expect("alive").expect("begins");
        approve(&bed, 1);
        let top_up = id(1).to_string();
        bed.provider.change(&top_up, |made| made.slow = true);
        reconcile(&mut bed, 1);
        bed.settle();
        assert_eq!(state(&bed, 1), TopUpState::Pending);
        assert_eq!(bed.available(), 0, "nothing is credited for a promise");
        bed.provider.change(&top_up, |made| {
            made.capture.as_mut().expect("taken").status = then;
        });
        bed.settle();
        assert_eq!(
            (state(&bed, 1), bed.available()),
            (end, credits),
            "{then:?}"
        );
    }
}

#[test]
fn an_order_that_is_never_approved_fails_without_a_payment() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    bed.provider.faults([Fault::CallLost]);
    let lost = bed.begin(id(2)).expect("alive");
    assert!(lost.is_err(), "its order is never made");
    bed.settle();
    assert_eq!(state(&bed, 1), TopUpState::Failed);
    assert_eq!(state(&bed, 2), TopUpState::Failed);
    let again = bed.begin(id(2)).expect("alive").expect("is found");
    assert_eq!(again.state, TopUpState::Failed, "what is over stays over");
}

#[test]
fn a_notification_is_recorded_once_and_triggers_reconciliation() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    let notice = || Notification {
        id: String::from("WH-1"),
        kind: String::from("CHECKOUT.ORDER.APPROVED"),
        about: Some(TopUpSubject::Order("ORDER-1".into())),
    };
    for (number, new) in [(1, true), (2, false), (3, false)] {
        let recorded =
            bed.run(|processor| async move { processor.record_notification(notice()).await });
        assert_eq!(
            recorded.expect("alive").expect("stored"),
            new,
            "time {number}"
        );
    }
    // A crash before the reconciliation: the notification is stored.
    bed.crash();
    bed.run(|processor| async move { processor.reconcile_due().await });
    assert_eq!(state(&bed, 1), TopUpState::Captured);
    let unrelated = Notification {
        id: String::from("WH-2"),
        kind: String::from("PAYMENT.CAPTURE.COMPLETED"),
        about: Some(TopUpSubject::TopUp(id(77))),
    };
    let recorded =
        bed.run(|processor| async move { processor.record_notification(unrelated).await });
    assert!(
        recorded.expect("alive").expect("stored"),
        "it names no purchase of this installation"
    );
    assert_eq!(bed.available(), CREDITS);
}

#[test]
fn a_refund_reverses_credits_as_far_as_they_are_available() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    reconcile(&mut bed, 1);
    let top_up = id(1).to_string();
    let give_back = |bed: &mut TestBed, cents| {
        bed.provider
            .change(&top_up, |made| made.returned = Usd::from_cents(cents));
        for _ in 0..2 {
            reconcile(bed, 1);
        }
    };
    give_back(&mut bed, 500);
    assert_eq!(bed.available(), CREDITS / 4 * 3, "a quarter, once");
    bed.spend(CREDITS / 2);
    give_back(&mut bed, PRICE.cents());
    let row = bed.row(id(1)).expect("stored");
    assert_eq!(bed.available(), 0, "what is left");
    assert_eq!(row.taken_back.get(), CREDITS / 2);
    assert_eq!(row.owed.get(), CREDITS / 2, "what was spent already");
    bed.settle();
    assert_eq!(bed.available(), 0, "nothing is taken twice");
    bed.check_books();
}

#[test]
fn credits_held_at_a_refund_are_reversed_when_the_hold_ends() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    reconcile(&mut bed, 1);
    bed.hold(CREDITS / 2);
    bed.hold(CREDITS / 2);
    bed.provider
        .change(&id(1).to_string(), |made| made.returned = PRICE);
    reconcile(&mut bed, 1);
    let owed = |bed: &TestBed| bed.row(id(1)).expect("stored").owed.get();
    assert_eq!(owed(&bed), CREDITS, "all of it is held");
    let counted = bed.count(TopUpEvent::Returned);
    // One hold is released, and later the other one; without any notification.
    for left in [CREDITS / 2, 0] {
        bed.release_one();
        bed.settle();
        assert_eq!((owed(&bed), bed.available()), (left, 0));
        bed.check_books();
    }
    assert_eq!(
        bed.count(TopUpEvent::Returned),
        counted,
        "it went back once"
    );
    // Nothing is owed: the next purchase is credited in full.
    bed.begin(id(2)).expect("alive").expect("begins");
    approve(&bed, 2);
    reconcile(&mut bed, 2);
    bed.settle();
    assert_eq!(bed.available(), CREDITS);
}

/// They stayed spendable until the next attempt, which was a minute away, and after vain attempts a day.
#[test]
fn credits_held_at_a_refund_are_reversed_as_soon_as_the_hold_ends() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    reconcile(&mut bed, 1);
    bed.hold(CREDITS / 2);
    bed.hold(CREDITS / 2);
    bed.provider
        .change(&id(1).to_string(), |made| made.returned = PRICE);
    reconcile(&mut bed, 1);
    let owed = |bed: &TestBed| bed.row(id(1)).expect("stored").owed.get();
    assert_eq!(owed(&bed), CREDITS, "all of it is held");
    let attempts = |bed: &mut TestBed| {
        bed.run(|processor| async move { while processor.reconcile_due().await > 0 {} });
        bed.row(id(1)).expect("stored").attempts
    };
    let vain = attempts(&mut bed);
    assert_eq!(attempts(&mut bed), vain, "nothing is free");
    // No time passes.
    for left in [CREDITS / 2, 0] {
        bed.release_one();
        attempts(&mut bed);
        assert_eq!((owed(&bed), bed.available()), (left, 0));
    }
    bed.check_books();
}

#[test]
fn credits_spent_before_a_refund_are_taken_from_the_next_purchase() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    reconcile(&mut bed, 1);
    bed.spend(CREDITS / 4);
    let top_up = id(1).to_string();
    bed.provider.change(&top_up, |made| made.returned = PRICE);
    reconcile(&mut bed, 1);
    bed.begin(id(2)).expect("alive").expect("begins");
    // The first order no longer exists; what is owed is known without it.
    bed.provider.lose(&top_up);
    approve(&bed, 2);
    reconcile(&mut bed, 2);
    bed.settle();
    assert_eq!(bed.available(), CREDITS / 4 * 3);
    assert_eq!(bed.row(id(1)).expect("stored").owed.get(), 0);
    bed.check_books();
}

/// A page that is loaded again and again delayed the worker's next attempt, up to six hours.
#[test]
fn a_buyers_question_is_no_attempt_and_keeps_the_time_of_the_next_one() {
    for slow in [false, true] {
        let mut bed = TestBed::new();
        bed.begin(id(1)).expect("alive").expect("begins");
        if slow {
            approve(&bed, 1);
            bed.provider
                .change(&id(1).to_string(), |made| made.slow = true);
        }
        reconcile(&mut bed, 1);
        let before = bed.row(id(1)).expect("stored");
        for faults in [&[][..], &[Fault::Unavailable], &[]] {
            bed.provider.advance(1);
            bed.provider.faults(faults.iter().copied());
            reconcile(&mut bed, 1);
            let row = bed.row(id(1)).expect("stored");
            assert_eq!(row.state, before.state);
            assert_eq!(row.attempts, before.attempts, "{faults:?}");
            assert!(row.next_attempt_at <= before.next_attempt_at, "{faults:?}");
        }
    }
}

#[test]
fn a_requested_capture_whose_order_is_gone_needs_manual_resolution() {
    for slow in [false, true] {
        let mut bed = TestBed::new();
        bed.begin(id(1)).expect("alive").expect("begins");
        approve(&bed, 1);
        let top_up = id(1).to_string();
        bed.provider.change(&top_up, |made| made.slow = slow);
        // The capture is requested; its answer and every later call are lost.
        bed.provider
            .faults([Fault::None, Fault::AnswerLost, Fault::Unavailable]);
        reconcile(&mut bed, 1);
        if slow {
            reconcile(&mut bed, 1);
        }
        let before = state(&bed, 1);
        let expected = if slow {
            TopUpState::Pending
        } else {
            TopUpState::Capturing
        };
        assert_eq!(before, expected);
        bed.provider.lose(&top_up);
        reconcile(&mut bed, 1);
        assert_eq!(bed.count(TopUpEvent::Stuck), 0, "it may yet come back");
        bed.provider.advance(7 * 3_600);
        reconcile(&mut bed, 1);
        assert_eq!(bed.count(TopUpEvent::Stuck), 0, "the buyer's question");
        let attempted = bed.run(|top_ups| async move { top_ups.reconcile_due().await });
        assert_eq!(attempted, Some(1));
        assert_eq!(bed.count(TopUpEvent::Stuck), 1, "the worker raises it");
        let row = bed.row(id(1)).expect("stored");
        assert_eq!(row.state, before, "nothing is concluded from it");
        assert!(
            row.note
                .is_some_and(|note| note.contains("no longer exists"))
        );
        assert_eq!(bed.available(), 0);
    }
}

/// A notification is all that says that the order of a credited payment matters again: a buyer who asks first must not use it up.
#[test]
fn a_notification_of_a_payment_whose_order_is_gone_raises_its_alert_after_a_question_too() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    reconcile(&mut bed, 1);
    assert_eq!(state(&bed, 1), TopUpState::Captured);
    bed.provider.lose(&id(1).to_string());
    let notice = Notification {
        id: String::from("WH-1"),
        kind: String::from("PAYMENT.CAPTURE.REFUNDED"),
        about: Some(TopUpSubject::TopUp(id(1))),
    };
    bed.run(|top_ups| async move { top_ups.record_notification(notice).await });
    reconcile(&mut bed, 1);
    assert_eq!(bed.count(TopUpEvent::Stuck), 0, "the buyer's question");
    bed.run(|top_ups| async move { top_ups.reconcile_due().await });
    assert_eq!(bed.count(TopUpEvent::Stuck), 1, "the worker raises it");
    bed.check_books();
}

#[test]
fn a_refund_without_a_notification_is_found_within_a_day() {
    let mut bed = TestBed::new();
    bed.begin(id(1)).expect("alive").expect("begins");
    approve(&bed, 1);
    reconcile(&mut bed, 1);
    bed.provider
        .change(&id(1).to_string(), |made| made.returned = PRICE);
    bed.settle();
    assert_eq!(bed.available(), 0);
}

#[test]
fn unfinished_purchases_of_one_account_are_bounded() {
    let mut bed = TestBed::new();
    for number in 1..=10 {
        bed.begin(id(number)).expect("alive").expect("begins");
    }
    let more = bed.begin(id(11)).expect("alive");
    assert!(matches!(more, Err(BeginError::TooMany { open: 10 })));
}

/// A random event.
#[derive(Clone, Debug)]
enum Event {
    Begin(u8),
    Approve(u8),
    DeclineNext(u8),
    SlowNext(u8),
    Returned(u8),
    Turn,
    Notice(u8, u8),
    GiveBack(u8, i64),
    Hold(i64),
    Release,
    Wait(u64),
    ForgetKeys,
    Crash,
}

fn event() -> impl Strategy<Value = Event> {
    let one = 1..4u8;
    prop_oneof![
        4 => one.clone().prop_map(Event::Begin),
        4 => one.clone().prop_map(Event::Approve),
        1 => one.clone().prop_map(Event::DeclineNext),
        1 => one.clone().prop_map(Event::SlowNext),
        4 => one.clone().prop_map(Event::Returned),
        4 => Just(Event::Turn),
        3 => (one.clone(), 0..6u8).prop_map(|(one, notice)| Event::Notice(one, notice)),
        1 => (one, 1..2_000i64).prop_map(|(one, cents)| Event::GiveBack(one, cents)),
        1 => (1..CREDITS).prop_map(Event::Hold),
        1 => Just(Event::Release),
        2 => (1..20_000u64).prop_map(Event::Wait),
        1 => Just(Event::ForgetKeys),
        1 => Just(Event::Crash),
    ]
}

fn fault() -> impl Strategy<Value = Fault> {
    prop_oneof![
        6 => Just(Fault::None),
        1 => Just(Fault::AnswerLost),
        1 => Just(Fault::CallLost),
        1 => Just(Fault::Unavailable),
        1 => Just(Fault::CrashBefore),
        1 => Just(Fault::CrashAfter),
    ]
}

fn apply(bed: &mut TestBed, event: &Event) {
    match *event {
        Event::Begin(one) => {
            // A caller without an answer retries later.
            let _ = bed.begin(id(one));
        }
        Event::Approve(one) => approve(bed, one),
        Event::DeclineNext(one) => {
            bed.provider.change(&id(one).to_string(), |made| {
                made.declines = made.capture.is_none();
            });
        }
        Event::SlowNext(one) => bed
            .provider
            .change(&id(one).to_string(), |made| made.slow = true),
        Event::Returned(one) => reconcile(bed, one),
        Event::Turn => {
            bed.run(|processor| async move { processor.reconcile_due().await });
        }
        Event::Notice(one, notice) => {
            let notice = Notification {
                id: format!("WH-{notice}"),
                kind: String::from("PAYMENT.CAPTURE.COMPLETED"),
                about: Some(TopUpSubject::TopUp(id(one))),
            };
            bed.run(|processor| async move { processor.record_notification(notice).await });
        }
        Event::GiveBack(one, cents) => bed.provider.change(&id(one).to_string(), |made| {
            let done =
                |capture: &tollgate_purchase::Capture| capture.status == CaptureStatus::Completed;
            if made.capture.as_ref().is_some_and(done) {
                made.returned = made.returned.max(Usd::from_cents(cents));
            }
        }),
        Event::Hold(micros) => bed.hold(micros.min(bed.available())),
        Event::Release => bed.release(),
        Event::Wait(secs) => bed.provider.advance(secs),
        Event::ForgetKeys => {
            // The provider keeps idempotency keys for six hours.
            bed.provider.advance(6 * 3_600);
            bed.provider.forget_keys();
        }
        Event::Crash => bed.crash(),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// Under any sequence of buyers, notifications, crashes and lost answers: what was captured and not refunded equals the credits in the
    /// ledger, to the last micro-credit, and no purchase is paid twice.
    #[test]
    fn what_is_taken_is_what_is_credited(
        events in prop::collection::vec(event(), 1..40),
        faults in prop::collection::vec(fault(), 0..40),
    ) {
        let mut bed = TestBed::new();
        bed.provider.faults(faults);
        for event in &events {
            apply(&mut bed, event);
        }
        // Pending payments complete; then the faults stop.
        for number in 1..4 {
            bed.provider.change(&id(number).to_string(), |made| {
                made.slow = false;
                if let Some(capture) = &mut made.capture {
                    capture.status = CaptureStatus::Completed;
                }
            });
        }
        // The first days with the remaining holds, then without.
        bed.settle();
        prop_assert!(bed.available() >= 0);
        bed.release();
        bed.settle();
        let mut expected = 0;
        for number in 1..4 {
            let orders = bed.provider.orders_of(&id(number).to_string());
            let paid: Vec<_> = orders.iter().filter(|made| made.capture.is_some()).collect();
            prop_assert!(paid.len() <= 1, "purchase {number} was paid {} times", paid.len());
            let row = bed.row(id(number));
            for made in &paid {
                let row = row.as_ref().expect("only what is stored is paid");
                prop_assert_eq!(row.state, TopUpState::Captured, "purchase {} is paid", number);
                prop_assert_eq!(row.owed.get(), 0, "nothing is owed for purchase {}", number);
                // One cent buys one credit in this test bed.
                expected += (PRICE.cents() - made.returned.cents()) * 1_000_000;
            }
            if let (Some(row), true) = (&row, paid.is_empty()) {
                prop_assert_eq!(row.state, TopUpState::Failed, "purchase {} is over", number);
            }
        }
        prop_assert_eq!(bed.available(), expected);
        bed.check_books();
    }
}
