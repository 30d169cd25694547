//! PayPal's plan, the facilitator's offer and the chain's node against the settings. The checks buy nothing.

use std::sync::Arc;

use bytes::Bytes;
use tollgate_clock::Clock;
use tollgate_pay::x402::{DECIMALS, Facilitator as _, Operation, TokenError, read_token, supports};
use tollgate_pay::{PayPalSettings, X402Settings};
use tollgate_paypal::Client;
use tollgate_purchase::plan::{PRICE, Plan};

use super::checks::Checks;
use super::finding::Finding;
use crate::config::Settings;
use crate::telemetry;

pub(super) fn start(checks: &mut Checks, settings: &Arc<Settings>) {
    let paypal: Option<PayPalSettings> = settings.sections.find().flatten();
    if let Some(paypal) = paypal {
        let clock = checks.clock.clone();
        let plan: Option<Plan> = settings.sections.find();
        let product = plan
            .map(|plan| plan.product.to_string())
            .unwrap_or_default();
        checks.start("PayPal", check_paypal(paypal, product, clock));
    }
    let x402: Option<X402Settings> = settings.sections.find().flatten();
    if let Some(x402) = x402 {
        checks.start("facilitator", check_facilitator(x402.clone()));
        if x402.rpc_url.is_some() {
            checks.start("node of the chain", check_node(x402));
        }
    }
}

async fn check_paypal(settings: PayPalSettings, product: String, clock: Clock) -> Finding {
    let name = "PayPal";
    let client = match Client::new(settings.client, clock) {
        Ok(client) => client,
        Err(error) => return Finding::failed(name, telemetry::chain(&error)),
    };
    let failed = |error: tollgate_paypal::Error| {
        Finding::failed(name, telemetry::chain(&error)).remedy(
            "see that client id and secret belong to this environment (`payments.paypal.base_url`), and that it is reachable",
        )
    };
    let Some(id) = settings.plan_id else {
        return match client.active_plans(&product).await {
            Err(error) => failed(error),
            Ok(_) => Finding::ok(name, "it accepts the credentials; no `plan_id` is set"),
        };
    };
    let plan = match client.plan(&id).await {
        Ok(plan) => plan,
        Err(error) => return failed(error),
    };
    let charges = match plan.monthly {
        Some(price) => format!("charges {price} USD each month"),
        None => "does not charge one price each month without end".to_owned(),
    };
    let active = if plan.is_active {
        "active"
    } else {
        "not active"
    };
    let measured = format!("plan {id} is {active} and {charges}");
    match plan.is_active && plan.monthly == Some(PRICE) {
        true => Finding::ok(name, measured),
        false => Finding::failed(name, measured).remedy(format!(
            "the plan is sold for {PRICE} USD each month, so no subscription can begin with this one: set the `plan_id` that `tollgate paypal \
             setup` prints"
        )),
    }
}

async fn check_facilitator(settings: X402Settings) -> Finding {
    let name = "facilitator";
    let network = &settings.terms.network;
    let facilitator = match settings.facilitator() {
        Ok(facilitator) => facilitator,
        Err(error) => return Finding::failed(name, telemetry::chain(&error)),
    };
    match facilitator.call(Operation::Supported, Bytes::new()).await {
        Err(error) => Finding::failed(name, error.to_string())
            .remedy("see that `payments.x402.facilitator_url` is right and reachable; until then x402 is not offered"),
        Ok(answer) if supports(&answer, network) => {
            Finding::ok(name, format!("it settles `exact` on {network} (x402 version 2)"))
        }
        Ok(answer) => {
            let measured = format!("{} without `exact` on {network}", answer.status);
            Finding::failed(name, measured).remedy(match answer.status {
                401 | 403 => "it refuses the token: correct `payments.x402.facilitator_token_env` or `_file`",
                _ => "set another facilitator, or a `payments.x402.network` that its `/supported` lists; until then x402 is not offered",
            })
        }
    }
}

async fn check_node(settings: X402Settings) -> Finding {
    let name = "node of the chain";
    let node = match settings.node() {
        Ok(Some(node)) => node,
        Ok(None) => return Finding::skipped(name, "none is set"),
        Err(error) => return Finding::failed(name, telemetry::chain(&error)),
    };
    let terms = &settings.terms;
    match read_token(&node, terms).await {
        Ok(()) => Finding::ok(
            name,
            format!(
                "it is of {}, and the token is `{}`, version `{}`, with {DECIMALS} decimal places",
                terms.network, terms.asset_name, terms.asset_version
            ),
        ),
        Err(error) => Finding::failed(name, error.to_string()).remedy(match error {
            TokenError::Unread(_) => {
                "see that `payments.x402.rpc_url` is the URL of a JSON-RPC node and reachable; until then x402 is not offered"
            }
            TokenError::OtherChain { .. } => {
                "set the URL of a node of the same chain as `payments.x402.network`; until then x402 is not offered"
            }
            TokenError::NoContract { .. } => {
                "set `payments.x402.asset` to the contract of the token on this network; until then x402 is not offered"
            }
            TokenError::Decimals { .. } => {
                "set `payments.x402.asset` to a token with 6 decimal places, in which the price is counted; until then x402 is not offered"
            }
            TokenError::Domain { .. } => {
                "set `payments.x402.asset_name` and `asset_version` to the token's EIP-712 domain on this network; until then x402 is not offered"
            }
        }),
    }
}
