//! The meaning of a provider's refusal: about the gateway's account at the provider, or about the request.

use serde_json::json;

use super::fixture::{ProviderFixture, state};
use super::*;

/// An error of a provider.
fn refusal(status: u16, body: Value) -> Script {
    Script {
        status: Some(status),
        ..Script::failure(Failure::Text(body.to_string()))
    }
}

/// Refusals for lack of money, in the forms of providers.
fn unpaid() -> Vec<(&'static str, Script)> {
    let error = |status, kind: &str, code: Value, message: &str| {
        let error = json!({"type": kind, "code": code, "message": message, "param": null});
        refusal(status, json!({ "error": error }))
    };
    let quota = "You exceeded your current quota, please check your plan and billing details.";
    vec![
        (
            "Anthropic",
            error(
                400,
                "invalid_request_error",
                Value::Null,
                "Your credit balance is too low to access the Anthropic API.",
            ),
        ),
        (
            "OpenAI",
            error(
                429,
                "insufficient_quota",
                json!("insufficient_quota"),
                quota,
            ),
        ),
        (
            "OpenAI, images",
            error(
                400,
                "image_generation_user_error",
                json!("billing_hard_limit_reached"),
                "Billing hard limit has been reached",
            ),
        ),
        (
            "DashScope",
            error(
                400,
                "Arrearage",
                json!("Arrearage"),
                "Access denied, please make sure your account is in good standing.",
            ),
        ),
        (
            "DeepSeek",
            error(
                402,
                "unknown_error",
                json!("invalid_request_error"),
                "Insufficient Balance",
            ),
        ),
    ]
}

/// Refusals of a request with a price above the remaining money, in the forms of providers.
fn too_dear() -> Vec<(&'static str, Script)> {
    let error = |status, kind: &str, code: Value, message: &str| {
        let error = json!({"type": kind, "code": code, "message": message, "param": null});
        refusal(status, json!({ "error": error }))
    };
    vec![
        (
            "OpenRouter",
            error(
                402,
                "",
                json!(402),
                "This request requires more credits, or fewer max_tokens. You requested up to 65536 tokens, but can only afford 30104.",
            ),
        ),
        (
            "a gateway like this one",
            error(
                402,
                "insufficient_credits_error",
                json!("insufficient_credits"),
                "The account has 0.01 credits to spend and this request may need 0.63.",
            ),
        ),
        (
            "one-api",
            error(
                403,
                "new_api_error",
                json!("insufficient_user_quota"),
                "user quota is not enough",
            ),
        ),
        ("an unknown provider", refusal(402, json!({}))),
    ]
}

#[tokio::test]
async fn a_provider_without_money_refuses_and_not_the_client() {
    for (what, script) in unpaid() {
        for (alone, stream) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("{what}, alone {alone}, stream {stream}");
            let (rig, others) = ProviderFixture {
                others: if alone { &[] } else { &[""] },
                ..ProviderFixture::default()
            }
            .open()
            .await;
            rig.provider.script(script.clone());
            let seen = observe(&rig.client(), stream).await;
            match alone {
                true => assert_eq!(seen, Ok(Error(502, "upstream_error")), "{what}"),
                false => {
                    assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
                    rig.add_expected_charge(PRICE_OF_A_CHAT);
                    assert_eq!(others[0].call_count(), 1, "{what}");
                }
            }
            assert_eq!(rig.provider.call_count(), 1, "{what}");
            assert_eq!(state(&rig, 0, false).await, "resting", "{what}: at once");
            let ready = rig.admin_get("/ready").await;
            let warning = "provider `stand-in` refuses requests: the account there has no money";
            assert!(ready.text().contains(warning), "{what}: {}", ready.text());
            if alone {
                // The last candidate is called by trial requests.
                let again = rig.client().post(CHAT, &chat(stream)).await;
                assert_eq!(again.status, 502, "{what}");
                assert!(!again.text().contains("credit"), "{what}: {}", again.text());
            }
            rig.finish().await;
        }
    }
}

/// The client sets the provider's hold with `max_tokens`.
#[tokio::test]
async fn a_request_that_a_provider_lacks_the_money_for_takes_no_provider_out() {
    for (what, script) in too_dear() {
        for (alone, stream) in [(false, false), (false, true), (true, false), (true, true)] {
            let what = format!("{what}, alone {alone}, stream {stream}");
            let (rig, others) = ProviderFixture {
                others: if alone { &[] } else { &[""] },
                ..ProviderFixture::default()
            }
            .open()
            .await;
            rig.provider.script(script.clone());
            let seen = observe(&rig.client(), stream).await;
            match alone {
                true => assert_eq!(seen, Ok(Error(502, "upstream_error")), "{what}"),
                false => {
                    assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
                    rig.add_expected_charge(PRICE_OF_A_CHAT);
                    assert_eq!(others[0].call_count(), 1, "{what}");
                }
            }
            for of_model in [false, true] {
                assert_eq!(state(&rig, 0, of_model).await, "working", "{what}");
            }
            let ready = rig.admin_get("/ready").await;
            assert!(!ready.text().contains("money"), "{what}: {}", ready.text());
            // The provider answers a smaller request.
            rig.provider.clear_scripts();
            let seen = observe(&rig.client(), stream).await;
            assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
            rig.add_expected_charge(PRICE_OF_A_CHAT);
            assert_eq!(rig.provider.call_count(), 2, "{what}");
            rig.finish().await;
        }
    }
}

/// A request must not be able to take a provider out for everybody.
#[tokio::test]
async fn a_request_that_is_quoted_in_a_refusal_takes_no_provider_out() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for message in [
        "Invalid value: 'Your credit balance is too low'.",
        "'insufficient_quota' is not one of ['auto'] - 'tool_choice'",
    ] {
        rig.provider.script(refusal(
            400,
            json!({"error": {"message": message, "code": "invalid_value"}}),
        ));
        let seen = observe(&rig.client(), false).await;
        assert_eq!(seen, Ok(Error(400, "upstream_rejected")), "{message}");
        assert_eq!(state(&rig, 0, false).await, "working", "{message}");
    }
    assert_eq!(others[0].call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn codes_and_param_of_a_refused_request_reach_the_client_without_the_account() {
    let rig = Rig::with("").await;
    let masked = format!(
        "{}***{}",
        &crate::rig::PROVIDER_KEY[..4],
        &crate::rig::PROVIDER_KEY[crate::rig::PROVIDER_KEY.len() - 4..]
    );
    for status in [400, 413, 422] {
        for (said, code) in [
            ("context_length_exceeded", "context_length_exceeded"),
            ("content_filter", "content_filter"),
            ("unsupported_parameter", "unsupported_parameter"),
            ("unsupported_value", "unsupported_value"),
            ("something_else", "upstream_rejected"),
        ] {
            for (protocol, client) in rig.both() {
                for stream in [false, true] {
                    let what = format!("{status} {said}, {protocol}, stream {stream}");
                    let message = format!("No. Organization org-a1B2c3D4e5, key {masked}.");
                    let error = json!({"message": message, "type": "invalid_request_error", "param": "messages[0].content", "code": said});
                    rig.provider
                        .script(refusal(status, json!({ "error": error })));
                    let answer = client.post(CHAT, &chat(stream)).await;
                    assert_eq!(answer.status, 400, "{what}: {}", answer.text());
                    let error = &answer.json()["error"];
                    assert_eq!(error["code"], code, "{what}");
                    assert_eq!(error["type"], "invalid_request_error", "{what}");
                    assert_eq!(error["param"], "messages[0].content", "{what}");
                    assert_eq!(
                        error["message"], "No. Organization [redacted], key [redacted].",
                        "{what}"
                    );
                    rig.provider.clear_scripts();
                }
            }
        }
    }
    let error = json!({"message": "No.", "param": "org-a1B2c3D4e5", "code": "org-a1B2c3D4e5"});
    rig.provider.script(refusal(400, json!({ "error": error })));
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.json()["error"]["code"], "upstream_rejected");
    assert!(!answer.text().contains("a1B2"), "{}", answer.text());
    rig.finish().await;
}
