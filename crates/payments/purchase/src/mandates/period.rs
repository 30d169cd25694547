//! The period paid by a charge, in calendar months as counted by the provider.

use std::time::Duration;

use jiff::ToSpan;
use jiff::tz::TimeZone;
use tollgate_clock::Timestamp;
use tollgate_store::{MandateRow, Route};

use super::recurring::{Charge, ChargeStatus};
use super::schedule::{DAY, days};

/// Access after the due time of the next charge, so that a slightly late charge interrupts no access.
const GRACE: Duration = DAY;

/// Charges closer together than this pay for one month. The provider retries a failed charge for ten days; the next charge keeps its due
/// time.
const NEAR: Duration = days(15);

/// The end of the period paid by a charge: the time of the next charge, made or due, plus a day.
///
/// The provider may report a charge before computing the next due time; then one calendar month counts.
pub(super) fn end<T>(
    charge: &Charge,
    charges: &[(Charge, T)],
    next_charge: Option<Timestamp>,
) -> Timestamp {
    let later = charges
        .iter()
        .map(|(charge, _)| charge)
        .filter(|one| one.status != ChargeStatus::Declined)
        .map(|one| one.at)
        .chain(next_charge)
        .filter(|at| *at > charge.at && !is_same(*at, charge.at))
        .min();
    let month = month_after(charge.at);
    // Bounded: never much more than a month.
    later.map_or(month, |at| at.min(month + NEAR)) + GRACE
}

/// The end of a subscription or a payment without the unpaid day of grace. A transfer (x402) has no such day.
pub fn without_grace(route: Route, end: Timestamp) -> Timestamp {
    match route {
        Route::X402 => end,
        _ => end - GRACE,
    }
}

/// When the next charge is due, after the paid period.
pub(super) fn due(row: &MandateRow) -> Option<Timestamp> {
    row.paid_until.map(|until| until - GRACE)
}

/// Whether two times, read from two places, belong to one payment.
pub(super) fn is_same(one: Timestamp, other: Timestamp) -> bool {
    one.abs_diff(other) < NEAR
}

/// Whether a charge was made for a paid month.
pub(super) fn is_second(row: &MandateRow, charge: &Charge) -> bool {
    let (Some(paid_at), Some(paid_until)) = (row.paid_at, row.paid_until) else {
        return false;
    };
    charge.at >= paid_at
        && is_same(charge.at, paid_at)
        && paid_until.duration_since(charge.at) > NEAR
}

/// This day of the next month, or the last day of a shorter month.
pub(super) fn month_after(at: Timestamp) -> Timestamp {
    let month = jiff::Timestamp::from(at)
        .to_zoned(TimeZone::UTC)
        .checked_add(1.month());
    // Beyond the calendar.
    month.map_or(at + days(31), |then| then.timestamp().into())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(text: &str) -> Timestamp {
        Timestamp::from_rfc3339(text).expect("a time")
    }

    fn charge(text: &str) -> Charge {
        Charge {
            id: String::from("T"),
            status: ChargeStatus::Completed,
            amount: None,
            at: at(text),
        }
    }

    #[test]
    fn a_charge_pays_until_the_day_after_the_next_one_is_due() {
        let paid = charge("2027-01-31T10:00:00Z");
        for (next, expected) in [
            (Some("2027-02-28T10:00:00Z"), "2027-03-01T10:00:00Z"),
            // Next due time not computed yet, or nothing is due any more.
            (Some("2027-01-31T10:00:00Z"), "2027-03-01T10:00:00Z"),
            (Some("2027-01-21T10:00:00Z"), "2027-03-01T10:00:00Z"),
            (None, "2027-03-01T10:00:00Z"),
            // Paid ten days late: the next due time does not move.
            (Some("2027-02-21T10:00:00Z"), "2027-02-22T10:00:00Z"),
        ] {
            let end = end::<()>(&paid, &[], next.map(at));
            assert_eq!(end.rfc3339(), expected, "next: {next:?}");
        }
    }

    #[test]
    fn a_charge_that_was_missed_pays_until_the_one_after_it() {
        let first = charge("2027-01-05T00:00:00Z");
        let second = charge("2027-02-05T00:00:00Z");
        let both = [(first.clone(), ()), (second.clone(), ())];
        let next = Some(at("2027-03-05T00:00:00Z"));
        assert_eq!(end(&first, &both, next), at("2027-02-06T00:00:00Z"));
        assert_eq!(end(&second, &both, next), at("2027-03-06T00:00:00Z"));
    }

    #[test]
    fn months_are_the_calendars() {
        for (from, to) in [
            ("2027-01-31T00:00:00Z", "2027-02-28T00:00:00Z"),
            ("2028-01-31T00:00:00Z", "2028-02-29T00:00:00Z"),
            ("2027-12-15T12:00:00Z", "2028-01-15T12:00:00Z"),
        ] {
            assert_eq!(month_after(at(from)), at(to), "{from}");
        }
    }
}
