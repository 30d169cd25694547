//! Reported usage: the charge for the usage. The client receives the charged usage.

use std::sync::Arc;

use serde_json::{Value, json};
use tollgate_testing::provider::{Plan, UsageReport};
use tollgate_testing::{Answer, Script};

use crate::rig::{CHAT, IN, OUT, Rig, Setup, TEXT, chat};

/// The third model has chat alone, at the price of `small`.
const CHATS: &str = r#"
    [[model]]
    [[model]]
    [[model]]
    id = "chats"
    providers = [{ provider = "stand-in", model = "vendor/small-1", api = ["chat"] }]
    price = { input = "150", output = "600" }
    context_length = 128000
    max_output_tokens = 4096
"#;

/// Enough for every report, in micro-credits.
const RICH: i64 = 10_000_000_000;

/// The charge for a report.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Charged {
    /// Input tokens and output tokens.
    Tokens(i64, i64),
    /// The gateway's count.
    Counted,
}

use Charged::{Counted, Tokens};

/// Every form of a reported count, and the charged count under a cap of 64 tokens.
fn reports() -> Vec<(Value, Charged)> {
    let counts = |prompt: Value, completion: Value, total: Value| json!({"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, "cost": 1.25});
    vec![
        // As documented.
        (counts(5.into(), 4.into(), 9.into()), Tokens(5, 4)),
        (counts(json!(5.0), 4.into(), json!(9.0)), Tokens(5, 4)),
        (counts(0.into(), 4.into(), 4.into()), Tokens(0, 4)),
        (counts(5.into(), 0.into(), 5.into()), Tokens(5, 0)),
        // Reasoning is in the total alone.
        (
            json!({"prompt_tokens": 5, "completion_tokens": 4, "total_tokens": 25,
                "completion_tokens_details": {"reasoning_tokens": 16}}),
            Tokens(5, 20),
        ),
        (counts(5.into(), 0.into(), 25.into()), Tokens(5, 20)),
        (counts(0.into(), 0.into(), 25.into()), Tokens(0, 25)),
        // Cached input and the input of tools are in the total alone.
        (
            json!({"prompt_tokens": 368, "completion_tokens": 19, "total_tokens": 10_923, "cache_read_input_tokens": 10_536}),
            Tokens(10_904, 19),
        ),
        (
            json!({"prompt_tokens": 368, "completion_tokens": 19, "total_tokens": 10_923,
                "prompt_tokens_details": {"cached_tokens": 10_536}}),
            Tokens(10_904, 19),
        ),
        (
            json!({"prompt_tokens": 80, "completion_tokens": 3, "total_tokens": 350, "tool_use_prompt_tokens": 237,
                "completion_tokens_details": {"reasoning_tokens": 30}}),
            Tokens(317, 33),
        ),
        // Reasoning is in the total alone, and cached input in the prompt.
        (
            json!({"prompt_tokens": 2_640, "completion_tokens": 4, "total_tokens": 2_664,
                "prompt_tokens_details": {"cached_tokens": 473}, "completion_tokens_details": {"reasoning_tokens": 20}}),
            Tokens(2_640, 24),
        ),
        // In the completion already.
        (
            json!({"prompt_tokens": 5, "completion_tokens": 20, "total_tokens": 25,
                "prompt_tokens_details": {"cached_tokens": 3},
                "completion_tokens_details": {"reasoning_tokens": 16}}),
            Tokens(5, 20),
        ),
        // A total less than the sum, or no total.
        (counts(5.into(), 4.into(), 4.into()), Tokens(5, 4)),
        (counts(5.into(), 4.into(), 0.into()), Tokens(5, 4)),
        (counts(5.into(), 4.into(), Value::Null), Tokens(5, 4)),
        (counts(5.into(), 4.into(), json!("9")), Tokens(5, 4)),
        (counts(5.into(), 4.into(), json!(-9)), Tokens(5, 4)),
        (counts(5.into(), 4.into(), json!(1e300)), Tokens(5, 4)),
        (
            json!({"prompt_tokens": 5, "completion_tokens": 4}),
            Tokens(5, 4),
        ),
        // A missing count is the total less the known count.
        (counts(5.into(), Value::Null, 25.into()), Tokens(5, 20)),
        (counts(5.into(), json!("20"), 25.into()), Tokens(5, 20)),
        (counts(5.into(), json!(-1), 25.into()), Tokens(5, 20)),
        (counts(5.into(), json!(1.5), 25.into()), Tokens(5, 20)),
        (counts(Value::Null, 4.into(), 9.into()), Tokens(5, 4)),
        // More than can have been used.
        (counts(5.into(), 4000.into(), 4005.into()), Tokens(5, 64)),
        (counts(5.into(), 4.into(), 4_000_000.into()), Tokens(5, 64)),
        (
            counts(1_000_000.into(), 4.into(), 1_000_004.into()),
            Tokens(128_000, 4),
        ),
        // Every form of a missing report.
        (counts(0.into(), 0.into(), 0.into()), Counted),
        (counts(5.into(), Value::Null, 5.into()), Counted),
        (counts(5.into(), Value::Null, Value::Null), Counted),
        (counts(5.into(), Value::Null, 4.into()), Counted),
        (counts(Value::Null, Value::Null, Value::Null), Counted),
        (counts(Value::Null, Value::Null, 25.into()), Counted),
        (counts(Value::Null, 4.into(), 4.into()), Counted),
        (counts(json!(-5), 4.into(), Value::Null), Counted),
        (counts(json!("5"), json!("4"), json!("9")), Counted),
        (counts(json!(0.5), json!(0.4), json!(0.9)), Counted),
        (counts(json!(1e300), json!(1e300), json!(1e300)), Counted),
        (json!({"input_tokens": 5, "output_tokens": 4}), Counted),
        (json!({}), Counted),
        (Value::Null, Counted),
        (json!([5, 4, 9]), Counted),
        (json!("5"), Counted),
    ]
}

/// The events of a stream with `[DONE]` at the end.
fn events(answer: &Answer) -> Vec<Value> {
    let text = answer.text();
    let events = text.strip_suffix("data: [DONE]\n\n");
    let events = events
        .unwrap_or_else(|| panic!("no end: {text}"))
        .split("\n\n");
    let events = events.filter_map(|event| event.strip_prefix("data: "));
    let read = |event: &str| serde_json::from_str(event).expect("events are JSON");
    events.map(read).collect()
}

/// Checks that the client's usage is the usage charged at `ppm` millionths of the price, and returns the counts.
fn shown(rig: &Rig, body: &Value, ppm: i64, what: &str) -> (i64, i64) {
    let usage = &body["usage"];
    let count = |name: &str| {
        let count = usage[name].as_f64();
        count.unwrap_or_else(|| panic!("{what}: no {name} in {body}")) as i64
    };
    let (prompt, completion) = (count("prompt_tokens"), count("completion_tokens"));
    assert_eq!(
        count("total_tokens"),
        prompt + completion,
        "{what}: {usage}"
    );
    let price = prompt * IN + completion * OUT;
    assert_eq!(
        rig.record_charge(body),
        price * ppm / 1_000_000,
        "{what}: {usage}"
    );
    (prompt, completion)
}

/// Checks the client's usage against known charged counts.
fn is_shown(rig: &Rig, body: &Value, report: &Value, charged: Charged, times: i64, what: &str) {
    let (prompt, completion) = shown(rig, body, 1_000_000, what);
    match charged {
        Tokens(one, other) => {
            assert_eq!((prompt, completion), (times * one, times * other), "{what}");
        }
        Counted => assert!(prompt > 0 && completion > 5, "{what}: {}", body["usage"]),
    }
    assert_eq!(
        body["x_svc"]["usage_estimated"],
        charged == Counted,
        "{what}"
    );
    // The provider's remaining members are relayed for a single report.
    let kept = |name: &str| times == 1 && report.get(name).is_some();
    for name in ["cost", "completion_tokens_details", "prompt_tokens_details"] {
        if kept(name) && !(charged == Counted && what.contains("stream")) {
            assert_eq!(body["usage"][name], report[name], "{what}: {name}");
        }
    }
}

#[tokio::test]
async fn the_reported_usage_is_the_charged_usage() {
    let rig = Setup::with(CHATS).credits(RICH).start().await;
    for (at, (report, charged)) in reports().into_iter().enumerate() {
        rig.provider.clear_scripts();
        rig.provider
            .script(Script::usage(UsageReport::Json(report.clone())));
        let [one, two] = rig.both().map(|(_, client)| client);
        let client = if at % 2 == 0 { one } else { two };
        let mut body = chat(false);
        body["max_tokens"] = 64.into();
        let what = format!("{report}");
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        is_shown(&rig, &answer.json(), &report, charged, 1, &what);

        let what = format!("{report}, in a stream");
        body["stream"] = true.into();
        let plain = events(&client.stream(CHAT, &body).await.whole().await);
        assert!(plain.iter().all(|event| event.get("usage").is_none()));
        let last = plain.last().expect("events");
        let charge = rig.record_charge(last);
        body["stream_options"] = json!({"include_usage": true});
        let asked = events(&client.stream(CHAT, &body).await.whole().await);
        let (last, others) = asked.split_last().expect("events");
        assert!(
            others.iter().all(|event| event["usage"].is_null()),
            "{what}: one usage"
        );
        is_shown(&rig, last, &report, charged, 1, &what);
        let (prompt, completion) = (
            last["usage"]["prompt_tokens"].as_f64().expect("a number"),
            last["usage"]["completion_tokens"]
                .as_f64()
                .expect("a number"),
        );
        assert_eq!(
            charge,
            prompt as i64 * IN + completion as i64 * OUT,
            "{what}"
        );

        for prompts in [json!("Halt!"), json!(["Halt!", "Who goes there?"])] {
            let times = prompts.as_array().map_or(1, Vec::len) as i64;
            let mut body = json!({"model": "chats", "prompt": prompts, "max_tokens": 64});
            let what = format!("{report}, of {times} chats");
            let answer = client.post(TEXT, &body).await;
            is_shown(&rig, &answer.json(), &report, charged, times, &what);
            body["stream"] = true.into();
            body["stream_options"] = json!({"include_usage": true});
            let asked = events(&client.stream(TEXT, &body).await.whole().await);
            let what = format!("{what}, in a stream");
            let last = asked.last().expect("events");
            is_shown(&rig, last, &report, charged, times, &what);
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn tokens_reported_only_in_the_total_are_charged() {
    let rig = Rig::start().await;
    rig.provider.script(Script::usage(UsageReport::Json(
        json!({"prompt_tokens": 30, "completion_tokens": 0, "total_tokens": 20_030,
            "completion_tokens_details": {"reasoning_tokens": 20_000}}),
    )));
    let mut body = chat(false);
    body["max_tokens"] = 20_000.into();
    let answer = rig.client().post(CHAT, &body).await.json();
    assert_eq!(rig.record_charge(&answer), 12_004_500, "not 4,500");
    let expected = json!({"prompt_tokens": 30, "completion_tokens": 20_000, "total_tokens": 20_030,
        "completion_tokens_details": {"reasoning_tokens": 20_000}});
    assert_eq!(answer["usage"], expected);
    assert_eq!(answer["x_svc"]["usage_estimated"], false);
    rig.finish().await;
}

#[tokio::test]
async fn an_answer_from_the_cache_shows_the_usage_that_the_hit_is_charged_for() {
    for ppm in [1_000_000, 0] {
        let settings = format!("cache = {{ enabled = true, hit_price_ppm = {ppm} }}");
        let rig = Setup::with(&settings).credits(RICH).start().await;
        for (report, charged) in reports() {
            for stored_from_stream in [false, true] {
                rig.provider.clear_scripts();
                rig.provider
                    .script(Script::usage(UsageReport::Json(report.clone())));
                let body = |stream: bool, usage: bool| {
                    let mut body = chat(stream);
                    body["max_tokens"] = 64.into();
                    body["seed"] = format!("{report} {stored_from_stream}").into();
                    if usage {
                        body["stream_options"] = json!({"include_usage": true});
                    }
                    body
                };
                let what = format!("{report}, stored from a stream: {stored_from_stream}");
                let client = rig.client();
                let first = body(stored_from_stream, stored_from_stream);
                let first = client.stream(CHAT, &first).await.whole().await;
                let first = match stored_from_stream {
                    true => events(&first).pop().expect("events"),
                    false => first.json(),
                };
                let paid_for = shown(&rig, &first, 1_000_000, &what);
                assert_eq!(first["x_svc"]["cache_hit"], false, "{what}");

                let whole = client.post(CHAT, &body(false, false)).await.json();
                assert_eq!(whole["x_svc"]["cache_hit"], true, "{what}");
                assert_eq!(shown(&rig, &whole, ppm, &what), paid_for, "{what}");
                assert_eq!(
                    whole["x_svc"]["usage_estimated"],
                    charged == Counted,
                    "{what}"
                );
                for usage in [false, true] {
                    let answer = client.stream(CHAT, &body(true, usage)).await.whole().await;
                    let answer = events(&answer);
                    let last = answer.last().expect("events");
                    assert_eq!(last["x_svc"]["cache_hit"], true, "{what}");
                    match usage {
                        true => assert_eq!(shown(&rig, last, ppm, &what), paid_for, "{what}"),
                        false => {
                            let (prompt, completion) = paid_for;
                            let price = (prompt * IN + completion * OUT) * ppm / 1_000_000;
                            assert_eq!(rig.record_charge(last), price, "{what}");
                        }
                    }
                }
            }
        }
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_replayed_response_shows_the_charged_usage() {
    let rig = Setup::default().credits(RICH).start().await;
    for (at, (report, _)) in reports().into_iter().enumerate() {
        rig.provider.clear_scripts();
        rig.provider
            .script(Script::usage(UsageReport::Json(report.clone())));
        for stream in [false, true] {
            let mut body = chat(stream);
            body["max_tokens"] = 64.into();
            if stream {
                body["stream_options"] = json!({"include_usage": true});
            }
            let send = async || {
                let client = rig.client();
                let mut request = client.request("POST", CHAT, body.to_string().into());
                let key = format!("usage-{at}-{stream}");
                let key = key.parse().expect("a header value");
                request.headers_mut().insert("idempotency-key", key);
                client.send(request).await
            };
            let first = send().await;
            let again = send().await;
            assert_eq!(again.header("idempotent-replayed"), Some("true"));
            assert_eq!(first.text(), again.text(), "{report}");
            let last = match stream {
                true => events(&first).pop().expect("events"),
                false => first.json(),
            };
            shown(&rig, &last, 1_000_000, &format!("{report}"));
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_shows_one_usage_which_is_the_charged_one() {
    let custom = |request: &tollgate_testing::provider::Request| {
        let _: Value = serde_json::from_slice(&request.body).ok()?;
        let head = r#""id":"chatcmpl-1","object":"chat.completion.chunk","created":7,"model":"x""#;
        let events = [
            format!(
                r#"{{{head},"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":0,"total_tokens":5}}}}"#
            ),
            format!(
                r#"{{{head},"choices":[{{"index":0,"delta":{{"content":"Halt!"}},"finish_reason":null}}]}}"#
            ),
            format!(
                r#"{{{head},"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":1,"total_tokens":6}}}}"#
            ),
            format!(r#"{{{head},"choices":[{{"index":0,"delta":{{}},"finish_reason":"stop"}}]}}"#),
            format!(
                r#"{{{head},"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":2,"total_tokens":7}}}}"#
            ),
            format!(r#"{{{head},"choices":[{{"index":0,"delta":{{}},"finish_reason":null}}]}}"#),
            format!(
                r#"{{{head},"choices":[],"usage":{{"prompt_tokens":5,"completion_tokens":3,"total_tokens":11}}}}"#
            ),
            String::from("[DONE]"),
        ];
        let events = events.map(|event| format!("data: {event}\n\n").into());
        Some(Plan::events(events))
    };
    let rig = Setup {
        custom: Some(Arc::new(custom)),
        ..Setup::default()
    }
    .start()
    .await;
    let mut body = chat(true);
    body["stream_options"] = json!({"include_usage": true});
    for (what, client) in rig.both() {
        let events = events(&client.stream(CHAT, &body).await.whole().await);
        let (last, others) = events.split_last().expect("events");
        assert_eq!(shown(&rig, last, 1_000_000, what), (5, 6), "{what}");
        assert_eq!(last["choices"], json!([]), "{what}");
        assert_eq!(others.len(), 3, "{what}");
        assert!(
            others.iter().all(|event| event["usage"].is_null()),
            "{what}"
        );
    }
    rig.finish().await;
}
