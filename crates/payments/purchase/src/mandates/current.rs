//! Which mandate of an account counts, and whether a subscription is paid by it.

use tollgate_store::{MandatePart, MandateRow, MandateState, Part, Route, SubscriptionRow};

/// The current mandate among all of an account, given newest first.
pub fn current_mandate(rows: Vec<MandateRow>) -> Option<MandateRow> {
    let rank = |row: &MandateRow| match row.state {
        MandateState::Active | MandateState::Agreed | MandateState::Resuming => 0,
        MandateState::Open | MandateState::Created => 1,
        MandateState::CancelPending | MandateState::CancelAtEnd => 2,
        MandateState::Ended => 3,
        _ => 4,
    };
    rows.into_iter().min_by_key(rank)
}

pub(super) fn part(part: MandatePart) -> Part {
    Part::Mandate(Box::new(part))
}

/// Whether a subscription is paid by this mandate.
pub(crate) fn is_own(subscription: &SubscriptionRow, row: &MandateRow) -> bool {
    subscription.route == Route::PayPal
        && row.provider_ref.as_deref() == Some(&*subscription.reference)
}
