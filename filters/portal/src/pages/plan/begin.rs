//! `/plan/begin`: what is paid each month and for what, looked at once more; its button has PayPal asked.

use http::StatusCode;
use maud::{Markup, html};
use tollgate_filter::Reply;
use tollgate_pages::parts::{self, Tone};
use tollgate_pages::{Page, Place};
use tollgate_purchase::FailureKind as Refusal;
use tollgate_purchase::mandates::{OpenError, Urls};
use tollgate_purchase::plan::PRICE;

use crate::house::House;
use crate::pages::credits::usd;
use crate::trouble::Trouble;
use crate::visit::Visit;

pub(crate) async fn show(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    // A form that waited until its sender had confirmed who they are brings nothing but itself.
    let _ = visit.draft(house).await?;
    let account = visit.signed_in()?.account;
    let standing = house.plans.state(account).await;
    let standing = standing.map_err(|error| Trouble::Store(Box::new(error)))?;
    let is_sold = match &house.mandates {
        Some(mandates) => mandates.is_sold().await,
        None => false,
    };
    if !is_sold || standing.is_active() {
        return Ok(visit.go(house, "/plan"));
    }
    let page = review(house, visit, None)?;
    Ok(visit.page(house, &page))
}

/// Has a subscription made, or finds the one that waits for its owner.
pub(crate) async fn begin(house: &House, visit: &mut Visit) -> Result<Reply, Trouble> {
    let Some(mandates) = &house.mandates else {
        return Ok(visit.go(house, "/plan"));
    };
    let account = visit.signed_in()?.account;
    let own = format!("{}/plan/back/{{mandate}}", house.service.base_url);
    let urls = Urls {
        cancel_url: format!("{own}?from=cancel"),
        return_url: own,
    };
    let (tone, lead, text) = match mandates.open(account, urls).await {
        Ok(row) => return Ok(visit.go(house, &format!("/plan/back/{}", row.id))),
        Err(OpenError::AlreadyActive(_)) => return Ok(visit.go(house, "/plan")),
        Err(OpenError::Processing(row)) => {
            return Ok(visit.go(house, &format!("/plan/back/{}?back=1", row.id)));
        }
        Err(OpenError::Provider(error)) if error.kind == Refusal::Refused => (
            Tone::Warn,
            "PayPal does not accept this. Nothing was charged.",
            "PayPal knows why: see your account there, then try again.",
        ),
        Err(OpenError::Provider(_) | OpenError::Closed(_)) => (
            Tone::Bad,
            "PayPal is not answering at the moment. Nothing was charged.",
            "Try again in a minute.",
        ),
        Err(error) => return Err(Trouble::Store(Box::new(error))),
    };
    let notice = parts::notice(tone, lead, html! { (text) });
    let page = review(house, visit, Some(notice))?;
    Ok(match tone {
        Tone::Warn => visit.refused(house, page),
        _ => house.look.reply(StatusCode::SERVICE_UNAVAILABLE, &page),
    })
}

fn review(house: &House, visit: &Visit, notice: Option<Markup>) -> Result<Page, Trouble> {
    let viewer = visit.viewer(house)?;
    let plan = house.plans.plan();
    let title = format!("Buy {}", plan.name);
    let inside = html! {
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
    Ok(Page::framed(&title, Place::Plan, viewer, inside))
}
