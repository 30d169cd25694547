//! The routes of the API, the buyer's pages and the control calls.

use std::sync::Arc;

use http::Method;

use super::call::failure;
use super::state::Shared;
use super::{control, notices, orders, page, plans, subscriptions};
use crate::server::{Answer, Arrived, Handler};

impl Handler for Shared {
    async fn handle(self: Arc<Self>, request: Arrived) -> Answer {
        route(&self, &request).await
    }
}

async fn route(shared: &Arc<Shared>, request: &Arrived) -> Answer {
    let segments: Vec<&str> = request.path.split('/').skip(1).collect();
    let post = request.method == Method::POST;
    match segments[..] {
        ["_control", ..] => control::act(shared, request).await,
        ["v1", "oauth2", "token"] if post => orders::token(shared, request),
        ["v2", "checkout", "orders"] if post => orders::create(shared, request),
        ["v2", "checkout", "orders", id] if !post => orders::read(shared, request, id),
        ["v2", "checkout", "orders", id, "capture"] if post => {
            orders::capture(shared, request, id).await
        }
        ["v1", "notifications", "certs", _] if !post => notices::certificate(shared),
        ["v1", "notifications", "verify-webhook-signature"] if post => {
            notices::verify(shared, request)
        }
        ["v1", "catalogs", "products"] if post => plans::create_product(shared, request),
        ["v1", "catalogs", "products", id] if !post => plans::read_product(shared, request, id),
        ["v1", "billing", "plans"] if post => plans::create(shared, request),
        ["v1", "billing", "plans"] => plans::list(shared, request),
        ["v1", "billing", "plans", id] if !post => plans::read(shared, request, id),
        ["v1", "billing", "subscriptions"] if post => subscriptions::create(shared, request),
        ["v1", "billing", "subscriptions", id] if !post => subscriptions::read(shared, request, id),
        ["v1", "billing", "subscriptions", id, "transactions"] if !post => {
            subscriptions::transactions(shared, request, id).await
        }
        [
            "v1",
            "billing",
            "subscriptions",
            id,
            verb @ ("cancel" | "suspend" | "activate"),
        ] if post => subscriptions::change(shared, request, id, verb),
        ["v2", "payments", "captures", id, "refund"] if post => {
            subscriptions::refund(shared, request, id)
        }
        ["webapps", "billing", "subscriptions"] => page::agreement(shared, request).await,
        ["checkoutnow"] => page::checkout(shared, request).await,
        _ => failure(404, "RESOURCE_NOT_FOUND", None),
    }
}
