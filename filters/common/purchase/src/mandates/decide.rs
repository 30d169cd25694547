//! What a subscription and its charges say about the mandate they belong to: no I/O, no clock.

use tollgate_money::Usd;
use tollgate_store::{MandateRow, MandateState};

use super::period;
use super::recurring::{Charge, ChargeStatus, Seen, Status};
use super::schedule::{FORGOTTEN, GIVEN_UP, LISTED_LATE};

/// What the books have of a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Noted {
    /// Nothing.
    New,
    /// It bought a period.
    Kept,
    /// It did, and the period was taken away.
    TakenBack,
}

/// What the account's plan runs by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Runs {
    /// It does not run.
    Not,
    /// This mandate.
    Own,
    /// Another way of paying, or another mandate.
    Other,
}

/// All that is known when it is decided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Known<'a> {
    pub(super) row: &'a MandateRow,
    pub(super) seen: &'a Seen,
    /// The oldest first.
    pub(super) charges: &'a [(Charge, Noted)],
    pub(super) runs: Runs,
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
pub(super) enum Finding {
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
    Unwanted(&'static str),
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
const SURPLUS: &str = "surplus";

/// Compares a mandate with its subscription and its charges. Money that has moved comes before everything else.
pub(super) fn decide(known: &Known<'_>) -> Finding {
    let Known { row, seen, .. } = *known;
    if seen.mandate.as_deref() != Some(&*row.id.to_string()) {
        return Finding::Stuck("the subscription says that it is for another mandate");
    }
    let gone = |charge: &Charge| {
        matches!(
            charge.status,
            ChargeStatus::Returned | ChargeStatus::Declined
        )
    };
    let mut kept = known.charges.iter().filter(|one| one.1 == Noted::Kept);
    if let Some((charge, _)) = kept.find(|(charge, _)| gone(charge)) {
        return Finding::Returned(charge.clone());
    }
    if row.state == MandateState::Surplus {
        return surplus(known);
    }
    let is_other = seen.is_changed || *seen.plan_id != *row.plan_id;
    if let Some(finding) = charged(known, is_other) {
        return finding;
    }
    if is_other
        && matches!(
            seen.status,
            Status::Approved | Status::Active | Status::Suspended
        )
    {
        return Finding::Unwanted("its terms are not those that were agreed");
    }
    match seen.status {
        Status::Waiting => waiting(known),
        Status::Approved if !known.has_activated => match known.runs {
            Runs::Other => Finding::Unwanted("the plan runs by another way"),
            _ => Finding::Activate,
        },
        Status::Approved => Finding::Wait,
        Status::Active => active(known),
        Status::Suspended => suspended(known),
        Status::Cancelled => ended(known, "cancelled"),
        Status::Expired => ended(known, "expired"),
    }
}

impl Known<'_> {
    /// Charges that the books know nothing of.
    fn new_charges(&self, status: ChargeStatus) -> impl Iterator<Item = &Charge> {
        self.charges
            .iter()
            .filter(move |(charge, noted)| *noted == Noted::New && charge.status == status)
            .map(|(charge, _)| charge)
    }

    pub(super) fn is_on_its_way(&self) -> bool {
        self.new_charges(ChargeStatus::Pending).next().is_some()
    }

    /// Charges whose money is here, which have bought nothing and were not asked to be given back in this look.
    fn open_charges(&self) -> impl Iterator<Item = &Charge> {
        self.new_charges(ChargeStatus::Completed)
            .filter(|charge| !self.refunds.contains(&charge.id))
    }

    /// Whether a charge from before the last one that bought a month is the second for a month that another one has bought: it would have
    /// gone back then, and the provider did not do it.
    fn is_beside_older(&self, charge: &Charge) -> bool {
        let is_older = self.row.paid_at.is_some_and(|paid| charge.at < paid);
        let mut kept = self.charges.iter().filter(|one| one.1 == Noted::Kept);
        is_older && kept.any(|(one, _)| period::is_same(one.at, charge.at))
    }

    /// Whether the plan may begin at any moment by a transfer that is under way.
    fn is_held(&self) -> bool {
        self.has_transfer && self.runs == Runs::Not
    }
}

/// What becomes of money that is here. What buys a month comes before what goes back, so that a refund that is refused is in nobody's way.
fn charged(known: &Known<'_>, is_other: bool) -> Option<Finding> {
    use MandateState::{Created, Dropped, Ended, Open, Over};
    let Known { row, seen, .. } = *known;
    let first = known.open_charges().next()?;
    let was_unwanted = matches!(row.state, Ended | Over) && row.note.as_deref() == Some(SURPLUS);
    if is_other
        || known
            .open_charges()
            .any(|charge| charge.amount != Some(row.price))
    {
        return Some(Finding::Unwanted(
            "it charges another price than was agreed",
        ));
    }
    if was_unwanted {
        return Some(Finding::Unwanted("it was not wanted before"));
    }
    if known.runs == Runs::Other {
        return Some(Finding::Unwanted("the plan runs by another way"));
    }
    let goes_back = |charge: &&Charge| {
        row.left_at.is_some_and(|left| charge.at > left)
            || period::is_second(row, charge)
            || known.is_beside_older(charge)
    };
    let Some(charge) = known.open_charges().find(|charge| !goes_back(charge)) else {
        return Some(Finding::Refund(first.clone()));
    };
    Some(match row.state {
        Created | Open | Dropped | Over if known.is_held() => Finding::Agreed,
        _ if known.is_held() => Finding::Held,
        _ => Finding::Pay {
            charge: charge.clone(),
            until: period::end(charge, known.charges, seen.next_charge),
        },
    })
}

fn surplus(known: &Known<'_>) -> Finding {
    let runs = matches!(
        known.seen.status,
        Status::Approved | Status::Active | Status::Suspended
    );
    if runs && !known.has_cancelled {
        return Finding::Cancel;
    }
    if let Some(charge) = known.open_charges().next() {
        return Finding::Refund(charge.clone());
    }
    let is_here = known.new_charges(ChargeStatus::Completed).next().is_some();
    let is_told = told(known).is_some() && known.row.looks < LISTED_LATE;
    if runs || is_here || known.is_on_its_way() || is_told {
        return Finding::Wait;
    }
    match known.seen.status {
        // It cannot be ended before the buyer has agreed to it.
        Status::Waiting => Finding::Dropped,
        _ if known.row.payment.is_some() => Finding::Ended(SURPLUS),
        _ => Finding::Over(SURPLUS),
    }
}

fn waiting(known: &Known<'_>) -> Finding {
    let age = known.now - known.row.created_at;
    match known.row.state {
        MandateState::Open if age >= GIVEN_UP => Finding::Dropped,
        MandateState::Dropped if age >= FORGOTTEN => Finding::Over("never agreed to"),
        // Whatever was seen before stays true: the provider has not caught up with itself.
        _ => Finding::Wait,
    }
}

fn active(known: &Known<'_>) -> Finding {
    use MandateState::{Active, Agreed, Created, Dropped, Ended, Leaving, Open, Over};
    let row = known.row;
    match row.state {
        Leaving if known.has_cancelled => Finding::Wait,
        Leaving => Finding::Cancel,
        _ if known.runs == Runs::Other => Finding::Unwanted("the plan runs by another way"),
        _ => match unlisted(known) {
            Some(time) if !known.is_held() => Finding::Advance(time),
            _ => match row.state {
                Created | Open | Dropped | Over => Finding::Agreed,
                Ended => Finding::Resumed,
                // It is tried again: who waits for it is told so.
                Agreed if is_past_due(row) && known.is_on_its_way() => Finding::Agreed,
                Agreed if known.is_on_its_way() => Finding::Wait,
                Active | Agreed if is_failing(known) && !is_past_due(row) => Finding::PastDue,
                Agreed | Active | _ => Finding::Wait,
            },
        },
    }
}

/// The time of a payment that the provider tells of, which no charge in its list is, and for which nothing has been given yet.
fn unlisted(known: &Known<'_>) -> Option<i64> {
    let given = known.row.advanced_for;
    told(known).filter(|at| !given.is_some_and(|given| period::is_same(given, *at)))
}

/// The same, whether or not something has been given for it.
fn told(known: &Known<'_>) -> Option<i64> {
    let (row, seen) = (known.row, known.seen);
    let (amount, at) = seen.last_payment?;
    let is_paid = amount == Some(row.price) && seen.outstanding == Some(Usd::ZERO);
    let is_listed = known
        .charges
        .iter()
        .any(|(charge, _)| period::is_same(charge.at, at));
    // Seen from the other side, should the list be empty altogether.
    let is_known = row.paid_at.is_some_and(|paid| period::is_same(paid, at));
    let is_old = row.paid_at.is_some_and(|paid| at < paid);
    (is_paid && !is_listed && !is_known && !is_old).then_some(at)
}

fn is_failing(known: &Known<'_>) -> bool {
    known
        .seen
        .failed_at
        .is_some_and(|failed| known.row.paid_at.is_none_or(|paid| failed > paid))
}

fn suspended(known: &Known<'_>) -> Finding {
    use MandateState::{Active, Ended, Leaving};
    match known.row.state {
        Leaving if known.has_cancelled => Finding::Wait,
        Leaving => Finding::Cancel,
        Active => Finding::Ended(SUSPENDED),
        Ended => Finding::Wait,
        _ => Finding::Unwanted("it was stopped before anything was paid"),
    }
}

fn ended(known: &Known<'_>, why: &'static str) -> Finding {
    use MandateState::{Active, Ended, Leaving, Over};
    match known.row.state {
        Active | Leaving => Finding::Ended(why),
        // It may not come to life again.
        Ended if known.row.note.as_deref() == Some(SUSPENDED) => Finding::Ended(why),
        Ended | Over => Finding::Wait,
        // What is on its way still buys a period, or fails.
        _ if known.is_on_its_way() => Finding::Wait,
        _ if known.runs == Runs::Other => Finding::Unwanted("the plan runs by another way"),
        _ => match unlisted(known) {
            Some(_) if known.is_held() => Finding::Held,
            Some(time) => Finding::Advance(time),
            None => Finding::Over(why),
        },
    }
}
