//! Control endpoints of the stand-in, for programs in another process.
//!
//! | Request | Does |
//! |---|---|
//! | `POST /_control/script` | adds a [`Script`], which is the body |
//! | `POST /_control/clear` | removes all scripts |
//! | `POST /_control/release` `{"gate": NAME, "count": N}` | lets N tasks (default 1) pass the gate |
//! | `POST /_control/open` `{"gate": NAME}` | opens the gate from now on |
//! | `POST /_control/reached` `{"gate": NAME, "count": N}` | responds when N (default 1) have reached the gate |
//! | `POST /_control/reset_connections` `{"count": N}` | resets the next N (default 1) connections |
//! | `POST /_control/hang_up` | closes idle connections |
//! | `GET /_control/calls` | `count`, `malformed`, and `calls`: the received requests, oldest first |
//! | `POST /_control/forget` | deletes the recorded calls |
//!
//! Responses are JSON: 200 with `{}` or the result, 400 with `{"error": TEXT}`.

use serde::Deserialize;
use serde_json::{Value, json};

use super::calls::{Call, Ended};
use super::plan::Plan;
use super::request::Request;
use super::script::Script;
use super::state::Shared;

/// The path prefix of the control endpoints.
pub(super) const PREFIX: &str = "/_control/";

#[derive(Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Which {
    gate: String,
    count: u32,
}

impl Default for Which {
    fn default() -> Self {
        Self {
            gate: String::new(),
            count: 1,
        }
    }
}

/// Executes a control request.
pub(super) async fn act(shared: &Shared, action: &str, request: &Request) -> Plan {
    match try_act(shared, action, request).await {
        Ok(answer) => Plan::json(200, answer.to_string().into()),
        Err(problem) => refusal(&problem),
    }
}

/// The response to an invalid request.
pub(super) fn refusal(problem: &str) -> Plan {
    Plan::json(400, json!({"error": problem}).to_string().into())
}

async fn try_act(shared: &Shared, action: &str, request: &Request) -> Result<Value, String> {
    let which = || match request.body.is_empty() {
        true => Ok(Which::default()),
        false => serde_json::from_slice(&request.body).map_err(|problem| problem.to_string()),
    };
    match (request.method.as_str(), action) {
        ("GET", "calls") => {
            let calls: Vec<Value> = shared.calls.list().iter().map(describe).collect();
            return Ok(
                json!({"count": shared.calls.count(), "malformed": shared.calls.malformed(), "calls": calls}),
            );
        }
        ("POST", "script") => {
            let script: Script =
                serde_json::from_slice(&request.body).map_err(|problem| problem.to_string())?;
            shared.scripts().push_back(script);
        }
        ("POST", "clear") => shared.scripts().clear(),
        ("POST", "release") => {
            let which = which()?;
            shared.gate(&which.gate).release(which.count as usize);
        }
        ("POST", "open") => shared.gate(&which()?.gate).open(),
        ("POST", "reached") => {
            let which = which()?;
            shared
                .gate(&which.gate)
                .reached_by(which.count as usize)
                .await;
        }
        ("POST", "reset_connections") => {
            let count = which()?.count;
            shared
                .to_reset
                .store(count, std::sync::atomic::Ordering::Relaxed);
        }
        ("POST", "hang_up") => shared.hang_ups.send_modify(|count| *count += 1),
        ("POST", "forget") => shared.calls.forget(),
        (method, action) => return Err(format!("no such control: {method} {PREFIX}{action}")),
    }
    Ok(json!({}))
}

fn describe(call: &Call) -> Value {
    let headers: Vec<Value> = call
        .headers
        .iter()
        .map(|(name, value)| json!([name.as_str(), String::from_utf8_lossy(value.as_bytes())]))
        .collect();
    json!({
        "number": call.number,
        "connection": call.connection,
        "protocol": call.protocol,
        "method": call.method,
        "target": call.target,
        "headers": headers,
        "body": String::from_utf8_lossy(&call.body),
        "pieces_sent": call.pieces_sent,
        "ended": call.ended.map(|ended| match ended {
            Ended::Whole => "whole",
            Ended::Cut => "cut",
            Ended::PeerGone => "peer_gone",
        }),
    })
}
