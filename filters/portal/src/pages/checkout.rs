//! `/commerce/continue/{id}`: where a checkout that a program began is finished by its owner, or not.
//!
//! The program has no say here: the page shows what is bought, for how much, each month, and its button leads to PayPal. Whoever comes back
//! from there proves nothing; it makes the gateway look.

use std::time::Duration;

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_money::CheckoutId;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{Failure, Page, failure, format};
use tollgate_purchase::checkouts::{CheckoutError, Status, View, attach_nothing};
use tollgate_purchase::mandates::{RECURRING_OFFERED, Urls};
use tollgate_purchase::plan::PRICE;
use tollgate_store::{MandateRow, MandateState, reading};

use super::credits::{amount, usd};
use crate::house::House;
use crate::names::Names;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// How long a page waits for PayPal. The look goes on without it.
const LOOK: Duration = Duration::from_secs(6);

/// Seconds until a page that waits asks again.
const AGAIN_SECS: u32 = 3;

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let view = match find(house, visit).await? {
        Found::Own(view) => *view,
        Found::Others(reply) => return Ok(reply),
    };
    let own = path(view.row.id);
    match visit.query.text("from") {
        // Loaded again, the page does not claim again that there is news.
        "paypal" => {
            came_back(house, view).await;
            return Ok(visit.go(house, &format!("{own}?back=1")));
        }
        "cancel" => return Ok(visit.go(house, &format!("{own}?left=1"))),
        _ => {}
    }
    let view = match tokio::time::timeout(LOOK, house.checkouts.refresh(view.clone())).await {
        Ok(Ok(view)) => view,
        // What is known is shown; the look goes on without the page.
        Ok(Err(_)) | Err(_) => view,
    };
    let page = page(house, visit, &view, None).await?;
    Ok(visit.page(house, &page))
}

/// The owner wants to buy.
pub(crate) async fn agree(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let view = match find(house, visit).await? {
        Found::Own(view) => *view,
        Found::Others(reply) => return Ok(reply),
    };
    let own = path(view.row.id);
    let url = |from: &str| format!("{}{own}?from={from}", house.service.base_url);
    let urls = Urls {
        return_url: url("paypal"),
        cancel_url: url("cancel"),
    };
    let notice = match house.checkouts.open_mandate(view.clone(), urls).await {
        Ok(_) => return Ok(visit.go(house, &own)),
        Err(CheckoutError::Processing) => parts::notice(
            Tone::Warn,
            "Another payment of yours is under way. Nothing was charged for this one.",
            html! { "Wait until it is clear; this page then says that you have the plan." },
        ),
        Err(CheckoutError::Closed(why)) => {
            tracing::warn!(why, "the plan cannot be bought");
            parts::notice(
                Tone::Bad,
                &format!(
                    "{} cannot be bought here at the moment.",
                    house.plans.plan().name
                ),
                html! { "Nothing was charged. Try again later." },
            )
        }
        Err(CheckoutError::Provider(_)) => parts::notice(
            Tone::Bad,
            "PayPal is not answering at the moment. Nothing was charged.",
            html! { "Try again in a minute." },
        ),
        Err(error) => return Err(Trouble::Store(Box::new(error))),
    };
    let page = page(house, visit, &view, Some(notice)).await?;
    Ok(house.look.reply(StatusCode::SERVICE_UNAVAILABLE, &page))
}

/// Whose checkout the address names.
enum Found {
    Own(Box<View>),
    Others(Reply),
}

async fn find(house: &House, visit: &Visit) -> Result<Found, Trouble> {
    let account = visit.signed_in()?.account;
    let id: CheckoutId = visit
        .params
        .get("id")
        .parse()
        .map_err(|_| Trouble::NotFound)?;
    let row = reading(&house.store, move |store| store.checkout(id)).await?;
    let row = row.ok_or(Trouble::NotFound)?;
    if row.account != account {
        let told = Failure {
            status: StatusCode::FORBIDDEN,
            heading: "This checkout belongs to another account",
            text: html! { p { "Sign out, and sign in to the account that the program works for. Nothing was charged." } },
            way_on: Some(("/", "Go to the overview")),
            request: visit.request.clone(),
        };
        return Ok(Found::Others(failure(&house.look, &told)));
    }
    let view = house.checkouts.find(account, id).await;
    let view = view.map_err(|error| Trouble::Store(Box::new(error)))?;
    view.map(|view| Found::Own(Box::new(view)))
        .ok_or(Trouble::NotFound)
}

/// Looks at what the owner has decided at PayPal, for a while. What came of it stands in the store, and what went wrong in the log.
///
/// PayPal leads back to the checkout that opened the account's one mandate, which may be over by now: the mandate is looked at all the same.
async fn came_back(house: &House, view: View) {
    if view.status().is_final() {
        if let Some(mandates) = &house.mandates
            && let Ok(Some(mandate)) = mandates.of(view.row.account).await
        {
            let _ = tokio::time::timeout(LOOK, mandates.verify(mandate.id)).await;
        }
        return;
    }
    let looked = house.checkouts.reconcile(view.clone(), &attach_nothing);
    if let Ok(Ok(_)) = tokio::time::timeout(LOOK, looked).await {
        return;
    }
    if let Err(error) = house.checkouts.owner_returned(view).await {
        tracing::warn!(%error, "could not note that the owner of a checkout came back");
    }
}

fn path(id: CheckoutId) -> String {
    format!("/commerce/continue/{id}")
}

async fn page(
    house: &House,
    visit: &Visit,
    view: &View,
    notice: Option<Markup>,
) -> Result<Page, Trouble> {
    let name = &house.plans.plan().name;
    let back = visit.query.text("back") == "1";
    Ok(match view.status() {
        Status::Completed => Page::solo(format!("{name} is active"), done(house, view)),
        // Ended, and its owner has the plan: what they agreed to for another way of buying led back here.
        Status::Canceled if view.active.is_some() => {
            Page::solo(format!("{name} is active"), done(house, view))
        }
        Status::Canceled => Page::solo("Checkout ended", over()),
        Status::Incomplete => Page::solo(format!("Finish buying {name}"), empty()),
        Status::ReadyForComplete | Status::CompleteInProgress => {
            Page::solo("Waiting for PayPal", waiting(name, None)).reloading(AGAIN_SECS)
        }
        Status::RequiresEscalation => {
            let link = offered(house, view).await?;
            match link {
                // PayPal may tell a little late that its owner has agreed.
                Some(url) if back && notice.is_none() => {
                    Page::solo("Waiting for PayPal", waiting(name, Some(&url)))
                        .reloading(AGAIN_SECS)
                }
                link => {
                    let inside = offer(house, visit, view, link.as_deref(), notice).await?;
                    Page::solo(format!("Finish buying {name}"), inside)
                }
            }
        }
    })
}

/// Where the owner agrees, when that is known already and they have opened it from here.
async fn offered(house: &House, view: &View) -> Result<Option<String>, Trouble> {
    let Some(id) = view.row.mandate.filter(|_| view.is_clear) else {
        return Ok(None);
    };
    let mandate = reading(&house.store, move |store| store.mandate(id)).await?;
    let is_offered = |row: &MandateRow| {
        let age = view.now - row.created_at;
        row.state == MandateState::Open && age < RECURRING_OFFERED.as_micros() as i64
    };
    let url = mandate.filter(is_offered).and_then(|row| row.approve_url);
    Ok(url.map(|url| url.to_string()))
}

async fn offer(
    house: &House,
    visit: &Visit,
    view: &View,
    link: Option<&str>,
    notice: Option<Markup>,
) -> Result<Markup, Trouble> {
    let plan = house.plans.plan();
    let signed_in = visit.signed_in()?;
    let left = visit.query.text("left") == "1";
    Ok(html! {
        @if let Some(notice) = notice { (notice) }
        @else if left {
            (parts::notice(Tone::Info, "You did not agree. Nothing was charged.", html! { "You can still buy, or leave it." }))
        }
        h1 { "Finish buying " (plan.name) }
        p.second { (started(house, view).await?) }
        section.panel {
            p.figure { (usd(PRICE)) " each month" }
            p { "PayPal charges it every month until you cancel. You can cancel at any time on the page of your plan; what you have paid for stays." }
        }
        div {
            h2 { "What " (plan.name) " gives" }
            ul {
                @for gives in gives(house) { li { (gives) } }
            }
        }
        @if !view.is_clear {
            (parts::notice(Tone::Warn, "Another payment of yours is under way.", html! { "This page shows how to pay once that is clear. You will not be charged twice." }))
        } @else if let Some(url) = link {
            p { "Agree to the monthly payment at PayPal, and come back here." }
            p { (parts::link_button(url, "Continue to PayPal", true)) }
        } @else {
            form.stack method="post" action=(path(view.row.id)) {
                (parts::csrf(&visit.csrf(house)))
                (parts::submit("Continue with PayPal", true))
            }
        }
        p { a href="/plan" { "Do not buy" } }
        (documents(house))
        p.rule.small.second { "Signed in as " b { (format::line(&signed_in.address)) } "." }
    })
}

/// Who began it, and when.
async fn started(house: &House, view: &View) -> Result<Markup, Trouble> {
    let (account, now, credential) = (view.row.account, view.now, view.row.credential);
    let names = reading(&house.store, move |store| Names::read(store, account, now)).await?;
    let platform = view.row.platform.as_deref().map(format::line);
    Ok(html! {
        "Started by " b { "“" (names.of(credential)) "”" }
        @if let Some(platform) = platform { " for " (platform) }
        " on " (format::date(view.row.created_at, now)) "."
    })
}

/// What the plan gives, in words.
fn gives(house: &House) -> Vec<String> {
    let plan = house.plans.plan();
    let mut all: Vec<String> = plan.features.to_vec();
    let class = house
        .facts
        .classes
        .iter()
        .find(|class| class.name == *plan.class);
    all.extend(class.map(|class| format!("{}.", class.words())));
    if plan.monthly_credits.is_positive() {
        all.push(format!(
            "{} credits with each payment",
            amount(plan.monthly_credits)
        ));
    }
    all
}

/// What a buyer agrees to, where the operator has it written.
fn documents(house: &House) -> Markup {
    let brand = house.look.brand();
    let links = [
        ("Terms", &brand.terms_url),
        ("Privacy", &brand.privacy_url),
        ("Refunds", &house.refund_url),
    ];
    let links: Vec<_> = links
        .into_iter()
        .filter_map(|(word, url)| Some((word, url.as_deref()?)))
        .collect();
    html! {
        @if !links.is_empty() {
            p.small.second {
                @for (at, (word, url)) in links.iter().enumerate() {
                    @if at > 0 { ", " }
                    a href=(url) { (word) }
                }
            }
        }
    }
}

fn waiting(name: &str, link: Option<&str>) -> Markup {
    html! {
        h1 { "Waiting for PayPal" }
        div.stack role="status" {
            p { (name) " is active as soon as PayPal confirms the first payment. You will not be charged twice." }
            @if let Some(url) = link {
                p { "If you have not agreed yet, " a href=(url) { "go back to PayPal" } "." }
            }
            p.second { "This page looks again by itself. It is safe to close." }
        }
        p { a href="/plan" { "See your plan" } }
    }
}

fn done(house: &House, view: &View) -> Markup {
    let plan = house.plans.plan();
    html! {
        (parts::notice(Tone::Good, &format!("{} is active.", plan.name), html! { "The program that began this can go on." }))
        h1 { (plan.name) " is active" }
        section.panel aria-label="Receipt" {
            dl.sum {
                div { dt { "Price" } dd.number { (usd(PRICE)) " each month" } }
                @if let Some(active) = &view.active {
                    div { dt { "Paid until" } dd { (format::whole(active.period_end)) } }
                    div { dt { "Reference" } dd { (active.reference) } }
                }
                @if let Some(subscription) = &view.row.subscription {
                    div { dt { "Subscription" } dd { (subscription) } }
                }
                div { dt { "Account" } dd { (view.row.account) } }
            }
        }
        p { (parts::link_button("/plan", "See your plan", true)) }
    }
}

fn over() -> Markup {
    html! {
        h1 { "This checkout has ended" }
        p { "Nothing was charged by it." }
        p { (parts::link_button("/plan", "Start again", true)) }
    }
}

fn empty() -> Markup {
    html! {
        h1 { "Nothing is to be bought yet" }
        p { "The program that began this checkout has not put the plan into it. Go back to the program." }
        p { a href="/" { "Go to the overview" } }
    }
}
