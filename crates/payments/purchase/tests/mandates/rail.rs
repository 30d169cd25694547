//! The question of another rail: one read at a time, none for a caller that has gone, and no attempt of the schedule.

use std::time::Duration;

use tollgate_purchase::mandates::{MandateEvent, MandateNotification};
use tollgate_purchase::plan::Question;
use tollgate_store::{MandateState, MandateSubject};

use crate::support::process::ACCOUNT;
use crate::support::recurring_provider::{Fault, Funding};
use crate::testbed::TestBed;

/// Longer than a read counts.
const LATER: Duration = Duration::from_secs(2);

#[test]
fn a_caller_that_stops_waiting_leaves_no_read_of_the_provider_behind() {
    let mut bed = TestBed::new();
    bed.opened();
    // The provider never answers.
    bed.provider.faults([Fault::CrashBefore]);
    assert_eq!(bed.ask_and_leave(5), 1, "the read that had begun");
}

#[test]
fn a_mandate_that_was_read_a_moment_ago_is_not_read_again() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    assert!(!bed.ask());
    assert!(!bed.ask());
    assert_eq!(bed.provider.reads(), 1);
    bed.provider.change(id, |made| made.funding = Funding::Slow);
    bed.provider.approve(id);
    bed.provider.advance(LATER);
    assert!(bed.ask(), "its charge is pending");
    assert!(bed.ask(), "the answer counts as long as the read");
    assert_eq!(bed.provider.reads(), 2);
    bed.provider.advance(LATER);
    bed.provider.faults([Fault::Unavailable]);
    assert!(bed.ask(), "it cannot be read");
    bed.provider.resolve(id, true);
    assert!(!bed.ask(), "a failed read does not count as one");
    assert!(bed.state().is_active());
    bed.check_books();
}

/// Its buyer may have approved since: a transfer was sent beside a charge of PayPal's.
#[test]
fn a_mandate_that_was_read_a_moment_ago_is_read_before_a_payment() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    assert!(!bed.ask());
    bed.provider.change(id, |made| made.funding = Funding::Slow);
    bed.provider.approve(id);
    assert!(!bed.ask(), "the read counts for an offer");
    assert!(bed.ask_for(Question::Payment), "its charge is pending");
    assert!(bed.ask(), "the newer read counts");
}

#[test]
fn a_question_is_no_attempt_and_keeps_the_time_of_the_next_one() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.change(id, |made| made.funding = Funding::Slow);
    bed.provider.approve(id);
    bed.verify(id);
    let before = bed.row(id);
    assert_eq!(before.state, MandateState::Agreed);
    for fault in [
        Fault::None,
        Fault::Unavailable,
        Fault::None,
        Fault::AnswerLost,
    ] {
        bed.provider.advance(LATER);
        bed.provider.faults([fault]);
        assert!(bed.ask());
        let row = bed.row(id);
        assert_eq!(row.attempts, before.attempts, "{fault:?}");
        assert!(row.next_attempt_at <= before.next_attempt_at, "{fault:?}");
    }
}

#[test]
fn a_question_about_a_stuck_mandate_repeats_no_alert() {
    let mut bed = TestBed::new();
    bed.opened();
    bed.move_to("another environment");
    for _ in 0..3 {
        bed.ask();
        bed.provider.advance(LATER);
    }
    assert_eq!(bed.count(MandateEvent::Stuck), 0);
    bed.provider.advance(Duration::from_mins(1));
    bed.pass(0);
    assert_eq!(bed.count(MandateEvent::Stuck), 1, "the worker raises it");
}

#[test]
fn a_notification_since_the_last_read_has_the_mandate_read_again() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    assert!(!bed.ask());
    bed.provider.change(id, |made| made.funding = Funding::Slow);
    bed.provider.approve(id);
    let notification = MandateNotification {
        id: String::from("WH-1"),
        kind: String::from("BILLING.SUBSCRIPTION.ACTIVATED"),
        mandates: vec![MandateSubject::Mandate(id)],
        top_ups: Vec::new(),
    };
    let recorded =
        bed.run(|mandates| async move { mandates.record_notification(notification).await });
    assert!(matches!(recorded, Some(Ok(true))));
    assert!(bed.ask(), "its charge is pending");
}

/// An offer that is made again gets a new version, and no read.
#[test]
fn an_offer_that_was_made_again_since_the_last_read_is_read() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.run(|mandates| async move { mandates.cancel(ACCOUNT).await });
    bed.provider.advance(Duration::from_mins(2));
    assert_eq!(bed.row(id).state, MandateState::Dropped);
    assert!(!bed.ask());
    assert_eq!(bed.opened(), id, "the same subscription");
    bed.provider.change(id, |made| made.funding = Funding::Slow);
    bed.provider.approve(id);
    assert!(bed.ask(), "its charge is pending");
}

/// It blocked every other rail until its owner cancelled it.
#[test]
fn an_agreed_mandate_that_the_provider_does_not_know_any_more_ends_after_a_day() {
    let mut bed = TestBed::new();
    let id = bed.opened();
    bed.provider.change(id, |made| made.funding = Funding::Slow);
    bed.provider.approve(id);
    bed.verify(id);
    assert_eq!(bed.row(id).state, MandateState::Agreed);
    bed.provider.lose(id);
    for _ in 0..3 {
        bed.provider.advance(LATER);
        assert!(bed.ask(), "not believed at once");
        bed.verify(id);
    }
    bed.provider.advance(Duration::from_hours(12));
    bed.pass(0);
    assert!(bed.ask(), "nor after half a day");
    assert_eq!(bed.count(MandateEvent::Stuck), 1, "one alert");
    bed.provider.advance(Duration::from_hours(12));
    bed.pass(0);
    assert_eq!(bed.row(id).state, MandateState::Over);
    assert_eq!(bed.count(MandateEvent::Vanished), 1);
    assert!(!bed.ask(), "another rail may take a payment");
    bed.check_books();
}
