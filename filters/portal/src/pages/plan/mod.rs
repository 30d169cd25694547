//! `/plan`: what the account has, until when, and what the plan adds.

pub(crate) mod back;
pub(crate) mod begin;
pub(crate) mod cancel;
pub(crate) mod held;

use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_pages::parts::{self, Cell, Column, table};
use tollgate_pages::{Page, Place};
use tollgate_purchase::mandates::is_past_due;
use tollgate_purchase::plan::{DAYS, PRICE, PlanState};
use tollgate_store::{MandateState, Read, ReadError, reading};

use super::credits::{amount, usd};
use crate::facts::ClassFacts;
use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// Payments shown.
const PAYMENTS: usize = 12;

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let viewer = visit.viewer(house)?;
    let (account, now) = (visit.signed_in()?.account, visit.now);
    let read = move |read: &dyn Read| -> Result<_, ReadError> {
        let class = read
            .account(account)?
            .map(|row| row.class_at(now).to_string());
        Ok((
            class.unwrap_or_default(),
            read.subscription(account)?,
            read.payments_of(account, PAYMENTS)?,
        ))
    };
    let (class, subscription, payments) = reading(&house.store, read).await?;
    let standing = house.plans.state(account).await;
    let standing = standing.map_err(|error| Trouble::Store(Box::new(error)))?;
    let is_sold = match &house.mandates {
        Some(mandates) => mandates.is_sold().await,
        None => false,
    };
    let plan = house.plans.plan();
    let find = |name: &str| {
        let mut classes = house.facts.classes.iter();
        classes.find(|class| class.name == name)
    };
    let inside = html! {
        (parts::heading("Plan", None))
        (held::notice(plan, subscription.as_ref(), now))
        section.panel {
            div.panel-head { h2 { "What you have" } div { (held::pill(subscription.as_ref(), now)) } }
            p.figure { (class_name(house, &class)) }
            @if let Some(row) = &subscription { p { (held::until(row, now)) } }
            @if let Some(class) = find(&class) { p.second { (class.words()) "." } }
            p.second { "Requests are paid from credits, whatever the plan." }
        }
        section.panel {
            h2 { (plan.name) }
            p { b { (usd(PRICE)) } " a month." }
            @if let (Some(free), Some(pro)) = (find("free"), find(&plan.class)) { (compared(house, free, pro)) }
            @if !plan.features.is_empty() {
                ul { @for feature in plan.features.iter() { li { (feature) } } }
            }
            (buying(house, &standing, is_sold))
        }
        (held::payments(&payments, now))
        @if !house.facts.payment_paths.is_empty() {
            section.panel {
                h2 { "For programs" }
                p { "Programs can pay for " (plan.name) " themselves: each month by PayPal, or " (DAYS) " days at a time in USDC." }
                p { a href="/docs/paying" { "Read how" } }
            }
        }
    };
    let page = Page::framed("Plan", Place::Plan, viewer, inside);
    Ok(visit.page(house, &page))
}

/// A rate class as people call it.
pub(crate) fn class_name(house: &House, class: &str) -> String {
    let plan = house.plans.plan();
    match class {
        class if class == &*plan.class => plan.name.to_string(),
        "free" => String::from("Free"),
        other => other.to_owned(),
    }
}

/// What can be done about it here.
fn buying(house: &House, standing: &PlanState, is_sold: bool) -> Markup {
    let plan = house.plans.plan();
    let mandate = standing.mandate.as_ref();
    let is_leaving = mandate.is_some_and(|row| row.state == MandateState::CancelPending);
    html! {
        @if standing.is_active() {
            p { "You have what " (plan.name) " adds." }
            @if is_leaving { p { "PayPal has not confirmed yet that it charges nothing more. It is asked again by itself." } }
        } @else if let Some(row) = mandate.filter(|row| row.state == MandateState::Agreed && !is_past_due(row)) {
            p { "You have agreed at PayPal, and the first payment is not confirmed yet." }
            p { a href={ "/plan/back/" (row.id) "?back=1" } { "See how far it has come" } }
        } @else if is_sold {
            @if mandate.is_some_and(|row| row.state == MandateState::Agreed) {
                p { "PayPal could not collect the first payment. Nothing was charged. PayPal may try again, and you can begin anew." }
            }
            p { (parts::link_button("/plan/begin", &format!("Buy {} for {} a month", plan.name, usd(PRICE)), true)) }
        } @else {
            p { (plan.name) " cannot be bought here at the moment." }
        }
        @if cancel::can_be_ended(standing) {
            p { (parts::link_button("/plan/cancel", "Cancel plan", false)) }
        }
    }
}

fn compared(house: &House, free: &ClassFacts, pro: &ClassFacts) -> Markup {
    let plan = house.plans.plan();
    let columns = [
        Column::text("What"),
        Column::text("Free"),
        Column::text(&plan.name),
    ];
    let mut rows = vec![row("Requests", &free.words(), &pro.words())];
    let tokens = |class: &ClassFacts| match class.tokens {
        Some(tokens) => tollgate_pages::format::count(tokens),
        None => String::from("No limit"),
    };
    if free.tokens.is_some() || pro.tokens.is_some() {
        rows.push(row("Tokens in that time", &tokens(free), &tokens(pro)));
    }
    if plan.monthly_credits.is_positive() {
        let credits = format!("{} with each payment", amount(plan.monthly_credits));
        rows.push(row("Credits", "None", &credits));
    }
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
