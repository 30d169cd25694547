//! `/plan/cancel`: confirmation page and cancellation of the monthly payment.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_purchase::mandates::{ChangeError, is_stopped, resumable_after_cancel};
use tollgate_purchase::plan::PlanState;
use tollgate_store::MandateState;

use super::status;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

pub(crate) async fn confirm(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let standing = standing(context, request).await?;
    if !can_cancel(&standing) {
        return Ok(request.redirect(context, "/plan"));
    }
    let page = confirm_page(context, request, &standing, None)?;
    Ok(request.page(context, &page))
}

pub(crate) async fn cancel(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    let Some(mandates) = &context.mandates else {
        tracing::error!("plan cancellation failed: no payment provider is configured");
        return cancel_failed(context, request).await;
    };
    match mandates.cancel(account).await {
        // If PayPal has not confirmed yet, the cancellation is stored and the plan page says so.
        Ok(_) | Err(ChangeError::UnderWay(_) | ChangeError::Nothing) => {
            Ok(request.redirect(context, "/plan"))
        }
        Err(error) => {
            tracing::warn!(%error, "plan cancellation failed");
            cancel_failed(context, request).await
        }
    }
}

async fn cancel_failed(context: &PortalContext, request: &PageRequest) -> Result<Reply, PageError> {
    let standing = standing(context, request).await?;
    let notice = parts::notice(
        Tone::Bad,
        "The plan could not be cancelled. It still renews.",
        html! { "Try again in a minute." },
    );
    let page = confirm_page(context, request, &standing, Some(notice))?;
    Ok(context
        .renderer
        .reply(StatusCode::SERVICE_UNAVAILABLE, &page))
}

/// Whether a mandate with present or future charges exists.
pub(super) fn can_cancel(standing: &PlanState) -> bool {
    standing.mandate.as_ref().is_some_and(|row| {
        use MandateState::{Active, Agreed, Resuming};
        matches!(row.state, Active | Agreed | Resuming) || is_stopped(row)
    })
}

pub(super) async fn standing(
    context: &PortalContext,
    request: &PageRequest,
) -> Result<PlanState, PageError> {
    let account = request.require_session()?.account;
    let standing = context.plans.state(account).await;
    standing.map_err(|error| PageError::Store(Box::new(error)))
}

fn confirm_page(
    context: &PortalContext,
    request: &PageRequest,
    standing: &PlanState,
    notice: Option<Markup>,
) -> Result<Page, PageError> {
    let viewer = request.viewer(context)?;
    let plan = &context.plans.plan().name;
    let title = format!("Cancel {plan}?");
    let content = html! {
        @if let Some(notice) = notice { (notice) }
        (parts::heading(&title, None))
        form.panel.stack.narrow-panel method="post" action="/plan/cancel" {
            (parts::csrf(&viewer.csrf))
            @match standing.active() {
                Some(row) => p {
                    "You keep " (plan) " until " (format::date(status::end_of(row, request.now), request.now)) ". No more payments."
                    @if let Some(until) = standing.mandate.as_ref().and_then(|row| resumable_after_cancel(row, standing.now)) {
                        " You can resume it until " (format::date_time(until)) "."
                    }
                },
                None => p { "Nothing more is charged. A pending payment is returned to you." },
            }
            (parts::submit("Cancel plan", true))
            p { a href="/plan" { "Keep " (plan) } }
        }
    };
    Ok(Page::dashboard(&title, NavItem::Plan, viewer, content))
}
