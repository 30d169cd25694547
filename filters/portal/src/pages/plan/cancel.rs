//! `/plan/cancel`: ending the monthly payment, after one question.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_pages::format;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{Page, Place};
use tollgate_purchase::mandates::{CancelError, is_stopped};
use tollgate_purchase::plan::PlanState;
use tollgate_store::MandateState;

use crate::house::House;
use crate::trouble::Trouble;
use crate::visit::Visit;

pub(crate) async fn ask(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let standing = standing(house, visit).await?;
    if !can_be_ended(&standing) {
        return Ok(visit.go(house, "/plan"));
    }
    let page = question(house, visit, &standing, None)?;
    Ok(visit.page(house, &page))
}

pub(crate) async fn cancel(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let account = visit.signed_in()?.account;
    let Some(mandates) = &house.mandates else {
        tracing::error!("a plan was not ended: the settings name no payment provider");
        return not_ended(house, visit).await;
    };
    match mandates.cancel(account).await {
        // Where PayPal has not confirmed it yet, it is stored that it ends, and the plan's page says so.
        Ok(_) | Err(CancelError::UnderWay(_) | CancelError::Nothing) => {
            Ok(visit.go(house, "/plan"))
        }
        Err(error) => {
            tracing::warn!(%error, "a plan was not ended");
            not_ended(house, visit).await
        }
    }
}

async fn not_ended(house: &House, visit: &Visit) -> Result<Reply, Trouble> {
    let standing = standing(house, visit).await?;
    let notice = parts::notice(
        Tone::Bad,
        "The plan could not be cancelled. It still renews.",
        html! { "Try again in a minute." },
    );
    let page = question(house, visit, &standing, Some(notice))?;
    Ok(house.look.reply(StatusCode::SERVICE_UNAVAILABLE, &page))
}

/// Whether there is something that charges, or will.
pub(super) fn can_be_ended(standing: &PlanState) -> bool {
    standing.mandate.as_ref().is_some_and(|row| {
        matches!(row.state, MandateState::Active | MandateState::Agreed) || is_stopped(row)
    })
}

async fn standing(house: &House, visit: &Visit) -> Result<PlanState, Trouble> {
    let account = visit.signed_in()?.account;
    let standing = house.plans.state(account).await;
    standing.map_err(|error| Trouble::Store(Box::new(error)))
}

fn question(
    house: &House,
    visit: &Visit,
    standing: &PlanState,
    notice: Option<Markup>,
) -> Result<Page, Trouble> {
    let viewer = visit.viewer(house)?;
    let plan = &house.plans.plan().name;
    let title = format!("Cancel {plan}?");
    let inside = html! {
        @if let Some(notice) = notice { (notice) }
        (parts::heading(&title, None))
        form.panel.stack.narrow-panel method="post" action="/plan/cancel" {
            (parts::csrf(&viewer.csrf))
            @match standing.active() {
                Some(row) => p { "You keep " (plan) " until " (format::date(row.period_end, visit.now)) ". No more payments." },
                None => p { "Nothing is charged any more. A payment that is on its way goes back to you." },
            }
            (parts::submit("Cancel plan", true))
            p { a href="/plan" { "Keep " (plan) } }
        }
    };
    Ok(Page::framed(&title, Place::Plan, viewer, inside))
}
