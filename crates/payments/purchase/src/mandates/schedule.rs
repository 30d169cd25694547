//! Reconciliation schedule of mandates: exponential backoff with jitter, by state. Notifications only bring it forward.

use std::time::Duration;

use tollgate_clock::{Backoff, Jitter, Timestamp};
use tollgate_store::{MandateRow, MandateState};

use super::decide::{SUSPENDED, was_resumed_recently};
use super::mandate::resumable_until;

const SECOND: Duration = Duration::from_secs(1);
const MINUTE: Duration = Duration::from_mins(1);
const HOUR: Duration = Duration::from_hours(1);
pub(super) const DAY: Duration = days(1);

/// Interval of reconciliation for a charge that waits for a signed transfer.
pub(super) const TRANSFER_WAIT: Duration = Duration::from_secs(10);

/// Wait of a charge for an expired signed transfer. A late settlement of the transfer still adds its days.
pub(super) const TRANSFER_GRACE: Duration = Duration::from_mins(10);

/// Interval until a mandate that the provider reported as unknown is read again.
pub(super) const GONE_CONFIRM_INTERVAL: Duration = Duration::from_hours(3);

/// Time a subscription is offered to the buyer. Afterwards a last reconciliation follows, and a new subscription is created.
pub const RECURRING_OFFERED: Duration = Duration::from_hours(3);

/// Age at which an offer without consent is dropped.
pub(super) const DROP_AGE: Duration = days(3);

/// Age after which a dropped offer can no longer be agreed to, as far as known.
pub(super) const OVER_AGE: Duration = days(31);

/// Time before the end of the paid period with hourly reconciliation.
const NEAR_END: Duration = days(2);

/// Times after the last payment at which an ended mandate is checked for refunds. A buyer can open a dispute for 180 days.
const AFTER_PAYMENT: [Duration; 5] = [days(7), days(32), days(60), days(100), days(181)];

/// Reconciliations of an ended mandate, with doubling intervals: ten days in total.
const OVER_ATTEMPTS_MAX: u32 = 8;

/// Attempts to wait for a reported payment to be listed.
pub(super) const LISTING_ATTEMPTS_MAX: u32 = 20;

/// Time after the last payment with daily reconciliation of a suspended mandate.
const SUSPENDED_WATCH: Duration = days(181);

pub(super) const fn days(days: u64) -> Duration {
    Duration::from_hours(24 * days)
}

/// The next attempt after a reconciliation; `None` when no change is expected any more.
pub(super) fn next(row: &MandateRow, now: Timestamp) -> Option<Timestamp> {
    let wait = match row.state {
        // The buyer retries, or the row is over.
        MandateState::Created => return Some(row.created_at + RECURRING_OFFERED),
        MandateState::Open if now.duration_since(row.created_at) < RECURRING_OFFERED => {
            doubled(row, 15 * SECOND, 10 * MINUTE)
        }
        MandateState::Open => HOUR,
        MandateState::Agreed => doubled(row, 5 * SECOND, HOUR),
        MandateState::Active => {
            let near = row.paid_until.unwrap_or(now) - NEAR_END;
            match row.advanced_for.is_some() || near <= now || was_resumed_recently(row, now) {
                // A payment reported but not listed, a due charge, or a suspension that may still take effect.
                true => doubled(row, MINUTE, HOUR),
                false => DAY.min(near.duration_since(now)),
            }
        }
        MandateState::CancelPending | MandateState::Duplicate | MandateState::Resuming => {
            doubled(row, 2 * SECOND, HOUR)
        }
        MandateState::CancelAtEnd => match resumable_until(row).filter(|until| now < *until) {
            Some(until) => doubled(row, 2 * SECOND, DAY).min(until.duration_since(now)),
            None => doubled(row, 2 * SECOND, HOUR),
        },
        MandateState::Dropped => DAY,
        MandateState::Ended => {
            // A payment is reported but not listed yet.
            if row.advanced_for.is_some() && row.attempts < LISTING_ATTEMPTS_MAX {
                return Some(now + doubled(row, MINUTE, DAY));
            }
            // A payment that was only reported, or only agreed to, may be listed later.
            let paid_at = row.paid_at.or(row.advanced_for).or(row.agreed_at)?;
            // The paid period has not ended, or the provider may resume the mandate.
            let runs = row.paid_until.is_some_and(|until| now < until);
            let is_stopped =
                row.note.as_deref() == Some(SUSPENDED) && now < paid_at + SUSPENDED_WATCH;
            if runs || is_stopped {
                return Some(now + DAY);
            }
            return AFTER_PAYMENT
                .iter()
                .map(|after| paid_at + *after)
                .find(|at| *at > now);
        }
        // A charge may be listed late.
        MandateState::Over if row.provider_ref.is_some() && row.attempts < OVER_ATTEMPTS_MAX => {
            doubled(row, HOUR, 8 * DAY)
        }
        _ => return None,
    };
    Some(now + wait)
}

/// The next attempt after a failed reconciliation.
pub(super) fn retry(row: &MandateRow, now: Timestamp) -> Option<Timestamp> {
    Some(now + doubled(row, 2 * SECOND, 15 * MINUTE))
}

/// The next attempt for a mandate in need of manual resolution, in case the cause disappears.
pub(super) fn stuck(now: Timestamp) -> Option<Timestamp> {
    Some(now + DAY)
}

fn doubled(row: &MandateRow, base: Duration, max: Duration) -> Duration {
    let backoff = Backoff {
        base,
        max,
        jitter: Jitter::Shorter(8),
    };
    backoff.derived(row.attempts, row.id)
}
