//! Status of the subscription as text, and its payments.

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_money::Usd;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Cell, Column, Tone, table};
use tollgate_purchase::mandates::without_grace;
use tollgate_purchase::plan::Plan;
use tollgate_store::{PaymentRow, PaymentStatus, Route, SubscriptionRow, SubscriptionStatus};

use crate::amounts::{amount, usd};

/// Status of the plan as a pill; empty for an account without a plan so far.
pub(crate) fn pill(row: Option<&SubscriptionRow>, now: Timestamp) -> Markup {
    let Some(row) = row else {
        return html! {};
    };
    match row.status_at(now) {
        SubscriptionStatus::Active if is_cancelled(row) => parts::pill(
            Tone::Warn,
            &format!("Canceled, ends {}", format::date(end_of(row, now), now)),
        ),
        SubscriptionStatus::Active => parts::pill(Tone::Good, "Active"),
        SubscriptionStatus::PastDue => parts::pill(Tone::Warn, "Payment failed"),
        SubscriptionStatus::Canceled => parts::pill(Tone::Off, "Canceled"),
        _ => parts::pill(Tone::Off, "Ended"),
    }
}

/// Whether a monthly charged plan is charged no more. Paid time stays.
pub(crate) fn is_cancelled(row: &SubscriptionRow) -> bool {
    row.route != Route::X402 && !row.renews
}

/// The end of a subscription on every page: the end of the paid time. After the paid time, with a late charge: the end of the access.
pub(crate) fn end_of(row: &SubscriptionRow, now: Timestamp) -> Timestamp {
    match without_grace(row.route, row.period_end) {
        paid if now < paid => paid,
        _ => row.period_end,
    }
}

/// End of the paid period and renewal, as one or two sentences. `next_charge` as in [`tollgate_purchase::plan::PlanState`].
pub(crate) fn until(
    row: &SubscriptionRow,
    next_charge: Option<(Timestamp, Usd)>,
    now: Timestamp,
) -> String {
    let end = format::date(end_of(row, now), now);
    match row.status_at(now) {
        SubscriptionStatus::PastDue => format!(
            "{} could not collect the payment. The plan ends on {end} unless it succeeds.",
            by(row.route)
        ),
        SubscriptionStatus::Active if row.renews => match next_charge {
            Some((at, price)) => format!(
                "Paid until {end}. {} charges {} next on {}, and every month after it.",
                by(row.route),
                usd(price),
                format::date(at, now)
            ),
            None => format!("Paid until {end}. {} charges every month.", by(row.route)),
        },
        SubscriptionStatus::Active if is_cancelled(row) => {
            format!("Canceled: it lasts until {end} and does not renew. Nothing more is charged.")
        }
        SubscriptionStatus::Active => format!("Ends {end}, does not renew."),
        _ => format!("Ended {end}."),
    }
}

/// The notice of a failed payment of the plan, for every page.
pub(crate) fn notice(plan: &Plan, row: Option<&SubscriptionRow>, now: Timestamp) -> Option<Markup> {
    let row = row.filter(|row| row.status_at(now) == SubscriptionStatus::PastDue)?;
    Some(parts::notice(
        Tone::Warn,
        &format!(
            "{} could not collect the payment for {}.",
            by(row.route),
            plan.name
        ),
        html! {
            "It ends on " (format::date(end_of(row, now), now)) " unless the payment succeeds: check your payment method at "
            (by(row.route)) ". " a href="/plan" { "See the plan" }
        },
    ))
}

/// Payments, newest first.
pub(crate) fn payments(rows: &[PaymentRow], now: Timestamp) -> Markup {
    if rows.is_empty() {
        return html! {};
    }
    let columns = [
        Column::text("Date"),
        Column::text("For"),
        Column::number("Paid"),
        Column::number("Credits"),
        Column::text("Payment"),
    ];
    let with_credits = rows.iter().any(|row| row.credits.is_positive());
    let columns: Vec<Column<'_>> = columns
        .into_iter()
        .enumerate()
        .filter(|(at, _)| with_credits || *at != 3)
        .map(|(_, column)| column)
        .collect();
    let lines: Vec<Vec<Cell>> = rows
        .iter()
        .map(|row| {
            let mut cells = vec![
                Cell::new(html! { (format::date(row.at, now)) }),
                Cell::labelled(html! {
                    (format::date(row.period_start, now)) " to " (format::date(without_grace(row.route, row.period_end), now))
                }),
                Cell::labelled(html! {
                    (usd(row.amount))
                    @if row.status == PaymentStatus::Returned { " " (parts::pill(Tone::Off, "Returned")) }
                }),
            ];
            if with_credits {
                let owed = row.owed.filter(|owed| owed.is_positive());
                cells.push(Cell::labelled(html! {
                    (amount(row.credits))
                    @if let Some(owed) = owed { " " small { (amount(owed)) " still to be taken back" } }
                }));
            }
            cells.push(Cell::labelled(html! { (by(row.route)) " " small { (reference(row)) } }));
            cells
        })
        .collect();
    parts::panel(
        "Payments",
        table("Payments for the plan", &columns, &lines, None),
    )
}

/// The payment reference for people: the last part of the provider reference.
fn reference(row: &PaymentRow) -> &str {
    let text = row.provider_ref.rsplit(['/', ':']).next();
    text.unwrap_or(&row.provider_ref)
}

/// Name of the payment provider.
fn by(route: Route) -> &'static str {
    match route {
        Route::X402 => "USDC",
        _ => "PayPal",
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use tollgate_money::{AccountId, SubscriptionId};

    use super::*;
    use crate::usage::DAY;

    fn plan() -> Plan {
        Plan {
            product: "svc-pro-monthly".into(),
            slug: "svc-pro".into(),
            name: "Pro".into(),
            class: "pro".into(),
            monthly_credits: tollgate_money::Micros::ZERO,
            renewal_days: 7,
            device_slots: None,
            computer_use_tasks: None,
            features: Arc::from([]),
        }
    }

    #[test]
    fn a_subscription_status_is_described() {
        let now = Timestamp::from_secs(1_796_083_200);
        let end = now + 12 * DAY;
        for (route, status, renews, at, words) in [
            (
                Route::X402,
                SubscriptionStatus::Active,
                false,
                now,
                "Ends 13 December, does not renew.",
            ),
            // Without the day of grace: the day of the next charge.
            (
                Route::PayPal,
                SubscriptionStatus::Active,
                true,
                now,
                "Paid until 12 December. PayPal charges 199.00 USD next on 12 December, and every month after it.",
            ),
            // The charge is late.
            (
                Route::PayPal,
                SubscriptionStatus::Active,
                true,
                end - DAY / 2,
                "Paid until 13 December. PayPal charges every month.",
            ),
            (
                Route::PayPal,
                SubscriptionStatus::Active,
                false,
                now,
                "Canceled: it lasts until 12 December and does not renew. Nothing more is charged.",
            ),
            (
                Route::PayPal,
                SubscriptionStatus::Active,
                false,
                end,
                "Ended 13 December.",
            ),
            (
                Route::PayPal,
                SubscriptionStatus::PastDue,
                true,
                now,
                "PayPal could not collect the payment. The plan ends on 12 December unless it succeeds.",
            ),
            // Its mandate has ended at PayPal after the failure.
            (
                Route::PayPal,
                SubscriptionStatus::PastDue,
                false,
                now,
                "Canceled: it lasts until 12 December and does not renew. Nothing more is charged.",
            ),
            (
                Route::PayPal,
                SubscriptionStatus::PastDue,
                false,
                end,
                "Ended 13 December.",
            ),
            (
                Route::PayPal,
                SubscriptionStatus::Active,
                true,
                end,
                "Ended 13 December.",
            ),
        ] {
            let row = SubscriptionRow {
                id: SubscriptionId::from_bytes([1; 16]),
                account: AccountId::from_bytes([1; 16]),
                route,
                reference: Arc::from("I-1"),
                status,
                period_start: now - DAY,
                period_end: end,
                extra: Duration::ZERO,
                renews,
                version: 0,
                created_at: now,
                updated_at: now,
            };
            let due = Some(end - DAY).filter(|due| at < *due);
            let next = due.map(|due| (due, tollgate_purchase::plan::PRICE));
            assert_eq!(until(&row, next, at), words);
            let is_past_due = words.contains("could not collect");
            assert_eq!(notice(&plan(), Some(&row), at).is_some(), is_past_due);
            let pill = pill(Some(&row), at).into_string();
            assert_eq!(pill.contains("Payment failed"), is_past_due, "{pill}");
        }
    }
}
