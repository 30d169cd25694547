//! What a payment makes of a subscription. Pure: rows in, rows out.

use std::sync::Arc;

use tollgate_money::{AccountId, SubscriptionId, Usd};
use tollgate_store::{Route, SubscriptionRow, SubscriptionStatus};

use super::DAY;

/// A payment that has been made.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paid {
    /// Who gets the plan: the owner of the credential, never somebody named by the payment.
    pub account: AccountId,
    /// How it was paid.
    pub route: Route,
    /// What the route calls the payment. It counts once.
    pub payment: Arc<str>,
    /// What the subscription shows as its reference: the transaction, or the provider's own subscription.
    pub reference: Arc<str>,
    /// How much.
    pub amount: Usd,
    /// What it pays for.
    pub period: Period,
    /// Whether the one who took it has leave to charge for the next period.
    pub renews: bool,
    /// What the buyer is given as proof.
    pub receipt: Option<Arc<str>>,
    /// When it was made, Unix microseconds.
    pub at: i64,
}

/// What a payment pays for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// So many days, from now or from the end of what runs.
    Days(i64),
    /// The time until then, Unix microseconds.
    Until(i64),
}

/// What has become of the leave to charge again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// It runs.
    Runs,
    /// The last charge failed; it will be tried again.
    PastDue,
    /// It is over. What is paid for stays.
    Ends,
}

/// The time that a payment pays for, and the subscription with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extended {
    pub(super) row: SubscriptionRow,
    /// The paid time: begins, ends.
    pub(super) paid: (i64, i64),
}

/// A payment that the provider tells of and cannot show yet.
pub(super) struct ReportedPayment<'a> {
    pub(super) account: AccountId,
    pub(super) route: Route,
    pub(super) reference: &'a str,
    /// What is given for it meanwhile, Unix microseconds.
    pub(super) until: i64,
}

/// Gives a little time for it; `None` when the plan runs by another leave.
pub(super) fn advance(
    before: Option<&SubscriptionRow>,
    reported: &ReportedPayment<'_>,
    now: i64,
    new_id: SubscriptionId,
) -> Option<SubscriptionRow> {
    let is_own = |row: &&SubscriptionRow| {
        row.route == reported.route && *row.reference == *reported.reference
    };
    let version = before.map_or(0, |row| row.version + 1);
    if let Some(running) = before.filter(|row| row.is_active(now)) {
        let own = Some(running).filter(is_own)?;
        let mut row = own.clone();
        row.version = version;
        row.updated_at = now;
        row.period_end = row.period_end.max(reported.until);
        return Some(row);
    }
    let again = before.filter(is_own);
    Some(SubscriptionRow {
        id: again.map_or(new_id, |row| row.id),
        account: reported.account,
        route: reported.route,
        reference: Arc::from(reported.reference),
        status: SubscriptionStatus::Active,
        period_start: now.min(reported.until),
        period_end: reported.until,
        extra: 0,
        renews: true,
        version,
        created_at: again.map_or(now, |row| row.created_at),
        updated_at: now,
    })
}

/// Adds a payment at `now` to what an account has; `None` when the plan runs by another leave than the one that was charged: then the
/// money has to go back. A transfer never has to, since nobody could send it back: it adds its days to whatever runs.
pub(super) fn extend(
    before: Option<&SubscriptionRow>,
    paid: &Paid,
    now: i64,
    new_id: SubscriptionId,
) -> Option<Extended> {
    let running = before.filter(|row| row.is_active(now));
    let version = before.map_or(0, |row| row.version + 1);
    let Some(running) = running else {
        // Nothing runs: a new one. A time that is over before it is noted is noted all the same; money has moved for it.
        let start = match paid.period {
            Period::Days(_) => now,
            Period::Until(end) => paid.at.min(end),
        };
        let end = match paid.period {
            Period::Days(days) => start + days * DAY,
            Period::Until(end) => end,
        };
        // The same leave, charged again after a gap: still the same subscription to its owner.
        let again = before.filter(|row| row.route == paid.route && row.reference == paid.reference);
        return Some(Extended {
            row: SubscriptionRow {
                id: again.map_or(new_id, |row| row.id),
                account: paid.account,
                route: paid.route,
                reference: paid.reference.clone(),
                status: SubscriptionStatus::Active,
                period_start: start,
                period_end: end,
                extra: 0,
                renews: paid.renews,
                version,
                created_at: again.map_or(now, |row| row.created_at),
                updated_at: now,
            },
            paid: (start, end),
        });
    };
    let mut row = running.clone();
    row.version = version;
    row.updated_at = now;
    let own = row.route == paid.route && row.reference == paid.reference;
    let span = match paid.period {
        Period::Days(days) => {
            let span = days * DAY;
            let start = row.period_end;
            row.period_end += span;
            if row.renews {
                // The next charge comes when it comes; what it pays for begins then, and these days stand behind it.
                row.extra += span;
            } else {
                row.route = paid.route;
                row.reference = paid.reference.clone();
                row.renews = paid.renews;
            }
            (start, row.period_end)
        }
        Period::Until(_) if !own => return None,
        Period::Until(end) => {
            row.period_start = paid.at.min(end);
            // Of the days that a transfer has added, those that a late charge let pass are used up.
            row.extra = row
                .extra
                .min((running.period_end - row.period_start).max(0));
            row.period_end = row.period_end.max(end + row.extra).max(row.period_start);
            row.renews = paid.renews;
            (paid.at.min(end), end)
        }
    };
    row.status = SubscriptionStatus::Active;
    Some(Extended { row, paid: span })
}

/// Notes what has become of the leave called `reference`; `None` when that changes nothing.
pub(super) fn renewal(
    before: &SubscriptionRow,
    (route, reference): (Route, &str),
    renewal: Renewal,
    now: i64,
) -> Option<SubscriptionRow> {
    if before.route != route || *before.reference != *reference {
        return None;
    }
    let mut row = before.clone();
    let (status, renews) = match renewal {
        Renewal::Runs => (SubscriptionStatus::Active, true),
        Renewal::PastDue => (SubscriptionStatus::PastDue, true),
        // What was last heard stays: until the end it is paid for, and past due stays past due.
        Renewal::Ends => (row.status, false),
    };
    // Money that went back is not undone by a leave that still runs.
    if row.status != SubscriptionStatus::Canceled {
        row.status = status;
    }
    row.renews = renews;
    if row == *before {
        return None;
    }
    row.version += 1;
    row.updated_at = now;
    Some(row)
}

/// Takes the time away that a payment by `route` had paid for from `start` to `end`, as far as it still lies ahead.
pub(super) fn shorten(
    before: &SubscriptionRow,
    route: Route,
    (start, end): (i64, i64),
    now: i64,
) -> SubscriptionRow {
    let mut row = before.clone();
    row.version += 1;
    row.updated_at = now;
    let ahead = (end - start.max(now)).max(0);
    // At least to now: what is over cannot be taken back.
    let floor = row.period_end.min(now);
    let cut = ahead.min(row.period_end - floor);
    row.period_end -= cut;
    if route != row.route {
        // These days stood behind what the other route pays for.
        row.extra = (row.extra - cut).max(0);
    }
    row.extra = row.extra.min((row.period_end - now).max(0));
    row.period_start = row.period_start.min(row.period_end);
    if row.period_end <= now {
        row.status = SubscriptionStatus::Canceled;
        row.renews = false;
    }
    row
}
