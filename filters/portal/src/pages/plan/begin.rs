//! `/plan/begin`: review of the price; its button creates the PayPal subscription.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_purchase::FailureKind as Refusal;
use tollgate_purchase::mandates::{OpenError, Urls};
use tollgate_purchase::plan::PRICE;

use crate::amounts::usd;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    // A draft stored before the identity check carries no fields of its own.
    let _ = request.take_draft(context).await?;
    let account = request.require_session()?.account;
    let standing = context.plans.state(account).await;
    let standing = standing.map_err(|error| PageError::Store(Box::new(error)))?;
    let is_sold = match &context.mandates {
        Some(mandates) => mandates.is_sold().await,
        None => false,
    };
    if !is_sold || standing.is_active() {
        return Ok(request.redirect(context, "/plan"));
    }
    let page = review_page(context, request, None)?;
    Ok(request.page(context, &page))
}

/// Creates a subscription, or finds the subscription that waits for approval.
pub(crate) async fn begin(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let Some(mandates) = &context.mandates else {
        return Ok(request.redirect(context, "/plan"));
    };
    let account = request.require_session()?.account;
    let own = format!("{}/plan/back/{{mandate}}", context.service.base_url);
    let urls = Urls {
        cancel_url: format!("{own}?from=cancel"),
        return_url: own,
    };
    let (tone, lead, text) = match mandates.open(account, urls).await {
        Ok(row) => return Ok(request.redirect(context, &format!("/plan/back/{}", row.id))),
        Err(OpenError::AlreadyActive(_)) => return Ok(request.redirect(context, "/plan")),
        Err(OpenError::Processing(row)) => {
            return Ok(request.redirect(context, &format!("/plan/back/{}?back=1", row.id)));
        }
        Err(OpenError::Provider(error)) if error.kind == Refusal::Refused => (
            Tone::Warn,
            "PayPal does not accept this. Nothing was charged.",
            "Check your PayPal account for the reason, then try again.",
        ),
        Err(OpenError::Provider(_) | OpenError::Closed(_)) => (
            Tone::Bad,
            "PayPal is not answering at the moment. Nothing was charged.",
            "Try again in a minute.",
        ),
        Err(OpenError::Transfer) => (
            Tone::Bad,
            "Another payment for the plan is in progress. Nothing was charged.",
            "Wait a minute, then look at your plan before you try again.",
        ),
        Err(error) => return Err(PageError::Store(Box::new(error))),
    };
    let notice = parts::notice(tone, lead, html! { (text) });
    let page = review_page(context, request, Some(notice))?;
    Ok(match tone {
        Tone::Warn => request.refused(context, page),
        _ => context
            .renderer
            .reply(StatusCode::SERVICE_UNAVAILABLE, &page),
    })
}

fn review_page(
    context: &PortalContext,
    request: &PageRequest,
    notice: Option<Markup>,
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let plan = context.plans.plan();
    let title = format!("Buy {}", plan.name);
    let content = html! {
        @if let Some(notice) = notice { (notice) }
        (parts::heading(&title, None))
        form.panel.stack.narrow-panel method="post" action="/plan/begin" {
            (parts::csrf(&viewer.csrf))
            p.figure { "You pay " (usd(PRICE)) " now, and again every month." }
            p { "You get " b { (plan.name) } " as soon as PayPal confirms. You can cancel at any time, and keep what is paid." }
            p.second { "Nothing is charged before you agree at PayPal." }
            (parts::submit("Pay with PayPal", true))
            p { a href="/plan" { "Do not buy" } }
        }
    };
    Ok(Page::dashboard(&title, NavItem::Plan, viewer, content))
}
