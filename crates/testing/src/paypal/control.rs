//! `/_control/...`: control endpoints for programs in another process.
//!
//! | Call | Does |
//! |---|---|
//! | `POST /_control/approve/{id}` | the buyer approves an order or a subscription |
//! | `POST /_control/resolve/{id}?arrives=true` | a pending payment arrives, or with `false` does not |
//! | `POST /_control/refund/{order}?cents=500` | refunds an order |
//! | `POST /_control/fault` | `{"operation": "capture", "effect": "lose_answer", "times": 1}`: a fault for the next calls |
//! | `POST /_control/purse?is=slow` | the outcome of future subscription charges: `full`, `slow` (an e-check), `empty` (declined), `late` (running and not charged) |
//! | `POST /_control/purse/{subscription}?is=empty` | the same for an existing subscription |
//! | `POST /_control/charge/{subscription}` | charges it now |
//! | `POST /_control/refund/{subscription}` | refunds its last charge in full |
//! | `POST /_control/reverse/{subscription}` | the same, as a chargeback by the buyer |
//! | `POST /_control/cancel/{subscription}` | its buyer cancels it at PayPal; also `suspend`, `activate`, `expire` |
//! | `POST /_control/unlist/{subscription}?reads=2` | number of reads of its charges that lack the newest |
//! | `POST /_control/pass?days=31` | advances PayPal's clock, and what is due is charged |
//! | `POST /_control/plan/{plan}?cents=24900` | the merchant changes the plan's price; also `?status=INACTIVE` |
//! | `GET /_control/subscriptions` | all subscriptions |
//! | `POST /_control/lag?reads=3` | number of reads that do not show the buyer's approval yet |
//! | `POST /_control/expire-tokens` | every token expires |
//! | `POST /_control/webhook?url=http://...` | the URL for notifications |
//! | `GET /_control/orders` | all orders |

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};

use super::call::answer;
use super::fault::Fault;
use super::resources::{Order, Purse, Subscription};
use super::state::Shared;
use super::{orders, subscriptions};
use crate::server::{Answer, Arrived};

pub(super) async fn act(shared: &Arc<Shared>, request: &Arrived) -> Answer {
    let action: Vec<&str> = request.path.split('/').skip(2).collect();
    let parameter = |name| request.parameter(name);
    let done = match action[..] {
        ["orders"] => {
            let orders = shared.with(|state| state.orders.values().map(shown).collect::<Vec<_>>());
            return answer(200, &json!({ "orders": orders }));
        }
        ["subscriptions"] => {
            let all = shared.with(|state| {
                let all = state.subscriptions.values();
                all.map(shown_subscription).collect::<Vec<_>>()
            });
            return answer(200, &json!({ "subscriptions": all }));
        }
        ["approve", id] => {
            subscriptions::approve(shared, id).await || orders::approve(shared, id).await
        }
        ["resolve", id] => {
            let arrives = parameter("arrives") != Some("false");
            subscriptions::resolve(shared, id, arrives).await
                || orders::resolve(shared, id, arrives).await
        }
        ["purse"] => with_purse(parameter("is"), |purse| {
            shared.with(|state| state.purse = purse);
            true
        }),
        ["purse", id] => with_purse(parameter("is"), |purse| {
            shared.change(id, |one| one.purse = purse)
        }),
        ["unlist", id] => {
            let reads = parameter("reads").and_then(|reads| reads.parse().ok());
            shared.change(id, |one| one.unlisted = reads.unwrap_or(1))
        }
        ["charge", id] => subscriptions::charge(shared, id).await,
        ["reverse", id] => subscriptions::give_back(shared, id, "PAYMENT.SALE.REVERSED").await,
        ["refund", id] if id.starts_with("I-") => {
            subscriptions::give_back(shared, id, "PAYMENT.SALE.REFUNDED").await
        }
        ["cancel", id] => subscriptions::set(shared, id, "CANCELLED").await,
        ["suspend", id] => subscriptions::set(shared, id, "SUSPENDED").await,
        ["activate", id] => subscriptions::set(shared, id, "ACTIVE").await,
        ["expire", id] => subscriptions::set(shared, id, "EXPIRED").await,
        ["pass"] => {
            let days: Option<u64> = parameter("days").and_then(|days| days.parse().ok());
            let time = Duration::from_hours(24 * days.unwrap_or(1));
            subscriptions::pass(shared, time).await;
            true
        }
        ["plan", id] => shared.with(|state| {
            let Some(plan) = state.plans.get_mut(id) else {
                return false;
            };
            let cents = parameter("cents").and_then(|cents| cents.parse().ok());
            plan.cents = cents.unwrap_or(plan.cents);
            plan.status = match parameter("status") {
                Some("INACTIVE") => "INACTIVE",
                Some("ACTIVE") => "ACTIVE",
                _ => plan.status,
            };
            true
        }),
        ["refund", order] => match parameter("cents").and_then(|cents| cents.parse().ok()) {
            Some(cents) => orders::refund(shared, order, cents).await,
            None => false,
        },
        ["fault"] => match serde_json::from_slice::<Fault>(&request.body) {
            Ok(fault) => {
                shared.with(|state| state.faults.add(fault));
                true
            }
            Err(problem) => return answer(400, &json!({ "problem": problem.to_string() })),
        },
        ["lag"] => {
            let reads = parameter("reads").and_then(|reads| reads.parse().ok());
            shared.with(|state| state.lag = reads.unwrap_or(0));
            true
        }
        ["expire-tokens"] => {
            shared.with(|state| state.tokens.clear());
            true
        }
        ["webhook"] => {
            shared.with(|state| state.notices_to = parameter("url").map(str::to_owned));
            true
        }
        _ => false,
    };
    answer(if done { 200 } else { 404 }, &json!({ "done": done }))
}

fn shown(order: &Order) -> Value {
    json!({"id": order.id, "status": order.status.word(), "custom_id": order.custom_id, "cents": order.cents,
        "kept_cents": order.kept_cents(), "capture": order.capture.as_ref().map(|(id, status)| json!({"id": id, "status": status}))})
}

fn shown_subscription(one: &Subscription) -> Value {
    let charges: Vec<Value> = one
        .charges
        .iter()
        .map(|charge| json!({"id": charge.id, "status": charge.status, "cents": charge.cents}))
        .collect();
    json!({"id": one.id, "status": one.status, "custom_id": one.custom_id, "plan_id": one.plan_id, "kept_cents": one.kept_cents(),
        "charges": charges})
}

fn with_purse(name: Option<&str>, put: impl FnOnce(Purse) -> bool) -> bool {
    name.and_then(Purse::named).is_some_and(put)
}
