//! `/credits/add`: choose an amount, review, order.
//!
//! Works without JavaScript: the amount is a query parameter of the review page, whose button creates the order.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_money::{TopUpId, Usd};
use tollgate_pages::format;
use tollgate_pages::parts::{self, Choice, Field, FieldKind, Problem, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_purchase::{BeginError, FailureKind as Refusal, Offer, PurchaseRequest, TopUps};

use crate::amounts::{amount, usd};
use crate::context::PortalContext;
use crate::form::{Chosen, Form, TypedChoice};
use crate::page_error::PageError;
use crate::page_request::PageRequest;

/// Value of the option with a free amount.
const OTHER: &str = "other";

/// The choice of an amount, or the review of the chosen amount.
pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let Some((top_ups, offer)) = context.credit_offer() else {
        return unavailable_page(context, request);
    };
    // A draft stored before the identity check, with every field including `next`.
    if let Some(draft) = request.take_draft(context).await? {
        request.query = draft;
    }
    let fields = &request.query;
    if fields.find("amount").or(fields.find(OTHER)).is_none() {
        let page = choose_page(context, request, offer, fields, &[])?;
        return Ok(request.page(context, &page));
    }
    match chosen_amount(offer, fields) {
        Ok(price) => {
            let id = fields.text("id").parse();
            let id = id.unwrap_or_else(|_| top_ups.new_id());
            let page = review_page(context, request, offer, (id, price), None)?;
            Ok(request.page(context, &page))
        }
        Err(problems) => {
            let page = choose_page(context, request, offer, fields, &problems)?;
            Ok(request.refused(context, page))
        }
    }
}

/// Creates the order.
pub(crate) async fn order(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let Some((top_ups, offer)) = context.credit_offer() else {
        return unavailable_page(context, request);
    };
    let account = request.require_session()?.account;
    let price = match chosen_amount(offer, &request.form) {
        Ok(price) => price,
        Err(problems) => {
            let page = choose_page(context, request, offer, &request.form, &problems)?;
            return Ok(request.refused(context, page));
        }
    };
    // The form carries the purchase id, an idempotency key: a form submitted twice is one purchase.
    let id: TopUpId = match request.form.text("id").parse() {
        Ok(id) => id,
        Err(_) => top_ups.new_id(),
    };
    let next = request.return_path();
    let own = next.append_to(&format!("/credits/add/{id}"));
    let joint = if own.contains('?') { '&' } else { '?' };
    let url = |from: &str| format!("{}{own}{joint}from={from}", context.service.base_url);
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
        Ok(()) => return Ok(request.redirect(context, &own)),
        Err(BeginError::OtherPurchase(_)) => return Ok(request.redirect(context, "/credits/add")),
        // The order has ended, as its page reports: this form would find the ended order again.
        Err(BeginError::Provider(error)) if error.kind == Refusal::Refused => {
            return Ok(request.redirect(context, &own));
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
        Err(error) => return Err(PageError::Store(Box::new(error))),
    };
    let notice = parts::notice(tone, lead, html! { (text) });
    let page = review_page(context, request, offer, (id, price), Some(notice))?;
    Ok(match tone {
        Tone::Warn => request.refused(context, page),
        _ => context
            .renderer
            .reply(StatusCode::SERVICE_UNAVAILABLE, &page),
    })
}

async fn begin(top_ups: &TopUps, request: PurchaseRequest) -> Result<(), BeginError> {
    top_ups.begin(request).await.map(|_| ())
}

/// The chosen or typed amount, or the problems field by field.
fn chosen_amount(offer: &Offer, form: &Form) -> Result<Usd, Vec<Problem>> {
    let preselected = preselected(offer);
    let fields = TypedChoice {
        choice: "amount",
        other: OTHER,
        preselected: &preselected,
        typed: OTHER,
    };
    let read = |field: &str, text: &str| {
        offer.price(text).map_err(|_| {
            let range = format!(
                "Enter an amount from {} to {} USD.",
                short(offer.min),
                short(offer.max)
            );
            vec![Problem::new(field, range)]
        })
    };
    match form.chosen(&fields) {
        Chosen::Option(text) => read("amount", text),
        Chosen::Typed(text) => read(OTHER, text),
        Chosen::Both { option, typed } => {
            let (option, typed) = (read("amount", option)?, read(OTHER, typed)?);
            if option == typed {
                return Ok(typed);
            }
            Err(vec![
                Problem::new(
                    "amount",
                    format!(
                        "You chose {} and typed {}. Choose “Other amount” to pay {}.",
                        usd(option),
                        usd(typed),
                        usd(typed)
                    ),
                ),
                Problem::new(
                    OTHER,
                    format!("Leave this field empty to pay {}.", usd(option)),
                ),
            ])
        }
    }
}

/// The amount preselected by the page: the second, or the only one.
fn preselected(offer: &Offer) -> String {
    let amount = offer.amounts.get(1).or(offer.amounts.first());
    amount.map_or_else(|| OTHER.to_owned(), Usd::to_string)
}

/// A dollar amount without currency, and without cents if zero: for the start of a range.
fn short(price: Usd) -> String {
    let text = price.to_string();
    text.strip_suffix(".00").unwrap_or(&text).to_owned()
}

fn choose_page(
    context: &PortalContext,
    request: &PageRequest,
    offer: &Offer,
    form: &Form,
    problems: &[Problem],
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let values: Vec<String> = offer.amounts.iter().map(Usd::to_string).collect();
    let preselected = preselected(offer);
    let picked = form.find("amount").unwrap_or(&preselected);
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
    let next = request.return_path();
    let content = html! {
        (parts::problems(problems))
        (parts::heading("Add credits", None))
        form.panel.stack.narrow-panel method="get" action="/credits/add" {
            p { "You have " b { (format::credits_2(viewer.available)) } " credits." }
            (choice.show(problems))
            (Field::new(OTHER, "Other amount in USD").kind(FieldKind::Decimal).value(form.text(OTHER)).narrow().optional()
                .hint(html! { (range) }).problem(problems).show())
            @if next.has_target() { input type="hidden" name="next" value=(next.as_str()); }
            (parts::submit("Continue", true))
            p.second { "You pay with PayPal. The next page says what you pay before you do." }
        }
    };
    Ok(Page::dashboard(
        "Add credits",
        NavItem::Credits,
        viewer,
        content,
    ))
}

fn review_page(
    context: &PortalContext,
    request: &PageRequest,
    offer: &Offer,
    (id, price): (TopUpId, Usd),
    notice: Option<Markup>,
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let next = request.return_path();
    let credits = amount(offer.credits(price));
    let content = html! {
        @if let Some(notice) = notice { (notice) }
        (parts::heading("Add credits", None))
        form.panel.stack.narrow-panel method="post" action="/credits/add" {
            (parts::csrf(&viewer.csrf))
            input type="hidden" name="id" value=(id);
            input type="hidden" name="amount" value=(price);
            @if next.has_target() { input type="hidden" name="next" value=(next.as_str()); }
            p.figure { "You pay " (usd(price)) " now, once." }
            p { "You get " b { (credits) " credits" } ". You have " (format::credits_2(viewer.available)) " now." }
            p.second { "Nothing is charged before you agree at PayPal, and nothing is charged again later." }
            (parts::submit(&format!("Pay {} with PayPal", usd(price)), true))
            p { a href=(next.append_to("/credits/add")) { "Choose another amount" } }
        }
    };
    Ok(Page::dashboard(
        "Add credits",
        NavItem::Credits,
        viewer,
        content,
    ))
}

/// The page shown when credits are not for sale.
fn unavailable_page(context: &PortalContext, request: &PageRequest) -> Result<Reply, PageError> {
    let viewer = request.viewer(context)?;
    let content = html! {
        (parts::heading("Add credits", None))
        section.panel {
            p { "You have " b { (format::credits_2(viewer.available)) } " credits." }
            p { "Credits cannot be bought here at the moment." }
            p { a href="/credits" { "See your credits" } }
        }
    };
    let page = Page::dashboard("Add credits", NavItem::Credits, viewer, content);
    Ok(request.page(context, &page))
}
