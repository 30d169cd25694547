//! Selects the current mandate of an account, and tells whether a mandate pays a subscription.

use tollgate_store::{MandatePart, MandateRow, MandateState, Part, Route, SubscriptionRow};

/// The current mandate of an account; `rows` newest first.
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

/// Whether this mandate pays the subscription.
pub(crate) fn is_own(subscription: &SubscriptionRow, row: &MandateRow) -> bool {
    subscription.route == Route::PayPal
        && row.provider_ref.as_deref() == Some(&*subscription.reference)
}
