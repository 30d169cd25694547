//! Subscriptions and their charges, according to `openapi/billing_subscriptions_v1.json`, and refunds of Payments v2.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_clock::Timestamp;

use super::call::{afterwards, answer, begin, failure, key, nothing, refused, unprocessable};
use super::fault::{Effect, Operation};
use super::notices::{self, Delivery, Event};
use super::resources::{Charge, Purse, Subscription, money};
use super::state::{Kept, Shared, State};
use crate::server::{Answer, Arrived};

pub(super) fn create(shared: &Arc<Shared>, request: &Arrived) -> Answer {
    let effect = match begin(shared, request, Operation::Subscribe) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let Ok(body) = serde_json::from_slice::<Value>(&request.body) else {
        return failure(400, "INVALID_REQUEST", Some("MALFORMED_REQUEST_JSON"));
    };
    let Some(key) = key(request) else {
        return failure(400, "INVALID_REQUEST", Some("MISSING_REQUIRED_PARAMETER"));
    };
    let context = &body["application_context"];
    let text = |value: &Value, most: usize| {
        let text = value
            .as_str()
            .filter(|text| (1..=most).contains(&text.len()));
        text.map(str::to_owned)
    };
    let (Some(plan_id), Some(custom_id), Some(return_url), Some(cancel_url)) = (
        text(&body["plan_id"], 50),
        text(&body["custom_id"], 127),
        text(&context["return_url"], 4000),
        text(&context["cancel_url"], 4000),
    ) else {
        return failure(400, "INVALID_REQUEST", Some("INVALID_PARAMETER_VALUE"));
    };
    if body.get("quantity").is_some() {
        let issue = "SUBSCRIPTION_CANNOT_HAVE_QUANTITY";
        return failure(422, "UNPROCESSABLE_ENTITY", Some(issue));
    }
    let now = shared.now();
    let (kept, made) = shared.with(|state| {
        let place = (Operation::Subscribe, key.to_owned());
        if let Some(kept) = state.answers.get(&place) {
            let known = Kept {
                status: 200,
                ..kept.clone()
            };
            return (known, None);
        }
        let cents = match state.plans.get(&plan_id) {
            None => {
                let gone = refused("RESOURCE_NOT_FOUND", 404, "INVALID_RESOURCE_ID");
                return (gone, None);
            }
            Some(plan) if plan.status != "ACTIVE" => {
                return (unprocessable("PLAN_STATUS_INVALID"), None);
            }
            Some(plan) => plan.cents,
        };
        let number = state.number();
        let made = Subscription {
            id: format!("I-STANDIN{number:05}"),
            token: format!("BA-{number:017}"),
            plan_id,
            custom_id,
            status: "APPROVAL_PENDING",
            cents,
            return_url,
            cancel_url,
            charges: Vec::new(),
            next_charge: None,
            purse: state.purse,
            lag: 0,
            unlisted: 0,
            made_at: now,
            failed_at: None,
            tries: 0,
        };
        let mut body = shared.subscription_json(&made);
        if effect == Some(Effect::StrangeLink) {
            body["links"][0]["href"] = json!("https://paypal.example.net/webapps/billing");
        }
        let kept = Kept { status: 201, body };
        state.answers.insert(place, kept.clone());
        let id = made.id.clone();
        state.subscriptions.insert(id.clone(), made);
        (kept, Some(id))
    });
    if let Some(id) = made {
        notices::send(shared, Event::new("BILLING.SUBSCRIPTION.CREATED", &id));
    }
    afterwards(effect, answer(kept.status, &kept.body))
}

pub(super) fn read(shared: &Shared, request: &Arrived, id: &str) -> Answer {
    let effect = match begin(shared, request, Operation::Subscription) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let representation = shared.with(|state| {
        let subscription = state.subscriptions.get_mut(id)?;
        if subscription.status != "APPROVAL_PENDING" && subscription.lag > 0 {
            subscription.lag -= 1;
            let behind = Subscription {
                status: "APPROVAL_PENDING",
                charges: Vec::new(),
                ..subscription.clone()
            };
            return Some(shared.subscription_json(&behind));
        }
        Some(shared.subscription_json(subscription))
    });
    match representation {
        Some(representation) => afterwards(effect, answer(200, &representation)),
        None => failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID")),
    }
}

pub(super) async fn transactions(shared: &Shared, request: &Arrived, id: &str) -> Answer {
    let effect = match begin(shared, request, Operation::Transactions) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    if effect == Some(Effect::HoldAfter) {
        shared.gate.pass().await;
    }
    let bound = |name: &str| {
        let mut pairs = request
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        let (_, text) = pairs.find(|(known, _)| *known == name)?;
        Timestamp::from_rfc3339(text)
    };
    // Both are required.
    let (Some(from), Some(to)) = (bound("start_time"), bound("end_time")) else {
        return failure(400, "INVALID_REQUEST", Some("MISSING_REQUIRED_PARAMETER"));
    };
    let representation = shared.with(|state| {
        let listed_max = state.listed_max;
        let subscription = state.subscriptions.get_mut(id)?;
        let mut charges = subscription.charges.clone();
        if subscription.unlisted > 0 {
            subscription.unlisted -= 1;
            charges.pop();
        }
        let mut listed: Vec<Value> = charges
            .iter()
            .filter(|charge| (from..=to).contains(&charge.at))
            .map(charge_json)
            .collect();
        // Newest first, as at PayPal.
        listed.reverse();
        let total = listed.len();
        let page = match listed_max {
            0 => total.max(1),
            most => most,
        };
        listed.truncate(page);
        let href = format!(
            "{}/v1/billing/subscriptions/{id}/transactions",
            shared.url()
        );
        Some(
            json!({"transactions": listed, "total_items": total, "total_pages": total.div_ceil(page),
            "links": [{"href": href, "rel": "self", "method": "GET"}]}),
        )
    });
    match representation {
        Some(representation) => afterwards(effect, answer(200, &representation)),
        None => failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID")),
    }
}

/// Actions `cancel`, `suspend` and `activate`.
pub(super) fn change(shared: &Arc<Shared>, request: &Arrived, id: &str, verb: &str) -> Answer {
    let effect = match begin(shared, request, Operation::End) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let body: Value = serde_json::from_slice(&request.body).unwrap_or_default();
    let has_reason = body["reason"]
        .as_str()
        .is_some_and(|reason| (1..=128).contains(&reason.len()));
    if !has_reason {
        return failure(400, "INVALID_REQUEST", Some("MISSING_REQUIRED_PARAMETER"));
    }
    let changed = shared.with(|state| {
        let subscription = state.subscriptions.get_mut(id).ok_or(404u16)?;
        let event = match (verb, subscription.status) {
            ("cancel", "ACTIVE" | "SUSPENDED") => {
                subscription.status = "CANCELLED";
                subscription.next_charge = None;
                "BILLING.SUBSCRIPTION.CANCELLED"
            }
            ("suspend", "ACTIVE") => {
                subscription.status = "SUSPENDED";
                "BILLING.SUBSCRIPTION.SUSPENDED"
            }
            ("activate", "SUSPENDED" | "APPROVED") => {
                subscription.status = "ACTIVE";
                "BILLING.SUBSCRIPTION.ACTIVATED"
            }
            _ => return Err(422),
        };
        Ok(event)
    });
    match changed {
        Ok(event) => {
            notices::send(shared, Event::new(event, id));
            afterwards(effect, nothing())
        }
        Err(404) => failure(404, "RESOURCE_NOT_FOUND", Some("INVALID_RESOURCE_ID")),
        Err(status) => {
            let issue = Some("SUBSCRIPTION_STATUS_INVALID");
            failure(status, "UNPROCESSABLE_ENTITY", issue)
        }
    }
}

/// Refunds a charge in full. A charge of no subscription is not found.
pub(super) fn refund(shared: &Arc<Shared>, request: &Arrived, charge: &str) -> Answer {
    let effect = match begin(shared, request, Operation::Refund) {
        Ok(effect) => effect,
        Err(answer) => return *answer,
    };
    let (kept, event) = shared.with(|state| {
        let place = key(request).map(|key| (Operation::Refund, key.to_owned()));
        if let Some(kept) = place.as_ref().and_then(|place| state.answers.get(place)) {
            return (kept.clone(), None);
        }
        let number = state.number();
        let found = state.subscriptions.values_mut().find_map(|subscription| {
            let mut charges = subscription.charges.iter_mut();
            let charge = charges.find(|one| one.id == charge)?;
            Some((subscription.id.clone(), charge))
        });
        let (kept, event) = match found {
            None => (refused("RESOURCE_NOT_FOUND", 404, "INVALID_RESOURCE_ID"), None),
            Some((_, charge)) if charge.status == "REFUNDED" => {
                (unprocessable("CAPTURE_FULLY_REFUNDED"), None)
            }
            Some((_, charge)) if charge.status != "COMPLETED" => {
                (unprocessable("CAPTURE_STATUS_NOT_VALID"), None)
            }
            Some((id, charge)) => {
                charge.status = "REFUNDED";
                let body = json!({"id": format!("1R{number:015}"), "status": "COMPLETED", "amount": money(charge.cents),
                    "links": [{"href": format!("{}/v2/payments/captures/{}", shared.url(), charge.id), "rel": "up", "method": "GET"}]});
                (Kept { status: 201, body }, Some(Event::new("PAYMENT.SALE.REFUNDED", &id)))
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
    afterwards(effect, answer(kept.status, &kept.body))
}

/// The buyer approves; false when the subscription does not exist, or it is too late.
pub(super) async fn approve(shared: &Arc<Shared>, id: &str) -> bool {
    let now = shared.now();
    let events = shared.with(|state| {
        let (lag, number) = (state.lag, state.number());
        let subscription = state.subscriptions.get_mut(id)?;
        if subscription.status != "APPROVAL_PENDING" {
            return None;
        }
        subscription.status = "ACTIVE";
        subscription.lag = lag;
        subscription.next_charge = Some(now);
        let mut events = vec!["BILLING.SUBSCRIPTION.ACTIVATED"];
        events.extend(subscription.charge(now, number));
        Some(events)
    });
    notify(shared, id, events).await
}

/// Charges a subscription that waits for it.
pub(super) async fn charge(shared: &Arc<Shared>, id: &str) -> bool {
    let now = shared.now();
    let events = shared.with(|state| {
        let number = state.number();
        let subscription = state.subscriptions.get_mut(id)?;
        if !subscription.runs() {
            return None;
        }
        if subscription.purse == Purse::Late {
            subscription.purse = Purse::Full;
        }
        Some(subscription.charge(now, number))
    });
    notify(shared, id, events).await
}

/// A pending payment arrives, or does not.
pub(super) async fn resolve(shared: &Arc<Shared>, id: &str, arrives: bool) -> bool {
    let events = shared.with(|state| {
        let subscription = state.subscriptions.get_mut(id)?;
        let mut charges = subscription.charges.iter_mut().rev();
        let charge = charges.find(|charge| charge.status == "PENDING")?;
        let (status, event) = match arrives {
            true => ("COMPLETED", "PAYMENT.SALE.COMPLETED"),
            false => ("DECLINED", "PAYMENT.SALE.DENIED"),
        };
        charge.status = status;
        Some(vec![event])
    });
    notify(shared, id, events).await
}

/// The newest paid charge is returned, as a refund or a chargeback.
pub(super) async fn give_back(shared: &Arc<Shared>, id: &str, event: &'static str) -> bool {
    let events = shared.with(|state| {
        let subscription = state.subscriptions.get_mut(id)?;
        let mut charges = subscription.charges.iter_mut().rev();
        let charge = charges.find(|charge| charge.status == "COMPLETED")?;
        charge.status = "REFUNDED";
        Some(vec![event])
    });
    notify(shared, id, events).await
}

/// Cancels, suspends or activates a subscription on PayPal's own pages.
pub(super) async fn set(shared: &Arc<Shared>, id: &str, status: &'static str) -> bool {
    let events = shared.with(|state| {
        let subscription = state.subscriptions.get_mut(id)?;
        subscription.status = status;
        let event = match status {
            "CANCELLED" => "BILLING.SUBSCRIPTION.CANCELLED",
            "SUSPENDED" => "BILLING.SUBSCRIPTION.SUSPENDED",
            "EXPIRED" => "BILLING.SUBSCRIPTION.EXPIRED",
            _ => "BILLING.SUBSCRIPTION.ACTIVATED",
        };
        Some(vec![event])
    });
    notify(shared, id, events).await
}

/// Advances the clock, and whatever is due is charged.
pub(super) async fn pass(shared: &Arc<Shared>, time: Duration) {
    let end = shared.now() + time;
    let mut left = time;
    loop {
        let representation = shared.with(|state| {
            let due = |one: &&mut Subscription| one.runs() && one.next_charge.is_some();
            let State {
                subscriptions,
                count,
                ahead,
                ..
            } = state;
            let next = subscriptions
                .values_mut()
                .filter(due)
                .min_by_key(|one| one.next_charge)?;
            let at = next.next_charge.filter(|at| *at <= end)?;
            // Never backwards: a missed charge is charged late.
            *ahead += at.duration_since(end - left);
            left = left.min(end.duration_since(at));
            *count += 1;
            let events = next.charge(at, *count);
            if events.is_empty() {
                // One that waits to be charged by hand.
                next.next_charge = None;
            }
            Some((next.id.clone(), events))
        });
        let Some((id, events)) = representation else {
            break;
        };
        notify(shared, &id, Some(events)).await;
    }
    shared.with(|state| state.ahead += left);
}

async fn notify(shared: &Arc<Shared>, id: &str, events: Option<Vec<&'static str>>) -> bool {
    let Some(events) = events else {
        return false;
    };
    for event in events {
        notices::deliver(shared, &Event::new(event, id), Delivery::Good).await;
    }
    true
}

fn charge_json(charge: &Charge) -> Value {
    json!({"id": charge.id, "status": charge.status, "time": charge.at.rfc3339(), "payer_email": "buyer@example.com",
        "payer_name": {"given_name": "Mara", "surname": "Example"},
        "amount_with_breakdown": {"gross_amount": money(charge.cents), "fee_amount": money(725), "net_amount": money(charge.cents - 725)}})
}

impl Shared {
    /// A subscription in PayPal's format.
    pub(super) fn subscription_json(&self, subscription: &Subscription) -> Value {
        let url = self.url();
        let own = format!("{url}/v1/billing/subscriptions/{}", subscription.id);
        let mut links = vec![
            json!({"href": own, "rel": "edit", "method": "PATCH"}),
            json!({"href": own, "rel": "self", "method": "GET"}),
        ];
        let is_pending = subscription.status == "APPROVAL_PENDING";
        if is_pending {
            let page = format!(
                "{url}/webapps/billing/subscriptions?ba_token={}",
                subscription.token
            );
            links.insert(0, json!({"href": page, "rel": "approve", "method": "GET"}));
        }
        let made_at = subscription.made_at.rfc3339();
        let mut representation = json!({"id": subscription.id, "plan_id": subscription.plan_id, "status": subscription.status,
            "status_update_time": made_at, "start_time": made_at, "create_time": made_at, "update_time": made_at, "quantity": "1",
            "plan_overridden": false, "custom_id": subscription.custom_id, "links": links});
        if is_pending {
            return representation;
        }
        representation["subscriber"] = json!({"email_address": "buyer@example.com", "payer_id": "STANDNPAYER22",
            "name": {"given_name": "Mara", "surname": "Example"}});
        let paid = || {
            subscription
                .charges
                .iter()
                .filter(|one| one.status != "DECLINED" && one.status != "PENDING")
        };
        let mut info = json!({"outstanding_balance": money(0), "failed_payments_count": u8::from(subscription.status == "SUSPENDED"),
            "cycle_executions": [{"tenure_type": "REGULAR", "sequence": 1, "cycles_completed": paid().count(), "cycles_remaining": 0,
                "current_pricing_scheme_version": 1, "total_cycles": 0}]});
        if let Some(last) = paid().next_back() {
            info["last_payment"] = json!({"amount": money(last.cents), "time": last.at.rfc3339()});
        }
        if let Some(next) = subscription.next_charge.filter(|_| subscription.runs()) {
            info["next_billing_time"] = json!(next.rfc3339());
        }
        if let Some(failed) = subscription.failed_at {
            info["last_failed_payment"] = json!({"amount": money(subscription.cents), "time": failed.rfc3339(),
                "reason_code": "PAYER_CANNOT_PAY"});
        }
        representation["billing_info"] = info;
        representation
    }

    /// The newest charge of a subscription as in a notification (v1 `sale`), or its refund.
    pub(super) fn sale_json(&self, subscription: &Subscription, kind: &str) -> Value {
        let charge = match kind {
            "PAYMENT.SALE.REFUNDED" | "PAYMENT.SALE.REVERSED" => {
                let mut all = subscription.charges.iter().rev();
                all.find(|one| one.status == "REFUNDED")
            }
            _ => subscription.charges.last(),
        };
        let Some(charge) = charge else {
            return json!({"billing_agreement_id": subscription.id});
        };
        let amount = money(charge.cents);
        let amount = json!({"total": amount["value"], "currency": "USD"});
        match kind {
            // A refund names only the charge.
            "PAYMENT.SALE.REFUNDED" => {
                json!({"id": format!("R{}", charge.id), "sale_id": charge.id, "state": "completed", "amount": amount})
            }
            _ => {
                json!({"id": charge.id, "state": charge.status.to_lowercase(), "amount": amount, "custom": subscription.custom_id,
                "billing_agreement_id": subscription.id})
            }
        }
    }
}
