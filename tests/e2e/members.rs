//! Request members: ambiguous names are refused, configured names are removed or refused per provider.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_testing::Script;
use tollgate_testing::provider::Plan;

use crate::rig::{CHAT, IN, OUT, PRICE_OF_A_CHAT, Rig, Setup, TEXT, chat};

const MESSAGES: &str = r#""messages":[{"role":"user","content":"Halt!"}]"#;

/// Sends a body unchanged; returns status, `code` and `param` of the answer, and the answer.
async fn send(rig: &Rig, path: &str, body: &str) -> (u16, String, String, Value) {
    let client = rig.client();
    let answer = client.send(client.request("POST", path, body.to_owned().into()));
    let answer = answer.await;
    let status = answer.status;
    let answer = answer.json();
    let word = |name: &str| {
        let word = answer["error"][name].as_str();
        word.unwrap_or_default().to_owned()
    };
    (status, word("code"), word("param"), answer)
}

#[tokio::test]
async fn a_member_in_another_case_is_refused() {
    let rig = Rig::start().await;
    // A provider that ignores the case of names would act on the members, at the gateway's cost.
    rig.provider.script(Script {
        ignore_case: true,
        words: Some(4000),
        ..Script::default()
    });
    let (status, code, param, answer) = send(
        &rig,
        CHAT,
        &format!(r#"{{"model":"small","MODEL":"large","max_tokens":1,"MAX_TOKENS":4000,"N":50,{MESSAGES}}}"#),
    )
    .await;
    assert_eq!(
        (status, &*code, &*param),
        (400, "unknown_field", "MODEL"),
        "{answer}"
    );
    let message = answer["error"]["message"].as_str().expect("a message");
    assert!(message.contains("`model`"), "{message}");
    let with = |member: &str| format!(r#"{{{MESSAGES},{member}}}"#);
    let message = |members: &str| format!(r#"{{"messages":[{{"role":"user",{members}}}]}}"#);
    for (body, param) in [
        (with(r#""Model":"dear""#), "Model"),
        (with(r#""\u004dodel":"dear""#), "Model"),
        (
            with(r#""MAX_COMPLETION_TOKENS":9"#),
            "MAX_COMPLETION_TOKENS",
        ),
        (with(r#""max_token\u017f":9"#), "max_token\u{17f}"),
        (with("\"max_to\u{212a}ens\":9"), "max_to\u{212a}ens"),
        (with(r#""max_to\u212aens":9"#), "max_to\u{212a}ens"),
        (
            with("\"serv\u{131}ce_tier\":\"priority\""),
            "serv\u{131}ce_tier",
        ),
        (with(r#""N":9"#), "N"),
        (with(r#""Best_Of":9"#), "Best_Of"),
        (with(r#""Stream":true"#), "Stream"),
        (with(r#""Cache":true"#), "Cache"),
        (with(r#""Tools":[]"#), "Tools"),
        (with(r#""Plugins":[{}]"#), "Plugins"),
        (with(r#""Modalities":["audio"]"#), "Modalities"),
        (with(r#""Reasoning":{}"#), "Reasoning"),
        (
            with(r#""reasoning":{"Max_Tokens":9}"#),
            "reasoning.Max_Tokens",
        ),
        (with(r#""reasoning":{"EFFORT":"high"}"#), "reasoning.EFFORT"),
        (with(r#""Service_Tier":"priority""#), "Service_Tier"),
        (with(r#""Messages":null"#), "Messages"),
        (with(r#""Prompt":null"#), "Prompt"),
        (
            with(r#""stream":true,"stream_options":{"include_usage":true,"Include_Usage":false}"#),
            "stream_options.Include_Usage",
        ),
        (with(r#""Stream_Options":{}"#), "Stream_Options"),
        (
            message(r#""content":"a","Content":"b""#),
            "messages[0].Content",
        ),
        (
            message(r#""content":"a","ROLE":"system""#),
            "messages[0].ROLE",
        ),
        (
            message(r#""content":[{"type":"text","text":"a"},{"type":"text","Type":"image_url"}]"#),
            "messages[0].content[1].Type",
        ),
        (
            message(r#""content":[{"type":"image_url","\u0049mage_url":{"url":"x"}}]"#),
            "messages[0].content[0].Image_url",
        ),
    ] {
        let (status, code, named, answer) = send(&rig, CHAT, &body).await;
        assert_eq!((status, &*code), (400, "unknown_field"), "{body}: {answer}");
        assert_eq!(named, param, "{body}");
    }
    let body = r#"{"prompt":"Halt!","PROMPT":["Halt!","Halt!"]}"#;
    let (status, _, param, answer) = send(&rig, TEXT, body).await;
    assert_eq!((status, &*param), (400, "PROMPT"), "{answer}");
    // A name in two spellings is a repeated name.
    let twice = with(r#""max_tokens":1,"max_token\u0073":4000"#);
    let (status, code, ..) = send(&rig, CHAT, &twice).await;
    assert_eq!((status, &*code), (400, "invalid_json"));
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn unknown_member_names_are_forwarded_unchanged() {
    let rig = Rig::start().await;
    rig.provider.script(Script {
        ignore_case: true,
        ..Script::default()
    });
    for member in [
        r#""modelx":"dear""#,
        r#""X-Model":"dear""#,
        r#""maxTokens":1"#,
        r#""Seed":7"#,
        r#""MyOption":{"MODEL":"dear","N":50}"#,
        r#""mod\u00e9l":1"#,
        r#""max_token\u1e9e":1"#,
        r#""":1"#,
        r#""response_format":{"type":"json_schema","json_schema":{"name":"N","schema":{"properties":{"Content":{},"MODEL":{}}}}}"#,
        r#""tools":[{"type":"function","function":{"name":"f","parameters":{"properties":{"N":{},"Messages":{}}}}}]"#,
    ] {
        let body = format!(r#"{{"model":"small",{MESSAGES},{member}}}"#);
        let (status, .., answer) = send(&rig, CHAT, &body).await;
        assert_eq!(status, 200, "{member}: {answer}");
        assert_eq!(rig.record_charge(&answer), PRICE_OF_A_CHAT, "{member}");
        let sent = rig.provider.last_call().body;
        let expected = body.replace("\"small\"", "\"vendor/small-1\"");
        assert_eq!(sent, expected, "{member}: to the byte");
    }
    rig.finish().await;
}

/// Two providers for `small` with different members, and a provider for the fallback model.
const PROVIDERS: &str = r#"
    [[provider]]
    remove_members = ["service_tier", "options"]

    [[provider]]
    name = "second"
    base_url = "{provider_url}"
    api_key_env = "PROVIDER_KEY"
    weight = 0
    remove_members = ["options", "Keep_Alive"]

    [[provider]]
    name = "third"
    base_url = "{provider_url}"
    api_key_env = "PROVIDER_KEY"
    refuse_members = ["store", "n"]

    [[model]]
    id = "small"
    providers = [
        { provider = "stand-in", model = "vendor/small-1" },
        { provider = "second", model = "vendor/small-2" },
    ]

    [[model]]
    id = "dear"
    providers = [{ provider = "stand-in" }]
    fallback = ["third"]

    [[model]]
    id = "third"
    providers = [{ provider = "third" }]
    price = { input = "150", output = "600" }

    [[model]]
    id = "chats"
    providers = [{ provider = "stand-in", model = "vendor/chats", api = ["chat"] }]
    price = { input = "150", output = "600" }
"#;

#[tokio::test]
async fn configured_members_are_removed_and_all_others_are_forwarded_unchanged() {
    let rig = Rig::with(PROVIDERS).await;
    let body = format!(
        r#"{{"model" : "small","service_tier":"priority", "options":{{"num_predict": 1e9}},{MESSAGES},"keep_alive":-1 ,"OPTION\u017f":2,"top_p":0.90}}"#
    );
    let (status, .., answer) = send(&rig, CHAT, &body).await;
    assert_eq!(status, 200, "{answer}");
    rig.record_charge(&answer);
    let first =
        format!(r#"{{"model" : "vendor/small-1",{MESSAGES},"keep_alive":-1 ,"top_p":0.90}}"#);
    assert_eq!(rig.provider.last_call().body, first);

    // The next provider of the request gets the members of the next provider's settings.
    rig.provider.script(Script {
        model: Some(String::from("vendor/small-1")),
        ..Script::status(500)
    });
    let (status, .., answer) = send(&rig, CHAT, &body).await;
    assert_eq!(status, 200, "{answer}");
    rig.record_charge(&answer);
    let second = format!(
        r#"{{"model" : "vendor/small-2","service_tier":"priority",{MESSAGES} ,"top_p":0.90}}"#
    );
    assert_eq!(rig.provider.last_call().body, second);
    rig.provider.clear_scripts();

    // The chats of a translated text request.
    let text = r#"{"model":"chats","prompt":["Halt!","Who goes there?"],"Options":1,"service_tier":"flex","top_p":0.90}"#;
    let (status, .., answer) = send(&rig, TEXT, text).await;
    assert_eq!(status, 200, "{answer}");
    rig.record_charge(&answer);
    let calls = rig.provider.calls();
    for call in &calls[calls.len() - 2..] {
        let names: Vec<String> = call
            .json()
            .as_object()
            .expect("an object")
            .keys()
            .cloned()
            .collect();
        assert_eq!(names, ["messages", "model", "top_p"]);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_member_refused_for_one_provider_is_refused_for_the_model() {
    let rig = Rig::with(PROVIDERS).await;
    for (model, member, param) in [
        ("third", r#""store":true"#, Some("store")),
        ("third", r#""STORE":true"#, Some("STORE")),
        ("third", r#""n":2"#, Some("n")),
        // The fallback of `dear` refuses the member.
        ("dear", r#""store":true"#, Some("store")),
        ("small", r#""store":true"#, None),
    ] {
        let body = format!(r#"{{"model":"{model}",{MESSAGES},{member}}}"#);
        let calls = rig.provider.call_count();
        let (status, code, named, answer) = send(&rig, CHAT, &body).await;
        match param {
            None => {
                assert_eq!(status, 200, "{answer}");
                rig.record_charge(&answer);
            }
            Some(param) => {
                let seen = (status, &*code, &*named);
                assert_eq!(seen, (400, "unknown_field", param), "{body}: {answer}");
                assert_eq!(rig.provider.call_count(), calls, "{body}");
            }
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn removed_members_do_not_increase_the_hold() {
    // Enough for a short chat with a cap, and not for a prompt of a hundred kilobytes.
    let rig = Setup::with(PROVIDERS).credits(100_000).start().await;
    let long = "x".repeat(100_000);
    for (member, status) in [("options", 200), ("keep_alive", 402), ("service_tier", 402)] {
        let mut body = chat(false);
        body["max_tokens"] = 16.into();
        body[member] = json!({ "a": long });
        let answer = rig.client().post(CHAT, &body).await;
        assert_eq!(answer.status, status, "{member}: {}", answer.text());
        if status == 200 {
            assert_eq!(
                rig.record_charge(&answer.json()),
                PRICE_OF_A_CHAT,
                "{member}"
            );
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn removed_members_are_part_of_the_cache_key() {
    let rig = Rig::with(&format!("cache.enabled = true\n{PROVIDERS}")).await;
    for (options, status) in [
        (json!(1), "stored"),
        (json!(2), "stored"),
        (json!(1), "hit"),
        (Value::Null, "stored"),
    ] {
        let mut body = chat(false);
        body["options"] = options;
        let answer = rig.client().post(CHAT, &body).await.json();
        rig.record_charge(&answer);
        assert_eq!(answer["x_svc"]["cache_store_status"], status, "{body}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_that_refuses_stream_options_serves_streams_whose_tokens_are_counted() {
    let custom = |request: &tollgate_testing::provider::Request| {
        let body: Value = serde_json::from_slice(&request.body).ok()?;
        if body.get("stream_options").is_some() {
            let error = json!({"error": {"message": "unknown field `stream_options`"}});
            return Some(Plan::json(400, error.to_string().into()));
        }
        let chunk = |delta: Value, finish: Value| {
            let choice = json!({"index": 0, "delta": delta, "finish_reason": finish});
            format!("data: {}\n\n", json!({"id": "7", "choices": [choice]})).into()
        };
        let text = chunk(json!({"content": "The toll"}), Value::Null);
        let stop = chunk(json!({}), json!("stop"));
        Some(Plan::events([text, stop, "data: [DONE]\n\n".into()]))
    };
    let setup = Setup {
        custom: Some(Arc::new(custom)),
        ..Setup::with("[[provider]]\nremove_members = [\"stream_options\"]")
    };
    let rig = setup.start().await;
    for (protocol, client) in rig.both() {
        let mut body = chat(true);
        body["stream_options"] = json!({"include_usage": true});
        let (events, _) = client.stream(CHAT, &body).await.rest().await;
        let [.., last, done] = &events[..] else {
            panic!("{protocol}: {events:?}");
        };
        assert!(done.is_done(), "{protocol}: {events:?}");
        let last = last.json();
        // Nine tokens for the prompt by the gateway's count, and a token per word.
        assert_eq!(last["usage"]["total_tokens"], 11, "{protocol}: {last}");
        assert_eq!(last["x_svc"]["usage_estimated"], true, "{protocol}: {last}");
        assert_eq!(rig.record_charge(&last), 9 * IN + 2 * OUT, "{protocol}");
    }
    rig.finish().await;
}
