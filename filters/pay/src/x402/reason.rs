//! Classification of a facilitator's reasons by what they prove about the money.

/// The class of a reason. The set of reasons is open; an unknown one is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The payment is invalid, and no money has moved: refuse it.
    Refused,
    /// The nonce was used before: by us, or by another holder of the authorization. The chain shows which.
    NonceSpent,
    /// The transfer is pending. An identical call is safe.
    Pending,
    /// It would fail now. Before submission that is a refusal; after an attempt of unknown outcome the cause may be that the first one succeeded.
    SimulationFailed,
    /// The facilitator or the chain has a fault. Before submission no money has moved; after it the outcome is unknown.
    Fault,
}

/// Classifies a reason of `/verify` or `/settle`.
pub fn reason(text: &str) -> Reason {
    const REFUSED: &[&str] = &[
        "insufficient_funds",
        "invalid_payload",
        "invalid_scheme",
        "unsupported_scheme",
        "invalid_network",
        "invalid_x402_version",
        "invalid_payment_requirements",
        "eip6492_factory_not_allowed",
    ];
    // Reasons that follow `invalid_exact_evm_`, and in some implementations `invalid_exact_evm_payload_`.
    const REFUSED_EXACT: &[&str] = &[
        "insufficient_balance",
        "signature",
        "recipient_mismatch",
        "authorization_value",
        "authorization_value_mismatch",
        "authorization_valid_after",
        "authorization_valid_before",
        "token_name_mismatch",
        "token_version_mismatch",
        "missing_eip712_domain",
        "network_mismatch",
    ];
    if text == "settlement_pending" {
        return Reason::Pending;
    }
    if REFUSED.contains(&text) || text.ends_with("_kyt") {
        return Reason::Refused;
    }
    let Some(exact) = text.strip_prefix("invalid_exact_evm_") else {
        return Reason::Fault;
    };
    match exact.strip_prefix("payload_").unwrap_or(exact) {
        "signature" => Reason::Refused,
        "nonce_already_used" => Reason::NonceSpent,
        "transaction_simulation_failed" => Reason::SimulationFailed,
        exact if REFUSED_EXACT.contains(&exact) => Reason::Refused,
        _ => Reason::Fault,
    }
}
