//! Requests of stock clients, to the byte, for clients that cannot run in the tests.

use serde_json::{Value, json};
use tollgate_testing::{Client, Script};

use crate::rig::{CHAT, Rig, chat};

/// The second request of a tool loop, with the assistant's message in the encodings of different clients, without a `content`.
fn tool_loop(assistant: &str) -> String {
    format!(
        r#"{{"messages":[{{"content":"Warm in Bern?","role":"user"}},{assistant},{{"content":"7 degrees","tool_call_id":"call_1","role":"tool"}}],"model":"small"}}"#
    )
}

#[tokio::test]
async fn an_assistant_message_with_calls_needs_no_content() {
    let rig = Rig::start().await;
    for (client, assistant) in [
        // `ChatCompletionMessage.ToParam` sets only a nonempty `content`.
        (
            "openai-go",
            r#"{"tool_calls":[{"id":"call_1","function":{"arguments":"{\"city\":\"Bern\"}","name":"weather"},"type":"function"}],"role":"assistant"}"#,
        ),
        // The struct has `json:"content,omitempty"`, and an older member for a single call.
        (
            "go-openai",
            r#"{"role":"assistant","tool_calls":[{"id":"call_1","type":"function","function":{"name":"weather","arguments":"{\"city\":\"Bern\"}"}}]}"#,
        ),
        (
            "go-openai, functions",
            r#"{"role":"assistant","function_call":{"name":"weather","arguments":"{\"city\":\"Bern\"}"}}"#,
        ),
        // `message.model_dump(exclude_none=True)`: `content` is None.
        (
            "openai of Python",
            r#"{"role": "assistant", "tool_calls": [{"id": "call_1", "function": {"arguments": "{\"city\":\"Bern\"}", "name": "weather"}, "type": "function"}]}"#,
        ),
    ] {
        let body = tool_loop(assistant);
        let sender = rig.client();
        let request = sender.request("POST", CHAT, body.clone().into());
        let answer = sender.send(request).await;
        assert_eq!(answer.status, 200, "{client}: {}", answer.text());
        rig.record_charge(&answer.json());
        let expected = body.replace("\"small\"", "\"vendor/small-1\"");
        assert_eq!(rig.provider.last_call().body, expected, "{client}");
    }
    for message in [
        json!({"role": "assistant"}),
        json!({"role": "assistant", "tool_calls": []}),
        json!({"role": "user", "tool_calls": [{"id": "call_1"}]}),
        json!({"role": "tool", "tool_call_id": "call_1"}),
    ] {
        let body = json!({"model": "small", "messages": [message]});
        let answer = rig.client().post(CHAT, &body).await;
        assert_eq!(answer.status, 400, "{body}");
        let error = &answer.json()["error"];
        assert_eq!(error["code"], "missing_field", "{body}");
        assert_eq!(error["param"], "messages[0].content", "{body}");
    }
    rig.finish().await;
}

/// Two providers. The second provider knows the role `developer`.
const ROLES: &str = r#"
    [[provider]]

    [[provider]]
    name = "second"
    base_url = "{provider_url}"
    api_key_env = "PROVIDER_KEY"
    developer_role = true

    [[model]]
    id = "small"

    [[model]]
    id = "newer"
    providers = [{ provider = "second", model = "newer" }]
    price = { input = "150", output = "600" }
"#;

#[tokio::test]
async fn the_role_developer_is_system_to_providers_that_do_not_know_it() {
    let rig = Rig::with(ROLES).await;
    let messages = r#"[ {"role" : "developer","content":"developer"},{"content":"x","role":"d\u0065veloper"},{"role":"user","content":"\"role\":\"developer\""}]"#;
    let as_system = r#"[ {"role" : "system","content":"developer"},{"content":"x","role":"system"},{"role":"user","content":"\"role\":\"developer\""}]"#;
    for (model, sent_as, messages_sent) in [
        ("small", "vendor/small-1", as_system),
        ("newer", "newer", messages),
    ] {
        let body = |model: &str, messages: &str| {
            format!(r#"{{"model":"{model}","messages":{messages},"cache":false,"top_p":0.90}}"#)
        };
        let client = rig.client();
        let answer = client.send(client.request("POST", CHAT, body(model, messages).into()));
        let answer = answer.await;
        assert_eq!(answer.status, 200, "{model}: {}", answer.text());
        rig.record_charge(&answer.json());
        let expected = body(sent_as, messages_sent).replace(r#""cache":false,"#, "");
        assert_eq!(rig.provider.last_call().body, expected, "{model}");
    }
    rig.finish().await;
}

/// Models with ids encoded by clients, including a model without a configured time.
const MODELS: &str = r#"
    [[model]]
    id = "small"
    created = 1727222400

    [[model]]
    id = "dear"

    [[model]]
    id = "accounts/team/models/small:free"
    providers = [{ provider = "stand-in", model = "free" }]
    price = { input = "150", output = "600" }
"#;

#[tokio::test]
async fn every_model_has_a_time_and_an_address_of_its_own() {
    let rig = Rig::with(MODELS).await;
    for (protocol, client) in rig.both() {
        let list = client.get("/v1/models").await.json();
        let list = list["data"].as_array().expect("a list");
        let created: Vec<&Value> = list.iter().map(|model| &model["created"]).collect();
        assert_eq!(created, [&json!(1_727_222_400), &json!(0), &json!(0)]);
        for (path, item) in [
            ("small", &list[0]),
            ("%73mall", &list[0]),
            // The forms of `openai-python`, `openai-node` and `curl`.
            ("accounts/team/models/small:free", &list[2]),
            ("accounts%2Fteam%2Fmodels%2Fsmall%3Afree", &list[2]),
            ("accounts%2fteam/models%2fsmall:free", &list[2]),
        ] {
            let answer = client.get(&format!("/v1/models/{path}")).await;
            assert_eq!(answer.status, 200, "{protocol}: {path}: {}", answer.text());
            assert_eq!(answer.header("cache-control"), Some("no-store"));
            assert_eq!(answer.json(), *item, "{protocol}: {path}");
        }
        for path in ["other", "accounts", "small/", "%", "%zz", "..%2f..", "%00"] {
            let answer = client.get(&format!("/v1/models/{path}")).await;
            assert_eq!(answer.status, 404, "{protocol}: {path}");
            assert_eq!(answer.json()["error"]["code"], "not_found", "{path}");
        }
    }
    let models = Some(std::sync::Arc::from([std::sync::Arc::from("small")]));
    let (_, limited) = rig.new_key(rig.account, |key| key.models = models).await;
    let limited = Client::new(&rig.url()).with_key(&limited);
    assert_eq!(limited.get("/v1/models/small").await.status, 200);
    assert_eq!(limited.get("/v1/models/dear").await.status, 404);
    let anonymous = Client::new(&rig.url()).get("/v1/models/small").await;
    assert_eq!(anonymous.status, 401);
    rig.finish().await;
}

#[tokio::test]
async fn a_429_of_the_provider_has_the_fields_of_its_own_limit() {
    let rig = Rig::start().await;
    rig.provider.script(Script {
        retry_after: Some(String::from("7")),
        ..Script::status(429)
    });
    for (protocol, client) in rig.both() {
        for stream in [false, true] {
            let answer = client.post(CHAT, &chat(stream)).await;
            assert_eq!(answer.status, 429, "{protocol}: {}", answer.text());
            let wait = answer.header("retry-after").expect("a wait").to_owned();
            let policy = format!("\"provider\";q=1;w={wait}");
            let state = format!("\"provider\";r=0;t={wait}");
            for (field, expected) in [
                ("ratelimit-policy", &*policy),
                ("ratelimit", &state),
                ("ratelimit-limit", "1"),
                ("ratelimit-remaining", "0"),
                ("ratelimit-reset", &wait),
            ] {
                assert_eq!(answer.header(field), Some(expected), "{protocol}: {field}");
            }
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_401_names_the_page_where_keys_are_made() {
    let rig = Rig::with("service.base_url = \"https://api.example.com\"").await;
    let keys = "https://api.example.com/keys";
    for (path, key) in [
        ("/v1/models", None),
        ("/v1/models", Some("sk-svc-unknown")),
        ("/v1/models?api_key=sk-svc-unknown", None),
        ("/commerce/subscriptions/svc-pro/x402", None),
    ] {
        let client = Client::new(&rig.url());
        let client = match key {
            Some(key) => client.with_key(key),
            None => client,
        };
        let answer = match path.starts_with("/v1") {
            true => client.get(path).await,
            false => client.post(path, &json!({})).await,
        };
        assert_eq!(answer.status, 401, "{path}");
        let message = answer.json()["error"]["message"].to_string();
        assert!(message.contains(keys), "{path}: {message}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn the_documentation_is_also_markdown() {
    let rig = Rig::with("service.base_url = \"https://api.example.com\"").await;
    let index = rig.client().get("/llms.txt").await;
    let mut found = 0;
    for link in index.text().split("](https://api.example.com").skip(1) {
        let (path, _) = link.split_once(')').expect("the end of a link");
        if !path.ends_with(".md") {
            continue;
        }
        found += 1;
        let answer = rig.client().get(path).await;
        assert_eq!(answer.status, 200, "{path}");
        let media_type = answer.header("content-type");
        assert_eq!(media_type, Some("text/markdown; charset=utf-8"), "{path}");
        let text = answer.text();
        assert!(text.starts_with("# ") && text.contains("\n## "), "{text}");
        for html in ["<p", "<code", "<a ", "&lt;", "&amp;", "](/", "](#"] {
            assert!(!text.contains(html), "{path}: {html} in {text}");
        }
    }
    assert_eq!(found, 5, "{}", index.text());
    let page = |name: &str| format!("/docs/{name}.md");
    let errors = rig.client().get(&page("errors")).await;
    let row = "| `insufficient_credits` |";
    assert!(errors.text().contains(row), "{}", errors.text());
    assert_eq!(rig.client().get(&page("other")).await.status, 404);
    rig.finish().await;
}
