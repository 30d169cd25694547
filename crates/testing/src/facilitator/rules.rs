//! Validation of payments, with the error reasons of the published facilitator.

use serde_json::{Value, json};
use tollgate_evm::{Address, Amount, Authorization, Signature};

use super::chain::Chain;
use super::token::{NETWORK, Token};
use crate::wallet::domain;

/// A parsed payment.
pub(super) struct Payment {
    pub(super) transfer: Authorization,
    pub(super) signature: Signature,
}

/// Parses a request to `/verify` or `/settle`, and returns errors that do not depend on the chain.
pub(super) fn read(question: &Value, token: &Token) -> Result<Payment, &'static str> {
    let payload = &question["paymentPayload"];
    let wanted = &question["paymentRequirements"];
    if question["x402Version"] != 2 || payload["x402Version"] != 2 {
        return Err("invalid_x402_version");
    }
    if wanted["scheme"] != "exact" || payload["accepted"]["scheme"] != "exact" {
        return Err("unsupported_scheme");
    }
    if wanted["network"] != NETWORK || payload["accepted"]["network"] != NETWORK {
        return Err("invalid_exact_evm_network_mismatch");
    }
    let transfer = transfer(&payload["payload"]["authorization"]).ok_or("invalid_payload")?;
    let signature = payload["payload"]["signature"]
        .as_str()
        .and_then(Signature::read)
        .ok_or("invalid_payload")?;
    let domain = domain(wanted).ok_or("invalid_exact_evm_missing_eip712_domain")?;
    if domain.asset != token.asset {
        return Err("invalid_payment_requirements");
    }
    if domain.name != token.name {
        return Err("invalid_exact_evm_token_name_mismatch");
    }
    if domain.version != token.version {
        return Err("invalid_exact_evm_token_version_mismatch");
    }
    if address(&wanted["payTo"]) != Some(transfer.to) {
        return Err("invalid_exact_evm_recipient_mismatch");
    }
    if wanted["amount"].as_str() != Some(&*transfer.value.to_string()) {
        return Err("invalid_exact_evm_authorization_value_mismatch");
    }
    if !transfer.is_by_payer(&domain, &signature) {
        return Err("invalid_exact_evm_signature");
    }
    Ok(Payment {
        transfer,
        signature,
    })
}

/// The chain's objection to a transfer.
pub(super) fn judge(transfer: &Authorization, chain: &Chain) -> Result<(), &'static str> {
    let now = chain.time();
    if transfer.valid_before < Amount::from(now + 6) {
        return Err("invalid_exact_evm_authorization_valid_before");
    }
    if transfer.valid_after > Amount::from(now) {
        return Err("invalid_exact_evm_authorization_valid_after");
    }
    if chain.used(transfer).is_some() {
        return Err("invalid_exact_evm_nonce_already_used");
    }
    if Amount::from(chain.balance(transfer.from)) < transfer.value {
        return Err("invalid_exact_evm_insufficient_balance");
    }
    Ok(())
}

pub(super) fn transfer(authorization: &Value) -> Option<Authorization> {
    let text = |name: &str| authorization.get(name)?.as_str();
    Some(Authorization {
        from: text("from")?.parse().ok()?,
        to: text("to")?.parse().ok()?,
        value: text("value")?.parse().ok()?,
        valid_after: text("validAfter")?.parse().ok()?,
        valid_before: text("validBefore")?.parse().ok()?,
        nonce: text("nonce")?.parse().ok()?,
    })
}

fn address(value: &Value) -> Option<Address> {
    value.as_str()?.parse().ok()
}

pub(super) fn kinds() -> Value {
    json!({
        "kinds": [
            {"x402Version": 1, "scheme": "exact", "network": "base"},
            {"x402Version": 2, "scheme": "exact", "network": NETWORK},
        ],
        "extensions": [],
        "signers": {"eip155:*": ["0x0000000000000000000000000000000000000402"]},
    })
}
