//! Serialisation of checkouts in the format of the protocol and of the service.
//!
//! The only difference: the protocol's `capabilities` is an object, the service's a list.

use serde_json::{Map, Value, json};
use tollgate_module::Snapshot;
use tollgate_purchase::checkouts::{Status, View};
use tollgate_purchase::plan::{PRICE, PaymentState, Plan, RetryAction};
use tollgate_purchase::wire::Product;

use super::CHECKOUT;
use super::negotiation::Common;

/// Id of the only line item.
const LINE: &str = "1";

/// Merchant data in checkouts.
#[derive(Clone, Debug)]
pub(crate) struct MerchantInfo {
    /// Base URL of the service, without a trailing slash.
    pub(crate) base_url: String,
    pub(crate) plan: Plan,
    /// The plan as documents describe it.
    pub(crate) product: Snapshot<Product>,
    /// Links to legal documents: `terms_of_service` and the like, with their URLs.
    pub(crate) links: Vec<(&'static str, String)>,
}

/// An adjustment of a request that the response must report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Notice {
    /// Quantity reduced to one.
    QuantityAdjusted,
    /// Unknown items were removed.
    ItemUnavailable,
    /// An eligibility claim was ignored.
    EligibilityNotAccepted,
}

/// Negotiated version of the protocol, and capabilities with theirs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Negotiated {
    version: &'static str,
    capabilities: Map<String, Value>,
}

impl Negotiated {
    /// Capabilities assumed for a platform without negotiation.
    pub(crate) fn granted(version: &'static str) -> Negotiated {
        Negotiated::of(version, &Common::from([(CHECKOUT, version)]))
    }

    /// The negotiated capabilities.
    pub(crate) fn of(version: &'static str, common: &Common) -> Negotiated {
        let entry =
            |(name, version): (&&str, &&str)| ((*name).to_owned(), json!([{"version": version}]));
        Negotiated {
            version,
            capabilities: common.iter().map(entry).collect(),
        }
    }
}

/// A checkout in the format of the protocol (UCP 2026-04-08, Checkout; `schemas/shopping/checkout.json`).
pub(crate) fn protocol(
    view: &View,
    merchant: &MerchantInfo,
    negotiated: &Negotiated,
    notices: &[Notice],
) -> Value {
    let status = view.status();
    let has_plan = view.row.state != tollgate_store::CheckoutState::Incomplete;
    let cents = if has_plan { PRICE.cents() } else { 0 };
    let totals = json!([
        {"type": "subtotal", "amount": cents},
        {"type": "total", "amount": cents},
    ]);
    let (payment_state, retry_action) = next_step(status);
    let mut session = json!({
        "ucp": {
            "version": negotiated.version,
            "status": "success",
            "capabilities": negotiated.capabilities,
            "payment_handlers": {},
        },
        "id": view.row.id.to_string(),
        "status": status.word(),
        "currency": "USD",
        "line_items": lines(merchant, has_plan, &totals),
        "totals": totals,
        "links": merchant.links.iter().map(|(kind, url)| json!({"type": kind, "url": url})).collect::<Vec<_>>(),
        "messages": messages(merchant, status, has_plan, notices),
        "expires_at": view.row.expires_at.rfc3339(),
        "payment_state": payment_state.word(),
        "retry_action": retry_action.word(),
    });
    let members = session
        .as_object_mut()
        .expect("it was created as an object");
    if !status.is_final() && has_plan {
        let url = format!("{}/commerce/continue/{}", merchant.base_url, view.row.id);
        members.insert("continue_url".into(), url.into());
    }
    if let Some(buyer) = &view.row.buyer {
        // It was valid JSON when stored.
        let buyer = serde_json::from_str(buyer).unwrap_or_else(|_| json!({}));
        members.insert("buyer".into(), buyer);
    }
    if let Some(subscription) = &view.row.subscription {
        let order = json!({
            "id": subscription.to_string(),
            "label": format!("{}, each month", merchant.plan.name),
            "permalink_url": format!("{}/plan", merchant.base_url),
        });
        members.insert("order".into(), order);
    }
    session
}

/// The same in the format of the service (`UcpCheckoutSession`): capabilities as a list of names, and two statuses.
pub(crate) fn service(mut session: Value) -> Value {
    if let Value::Object(map) = &session["ucp"]["capabilities"] {
        let mut names: Vec<String> = map.keys().cloned().collect();
        names.sort();
        session["ucp"]["capabilities"] = names.into();
    }
    if session["status"] != Status::Completed.word() {
        session["status"] = Status::Incomplete.word().into();
    }
    session
}

/// An error response without a checkout (`schemas/shopping/types/error_response.json`).
pub(crate) fn error(version: &str, code: &str, content: &str, path: Option<&str>) -> Value {
    let mut message = json!({
        "type": "error",
        "code": code,
        "content": content,
        "severity": "unrecoverable",
    });
    if let Some(path) = path {
        message["path"] = path.into();
    }
    json!({"ucp": {"version": version, "status": "error"}, "messages": [message]})
}

fn lines(merchant: &MerchantInfo, has_plan: bool, totals: &Value) -> Value {
    if !has_plan {
        return json!([]);
    }
    json!([{
        "id": LINE,
        "item": {
            "id": &*merchant.plan.product,
            // The protocol has no member for recurring charges, so the title states the recurrence; otherwise a platform could present the
            // price as a one-time payment.
            "title": format!("{}: {PRICE} USD each month until canceled", merchant.plan.name),
            "price": PRICE.cents(),
        },
        "quantity": 1,
        "totals": totals,
    }])
}

fn messages(
    merchant: &MerchantInfo,
    status: Status,
    has_plan: bool,
    notices: &[Notice],
) -> Vec<Value> {
    let mut messages: Vec<Value> = notices
        .iter()
        .map(|remark| match remark {
            Notice::QuantityAdjusted => json!({
                "type": "warning", "code": "quantity_adjusted", "path": "$.line_items[0].quantity",
                "content": "An account can have the plan once; the quantity was set to 1.",
            }),
            Notice::ItemUnavailable => json!({
                "type": "warning", "code": "item_unavailable", "path": "$.line_items",
                "content": "Some requested items are not sold here and were removed.",
            }),
            Notice::EligibilityNotAccepted => json!({
                "type": "warning", "code": "eligibility_not_accepted", "path": "$.context.eligibility",
                "content": "The price is the same for all buyers; eligibility claims are not accepted.",
            }),
        })
        .collect();
    match status {
        Status::Incomplete => messages.push(json!({
            "type": "error", "code": "missing_line_item", "severity": "recoverable", "path": "$.line_items",
            "content": "The checkout is empty. Update it with the plan as its line item.",
        })),
        Status::RequiresEscalation => messages.push(json!({
            "type": "error", "code": "recurring_authorization_required", "severity": "requires_buyer_review",
            "content": "The account owner must approve a monthly payment of 199 USD.",
        })),
        Status::ReadyForComplete => messages.push(json!({
            "type": "info", "code": "approval_returned",
            "content": "The account owner returned from PayPal. Complete the checkout to verify the payment.",
        })),
        Status::CompleteInProgress => messages.push(json!({
            "type": "info", "code": "payment_processing",
            "content": "The account owner has approved. The checkout is completed when the first payment is confirmed; do not pay again.",
        })),
        Status::Completed | Status::Canceled => {}
    }
    if has_plan && !status.is_final() {
        messages.push(json!({
            "type": "info", "code": "plan_includes", "path": "$.line_items[0]",
            "content": format!("Each payment buys: {}.", merchant.product.load().includes()),
        }));
        messages.push(json!({
            "type": "warning", "code": "recurring_charge", "path": "$.line_items[0]", "presentation": "disclosure",
            "content": "199 USD are charged by PayPal each month until the account owner cancels the plan.",
        }));
    }
    messages
}

/// Payment state and retry action of a status.
fn next_step(status: Status) -> (PaymentState, RetryAction) {
    match status {
        Status::Incomplete => (PaymentState::Required, RetryAction::Pay),
        Status::RequiresEscalation => {
            (PaymentState::ApprovalPending, RetryAction::ApproveThenRetry)
        }
        Status::ReadyForComplete | Status::CompleteInProgress => {
            (PaymentState::Processing, RetryAction::RetrySame)
        }
        Status::Completed => (PaymentState::Paid, RetryAction::None),
        Status::Canceled => (PaymentState::Required, RetryAction::PayAgain),
    }
}
