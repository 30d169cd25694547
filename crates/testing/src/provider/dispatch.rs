//! Dispatches each request: to a control endpoint, a custom handler, or its script.

use std::sync::Arc;

use super::calls::Call;
use super::case_insensitive::parse;
use super::compose::plan;
use super::control;
use super::plan::Plan;
use super::request::{Arrived, Seen};
use super::state::Shared;

/// Dispatches a request, and records it; a control request has number 0 and is not recorded.
pub(super) async fn answer(shared: &Arc<Shared>, arrived: Arrived) -> (u64, Plan) {
    if let Some(action) = arrived.request.path.strip_prefix(control::PREFIX) {
        return (0, control::act(shared, action, &arrived.request).await);
    }
    // Copied only when calls are kept; a measurement keeps none.
    let request = &arrived.request;
    let number = shared.calls.begin(|number| Call {
        number,
        connection: arrived.connection,
        protocol: arrived.protocol,
        method: request.method.clone(),
        target: arrived.target.clone(),
        headers: request.headers.clone(),
        raw_head: arrived.raw_head.clone(),
        body: request.body.clone(),
        pieces_sent: 0,
        ended: None,
    });
    if let Some(plan) = shared
        .settings
        .custom
        .as_ref()
        .and_then(|custom| custom(request))
    {
        return (number, plan);
    }
    let json = serde_json::from_slice(&request.body).ok();
    let seen = Seen {
        path: &request.path,
        json: json.as_ref(),
        reused: arrived.reused,
    };
    let plan = match shared.script_for(&seen) {
        Ok(script) => {
            let json = match script.ignore_case {
                true => parse(&request.body),
                false => json,
            };
            plan(shared, request, json.as_ref(), &script, number)
        }
        Err(problem) => control::refusal(&problem),
    };
    (number, plan)
}
