//! When a purchase is looked at again by itself. Bells only make it sooner.

use std::time::Duration;

use tollgate_store::{TopUpRow, TopUpState};

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
const DAY: i64 = 24 * HOUR;

/// How long a buyer is sent to the provider with one order: PayPal gives three hours from making an order to sending the buyer there
/// (Orders v2, `order.links`).
pub const OFFERED: Duration = Duration::from_secs(3 * 3600);

/// Time after which an order that nobody agreed to is over: three hours to get there, and three to agree.
pub(super) const EXPIRES: i64 = 6 * HOUR;

/// Times after a payment at which it is looked at for money that went back, should the notice of it have been lost. A buyer can
/// object for 180 days.
const AFTER_PAYMENT: [i64; 5] = [DAY, 7 * DAY, 30 * DAY, 90 * DAY, 181 * DAY];

/// The next look at a purchase that was looked at just now; `None` when nothing is expected any more.
pub(super) fn next(row: &TopUpRow, now: i64) -> Option<i64> {
    let wait = match row.state {
        // The buyer tries again, or it is over.
        TopUpState::Created => return Some(row.created_at + EXPIRES),
        TopUpState::Open => doubled(15 * SECOND, row.attempts, 10 * MINUTE),
        TopUpState::Capturing => doubled(2 * SECOND, row.attempts, 15 * MINUTE),
        TopUpState::Pending => doubled(MINUTE, row.attempts, 6 * HOUR),
        // Credits are owed: they come free when what holds them ends, or come in with the next purchase.
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

/// The next look at a purchase that could not be looked at.
pub(super) fn retry(row: &TopUpRow, now: i64) -> Option<i64> {
    Some(now + doubled(2 * SECOND, row.attempts, 15 * MINUTE))
}

/// The next look at a purchase that only a person can put right; still looked at, in case it puts itself right.
pub(super) fn stuck(now: i64) -> Option<i64> {
    Some(now + DAY)
}

fn doubled(first: i64, times: u32, most: i64) -> i64 {
    first.saturating_mul(1 << times.min(20)).min(most)
}
