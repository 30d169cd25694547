//! Reconciliation schedule of credit purchases: exponential backoff with jitter, by state. Notifications only bring it forward.

use std::time::Duration;

use tollgate_clock::{Backoff, Jitter, Timestamp};
use tollgate_store::{TopUpRow, TopUpState};

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
const DAY: Duration = days(1);

/// How long an order is offered to the buyer: PayPal gives three hours from creating an order to sending the buyer there (Orders v2,
/// `order.links`).
pub const OFFERED: Duration = Duration::from_secs(3 * 3600);

/// Age after which an order without approval fails: three hours to reach the provider, and three to approve.
pub(super) const EXPIRES: Duration = Duration::from_hours(6);

/// Times of checks for refunds, after the payment, in case a notification was lost. A buyer can open a dispute for 180 days.
const AFTER_PAYMENT: [Duration; 5] = [DAY, days(7), days(30), days(90), days(181)];

const fn days(days: u64) -> Duration {
    Duration::from_hours(24 * days)
}

/// The next attempt after a reconciliation; `None` when no change is expected any more.
pub(super) fn next(row: &TopUpRow, now: Timestamp) -> Option<Timestamp> {
    let wait = match row.state {
        // The buyer retries, or the row is over.
        TopUpState::Created => return Some(row.created_at + EXPIRES),
        TopUpState::Open => doubled(row, 15 * SECOND, 10 * MINUTE),
        TopUpState::Capturing => doubled(row, 2 * SECOND, 15 * MINUTE),
        TopUpState::Pending => doubled(row, MINUTE, 6 * HOUR),
        // Owed credits become available when a hold ends or with the next purchase.
        TopUpState::Captured if row.owed.is_positive() => doubled(row, MINUTE, DAY),
        TopUpState::Captured => {
            let next = AFTER_PAYMENT
                .iter()
                .map(|after| row.created_at + *after)
                .find(|at| *at > now);
            return next;
        }
        _ => return None,
    };
    Some(now + wait)
}

/// The next attempt after a failed reconciliation.
pub(super) fn retry(row: &TopUpRow, now: Timestamp) -> Option<Timestamp> {
    Some(now + doubled(row, 2 * SECOND, 15 * MINUTE))
}

/// The next attempt for a purchase in need of manual resolution, in case the cause disappears.
pub(super) fn stuck(now: Timestamp) -> Option<Timestamp> {
    Some(now + DAY)
}

fn doubled(row: &TopUpRow, base: Duration, max: Duration) -> Duration {
    let backoff = Backoff {
        base,
        max,
        jitter: Jitter::Shorter(8),
    };
    backoff.derived(row.attempts, row.id)
}
