//! The x402 wire formats, against vectors that were made with the published encoder of the protocol's own library.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};
use tollgate_clock::Timestamp;
use tollgate_pay::x402::{
    CheckError, MemberFault, Offer, Payment, PaymentError, Reason, Terms, check,
    is_fault_of_facilitator, reason,
};

const REQUIRED: &str = "eyJ4NDAyVmVyc2lvbiI6MiwiZXJyb3IiOiJQYXltZW50IHJlcXVpcmVkIiwicmVzb3VyY2UiOnsidXJsIjoiaHR0cHM6Ly9hcGkuZXhhbXBsZS5jb20vY29tbWVyY2Uvc3Vic2NyaXB0aW9ucy9zdmMtcHJvL3g0MDIiLCJkZXNjcmlwdGlvbiI6IlBybyBwbGFuLCAzMCBkYXlzIiwibWltZVR5cGUiOiJhcHBsaWNhdGlvbi9qc29uIn0sImFjY2VwdHMiOlt7InNjaGVtZSI6ImV4YWN0IiwibmV0d29yayI6ImVpcDE1NTo4NDUzIiwiYW1vdW50IjoiMTk5MDAwMDAwIiwiYXNzZXQiOiIweDgzMzU4OWZDRDZlRGI2RTA4ZjRjN0MzMkQ0ZjcxYjU0YmRBMDI5MTMiLCJwYXlUbyI6IjB4OTBGNzliZjZFQjJjNGY4NzAzNjVFNzg1OTgyRTFmMTAxRTkzYjkwNiIsIm1heFRpbWVvdXRTZWNvbmRzIjozMDAsImV4dHJhIjp7Im5hbWUiOiJVU0QgQ29pbiIsInZlcnNpb24iOiIyIn19XX0=";

const SIGNATURE: &str = "eyJ4NDAyVmVyc2lvbiI6MiwicGF5bG9hZCI6eyJhdXRob3JpemF0aW9uIjp7ImZyb20iOiIweDcwOTk3OTcwQzUxODEyZGMzQTAxMEM3ZDAxYjUwZTBkMTdkYzc5QzgiLCJ0byI6IjB4OTBGNzliZjZFQjJjNGY4NzAzNjVFNzg1OTgyRTFmMTAxRTkzYjkwNiIsInZhbHVlIjoiMTk5MDAwMDAwIiwidmFsaWRBZnRlciI6IjAiLCJ2YWxpZEJlZm9yZSI6IjE4MDAwMDAzMDAiLCJub25jZSI6IjB4MTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMTExMSJ9LCJzaWduYXR1cmUiOiIweGNkMzEyNzlhZWNmOGUyMGVhYjkzZGQ2YTYxODEwNmI4MmJlODAwNGVjZjMxM2FhMjMyNWI5MGU2NjMzM2FjNjU0OTcxMzMxNmJkYmMzZmI5YWIxMzE5YzQxNDlkYmQxNzk4NDMwMTZkYjk4ODY3MmRkYTcwNzI4ZTdmNWMwZDI4MWIifSwicmVzb3VyY2UiOnsidXJsIjoiaHR0cHM6Ly9hcGkuZXhhbXBsZS5jb20vY29tbWVyY2Uvc3Vic2NyaXB0aW9ucy9zdmMtcHJvL3g0MDIiLCJkZXNjcmlwdGlvbiI6IlBybyBwbGFuLCAzMCBkYXlzIiwibWltZVR5cGUiOiJhcHBsaWNhdGlvbi9qc29uIn0sImFjY2VwdGVkIjp7InNjaGVtZSI6ImV4YWN0IiwibmV0d29yayI6ImVpcDE1NTo4NDUzIiwiYW1vdW50IjoiMTk5MDAwMDAwIiwiYXNzZXQiOiIweDgzMzU4OWZDRDZlRGI2RTA4ZjRjN0MzMkQ0ZjcxYjU0YmRBMDI5MTMiLCJwYXlUbyI6IjB4OTBGNzliZjZFQjJjNGY4NzAzNjVFNzg1OTgyRTFmMTAxRTkzYjkwNiIsIm1heFRpbWVvdXRTZWNvbmRzIjozMDAsImV4dHJhIjp7Im5hbWUiOiJVU0QgQ29pbiIsInZlcnNpb24iOiIyIn19fQ==";

/// A second at which the authorization of the vector is valid.
const NOW_SECS: i64 = 1_800_000_000;
const NOW: Timestamp = Timestamp::from_secs(NOW_SECS);

fn terms() -> Terms {
    Terms {
        network: "eip155:8453".to_owned(),
        asset: "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
            .parse()
            .expect("an address"),
        asset_name: "USD Coin".to_owned(),
        asset_version: "2".to_owned(),
        amount: 199_000_000.into(),
        pay_to: "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
            .parse()
            .expect("an address"),
        max_timeout_secs: 300,
    }
}

#[test]
fn an_offer_is_written_as_stock_buyers_read_it() {
    let offer = Offer {
        terms: &terms(),
        url: "https://api.example.com/commerce/subscriptions/svc-pro/x402",
        description: "Pro plan, 30 days",
        error: "Payment required",
        extensions: None,
    };
    assert_eq!(offer.header(), REQUIRED);
}

#[test]
fn a_payment_of_a_stock_buyer_is_read_and_found_good() {
    let payment = Payment::read(SIGNATURE.as_bytes()).expect("a payment");
    let from = "0x70997970c51812dc3a010c7d01b50e0d17dc79c8";
    assert_eq!(payment.authorization.from.to_string(), from);
    assert_eq!(payment.authorization.nonce.0, [0x11; 32]);
    assert_eq!(check(&payment, &terms(), NOW), Ok(()));
    let sent: Value =
        serde_json::from_slice(&STANDARD.decode(SIGNATURE).expect("base64")).expect("JSON");
    assert_eq!(payment.whole(), &sent, "the facilitator gets what was sent");
}

#[test]
fn what_is_no_payment_is_refused() {
    use MemberFault::{Form, Missing, Type};
    use PaymentError::{Encoding, Json, NoObject, OtherMethod, TooLarge, Version};
    let nonce_twice = changed(|text| text.replace("\"nonce\":", "\"nonce\":\"0x\",\"nonce\":"));
    let url_safe = STANDARD
        .encode([0xfb, 0xff, 0xbf])
        .replace('+', "-")
        .replace('/', "_");
    let large = STANDARD.encode(vec![b' '; 16 * 1024]);
    for (header, error) in [
        ("", Json),
        ("e30=", Version),
        ("bnVsbA==", NoObject),
        ("W10=", NoObject),
        ("eyJ4NDAyVmVyc2lvbiI6MX0=", Version),
        ("e30", Encoding),
        ("bnVsbA", Encoding),
        (&url_safe, Encoding),
        (&*large, TooLarge),
        (&*nonce_twice, Json),
        (&*member("/x402Version", json!("2")), Version),
        (
            &*member("/payload/permit2Authorization", json!({"nonce": "1"})),
            OtherMethod("permit2Authorization"),
        ),
        (
            &*member("/payload/permit2Authorization", Value::Null),
            OtherMethod("permit2Authorization"),
        ),
        (
            &*member("/payload/delegationManager", json!("0x00")),
            OtherMethod("delegationManager"),
        ),
        (
            &*member("/payload/permissionContext", json!("0x00")),
            OtherMethod("permissionContext"),
        ),
        (
            &*member("/payload/delegator", json!("0x00")),
            OtherMethod("delegator"),
        ),
    ] {
        let read = Payment::read(header.as_bytes());
        assert_eq!(read.err(), Some(error), "{header:.120}");
    }
    for (header, path, fault) in [
        (&*member("/accepted", json!([])), "accepted", Type),
        (&*member("/payload", Value::Null), "payload", Missing),
        (
            &*member("/payload/authorization", Value::Null),
            "payload.authorization",
            Missing,
        ),
        (
            &*member("/payload/signature", json!("0x00")),
            "payload.signature",
            Form,
        ),
        (
            &*member("/payload/signature", json!(1)),
            "payload.signature",
            Type,
        ),
        (
            &*member("/payload/authorization/from", json!("0x00")),
            "payload.authorization.from",
            Form,
        ),
        (
            &*member("/payload/authorization/to", Value::Null),
            "payload.authorization.to",
            Missing,
        ),
        (
            &*member("/payload/authorization/value", json!(199000000)),
            "payload.authorization.value",
            Type,
        ),
        (
            &*member("/payload/authorization/value", json!("1.5")),
            "payload.authorization.value",
            Form,
        ),
        (
            &*member("/payload/authorization/value", json!("0199000000")),
            "payload.authorization.value",
            Form,
        ),
        (
            &*member("/payload/authorization/validAfter", json!("00")),
            "payload.authorization.validAfter",
            Form,
        ),
        (
            &*member("/payload/authorization/validBefore", json!("soon")),
            "payload.authorization.validBefore",
            Form,
        ),
        (
            &*member("/payload/authorization/nonce", json!("0x11")),
            "payload.authorization.nonce",
            Form,
        ),
    ] {
        match Payment::read(header.as_bytes()).expect_err(path) {
            PaymentError::Member {
                path: found_path,
                fault: found,
                ..
            } => assert_eq!((found_path, found), (path, fault)),
            other => panic!("{path}: {other:?}"),
        }
    }
}

#[test]
fn a_payment_for_something_else_is_refused_before_the_facilitator_is_called() {
    use CheckError::{
        NoMatchingRequirements, NotYet, Recipient, Signature, TooLate, TooLong, Value,
    };
    let authorization = |name: &str| format!("/payload/authorization/{name}");
    let second_form = "0xcd31279aecf8e20eab93dd6a618106b82be8004ecf313aa2325b90e66333ac65b68ecce94243c04654ece63beb6242e7226bdb78f5c0390de561ebfe50da34191c";
    for (path, value, doubt) in [
        (
            "/accepted/scheme".to_owned(),
            json!("upto"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/network".to_owned(),
            json!("eip155:84532"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/amount".to_owned(),
            json!("1"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/amount".to_owned(),
            json!(199000000),
            NoMatchingRequirements,
        ),
        (
            "/accepted/amount".to_owned(),
            json!("0199000000"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/asset".to_owned(),
            json!("0x036CbD53842c5426634e7929541eC2318f3dCF7e"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/payTo".to_owned(),
            json!("0x70997970C51812dc3A010C7d01b50e0d17dc79C8"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/extra/name".to_owned(),
            json!("USDC"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/extra/version".to_owned(),
            json!("1"),
            NoMatchingRequirements,
        ),
        (
            "/accepted/extra/assetTransferMethod".to_owned(),
            json!("permit2"),
            NoMatchingRequirements,
        ),
        (
            authorization("to"),
            json!("0x70997970C51812dc3A010C7d01b50e0d17dc79C8"),
            Recipient,
        ),
        (authorization("value"), json!("198999999"), Value),
        (authorization("value"), json!("199000001"), Value),
        (
            authorization("validAfter"),
            json!((NOW_SECS + 31).to_string()),
            NotYet,
        ),
        (
            authorization("validBefore"),
            json!((NOW_SECS + 9).to_string()),
            TooLate,
        ),
        (authorization("validBefore"), json!("0"), TooLate),
        (
            authorization("validBefore"),
            json!((NOW_SECS + 901).to_string()),
            TooLong,
        ),
        (
            "/payload/signature".to_owned(),
            json!(second_form),
            Signature,
        ),
    ] {
        let payment = Payment::read(member(&path, value.clone()).as_bytes()).expect("a payment");
        assert_eq!(check(&payment, &terms(), NOW), Err(doubt), "{path} {value}");
    }
}

#[test]
fn a_payment_may_be_written_in_its_own_way() {
    for (path, value) in [
        (
            "/accepted/asset",
            json!("0x833589fcd6edb6e08f4c7c32d4f71b54bda02913"),
        ),
        ("/accepted/extra", Value::Null),
        ("/accepted/extra/assetTransferMethod", json!("eip3009")),
        ("/accepted/more", json!({"a": 1})),
        (
            "/payload/authorization/validAfter",
            json!((NOW_SECS + 30).to_string()),
        ),
        (
            "/payload/authorization/validBefore",
            json!((NOW_SECS + 10).to_string()),
        ),
        (
            "/payload/authorization/validBefore",
            json!((NOW_SECS + 900).to_string()),
        ),
        ("/extensions", json!({"x": {}})),
    ] {
        let payment = Payment::read(member(path, value.clone()).as_bytes()).expect("a payment");
        assert_eq!(check(&payment, &terms(), NOW), Ok(()), "{path} {value}");
    }
}

#[test]
fn every_reason_says_what_became_of_the_money() {
    for (text, expected) in [
        ("insufficient_funds", Reason::Refused),
        ("invalid_exact_evm_insufficient_balance", Reason::Refused),
        ("invalid_exact_evm_payload_signature", Reason::Refused),
        ("invalid_exact_evm_signature", Reason::Refused),
        (
            "invalid_exact_evm_payload_recipient_mismatch",
            Reason::Refused,
        ),
        ("invalid_exact_evm_token_name_mismatch", Reason::Refused),
        ("invalid_x402_version", Reason::Refused),
        ("sanctioned_kyt", Reason::Refused),
        ("invalid_exact_evm_nonce_already_used", Reason::NonceSpent),
        ("nonce_already_used", Reason::NonceSpent),
        ("insufficient_balance", Reason::Refused),
        ("settlement_pending", Reason::Pending),
        (
            "invalid_exact_evm_transaction_simulation_failed",
            Reason::SimulationFailed,
        ),
        ("invalid_exact_evm_transaction_failed", Reason::Fault),
        ("unexpected_settle_error", Reason::Fault),
        ("nonce too low: relayer", Reason::Fault),
        ("", Reason::Fault),
    ] {
        assert_eq!(reason(text), expected, "{text}");
    }
}

#[test]
fn the_faults_of_a_facilitator_are_few_and_every_other_reason_of_verify_is_a_refusal() {
    for (text, is_fault) in [
        ("unexpected_verify_error", true),
        ("unexpected_settle_error", true),
        ("settlement_pending", true),
        ("invalid_transaction_state", true),
        ("transaction_failed", true),
        ("invalid_exact_evm_transaction_failed", true),
        ("smart_wallet_deployment_failed", true),
        ("asset_not_deployed_contract", true),
        ("invalid_exact_evm_eip3009_not_supported", true),
        ("invalid_exact_evm_failed_to_get_balance", true),
        ("invalid_exact_evm_failed_to_check_nonce", true),
        ("rate_limited", true),
        ("internal_error", true),
        ("timeout", true),
        ("invalid_exact_evm_failed_to_parse_signature", false),
        ("invalid_exact_evm_payload_undeployed_smart_wallet", false),
        (
            "invalid_exact_evm_payload_authorization_typed_data_message",
            false,
        ),
        ("invalid_exact_evm_payload_signature_address", false),
        ("insufficient_balance", false),
        ("a_reason_of_tomorrow", false),
    ] {
        assert_eq!(is_fault_of_facilitator(text), is_fault, "{text}");
    }
}

/// The vector with its JSON changed.
fn changed(change: impl Fn(String) -> String) -> String {
    let json = STANDARD.decode(SIGNATURE).expect("base64");
    STANDARD.encode(change(String::from_utf8(json).expect("UTF-8")))
}

/// The vector with another value at a JSON path.
fn member(path: &str, value: Value) -> String {
    changed(|text| {
        let mut whole: Value = serde_json::from_str(&text).expect("JSON");
        let (parent, name) = path.rsplit_once('/').expect("a path");
        whole.pointer_mut(parent).expect("it is there")[name] = value.clone();
        whole.to_string()
    })
}
