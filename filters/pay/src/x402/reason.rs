//! What a facilitator's reason means for the money.

/// What is to be made of a reason. The set of reasons is open; one that is not known is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The payment is no good, and nothing has moved: refuse it.
    Refused,
    /// The authorization was used. By us, before; or by somebody else who had it. The chain knows.
    NonceSpent,
    /// The transfer is on its way. Ask again with the same words.
    Pending,
    /// It would not work now. Before the transfer that is a refusal; after an unclear attempt it may be because the first one worked.
    SimulationFailed,
    /// The facilitator or the chain has a fault. Before the transfer nothing has moved; after it nobody knows yet.
    Fault,
}

/// Sorts a reason of `/verify` or `/settle`.
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
    // Behind `invalid_exact_evm_`, and in some programs behind `invalid_exact_evm_payload_`.
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
