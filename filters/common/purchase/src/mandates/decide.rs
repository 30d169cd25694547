//! What a subscription and its charges say about the mandate they belong to: no I/O, no clock.

use tollgate_money::Usd;
use tollgate_store::{MandateRow, MandateState};

use super::period;
use super::recurring::{Charge, ChargeStatus, ProviderSubscription, Status};
use super::schedule::{FORGOTTEN, GIVEN_UP, LISTED_LATE};

/// What the books have of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recorded {
    /// Nothing.
    New,
    /// It bought a period.
    Kept,
    /// It did, and the period was taken away.
    Reversed,
}

/// What the account's plan runs by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PlanSource {
    /// It does not run.
    Inactive,
    /// This mandate.
    Own,
    /// Another way of paying, or another mandate.
    Other,
}

/// All that is known when it is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Facts<'a> {
    pub(super) row: &'a MandateRow,
    pub(super) seen: &'a ProviderSubscription,
    /// The oldest first.
    pub(super) charges: &'a [(Charge, Recorded)],
    pub(super) runs: PlanSource,
    /// The provider was asked in this look to end it.
    pub(super) has_cancelled: bool,
    /// The provider was asked in this look to start it.
    pub(super) has_activated: bool,
    /// Charges that the provider was asked in this look to give back.
    pub(super) refunds: &'a [String],
    /// A signed transfer of the account may still move money.
    pub(super) has_transfer: bool,
    pub(super) now: i64,
}

/// What there is to be done.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Decision {
    /// Nothing yet.
    Wait,
    /// The buyer has agreed, and nothing is paid yet.
    Agreed,
    /// The buyer has agreed, and the provider waits for us to say so.
    Activate,
    /// A charge bought the time until then.
    Pay { charge: Charge, until: i64 },
    /// A charge that buys the plan unless a signed transfer has bought it first; that has to be clear before.
    Held,
    /// A payment of that time is told and not listed: a day is given for it.
    Advance(i64),
    /// The money of a charge that bought a period went back.
    Returned(Charge),
    /// Nobody wants it: end it, and give back what it has taken for nothing.
    Duplicate(&'static str),
    /// Ask the provider to end it.
    Cancel,
    /// Give the money of a charge back.
    Refund(Charge),
    /// The last charge failed, and will be tried again.
    PastDue,
    /// It charges again after it had stopped.
    Resumed,
    /// It charges no more; what it has paid for stays.
    Ended(&'static str),
    /// It is no longer offered.
    Dropped,
    /// It is over, and nothing was kept.
    Over(&'static str),
    /// What must not be: nothing is done, and a person has to look.
    Stuck(&'static str),
}

/// What [`MandateRow::note`] says of a mandate whose last charge failed.
pub(super) const PAST_DUE: &str = "past due";

/// What it says of one that the provider has stopped and may start again.
pub(super) const SUSPENDED: &str = "suspended";

/// Whether the last charge of a mandate failed, the first one too: nothing is on its way, and the provider may try it again.
pub fn is_past_due(row: &MandateRow) -> bool {
    row.note.as_deref() == Some(PAST_DUE)
}

/// Whether the provider has stopped charging for a mandate, and may start again.
pub fn is_stopped(row: &MandateRow) -> bool {
    row.state == MandateState::Ended && row.note.as_deref() == Some(SUSPENDED)
}

/// What it says of one that nobody wanted: whatever it is still found to have charged goes back.
const DUPLICATE: &str = "surplus";

/// Compares a mandate with its subscription and its charges. Money that has moved comes before everything else.
pub(super) fn decide(facts: &Facts<'_>) -> Decision {
    let Facts { row, seen, .. } = *facts;
    if seen.mandate.as_deref() != Some(&*row.id.to_string()) {
        return Decision::Stuck("the subscription says that it is for another mandate");
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
        return Decision::Duplicate("its terms are not those that were agreed");
    }
    match seen.status {
        Status::Waiting => waiting(facts),
        Status::Approved if !facts.has_activated => match facts.runs {
            PlanSource::Other => Decision::Duplicate("the plan runs by another way"),
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
    /// Charges that the books know nothing of.
    fn new_charges(&self, status: ChargeStatus) -> impl Iterator<Item = &Charge> {
        self.charges
            .iter()
            .filter(move |(charge, noted)| *noted == Recorded::New && charge.status == status)
            .map(|(charge, _)| charge)
    }

    pub(super) fn is_pending(&self) -> bool {
        self.new_charges(ChargeStatus::Pending).next().is_some()
    }

    /// Charges whose money is here, which have bought nothing and were not calls to be given back in this look.
    fn open_charges(&self) -> impl Iterator<Item = &Charge> {
        self.new_charges(ChargeStatus::Completed)
            .filter(|charge| !self.refunds.contains(&charge.id))
    }

    /// Whether a charge from before the last one that bought a month is the second for a month that another one has bought: it would have
    /// gone back then, and the provider did not do it.
    fn is_beside_older(&self, charge: &Charge) -> bool {
        let is_older = self.row.paid_at.is_some_and(|paid| charge.at < paid);
        let mut kept = self.charges.iter().filter(|one| one.1 == Recorded::Kept);
        is_older && kept.any(|(one, _)| period::is_same(one.at, charge.at))
    }

    /// Whether the plan may begin at any moment by a transfer that is under way.
    fn is_held(&self) -> bool {
        self.has_transfer && self.runs == PlanSource::Inactive
    }
}

/// What becomes of money that is here. What buys a month comes before what goes back, so that a refund that is refused is in nobody's way.
fn charged(facts: &Facts<'_>, is_other: bool) -> Option<Decision> {
    use MandateState::{Created, Dropped, Ended, Open, Over};
    let Facts { row, seen, .. } = *facts;
    let first = facts.open_charges().next()?;
    let was_unwanted = matches!(row.state, Ended | Over) && row.note.as_deref() == Some(DUPLICATE);
    if is_other
        || facts
            .open_charges()
            .any(|charge| charge.amount != Some(row.price))
    {
        return Some(Decision::Duplicate(
            "it charges another price than was agreed",
        ));
    }
    if was_unwanted {
        return Some(Decision::Duplicate("it was not wanted before"));
    }
    if facts.runs == PlanSource::Other {
        return Some(Decision::Duplicate("the plan runs by another way"));
    }
    let goes_back = |charge: &&Charge| {
        row.cancel_requested_at.is_some_and(|left| charge.at > left)
            || period::is_second(row, charge)
            || facts.is_beside_older(charge)
    };
    let Some(charge) = facts.open_charges().find(|charge| !goes_back(charge)) else {
        return Some(Decision::Refund(first.clone()));
    };
    Some(match row.state {
        Created | Open | Dropped | Over if facts.is_held() => Decision::Agreed,
        _ if facts.is_held() => Decision::Held,
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
    let is_reported = reported_payment(facts).is_some() && facts.row.attempts < LISTED_LATE;
    if runs || is_here || facts.is_pending() || is_reported {
        return Decision::Wait;
    }
    match facts.seen.status {
        // It cannot be ended before the buyer has agreed to it.
        Status::Waiting => Decision::Dropped,
        _ if facts.row.payment.is_some() => Decision::Ended(DUPLICATE),
        _ => Decision::Over(DUPLICATE),
    }
}

fn waiting(facts: &Facts<'_>) -> Decision {
    let age = facts.now - facts.row.created_at;
    match facts.row.state {
        MandateState::Open if age >= GIVEN_UP => Decision::Dropped,
        MandateState::Dropped if age >= FORGOTTEN => Decision::Over("never agreed to"),
        // Whatever was seen before stays true: the provider has not caught up with itself.
        _ => Decision::Wait,
    }
}

fn active(facts: &Facts<'_>) -> Decision {
    use MandateState::{Active, Agreed, CancelPending, Created, Dropped, Ended, Open, Over};
    let row = facts.row;
    match row.state {
        CancelPending if facts.has_cancelled => Decision::Wait,
        CancelPending => Decision::Cancel,
        _ if facts.runs == PlanSource::Other => Decision::Duplicate("the plan runs by another way"),
        _ => match unlisted_payment(facts) {
            Some(time) if !facts.is_held() => Decision::Advance(time),
            _ => match row.state {
                Created | Open | Dropped | Over => Decision::Agreed,
                Ended => Decision::Resumed,
                // It is tried again: who waits for it is told so.
                Agreed if is_past_due(row) && facts.is_pending() => Decision::Agreed,
                Agreed if facts.is_pending() => Decision::Wait,
                Active | Agreed if is_failing(facts) && !is_past_due(row) => Decision::PastDue,
                Agreed | Active | _ => Decision::Wait,
            },
        },
    }
}

/// The time of a payment that the provider tells of, which no charge in its list is, and for which nothing has been given yet.
fn unlisted_payment(facts: &Facts<'_>) -> Option<i64> {
    let given = facts.row.advanced_for;
    reported_payment(facts).filter(|at| !given.is_some_and(|given| period::is_same(given, *at)))
}

/// The same, whether or not something has been given for it.
fn reported_payment(facts: &Facts<'_>) -> Option<i64> {
    let (row, seen) = (facts.row, facts.seen);
    let (amount, at) = seen.last_payment?;
    let is_paid = amount == Some(row.price) && seen.outstanding == Some(Usd::ZERO);
    let is_listed = facts
        .charges
        .iter()
        .any(|(charge, _)| period::is_same(charge.at, at));
    // ProviderSubscription from the other side, should the list be empty altogether.
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
    use MandateState::{Active, CancelPending, Ended};
    match facts.row.state {
        CancelPending if facts.has_cancelled => Decision::Wait,
        CancelPending => Decision::Cancel,
        Active => Decision::Ended(SUSPENDED),
        Ended => Decision::Wait,
        _ => Decision::Duplicate("it was stopped before anything was paid"),
    }
}

fn ended(facts: &Facts<'_>, why: &'static str) -> Decision {
    use MandateState::{Active, CancelPending, Ended, Over};
    match facts.row.state {
        Active | CancelPending => Decision::Ended(why),
        // It may not come to life again.
        Ended if facts.row.note.as_deref() == Some(SUSPENDED) => Decision::Ended(why),
        Ended | Over => Decision::Wait,
        // What is on its way still buys a period, or fails.
        _ if facts.is_pending() => Decision::Wait,
        _ if facts.runs == PlanSource::Other => Decision::Duplicate("the plan runs by another way"),
        _ => match unlisted_payment(facts) {
            Some(_) if facts.is_held() => Decision::Held,
            Some(time) => Decision::Advance(time),
            None => Decision::Over(why),
        },
    }
}
