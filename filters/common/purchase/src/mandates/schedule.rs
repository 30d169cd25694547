//! When a mandate is looked at again by itself. Bells only make it sooner.

use std::time::Duration;

use tollgate_store::{MandateRow, MandateState};

use super::decide::SUSPENDED;

const SECOND: i64 = 1_000_000;
const MINUTE: i64 = 60 * SECOND;
const HOUR: i64 = 60 * MINUTE;
pub(super) const DAY: i64 = 24 * HOUR;

/// How soon a charge is looked at again that a signed transfer stands in the way of.
pub(super) const HELD: i64 = 10 * SECOND;

/// How long a buyer is sent to the provider with one subscription. After that the old one is read a last time, and another one made.
pub const RECURRING_OFFERED: Duration = Duration::from_secs(3 * 3600);

pub(super) const OFFERED: i64 = 3 * HOUR;

/// Time after which a subscription that nobody agreed to is no longer waited for.
pub(super) const GIVEN_UP: i64 = 3 * DAY;

/// Time after which nobody can agree to it any more, as far as we can tell.
pub(super) const FORGOTTEN: i64 = 31 * DAY;

/// How long before the end of what is paid for it is looked at each hour.
const NEAR_END: i64 = 2 * DAY;

/// Times after the last payment at which a mandate that has ended is looked at for money that went back. A buyer can object for 180 days.
const AFTER_PAYMENT: [i64; 5] = [7 * DAY, 32 * DAY, 60 * DAY, 100 * DAY, 181 * DAY];

/// Looks at a mandate that is over, each twice as long after the one before: ten days in all.
const AFTERWARDS: u32 = 8;

/// Looks that are waited for a payment that is told to be listed.
pub(super) const LISTED_LATE: u32 = 20;

/// How long after its last payment a mandate that the provider has stopped is looked at each day.
const WATCHED: i64 = 181 * DAY;

/// The next look at a mandate that was looked at just now; `None` when nothing is expected any more.
pub(super) fn next(row: &MandateRow, now: i64) -> Option<i64> {
    let wait = match row.state {
        // The buyer tries again, or it is over.
        MandateState::Created => return Some(row.created_at + OFFERED),
        MandateState::Open if now - row.created_at < OFFERED => {
            doubled(15 * SECOND, row.attempts, 10 * MINUTE)
        }
        MandateState::Open => HOUR,
        MandateState::Agreed => doubled(5 * SECOND, row.attempts, HOUR),
        MandateState::Active => {
            let near = row.paid_until.unwrap_or(now) - NEAR_END;
            match row.advanced_for.is_some() || near <= now {
                // A payment that is told and not listed yet, or a charge that is due.
                true => doubled(MINUTE, row.attempts, HOUR),
                false => DAY.min(near - now),
            }
        }
        MandateState::CancelPending | MandateState::Duplicate => {
            doubled(2 * SECOND, row.attempts, HOUR)
        }
        MandateState::Dropped => DAY,
        MandateState::Ended => {
            // A payment was told and is not listed yet.
            if row.advanced_for.is_some() && row.attempts < LISTED_LATE {
                return Some(now + doubled(MINUTE, row.attempts, DAY));
            }
            // What was only told or agreed to may be listed yet.
            let paid_at = row.paid_at.or(row.advanced_for).or(row.agreed_at)?;
            // What it has paid for still runs, or it may be started again at the provider's.
            let runs = row.paid_until.is_some_and(|until| now < until);
            let is_stopped = row.note.as_deref() == Some(SUSPENDED) && now < paid_at + WATCHED;
            if runs || is_stopped {
                return Some(now + DAY);
            }
            return AFTER_PAYMENT
                .iter()
                .map(|after| paid_at + after)
                .find(|at| *at > now);
        }
        // A charge may be listed late.
        MandateState::Over if row.provider_ref.is_some() && row.attempts < AFTERWARDS => {
            doubled(HOUR, row.attempts, 8 * DAY)
        }
        _ => return None,
    };
    Some(now + wait)
}

/// The next look at a mandate that could not be looked at.
pub(super) fn retry(row: &MandateRow, now: i64) -> Option<i64> {
    Some(now + doubled(2 * SECOND, row.attempts, 15 * MINUTE))
}

/// The next look at a mandate that only a person can put right; still looked at, in case it puts itself right.
pub(super) fn stuck(now: i64) -> Option<i64> {
    Some(now + DAY)
}

fn doubled(first: i64, times: u32, most: i64) -> i64 {
    first.saturating_mul(1 << times.min(20)).min(most)
}
