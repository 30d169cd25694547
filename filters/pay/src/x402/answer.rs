//! Parsing of the facilitator's answers, and what each proves about the payment.

use serde_json::{Map, Value};
use tollgate_evm::{Address, TxHash};

use super::reason::{Reason, reason};

/// The result of `/verify`. No money has moved in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The transfer would succeed now.
    Good,
    /// The payment is invalid, for this reason.
    Refused(String),
    /// The nonce was used before: by us, or by another holder of the authorization.
    NonceSpent,
    /// The facilitator gave no decision, for this reason. The same payment may be valid later.
    Fault(String),
}

/// The result of `/settle`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settled {
    /// The transfer is in a block.
    Done {
        /// The hash of the transaction.
        transaction: TxHash,
        /// The wallet that paid.
        payer: Option<Address>,
    },
    /// The facilitator says that the transfer was not sent and will not be, for this reason.
    Refused(String),
    /// It is not known yet whether money has moved. Only an identical call is safe to repeat.
    Unknown {
        /// The hash of a transaction that may be pending.
        transaction: Option<TxHash>,
        /// The facilitator's reason.
        why: String,
    },
}

/// Parses the answer to `/verify`. The body says more than the status: refusals come with 200 and with 4xx.
pub fn verified(status: u16, body: &[u8]) -> Verified {
    let Some(members) = object(body) else {
        return Verified::Fault(format!("status {status} without a valid x402 answer"));
    };
    match members.get("isValid") {
        Some(Value::Bool(true)) if (200..300).contains(&status) => Verified::Good,
        Some(Value::Bool(false)) => {
            let why = text(&members, "invalidReason");
            match reason(&why) {
                Reason::Refused | Reason::SimulationFailed => Verified::Refused(why),
                Reason::NonceSpent => Verified::NonceSpent,
                Reason::Pending | Reason::Fault => Verified::Fault(why),
            }
        }
        _ => Verified::Fault(format!("status {status} without a valid x402 answer")),
    }
}

/// Parses the answer to `/settle` for a payment on `network` by `payer`.
///
/// `first` says that this authorization was never submitted before, or that every earlier submission ended with a refusal that was read as
/// one. Only then is a refusal one: after a submission whose answer was lost, a wallet that has paid may lack the money to pay again, and its
/// authorization is spent. After a refusal the same can be true only if that refusal was false, and then this one concludes no more than it
/// did: with a node neither ends the payment before the chain was read, and without one the payment stays refused after submission, which
/// is never accepted as proof that nothing moved.
pub fn settled(status: u16, body: &[u8], network: &str, payer: Address, first: bool) -> Settled {
    let unknown = |transaction, why| Settled::Unknown { transaction, why };
    let Some(members) = object(body) else {
        return unknown(None, format!("status {status} without a valid x402 answer"));
    };
    let transaction = members
        .get("transaction")
        .and_then(Value::as_str)
        .and_then(|text| text.parse::<TxHash>().ok());
    match members.get("success") {
        Some(Value::Bool(true)) => {
            let named = members.get("payer").and_then(Value::as_str);
            let paid_by = named.and_then(|text| text.parse::<Address>().ok());
            let same_network = members.get("network").and_then(Value::as_str) == Some(network);
            let same_payer = named.is_none() || paid_by == Some(payer);
            match transaction {
                Some(transaction) if same_network && same_payer => Settled::Done {
                    transaction,
                    payer: paid_by,
                },
                _ => unknown(
                    transaction,
                    "the answer is about another payment, or names no transaction".to_owned(),
                ),
            }
        }
        Some(Value::Bool(false)) => {
            let why = text(&members, "errorReason");
            match reason(&why) {
                Reason::Refused if first && transaction.is_none() => Settled::Refused(why),
                _ => unknown(transaction, why),
            }
        }
        _ => unknown(
            transaction,
            format!("status {status} without a valid x402 answer"),
        ),
    }
}

fn object(body: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(body).ok()
}

/// A reason: short, and without characters that break a log line.
fn text(members: &Map<String, Value>, name: &str) -> String {
    let text = members.get(name).and_then(Value::as_str).unwrap_or("");
    text.chars()
        .filter(|character| !character.is_control())
        .take(200)
        .collect()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    const NETWORK: &str = "eip155:8453";
    const PAYER: &str = "0x70997970C51812dc3A010C7d01b50e0d17dc79C8";

    fn hash() -> String {
        format!("0x{}", "ab".repeat(32))
    }

    #[test]
    fn an_answer_to_verify_is_read_by_its_body() {
        let refused = |why: &str| Verified::Refused(why.to_owned());
        let fault = |why: &str| Verified::Fault(why.to_owned());
        let nothing = |status: u16| fault(&format!("status {status} without a valid x402 answer"));
        for (status, body, expected) in [
            (
                200,
                json!({"isValid": true, "payer": PAYER}),
                Verified::Good,
            ),
            (500, json!({"isValid": true}), nothing(500)),
            (
                200,
                json!({"isValid": false, "invalidReason": "insufficient_funds"}),
                refused("insufficient_funds"),
            ),
            (
                400,
                json!({"isValid": false, "invalidReason": "invalid_payload"}),
                refused("invalid_payload"),
            ),
            (
                200,
                json!({"isValid": false, "invalidReason": "invalid_exact_evm_nonce_already_used"}),
                Verified::NonceSpent,
            ),
            (
                200,
                json!({"isValid": false, "invalidReason": "unexpected_verify_error"}),
                fault("unexpected_verify_error"),
            ),
            (200, json!({"isValid": false}), fault("")),
            (200, json!({"isValid": "true"}), nothing(200)),
            (200, json!([]), nothing(200)),
            (429, json!({"error": "slow down"}), nothing(429)),
        ] {
            let body = body.to_string();
            assert_eq!(
                verified(status, body.as_bytes()),
                expected,
                "{status} {body}"
            );
        }
        assert_eq!(verified(200, b"<html>"), nothing(200));
    }

    #[test]
    fn a_settlement_counts_only_when_every_member_of_the_answer_confirms_it() {
        let payer: Address = PAYER.parse().expect("an address");
        let transaction: TxHash = hash().parse().expect("32 bytes");
        let done = Settled::Done {
            transaction,
            payer: Some(payer),
        };
        check(
            200,
            json!({"success": true, "transaction": hash(), "network": NETWORK, "payer": PAYER}),
            true,
            &done,
        );
        check(
            200,
            json!({"success": true, "transaction": hash(), "network": NETWORK}),
            true,
            &Settled::Done {
                transaction,
                payer: None,
            },
        );
        // Another network, another wallet, no transaction.
        for odd in [
            json!({"success": true, "transaction": hash(), "network": "eip155:84532", "payer": PAYER}),
            json!({"success": true, "transaction": hash(), "network": NETWORK, "payer": "0x0000000000000000000000000000000000000001"}),
            json!({"success": true, "transaction": hash(), "network": NETWORK, "payer": "me"}),
            json!({"success": true, "transaction": "", "network": NETWORK, "payer": PAYER}),
            json!({"success": true}),
        ] {
            is_unknown(200, &odd, true);
        }

        fn check(status: u16, body: Value, first: bool, expected: &Settled) {
            let payer: Address = PAYER.parse().expect("an address");
            let read = settled(status, body.to_string().as_bytes(), NETWORK, payer, first);
            assert_eq!(&read, expected, "{status} {body}");
        }
    }

    #[test]
    fn a_refusal_counts_only_before_any_submission() {
        let payer: Address = PAYER.parse().expect("an address");
        let body = json!({"success": false, "errorReason": "insufficient_funds", "transaction": "", "network": NETWORK});
        let text = body.to_string();
        assert_eq!(
            settled(402, text.as_bytes(), NETWORK, payer, true),
            Settled::Refused("insufficient_funds".to_owned())
        );
        is_unknown(402, &body, false);
        for why in [
            "settlement_pending",
            "invalid_exact_evm_nonce_already_used",
            "invalid_exact_evm_transaction_simulation_failed",
            "invalid_exact_evm_transaction_failed",
            "unexpected_settle_error",
            "",
        ] {
            is_unknown(
                500,
                &json!({"success": false, "errorReason": why, "transaction": hash()}),
                true,
            );
        }
        // A refusal that names a transaction contradicts itself.
        is_unknown(
            200,
            &json!({"success": false, "errorReason": "insufficient_funds", "transaction": hash()}),
            true,
        );
        is_unknown(502, &json!("bad gateway"), true);
    }

    fn is_unknown(status: u16, body: &Value, first: bool) {
        let payer: Address = PAYER.parse().expect("an address");
        let read = settled(status, body.to_string().as_bytes(), NETWORK, payer, first);
        assert!(
            matches!(read, Settled::Unknown { .. }),
            "{status} {body}: {read:?}"
        );
    }
}
