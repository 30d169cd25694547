//! The page where a buyer agrees: two buttons, as a person or a browser test finds them.

use std::sync::Arc;

use http::Method;

use super::http::{Answer, Arrived, failure, redirect, respond_with};
use super::orders;
use super::state::{Shared, Status};

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
    let page = format!(
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><title>{title} (stand-in)</title>\
         <meta name=\"viewport\" content=\"width=device-width\"></head><body><main><h1>{title}</h1>\
         <p>This is a stand-in for PayPal. No money moves.</p><p>{} for {}.{:02} USD</p>{form}</main></body></html>",
        escaped(&order.description),
        order.cents / 100,
        order.cents % 100,
    );
    respond_with(200, "text/html; charset=utf-8", page)
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
