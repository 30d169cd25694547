//! The effect of a payment on a subscription. Pure: rows in, rows out.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, SubscriptionId, Usd};
use tollgate_store::{Route, SubscriptionRow, SubscriptionStatus};

use super::DAY;

/// A payment for the plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Paid {
    /// The account to get the plan: the owner of the credential. An account named in the payment is ignored.
    pub account: AccountId,
    /// The route of payment.
    pub route: Route,
    /// The payment's reference on the route, counted once.
    pub payment: Arc<str>,
    /// The reference that the subscription shows: the transaction, or the provider's own subscription.
    pub reference: Arc<str>,
    pub amount: Usd,
    /// The paid period.
    pub period: Period,
    /// Whether the route may charge for the next period.
    pub renews: bool,
    /// The receipt for the buyer.
    pub receipt: Option<Arc<str>>,
    /// Time of the payment.
    pub at: Timestamp,
}

/// Period bought by a payment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Period {
    /// That many days, from now or from the end of the current period.
    Days(u32),
    /// Up to a time.
    Until(Timestamp),
}

/// State of the automatic renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Renewal {
    /// Active.
    Runs,
    /// The last charge failed; the provider retries.
    PastDue,
    /// Ended. The paid period stays.
    Ends,
}

/// The subscription after a payment, and the paid time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Extended {
    pub(super) row: SubscriptionRow,
    /// Start and end of the paid time.
    pub(super) paid: (Timestamp, Timestamp),
}

/// A payment reported by the provider and not listed yet.
pub(super) struct ReportedPayment<'a> {
    pub(super) account: AccountId,
    pub(super) route: Route,
    pub(super) reference: &'a str,
    /// The end of the provisional time for the payment.
    pub(super) until: Timestamp,
}

/// Grants provisional time for a reported payment; `None` when the plan is active by another mandate or route.
pub(super) fn advance(
    before: Option<&SubscriptionRow>,
    reported: &ReportedPayment<'_>,
    now: Timestamp,
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
        extra: Duration::ZERO,
        renews: true,
        version,
        created_at: again.map_or(now, |row| row.created_at),
        updated_at: now,
    })
}

/// Adds a payment at `now` to the subscription. `None` when another mandate pays the active plan: then the payment has to be refunded. A
/// transfer cannot be refunded by us, so a transfer always adds its days.
pub(super) fn extend(
    before: Option<&SubscriptionRow>,
    paid: &Paid,
    now: Timestamp,
    new_id: SubscriptionId,
) -> Option<Extended> {
    let running = before.filter(|row| row.is_active(now));
    let version = before.map_or(0, |row| row.version + 1);
    let Some(running) = running else {
        // No active subscription: a new one. A period ended before the record is recorded all the same, since money has moved.
        let start = match paid.period {
            Period::Days(_) => now,
            Period::Until(end) => paid.at.min(end),
        };
        let end = match paid.period {
            Period::Days(days) => start + DAY * days,
            Period::Until(end) => end,
        };
        // A charge of the known mandate after a gap keeps the subscription id.
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
                extra: Duration::ZERO,
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
            let span = DAY * days;
            let start = row.period_end;
            row.period_end += span;
            if row.renews {
                // The next charge keeps its due time and pays from there; the transfer's days follow the paid time.
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
            // Days of a transfer that passed before a late charge are used up.
            row.extra = row
                .extra
                .min(running.period_end.duration_since(row.period_start));
            row.period_end = row.period_end.max(end + row.extra).max(row.period_start);
            row.renews = paid.renews;
            (paid.at.min(end), end)
        }
    };
    row.status = SubscriptionStatus::Active;
    Some(Extended { row, paid: span })
}

/// Changes the renewal state of the mandate `reference`; `None` if nothing changes.
pub(super) fn renewal(
    before: &SubscriptionRow,
    (route, reference): (Route, &str),
    renewal: Renewal,
    now: Timestamp,
) -> Option<SubscriptionRow> {
    if before.route != route || *before.reference != *reference {
        return None;
    }
    let mut row = before.clone();
    let (status, renews) = match renewal {
        Renewal::Runs => (SubscriptionStatus::Active, true),
        Renewal::PastDue => (SubscriptionStatus::PastDue, true),
        // The last status stays: without a renewal it is read as cancelled, past due too.
        Renewal::Ends => (row.status, false),
    };
    // An active mandate does not undo a refund.
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

/// Takes away the future part of the time from `start` to `end` that a payment by `route` had paid for.
pub(super) fn shorten(
    before: &SubscriptionRow,
    route: Route,
    (start, end): (Timestamp, Timestamp),
    now: Timestamp,
) -> SubscriptionRow {
    let mut row = before.clone();
    row.version += 1;
    row.updated_at = now;
    let ahead = end.duration_since(start.max(now));
    // Never below now: past time cannot be taken away.
    let cut = ahead.min(row.period_end.duration_since(now));
    row.period_end -= cut;
    if route != row.route {
        // The days followed the other route's paid time.
        row.extra = row.extra.saturating_sub(cut);
    }
    row.extra = row.extra.min(row.period_end.duration_since(now));
    row.period_start = row.period_start.min(row.period_end);
    if row.period_end <= now {
        row.status = SubscriptionStatus::Canceled;
        row.renews = false;
    }
    row
}
