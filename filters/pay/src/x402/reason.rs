//! Classification of a facilitator's reasons by their proof about the money.

/// The class of a reason. The set of reasons is open; an unknown one is a fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The payment is invalid, and no money has moved: refuse it.
    Refused,
    /// The nonce was used before: by us, or by another holder of the authorization. The chain shows which.
    NonceSpent,
    /// The transfer is pending. An identical call is safe.
    Pending,
    /// The payment would fail now. Before submission: a refusal. After an attempt of unknown outcome, the cause may be the success of the
    /// first attempt.
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
    // Reasons after the prefix `invalid_exact_evm_`, in some implementations `invalid_exact_evm_payload_`, and in others without a prefix.
    const REFUSED_EXACT: &[&str] = &[
        "insufficient_balance",
        "insufficient_amount",
        "scheme",
        "signature",
        "signature_address",
        "signature_format",
        "missing_signature",
        "undeployed_smart_wallet",
        "authorization_typed_data_message",
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
    match exact(text) {
        "nonce_already_used" => Reason::NonceSpent,
        "transaction_simulation_failed" => Reason::SimulationFailed,
        exact if REFUSED_EXACT.contains(&exact) => Reason::Refused,
        _ => Reason::Fault,
    }
}

/// Whether a reason of `/verify` is about the facilitator or its node, and not about the payment. Every other reason is a refusal.
pub fn is_fault_of_facilitator(text: &str) -> bool {
    const FAULTS: &[&str] = &[
        "asset_not_deployed_contract",
        "bad_gateway",
        "eip3009_not_supported",
        "gateway_timeout",
        "internal_error",
        "internal_server_error",
        "invalid_transaction_state",
        "network_error",
        "overloaded",
        "rate_limit_exceeded",
        "rate_limited",
        "request_timeout",
        "rpc_error",
        "server_error",
        "service_unavailable",
        "settlement_pending",
        "smart_wallet_deployment_failed",
        "timed_out",
        "timeout",
        "too_many_requests",
        "transaction_failed",
        "unavailable",
    ];
    let exact = exact(text);
    let cannot_read = exact.starts_with("failed_to_") && exact != "failed_to_parse_signature";
    exact.starts_with("unexpected_") || cannot_read || FAULTS.contains(&exact)
}

/// A reason without the names of scheme and payload, a prefix in some implementations.
pub(crate) fn exact(text: &str) -> &str {
    let exact = text.strip_prefix("invalid_exact_evm_").unwrap_or(text);
    exact.strip_prefix("payload_").unwrap_or(exact)
}
