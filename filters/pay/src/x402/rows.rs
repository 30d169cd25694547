//! Stored payments: keys, digests, and the schedule of reconciliation.

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tollgate_purchase::idempotency;
use tollgate_store::{AuthorizationKey, AuthorizationRow, AuthorizationState};

use super::decide::{Known, State};
use super::flight::Mark;
use super::hex::{Address, Nonce};
use super::offer::Terms;
use super::payment::Payment;
use super::reason::{Reason, reason};
use super::signer::checksummed;

pub(crate) const SECOND: i64 = 1_000_000;
pub(crate) const MINUTE: i64 = 60 * SECOND;

/// How long after its expiry a payment of unknown outcome becomes a matter for an operator.
pub(crate) const GRACE: i64 = 2 * MINUTE;

/// How long after its settlement a payment is looked up once more: by then its block is final.
pub(crate) const FINAL: i64 = 5 * MINUTE;

/// The unique key of a payment.
pub(crate) fn key(payment: &Payment, terms: &Terms) -> AuthorizationKey {
    AuthorizationKey {
        network: Arc::from(&*terms.network),
        asset: *terms.asset.address().as_bytes(),
        payer: *payment.authorization.from.as_bytes(),
        nonce: *payment.authorization.nonce.as_bytes(),
    }
}

/// A digest of what the wallet signed and of its signature. Other members move no money, and may differ when a payment is sent again.
pub(crate) fn digest(payment: &Payment) -> [u8; 32] {
    let signed = &payment.authorization;
    idempotency::digest(&[
        signed.from.as_bytes(),
        signed.to.as_bytes(),
        signed.value.to_string().as_bytes(),
        signed.valid_after.to_string().as_bytes(),
        signed.valid_before.to_string().as_bytes(),
        signed.nonce.as_bytes(),
        payment.signature.as_bytes(),
    ])
}

/// The reference of a payment in the books: chain, token, wallet and nonce.
pub(crate) fn reference(key: &AuthorizationKey) -> String {
    format!(
        "{}/{}/{}/{}",
        key.network,
        Address::from_bytes(key.asset),
        Address::from_bytes(key.payer),
        Nonce::from_bytes(key.nonce)
    )
}

/// The payment of a name ([`reference`]).
pub(crate) fn read_reference(name: &str) -> Option<AuthorizationKey> {
    let mut parts = name.rsplitn(4, '/');
    let nonce: Nonce = parts.next()?.parse().ok()?;
    let payer: Address = parts.next()?.parse().ok()?;
    let asset: Address = parts.next()?.parse().ok()?;
    let key = AuthorizationKey {
        network: Arc::from(parts.next()?),
        asset: *asset.as_bytes(),
        payer: *payer.as_bytes(),
        nonce: *nonce.as_bytes(),
    };
    (reference(&key) == name).then_some(key)
}

/// What is known of a stored payment to whoever brings it.
pub(crate) fn known(row: &AuthorizationRow, mark: Mark) -> Known {
    Known {
        state: state(row.state),
        same_owner: row.account == mark.account,
        same_payment: row.digest == mark.digest,
    }
}

pub(crate) fn state(state: AuthorizationState) -> State {
    match state {
        AuthorizationState::Seen => State::Seen,
        AuthorizationState::Settling => State::Settling,
        AuthorizationState::Settled => State::Settled,
        AuthorizationState::Dead => State::Dead,
        AuthorizationState::Refused => State::Refused,
        AuthorizationState::RefusedAfterSubmit => State::RefusedAfterSubmit,
        // A state of a later version has an unknown meaning: nothing is concluded from it.
        _ => State::Unknown,
    }
}

/// Whether the facilitator's last answer on a payment was a refusal.
pub(crate) fn is_refused(row: &AuthorizationRow) -> bool {
    row.note
        .as_deref()
        .is_some_and(|note| reason(note) == Reason::Refused)
}

/// The note of an open payment that the facilitator has reported as settled and that the latest block shows to be void.
pub(crate) const VOID_AT_LATEST: &str =
    "the facilitator reports a settlement, and the latest block shows that it is void";

/// Whether an earlier lookup has shown a payment to be void, and no other since.
pub(crate) fn is_void_at_latest(row: &AuthorizationRow) -> bool {
    row.note.as_deref() == Some(VOID_AT_LATEST)
}

/// When a payment that is unclear is looked at again: soon as long as it can still move money, and for ever at last; one that looks void
/// when that block is one that stays.
pub(crate) fn next_look(row: &AuthorizationRow, now: i64) -> i64 {
    if is_void_at_latest(row) {
        return now + FINAL;
    }
    let most = match now > row.valid_before + GRACE {
        true => 60 * MINUTE,
        false => 30 * SECOND,
    };
    now + (2 * SECOND)
        .saturating_mul(1 << row.looks.min(20))
        .min(most)
}

/// The receipt for a buyer (`PAYMENT-RESPONSE`).
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct SettlementResponse<'a> {
    success: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    error_reason: Option<&'a str>,
    payer: String,
    transaction: String,
    network: &'a str,
}

/// The header for a payment that was settled in a transaction.
pub(crate) fn receipt(key: &AuthorizationKey, transaction: Nonce) -> String {
    header(&SettlementResponse {
        success: true,
        error_reason: None,
        payer: checksummed(Address::from_bytes(key.payer)),
        transaction: transaction.to_string(),
        network: &key.network,
    })
}

/// The header for a payment that was tried and refused: nothing was submitted to the chain.
pub(crate) fn failure(key: &AuthorizationKey, why: &str) -> String {
    header(&SettlementResponse {
        success: false,
        error_reason: Some(why),
        payer: checksummed(Address::from_bytes(key.payer)),
        transaction: String::new(),
        network: &key.network,
    })
}

fn header(response: &SettlementResponse<'_>) -> String {
    STANDARD.encode(serde_json::to_vec(response).expect("texts are JSON"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_receipt_is_written_as_stock_buyers_read_it() {
        let payer: Address = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
            .parse()
            .expect("an address");
        let key = AuthorizationKey {
            network: Arc::from("eip155:8453"),
            asset: [1; 20],
            payer: *payer.as_bytes(),
            nonce: [0x11; 32],
        };
        assert_eq!(read_reference(&reference(&key)), Some(key.clone()));
        assert_eq!(read_reference("other"), None);
        assert_eq!(
            receipt(&key, Nonce::from_bytes([0xab; 32])),
            "eyJzdWNjZXNzIjp0cnVlLCJwYXllciI6IjB4NzA5OTc5NzBDNTE4MTJkYzNBMDEwQzdkMDFiNTBlMGQxN2RjNzlDOCIsInRyYW5zYWN0aW9uIjoiMHhhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiIiwibmV0d29yayI6ImVpcDE1NTo4NDUzIn0="
        );
    }
}
