//! Decision table of mandate reconciliation: the next action, given the stored mandate, its subscription and its charges. No I/O, no clock.

use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::Usd;
use tollgate_store::{MandateRow, MandateState};

use super::mandate::resumable_until;
use super::period;
use super::recurring::{Charge, ChargeStatus, ProviderSubscription, Status};
use super::schedule::{DROP_AGE, LISTING_ATTEMPTS_MAX, OVER_AGE};

/// Whether a charge is recorded in the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// Not recorded.
    New,
    /// Recorded; bought a period.
    Kept,
    /// Recorded; the period was taken away again.
    Reversed,
}

/// Source of the account's active plan.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanSource {
    /// The plan is not active.
    Inactive,
    /// This mandate.
    Own,
    /// Another route or another mandate.
    Other,
}

/// Inputs of a decision.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) row: &'a MandateRow,
    pub(super) seen: &'a ProviderSubscription,
    /// Oldest first.
    pub(super) charges: &'a [(Charge, Recorded)],
    pub(super) runs: PlanSource,
    /// Cancellation was requested at the provider in this reconciliation.
    pub(super) has_cancelled: bool,
    /// Activation was requested at the provider in this reconciliation.
    pub(super) has_activated: bool,
    /// Suspension was requested at the provider in this reconciliation.
    pub(super) has_suspended: bool,
    /// The provider refused, for good, suspension or activation in this reconciliation.
    pub(super) is_refused: bool,
    /// Charges with a refund request in this reconciliation.
    pub(super) refunds: &'a [String],
    /// A signed transfer of the account may still move money.
    pub(super) has_transfer: bool,
    pub(super) now: Timestamp,
}

/// The next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// None yet.
    Wait,
    /// The buyer has agreed; no charge is paid yet.
    Agreed,
    /// Request activation at the provider: the buyer has agreed, or the owner has resumed the mandate.
    Activate,
    /// Request suspension at the provider: the owner has cancelled with the end of the paid period.
    Suspend,
    /// Record the charge, which pays until `until`.
    Pay { charge: Charge, until: Timestamp },
    /// A charge buys the plan unless a pending signed transfer has bought the plan first; wait until the transfer is final.
    AwaitTransfer,
    /// A payment of this time is reported but not listed: grant one day provisionally.
    Advance(Timestamp),
    /// A charge with a bought period was refunded or reversed.
    Returned(Charge),
    /// Cancel the mandate as a duplicate, and refund every charge without a period.
    Duplicate(&'static str),
    /// Request cancellation at the provider.
    Cancel,
    /// Refund a charge.
    Refund(Charge),
    /// The last charge failed; the provider retries it.
    PastDue,
    /// The provider charges again after a suspension.
    Resumed,
    /// The owner has resumed the mandate a short time ago, after a node's suspension request: activate again.
    Reactivate,
    /// The owner has resumed the mandate; the provider refused to charge again, or did not comply in time.
    ResumeFailed,
    /// The provider charges no more; paid periods stay.
    Ended(&'static str),
    /// No longer offered.
    Dropped,
    /// Over without a recorded payment.
    Over(&'static str),
    /// An inconsistent state: change nothing and wait for manual resolution.
    Stuck(&'static str),
}

/// [`MandateRow::note`] of a mandate whose last charge failed.
pub(super) const PAST_DUE: &str = "past due";

/// The note of a mandate that the provider has suspended and may resume.
pub(super) const SUSPENDED: &str = "suspended";

/// Prefix of the note of a resumed mandate; the time of the resumption follows, in seconds.
const RESUMED: &str = "resumed ";

/// A suspension within this time after a resumption is attributed to the earlier cancellation: the requesting node may have stopped before
/// the confirmation. A later suspension comes from the provider or the merchant.
const LATE_SUSPENSION_WINDOW: Duration = Duration::from_hours(1);

/// The note of a mandate resumed by the owner now.
pub(super) fn resumed_note(now: Timestamp) -> String {
    format!("{RESUMED}{}", now.as_secs())
}

/// Whether the owner has resumed a mandate recently enough to attribute a suspension to the earlier cancellation.
pub(super) fn was_resumed_recently(row: &MandateRow, now: Timestamp) -> bool {
    let note = row.note.as_deref();
    let at = note.and_then(|note| note.strip_prefix(RESUMED)?.parse().ok());
    at.is_some_and(|at| now < Timestamp::from_secs(at) + LATE_SUSPENSION_WINDOW)
}

/// Whether the last charge of a mandate, possibly the first charge, failed. No charge is pending, and the provider may retry.
pub fn is_past_due(row: &MandateRow) -> bool {
    row.note.as_deref() == Some(PAST_DUE)
}

/// Whether the provider has suspended charging for a mandate, and may resume it.
pub fn is_stopped(row: &MandateRow) -> bool {
    row.state == MandateState::Ended && row.note.as_deref() == Some(SUSPENDED)
}

/// The note of a duplicate: charges found later are refunded too.
const DUPLICATE: &str = "surplus";

/// Compares a mandate with the subscription and charges. Completed charges take precedence.
pub(super) fn decide(facts: &Facts<'_>) -> Decision {
    let Facts { row, seen, .. } = *facts;
    if seen.mandate.as_deref() != Some(&*row.id.to_string()) {
        return Decision::Stuck("the subscription names another mandate");
    }
    let gone = |charge: &Charge| {
        matches!(
            charge.status,
            ChargeStatus::Returned | ChargeStatus::Declined
        )
    };
    let mut kept = facts.charges.iter().filter(|one| one.1 == Recorded::Kept);
    if let Some((charge, _)) = kept.find(|(charge, _)| gone(charge)) {
        return Decision::Returned(charge.clone());
    }
    if row.state == MandateState::Duplicate {
        return duplicate(facts);
    }
    let is_other = seen.is_changed || *seen.plan_id != *row.plan_id;
    if let Some(decision) = charged(facts, is_other) {
        return decision;
    }
    if is_other
        && matches!(
            seen.status,
            Status::Approved | Status::Active | Status::Suspended
        )
    {
        return Decision::Duplicate("its terms differ from those agreed to");
    }
    match seen.status {
        Status::Waiting => waiting(facts),
        Status::Approved if !facts.has_activated => match facts.runs {
            PlanSource::Other => Decision::Duplicate("the plan is active by another route"),
            _ => Decision::Activate,
        },
        Status::Approved => Decision::Wait,
        Status::Active => active(facts),
        Status::Suspended => suspended(facts),
        Status::Cancelled => ended(facts, "cancelled"),
        Status::Expired => ended(facts, "expired"),
    }
}

impl Facts<'_> {
    /// Charges without a record.
    fn new_charges(&self, status: ChargeStatus) -> impl Iterator<Item = &Charge> {
        self.charges
            .iter()
            .filter(move |(charge, noted)| *noted == Recorded::New && charge.status == status)
            .map(|(charge, _)| charge)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.new_charges(ChargeStatus::Pending).next().is_some()
    }

    /// Completed charges without a bought period and without a refund request in this reconciliation.
    fn open_charges(&self) -> impl Iterator<Item = &Charge> {
        self.new_charges(ChargeStatus::Completed)
            .filter(|charge| !self.refunds.contains(&charge.id))
    }

    /// Whether a charge older than the last recorded charge is a second charge for a paid month. The earlier refund request was not carried
    /// out by the provider.
    fn is_older_second(&self, charge: &Charge) -> bool {
        let is_older = self.row.paid_at.is_some_and(|paid| charge.at < paid);
        let mut kept = self.charges.iter().filter(|one| one.1 == Recorded::Kept);
        is_older && kept.any(|(one, _)| period::is_same(one.at, charge.at))
    }

    /// Whether a pending signed transfer may start the plan at any moment.
    fn awaits_transfer(&self) -> bool {
        self.has_transfer && self.runs == PlanSource::Inactive
    }
}

/// Decides on completed charges. Charges with a month to buy come before refunds, so that a refused refund does not block a purchase.
fn charged(facts: &Facts<'_>, is_other: bool) -> Option<Decision> {
    use MandateState::{Created, Dropped, Ended, Open, Over};
    let Facts { row, seen, .. } = *facts;
    let first = facts.open_charges().next()?;
    let was_duplicate = matches!(row.state, Ended | Over) && row.note.as_deref() == Some(DUPLICATE);
    if is_other
        || facts
            .open_charges()
            .any(|charge| charge.amount != Some(row.price))
    {
        return Some(Decision::Duplicate("its price differs from the agreed one"));
    }
    if was_duplicate {
        return Some(Decision::Duplicate("it was a duplicate before"));
    }
    if facts.runs == PlanSource::Other {
        return Some(Decision::Duplicate("the plan is active by another route"));
    }
    let is_refunded = |charge: &&Charge| {
        row.cancel_requested_at.is_some_and(|left| charge.at > left)
            || period::is_second(row, charge)
            || facts.is_older_second(charge)
    };
    let Some(charge) = facts.open_charges().find(|charge| !is_refunded(charge)) else {
        return Some(Decision::Refund(first.clone()));
    };
    Some(match row.state {
        Created | Open | Dropped | Over if facts.awaits_transfer() => Decision::Agreed,
        _ if facts.awaits_transfer() => Decision::AwaitTransfer,
        _ => Decision::Pay {
            charge: charge.clone(),
            until: period::end(charge, facts.charges, seen.next_charge),
        },
    })
}

fn duplicate(facts: &Facts<'_>) -> Decision {
    let runs = matches!(
        facts.seen.status,
        Status::Approved | Status::Active | Status::Suspended
    );
    if runs && !facts.has_cancelled {
        return Decision::Cancel;
    }
    if let Some(charge) = facts.open_charges().next() {
        return Decision::Refund(charge.clone());
    }
    let is_here = facts.new_charges(ChargeStatus::Completed).next().is_some();
    let is_reported =
        reported_payment(facts).is_some() && facts.row.attempts < LISTING_ATTEMPTS_MAX;
    if runs || is_here || facts.is_pending() || is_reported {
        return Decision::Wait;
    }
    match facts.seen.status {
        // The provider cannot cancel before the buyer's consent.
        Status::Waiting => Decision::Dropped,
        _ if facts.row.payment.is_some() => Decision::Ended(DUPLICATE),
        _ => Decision::Over(DUPLICATE),
    }
}

fn waiting(facts: &Facts<'_>) -> Decision {
    let age = facts.now.duration_since(facts.row.created_at);
    match facts.row.state {
        MandateState::Open if age >= DROP_AGE => Decision::Dropped,
        MandateState::Dropped if age >= OVER_AGE => Decision::Over("never agreed to"),
        // The provider is eventually consistent: an earlier, later state stays true.
        _ => Decision::Wait,
    }
}

/// A mandate cancelled by the owner is suspended, and thus not charged, until the paid period ends or another payment pays the plan.
fn cancelled_at_end(facts: &Facts<'_>) -> Decision {
    let is_over = resumable_until(facts.row).is_none_or(|until| facts.now >= until);
    let is_final = is_over
        || facts.runs == PlanSource::Other
        // No further charge is permitted: cancel when suspension is impossible.
        || (facts.has_suspended && facts.is_refused);
    match facts.seen.status {
        _ if is_final && !facts.has_cancelled => Decision::Cancel,
        Status::Active if !is_final && !facts.has_suspended => Decision::Suspend,
        _ => Decision::Wait,
    }
}

fn active(facts: &Facts<'_>) -> Decision {
    use MandateState::{
        Active, Agreed, CancelAtEnd, CancelPending, Created, Dropped, Ended, Open, Over, Resuming,
    };
    let row = facts.row;
    match row.state {
        CancelAtEnd => cancelled_at_end(facts),
        CancelPending if facts.has_cancelled => Decision::Wait,
        CancelPending => Decision::Cancel,
        _ if facts.runs == PlanSource::Other => {
            Decision::Duplicate("the plan is active by another route")
        }
        _ => match unlisted_payment(facts) {
            Some(time) if !facts.awaits_transfer() => Decision::Advance(time),
            _ => match row.state {
                Created | Open | Dropped | Over => Decision::Agreed,
                Ended | Resuming => Decision::Resumed,
                // The failed charge is being retried: clear the past-due note.
                Agreed if is_past_due(row) && facts.is_pending() => Decision::Agreed,
                Agreed if facts.is_pending() => Decision::Wait,
                Active | Agreed if is_failing(facts) && !is_past_due(row) => Decision::PastDue,
                Agreed | Active | _ => Decision::Wait,
            },
        },
    }
}

/// Time of a payment that the provider reports without a listed charge and without a grant so far.
fn unlisted_payment(facts: &Facts<'_>) -> Option<Timestamp> {
    let given = facts.row.advanced_for;
    reported_payment(facts).filter(|at| !given.is_some_and(|given| period::is_same(given, *at)))
}

/// Time of a reported payment without a listed charge, granted or not.
fn reported_payment(facts: &Facts<'_>) -> Option<Timestamp> {
    let (row, seen) = (facts.row, facts.seen);
    let (amount, at) = seen.last_payment?;
    let is_paid = amount == Some(row.price) && seen.outstanding == Some(Usd::ZERO);
    let is_listed = facts
        .charges
        .iter()
        .any(|(charge, _)| period::is_same(charge.at, at));
    // The stored payment is compared too, in case the list is empty.
    let is_known = row.paid_at.is_some_and(|paid| period::is_same(paid, at));
    let is_old = row.paid_at.is_some_and(|paid| at < paid);
    (is_paid && !is_listed && !is_known && !is_old).then_some(at)
}

fn is_failing(facts: &Facts<'_>) -> bool {
    facts
        .seen
        .failed_at
        .is_some_and(|failed| facts.row.paid_at.is_none_or(|paid| failed > paid))
}

fn suspended(facts: &Facts<'_>) -> Decision {
    use MandateState::{Active, CancelAtEnd, CancelPending, Ended, Resuming};
    match facts.row.state {
        CancelAtEnd => cancelled_at_end(facts),
        Resuming => resuming(facts),
        CancelPending if facts.has_cancelled => Decision::Wait,
        CancelPending => Decision::Cancel,
        Active if was_resumed_recently(facts.row, facts.now) => Decision::Reactivate,
        Active => Decision::Ended(SUSPENDED),
        Ended => Decision::Wait,
        _ => Decision::Duplicate("it was suspended before its first payment"),
    }
}

/// The owner has resumed the mandate in the paid period. After the end of the period the owner no longer expects a charge, so no charge is
/// made.
fn resuming(facts: &Facts<'_>) -> Decision {
    let is_late = facts.row.paid_until.is_none_or(|until| facts.now >= until);
    match facts.runs {
        PlanSource::Other => Decision::Duplicate("the plan is active by another route"),
        _ if is_late || facts.is_refused => Decision::ResumeFailed,
        _ if facts.has_activated => Decision::Wait,
        _ => Decision::Activate,
    }
}

fn ended(facts: &Facts<'_>, why: &'static str) -> Decision {
    use MandateState::{Active, CancelAtEnd, CancelPending, Ended, Over, Resuming};
    match facts.row.state {
        Active | CancelAtEnd | CancelPending | Resuming => Decision::Ended(why),
        // Resumption is no longer possible.
        Ended if facts.row.note.as_deref() == Some(SUSPENDED) => Decision::Ended(why),
        Ended | Over => Decision::Wait,
        // A pending charge still buys a period, or fails.
        _ if facts.is_pending() => Decision::Wait,
        _ if facts.runs == PlanSource::Other => {
            Decision::Duplicate("the plan is active by another route")
        }
        _ => match unlisted_payment(facts) {
            Some(_) if facts.awaits_transfer() => Decision::AwaitTransfer,
            Some(time) => Decision::Advance(time),
            None => Decision::Over(why),
        },
    }
}
