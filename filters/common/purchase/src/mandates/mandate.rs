//! State machine of a mandate: its transitions, which alone change its row. Pure: no I/O, no clock.

use std::ops::Deref;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_store::{MandateRow, MandateState, Part};

use super::decide::{PAST_DUE, is_past_due, is_stopped, resumed_note, was_resumed_recently};
use super::period;
use super::recurring::{Charge, Status};
use super::schedule;
use crate::scheduled::Scheduled;

/// [`MandateRow::note`] of a mandate that the provider reported as unknown at the last read.
pub(super) const GONE: &str = "gone";

/// A stored mandate.
#[derive(Clone, Debug)]
pub(super) struct Mandate(Scheduled<MandateRow>);

/// Whether a mandate in one state may come into another.
fn may_become(from: MandateState, to: MandateState) -> bool {
    use MandateState::{
        Active, Agreed, CancelAtEnd, CancelPending, Created, Dropped, Duplicate, Ended, Open, Over,
        Resuming,
    };
    match (from, to) {
        (_, Created) => false,
        // Its charges are refunded until the provider has ended it; it pays for nothing again.
        (Duplicate, _) => matches!(to, Dropped | Ended | Over),
        // The owner's request stays until the provider has confirmed it.
        (CancelPending, _) => matches!(to, CancelPending | Ended | Duplicate),
        // Its owner alone resumes it.
        (CancelAtEnd, _) => {
            matches!(
                to,
                CancelAtEnd | Resuming | CancelPending | Ended | Duplicate
            )
        }
        // One that was resumed is so again where an earlier suspension took effect after that.
        (_, Resuming) => matches!(from, Resuming | Active),
        // A charge that is found late counts, however the mandate stands here.
        (_, Active | Ended | Duplicate) => true,
        (Active | Resuming, CancelAtEnd) => true,
        (Active | Resuming | Ended, CancelPending) => true,
        (Created | Open | Agreed | Dropped | Over, Agreed) => true,
        (Created | Dropped, Open) => true,
        (Created | Open | Dropped, Dropped) => true,
        (Created | Open | Agreed | Dropped, Over) => true,
        _ => false,
    }
}

/// Until when the owner may resume a mandate that was cancelled with the end of its paid period: until the next charge would have been due.
pub fn resumable_until(row: &MandateRow) -> Option<Timestamp> {
    let due = period::due(row)?;
    (row.state == MandateState::CancelAtEnd).then_some(due)
}

/// The same of a mandate that its owner would cancel at `now`; `None` where that is final.
pub fn resumable_after_cancel(row: &MandateRow, now: Timestamp) -> Option<Timestamp> {
    let is_charged = matches!(row.state, MandateState::Active | MandateState::Resuming);
    period::due(row).filter(|due| is_charged && !is_past_due(row) && now < *due)
}

impl Mandate {
    pub(super) fn stored(row: MandateRow) -> Mandate {
        Mandate(Scheduled::stored(row))
    }

    /// The same, read because its buyer, an agent or another rail asks.
    pub(super) fn asked(row: MandateRow) -> Mandate {
        Mandate(Scheduled::asked(row))
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.is_asked()
    }

    /// The provider has a subscription for it, which the buyer may approve.
    pub(super) fn offered(self, subscription: &str, approve_url: &str, now: Timestamp) -> Mandate {
        let note = self.note.clone();
        self.enter(MandateState::Open, note.as_deref(), now, |row| {
            row.provider_ref = Some(Arc::from(subscription));
            row.approve_url = Some(Arc::from(approve_url));
        })
    }

    /// A dropped offer is offered again.
    pub(super) fn offered_again(self, now: Timestamp) -> Mandate {
        self.enter(MandateState::Open, None, now, |_| {})
    }

    /// The buyer has agreed, and nothing is paid yet.
    pub(super) fn agreed(self, now: Timestamp) -> Mandate {
        self.enter(MandateState::Agreed, None, now, |row| {
            row.agreed_at.get_or_insert(now);
        })
    }

    /// A charge bought the period up to `until`; `status` is what the provider shows of the subscription.
    pub(super) fn paid(
        self,
        charge: &Charge,
        until: Timestamp,
        status: Status,
        now: Timestamp,
    ) -> Mandate {
        let state = match (self.state, status) {
            (state @ (MandateState::CancelPending | MandateState::CancelAtEnd), _) => state,
            (MandateState::Resuming, Status::Suspended | Status::Waiting) => MandateState::Resuming,
            // The suspension is undone by the next decision.
            (MandateState::Active, Status::Suspended) if was_resumed_recently(&self, now) => {
                MandateState::Active
            }
            (_, Status::Active | Status::Approved | Status::Waiting) => MandateState::Active,
            _ => MandateState::Ended,
        };
        let note = self.note.clone();
        let note = note.filter(|_| was_resumed_recently(&self, now));
        self.enter(state, note.as_deref(), now, |row| {
            row.agreed_at.get_or_insert(now);
            row.activated_at.get_or_insert(now);
            if row.paid_at.is_none_or(|paid| charge.at >= paid) {
                row.payment = Some(Arc::from(&*charge.id));
                row.paid_at = Some(charge.at);
            }
            row.paid_until = row.paid_until.max(Some(until));
            row.advanced_for = None;
        })
    }

    /// A provisional day is granted for a payment of that time, which is reported and not listed.
    pub(super) fn advanced(self, time: Timestamp, now: Timestamp) -> Mandate {
        let state = match self.state {
            state @ (MandateState::CancelPending | MandateState::CancelAtEnd) => state,
            _ => MandateState::Active,
        };
        let note = self.note.clone();
        self.enter(state, note.as_deref(), now, |row| {
            row.agreed_at.get_or_insert(now);
            row.activated_at.get_or_insert(now);
            row.advanced_for = Some(time);
        })
    }

    /// A charge was given back: the period of the last one ends, and the mandate is cancelled with it.
    pub(super) fn charge_returned(self, charge: &Charge, now: Timestamp) -> Mandate {
        let is_last = self.payment.as_deref() == Some(&*charge.id);
        let mandate = match self.state {
            MandateState::Active | MandateState::CancelAtEnd | MandateState::Resuming
                if is_last =>
            {
                self.enter(MandateState::CancelPending, Some("returned"), now, |_| {})
            }
            _ => self,
        };
        mandate.change(now, |row| {
            if is_last {
                row.paid_until = row.paid_until.map(|until| until.min(now));
            }
            row.attempts = 0;
            row.next_attempt_at = schedule::next(row, now);
        })
    }

    /// The last charge failed, and the provider retries it.
    pub(super) fn past_due(self, now: Timestamp) -> Mandate {
        self.change(now, |row| {
            row.note = Some(Arc::from(PAST_DUE));
            row.attempts = 0;
            row.next_attempt_at = schedule::next(row, now);
        })
    }

    /// The provider charges again after a suspension.
    pub(super) fn resumed(self, now: Timestamp) -> Mandate {
        // The time at which its owner requested that.
        let note = self.note.clone();
        let note = note.filter(|_| self.state == MandateState::Resuming);
        self.enter(MandateState::Active, note.as_deref(), now, |_| {})
    }

    /// Its owner has resumed it before the provider suspended it for an earlier cancellation: it is to be activated again.
    pub(super) fn resumed_meanwhile(self, now: Timestamp) -> Mandate {
        let note = self.note.clone();
        self.enter(MandateState::Resuming, note.as_deref(), now, |_| {})
    }

    /// It would pay for a plan that is paid otherwise: to be cancelled, and its charges refunded.
    pub(super) fn duplicate(self, why: &str, now: Timestamp) -> Mandate {
        self.enter(MandateState::Duplicate, Some(why), now, |_| {})
    }

    /// The provider charges no more; what is paid for stays.
    pub(super) fn ended(self, why: &str, now: Timestamp) -> Mandate {
        self.enter(MandateState::Ended, Some(why), now, |_| {})
    }

    /// No longer offered; the buyer may still approve it.
    pub(super) fn dropped(self, now: Timestamp) -> Mandate {
        self.enter(MandateState::Dropped, None, now, |_| {})
    }

    /// Over without a payment that was kept.
    pub(super) fn over(self, why: &str, now: Timestamp) -> Mandate {
        self.enter(MandateState::Over, Some(why), now, |_| {})
    }

    /// The provider refused to create its subscription.
    pub(super) fn refused(self, now: Timestamp) -> Mandate {
        self.over("refused", now)
    }

    /// The provider knows no subscription of it: read again later, since wrong settings look the same.
    pub(super) fn gone(self, now: Timestamp) -> Mandate {
        self.enter(MandateState::Dropped, Some(GONE), now, |_| {})
            .change(now, |row| {
                row.next_attempt_at = Some(now + schedule::GONE_CONFIRM_INTERVAL);
            })
    }

    /// The provider does not know the subscription of an agreed mandate any more: a second read a day later decides.
    pub(super) fn vanished(self, now: Timestamp) -> Mandate {
        self.change(now, |row| {
            row.note = Some(Arc::from(GONE));
            row.next_attempt_at = schedule::stuck(now);
        })
    }

    /// The provider knows its subscription after all.
    pub(super) fn found(self, now: Timestamp) -> Mandate {
        self.change(now, |row| row.note = None)
    }

    /// Another mandate is offered in its place: an offer is dropped, and a suspended one, which would charge beside it, is cancelled.
    pub(super) fn replaced(self, now: Timestamp) -> Mandate {
        let state = match self.state {
            MandateState::Open => MandateState::Dropped,
            _ => MandateState::Duplicate,
        };
        let note = self.note.clone();
        self.enter(state, note.as_deref(), now, |_| {})
    }

    /// Another mandate was agreed to or paid; `None` where that changes nothing.
    pub(super) fn superseded(self, now: Timestamp) -> Option<Mandate> {
        use MandateState::{Active, Agreed, Created, Dropped, Duplicate, Open, Over, Resuming};
        let state = match self.state {
            Created => Over,
            Open => Dropped,
            Agreed | Active | Resuming => Duplicate,
            _ => return None,
        };
        let note = Some("another took its place");
        Some(self.enter(state, note, now, |_| {}).at_once(now))
    }

    /// Its owner has requested its cancellation: with the end of the paid period, where the next charge is not due yet, and else at once.
    pub(super) fn cancelled_at_end(self, now: Timestamp) -> Option<Mandate> {
        use MandateState::{Active, CancelAtEnd, Resuming};
        let is_resumable = resumable_after_cancel(&self, now).is_some();
        match self.state {
            CancelAtEnd => Some(self.unchanged(Some(now), now)),
            Active | Resuming if is_resumable => {
                let cancelled = self.enter(CancelAtEnd, Some("left"), now, |row| {
                    row.cancel_requested_at = Some(now);
                });
                Some(cancelled.at_once(now))
            }
            _ => self.cancelled(now),
        }
    }

    /// Its owner resumes what was cancelled with the end of the paid period; `None` where it is too late, or there is nothing to resume.
    pub(super) fn resume_requested(self, now: Timestamp) -> Option<Mandate> {
        resumable_until(&self).filter(|until| now < *until)?;
        let note = resumed_note(now);
        let resuming = self.enter(MandateState::Resuming, Some(&note), now, |row| {
            row.cancel_requested_at = None;
        });
        Some(resuming.at_once(now))
    }

    /// The provider did not resume it, for good or in time: it stays cancelled.
    pub(super) fn resume_failed(self, now: Timestamp) -> Mandate {
        let note = Some("not resumed");
        self.enter(MandateState::CancelAtEnd, note, now, |row| {
            row.cancel_requested_at = Some(now);
        })
    }

    /// Its owner or an operator has requested its cancellation for good; `None` where there is nothing to cancel.
    pub(super) fn cancelled(self, now: Timestamp) -> Option<Mandate> {
        use MandateState::{
            Active, Agreed, CancelAtEnd, CancelPending, Created, Dropped, Duplicate, Open, Over,
            Resuming,
        };
        let state = match self.state {
            Active | CancelAtEnd | Resuming | CancelPending => CancelPending,
            // The provider has suspended it and may resume it.
            _ if is_stopped(&self) => CancelPending,
            // Nothing is paid: charges after this are refunded.
            Agreed => Duplicate,
            Open => Dropped,
            Created => Over,
            _ => return None,
        };
        let cancelled = self.enter(state, Some("left"), now, |row| {
            if matches!(state, CancelPending | Duplicate) {
                row.cancel_requested_at.get_or_insert(now);
            }
        });
        Some(cancelled.at_once(now))
    }

    /// Every notification so far is covered by a read.
    pub(super) fn acknowledged(self, now: Timestamp) -> Mandate {
        Mandate(self.0.acknowledged(now))
    }

    /// Nothing has changed since the last attempt.
    pub(super) fn waits(self, now: Timestamp) -> Mandate {
        Mandate(self.0.attempted(now, |row| schedule::next(row, now)))
    }

    /// Nothing was attempted. `at`: the next attempt, where it is not that of the schedule.
    pub(super) fn unchanged(self, at: Option<Timestamp>, now: Timestamp) -> Mandate {
        let next = |row: &MandateRow| at.or_else(|| schedule::next(row, now));
        Mandate(self.0.next_attempt(now, next))
    }

    /// Reconciliation failed, and is tried again.
    pub(super) fn retries(self, now: Timestamp) -> Mandate {
        Mandate(self.0.attempted(now, |row| schedule::retry(row, now)))
    }

    /// It needs manual resolution.
    pub(super) fn stuck(self, why: &str, now: Timestamp) -> Mandate {
        Mandate(self.0.stuck(why, now, schedule::stuck(now)))
    }

    /// The part that replaces the stored version.
    pub(super) fn part(&self) -> Part {
        self.0.part()
    }

    /// The same after its part was committed.
    pub(super) fn written(self) -> Mandate {
        Mandate(self.0.written())
    }

    pub(super) fn into_row(self) -> MandateRow {
        self.0.into_row()
    }

    /// What the provider is to do is due at once.
    fn at_once(self, now: Timestamp) -> Mandate {
        use MandateState::{CancelAtEnd, CancelPending, Duplicate, Resuming};
        match self.state {
            CancelAtEnd | CancelPending | Duplicate | Resuming => {
                self.change(now, |row| row.next_attempt_at = Some(now))
            }
            _ => self,
        }
    }

    fn enter(
        self,
        state: MandateState,
        note: Option<&str>,
        now: Timestamp,
        change: impl FnOnce(&mut MandateRow),
    ) -> Mandate {
        assert!(
            may_become(self.state, state),
            "a mandate in state {:?} cannot become {state:?}",
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

    fn change(self, now: Timestamp, change: impl FnOnce(&mut MandateRow)) -> Mandate {
        Mandate(self.0.change(now, change))
    }
}

impl Deref for Mandate {
    type Target = MandateRow;

    fn deref(&self) -> &MandateRow {
        &self.0
    }
}

#[cfg(test)]
mod tests {
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
            Active, Agreed, CancelAtEnd, CancelPending, Dropped, Duplicate, Ended, Open, Over,
            Resuming,
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
                (Some(decision), Event::Seen(status, ..)) => {
                    Some(apply(row, decision, *status, now))
                }
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
}
