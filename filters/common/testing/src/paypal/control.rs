//! `/_control/...`: for programs beside a stand-in that they do not hold in their hand.
//!
//! | Call | Does |
//! |---|---|
//! | `POST /_control/approve/{order}` | the buyer agrees |
//! | `POST /_control/resolve/{order}?arrives=true` | a payment on its way arrives, or with `false` does not |
//! | `POST /_control/refund/{order}?cents=500` | money goes back |
//! | `POST /_control/fault` | `{"operation": "capture", "effect": "lose_answer", "times": 1}`: what happens to calls to come |
//! | `POST /_control/lag?reads=3` | reads that still say that the buyer has not agreed |
//! | `POST /_control/expire-tokens` | every token is worthless |
//! | `POST /_control/webhook?url=http://...` | where notices go |
//! | `GET /_control/orders` | all orders |

use std::sync::Arc;

use serde_json::{Value, json};

use super::fault::Fault;
use super::http::{Answer, Arrived, answer};
use super::orders;
use super::state::{Order, Shared};

pub(super) async fn act(shared: &Arc<Shared>, request: &Arrived) -> Answer {
    let action: Vec<&str> = request.path.split('/').skip(2).collect();
    let parameter = |name: &str| {
        let mut pairs = request
            .query
            .split('&')
            .filter_map(|pair| pair.split_once('='));
        pairs
            .find(|(known, _)| *known == name)
            .map(|(_, value)| value)
    };
    let done = match action[..] {
        ["orders"] => {
            let orders = shared.with(|state| state.orders.values().map(shown).collect::<Vec<_>>());
            return answer(200, &json!({ "orders": orders }));
        }
        ["approve", order] => orders::approve(shared, order).await,
        ["resolve", order] => {
            orders::resolve(shared, order, parameter("arrives") != Some("false")).await
        }
        ["refund", order] => match parameter("cents").and_then(|cents| cents.parse().ok()) {
            Some(cents) => orders::refund(shared, order, cents).await,
            None => false,
        },
        ["fault"] => match serde_json::from_slice::<Fault>(&request.body) {
            Ok(fault) => {
                shared.with(|state| state.faults.push_back(fault));
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
