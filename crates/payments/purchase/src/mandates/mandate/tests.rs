//! The transitions of a mandate, and that no sequence of events leaves the states that are allowed.

use std::cell::Cell;
use std::time::Duration;

use proptest::prelude::*;
use proptest::test_runner::{TestCaseError, TestRunner};
use tollgate_money::{AccountId, MandateId, Usd};

use super::*;
use crate::mandates::decide::{Decision, Facts, PlanSource, Recorded, decide};
use crate::mandates::recurring::{ChargeStatus, ProviderSubscription};
use crate::plan::PRICE;

const ID: MandateId = MandateId::from_bytes([1; 16]);

fn begun() -> Mandate {
    Mandate::stored(MandateRow {
        id: ID,
        account: AccountId::from_bytes([2; 16]),
        state: MandateState::Created,
        version: 0,
        plan_id: Arc::from("P-1"),
        price: PRICE,
        create_key: Arc::from("create"),
        provider_ref: None,
        approve_url: None,
        return_url: Arc::from("https://example.com/back"),
        cancel_url: Arc::from("https://example.com/left"),
        agreed_at: None,
        activated_at: None,
        payment: None,
        paid_at: None,
        paid_until: None,
        advanced_for: None,
        cancel_requested_at: None,
        note: None,
        attempts: 0,
        next_attempt_at: None,
        notifications: 0,
        acknowledged: 0,
        created_at: Timestamp::UNIX_EPOCH,
        updated_at: Timestamp::UNIX_EPOCH,
    })
}

/// A node had asked for the suspension before its owner resumed the mandate.
#[test]
fn a_charge_seen_with_a_late_suspension_does_not_end_a_resumed_mandate() {
    let now = Timestamp::from_secs(1_000_000);
    let charge = Charge {
        id: String::from("T-1"),
        status: ChargeStatus::Completed,
        amount: Some(PRICE),
        at: now,
    };
    let until = now + schedule::days(32);
    for (later, state) in [
        (Duration::ZERO, MandateState::Active),
        (Duration::from_hours(1), MandateState::Ended),
    ] {
        let mut row = MandateRow::clone(&begun());
        row.state = MandateState::Active;
        row.note = Some(Arc::from(resumed_note(now)));
        let paid = Mandate::stored(row).paid(&charge, until, Status::Suspended, now + later);
        assert_eq!(paid.state, state, "{later:?}");
        assert_eq!(was_resumed_recently(&paid, now + later), later.is_zero());
    }
}

/// What happens to a mandate at one time.
#[derive(Clone, Debug)]
enum Event {
    /// The provider shows this, with one charge (of the last payment, where there is one and the flag says so), and the plan is active
    /// from there.
    Seen(
        Status,
        Option<(ChargeStatus, Recorded, bool)>,
        PlanSource,
        bool,
    ),
    /// An operator cancels it.
    Cancel,
    /// Its owner cancels it.
    Leave,
    /// Its owner resumes it.
    Resume,
    /// Another mandate was agreed to.
    Supersede,
    /// The provider does not know it.
    Gone,
}

fn any_event() -> impl Strategy<Value = Event> {
    use ChargeStatus::{Completed, Declined, Pending, Returned};
    use Status::{Active, Approved, Cancelled, Expired, Suspended, Waiting};
    let status = prop::sample::select(vec![
        Waiting, Approved, Active, Suspended, Cancelled, Expired,
    ]);
    let charge = (
        prop::sample::select(vec![Completed, Declined, Pending, Returned]),
        prop::sample::select(vec![Recorded::New, Recorded::Kept, Recorded::Reversed]),
        any::<bool>(),
    );
    let source = prop::sample::select(vec![
        PlanSource::Inactive,
        PlanSource::Own,
        PlanSource::Other,
    ]);
    prop_oneof![
        12 => (status, prop::option::of(charge), source, any::<bool>())
            .prop_map(|(status, charge, source, flag)| Event::Seen(status, charge, source, flag)),
        1 => Just(Event::Cancel),
        4 => Just(Event::Leave),
        4 => Just(Event::Resume),
        1 => Just(Event::Supersede),
        1 => Just(Event::Gone),
    ]
}

/// The decision about what the provider shows.
fn decision(row: &Mandate, event: &Event, now: Timestamp) -> Option<Decision> {
    let Event::Seen(status, charge, runs, flag) = event else {
        return None;
    };
    let charge = charge.map(|(status, recorded, is_last)| {
        let last = row.payment.as_deref().filter(|_| is_last);
        let charge = Charge {
            id: last.map_or_else(|| format!("T-{}", now.as_secs()), str::to_owned),
            status,
            amount: Some(PRICE),
            at: now,
        };
        (charge, recorded)
    });
    let seen = ProviderSubscription {
        status: *status,
        plan_id: String::from("P-1"),
        mandate: Some(ID.to_string()),
        is_changed: false,
        next_charge: None,
        last_payment: flag.then_some((Some(PRICE), now)),
        outstanding: Some(Usd::ZERO),
        failed_at: flag.then_some(now),
        failed_why: None,
    };
    Some(decide(&Facts {
        row,
        seen: &seen,
        charges: charge.as_slice(),
        runs: *runs,
        has_cancelled: *flag,
        has_activated: *flag,
        has_suspended: *flag,
        is_refused: now.as_secs() % 2 == 0,
        refunds: &[],
        has_transfer: *flag,
        now,
    }))
}

/// The transition of a decision.
fn apply(row: Mandate, decision: Decision, status: Status, now: Timestamp) -> Mandate {
    match decision {
        Decision::Wait
        | Decision::Activate
        | Decision::Suspend
        | Decision::Cancel
        | Decision::Refund(_) => row.waits(now),
        Decision::AwaitTransfer => row.unchanged(Some(now), now),
        Decision::Agreed => row.agreed(now),
        Decision::Pay { charge, until } => row.paid(&charge, until, status, now),
        Decision::Advance(time) => row.advanced(time, now),
        Decision::Returned(charge) => row.charge_returned(&charge, now),
        Decision::Duplicate(why) => row.duplicate(why, now),
        Decision::PastDue => row.past_due(now),
        Decision::Resumed => row.resumed(now),
        Decision::Reactivate => row.resumed_meanwhile(now),
        Decision::ResumeFailed => row.resume_failed(now),
        Decision::Ended(why) => row.ended(why, now),
        Decision::Dropped => row.dropped(now),
        Decision::Over(why) => row.over(why, now),
        Decision::Stuck(why) => row.stuck(why, now),
    }
}

/// Whatever the provider shows, in any order: no decision asks for an illegal transition; a duplicate pays for nothing until it has
/// ended, a cancellation stays requested, the first activation is never rewritten, and the period of the last payment ends when that is
/// given back. What its owner has cancelled is active again only after its owner has resumed it, before the next charge was due.
#[test]
fn every_sequence_of_events_is_legal() {
    let later = prop_oneof![1 => Just(0i64), 2 => 0..900_000i64, 2 => 0..9_000_000i64];
    let events = prop::collection::vec((any_event(), later), 1..40);
    let (reached, resumed, mut runner) = (
        Cell::new(0),
        Cell::new(0),
        TestRunner::new(ProptestConfig::with_cases(512)),
    );
    let done = runner.run(&(0..3, events), |(start, events)| {
        let (returned, again) = check_events(start, events)?;
        reached.set(reached.get() + returned);
        resumed.set(resumed.get() + again);
        Ok(())
    });
    if let Err(error) = done {
        panic!("{error}");
    }
    assert!(reached.get() > 0, "no last payment was given back");
    assert!(resumed.get() > 0, "none was resumed");
}

/// Returns how often the last payment was given back, and how often a mandate was resumed.
fn check_events(start: i32, events: Vec<(Event, i64)>) -> Result<(u32, u32), TestCaseError> {
    use MandateState::{
        Active, Agreed, CancelAtEnd, CancelPending, Dropped, Duplicate, Ended, Open, Over, Resuming,
    };
    let (mut now, mut returned, mut resumed) = (Timestamp::UNIX_EPOCH, 0, 0);
    let mut row = begun()
        .offered("I-1", "https://paypal.example", now)
        .written();
    if start > 0 {
        // Few sequences get to a payment, and to a cancellation after it, by themselves.
        let charge = Charge {
            id: String::from("T-FIRST"),
            status: ChargeStatus::Completed,
            amount: Some(PRICE),
            at: now,
        };
        let until = now + schedule::days(32);
        row = row.paid(&charge, until, Status::Active, now).written();
    }
    if start > 1 {
        row = row.cancelled_at_end(now).expect("it is charged").written();
    }
    for (event, later) in events {
        now = Timestamp::from_secs(now.as_secs() + later);
        let before = row.clone();
        let decided = decision(&row, &event, now);
        let paid = matches!(decided, Some(Decision::Pay { .. }));
        let last_returned = match &decided {
            Some(Decision::Returned(charge)) => before.payment.as_deref() == Some(&*charge.id),
            _ => false,
        };
        let next = match (decided, &event) {
            (Some(decision), Event::Seen(status, ..)) => Some(apply(row, decision, *status, now)),
            (_, Event::Cancel) => row.cancelled(now),
            (_, Event::Leave) => row.cancelled_at_end(now),
            (_, Event::Resume) => row.resume_requested(now),
            (_, Event::Supersede) => row.superseded(now),
            (_, Event::Gone) if matches!(row.state, Open | Dropped) => Some(row.gone(now)),
            _ => None,
        };
        let Some(next) = next else {
            row = before;
            continue;
        };
        prop_assert_eq!(next.version, before.version + 1);
        let left = |from, allowed: &[MandateState]| {
            before.state != from || next.state == from || allowed.contains(&next.state)
        };
        let state = next.state;
        prop_assert!(left(Duplicate, &[Dropped, Ended, Over]), "{state:?}");
        prop_assert!(left(CancelPending, &[Ended, Duplicate]), "{state:?}");
        let after_cancel = [Resuming, CancelPending, Ended, Duplicate];
        prop_assert!(left(CancelAtEnd, &after_cancel), "{state:?}");
        if state == Resuming && before.state != Resuming {
            let is_again = before.state == Active && was_resumed_recently(&before, now);
            resumed += u32::from(!is_again);
            let is_requested = matches!(event, Event::Resume);
            prop_assert!(is_again || is_requested && Some(now) < period::due(&before));
            prop_assert!(next.cancel_requested_at.is_none());
        }
        prop_assert!(state != CancelAtEnd || next.cancel_requested_at.is_some());
        prop_assert!(!(paid && before.state == Duplicate));
        prop_assert!(before.activated_at.is_none() || next.activated_at == before.activated_at);
        let is_known = next.activated_at.is_some() || next.agreed_at.is_some();
        prop_assert!(state != Active || is_known || matches!(before.state, Ended | Resuming));
        prop_assert!(state != Agreed || next.agreed_at.is_some());
        prop_assert!(!paid || next.paid_until.is_some());
        if last_returned {
            returned += 1;
            prop_assert!(next.paid_until <= Some(now));
            prop_assert!(before.state != Active || state == CancelPending);
        }
        row = next.written();
    }
    Ok((returned, resumed))
}

/// Questions of another rail, however many, leave the attempts and the time of the next one.
#[test]
fn a_question_without_a_change_of_the_state_keeps_the_schedule() {
    let now = Timestamp::from_secs(1_000);
    let agreed = begun().offered("I-1", "https://paypal.example", now);
    let row = agreed.agreed(now).waits(now).into_row();
    let later = Timestamp::from_secs(1_001);
    let asked = || Mandate::asked(row.clone()).acknowledged(later);
    for after in [
        asked().waits(later),
        asked().retries(later),
        asked().stuck("why", later),
        asked().unchanged(Some(Timestamp::MAX), later),
    ] {
        assert_eq!(after.attempts, row.attempts);
        assert!(after.next_attempt_at <= row.next_attempt_at);
        assert!(after.written().is_asked());
    }
    let due = asked().unchanged(Some(later), later);
    assert_eq!(due.next_attempt_at, Some(later), "an earlier one counts");
}

#[test]
fn a_duplicate_or_cancelled_mandate_is_not_offered_or_charged_again() {
    use MandateState::{
        Active, Agreed, CancelAtEnd, CancelPending, Created, Duplicate, Open, Resuming,
    };
    for from in [Duplicate, CancelPending] {
        for to in [Created, Open, Agreed, Active, CancelAtEnd, Resuming] {
            assert!(!may_become(from, to), "{from:?} to {to:?}");
        }
    }
}
