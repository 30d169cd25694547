//! Tokens and orders, according to `openapi/checkout_orders_v2.json`.

use serde_json::{Value, json};

use super::call::{afterwards, answer, befall, begin, cents, failure, key, refused, unprocessable};
use super::fault::{Effect, Fault, Operation};
use super::merchant::{CLIENT_ID, CLIENT_SECRET};
use super::notices::{self, Delivery, Event};
use super::resources::{Order, Status, money};
use super::state::{Kept, Shared};
use crate::server::{Answer, Arrived};

pub(super) fn token(shared: &Shared, request: &Arrived) -> Answer {
    use base64::Engine as _;
    let effect = match befall(shared, Operation::Token) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let pair = format!("{CLIENT_ID}:{CLIENT_SECRET}");
    let basic = base64::engine::general_purpose::STANDARD.encode(pair);
    let authorised = request.header("authorization") == Some(&format!("Basic {basic}"));
    if !authorised || request.body != "grant_type=client_credentials".as_bytes() {
        return answer(
            401,
            &json!({"error": "invalid_client", "error_description": "Client Authentication failed"}),
        );
    }
    let token = shared.with(|state| {
        let token = format!("A21AAStandIn{}", state.number());
        state.tokens.insert(token.clone());
        token
    });
    let granted = json!({"scope": "https://uri.paypal.com/services/payments/payment https://uri.paypal.com/services/subscriptions", "access_token": token,
        "token_type": "Bearer", "app_id": "APP-STANDIN", "expires_in": 32400, "nonce": "stand-in"});
    afterwards(effect, answer(200, &granted))
}

pub(super) fn create(shared: &Shared, request: &Arrived) -> Answer {
    let effect = match begin(shared, request, Operation::Create) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let Ok(body) = serde_json::from_slice::<Value>(&request.body) else {
        return failure(400, "INVALID_REQUEST", Some("MALFORMED_REQUEST_JSON"));
    };
    let Some(key) = key(request) else {
        return failure(400, "INVALID_REQUEST", Some("PAYPAL_REQUEST_ID_REQUIRED"));
    };
    let unit = &body["purchase_units"][0];
    let context = &body["payment_source"]["paypal"]["experience_context"];
    let text = |value: &Value, most: usize| {
        let text = value
            .as_str()
            .filter(|text| (1..=most).contains(&text.len()));
        text.map(str::to_owned)
    };
    let (Some(cents), Some(return_url), Some(cancel_url), Some(custom_id), Some(invoice_id)) = (
        cents(&unit["amount"]),
        text(&context["return_url"], 4000),
        text(&context["cancel_url"], 4000),
        text(&unit["custom_id"], 127),
        text(&unit["invoice_id"], 127),
    ) else {
        return failure(400, "INVALID_REQUEST", Some("INVALID_PARAMETER_VALUE"));
    };
    if body["intent"] != "CAPTURE" {
        return failure(400, "INVALID_REQUEST", Some("INVALID_PARAMETER_VALUE"));
    }
    let kept = shared.with(|state| {
        let place = (Operation::Create, key.to_owned());
        if let Some(kept) = state.answers.get(&place) {
            return Kept {
                status: 200,
                ..kept.clone()
            };
        }
        let order = Order {
            id: format!("5O{:015}", state.number()),
            status: Status::PayerActionRequired,
            custom_id,
            invoice_id,
            description: unit["description"].as_str().unwrap_or_default().to_owned(),
            cents,
            return_url,
            cancel_url,
            capture: None,
            refunds: Vec::new(),
            lag: 0,
        };
        let mut body = shared.representation(&order);
        if effect == Some(Effect::StrangeLink) {
            body["links"][1]["href"] = json!("https://paypal.example.net/checkoutnow");
        }
        let kept = Kept { status: 201, body };
        state.answers.insert(place, kept.clone());
        state.orders.insert(order.id.clone(), order);
        kept
    });
    afterwards(effect, answer(kept.status, &kept.body))
}

pub(super) fn read(shared: &Shared, request: &Arrived, id: &str) -> Answer {
    let effect = match begin(shared, request, Operation::Read) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let representation = shared.with(|state| {
        let order = state.orders.get_mut(id)?;
        if order.status == Status::Approved && order.lag > 0 {
            order.lag -= 1;
            let behind = Order {
                status: Status::PayerActionRequired,
                ..order.clone()
            };
            return Some(shared.representation(&behind));
        }
        Some(shared.representation(order))
    });
    let Some(mut representation) = representation else {
        return failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID"));
    };
    if effect == Some(Effect::StrangeAmount) {
        representation["purchase_units"][0]["amount"]["value"] = json!("0.01");
        if let Some(capture) =
            representation["purchase_units"][0].pointer_mut("/payments/captures/0/amount")
        {
            capture["value"] = json!("0.01");
        }
    }
    afterwards(effect, answer(200, &representation))
}

pub(super) async fn capture(
    shared: &std::sync::Arc<Shared>,
    request: &Arrived,
    id: &str,
) -> Answer {
    let effect = match begin(shared, request, Operation::Capture) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let place = key(request).map(|key| (Operation::Capture, key.to_owned()));
    if effect == Some(Effect::Blackout) {
        let silence = Fault::once(Operation::Read, Effect::Unavailable).times(u32::MAX);
        shared.with(|state| state.faults.add(silence));
    }
    let (kept, event) = shared.with(|state| {
        let known = place.as_ref().and_then(|place| state.answers.get(place));
        if let Some(kept) = known {
            return (kept.clone(), None);
        }
        let number = state.number();
        let declined = effect == Some(Effect::Decline);
        let (kept, event) = match state.orders.get_mut(id) {
            None => (
                refused("RESOURCE_NOT_FOUND", 404, "INVALID_RESOURCE_ID"),
                None,
            ),
            Some(order) if order.capture.is_some() => {
                (unprocessable("ORDER_ALREADY_CAPTURED"), None)
            }
            Some(order) if order.status != Status::Approved => {
                (unprocessable("ORDER_NOT_APPROVED"), None)
            }
            Some(order) if declined => {
                order.status = Status::PayerActionRequired;
                (unprocessable("INSTRUMENT_DECLINED"), None)
            }
            Some(order) if !state.paid_invoices.insert(order.invoice_id.clone()) => {
                (unprocessable("DUPLICATE_INVOICE_ID"), None)
            }
            Some(order) => {
                let (status, kind) = match effect {
                    Some(Effect::Pending) => ("PENDING", "PAYMENT.CAPTURE.PENDING"),
                    _ => ("COMPLETED", "PAYMENT.CAPTURE.COMPLETED"),
                };
                order.status = Status::Completed;
                order.capture = Some((format!("3C{number:015}"), status));
                let body = shared.representation(order);
                let event = Event::new(kind, id);
                (Kept { status: 201, body }, Some(event))
            }
        };
        if let Some(place) = place {
            state.answers.insert(place, kept.clone());
        }
        (kept, event)
    });
    if let Some(event) = event {
        notices::send(shared, event);
    }
    if effect == Some(Effect::HoldAfter) {
        shared.gate.pass().await;
    }
    afterwards(effect, answer(kept.status, &kept.body))
}

pub(super) async fn approve(shared: &std::sync::Arc<Shared>, id: &str) -> bool {
    let approved = shared.with(|state| {
        let lag = state.lag;
        let Some(order) = state.orders.get_mut(id) else {
            return false;
        };
        if order.status == Status::Completed {
            return false;
        }
        order.status = Status::Approved;
        order.lag = lag;
        true
    });
    if approved {
        let event = Event::new("CHECKOUT.ORDER.APPROVED", id);
        notices::deliver(shared, &event, Delivery::Good).await;
    }
    approved
}

pub(super) async fn resolve(shared: &std::sync::Arc<Shared>, id: &str, arrives: bool) -> bool {
    let (word, kind) = match arrives {
        true => ("COMPLETED", "PAYMENT.CAPTURE.COMPLETED"),
        false => ("DECLINED", "PAYMENT.CAPTURE.DENIED"),
    };
    let resolved = shared.with(|state| {
        let capture = state
            .orders
            .get_mut(id)
            .and_then(|order| order.capture.as_mut());
        match capture {
            Some((_, status)) if *status == "PENDING" => {
                *status = word;
                true
            }
            _ => false,
        }
    });
    if resolved {
        notices::deliver(shared, &Event::new(kind, id), Delivery::Good).await;
    }
    resolved
}

pub(super) async fn refund(shared: &std::sync::Arc<Shared>, id: &str, cents: i64) -> bool {
    let refunded = shared.with(|state| {
        let number = state.number();
        let Some(order) = state.orders.get_mut(id) else {
            return false;
        };
        if cents <= 0 || order.kept_cents() < cents {
            return false;
        }
        order.refunds.push((format!("1R{number:015}"), cents));
        let left = order.kept_cents();
        if let Some((_, status)) = &mut order.capture {
            *status = if left == 0 {
                "REFUNDED"
            } else {
                "PARTIALLY_REFUNDED"
            };
        }
        true
    });
    if refunded {
        let event = Event::new("PAYMENT.CAPTURE.REFUNDED", id);
        notices::deliver(shared, &event, Delivery::Good).await;
    }
    refunded
}

impl Shared {
    /// An order in PayPal's format.
    pub(super) fn representation(&self, order: &Order) -> Value {
        let url = self.url();
        let own = format!("{url}/v2/checkout/orders/{}", order.id);
        let mut links = vec![json!({"href": own, "rel": "self", "method": "GET"})];
        match order.status {
            Status::PayerActionRequired => {
                let page = format!("{url}/checkoutnow?token={}", order.id);
                links.push(json!({"href": page, "rel": "payer-action", "method": "GET"}));
            }
            Status::Approved => {
                let capture = format!("{own}/capture");
                links.push(json!({"href": capture, "rel": "capture", "method": "POST"}));
            }
            Status::Completed => {}
        }
        let mut unit = json!({"reference_id": "credits", "custom_id": order.custom_id, "invoice_id": order.invoice_id,
            "description": order.description, "amount": money(order.cents),
            "payee": {"email_address": "merchant@example.com", "merchant_id": "STANDNMERCH22"}});
        if let Some((id, status)) = &order.capture {
            let capture = json!({"id": id, "status": status, "amount": money(order.cents), "final_capture": true,
                "invoice_id": order.invoice_id, "custom_id": order.custom_id,
                "create_time": "2026-11-01T12:00:05Z", "update_time": "2026-11-01T12:00:05Z",
                "links": [{"href": format!("{url}/v2/payments/captures/{id}"), "rel": "self", "method": "GET"}]});
            let refunds: Vec<Value> = order
                .refunds
                .iter()
                .map(|(id, cents)| {
                    json!({"id": id, "status": "COMPLETED", "amount": money(*cents), "custom_id": order.custom_id})
                })
                .collect();
            unit["payments"] = json!({"captures": [capture]});
            if !refunds.is_empty() {
                unit["payments"]["refunds"] = json!(refunds);
            }
        }
        json!({"id": order.id, "intent": "CAPTURE", "status": order.status.word(), "payment_source": {"paypal": {}},
            "purchase_units": [unit], "create_time": "2026-11-01T12:00:00Z", "links": links})
    }
}
