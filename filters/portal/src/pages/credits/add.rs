//! `/credits/add`: an amount is chosen, looked at once more, and ordered.
//!
//! No script: the amount travels in the address to a page that says what is paid and what for, and only its button orders.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_money::{TopUpId, Usd};
use tollgate_pages::format;
use tollgate_pages::parts::{self, Choice, Field, FieldKind, Problem, Tone};
use tollgate_pages::{Page, Place};
use tollgate_purchase::{BeginError, FailureKind as Refusal, Offer, PurchaseRequest, TopUps};

use super::{amount, usd};
use crate::form::Form;
use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// The value of the choice that has a field of its own.
const OTHER: &str = "other";

/// Choosing, or what was chosen.
pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let Some(top_ups) = &house.top_ups else {
        return closed(house, visit);
    };
    // A form that waited until its sender had confirmed who they are: with all that it had, the way on among it.
    if let Some(draft) = visit.draft(house).await? {
        visit.query = draft;
    }
    let asked = &visit.query;
    if asked.find("amount").is_none() {
        let page = choose(house, visit, top_ups.offer(), asked, &[])?;
        return Ok(visit.page(house, &page));
    }
    match chosen(top_ups.offer(), asked) {
        Ok(price) => {
            let id = asked.text("id").parse();
            let id = id.unwrap_or_else(|_| top_ups.new_id());
            let page = review(house, visit, top_ups.offer(), (id, price), None)?;
            Ok(visit.page(house, &page))
        }
        Err(problem) => {
            let page = choose(house, visit, top_ups.offer(), asked, &[problem])?;
            Ok(visit.refused(house, page))
        }
    }
}

/// Ordering.
pub(crate) async fn order(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let Some(top_ups) = &house.top_ups else {
        return closed(house, visit);
    };
    let account = visit.signed_in()?.account;
    let price = match chosen(top_ups.offer(), &visit.form) {
        Ok(price) => price,
        Err(problem) => {
            let page = choose(house, visit, top_ups.offer(), &visit.form, &[problem])?;
            return Ok(visit.refused(house, page));
        }
    };
    // The form brings the id that the purchase will have: sent twice, it is one purchase.
    let id: TopUpId = match visit.form.text("id").parse() {
        Ok(id) => id,
        Err(_) => top_ups.new_id(),
    };
    let next = visit.next();
    let own = next.after(&format!("/credits/add/{id}"));
    let joint = if own.contains('?') { '&' } else { '?' };
    let url = |from: &str| format!("{}{own}{joint}from={from}", house.service.base_url);
    let begun = begin(
        top_ups,
        PurchaseRequest {
            id,
            account,
            price,
            return_url: url("paypal"),
            cancel_url: url("cancel"),
        },
    );
    let (tone, lead, text) = match begun.await {
        Ok(()) => return Ok(visit.go(house, &own)),
        Err(BeginError::OtherPurchase(_)) => return Ok(visit.go(house, "/credits/add")),
        // It is over, and its own page says so: the same form would find it again.
        Err(BeginError::Provider(error)) if error.kind == Refusal::Refused => {
            return Ok(visit.go(house, &own));
        }
        Err(BeginError::Provider(_)) => (
            Tone::Bad,
            "PayPal is not answering at the moment. Nothing was charged.",
            "Try again in a minute.",
        ),
        Err(BeginError::TooMany { .. }) => (
            Tone::Warn,
            "Too many purchases are unfinished. Nothing was charged.",
            "Finish one of them at PayPal, or try again in a few hours.",
        ),
        Err(error) => return Err(Trouble::Store(Box::new(error))),
    };
    let notice = parts::notice(tone, lead, html! { (text) });
    let page = review(house, visit, top_ups.offer(), (id, price), Some(notice))?;
    Ok(match tone {
        Tone::Warn => visit.refused(house, page),
        _ => house.look.reply(StatusCode::SERVICE_UNAVAILABLE, &page),
    })
}

async fn begin(top_ups: &TopUps, wish: PurchaseRequest) -> Result<(), BeginError> {
    top_ups.begin(wish).await.map(|_| ())
}

fn chosen(offer: &Offer, form: &Form) -> Result<Usd, Problem> {
    let (field, text) = match form.text("amount") {
        OTHER => (OTHER, form.text(OTHER)),
        text => ("amount", text),
    };
    offer.price(text).map_err(|_| {
        let range = format!(
            "Enter an amount from {} to {} USD.",
            short(offer.min),
            short(offer.max)
        );
        Problem::new(field, range)
    })
}

/// Dollars without their unit, and without cents where there are none: for a range that ends with the unit.
fn short(price: Usd) -> String {
    let text = price.to_string();
    text.strip_suffix(".00").unwrap_or(&text).to_owned()
}

fn choose(
    house: &House,
    visit: &Visit,
    offer: &Offer,
    form: &Form,
    problems: &[Problem],
) -> Result<Page, Trouble> {
    let viewer = visit.viewer(house)?;
    let values: Vec<String> = offer.amounts.iter().map(Usd::to_string).collect();
    let picked = form
        .find("amount")
        .or(values.get(1).or(values.first()).map(String::as_str))
        .unwrap_or(OTHER);
    let mut options: Vec<(&str, Markup, Option<Markup>, bool)> = offer
        .amounts
        .iter()
        .zip(&values)
        .map(|(price, value)| {
            let words = html! { (usd(*price)) ", " (amount(offer.credits(*price))) " credits" };
            (value.as_str(), words, None, picked == value)
        })
        .collect();
    options.push((OTHER, html! { "Other amount" }, None, picked == OTHER));
    let choice = Choice {
        name: "amount",
        legend: "Amount",
        hint: None,
        options,
        several: false,
    };
    let range = format!("In USD, from {} to {}.", short(offer.min), short(offer.max));
    let next = visit.next();
    let inside = html! {
        (parts::problems(problems))
        (parts::heading("Add credits", None))
        form.panel.stack.narrow-panel method="get" action="/credits/add" {
            p { "You have " b { (format::credits_2(viewer.available)) } " credits." }
            (choice.show(problems))
            (Field::new(OTHER, "Other amount in USD").kind(FieldKind::Decimal).value(form.text(OTHER)).narrow().optional()
                .hint(html! { (range) }).problem(problems).show())
            @if next.is_elsewhere() { input type="hidden" name="next" value=(next.as_str()); }
            (parts::submit("Continue", true))
            p.second { "You pay with PayPal. The next page says what you pay before you do." }
        }
    };
    Ok(Page::framed("Add credits", Place::Credits, viewer, inside))
}

fn review(
    house: &House,
    visit: &Visit,
    offer: &Offer,
    (id, price): (TopUpId, Usd),
    notice: Option<Markup>,
) -> Result<Page, Trouble> {
    let viewer = visit.viewer(house)?;
    let next = visit.next();
    let credits = amount(offer.credits(price));
    let inside = html! {
        @if let Some(notice) = notice { (notice) }
        (parts::heading("Add credits", None))
        form.panel.stack.narrow-panel method="post" action="/credits/add" {
            (parts::csrf(&viewer.csrf))
            input type="hidden" name="id" value=(id);
            input type="hidden" name="amount" value=(price);
            @if next.is_elsewhere() { input type="hidden" name="next" value=(next.as_str()); }
            p.figure { "You pay " (usd(price)) " now, once." }
            p { "You get " b { (credits) " credits" } ". You have " (format::credits_2(viewer.available)) " now." }
            p.second { "Nothing is charged before you agree at PayPal, and nothing is charged again later." }
            (parts::submit(&format!("Pay {} with PayPal", usd(price)), true))
            p { a href=(next.after("/credits/add")) { "Choose another amount" } }
        }
    };
    Ok(Page::framed("Add credits", Place::Credits, viewer, inside))
}

/// Nothing can be bought.
fn closed(house: &House, visit: &Visit) -> Result<Reply, Trouble> {
    let viewer = visit.viewer(house)?;
    let inside = html! {
        (parts::heading("Add credits", None))
        section.panel {
            p { "You have " b { (format::credits_2(viewer.available)) } " credits." }
            p { "Credits cannot be bought here at the moment." }
            p { a href="/credits" { "See your credits" } }
        }
    };
    let page = Page::framed("Add credits", Place::Credits, viewer, inside);
    Ok(visit.page(house, &page))
}
