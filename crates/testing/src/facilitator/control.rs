//! `/_control/...`: control endpoints for programs in another process.
//!
//! | Call | Does |
//! |---|---|
//! | `GET /_control/transfers` | executed transfers: wallet, payee, amount, transaction |
//! | `POST /_control/fault` | `{"operation": "settle", "effect": "lose_answer", "times": 1}`: a fault for the next calls |
//! | `POST /_control/mine?arrives=true` | pending transfers are mined, or with `false` dropped |
//! | `POST /_control/undo` | the last transfer is removed from its block |
//! | `POST /_control/balance?wallet=0x...&amount=5` | sets the balance of a wallet |
//! | `POST /_control/cancel?wallet=0x...&nonce=0x...` | a wallet cancels its own transfer |
//! | `POST /_control/lag?blocks=30` | the node lags by this number of blocks |
//! | `POST /_control/remember` | a settled payment is reported as settled again from now on |

use serde_json::{Value, json};

use super::chain::Mined;
use super::fault::Fault;
use super::state::{Reply, Shared, json_reply};
use crate::server::Arrived;

pub(super) fn act(shared: &Shared, action: &str, request: &Arrived) -> Reply {
    let parameter = |name| request.parameter(name);
    let wallet = || parameter("wallet")?.parse().ok();
    let done = match action {
        "transfers" => {
            let transfers =
                shared.with(|state| state.chain.mined.iter().map(shown).collect::<Vec<_>>());
            return json_reply(200, &json!({ "transfers": transfers }));
        }
        "fault" => match serde_json::from_slice::<Fault>(&request.body) {
            Ok(fault) => {
                shared.with(|state| state.faults.add(fault));
                true
            }
            Err(problem) => return json_reply(400, &json!({ "problem": problem.to_string() })),
        },
        "mine" => {
            let arrives = parameter("arrives") != Some("false");
            shared.with(|state| state.mine(arrives));
            true
        }
        "undo" => shared.with(|state| state.chain.undo()),
        "lag" => match parameter("blocks").and_then(|blocks| blocks.parse().ok()) {
            Some(blocks) => {
                shared.with(|state| state.chain.lag = blocks);
                true
            }
            None => false,
        },
        "remember" => {
            shared.with(|state| state.remembers = true);
            true
        }
        "balance" => {
            let amount = parameter("amount").and_then(|amount| amount.parse().ok());
            match (wallet(), amount) {
                (Some(wallet), Some(amount)) => {
                    shared.with(|state| state.chain.set_balance(wallet, amount));
                    true
                }
                _ => false,
            }
        }
        "cancel" => {
            let nonce = parameter("nonce").and_then(|nonce| nonce.parse().ok());
            match (wallet(), nonce) {
                (Some(wallet), Some(nonce)) => {
                    shared.with(|state| state.chain.cancel(wallet, nonce));
                    true
                }
                _ => false,
            }
        }
        _ => false,
    };
    json_reply(if done { 200 } else { 404 }, &json!({ "done": done }))
}

fn shown(mined: &Mined) -> Value {
    let transfer = &mined.transfer;
    json!({"from": transfer.from.to_string(), "to": transfer.to.to_string(), "value": transfer.value.to_string(),
        "transaction": mined.transaction.to_string()})
}
