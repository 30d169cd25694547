//! Validation of a payment against the offered terms, without a remote call.

use serde_json::Value;
use tollgate_clock::Timestamp;
use tollgate_evm::{Address, Amount};

use super::offer::{SCHEME, Terms};
use super::payment::Payment;
use super::rows::unix_seconds;

/// The maximum by which a buyer's clock may be ahead.
const CLOCK_AHEAD_SECS: u64 = 30;

/// The least remaining validity of an authorization: the facilitator's clock, and a block.
const VALIDITY_SECS_MIN: u64 = 10;

/// How much longer than requested an authorization may be valid: a payment can stay open for that long.
const VALIDITY_SECS_OVER: u64 = 600;

/// Why a payment is refused before any remote call. The texts are the protocol's texts where defined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CheckError {
    /// The option that was chosen was not offered.
    #[error("No matching payment requirements")]
    NoMatchingRequirements,
    /// The transfer is to another payee.
    #[error("invalid_exact_evm_payload_recipient_mismatch")]
    Recipient,
    /// The transfer is not of exactly the price.
    #[error("invalid_exact_evm_payload_authorization_value_mismatch")]
    Value,
    /// The transfer is not valid yet.
    #[error("invalid_exact_evm_payload_authorization_valid_after")]
    NotYet,
    /// The transfer has expired, or expires too soon.
    #[error("invalid_exact_evm_payload_authorization_valid_before")]
    TooLate,
    /// The transfer would stay valid for much longer than requested.
    #[error("invalid_exact_evm_payload_authorization_valid_before_too_far")]
    TooLong,
    /// The signature is malleated, a second form of another signature.
    #[error("invalid_exact_evm_payload_signature")]
    Signature,
}

/// Compares a payment with the terms at `now`. Success is no proof of payment: only the chain knows whether the wallet has the money and
/// the signature is valid.
pub fn check(payment: &Payment, terms: &Terms, now: Timestamp) -> Result<(), CheckError> {
    let now = unix_seconds(now);
    if !matches(payment, terms) {
        return Err(CheckError::NoMatchingRequirements);
    }
    let authorization = &payment.authorization;
    if authorization.to != terms.pay_to.address() {
        return Err(CheckError::Recipient);
    }
    if authorization.value != terms.amount {
        return Err(CheckError::Value);
    }
    if authorization.valid_after > Amount::from(now.saturating_add(CLOCK_AHEAD_SECS)) {
        return Err(CheckError::NotYet);
    }
    if authorization.valid_before < Amount::from(now.saturating_add(VALIDITY_SECS_MIN)) {
        return Err(CheckError::TooLate);
    }
    let longest = now
        .saturating_add(terms.max_timeout_secs)
        .saturating_add(VALIDITY_SECS_OVER);
    if authorization.valid_before > Amount::from(longest) {
        return Err(CheckError::TooLong);
    }
    if payment.signature.is_malleated() {
        return Err(CheckError::Signature);
    }
    Ok(())
}

/// Whether the buyer's option equals the offered option by value: wallets format addresses and numbers in their own way and omit unknown
/// members.
fn matches(payment: &Payment, terms: &Terms) -> bool {
    let accepted = &payment.accepted;
    let text = |name: &str| accepted.get(name).and_then(Value::as_str);
    let address = |name: &str| text(name).and_then(|text| text.parse::<Address>().ok());
    let same_domain = |name: &str, ours: &str| match accepted.get("extra").and_then(|e| e.get(name))
    {
        None | Some(Value::Null) => true,
        Some(theirs) => theirs.as_str() == Some(ours),
    };
    let method = accepted
        .get("extra")
        .and_then(|extra| extra.get("assetTransferMethod"))
        .and_then(Value::as_str);
    text("scheme") == Some(SCHEME)
        && text("network") == Some(&*terms.network)
        && text("amount")
            .and_then(|text| text.parse::<Amount>().ok())
            .as_ref()
            == Some(&terms.amount)
        && address("asset") == Some(terms.asset.address())
        && address("payTo") == Some(terms.pay_to.address())
        && same_domain("name", &terms.asset_name)
        && same_domain("version", &terms.asset_version)
        && method.is_none_or(|method| method == "eip3009")
}
