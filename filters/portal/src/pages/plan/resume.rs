//! `/plan/resume`: confirmation page, and resumption of a cancelled monthly payment within the paid period.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_filter::Reply;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_purchase::mandates::ChangeError;
use tollgate_purchase::plan::PRICE;

use super::cancel::standing;
use crate::amounts::usd;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

pub(crate) async fn confirm(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    // A draft stored before the identity check carries no fields of its own.
    let _ = request.take_draft(context).await?;
    let standing = standing(context, request).await?;
    let Some(due) = standing.resumable_until() else {
        return Ok(request.redirect(context, "/plan"));
    };
    let page = confirm_page(context, request, due, None)?;
    Ok(request.page(context, &page))
}

pub(crate) async fn resume(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    let Some(mandates) = &context.mandates else {
        tracing::error!("plan resumption failed: no payment provider is configured");
        return failed(context, request).await;
    };
    match mandates.resume(account).await {
        // Without PayPal's confirmation the request is stored. The plan page reports the stored request, and also a request made too late.
        Ok(_) | Err(ChangeError::UnderWay(_) | ChangeError::Nothing) => {
            Ok(request.redirect(context, "/plan"))
        }
        Err(error) => {
            tracing::warn!(%error, "plan resumption failed");
            failed(context, request).await
        }
    }
}

async fn failed(context: &PortalContext, request: &PageRequest) -> Result<Reply, PageError> {
    let standing = standing(context, request).await?;
    let notice = parts::notice(
        Tone::Bad,
        "The plan could not be resumed. It still ends.",
        html! { "Try again in a minute." },
    );
    let due = standing.resumable_until().unwrap_or(standing.now);
    let page = confirm_page(context, request, due, Some(notice))?;
    Ok(context
        .renderer
        .reply(StatusCode::SERVICE_UNAVAILABLE, &page))
}

fn confirm_page(
    context: &PortalContext,
    request: &PageRequest,
    due: Timestamp,
    notice: Option<Markup>,
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let plan = &context.plans.plan().name;
    let title = format!("Resume {plan}?");
    let content = html! {
        @if let Some(notice) = notice { (notice) }
        (parts::heading(&title, None))
        form.panel.stack.narrow-panel method="post" action="/plan/resume" {
            (parts::csrf(&viewer.csrf))
            p.figure { "You pay " (usd(PRICE)) " on " (format::date(due, request.now)) ", and every month after it." }
            p { "Your agreement at PayPal is used again. You can cancel at any time, and keep what is paid." }
            (parts::submit(&format!("Resume {plan}"), true))
            p { a href="/plan" { "Do not resume" } }
        }
    };
    Ok(Page::dashboard(&title, NavItem::Plan, viewer, content))
}
