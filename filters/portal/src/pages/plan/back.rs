//! `/plan/back/{id}`: how far an agreement with PayPal has come.
//!
//! Buyers come back here from PayPal. What the address says then proves nothing; it makes the gateway look.

use std::time::Duration;

use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_money::MandateId;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{Page, Place};
use tollgate_purchase::mandates::{RECURRING_OFFERED, is_past_due};
use tollgate_purchase::plan::{PRICE, PlanState};
use tollgate_store::{MandateRow, MandateState, reading};

use crate::house::House;
use crate::pages::credits::usd;
use crate::trouble::Trouble;
use crate::visit::Visit;

/// How long a page waits for PayPal. The look goes on without it.
const LOOK: Duration = Duration::from_secs(6);

/// Seconds until a page that waits asks again.
const AGAIN_SECS: u32 = 3;

/// The same where the money may take days.
const AGAIN_SLOW_SECS: u32 = 60;

/// How long the first payment usually takes at most, microseconds.
const SOON: i64 = 5 * 60 * 1_000_000;

/// A mandate that was looked at so lately is not looked at again for a page.
const FRESH: i64 = 2_000_000;

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let account = visit.signed_in()?.account;
    let id: MandateId = visit
        .params
        .get("id")
        .parse()
        .map_err(|_| Trouble::NotFound)?;
    let row = reading(&house.store, move |store| store.mandate(id)).await?;
    // Another's is none.
    let mut row = row
        .filter(|row| row.account == account)
        .ok_or(Trouble::NotFound)?;
    let is_left = visit.query.text("from") == "cancel";
    if !is_left && visit.query.find("subscription_id").is_some() {
        look(house, id).await;
        // Loaded again, the page does not claim again that there is news.
        return Ok(visit.go(house, &format!("/plan/back/{id}?back=1")));
    }
    let is_back = visit.query.text("back") == "1";
    let waits = match row.state {
        MandateState::Open => is_back,
        MandateState::Agreed => true,
        _ => false,
    };
    if waits && visit.now - row.updated_at > FRESH {
        look(house, id).await;
        let again = reading(&house.store, move |store| store.mandate(id)).await?;
        row = again.ok_or(Trouble::NotFound)?;
    }
    let standing = house.plans.state(account).await;
    let view = View {
        row: &row,
        standing: standing.map_err(|error| Trouble::Store(Box::new(error)))?,
        is_back,
        is_left,
        now: visit.now,
        plan: &house.plans.plan().name,
    };
    let page = view.page(house, visit)?;
    Ok(visit.page(house, &page))
}

/// Looks at a mandate, and waits for it for a while.
async fn look(house: &House, id: MandateId) {
    let Some(mandates) = &house.mandates else {
        return;
    };
    // What came of it stands in the store, and what went wrong in the log.
    let _ = tokio::time::timeout(LOOK, mandates.verify(id)).await;
}

struct View<'a> {
    row: &'a MandateRow,
    standing: PlanState,
    /// The buyer has come back from PayPal.
    is_back: bool,
    /// The buyer has come back without having agreed.
    is_left: bool,
    now: i64,
    plan: &'a str,
}

impl View<'_> {
    fn page(&self, house: &House, visit: &Visit) -> Result<Page, Trouble> {
        use MandateState::{Active, Agreed, CancelPending, Created, Duplicate, Ended, Open};
        let viewer = visit.viewer(house)?;
        let is_offered = self.now - self.row.created_at < RECURRING_OFFERED.as_micros() as i64;
        let (title, inside, again) = match self.row.state {
            Active | CancelPending | Ended if self.standing.is_active() => {
                (format!("You have {}", self.plan), self.paid(), None)
            }
            Duplicate => (String::from("Plan"), self.surplus(), None),
            Agreed if is_past_due(self.row) => (String::from("Plan"), self.failed(), None),
            Agreed => self.waiting(
                html! { "PayPal has your agreement and has not confirmed the first payment yet. You will not be charged twice." },
                match self.now - self.row.agreed_at.unwrap_or(self.now) < SOON {
                    true => AGAIN_SECS,
                    false => AGAIN_SLOW_SECS,
                },
            ),
            Open if self.is_back && is_offered => self.waiting(
                html! {
                    (self.plan) " begins as soon as PayPal confirms. You will not be charged twice."
                    @if let Some(url) = &self.row.approve_url {
                        " If you have not agreed yet, " a href=(url) { "go back to PayPal" } "."
                    }
                },
                AGAIN_SECS,
            ),
            Open if is_offered => (format!("Buy {}", self.plan), self.offered(), None),
            Created => (format!("Buy {}", self.plan), self.unplaced(&viewer.csrf), None),
            _ => (String::from("Plan"), self.over(), None),
        };
        let page = Page::framed(&title, Place::Plan, viewer, inside);
        Ok(match again {
            Some(secs) => page.reloading(secs),
            None => page,
        })
    }

    /// The subscription is there; the buyer goes to PayPal.
    fn offered(&self) -> Markup {
        html! {
            @if self.is_left {
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

    /// The subscription was not made; the same one can be asked for again.
    fn unplaced(&self, csrf: &str) -> Markup {
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
            .map_or(self.now, |row| row.period_end);
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
                html! { "See how you pay there. PayPal may try again, and you can begin anew." }))
            (parts::heading("Plan", None))
            section.panel { p { (parts::link_button("/plan", "See your plan", true)) } }
        }
    }

    fn surplus(&self) -> Markup {
        html! {
            (parts::notice(Tone::Info, "This agreement is not needed.",
                html! { "It is cancelled at PayPal, and whatever it charged goes back to you." }))
            (parts::heading("Plan", None))
            section.panel { p { (parts::link_button("/plan", "See your plan", true)) } }
        }
    }

    fn over(&self) -> Markup {
        let is_ended = self.row.payment.is_some();
        html! {
            @if is_ended {
                (parts::notice(Tone::Info, "This agreement has ended.", html! { "PayPal charges nothing for it any more." }))
            } @else {
                (parts::notice(Tone::Bad, "This agreement has ended. Nothing was charged.", html! { "Start again if you still want it." }))
            }
            (parts::heading("Plan", None))
            section.panel { p { (parts::link_button("/plan", "See your plan", true)) } }
        }
    }

    fn waiting(&self, text: Markup, secs: u32) -> (String, Markup, Option<u32>) {
        let inside = html! {
            (parts::heading("Waiting for PayPal", None))
            section.panel role="status" {
                p { (text) }
                p.second { "This page looks again by itself. It is safe to close." }
                p { a href="/plan" { "See your plan" } }
            }
        };
        (String::from("Waiting for PayPal"), inside, Some(secs))
    }
}
