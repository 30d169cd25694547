//! `/plan`: current subscription and the benefits of the plan.

pub(crate) mod approval;
pub(crate) mod begin;
pub(crate) mod cancel;
pub(crate) mod resume;
pub(crate) mod status;

use maud::{Markup, html};
use tollgate_filter::{RateClass, Reply};
use tollgate_pages::parts::{self, Cell, Column, table};
use tollgate_pages::{NavItem, Page, format};
use tollgate_purchase::mandates::is_past_due;
use tollgate_purchase::plan::{DAYS, PRICE, PlanState};
use tollgate_store::{MandateState, ReadError, Reader, reading};

use crate::amounts::{amount, usd};
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

/// Number of payments shown.
const PAYMENTS: usize = 12;

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let (account, now) = (request.require_session()?.account, request.now);
    let read = move |read: &Reader| -> Result<_, ReadError> {
        let class = read
            .account(account)?
            .map(|row| row.class_at(now).to_string());
        Ok((
            class.unwrap_or_default(),
            read.subscription(account)?,
            read.payments_of(account, PAYMENTS)?,
        ))
    };
    let (class, subscription, payments) = reading(&context.store, read).await?;
    let standing = context.plans.state(account).await;
    let standing = standing.map_err(|error| PageError::Store(Box::new(error)))?;
    let is_sold = match &context.mandates {
        Some(mandates) => mandates.is_sold().await,
        None => false,
    };
    let plan = context.plans.plan();
    let find = |name: &str| {
        let mut classes = context.settings.installation.classes.iter();
        classes.find(|class| *class.name == *name)
    };
    let content = html! {
        (parts::heading("Plan", None))
        section.panel {
            div.panel-head { h2 { "What you have" } div { (status::pill(subscription.as_ref(), now)) } }
            p.figure { (class_name(context, &class)) }
            @if let Some(row) = &subscription { p { (status::until(row, standing.next_charge(), now)) } }
            @if let Some(class) = find(&class) { p.second { (class.quota_text()) "." } }
            p.second { "Requests are paid from credits, whatever the plan." }
        }
        section.panel {
            h2 { (plan.name) }
            p { b { (usd(PRICE)) } " a month. Each payment buys: " (context.plan_benefits().join(", ")) "." }
            @if let (Some(free), Some(pro)) = (find("free"), find(&plan.class)) { (comparison(context, free, pro)) }
            @if !plan.features.is_empty() {
                ul { @for feature in plan.features.iter() { li { (feature) } } }
            }
            (buying(context, &standing, is_sold))
        }
        (status::payments(&payments, now))
        @if !context.settings.installation.payment_paths.is_empty() {
            section.panel {
                h2 { "For programs" }
                p { "Programs can pay for " (plan.name) " themselves: each month by PayPal, or " (DAYS) " days at a time in USDC." }
                p { a href="/docs/paying" { "Read how" } }
            }
        }
    };
    let page = Page::dashboard("Plan", NavItem::Plan, viewer, content);
    Ok(request.page(context, &page))
}

/// Display name of a rate class.
pub(crate) fn class_name(context: &PortalContext, class: &str) -> String {
    let plan = context.plans.plan();
    match class {
        class if class == &*plan.class => plan.name.to_string(),
        "free" => String::from("Free"),
        other => other.to_owned(),
    }
}

/// Actions: buy, follow up, cancel.
fn buying(context: &PortalContext, standing: &PlanState, is_sold: bool) -> Markup {
    let plan = context.plans.plan();
    let mandate = standing.mandate.as_ref();
    let is_cancel_pending = mandate.is_some_and(|row| row.state == MandateState::CancelPending);
    let is_resuming = mandate.is_some_and(|row| row.state == MandateState::Resuming);
    html! {
        @if let Some(row) = standing.active() {
            @if let Some(until) = standing.resumable_until() {
                p {
                    "You can resume " (plan.name) " until " b { (format::date_time(until)) }
                    ": nothing is charged before the next payment would have been due."
                }
                p { (parts::link_button("/plan/resume", &format!("Resume {}", plan.name), true)) }
            } @else if status::is_cancelled(row) {
                p {
                    "This subscription has ended at PayPal and cannot be resumed. You can buy " (plan.name) " again when what you have paid for has ended, after "
                    b { (format::date(status::end_of(row, standing.now), standing.now)) } ", so that no period is paid twice."
                }
            } @else {
                p { "You have " (plan.name) "." }
            }
            @if is_cancel_pending { p { "PayPal has not confirmed the cancellation yet. We ask again automatically." } }
            @if is_resuming { p { "PayPal has not confirmed yet that the plan is resumed. We ask again automatically." } }
        } @else if let Some(row) = mandate.filter(|row| row.state == MandateState::Agreed && !is_past_due(row)) {
            p { "You have agreed at PayPal, and the first payment is not confirmed yet." }
            p { a href={ "/plan/back/" (row.id) "?back=1" } { "See its progress" } }
        } @else if is_sold {
            @if mandate.is_some_and(|row| row.state == MandateState::Agreed) {
                p { "PayPal could not collect the first payment. Nothing was charged. PayPal may retry, or you can start again." }
            }
            p { (parts::link_button("/plan/begin", &format!("Buy {} for {} a month", plan.name, usd(PRICE)), true)) }
        } @else {
            p { (plan.name) " cannot be bought here at the moment." }
        }
        @if cancel::can_cancel(standing) {
            p { (parts::link_button("/plan/cancel", "Cancel plan", false)) }
        }
    }
}

fn comparison(context: &PortalContext, free: &RateClass, pro: &RateClass) -> Markup {
    let plan = context.plans.plan();
    let columns = [
        Column::text("What"),
        Column::text("Free"),
        Column::text(&plan.name),
    ];
    let mut rows = vec![row("Requests", &free.quota_text(), &pro.quota_text())];
    let tokens = |class: &RateClass| match class.tokens {
        Some(tokens) => tollgate_pages::format::count(tokens),
        None => String::from("No limit"),
    };
    if free.tokens.is_some() || pro.tokens.is_some() {
        rows.push(row("Tokens in that time", &tokens(free), &tokens(pro)));
    }
    let credits = match plan.monthly_credits.is_positive() {
        true => format!("{} with each payment", amount(plan.monthly_credits)),
        false => String::from("None"),
    };
    rows.push(row("Credits", "None", &credits));
    if let Some(slots) = plan.device_slots {
        rows.push(row("Devices", "1", &slots.to_string()));
    }
    if let Some(tasks) = plan.computer_use_tasks {
        let tasks = tollgate_pages::format::count(tasks.into());
        rows.push(row("Computer tasks a month", "None", &tasks));
    }
    table(&format!("What {} adds", plan.name), &columns, &rows, None)
}

fn row(what: &str, free: &str, pro: &str) -> Vec<Cell> {
    vec![
        Cell::new(html! { (what) }),
        Cell::labelled(html! { (free) }),
        Cell::labelled(html! { (pro) }),
    ]
}
