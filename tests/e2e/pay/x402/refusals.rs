//! Refused payments: malformed, of another buyer, or not accepted by the facilitator.

use http::HeaderValue;
use serde_json::{Value, json};
use tollgate_evm::{Address, Authorization, Nonce};
use tollgate_testing::facilitator::{Effect, Fault, Operation, merchant};
use tollgate_testing::wallet::{decoded, encoded};
use tollgate_testing::{Answer, Wallet};

use super::{BUY, PRICE, X402Rig, is, now, submit};
use crate::rig::Rig;

/// The shown offer.
async fn offer(fixture: &X402Rig) -> Value {
    let asked = fixture.ask().await;
    decoded(asked.header("payment-required").expect("an offer"))
}

/// A refusal shows a new offer with the reason.
fn shows_offer(answer: &Answer, why: &str) {
    let offer = decoded(answer.header("payment-required").expect("an offer"));
    assert_eq!(offer["error"], why);
    assert_eq!(answer.header("cache-control"), Some("no-store"));
}

#[tokio::test]
async fn what_cannot_be_read_is_refused_with_a_new_offer() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    let url_safe = payment.replace('e', "-");
    let version_1 =
        encoded(&json!({"x402Version": 1, "scheme": "exact", "network": "base", "payload": {}}));
    let changed = |path: &str, value: Value| {
        let mut payment = decoded(&payment);
        let (parent, name) = path.rsplit_once('/').expect("a path");
        payment.pointer_mut(parent).expect("it is there")[name] = value;
        encoded(&payment)
    };
    let value = "/payload/authorization/value";
    for (header, why, cause) in [
        ("", "invalid_payload", "JSON"),
        ("e30=", "invalid_x402_version", "x402Version"),
        ("bnVsbA==", "invalid_payload", "not an object"),
        ("W10=", "invalid_payload", "not an object"),
        (
            "eyJ4NDAyVmVyc2lvbiI6MX0=",
            "invalid_x402_version",
            "x402Version",
        ),
        ("e30", "invalid_payload", "base64"),
        (&*url_safe, "invalid_payload", "base64"),
        (&payment[..payment.len() - 8], "invalid_payload", "JSON"),
        (&*version_1, "invalid_x402_version", "x402Version"),
        (
            &*changed("/payload/signature", Value::Null),
            "invalid_payload",
            "`payload.signature` is missing",
        ),
        (
            &*changed("/payload/authorization/from", json!("0x1")),
            "invalid_payload",
            "`payload.authorization.from` is malformed",
        ),
        (
            &*changed(value, json!(PRICE)),
            "invalid_payload",
            "`payload.authorization.value` is of another type",
        ),
        (
            &*changed(value, json!(format!("0{PRICE}"))),
            "invalid_payload",
            "without leading zeros",
        ),
        (
            &*changed("/payload/permit2Authorization", json!({})),
            "invalid_payload",
            "transfer method that was not offered",
        ),
        (
            &*changed(
                "/extensions",
                json!({"payment-identifier": {"info": {"id": "x"}}}),
            ),
            "invalid_payload",
            "`extensions.payment-identifier.info.id`",
        ),
    ] {
        let refused = fixture.submit(header).await;
        is(&refused, 402, "invalid-payload", "refused", "fix_request");
        let detail = refused.json()["detail"].to_string();
        assert!(detail.contains(cause), "{cause}: {detail}");
        shows_offer(&refused, why);
        assert_eq!(refused.header("payment-response"), None);
    }
    let mut old = fixture.client().request("POST", BUY, "{}".into());
    let value = HeaderValue::from_str(&version_1).expect("a value");
    old.headers_mut().insert("x-payment", value);
    let refused = fixture.client().send(old).await;
    is(&refused, 402, "invalid-payload", "refused", "fix_request");
    assert!(
        refused.json()["detail"]
            .as_str()
            .is_some_and(|detail| detail.contains("version 2"))
    );
    assert_eq!(fixture.facilitator.calls(Operation::Verify), 0);
    fixture.close().await;
}

#[tokio::test]
async fn requests_that_are_broken_in_themselves_are_400_and_show_no_offer() {
    let fixture = X402Rig::open().await;
    let payment = fixture.payment(1).await;
    for (body, code) in [
        (json!({"amount": 1}), "unknown_field"),
        (json!({"product_id": "svc-plus"}), "out_of_range"),
        (json!({"idempotency_key": ""}), "out_of_range"),
        (json!({"idempotency_key": "k".repeat(256)}), "out_of_range"),
        (json!({"idempotency_key": 1}), "invalid_type"),
        (json!([]), "invalid_type"),
    ] {
        let refused = fixture.submit_with(&payment, &body).await;
        assert_eq!(refused.status, 400, "{body}");
        assert_eq!(refused.json()["error"]["code"], code, "{body}");
        assert_eq!(refused.header("payment-required"), None, "{body}");
    }
    let mut twice = fixture.client().request("POST", BUY, "{}".into());
    for _ in 0..2 {
        let value = HeaderValue::from_str(&payment).expect("a value");
        twice.headers_mut().append("payment-signature", value);
    }
    let refused = fixture.client().send(twice).await;
    assert_eq!(refused.status, 400);
    assert_eq!(refused.json()["error"]["code"], "invalid_header");
    let large = "A".repeat(17 * 1024);
    let refused = fixture.submit(&large).await;
    assert_eq!(refused.status, 431, "{}", refused.text());
    assert_eq!(fixture.facilitator.calls(Operation::Verify), 0);
    fixture.close().await;
}

#[tokio::test]
async fn a_payment_with_other_terms_is_refused_before_verification() {
    let fixture = X402Rig::open().await;
    let offer = offer(&fixture).await;
    let good = fixture.wallet.payment(&offer, [1; 32], now());
    let with = |path: &str, value: Value| {
        let mut payment = good.clone();
        *payment.pointer_mut(path).expect("it is there") = value;
        encoded(&payment)
    };
    let signed = |change: fn(&mut Authorization)| {
        let mut transfer = transfer(&fixture.wallet, [1; 32]);
        change(&mut transfer);
        encoded(&fixture.wallet.signed(&offer, &transfer))
    };
    for (payment, code, why) in [
        (
            with("/accepted/amount", json!("1")),
            "verification-failed",
            "No matching payment requirements",
        ),
        (
            with("/accepted/network", json!("eip155:84532")),
            "verification-failed",
            "No matching payment requirements",
        ),
        (
            signed(|transfer| transfer.to = Address([7; 20])),
            "verification-failed",
            "invalid_exact_evm_payload_recipient_mismatch",
        ),
        (
            signed(|transfer| transfer.value = (PRICE + 1).into()),
            "verification-failed",
            "invalid_exact_evm_payload_authorization_value_mismatch",
        ),
        (
            signed(|transfer| transfer.value = 1.into()),
            "verification-failed",
            "invalid_exact_evm_payload_authorization_value_mismatch",
        ),
        (
            signed(|transfer| transfer.valid_before = (now() - 1).into()),
            "payment-expired",
            "invalid_exact_evm_payload_authorization_valid_before",
        ),
        (
            signed(|transfer| transfer.valid_before = (now() + 3_600).into()),
            "verification-failed",
            "invalid_exact_evm_payload_authorization_valid_before_too_far",
        ),
        (
            signed(|transfer| transfer.valid_after = (now() + 120).into()),
            "verification-failed",
            "invalid_exact_evm_payload_authorization_valid_after",
        ),
    ] {
        let refused = fixture.submit(&payment).await;
        is(&refused, 402, code, "refused", "pay_again");
        shows_offer(&refused, why);
    }
    assert_eq!(fixture.facilitator.calls(Operation::Verify), 0);
    assert_eq!(fixture.submit(&encoded(&good)).await.status, 200);
    fixture.close().await;
}

/// A transfer for the offer.
fn transfer(wallet: &Wallet, nonce: [u8; 32]) -> Authorization {
    Authorization {
        from: wallet.address(),
        to: merchant(),
        value: PRICE.into(),
        valid_after: 0.into(),
        valid_before: (now() + 300).into(),
        nonce: Nonce(nonce),
    }
}

#[tokio::test]
async fn what_the_facilitator_refuses_is_refused_and_never_sent() {
    let fixture = X402Rig::open().await;
    for (nonce, why, status) in [
        (1, "insufficient_funds", 200),
        (2, "invalid_exact_evm_insufficient_balance", 400),
        (3, "invalid_exact_evm_payload_signature", 200),
        (4, "sanctions_kyt", 200),
        (5, "eip6492_factory_not_allowed", 200),
        (6, "invalid_exact_evm_transaction_simulation_failed", 200),
        (7, "invalid_exact_evm_token_name_mismatch", 200),
        (8, "invalid_exact_evm_payload_signature_address", 400),
        (9, "invalid_exact_evm_payload_undeployed_smart_wallet", 200),
        (10, "insufficient_balance", 200),
        (11, "a_reason_of_tomorrow", 422),
    ] {
        let payment = fixture.payment(nonce).await;
        let refuse = Effect::Refuse(why.to_owned(), status);
        fixture
            .facilitator
            .fault(Fault::once(Operation::Verify, refuse));
        let refused = fixture.submit(&payment).await;
        is(&refused, 402, "verification-failed", "refused", "pay_again");
        shows_offer(&refused, why);
        assert_eq!(refused.header("payment-response"), None);
        let verified = fixture.facilitator.calls(Operation::Verify);
        let again = fixture.submit(&payment).await;
        is(&again, 402, "verification-failed", "refused", "pay_again");
        assert_eq!(
            fixture.facilitator.calls(Operation::Verify),
            verified,
            "{why}: it is known"
        );
    }
    // Without a reason from the facilitator.
    let payment = fixture.payment(12).await;
    let refuse = json!({"isValid": false, "payer": null});
    let refuse = Effect::AnswerWith(refuse.as_object().expect("an object").clone());
    fixture
        .facilitator
        .fault(Fault::once(Operation::Verify, refuse));
    let refused = fixture.submit(&payment).await;
    is(&refused, 402, "verification-failed", "refused", "pay_again");
    shows_offer(&refused, "no_reason_given");
    assert_eq!(fixture.facilitator.calls(Operation::Settle), 0);
    let good = fixture.payment(13).await;
    assert_eq!(fixture.submit(&good).await.status, 200);
    fixture.close().await;
}

#[tokio::test]
async fn a_wallet_without_funds_is_refused_and_can_pay_later() {
    let fixture = X402Rig::open().await;
    fixture
        .facilitator
        .set_balance(fixture.wallet.address(), PRICE - 1);
    let payment = fixture.payment(1).await;
    let refused = fixture.submit(&payment).await;
    is(&refused, 402, "verification-failed", "refused", "pay_again");
    let detail = refused.json()["detail"].to_string();
    assert!(detail.contains("enough USDC"), "{detail}");
    fixture
        .facilitator
        .set_balance(fixture.wallet.address(), PRICE);
    let payment = fixture.payment(2).await;
    assert_eq!(fixture.submit(&payment).await.status, 200);
    fixture.close().await;
}

#[tokio::test]
async fn without_a_node_a_refused_submission_is_reported_in_both_fields() {
    let fixture = X402Rig::without_node().await;
    for (nonce, status) in [(1, 200), (2, 402), (3, 500)] {
        let payment = fixture.payment(nonce).await;
        let refuse = Effect::Refuse("insufficient_funds".to_owned(), status);
        fixture
            .facilitator
            .fault(Fault::once(Operation::Settle, refuse));
        let failed = fixture.submit(&payment).await;
        is(&failed, 402, "verification-failed", "failed", "pay_again");
        shows_offer(&failed, "insufficient_funds");
        let detail = failed.json()["detail"].to_string();
        assert!(!detail.contains("Nothing was charged"), "{detail}");
        assert!(detail.contains("same request is safe"), "{detail}");
        let response = decoded(failed.header("payment-response").expect("what was tried"));
        assert_eq!(response["success"], false);
        assert_eq!(response["transaction"], "");
        assert_eq!(response["errorReason"], "insufficient_funds");
        assert_eq!(response["network"], "eip155:8453");
    }
    let payment = fixture.payment(4).await;
    assert_eq!(fixture.submit(&payment).await.status, 200);
    fixture.close().await;
}

#[tokio::test]
async fn a_payment_counts_for_the_account_that_brought_it_first_and_for_no_other() {
    let fixture = X402Rig::open().await;
    let thief = fixture.rig.new_account("free", 0).await;
    let (_, key) = fixture.rig.new_key(thief, |_| {}).await;
    let thief = tollgate_testing::Client::new(&fixture.rig.url()).with_key(&key);
    let payment = fixture.payment(1).await;
    // While the payment is unclear, and after the settlement.
    fixture
        .facilitator
        .fault(Fault::once(Operation::Settle, Effect::Pending(200)));
    assert_eq!(fixture.submit(&payment).await.status, 503);
    for settled in [false, true] {
        let taken = submit(&thief, &payment, &json!({})).await;
        is(
            &taken,
            409,
            "payment_already_used",
            "refused",
            "contact_support",
        );
        assert_eq!(taken.header("payment-required"), None, "settled: {settled}");
        assert_eq!(taken.header("payment-response"), None);
        if !settled {
            fixture.facilitator.mine(true);
            fixture.clear().await;
        }
    }
    assert_eq!(fixture.submit(&payment).await.status, 200);
    fixture.close().await;
}

#[tokio::test]
async fn another_signature_under_the_same_number_is_another_payment() {
    let fixture = X402Rig::open().await;
    let offer = offer(&fixture).await;
    let first = fixture.wallet.payment(&offer, [1; 32], now());
    let mut longer = transfer(&fixture.wallet, [1; 32]);
    longer.valid_before = (now() + 360).into();
    let second = encoded(&fixture.wallet.signed(&offer, &longer));
    let refuse = Effect::Refuse("insufficient_funds".to_owned(), 200);
    fixture
        .facilitator
        .fault(Fault::once(Operation::Verify, refuse));
    assert_eq!(fixture.submit(&encoded(&first)).await.status, 402);
    assert_eq!(fixture.submit(&second).await.status, 402);
    assert_eq!(fixture.facilitator.calls(Operation::Verify), 1);
    // A payment in a different encoding is still an equal payment.
    let fresh = fixture.wallet.payment(&offer, [2; 32], now());
    assert_eq!(fixture.submit(&encoded(&fresh)).await.status, 200);
    let mut other_words = fresh;
    other_words["resource"] = json!({"url": "https://elsewhere.example"});
    other_words["more"] = json!([1]);
    let again = fixture.submit(&encoded(&other_words)).await;
    assert_eq!(again.status, 200);
    assert!(again.header("payment-response").is_some());
    fixture.close().await;
}

#[tokio::test]
async fn a_transfer_submitted_by_another_party_counts_when_the_chain_proves_it() {
    let fixture = X402Rig::open().await;
    let offer = offer(&fixture).await;
    let transfer = transfer(&fixture.wallet, [1; 32]);
    let payment = encoded(&fixture.wallet.signed(&offer, &transfer));
    assert!(fixture.facilitator.submit(&transfer));
    let paid = fixture.submit(&payment).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    assert_eq!(paid.json()["already_active"], false);
    assert_eq!(fixture.transfers(), 1);
    fixture.close().await;
}

#[tokio::test]
async fn a_number_that_was_spent_for_something_else_pays_for_nothing() {
    let fixture = X402Rig::open().await;
    let offer = offer(&fixture).await;
    // Made void by the wallet, and used for a transfer to another account.
    fixture
        .facilitator
        .cancel(fixture.wallet.address(), Nonce([1; 32]));
    let mut elsewhere = transfer(&fixture.wallet, [2; 32]);
    elsewhere.to = Address([7; 20]);
    assert!(fixture.facilitator.submit(&elsewhere));
    for nonce in [1, 2] {
        let payment = encoded(&fixture.wallet.payment(&offer, [nonce; 32], now()));
        let refused = fixture.submit(&payment).await;
        is(&refused, 402, "verification-failed", "failed", "pay_again");
        assert!(refused.header("payment-required").is_some());
        assert_eq!(fixture.submit(&payment).await.status, 402, "and stays so");
    }
    assert_eq!(fixture.payments(), 0);
    fixture.rig.finish().await;
}

#[tokio::test]
async fn unverified_signatures_are_checked_at_most_five_times() {
    let fixture = X402Rig::open().await;
    let offer = offer(&fixture).await;
    let stranger = Wallet::new(2);
    for nonce in 1..=6 {
        let mut payment = fixture.wallet.payment(&offer, [nonce; 32], now());
        let other = stranger.payment(&offer, [nonce; 32], now());
        payment["payload"]["signature"] = other["payload"]["signature"].clone();
        let refused = fixture.submit(&encoded(&payment)).await;
        if nonce <= 5 {
            is(&refused, 402, "verification-failed", "refused", "pay_again");
        } else {
            assert_eq!(refused.status, 429, "{}", refused.text());
            let wait = refused.header("retry-after").expect("when to ask again");
            for (name, value) in [
                (
                    "ratelimit-policy",
                    format!("\"unverified-payments\";q=1;w={wait}"),
                ),
                ("ratelimit", format!("\"unverified-payments\";r=0;t={wait}")),
                ("ratelimit-limit", String::from("1")),
                ("ratelimit-remaining", String::from("0")),
                ("ratelimit-reset", wait.to_owned()),
            ] {
                assert_eq!(refused.header(name), Some(&*value), "{name}");
            }
        }
    }
    assert_eq!(fixture.facilitator.calls(Operation::Verify), 5);
    let good = encoded(&fixture.wallet.payment(&offer, [9; 32], now()));
    assert_eq!(
        fixture.submit(&good).await.status,
        200,
        "a good one is not held up"
    );
    fixture.close().await;
}

#[tokio::test]
async fn the_facilitator_receives_the_terms_and_the_token() {
    let facilitator = tollgate_testing::Facilitator::start().await;
    facilitator.want_bearer("facilitator-token-1f0c");
    let settings = super::settings(&facilitator, true)
        .replace("rpc_url", "facilitator_token_file = \"token\"\nrpc_url");
    let mut setup = crate::rig::Setup::with(&settings);
    setup.environment = tollgate::config::Environment::of([
        ("PROVIDER_KEY", crate::rig::PROVIDER_KEY),
        ("FACILITATOR_TOKEN", "facilitator-token-1f0c"),
    ]);
    setup.settings = setup.settings.replace(
        "facilitator_token_file = \"token\"",
        "facilitator_token_env = \"FACILITATOR_TOKEN\"",
    );
    let rig: Rig = setup.start().await;
    let fixture = X402Rig::of(rig, facilitator).await;
    let offer = offer(&fixture).await;
    let mut payment = fixture.wallet.payment(&offer, [1; 32], now());
    payment["accepted"]["extra"]["more"] = json!("kept");
    let paid = fixture.submit(&encoded(&payment)).await;
    assert_eq!(paid.status, 200, "{}", paid.text());
    for operation in [Operation::Verify, Operation::Settle] {
        let asked = &fixture.facilitator.asked(operation)[0];
        assert_eq!(asked["x402Version"], 2);
        assert_eq!(asked["paymentPayload"], payment, "as it was sent");
        assert_eq!(asked["paymentRequirements"], offer["accepts"][0], "ours");
        assert_eq!(
            asked["paymentPayload"]["payload"]["authorization"]["from"],
            fixture.wallet.address().to_string()
        );
    }
    fixture.close().await;
}

#[tokio::test]
async fn an_offer_is_in_the_body_too_and_a_bad_request_is_no_reason_to_pay() {
    let fixture = X402Rig::open().await;
    let answer = fixture.ask().await;
    let offer = decoded(answer.header("payment-required").expect("an offer"));
    let body = answer.json();
    assert_eq!(answer.status, 402);
    for member in ["x402Version", "accepts", "resource", "extensions"] {
        assert_eq!(body[member], offer[member], "{member}");
    }
    assert_eq!(
        body["error"]["code"], "payment-required",
        "still the envelope"
    );
    assert_eq!(body["retry_action"], "pay");
    let client = tollgate_testing::Client::new(&fixture.rig.url()).with_key(&fixture.key);
    for bad in [
        json!({"amount": 1}),
        json!({"product_id": "other"}),
        json!([]),
    ] {
        let answer = client.post(BUY, &bad).await;
        assert_eq!(answer.status, 400, "{bad}");
        assert_eq!(answer.json()["retry_action"], "fix_request", "{bad}");
    }
    fixture.rig.finish().await;
}
