//! Parsing of the facilitator's answers, and their value as proof about the payment.

use serde_json::{Map, Value};
use tollgate_evm::{Address, TxHash, chain_id};

use super::reason::{Reason, is_fault_of_facilitator, reason};

/// The reason of a refusal without a reason.
const NO_REASON: &str = "no_reason_given";

/// The result of `/verify`. No money has moved in any case.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verified {
    /// The transfer would succeed now.
    Good,
    /// The payment is invalid, for this reason.
    Refused(String),
    /// The nonce was used before: by us, or by another holder of the authorization.
    NonceSpent,
    /// The facilitator gave no decision, for this reason. The payment may be valid later.
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
    /// The facilitator reports, with this reason, that the transfer was not sent and never will be.
    Refused(String),
    /// It is not known yet whether money has moved. Only an identical call is safe to repeat.
    Unknown {
        /// The hash of a transaction that may be pending.
        transaction: Option<TxHash>,
        /// The facilitator's reason.
        why: String,
    },
}

/// Parses the answer to `/verify`. The body says more than the status: refusals come with 200 and with 4xx. But with 429 and 5xx, statuses
/// about the facilitator, an unknown reason is a fault: a refusal is stored, and its payment is never verified again.
pub fn verified(status: u16, body: &[u8]) -> Verified {
    let Some(members) = object(body) else {
        return Verified::Fault(format!("status {status} without a valid x402 answer"));
    };
    match members.get("isValid") {
        Some(Value::Bool(true)) if (200..300).contains(&status) => Verified::Good,
        Some(Value::Bool(false)) => {
            let why = text(&members, "invalidReason");
            match reason(&why) {
                Reason::NonceSpent => Verified::NonceSpent,
                _ if is_fault_of_facilitator(&why) => Verified::Fault(why),
                Reason::Fault if status == 429 || status >= 500 => {
                    Verified::Fault(format!("status {status}: {why}"))
                }
                _ if why.is_empty() => Verified::Refused(NO_REASON.to_owned()),
                _ => Verified::Refused(why),
            }
        }
        _ => Verified::Fault(format!("status {status} without a valid x402 answer")),
    }
}

/// Parses the answer to `/settle` for a payment on `network` by `payer`.
///
/// `first`: the authorization was never submitted before, or every earlier submission ended with an answer read as a refusal. Only with
/// `first` is a refusal taken as a refusal. After a submission with a lost answer, a refusal may have another cause: the wallet has paid,
/// lacks the money to pay again, and the authorization is spent. After an earlier refusal this cause requires that the earlier refusal was
/// false; the second refusal then proves no more than the first. With a node, neither refusal ends the payment before the chain was read.
/// Without a node the payment stays refused after submission, a state never accepted as proof that no money moved.
pub fn settled(status: u16, body: &[u8], network: &str, payer: Address, first: bool) -> Settled {
    let unknown = |transaction, why| Settled::Unknown { transaction, why };
    let Some(members) = object(body) else {
        return unknown(None, format!("status {status} without a valid x402 answer"));
    };
    let transaction = named(&members, "transaction")
        .and_then(Value::as_str)
        .and_then(|text| text.parse::<TxHash>().ok());
    match members.get("success") {
        Some(Value::Bool(true)) => {
            // A missing or empty member does not contradict the payment, which the call itself has named.
            let wallet = named(&members, "payer");
            let paid_by = wallet.and_then(|wallet| read_wallet(wallet, network));
            let same_network =
                named(&members, "network").is_none_or(|found| is_network(found, network));
            let same_payer = wallet.is_none() || paid_by == Some(payer);
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

/// A member that names something: present, and neither `null` nor an empty text.
fn named<'v>(members: &'v Map<String, Value>, name: &str) -> Option<&'v Value> {
    let value = members.get(name)?;
    let is_empty = value.is_null() || value.as_str().is_some_and(|text| text.trim().is_empty());
    (!is_empty).then_some(value)
}

/// Whether a facilitator's name for a network is the network of a payment: the CAIP-2 name, the chain id alone, or the name of version 1
/// of the protocol.
fn is_network(found: &Value, network: &str) -> bool {
    let Some(id) = chain_id(network) else {
        return found.as_str() == Some(network);
    };
    let found = match found {
        Value::String(text) => text.trim().to_ascii_lowercase(),
        Value::Number(number) => return number.as_u64() == Some(id),
        _ => return false,
    };
    let number = found.strip_prefix("eip155:").unwrap_or(&found);
    let by_name = VERSION_1_NETWORKS.iter().find(|(name, _)| *name == found);
    by_name.map(|(_, id)| *id).or(number.parse().ok()) == Some(id)
}

/// The names of EVM chains in version 1 of the protocol. Facilitators of both versions use these names in answers.
const VERSION_1_NETWORKS: &[(&str, u64)] = &[
    ("abstract", 2_741),
    ("abstract-testnet", 11_124),
    ("avalanche", 43_114),
    ("avalanche-fuji", 43_113),
    ("base", 8_453),
    ("base-mainnet", 8_453),
    ("base-sepolia", 84_532),
    ("iotex", 4_689),
    ("peaq", 3_338),
    ("polygon", 137),
    ("polygon-amoy", 80_002),
    ("sei", 1_329),
    ("sei-testnet", 1_328),
];

/// A wallet in a facilitator's answer: the address, possibly after the name of the network (CAIP-10).
fn read_wallet(found: &Value, network: &str) -> Option<Address> {
    let text = found.as_str()?.trim();
    let address = text
        .strip_prefix(network)
        .and_then(|rest| rest.strip_prefix(':'));
    address.unwrap_or(text).parse().ok()
}

fn object(body: &[u8]) -> Option<Map<String, Value>> {
    serde_json::from_slice(body).ok()
}

/// A reason: short, and safe in a log line.
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
            (
                500,
                json!({"isValid": false, "invalidReason": "a_reason_of_tomorrow"}),
                fault("status 500: a_reason_of_tomorrow"),
            ),
            (
                429,
                json!({"isValid": false, "invalidReason": "slow_down"}),
                fault("status 429: slow_down"),
            ),
            (503, json!({"isValid": false}), fault("status 503: ")),
            (
                500,
                json!({"isValid": false, "invalidReason": "insufficient_funds"}),
                refused("insufficient_funds"),
            ),
            (
                402,
                json!({"isValid": false, "invalidReason": "a_reason_of_tomorrow"}),
                refused("a_reason_of_tomorrow"),
            ),
            (
                200,
                json!({"isValid": false, "invalidReason": "rate_limited"}),
                fault("rate_limited"),
            ),
            (
                200,
                json!({"isValid": false, "invalidReason": "nonce_already_used"}),
                Verified::NonceSpent,
            ),
            (200, json!({"isValid": false}), refused("no_reason_given")),
            (
                200,
                json!({"isValid": false, "invalidReason": null}),
                refused("no_reason_given"),
            ),
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
    fn a_settlement_counts_unless_a_member_of_the_answer_names_another_payment() {
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
        // The members that name the payment may be missing, empty, or written in another way.
        let success =
            json!({"success": true, "transaction": hash(), "network": NETWORK, "payer": PAYER});
        for (member, value) in [
            ("payer", json!(PAYER.to_lowercase())),
            ("payer", json!(format!("{NETWORK}:{PAYER}"))),
            ("network", Value::Null),
            ("network", json!("")),
            ("network", json!("base")),
            ("network", json!("Base")),
            ("network", json!("8453")),
            ("network", json!(8453)),
            ("network", json!("EIP155:8453")),
            ("transaction", json!(hash().replace("ab", "AB"))),
        ] {
            let mut answer = success.clone();
            answer[member] = value;
            check(200, answer, true, &done);
        }
        for value in [Value::Null, json!(""), json!(" ")] {
            let mut answer = success.clone();
            answer["payer"] = value;
            let payer = None;
            check(200, answer, true, &Settled::Done { transaction, payer });
        }
        // Another network, another wallet, no transaction.
        for odd in [
            json!({"success": true, "transaction": hash(), "network": "base-sepolia", "payer": PAYER}),
            json!({"success": true, "transaction": hash(), "network": "solana:8453", "payer": PAYER}),
            json!({"success": true, "transaction": hash(), "network": "a network of tomorrow", "payer": PAYER}),
            json!({"success": true, "transaction": hash(), "network": 84532, "payer": PAYER}),
            json!({"success": true, "transaction": hash(), "network": NETWORK, "payer": format!("eip155:1:{PAYER}")}),
            json!({"success": true, "transaction": null, "network": NETWORK, "payer": PAYER}),
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
