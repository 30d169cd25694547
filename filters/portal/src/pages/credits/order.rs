//! `/credits/add/{id}`: state of a credit purchase, and its receipt.
//!
//! PayPal redirects buyers to this page. The query parameters prove no payment; the parameters trigger a reconciliation.

use std::time::Duration;

use maud::{Markup, html};
use tollgate_clock::Timestamp;
use tollgate_filter::Reply;
use tollgate_money::TopUpId;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{NavItem, Page};
use tollgate_purchase::OFFERED;
use tollgate_store::{TopUpRow, TopUpState, reading};

use crate::amounts::{amount, usd};
use crate::context::PortalContext;
use crate::page_error::PageError;
use crate::page_request::PageRequest;

/// Time limit of a page for PayPal; the reconciliation continues in the background.
const PROVIDER_WAIT: Duration = Duration::from_secs(6);

/// Reload interval of a waiting page, in seconds.
const RELOAD_SECS: u32 = 3;

/// Reload interval while a payment may take days.
const RELOAD_SLOW_SECS: u32 = 60;

/// A purchase reconciled more recently than this is not reconciled again for a page.
const RECHECK_AFTER: Duration = Duration::from_secs(2);

pub(crate) async fn show(
    context: &PortalContext,
    request: &mut PageRequest,
) -> Result<Reply, PageError> {
    let account = request.require_session()?.account;
    let id: TopUpId = request
        .params
        .get("id")
        .parse()
        .map_err(|_| PageError::NotFound)?;
    let row = reading(&context.store, move |store| store.top_up(id)).await?;
    // Purchases of other accounts are not found.
    let mut row = row
        .filter(|row| row.account == account)
        .ok_or(PageError::NotFound)?;
    let own = request
        .return_path()
        .append_to(&format!("/credits/add/{id}"));
    let joint = if own.contains('?') { '&' } else { '?' };
    if request.query.text("from") == "paypal" {
        reconcile(context, id, true).await;
        // A redirect, so that reloading the page does not trigger another reconciliation.
        return Ok(request.redirect(context, &format!("{own}{joint}back=1")));
    }
    let has_returned = request.query.text("back") == "1";
    let is_waiting = match row.state {
        TopUpState::Open => has_returned,
        TopUpState::Capturing | TopUpState::Pending => true,
        _ => false,
    };
    if is_waiting && request.now.duration_since(row.updated_at) > RECHECK_AFTER {
        reconcile(context, id, false).await;
        let reread = reading(&context.store, move |store| store.top_up(id)).await?;
        row = reread.ok_or(PageError::NotFound)?;
    }
    let view = View {
        row: &row,
        has_returned,
        has_declined: request.query.text("from") == "cancel",
        now: request.now,
        next: request
            .return_path()
            .has_target()
            .then(|| request.return_path().as_str().to_owned()),
    };
    let page = view.page(context, request)?;
    Ok(request.page(context, &page))
}

/// Reconciles a purchase, within the time limit.
async fn reconcile(context: &PortalContext, id: TopUpId, notified: bool) {
    let Some(top_ups) = &context.top_ups else {
        return;
    };
    // The result is in the store, errors are in the log.
    let _ = tokio::time::timeout(PROVIDER_WAIT, top_ups.reconcile(id, notified)).await;
}

struct View<'a> {
    row: &'a TopUpRow,
    /// The buyer returned from PayPal.
    has_returned: bool,
    /// The buyer returned without approving.
    has_declined: bool,
    now: Timestamp,
    /// The return path.
    next: Option<String>,
}

impl View<'_> {
    fn page(&self, context: &PortalContext, request: &PageRequest) -> Result<Page, PageError> {
        let viewer = request.viewer(context)?;
        let row = self.row;
        let is_approvable = self.now.duration_since(row.created_at) < OFFERED;
        let (title, content, reload_secs) = match row.state {
            TopUpState::Captured => ("Credits added", self.receipt(), None),
            TopUpState::Capturing => waiting(
                html! { "Credits appear as soon as PayPal confirms. You will not be charged twice." },
                RELOAD_SECS,
            ),
            TopUpState::Pending => waiting(
                html! { "PayPal has your payment and is waiting for the money, which can take days. Credits appear as soon as it is there. You will not be charged twice." },
                RELOAD_SLOW_SECS,
            ),
            TopUpState::Open if self.has_returned && row.declines == 0 && is_approvable => {
                let text = html! {
                    "Credits appear as soon as PayPal confirms. You will not be charged twice."
                    @if let Some(url) = &row.approve_url {
                        " If you have not paid yet, " a href=(url) { "go back to PayPal" } "."
                    }
                };
                waiting(text, RELOAD_SECS)
            }
            TopUpState::Open if is_approvable => ("Add credits", self.approval(), None),
            TopUpState::Created => ("Add credits", self.not_created(&viewer.csrf), None),
            _ => ("Add credits", self.ended(), None),
        };
        let page = Page::dashboard(title, NavItem::Credits, viewer, content);
        Ok(match reload_secs {
            Some(secs) => page.reload_after(secs),
            None => page,
        })
    }

    /// The order exists and awaits approval at PayPal.
    fn approval(&self) -> Markup {
        let row = self.row;
        html! {
            @if row.declines > 0 {
                (parts::notice(Tone::Bad, "PayPal could not collect the payment. Nothing was charged.",
                    html! { "Choose another way to pay at PayPal." }))
            } @else if self.has_declined {
                (parts::notice(Tone::Info, "You did not pay. Nothing was charged.",
                    html! { "You can still pay, or leave it." }))
            }
            (parts::heading("Add credits", None))
            section.panel.stack.narrow-panel {
                p.figure { "You pay " (usd(row.price)) " now, once." }
                p { "You get " b { (amount(row.credits)) " credits" } " as soon as PayPal confirms." }
                @if let Some(url) = &row.approve_url {
                    p { (parts::link_button(url, "Continue to PayPal", true)) }
                }
                p { a href="/credits" { "Do not pay" } }
            }
        }
    }

    /// The order could not be created; the form retries under this id.
    fn not_created(&self, csrf: &str) -> Markup {
        let row = self.row;
        html! {
            (parts::notice(Tone::Bad, "PayPal did not answer. Nothing was charged.", html! { "Try again in a minute." }))
            (parts::heading("Add credits", None))
            form.panel.stack.narrow-panel method="post" action="/credits/add" {
                (parts::csrf(csrf))
                input type="hidden" name="id" value=(row.id);
                input type="hidden" name="amount" value=(row.price);
                @if let Some(next) = &self.next { input type="hidden" name="next" value=(next); }
                p.figure { "You pay " (usd(row.price)) " now, once." }
                (parts::submit(&format!("Pay {} with PayPal", usd(row.price)), true))
            }
        }
    }

    fn ended(&self) -> Markup {
        let (lead, text) = match self.row.note.as_deref() {
            Some("expired" | "voided" | "no order") | None => (
                "This order has ended. Nothing was charged.",
                "Start again if you still want credits.",
            ),
            _ => (
                "PayPal did not complete the payment. Nothing was charged.",
                "Try again, or choose another way to pay at PayPal.",
            ),
        };
        html! {
            (parts::notice(Tone::Bad, lead, html! { (text) }))
            (parts::heading("Add credits", None))
            section.panel {
                p { (parts::link_button("/credits/add", "Start again", true)) }
                p { a href="/credits" { "See your credits" } }
            }
        }
    }

    /// The receipt of a completed purchase.
    fn receipt(&self) -> Markup {
        let row = self.row;
        html! {
            (parts::notice(Tone::Good, &format!("{} credits added", amount(row.credits)), html! { "You paid " (usd(row.price)) ", once." }))
            (parts::heading("Credits added", None))
            section.panel aria-label="Receipt" {
                h2 { "Receipt" }
                dl.sum {
                    div { dt { "Paid" } dd.number { (usd(row.price)) } }
                    div { dt { "Credits" } dd.number { (format::credits_6(row.credits)) } }
                    @if row.returned.is_positive() {
                        div { dt { "Returned by PayPal" } dd.number { (usd(row.returned)) } }
                        div { dt { "Credits taken back" } dd.number { (format::signed_credits_6(-row.taken_back)) } }
                    }
                    div { dt { "Date" } dd { (format::date_time(row.created_at)) } }
                    @if let Some(capture) = &row.capture {
                        div { dt { "PayPal transaction" } dd { (capture) } }
                    }
                    div { dt { "Purchase" } dd { (row.id) } }
                    div { dt { "Account" } dd { (row.account) } }
                }
                @match &self.next {
                    Some(next) => p { (parts::link_button(next, "Continue", true)) },
                    None => p { (parts::link_button("/credits", "See your credits", true)) },
                }
            }
        }
    }
}

fn waiting(text: Markup, secs: u32) -> (&'static str, Markup, Option<u32>) {
    let content = html! {
        (parts::heading("Waiting for PayPal", None))
        section.panel role="status" {
            p { (text) }
            p.second { "This page refreshes by itself. You can close it." }
            p { a href="/credits" { "See your credits" } }
        }
    };
    ("Waiting for PayPal", content, Some(secs))
}
