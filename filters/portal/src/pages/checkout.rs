//! `/commerce/continue/{id}`: approval of a checkout created by a program.
//!
//! The page shows product, price and billing period, independent of the program; the button leads to PayPal. The redirect back from PayPal
//! proves no payment; the redirect triggers a reconciliation.

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

use crate::amounts::usd;
use crate::context::PortalContext;
use crate::credential_names::CredentialNames;
use crate::page_error::PageError;
use crate::page_request::PageRequest;
use crate::pages::plan::status;

/// Time limit of a page for PayPal; the reconciliation continues in the background.
const PROVIDER_WAIT: Duration = Duration::from_secs(6);

/// Reload interval of a waiting page, in seconds.
const RELOAD_SECS: u32 = 3;

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let view = match find(context, request).await? {
        Lookup::Own(view) => *view,
        Lookup::OtherAccount(reply) => return Ok(reply),
    };
    let own = path(view.row.id);
    match request.query.text("from") {
        // A redirect, so that reloading the page does not trigger another reconciliation.
        "paypal" => {
            reconcile_return(context, view).await;
            return Ok(request.redirect(context, &format!("{own}?back=1")));
        }
        "cancel" => return Ok(request.redirect(context, &format!("{own}?left=1"))),
        _ => {}
    }
    let view =
        match tokio::time::timeout(PROVIDER_WAIT, context.checkouts.refresh(view.clone())).await {
            Ok(Ok(view)) => view,
            // Show the stored state; the reconciliation continues in the background.
            Ok(Err(_)) | Err(_) => view,
        };
    let page = page(context, request, &view, None).await?;
    Ok(request.page(context, &page))
}

/// `POST`: the owner starts the purchase.
pub(crate) async fn agree(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let view = match find(context, request).await? {
        Lookup::Own(view) => *view,
        Lookup::OtherAccount(reply) => return Ok(reply),
    };
    let own = path(view.row.id);
    let url = |from: &str| format!("{}{own}?from={from}", context.service.base_url);
    let urls = Urls {
        return_url: url("paypal"),
        cancel_url: url("cancel"),
    };
    let notice = match context.checkouts.open_mandate(view.clone(), urls).await {
        Ok(_) => return Ok(request.redirect(context, &own)),
        Err(CheckoutError::Processing) => parts::notice(
            Tone::Warn,
            "Another payment of yours is in progress. Nothing was charged for this one.",
            html! { "Wait until it is settled. This page then shows that you have the plan." },
        ),
        Err(CheckoutError::Closed(why)) => {
            tracing::warn!(why, "opening mandate failed: the plan cannot be sold now");
            parts::notice(
                Tone::Bad,
                &format!(
                    "{} cannot be bought here at the moment.",
                    context.plans.plan().name
                ),
                html! { "Nothing was charged. Try again later." },
            )
        }
        Err(CheckoutError::Provider(_)) => parts::notice(
            Tone::Bad,
            "PayPal is not answering at the moment. Nothing was charged.",
            html! { "Try again in a minute." },
        ),
        Err(error) => return Err(PageError::Store(Box::new(error))),
    };
    let page = page(context, request, &view, Some(notice)).await?;
    Ok(context
        .renderer
        .reply(StatusCode::SERVICE_UNAVAILABLE, &page))
}

/// The checkout of the path, or the error page if it belongs to another account.
enum Lookup {
    Own(Box<View>),
    OtherAccount(Reply),
}

async fn find(context: &PortalContext, request: &PageRequest) -> Result<Lookup, PageError> {
    let account = request.require_session()?.account;
    let id: CheckoutId = request
        .params
        .get("id")
        .parse()
        .map_err(|_| PageError::NotFound)?;
    let row = reading(&context.store, move |store| store.checkout(id)).await?;
    let row = row.ok_or(PageError::NotFound)?;
    if row.account != account {
        let details = Failure {
            status: StatusCode::FORBIDDEN,
            heading: "This checkout belongs to another account",
            text: html! { p { "Sign out, and sign in to the account that the program works for. Nothing was charged." } },
            link: Some(("/", "Go to the overview")),
            request: request.request_id.clone(),
        };
        return Ok(Lookup::OtherAccount(failure(&context.renderer, &details)));
    }
    let view = context.checkouts.find(account, id).await;
    let view = view.map_err(|error| PageError::Store(Box::new(error)))?;
    view.map(|view| Lookup::Own(Box::new(view)))
        .ok_or(PageError::NotFound)
}

/// Reconciles with PayPal after the owner returns, within the time limit. The result is in the store, errors are in the log.
///
/// PayPal redirects to the checkout that created the mandate, which may have ended; the mandate is reconciled nevertheless.
async fn reconcile_return(context: &PortalContext, view: View) {
    if view.status().is_final() {
        if let Some(mandates) = &context.mandates
            && let Ok(Some(mandate)) = mandates.of(view.row.account).await
        {
            let _ = tokio::time::timeout(PROVIDER_WAIT, mandates.verify(mandate.id)).await;
        }
        return;
    }
    let attempt = context.checkouts.reconcile(view.clone(), &attach_nothing);
    if let Ok(Ok(_)) = tokio::time::timeout(PROVIDER_WAIT, attempt).await {
        return;
    }
    if let Err(error) = context.checkouts.owner_returned(view).await {
        tracing::warn!(%error, "storing return to checkout failed");
    }
}

fn path(id: CheckoutId) -> String {
    format!("/commerce/continue/{id}")
}

async fn page(
    context: &PortalContext,
    request: &PageRequest,
    view: &View,
    notice: Option<Markup>,
) -> Result<Page, PageError> {
    let name = &context.plans.plan().name;
    let back = request.query.text("back") == "1";
    Ok(match view.status() {
        Status::Completed => Page::card(format!("{name} is active"), completed_page(context, view)),
        // The checkout ended, but the owner has the plan: an approval for another purchase route redirected here.
        Status::Canceled if view.active.is_some() => {
            Page::card(format!("{name} is active"), completed_page(context, view))
        }
        Status::Canceled => Page::card("Checkout ended", ended_page()),
        Status::Incomplete => Page::card(format!("Finish buying {name}"), empty_page()),
        Status::ReadyForComplete | Status::CompleteInProgress => {
            Page::card("Waiting for PayPal", waiting_page(name, None)).reload_after(RELOAD_SECS)
        }
        Status::RequiresEscalation => {
            let link = approval_url(context, view).await?;
            match link {
                // PayPal may report the approval with a delay.
                Some(url) if back && notice.is_none() => {
                    Page::card("Waiting for PayPal", waiting_page(name, Some(&url)))
                        .reload_after(RELOAD_SECS)
                }
                link => {
                    let content =
                        offer_page(context, request, view, link.as_deref(), notice).await?;
                    Page::card(format!("Finish buying {name}"), content)
                }
            }
        }
    })
}

/// The PayPal approval URL, if created from this page.
async fn approval_url(context: &PortalContext, view: &View) -> Result<Option<String>, PageError> {
    let Some(id) = view.row.mandate.filter(|_| view.is_clear) else {
        return Ok(None);
    };
    let mandate = reading(&context.store, move |store| store.mandate(id)).await?;
    let is_offered = |row: &MandateRow| {
        let age = view.now.duration_since(row.created_at);
        row.state == MandateState::Open && age < RECURRING_OFFERED
    };
    let url = mandate.filter(is_offered).and_then(|row| row.approve_url);
    Ok(url.map(|url| url.to_string()))
}

async fn offer_page(
    context: &PortalContext,
    request: &PageRequest,
    view: &View,
    link: Option<&str>,
    notice: Option<Markup>,
) -> Result<Markup, PageError> {
    let plan = context.plans.plan();
    let signed_in = request.require_session()?;
    let left = request.query.text("left") == "1";
    Ok(html! {
        @if let Some(notice) = notice { (notice) }
        @else if left {
            (parts::notice(Tone::Info, "You did not agree. Nothing was charged.", html! { "You can still buy, or leave it." }))
        }
        h1 { "Finish buying " (plan.name) }
        p.second { (origin_line(context, view).await?) }
        section.panel {
            p.figure { (usd(PRICE)) " each month" }
            p { "PayPal charges it every month until you cancel. You can cancel at any time on the page of your plan; what you have paid for stays." }
        }
        div {
            h2 { "What " (plan.name) " gives" }
            ul {
                @for plan_benefits in plan_benefits(context) { li { (plan_benefits) } }
            }
        }
        @if !view.is_clear {
            (parts::notice(Tone::Warn, "Another payment of yours is in progress.", html! { "This page shows how to pay once it is settled. You will not be charged twice." }))
        } @else if let Some(url) = link {
            p { "Agree to the monthly payment at PayPal, and come back here." }
            p { (parts::link_button(url, "Continue to PayPal", true)) }
        } @else {
            form.stack method="post" action=(path(view.row.id)) {
                (parts::csrf(&request.csrf(context)))
                (parts::submit("Continue with PayPal", true))
            }
        }
        p { a href="/plan" { "Do not buy" } }
        (legal_links(context))
        p.rule.small.second { "Signed in as " b { (format::single_line(&signed_in.address)) } "." }
    })
}

/// Creator and date of the checkout.
async fn origin_line(context: &PortalContext, view: &View) -> Result<Markup, PageError> {
    let (account, now, credential) = (view.row.account, view.now, view.row.credential);
    let names = reading(&context.store, move |store| {
        CredentialNames::read(store, account)
    })
    .await?;
    let platform = view.row.platform.as_deref().map(format::single_line);
    Ok(html! {
        "Started by " b { "“" (names.of(credential)) "”" }
        @if let Some(platform) = platform { " for " (platform) }
        " on " (format::date(view.row.created_at, now)) "."
    })
}

/// Benefits of the plan as text.
fn plan_benefits(context: &PortalContext) -> Vec<String> {
    let plan = context.plans.plan();
    let mut all: Vec<String> = plan.features.to_vec();
    all.extend(context.plan_benefits());
    all
}

/// Links to terms, privacy and refund policy, as far as configured.
fn legal_links(context: &PortalContext) -> Markup {
    let brand = context.renderer.brand();
    let links = [
        ("Terms", brand.terms_url.as_deref()),
        ("Privacy", brand.privacy_url.as_deref()),
        ("Refunds", context.settings.refund_url.as_deref()),
    ];
    let links: Vec<_> = links
        .into_iter()
        .filter_map(|(word, url)| Some((word, url?)))
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

fn waiting_page(name: &str, link: Option<&str>) -> Markup {
    html! {
        h1 { "Waiting for PayPal" }
        div.stack role="status" {
            p { (name) " is active as soon as PayPal confirms the first payment. You will not be charged twice." }
            @if let Some(url) = link {
                p { "If you have not agreed yet, " a href=(url) { "go back to PayPal" } "." }
            }
            p.second { "This page refreshes by itself. You can close it." }
        }
        p { a href="/plan" { "See your plan" } }
    }
}

fn completed_page(context: &PortalContext, view: &View) -> Markup {
    let plan = context.plans.plan();
    html! {
        (parts::notice(Tone::Good, &format!("{} is active.", plan.name), html! { "The program that started this checkout can continue." }))
        h1 { (plan.name) " is active" }
        section.panel aria-label="Receipt" {
            dl.sum {
                div { dt { "Price" } dd.number { (usd(PRICE)) " each month" } }
                @if let Some(active) = &view.active {
                    div { dt { "Paid until" } dd { (format::date_time(status::end_of(active, context.now()))) } }
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

fn ended_page() -> Markup {
    html! {
        h1 { "This checkout has ended" }
        p { "Nothing was charged by it." }
        p { (parts::link_button("/plan", "Start again", true)) }
    }
}

fn empty_page() -> Markup {
    html! {
        h1 { "This checkout is empty" }
        p { "The program that created this checkout has not added the plan to it. Go back to the program." }
        p { a href="/" { "Go to the overview" } }
    }
}
