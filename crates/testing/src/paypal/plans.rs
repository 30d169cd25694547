//! Catalog products and billing plans, according to `openapi/catalogs_products_v1.json` and `openapi/billing_subscriptions_v1.json`.

use serde_json::{Value, json};

use super::call::{afterwards, answer, begin, cents, failure, key, refused};
use super::fault::Operation;
use super::resources::{Plan, money};
use super::state::{Kept, Shared};
use crate::server::{Answer, Arrived};

pub(super) fn create_product(shared: &Shared, request: &Arrived) -> Answer {
    let effect = match begin(shared, request, Operation::Plan) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let (Some(name), Some(kind)) = (body["name"].as_str(), body["type"].as_str()) else {
        return failure(400, "INVALID_REQUEST", Some("MISSING_REQUIRED_PARAMETER"));
    };
    let kept = shared.with(|state| {
        let number = state.number();
        let id = body["id"]
            .as_str()
            .map_or_else(|| format!("PROD-{number:017}"), str::to_owned);
        if state.products.contains_key(&id) {
            return refused("RESOURCE_CONFLICT", 409, "DUPLICATE_RESOURCE_IDENTIFIER");
        }
        let made = json!({"id": id, "name": name, "type": kind, "create_time": "2026-11-01T12:00:00Z",
            "update_time": "2026-11-01T12:00:00Z", "links": [{"href": format!("{}/v1/catalogs/products/{id}", shared.url()),
            "rel": "self", "method": "GET"}]});
        state.products.insert(id, made.clone());
        Kept {
            status: 201,
            body: made,
        }
    });
    afterwards(effect, answer(kept.status, &kept.body))
}

pub(super) fn read_product(shared: &Shared, request: &Arrived, id: &str) -> Answer {
    if let Err(answer) = begin(shared, request, Operation::Plan) {
        return *answer;
    }
    match shared.with(|state| state.products.get(id).cloned()) {
        Some(product) => answer(200, &product),
        None => failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID")),
    }
}

pub(super) fn create(shared: &Shared, request: &Arrived) -> Answer {
    let effect = match begin(shared, request, Operation::Plan) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let price = &body["billing_cycles"][0]["pricing_scheme"]["fixed_price"];
    let (Some(product_id), Some(cents), true, true) = (
        body["product_id"].as_str(),
        cents(price),
        body["name"].is_string(),
        body["payment_preferences"].is_object(),
    ) else {
        return failure(400, "INVALID_REQUEST", Some("MISSING_REQUIRED_PARAMETER"));
    };
    let kept = shared.with(|state| {
        let place = key(request).map(|key| (Operation::Plan, key.to_owned()));
        if let Some(kept) = place.as_ref().and_then(|place| state.answers.get(place)) {
            return Kept {
                status: 200,
                ..kept.clone()
            };
        }
        if !state.products.contains_key(product_id) {
            return refused("RESOURCE_NOT_FOUND", 404, "INVALID_RESOURCE_ID");
        }
        let plan = Plan {
            id: format!("P-{:024}", state.number()),
            product_id: product_id.to_owned(),
            status: "ACTIVE",
            cents,
            body: body.clone(),
        };
        let kept = Kept {
            status: 201,
            body: shared.plan_json(&plan),
        };
        if let Some(place) = place {
            state.answers.insert(place, kept.clone());
        }
        state.plans.insert(plan.id.clone(), plan);
        kept
    });
    afterwards(effect, answer(kept.status, &kept.body))
}

pub(super) fn read(shared: &Shared, request: &Arrived, id: &str) -> Answer {
    let effect = match begin(shared, request, Operation::Plan) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    match shared.with(|state| state.plans.get(id).map(|plan| shared.plan_json(plan))) {
        Some(plan) => afterwards(effect, answer(200, &plan)),
        None => failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID")),
    }
}

pub(super) fn list(shared: &Shared, request: &Arrived) -> Answer {
    let effect = match begin(shared, request, Operation::Plan) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let mut pairs = request.query.split('&');
    let product = pairs.find_map(|pair| pair.strip_prefix("product_id="));
    let plans: Vec<Value> = shared.with(|state| {
        let of_product = state
            .plans
            .values()
            .filter(|plan| product.is_none_or(|product| plan.product_id == product));
        // The list has fewer fields than each of its plans.
        of_product
            .map(|plan| {
                let own = format!("{}/v1/billing/plans/{}", shared.url(), plan.id);
                json!({"id": plan.id, "status": plan.status, "name": plan.body["name"],
                    "create_time": "2026-11-01T12:00:00Z", "links": [{"href": own, "rel": "self", "method": "GET"}]})
            })
            .collect()
    });
    let own = format!("{}/v1/billing/plans", shared.url());
    let links = json!([{"href": own, "rel": "self", "method": "GET"}]);
    afterwards(
        effect,
        answer(200, &json!({"plans": plans, "links": links})),
    )
}

impl Shared {
    /// A plan in PayPal's format.
    fn plan_json(&self, plan: &Plan) -> Value {
        let mut representation = plan.body.clone();
        representation["id"] = json!(plan.id);
        representation["product_id"] = json!(plan.product_id);
        representation["status"] = json!(plan.status);
        representation["quantity_supported"] = json!(false);
        representation["billing_cycles"][0]["pricing_scheme"]["fixed_price"] = money(plan.cents);
        representation["billing_cycles"][0]["pricing_scheme"]["version"] = json!(1);
        representation["create_time"] = json!("2026-11-01T12:00:00Z");
        representation["update_time"] = json!("2026-11-01T12:00:00Z");
        let own = format!("{}/v1/billing/plans/{}", self.url(), plan.id);
        representation["links"] = json!([{"href": own, "rel": "self", "method": "GET"}]);
        representation
    }
}
