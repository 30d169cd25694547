//! Reconciliation schedule of credit purchases: exponential backoff by state. Notifications only bring it forward.

use std::time::Duration;

use tollgate_store::{TopUpRow, TopUpState};

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// How long an order is offered to the buyer: PayPal gives three hours from creating an order to sending the buyer there (Orders v2,
/// `order.links`).
pub const OFFERED: Duration = Duration::from_secs(3 * 3600);

/// Age after which an order that was not approved fails: three hours to reach the provider, and three to approve.
pub(super) const EXPIRES: i64 = 6 * HOUR;

/// Times after a payment at which it is checked for refunds, in case the notification was lost. A buyer can open a dispute for 180 days.
const AFTER_PAYMENT: [i64; 5] = [DAY, 7 * DAY, 30 * DAY, 90 * DAY, 181 * DAY];

/// The next attempt after a reconciliation; `None` when no change is expected any more.
pub(super) fn next(row: &TopUpRow, now: i64) -> Option<i64> {
    let wait = match row.state {
        // The buyer retries, or it is over.
        TopUpState::Created => return Some(row.created_at + EXPIRES),
        TopUpState::Open => doubled(15 * SECOND, row.attempts, 10 * MINUTE),
        TopUpState::Capturing => doubled(2 * SECOND, row.attempts, 15 * MINUTE),
        TopUpState::Pending => doubled(MINUTE, row.attempts, 6 * HOUR),
        // Owed credits become available when a hold ends or with the next purchase.
        TopUpState::Captured if row.owed.is_positive() => doubled(MINUTE, row.attempts, DAY),
        TopUpState::Captured => {
            let next = AFTER_PAYMENT
                .iter()
                .map(|after| row.created_at + after)
                .find(|at| *at > now);
            return next;
        }
        _ => return None,
    };
    Some(now + wait)
}

/// The next attempt after a failed reconciliation.
pub(super) fn retry(row: &TopUpRow, now: i64) -> Option<i64> {
    Some(now + doubled(2 * SECOND, row.attempts, 15 * MINUTE))
}

/// The next attempt for a purchase that needs manual resolution, in case it resolves itself.
pub(super) fn stuck(now: i64) -> Option<i64> {
    Some(now + DAY)
}

fn doubled(first: i64, times: u32, most: i64) -> i64 {
    first.saturating_mul(1 << times.min(20)).min(most)
}
