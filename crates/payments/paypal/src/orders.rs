//! Orders v2: create, read and capture (`openapi/checkout_orders_v2.json`).

use reqwest::Method;
use serde::{Deserialize, Serialize};
use tollgate_money::Usd;
use tollgate_purchase::{Capture, CaptureStatus, CreatedOrder, NewOrder, Order, OrderStatus};

use crate::client::{Call, Client};
use crate::error::{Error, ErrorKind};
use crate::wire::{Link, Money, approval_url, is_id, path_segment};

#[derive(Serialize)]
struct RequestBody<'a> {
    intent: &'static str,
    purchase_units: [UnitRequest<'a>; 1],
    payment_source: SourceRequest<'a>,
}

#[derive(Serialize)]
struct UnitRequest<'a> {
    reference_id: &'static str,
    custom_id: &'a str,
    invoice_id: &'a str,
    description: String,
    amount: Money,
}

#[derive(Serialize)]
struct SourceRequest<'a> {
    paypal: WalletRequest<'a>,
}

#[derive(Serialize)]
struct WalletRequest<'a> {
    experience_context: ExperienceRequest<'a>,
}

#[derive(Serialize)]
struct ExperienceRequest<'a> {
    brand_name: &'a str,
    shipping_preference: &'static str,
    user_action: &'static str,
    payment_method_preference: &'static str,
    return_url: &'a str,
    cancel_url: &'a str,
}

#[derive(Deserialize)]
struct Answer {
    id: String,
    status: String,
    #[serde(default)]
    purchase_units: Vec<Unit>,
    #[serde(default)]
    links: Vec<Link>,
}

#[derive(Deserialize)]
struct Unit {
    amount: Option<Money>,
    custom_id: Option<String>,
    #[serde(default)]
    payments: Payments,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct Payments {
    captures: Vec<CaptureAnswer>,
    refunds: Vec<RefundAnswer>,
}

#[derive(Deserialize)]
struct CaptureAnswer {
    id: String,
    status: String,
    amount: Option<Money>,
    custom_id: Option<String>,
}

#[derive(Deserialize)]
struct RefundAnswer {
    status: String,
    amount: Option<Money>,
}

impl Client {
    /// Creates an order. Idempotent by its key of 1 to 108 characters, for six hours.
    pub async fn create_order(&self, order: &NewOrder<'_>) -> Result<CreatedOrder, Error> {
        const WHAT: &str = "create order";
        // Returned with the order, and unique among payments.
        let id = order.top_up.to_string();
        let body = RequestBody {
            intent: "CAPTURE",
            purchase_units: [UnitRequest {
                reference_id: "credits",
                custom_id: &id,
                invoice_id: &id,
                description: order.description.chars().take(127).collect(),
                amount: order.price.into(),
            }],
            payment_source: SourceRequest {
                paypal: WalletRequest {
                    experience_context: ExperienceRequest {
                        brand_name: &self.shared.settings.brand,
                        shipping_preference: "NO_SHIPPING",
                        user_action: "PAY_NOW",
                        payment_method_preference: "IMMEDIATE_PAYMENT_REQUIRED",
                        return_url: order.return_url,
                        cancel_url: order.cancel_url,
                    },
                },
            },
        };
        let body = serde_json::to_vec(&body).expect("texts and amounts serialise");
        let answer: Answer = self
            .call(Call {
                method: Method::POST,
                path: "/v2/checkout/orders",
                what: WHAT,
                key: Some(order.key),
                body: Some(body),
            })
            .await?;
        let unclear = |detail: &str| Error::new(ErrorKind::OutcomeUnknown, WHAT, detail);
        if !is_id(&answer.id) {
            return Err(unclear("the order id is malformed"));
        }
        let approve_url = approval_url(&answer.links, self.environment())
            .ok_or_else(|| unclear("the answer has no approval link of PayPal's"))?;
        Ok(CreatedOrder {
            order: answer.id,
            approve_url,
        })
    }

    /// Reads an order.
    pub async fn order(&self, id: &str) -> Result<Order, Error> {
        const WHAT: &str = "read order";
        let path = format!("/v2/checkout/orders/{}", path_segment(id, WHAT)?);
        let answer: Answer = self
            .call(Call {
                method: Method::GET,
                path: &path,
                what: WHAT,
                key: None,
                body: None,
            })
            .await?;
        answer
            .read(id)
            .map_err(|detail| Error::new(ErrorKind::OutcomeUnknown, WHAT, detail))
    }

    /// Captures the payment of an approved order; idempotent by its key, and once per order. Read the outcome with [`Client::order`].
    pub async fn capture_order(&self, id: &str, key: &str) -> Result<(), Error> {
        const WHAT: &str = "capture order";
        let path = format!("/v2/checkout/orders/{}/capture", path_segment(id, WHAT)?);
        let _: serde::de::IgnoredAny = self
            .call(Call {
                method: Method::POST,
                path: &path,
                what: WHAT,
                key: Some(key),
                body: Some(b"{}".to_vec()),
            })
            .await?;
        Ok(())
    }
}

impl Answer {
    fn read(mut self, id: &str) -> Result<Order, &'static str> {
        if self.id != id {
            return Err("the answer is about another order");
        }
        let status = match &*self.status {
            "CREATED" | "SAVED" | "PAYER_ACTION_REQUIRED" => OrderStatus::Waiting,
            "APPROVED" => OrderStatus::Approved,
            "COMPLETED" => OrderStatus::Completed,
            "VOIDED" => OrderStatus::Voided,
            _ => return Err("the order has an unknown status"),
        };
        let unit = match self.purchase_units.len() {
            1 => self.purchase_units.remove(0),
            _ => return Err("the order does not have exactly one purchase unit"),
        };
        let mut captures = Vec::with_capacity(unit.payments.captures.len());
        let mut all_back = Usd::ZERO;
        for capture in &unit.payments.captures {
            let amount = capture.amount.as_ref().and_then(Money::usd);
            let status = match &*capture.status {
                "COMPLETED" | "PARTIALLY_REFUNDED" => CaptureStatus::Completed,
                "REFUNDED" => {
                    all_back = amount.unwrap_or(all_back);
                    CaptureStatus::Completed
                }
                "PENDING" => CaptureStatus::Pending,
                "DECLINED" | "FAILED" => CaptureStatus::Declined,
                _ => return Err("a payment has an unknown status"),
            };
            captures.push(Capture {
                id: capture.id.clone(),
                status,
                amount,
            });
        }
        let came = |status| captures.iter().filter(move |one| one.status == status);
        if came(CaptureStatus::Completed).count() > 1 {
            return Err("the order was paid more than once");
        }
        let refunded = unit
            .payments
            .refunds
            .iter()
            .filter(|refund| refund.status == "COMPLETED")
            .filter_map(|refund| refund.amount.as_ref().and_then(Money::usd))
            .fold(0i64, |sum, one| sum.saturating_add(one.cents()));
        let custom_id = unit.custom_id.or_else(|| {
            unit.payments
                .captures
                .into_iter()
                .find_map(|one| one.custom_id)
        });
        // A declined attempt may be listed beside the successful one.
        captures.sort_by_key(|capture| capture.status);
        Ok(Order {
            status,
            price: unit.amount.as_ref().and_then(Money::usd),
            top_up: custom_id,
            returned: all_back.max(Usd::from_cents(refunded)),
            capture: captures.pop(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Order, &'static str> {
        let answer: Answer = serde_json::from_str(text).expect("an answer");
        answer.read("5O190127TN364715T")
    }

    fn order(status: &str, payments: &str) -> String {
        format!(
            r#"{{"id":"5O190127TN364715T","status":"{status}","intent":"CAPTURE","create_time":"2026-11-01T12:00:00Z",
               "purchase_units":[{{"reference_id":"credits","custom_id":"topup_1",
                 "amount":{{"currency_code":"USD","value":"20.00"}},"payments":{payments}}}],
               "links":[]}}"#
        )
    }

    fn capture(status: &str) -> String {
        format!(
            r#"{{"captures":[{{"id":"3C679366HH908993F","status":"{status}","custom_id":"topup_1",
                "amount":{{"currency_code":"USD","value":"20.00"}},"final_capture":true}}]}}"#
        )
    }

    #[test]
    fn an_order_is_parsed_with_its_payment() {
        let twenty = Usd::from_cents(2_000);
        for (status, expected) in [
            ("CREATED", OrderStatus::Waiting),
            ("PAYER_ACTION_REQUIRED", OrderStatus::Waiting),
            ("APPROVED", OrderStatus::Approved),
            ("VOIDED", OrderStatus::Voided),
        ] {
            let order = read(&order(status, "{}")).expect("an order");
            assert_eq!((order.status, order.capture), (expected, None), "{status}");
            assert_eq!(order.price, Some(twenty));
            assert_eq!(order.top_up.as_deref(), Some("topup_1"));
        }
        for (status, expected, returned) in [
            ("COMPLETED", CaptureStatus::Completed, Usd::ZERO),
            ("PENDING", CaptureStatus::Pending, Usd::ZERO),
            ("DECLINED", CaptureStatus::Declined, Usd::ZERO),
            ("FAILED", CaptureStatus::Declined, Usd::ZERO),
            ("REFUNDED", CaptureStatus::Completed, twenty),
        ] {
            let order = read(&order("COMPLETED", &capture(status))).expect("an order");
            let found = order.capture.expect("a payment");
            assert_eq!(
                (found.status, order.returned),
                (expected, returned),
                "{status}"
            );
            assert_eq!(found.amount, Some(twenty));
        }
    }

    #[test]
    fn completed_refunds_add_up() {
        let refund = |status: &str, value: &str| {
            format!(
                r#"{{"id":"1","status":"{status}","amount":{{"currency_code":"USD","value":"{value}"}}}}"#
            )
        };
        let payments = format!(
            r#"{{"captures":[{{"id":"C","status":"PARTIALLY_REFUNDED","amount":{{"currency_code":"USD","value":"20.00"}}}}],
               "refunds":[{},{},{}]}}"#,
            refund("COMPLETED", "5.00"),
            refund("PENDING", "7.00"),
            refund("COMPLETED", "0.50"),
        );
        let order = read(&order("COMPLETED", &payments)).expect("an order");
        assert_eq!(order.returned, Usd::from_cents(550));
    }

    #[test]
    fn a_completed_capture_takes_precedence_over_a_declined_one() {
        let payments = r#"{"captures":[
            {"id":"GOOD","status":"COMPLETED","amount":{"currency_code":"USD","value":"20.00"}},
            {"id":"BAD","status":"DECLINED","amount":{"currency_code":"USD","value":"20.00"}}]}"#;
        let found = read(&order("COMPLETED", payments))
            .expect("an order")
            .capture;
        assert_eq!(found.expect("a payment").id, "GOOD");
    }

    #[test]
    fn an_order_with_unknown_values_is_rejected() {
        let twice = r#"{"captures":[
            {"id":"A","status":"COMPLETED","amount":{"currency_code":"USD","value":"20.00"}},
            {"id":"B","status":"COMPLETED","amount":{"currency_code":"USD","value":"20.00"}}]}"#;
        for text in [
            order("NEW_WORD", "{}"),
            order("COMPLETED", &capture("NEW_WORD")),
            order("COMPLETED", twice),
            order("APPROVED", "{}").replace("5O190127TN364715T", "OTHER"),
            String::from(r#"{"id":"5O190127TN364715T","status":"APPROVED","purchase_units":[]}"#),
        ] {
            assert!(read(&text).is_err(), "{text}");
        }
    }
}
