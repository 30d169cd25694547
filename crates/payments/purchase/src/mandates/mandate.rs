//! State machine of a mandate. Only these transitions change a mandate row. Pure: no I/O, no clock.

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
        // Charges are refunded until the provider has ended the mandate; a duplicate never pays again.
        (Duplicate, _) => matches!(to, Dropped | Ended | Over),
        // The owner's request stays until the provider's confirmation.
        (CancelPending, _) => matches!(to, CancelPending | Ended | Duplicate),
        // Only the owner resumes.
        (CancelAtEnd, _) => {
            matches!(
                to,
                CancelAtEnd | Resuming | CancelPending | Ended | Duplicate
            )
        }
        // Resumed again, when an earlier suspension took effect after the resumption.
        (_, Resuming) => matches!(from, Resuming | Active),
        // A charge found late counts in every state.
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

/// The time until which the owner may resume a mandate cancelled with the end of the paid period: the due time of the next charge.
pub fn resumable_until(row: &MandateRow) -> Option<Timestamp> {
    let due = period::due(row)?;
    (row.state == MandateState::CancelAtEnd).then_some(due)
}

/// The end of the resumption time if the owner cancels at `now`; `None` for a final cancellation.
pub fn resumable_after_cancel(row: &MandateRow, now: Timestamp) -> Option<Timestamp> {
    next_charge(row).filter(|due| now < *due)
}

/// Time of the provider's next charge; `None` without a next charge, or after a failed charge.
pub fn next_charge(row: &MandateRow) -> Option<Timestamp> {
    let is_charged = matches!(row.state, MandateState::Active | MandateState::Resuming);
    period::due(row).filter(|_| is_charged && !is_past_due(row))
}

impl Mandate {
    pub(super) fn stored(row: MandateRow) -> Mandate {
        Mandate(Scheduled::stored(row))
    }

    /// A stored row, read for a buyer, an agent or another rail.
    pub(super) fn asked(row: MandateRow) -> Mandate {
        Mandate(Scheduled::asked(row))
    }

    pub(super) fn is_asked(&self) -> bool {
        self.0.is_asked()
    }

    /// The provider has a subscription for the buyer to approve.
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

    /// The buyer has agreed; no charge is paid yet.
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

    /// A provisional day is granted for a payment of `time`, reported and not listed.
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

    /// A charge was given back: the last charge's period ends, and the mandate is cancelled.
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
        // Time of the owner's request.
        let note = self.note.clone();
        let note = note.filter(|_| self.state == MandateState::Resuming);
        self.enter(MandateState::Active, note.as_deref(), now, |_| {})
    }

    /// The owner has resumed the mandate before the suspension of an earlier cancellation took effect: to be activated again.
    pub(super) fn resumed_meanwhile(self, now: Timestamp) -> Mandate {
        let note = self.note.clone();
        self.enter(MandateState::Resuming, note.as_deref(), now, |_| {})
    }

    /// The plan is paid otherwise: cancel this mandate and refund the charges.
    pub(super) fn duplicate(self, why: &str, now: Timestamp) -> Mandate {
        self.enter(MandateState::Duplicate, Some(why), now, |_| {})
    }

    /// The provider charges no more; paid periods stay.
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

    /// The provider knows no subscription of the mandate. Wrong settings look alike, so the mandate is read again later.
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

    /// The provider knows the subscription after all.
    pub(super) fn found(self, now: Timestamp) -> Mandate {
        self.change(now, |row| row.note = None)
    }

    /// Another mandate is offered instead. An offer is dropped. A suspended mandate could charge beside the new mandate, and is cancelled.
    pub(super) fn replaced(self, now: Timestamp) -> Mandate {
        let state = match self.state {
            MandateState::Open => MandateState::Dropped,
            _ => MandateState::Duplicate,
        };
        let note = self.note.clone();
        self.enter(state, note.as_deref(), now, |_| {})
    }

    /// Another mandate was agreed to or paid; `None` if nothing changes.
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

    /// The owner has requested cancellation: with the end of the paid period before the next charge is due, otherwise at once.
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

    /// The owner resumes a mandate cancelled with the end of the paid period; `None` when too late, or without such a cancellation.
    pub(super) fn resume_requested(self, now: Timestamp) -> Option<Mandate> {
        resumable_until(&self).filter(|until| now < *until)?;
        let note = resumed_note(now);
        let resuming = self.enter(MandateState::Resuming, Some(&note), now, |row| {
            row.cancel_requested_at = None;
        });
        Some(resuming.at_once(now))
    }

    /// The provider refused the resumption, or did not comply in time: the mandate stays cancelled.
    pub(super) fn resume_failed(self, now: Timestamp) -> Mandate {
        let note = Some("not resumed");
        self.enter(MandateState::CancelAtEnd, note, now, |row| {
            row.cancel_requested_at = Some(now);
        })
    }

    /// The owner or an operator has requested cancellation for good; `None` without a mandate to cancel.
    pub(super) fn cancelled(self, now: Timestamp) -> Option<Mandate> {
        use MandateState::{
            Active, Agreed, CancelAtEnd, CancelPending, Created, Dropped, Duplicate, Open, Over,
            Resuming,
        };
        let state = match self.state {
            Active | CancelAtEnd | Resuming | CancelPending => CancelPending,
            // Suspended by the provider, which may resume.
            _ if is_stopped(&self) => CancelPending,
            // No charge is paid: later charges are refunded.
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

    /// No attempt was made. `at`: the next attempt, if different from the schedule.
    pub(super) fn unchanged(self, at: Option<Timestamp>, now: Timestamp) -> Mandate {
        let next = |row: &MandateRow| at.or_else(|| schedule::next(row, now));
        Mandate(self.0.next_attempt(now, next))
    }

    /// Reconciliation failed, and is tried again.
    pub(super) fn retries(self, now: Timestamp) -> Mandate {
        Mandate(self.0.attempted(now, |row| schedule::retry(row, now)))
    }

    /// The mandate needs manual resolution.
    pub(super) fn stuck(self, why: &str, now: Timestamp) -> Mandate {
        Mandate(self.0.stuck(why, now, schedule::stuck(now)))
    }

    /// The part that replaces the stored version.
    pub(super) fn part(&self) -> Part {
        self.0.part()
    }

    /// The row after the commit of its part.
    pub(super) fn written(self) -> Mandate {
        Mandate(self.0.written())
    }

    pub(super) fn into_row(self) -> MandateRow {
        self.0.into_row()
    }

    /// Work for the provider is due at once.
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
mod tests;
