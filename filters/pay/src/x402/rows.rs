//! Stored payments: keys, digests, and the schedule of reconciliation.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use tollgate_clock::{Backoff, Jitter, Timestamp};
use tollgate_evm::{Address, Nonce, TxHash};
use tollgate_purchase::idempotency;
use tollgate_store::{AuthorizationKey, AuthorizationRow, AuthorizationState};

use super::decide::StoredPayment;
use super::http_client::SETTLE;
use super::offer::Terms;
use super::payment::Payment;
use super::reason::{Reason, reason};
use super::single_flight::FlightKey;

pub(crate) const SECOND: Duration = Duration::from_secs(1);
pub(crate) const MINUTE: Duration = Duration::from_mins(1);

/// How long after its expiry a payment of unknown outcome is reported to the operator.
pub(crate) const GRACE: Duration = Duration::from_mins(2);

/// Time from settlement to a further lookup of the payment: the block is final by then.
pub(crate) const FINAL: Duration = Duration::from_mins(5);

/// The unique key of a payment.
pub(crate) fn key(payment: &Payment, terms: &Terms) -> AuthorizationKey {
    AuthorizationKey {
        network: Arc::from(&*terms.network),
        asset: terms.asset.address().0,
        payer: payment.authorization.from.0,
        nonce: payment.authorization.nonce.0,
    }
}

/// A digest of the wallet's signed members and signature. Other members move no money, and may differ when a payment is sent again.
pub(crate) fn digest(payment: &Payment) -> [u8; 32] {
    let signed = &payment.authorization;
    idempotency::digest(&[
        &signed.from.0,
        &signed.to.0,
        signed.value.to_string().as_bytes(),
        signed.valid_after.to_string().as_bytes(),
        signed.valid_before.to_string().as_bytes(),
        &signed.nonce.0,
        payment.signature.as_bytes(),
    ])
}

/// The reference of a payment in the books: chain, token, wallet and nonce.
pub(crate) fn reference(key: &AuthorizationKey) -> String {
    format!(
        "{}/{}/{}/{}",
        key.network,
        Address(key.asset),
        Address(key.payer),
        Nonce(key.nonce)
    )
}

/// Parses a [`reference`].
pub(crate) fn read_reference(text: &str) -> Option<AuthorizationKey> {
    let mut parts = text.rsplitn(4, '/');
    let nonce: Nonce = parts.next()?.parse().ok()?;
    let payer: Address = parts.next()?.parse().ok()?;
    let asset: Address = parts.next()?.parse().ok()?;
    let key = AuthorizationKey {
        network: Arc::from(parts.next()?),
        asset: asset.0,
        payer: payer.0,
        nonce: nonce.0,
    };
    (reference(&key) == text).then_some(key)
}

/// A stored payment, as seen by its presenting request.
pub(crate) fn stored_payment(row: &AuthorizationRow, flight_key: FlightKey) -> StoredPayment {
    StoredPayment {
        state: row.state,
        same_owner: row.account == flight_key.account,
        same_payment: row.digest == flight_key.digest,
    }
}

/// Whether the facilitator's last answer on a payment was a refusal.
pub(crate) fn is_refused(row: &AuthorizationRow) -> bool {
    row.note
        .as_deref()
        .is_some_and(|note| reason(note) == Reason::Refused)
}

/// Whether an open payment was looked up a moment ago. Another lookup would show no change, and costs calls caused by buyers.
pub(crate) fn is_fresh(row: &AuthorizationRow, now: Timestamp) -> bool {
    row.state == AuthorizationState::Unknown
        && (row.updated_at..row.updated_at + SECOND).contains(&now)
}

/// Maximum time of a stored submission in the hands of its node: one call of the facilitator, the subsequent reads of the chain, and the
/// difference between the clocks of two nodes.
const SUBMISSION: Duration = SETTLE.saturating_add(Duration::from_secs(30));

/// Whether the first call for a payment may be in progress, by the time of the row's storage.
pub(crate) fn is_being_submitted(row: &AuthorizationRow, now: Timestamp) -> bool {
    let between = (now.as_micros() - row.updated_at.as_micros()).unsigned_abs();
    row.state == AuthorizationState::Settling && u128::from(between) < SUBMISSION.as_micros()
}

/// The note of an open payment reported as settled by the facilitator and void in the latest block.
pub(crate) const VOID_AT_LATEST: &str =
    "the facilitator reports a settlement, and the latest block shows that it is void";

/// Whether an earlier lookup has shown a payment to be void, and no other since.
pub(crate) fn is_void_at_latest(row: &AuthorizationRow) -> bool {
    row.note.as_deref() == Some(VOID_AT_LATEST)
}

/// Next reconciliation of an open payment. Exponential backoff without end, capped at 30 seconds while the payment can still move money and
/// at an hour afterwards. For an apparently void payment: the time of the block's finality.
pub(crate) fn next_attempt_at(row: &AuthorizationRow, now: Timestamp) -> Timestamp {
    if is_void_at_latest(row) {
        return now + FINAL;
    }
    let max = match now > row.valid_before + GRACE {
        true => 60 * MINUTE,
        false => 30 * SECOND,
    };
    let backoff = Backoff {
        base: 2 * SECOND,
        max,
        jitter: Jitter::None,
    };
    now + backoff.exact(row.attempts)
}

/// A time in the Unix seconds of the chain; zero for one before 1970.
pub(crate) fn unix_seconds(time: Timestamp) -> u64 {
    u64::try_from(time.as_secs()).unwrap_or(0)
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
pub(crate) fn receipt(key: &AuthorizationKey, transaction: TxHash) -> String {
    header(&SettlementResponse {
        success: true,
        error_reason: None,
        payer: Address(key.payer).checksummed(),
        transaction: transaction.to_string(),
        network: &key.network,
    })
}

/// The header for an attempted and refused payment without submission to the chain.
pub(crate) fn failure(key: &AuthorizationKey, why: &str) -> String {
    header(&SettlementResponse {
        success: false,
        error_reason: Some(why),
        payer: Address(key.payer).checksummed(),
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
    fn a_receipt_is_encoded_as_stock_clients_read_it() {
        let payer: Address = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
            .parse()
            .expect("an address");
        let key = AuthorizationKey {
            network: Arc::from("eip155:8453"),
            asset: [1; 20],
            payer: payer.0,
            nonce: [0x11; 32],
        };
        assert_eq!(read_reference(&reference(&key)), Some(key.clone()));
        assert_eq!(read_reference("other"), None);
        assert_eq!(
            receipt(&key, TxHash([0xab; 32])),
            "eyJzdWNjZXNzIjp0cnVlLCJwYXllciI6IjB4NzA5OTc5NzBDNTE4MTJkYzNBMDEwQzdkMDFiNTBlMGQxN2RjNzlDOCIsInRyYW5zYWN0aW9uIjoiMHhhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiYWJhYmFiIiwibmV0d29yayI6ImVpcDE1NTo4NDUzIn0="
        );
    }
}
