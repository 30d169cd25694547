//! The buyer's approval page: two buttons, for a person or a browser test.

use std::sync::Arc;

use http::Method;

use super::call::{failure, redirect, respond_with};
use super::resources::Status;
use super::state::Shared;
use super::{orders, subscriptions};
use crate::server::{Answer, Arrived};

pub(super) async fn checkout(shared: &Arc<Shared>, request: &Arrived) -> Answer {
    let id = request
        .query
        .split('&')
        .find_map(|pair| pair.strip_prefix("token="))
        .unwrap_or_default();
    let order = shared.with(|state| state.orders.get(id).cloned());
    let Some(order) = order else {
        return failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID"));
    };
    if request.method == Method::POST {
        if request.body.starts_with(b"agree") {
            orders::approve(shared, id).await;
            return redirect(&with_query(
                &order.return_url,
                &format!("token={id}&PayerID=STANDINPAYER"),
            ));
        }
        return redirect(&with_query(&order.cancel_url, &format!("token={id}")));
    }
    let (title, form) = match order.status {
        Status::Completed => (
            "This order is paid",
            format!(
                "<p><a href=\"{}\">Return to the merchant</a></p>",
                escaped(&order.return_url)
            ),
        ),
        _ => (
            "Pay with PayPal",
            String::from(
                "<form method=\"post\"><p><button name=\"agree\" value=\"1\">Pay now</button> \
                 <button name=\"cancel\" value=\"1\">Cancel and return</button></p></form>",
            ),
        ),
    };
    let text = format!(
        "{} for {}.{:02} USD",
        escaped(&order.description),
        order.cents / 100,
        order.cents % 100
    );
    respond_with(200, "text/html; charset=utf-8", framed(title, &text, &form))
}

/// The approval page for monthly charges.
pub(super) async fn agreement(shared: &Arc<Shared>, request: &Arrived) -> Answer {
    let token = request
        .query
        .split('&')
        .find_map(|pair| pair.strip_prefix("ba_token="))
        .unwrap_or_default();
    let subscription = shared.with(|state| {
        let mut all = state.subscriptions.values();
        all.find(|one| one.token == token).cloned()
    });
    let Some(subscription) = subscription else {
        return failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID"));
    };
    let id = &subscription.id;
    let back = format!("subscription_id={id}&ba_token={token}&token=EC-{id}");
    if request.method == Method::POST {
        if request.body.starts_with(b"agree") {
            subscriptions::approve(shared, id).await;
            return redirect(&with_query(&subscription.return_url, &back));
        }
        return redirect(&with_query(&subscription.cancel_url, &back));
    }
    let (title, form) = match subscription.status {
        "APPROVAL_PENDING" => (
            "Subscribe with PayPal",
            String::from(
                "<form method=\"post\"><p><button name=\"agree\" value=\"1\">Agree and subscribe</button> \
                 <button name=\"cancel\" value=\"1\">Cancel and return</button></p></form>",
            ),
        ),
        _ => (
            "You have agreed to this",
            format!(
                "<p><a href=\"{}\">Return to the merchant</a></p>",
                escaped(&subscription.return_url)
            ),
        ),
    };
    let text = format!(
        "{}.{:02} USD each month, until you end it",
        subscription.cents / 100,
        subscription.cents % 100
    );
    respond_with(200, "text/html; charset=utf-8", framed(title, &text, &form))
}

fn framed(title: &str, text: &str, form: &str) -> String {
    format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} (stand-in)</title>\
         <meta name=\"viewport\" content=\"width=device-width\"></head><body><main><h1>{title}</h1>\
         <p>This is a stand-in for PayPal. No money moves.</p><p>{text}</p>{form}</main></body></html>"
    )
}

fn with_query(url: &str, query: &str) -> String {
    let joint = if url.contains('?') { '&' } else { '?' };
    format!("{url}{joint}{query}")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;")
        .replace('<', "&lt;")
        .replace('"', "&quot;")
}
