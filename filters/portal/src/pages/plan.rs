//! `/plan`: what the account has, and what Pro adds.

use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_money::Usd;
use tollgate_pages::parts::{self, Cell, Column, table};
use tollgate_pages::{Page, Place};
use tollgate_store::reading;

use super::credits::usd;
use crate::facts::ClassFacts;
use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// What Pro costs a month.
const PRO: Usd = Usd::from_cents(19_900);

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let viewer = visit.viewer(house)?;
    let account = visit.signed_in()?.account;
    let row = reading(&house.store, move |store| store.account(account)).await?;
    let class = row
        .map(|row| row.class_at(visit.now).to_string())
        .unwrap_or_default();
    let find = |name: &str| {
        let mut classes = house.facts.classes.iter();
        classes.find(|class| class.name == name)
    };
    let own = match class.as_str() {
        "pro" => "Pro",
        "free" => "Free",
        other => other,
    };
    let inside = html! {
        (parts::heading("Plan", None))
        section.panel {
            h2 { "What you have" }
            p.figure { (own) }
            @if let Some(class) = find(&class) { p.second { (class.words()) "." } }
            p.second { "Requests are paid from credits, whatever the plan." }
        }
        section.panel {
            h2 { "Pro" }
            p { b { (usd(PRO)) } " a month." }
            @if let (Some(free), Some(pro)) = (find("free"), find("pro")) { (compared(free, pro)) }
            @if class == "pro" {
                p { "You have what Pro adds." }
            } @else {
                p { "Pro cannot be bought here at the moment." }
            }
        }
        @if !house.facts.payment_paths.is_empty() {
            section.panel {
                h2 { "For programs" }
                p { "Programs can pay for Pro themselves." }
                p { a href="/docs" { "Read how" } }
            }
        }
    };
    let page = Page::framed("Plan", Place::Plan, viewer, inside);
    Ok(visit.page(house, &page))
}

fn compared(free: &ClassFacts, pro: &ClassFacts) -> Markup {
    let columns = [
        Column::text("What"),
        Column::text("Free"),
        Column::text("Pro"),
    ];
    let mut rows = vec![row("Requests", &free.words(), &pro.words())];
    let tokens = |class: &ClassFacts| match class.tokens {
        Some(tokens) => tollgate_pages::format::count(tokens),
        None => String::from("No limit"),
    };
    if free.tokens.is_some() || pro.tokens.is_some() {
        rows.push(row("Tokens in that time", &tokens(free), &tokens(pro)));
    }
    table("What Pro adds", &columns, &rows, None)
}

fn row(what: &str, free: &str, pro: &str) -> Vec<Cell> {
    vec![
        Cell::new(html! { (what) }),
        Cell::labelled(html! { (free) }),
        Cell::labelled(html! { (pro) }),
    ]
}
