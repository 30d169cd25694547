//! Webhook notifications, signed with the stand-in's own certificate.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use serde_json::{Value, json};

use super::call::{afterwards, answer, befall, failure, respond_with};
use super::fault::Operation;
use super::merchant::WEBHOOK_ID;
use super::resources::{Order, money};
use super::state::Shared;
use crate::client::Client;
use crate::server::{Answer, Arrived};

/// An event of an order or a subscription.
#[derive(Clone, Debug)]
pub struct Event {
    /// The id; two transmissions of one event have the same. `None` for a new one.
    pub id: Option<String>,
    /// The event type, such as `CHECKOUT.ORDER.APPROVED`.
    pub kind: String,
    /// The order, or the subscription.
    pub order: String,
}

impl Event {
    /// A new event.
    pub fn new(kind: &str, order: &str) -> Event {
        Event {
            id: None,
            kind: kind.to_owned(),
            order: order.to_owned(),
        }
    }
}

/// A notification's validity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivery {
    /// As PayPal sends it.
    Good,
    /// Signed, and then serialised again with other whitespace.
    Respaced,
    /// Signed with the right key, whose certificate is on another host.
    StrangeCertificate,
    /// With a signature of another body.
    WrongSignature,
    /// Without PayPal's header fields.
    Unsigned,
    /// Signed four days ago.
    Old,
    /// Signed for another webhook.
    OtherWebhook,
}

/// Sends an event asynchronously.
pub(super) fn send(shared: &Arc<Shared>, event: Event) {
    let shared = shared.clone();
    tokio::spawn(async move { deliver(&shared, &event, Delivery::Good).await });
}

/// Sends an event to the webhook URL, and returns the response status; 0 for no response, or no URL.
pub(super) async fn deliver(shared: &Arc<Shared>, event: &Event, delivery: Delivery) -> u16 {
    let Some(url) = shared.with(|state| state.notices_to.clone()) else {
        return 0;
    };
    let (body, number) = shared.body(event);
    let now = shared.now();
    let sent_at = match delivery {
        Delivery::Old => now - Duration::from_hours(4 * 24),
        _ => now,
    };
    let time = sent_at.rfc3339();
    let transmission = format!("8e0a1c30-b6d1-11f0-9b0e-{number:012x}");
    let webhook = match delivery {
        Delivery::OtherWebhook => "0AB00000000000000",
        _ => WEBHOOK_ID,
    };
    let sum = crc32fast::hash(body.as_bytes());
    let mut signature = shared
        .signer
        .sign(&format!("{transmission}|{time}|{webhook}|{sum}"));
    if delivery == Delivery::WrongSignature {
        signature = shared.signer.sign("something else");
    }
    let certificate = match delivery {
        Delivery::StrangeCertificate => {
            String::from("https://certificates.example.net/v1/notifications/certs/CERT-1")
        }
        _ => format!("{}/v1/notifications/certs/CERT-standin-1", shared.url()),
    };
    let body = match delivery {
        Delivery::Respaced => body.replace("\":\"", "\": \""),
        _ => body,
    };
    let at = url.find("://").map_or(0, |at| at + 3);
    let (origin, path) = match url[at..].find('/') {
        Some(slash) => url.split_at(at + slash),
        None => (&*url, "/"),
    };
    let client = Client::new(origin);
    let mut request = client.request("POST", path, Bytes::from(body));
    if delivery != Delivery::Unsigned {
        for (name, value) in [
            ("paypal-transmission-id", &*transmission),
            ("paypal-transmission-time", &*time),
            ("paypal-transmission-sig", &*signature),
            ("paypal-cert-url", &*certificate),
            ("paypal-auth-algo", "SHA256withRSA"),
        ] {
            let value = value.parse().expect("visible ASCII");
            request.headers_mut().insert(name, value);
        }
    }
    match client.try_send(request).await {
        Ok(answer) => answer.status,
        Err(_) => 0,
    }
}

pub(super) fn certificate(shared: &Shared) -> Answer {
    match befall(shared, Operation::Certificate) {
        Ok(effect) => afterwards(
            effect,
            respond_with(
                200,
                "application/x-x509-ca-cert",
                shared.signer.cert_pem.clone(),
            ),
        ),
        Err(answer) => *answer,
    }
}

/// PayPal's own verification, with the event from the request.
pub(super) fn verify(shared: &Shared, request: &Arrived) -> Answer {
    let effect = match befall(shared, Operation::Verify) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let question: Value = match serde_json::from_slice(&request.body) {
        Ok(question) => question,
        Err(_) => return failure(400, "INVALID_REQUEST", None),
    };
    let text = String::from_utf8_lossy(&request.body);
    let event = text
        .split_once("\"webhook_event\":")
        .map_or("", |(_, rest)| &rest[..rest.len() - 1]);
    let field = |name: &str| question[name].as_str().unwrap_or_default();
    let signed = format!(
        "{}|{}|{}|{}",
        field("transmission_id"),
        field("transmission_time"),
        field("webhook_id"),
        crc32fast::hash(event.as_bytes())
    );
    // PKCS #1 v1.5 is deterministic: the same text has the same signature.
    let genuine = shared.signer.sign(&signed) == field("transmission_sig");
    let word = if genuine { "SUCCESS" } else { "FAILURE" };
    afterwards(effect, answer(200, &json!({ "verification_status": word })))
}

impl Shared {
    /// The event as sent, and a unique number.
    fn body(&self, event: &Event) -> (String, u64) {
        self.with(|state| {
            let number = state.number();
            let id = event.id.clone().unwrap_or_else(|| format!("WH-STANDIN-{number}"));
            if let Some(subscription) = state.subscriptions.get(&event.order) {
                let is_sale = event.kind.starts_with("PAYMENT.SALE.");
                let (resource_type, resource) = match is_sale {
                    true => ("sale", self.sale_json(subscription, &event.kind)),
                    false => ("subscription", self.subscription_json(subscription)),
                };
                return (envelope(&id, event, resource_type, &resource), number);
            }
            let order = state.orders.get(&event.order);
            let is_order = event.kind.starts_with("CHECKOUT.ORDER.");
            let is_back = matches!(&*event.kind, "PAYMENT.CAPTURE.REFUNDED" | "PAYMENT.CAPTURE.REVERSED");
            let refund = order.and_then(|order| order.refunds.last()).filter(|_| is_back);
            let resource_type = match (is_order, refund) {
                (true, _) => "checkout-order",
                (false, Some(_)) => "refund",
                (false, None) => "capture",
            };
            let resource = match order {
                Some(order) if is_order => self.representation(order),
                Some(order) if refund.is_some() => self.refund_json(order),
                Some(order) => {
                    let capture = order.capture.as_ref();
                    json!({"id": capture.map(|(id, _)| id), "status": capture.map(|(_, status)| status),
                        "amount": money(order.cents), "custom_id": order.custom_id, "invoice_id": order.invoice_id,
                        "supplementary_data": {"related_ids": {"order_id": order.id}}})
                }
                None => json!({"id": event.order}),
            };
            (envelope(&id, event, resource_type, &resource), number)
        })
    }

    /// The newest refund of an order as in a PayPal notification: it contains neither the order nor the purchase, only a link to the
    /// payment.
    fn refund_json(&self, order: &Order) -> Value {
        let url = format!("{}/v2/payments", self.url());
        let refund = order.refunds.last();
        let capture = order.capture.as_ref().map_or("", |(id, _)| id);
        let id = refund.map_or("", |(id, _)| id);
        json!({"id": id, "status": "COMPLETED", "amount": money(refund.map_or(0, |(_, cents)| *cents)),
            "create_time": "2026-11-01T12:00:00Z", "update_time": "2026-11-01T12:00:00Z",
            "links": [{"href": format!("{url}/refunds/{id}"), "rel": "self", "method": "GET"},
                {"href": format!("{url}/captures/{capture}"), "rel": "up", "method": "GET"}]})
    }
}

fn envelope(id: &str, event: &Event, resource_type: &str, resource: &Value) -> String {
    json!({"id": id, "event_version": "1.0", "create_time": "2026-11-01T12:00:00.000Z",
        "resource_type": resource_type, "resource_version": "2.0",
        "event_type": event.kind, "summary": "From a stand-in", "resource": resource, "links": []})
    .to_string()
}
