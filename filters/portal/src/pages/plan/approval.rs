//! `/plan/back/{id}`: state of a mandate after approval at PayPal.
//!
//! PayPal redirects buyers to this page. The query parameters prove no payment; the parameters trigger a reconciliation.

use std::time::Duration;

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_filter::Reply;
use tollgate_money::MandateId;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_purchase::mandates::{RECURRING_OFFERED, is_past_due};
use tollgate_purchase::plan::{PRICE, PlanState};
use tollgate_store::{MandateRow, MandateState, reading};

use super::status;
use crate::amounts::usd;
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

/// Time limit of a page for PayPal; the reconciliation continues in the background.
const PROVIDER_WAIT: Duration = Duration::from_secs(6);

/// Reload interval of a waiting page, in seconds.
const RELOAD_SECS: u32 = 3;

/// Reload interval while a payment may take days.
const RELOAD_SLOW_SECS: u32 = 60;

/// Usual maximum time until the first payment is confirmed.
const SOON: Duration = Duration::from_secs(5 * 60);

/// A mandate reconciled more recently than this is not reconciled again for a page.
const RECHECK_AFTER: Duration = Duration::from_secs(2);

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    let id: MandateId = request
        .params
        .get("id")
        .parse()
        .map_err(|_| PageError::NotFound)?;
    let row = reading(&context.store, move |store| store.mandate(id)).await?;
    // Mandates of other accounts are not found.
    let mut row = row
        .filter(|row| row.account == account)
        .ok_or(PageError::NotFound)?;
    let has_declined = request.query.text("from") == "cancel";
    if !has_declined && request.query.find("subscription_id").is_some() {
        reconcile(context, id).await;
        // A redirect, so that reloading the page does not trigger another reconciliation.
        return Ok(request.redirect(context, &format!("/plan/back/{id}?back=1")));
    }
    let has_returned = request.query.text("back") == "1";
    let is_waiting = match row.state {
        MandateState::Open => has_returned,
        MandateState::Agreed => true,
        _ => false,
    };
    if is_waiting && request.now.duration_since(row.updated_at) > RECHECK_AFTER {
        reconcile(context, id).await;
        let reread = reading(&context.store, move |store| store.mandate(id)).await?;
        row = reread.ok_or(PageError::NotFound)?;
    }
    let standing = context.plans.state(account).await;
    let view = View {
        row: &row,
        standing: standing.map_err(|error| PageError::Store(Box::new(error)))?,
        has_returned,
        has_declined,
        now: request.now,
        plan: &context.plans.plan().name,
    };
    let page = view.page(context, request)?;
    Ok(request.page(context, &page))
}

/// Reconciles a mandate, within the time limit.
async fn reconcile(context: &PortalContext, id: MandateId) {
    let Some(mandates) = &context.mandates else {
        return;
    };
    // The result is in the store, errors are in the log.
    let _ = tokio::time::timeout(PROVIDER_WAIT, mandates.verify(id)).await;
}

struct View<'a> {
    row: &'a MandateRow,
    standing: PlanState,
    /// The buyer returned from PayPal.
    has_returned: bool,
    /// The buyer returned without approving.
    has_declined: bool,
    now: Timestamp,
    plan: &'a str,
}

impl View<'_> {
    fn page(&self, context: &PortalContext, request: &PageRequest) -> Result<Page, PageError> {
        use MandateState::{
            Active, Agreed, CancelAtEnd, CancelPending, Created, Duplicate, Ended, Open, Resuming,
        };
        let viewer = request.viewer(context)?;
        let is_approvable = self.now.duration_since(self.row.created_at) < RECURRING_OFFERED;
        let (title, content, reload_secs) = match self.row.state {
            Active | CancelAtEnd | CancelPending | Ended | Resuming if self.standing.is_active() => {
                (format!("You have {}", self.plan), self.paid(), None)
            }
            Duplicate => (String::from("Plan"), self.duplicate(), None),
            Agreed if is_past_due(self.row) => (String::from("Plan"), self.failed(), None),
            Agreed => self.waiting(
                html! { "PayPal has your agreement and has not confirmed the first payment yet. You will not be charged twice." },
                match self.row.agreed_at {
                    Some(at) if self.now.duration_since(at) >= SOON => RELOAD_SLOW_SECS,
                    _ => RELOAD_SECS,
                },
            ),
            Open if self.has_returned && is_approvable => self.waiting(
                html! {
                    (self.plan) " begins as soon as PayPal confirms. You will not be charged twice."
                    @if let Some(url) = &self.row.approve_url {
                        " If you have not agreed yet, " a href=(url) { "go back to PayPal" } "."
                    }
                },
                RELOAD_SECS,
            ),
            Open if is_approvable => (format!("Buy {}", self.plan), self.approval(), None),
            Created => (format!("Buy {}", self.plan), self.not_created(&viewer.csrf), None),
            _ => (String::from("Plan"), self.ended(), None),
        };
        let page = Page::dashboard(&title, NavItem::Plan, viewer, content);
        Ok(match reload_secs {
            Some(secs) => page.reload_after(secs),
            None => page,
        })
    }

    /// The subscription exists and awaits approval at PayPal.
    fn approval(&self) -> Markup {
        html! {
            @if self.has_declined {
                (parts::notice(Tone::Info, "You did not agree. Nothing was charged.",
                    html! { "You can still agree, or leave it." }))
            }
            (parts::heading(&format!("Buy {}", self.plan), None))
            section.panel.stack.narrow-panel {
                p.figure { "You pay " (usd(PRICE)) " now, and again every month." }
                p { "You get " b { (self.plan) } " as soon as PayPal confirms." }
                @if let Some(url) = &self.row.approve_url {
                    p { (parts::link_button(url, "Continue to PayPal", true)) }
                }
                p { a href="/plan" { "Do not buy" } }
            }
        }
    }

    /// The subscription could not be created; the form retries it.
    fn not_created(&self, csrf: &str) -> Markup {
        html! {
            (parts::notice(Tone::Bad, "PayPal did not answer. Nothing was charged.", html! { "Try again in a minute." }))
            (parts::heading(&format!("Buy {}", self.plan), None))
            form.panel.stack.narrow-panel method="post" action="/plan/begin" {
                (parts::csrf(csrf))
                p.figure { "You pay " (usd(PRICE)) " now, and again every month." }
                (parts::submit("Pay with PayPal", true))
            }
        }
    }

    fn paid(&self) -> Markup {
        let end = self
            .standing
            .active()
            .map_or(self.now, |row| status::end_of(row, self.now));
        html! {
            (parts::notice(Tone::Good, &format!("You have {}", self.plan), html! { "PayPal has confirmed the payment." }))
            (parts::heading(&format!("You have {}", self.plan), None))
            section.panel aria-label="Payment" {
                dl.sum {
                    div { dt { "Each month" } dd.number { (usd(self.row.price)) } }
                    div { dt { "Paid until" } dd { (format::date(end, self.now)) } }
                    @if let Some(payment) = &self.row.payment {
                        div { dt { "PayPal transaction" } dd { (payment) } }
                    }
                    @if let Some(subscription) = &self.row.provider_ref {
                        div { dt { "PayPal subscription" } dd { (subscription) } }
                    }
                }
                p { (parts::link_button("/plan", "See your plan", true)) }
            }
        }
    }

    fn failed(&self) -> Markup {
        html! {
            (parts::notice(Tone::Warn, "PayPal could not collect the first payment. Nothing was charged.",
                html! { "Check your payment method there. PayPal may retry, or you can start again." }))
            (parts::heading("Plan", None))
            section.panel { p { (parts::link_button("/plan", "See your plan", true)) } }
        }
    }

    fn duplicate(&self) -> Markup {
        html! {
            (parts::notice(Tone::Info, "This agreement is not needed.",
                html! { "It is cancelled at PayPal, and anything it charged is returned to you." }))
            (parts::heading("Plan", None))
            section.panel { p { (parts::link_button("/plan", "See your plan", true)) } }
        }
    }

    fn ended(&self) -> Markup {
        let is_ended = self.row.payment.is_some();
        html! {
            @if is_ended {
                (parts::notice(Tone::Info, "This agreement has ended.", html! { "PayPal charges nothing more for it." }))
            } @else {
                (parts::notice(Tone::Bad, "This agreement has ended. Nothing was charged.", html! { "Start again if you still want it." }))
            }
            (parts::heading("Plan", None))
            section.panel { p { (parts::link_button("/plan", "See your plan", true)) } }
        }
    }

    fn waiting(&self, text: Markup, secs: u32) -> (String, Markup, Option<u32>) {
        let content = html! {
            (parts::heading("Waiting for PayPal", None))
            section.panel role="status" {
                p { (text) }
                p.second { "This page refreshes by itself. You can close it." }
                p { a href="/plan" { "See your plan" } }
            }
        };
        (String::from("Waiting for PayPal"), content, Some(secs))
    }
}
