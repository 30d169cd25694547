//! Successful completions over every client protocol.

use serde_json::{Value, json};
use tollgate_testing::provider::answer;
use tollgate_testing::{Event, StreamEnd};

use crate::rig::{CHAT, CREDITS, IN, OUT, PRICE_OF_A_CHAT, Rig, Setup, TEXT, chat, micros};

/// The data events of a stream, with a check of the proper end.
fn whole(events: &[Event], end: &StreamEnd, what: &str) -> Vec<Value> {
    assert_eq!(*end, StreamEnd::Proper, "{what}: the end of the stream");
    let (last, data) = events.split_last().expect("events");
    assert!(last.is_done(), "{what}: the last event is `{}`", last.raw);
    data.iter().map(Event::json).collect()
}

#[tokio::test]
async fn a_whole_chat_is_answered_and_charged_over_every_protocol() {
    let rig = Rig::start().await;
    let mut left = CREDITS;
    for (what, client) in rig.clients() {
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        let body = answer.json();
        assert_eq!(body["object"], "chat.completion", "{what}");
        assert_eq!(body["model"], "small", "{what}: the client's own name");
        assert_eq!(
            body["choices"][0]["message"]["content"],
            answer::text(16),
            "{what}"
        );
        left -= PRICE_OF_A_CHAT;
        assert_eq!(rig.record_charge(&body), PRICE_OF_A_CHAT, "{what}");
        assert_eq!(micros(&body["x_svc"]["credits_remaining"]), left, "{what}");
        assert_eq!(body["x_svc"]["owner"], rig.account.to_string(), "{what}");
        assert_eq!(body["x_svc"]["cache_hit"], false, "{what}");
        assert_eq!(body["x_svc"]["usage_estimated"], false, "{what}");
        assert_eq!(rig.provider.last_call().json()["model"], "vendor/small-1");
    }
    let after = rig.finish().await;
    assert_eq!(after.endings(), ["complete"; 4]);
    assert_eq!(after.each("protocol"), ["1.1", "2", "1.1", "2"]);
}

#[tokio::test]
async fn a_streamed_chat_ends_with_its_charge_and_done_over_every_protocol() {
    let rig = Rig::start().await;
    for (what, client) in rig.clients() {
        let mut stream = client.stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200, "{what}");
        assert_eq!(stream.header("content-type"), Some("text/event-stream"));
        let (events, end) = stream.rest().await;
        let chunks = whole(&events, &end, what);
        assert_eq!(chunks.len(), 18, "{what}: role, 16 words, finish");
        let text: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["delta"]["content"].as_str())
            .collect();
        assert_eq!(text, answer::text(16), "{what}");
        for chunk in &chunks {
            assert_eq!(chunk["model"], "small", "{what}: the client's own name");
            assert!(
                chunk.get("usage").is_none(),
                "{what}: not requested: {chunk}"
            );
        }
        let (last, before) = chunks.split_last().expect("chunks");
        assert_eq!(last["choices"][0]["finish_reason"], "stop", "{what}");
        assert_eq!(rig.record_charge(last), PRICE_OF_A_CHAT, "{what}");
        assert!(
            before.iter().all(|chunk| chunk.get("x_svc").is_none()),
            "{what}: the charge stands once"
        );
        let asked = rig.provider.last_call().json();
        assert_eq!(asked["stream_options"]["include_usage"], true, "{what}");
    }
    assert_eq!(rig.finish().await.endings(), ["complete"; 4]);
}

#[tokio::test]
async fn a_stream_with_usage_requested_carries_it_and_the_charge_after_the_finish() {
    let rig = Rig::start().await;
    let mut body = chat(true);
    body["stream_options"] = json!({"include_usage": true});
    for (what, client) in rig.clients() {
        let (events, end) = client.stream(CHAT, &body).await.rest().await;
        let chunks = whole(&events, &end, what);
        assert_eq!(chunks.len(), 19, "{what}: role, 16 words, finish, usage");
        let (last, before) = chunks.split_last().expect("chunks");
        assert_eq!(last["choices"], json!([]), "{what}");
        assert_eq!(
            last["usage"],
            json!({"prompt_tokens": 1, "completion_tokens": 16, "total_tokens": 17}),
            "{what}"
        );
        assert_eq!(rig.record_charge(last), PRICE_OF_A_CHAT, "{what}");
        for chunk in before {
            assert_eq!(chunk.get("usage"), Some(&Value::Null), "{what}");
            assert!(chunk.get("x_svc").is_none(), "{what}");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn text_completions_are_answered_and_charged_whole_and_streamed() {
    let rig = Rig::start().await;
    for (what, client) in rig.clients() {
        let body = json!({"model": "small", "prompt": "Who goes there?", "max_tokens": 5});
        let answer = client.post(TEXT, &body).await;
        assert_eq!(answer.status, 200, "{what}: {}", answer.text());
        let whole_body = answer.json();
        assert_eq!(whole_body["object"], "text_completion", "{what}");
        assert_eq!(whole_body["choices"][0]["text"], answer::text(5), "{what}");
        assert_eq!(rig.record_charge(&whole_body), 3 * IN + 5 * OUT, "{what}");

        let mut body = body.clone();
        body["stream"] = true.into();
        let (events, end) = client.stream(TEXT, &body).await.rest().await;
        let chunks = whole(&events, &end, what);
        let text: String = chunks
            .iter()
            .filter_map(|chunk| chunk["choices"][0]["text"].as_str())
            .collect();
        assert_eq!(text, answer::text(5), "{what}");
        let last = chunks.last().expect("chunks");
        assert_eq!(last["choices"][0]["finish_reason"], "length", "{what}");
        assert_eq!(rig.record_charge(last), 3 * IN + 5 * OUT, "{what}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn members_that_the_gateway_does_not_own_are_forwarded_byte_for_byte() {
    let rig = Rig::start().await;
    // Odd spacing, numbers beyond the precision of floats, escapes, unknown members.
    let head = r#"{ "temperature":1.10000000000000000001 ,"seed": 12345678901234567890,"x": [ 1E+2, "\u00e9\/" ],"model" : "#;
    let tail = r#" , "messages":[{"role":"user","content":"Halt!","odd":{"a":[]}}],"user":"\ud83d\ude00" }"#;
    for model in ["\"small\"", "\"sm\\u0061ll\""] {
        let mut raw = rig.raw().await;
        raw.post(CHAT, &rig.key, &format!("{head}{model}{tail}"))
            .await;
        let (head_of_answer, body) = raw.read_answer().await;
        assert_eq!(head_of_answer.status(), 200, "{body:?}");
        rig.record_charge(&serde_json::from_slice(&body).expect("JSON"));
        let sent = rig.provider.last_call().body;
        assert_eq!(
            String::from_utf8_lossy(&sent),
            format!("{head}\"vendor/small-1\"{tail}")
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn the_member_cache_stays_here_and_a_missing_model_is_the_default_one() {
    let rig = Rig::start().await;
    let body = json!({"cache": false, "messages": [{"role": "user", "content": "Halt!"}]});
    let answer = rig.client().post(CHAT, &body).await;
    assert_eq!(rig.record_charge(&answer.json()), PRICE_OF_A_CHAT);
    assert_eq!(answer.json()["model"], "small");
    assert_eq!(
        rig.provider.last_call().json(),
        json!({"model": "vendor/small-1", "messages": body["messages"]})
    );
    rig.finish().await;
}

#[tokio::test]
async fn the_provider_gets_its_own_key_and_nothing_of_the_clients_head() {
    let rig = Rig::start().await;
    for (what, client) in rig.clients() {
        let mut request = client.request("POST", CHAT, chat(false).to_string().into());
        let headers = request.headers_mut();
        for (name, value) in [
            ("x-stainless-lang", "python"),
            ("openai-organization", "org-1"),
            ("cookie", "session=4f3a9c7e11"),
            ("x-request-id", "mine-1"),
            ("forwarded", "for=203.0.113.9"),
            ("x-forwarded-for", "203.0.113.9"),
            (
                "traceparent",
                "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            ),
        ] {
            headers.insert(name, value.parse().expect("a field"));
        }
        let answer = client.send(request).await;
        rig.record_charge(&answer.json());
        let call = rig.provider.last_call();
        let mut names: Vec<&str> = call.headers.keys().map(|name| name.as_str()).collect();
        names.sort_unstable();
        assert_eq!(
            names,
            [
                "accept",
                "accept-encoding",
                "authorization",
                "content-length",
                "content-type",
                "host",
                "user-agent",
            ],
            "{what}"
        );
        let head = String::from_utf8_lossy(&call.raw_head).into_owned();
        assert!(!head.contains(&rig.key), "{what}: the client's key left");
        assert_eq!(
            call.header("authorization"),
            Some("Bearer sk-provider-5d0f7ac1e2"),
            "{what}"
        );
        assert!(!String::from_utf8_lossy(&call.body).contains(&rig.key));
    }
    let after = rig.finish().await;
    assert_eq!(after.each("client_request_id"), ["mine-1"; 4]);
}

#[tokio::test]
async fn an_answer_has_our_fields_and_none_of_the_providers() {
    let rig = Rig::start().await;
    for (what, client) in rig.clients() {
        for stream in [false, true] {
            let answer = client.stream(CHAT, &chat(stream)).await.whole().await;
            let body = answer.text();
            let last = match stream {
                false => answer.json(),
                true => {
                    let data = body.lines().filter_map(|line| line.strip_prefix("data: {"));
                    let last = data.collect::<Vec<_>>().pop().expect("an event");
                    serde_json::from_str(&format!("{{{last}")).expect("JSON")
                }
            };
            rig.record_charge(&last);
            let id = answer.header("x-request-id").expect("an id");
            let digits = id.strip_prefix("req_").expect("our own id");
            assert!(
                digits.len() == 32 && digits.bytes().all(|byte| byte.is_ascii_hexdigit()),
                "{what}: `{id}`"
            );
            assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
            assert_eq!(answer.header("ratelimit-limit"), Some("1000000"), "{what}");
            assert_eq!(
                answer.header("ratelimit-policy"),
                Some(
                    "\"requests\";q=1000000;w=60, \"concurrent\";q=256;qu=\"concurrent-requests\""
                ),
                "{what}"
            );
            for name in ["ratelimit", "ratelimit-remaining", "ratelimit-reset"] {
                assert!(answer.header(name).is_some(), "{what}: {name} is missing");
            }
            assert!(answer.header("retry-after").is_none(), "{what}");
            for name in [
                "server",
                "set-cookie",
                "openai-processing-ms",
                "x-ratelimit-remaining-requests",
            ] {
                assert!(answer.header(name).is_none(), "{what}: {name} came through");
            }
            let secure = what.contains("TLS");
            assert_eq!(
                answer.header("strict-transport-security").is_some(),
                secure,
                "{what}"
            );
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn one_connection_to_the_provider_serves_requests_one_after_another() {
    let rig = Rig::start().await;
    for stream in [false, true, true, false] {
        let answer = rig.client().stream(CHAT, &chat(stream)).await;
        let answer = answer.whole().await;
        assert_eq!(answer.status, 200);
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        rig.provider.calls_when_ended().await;
    }
    let connections: Vec<usize> = rig
        .provider
        .calls()
        .iter()
        .map(|call| call.connection)
        .collect();
    assert_eq!(connections, [1; 4], "each call on the same connection");
    rig.finish().await;
}

#[tokio::test]
async fn one_connection_of_a_client_carries_requests_one_after_another() {
    let rig = Rig::start().await;
    let mut raw = rig.raw().await;
    for stream in [false, true, false] {
        raw.post(CHAT, &rig.key, &chat(stream).to_string()).await;
        let (head, body) = raw.read_answer().await;
        assert_eq!(head.status(), 200, "{body:?}");
        assert!(
            head.header("connection")
                .is_none_or(|value| value != "close")
        );
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_may_use_tls_and_http2() {
    //   tls    http2  protocol
    for (tls, http2, protocol) in [
        (true, false, "HTTP/1.1"),
        (true, true, "HTTP/2.0"),
        (false, true, "HTTP/2.0"),
    ] {
        let mut settings = format!("[[provider]]\nhttp2 = {http2}\n");
        if tls {
            settings.push_str("ca_file = \"provider-ca.pem\"\n");
        }
        let mut setup = Setup::with(&settings);
        setup.provider_tls = tls;
        let rig = setup.start().await;
        for stream in [false, true, false] {
            let answer = rig.client().stream(CHAT, &chat(stream)).await.whole().await;
            assert_eq!(
                answer.status,
                200,
                "{protocol}, TLS {tls}: {}",
                answer.text()
            );
            rig.add_expected_charge(PRICE_OF_A_CHAT);
            let call = rig.provider.last_call();
            assert_eq!(call.protocol, protocol);
            assert_eq!(call.json()["model"], "vendor/small-1");
        }
        let calls = rig.provider.calls_when_ended().await;
        assert!(
            calls.iter().all(|call| call.connection == 1),
            "{protocol}, TLS {tls}: the connection is used again"
        );
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_provider_with_an_untrusted_certificate_is_not_called() {
    // Without `ca_file` the system's roots count, and the stand-in's authority is not a root of the system.
    let setup = Setup {
        provider_tls: true,
        ..Setup::default()
    };
    let rig = setup.start().await;
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 502);
    assert_eq!(answer.json()["error"]["code"], "upstream_unreachable");
    assert_eq!(rig.provider.call_count(), 0, "nothing was sent");
    rig.finish().await;
}

#[tokio::test]
async fn the_model_list_names_prices_and_what_is_left_and_costs_nothing() {
    let rig = Rig::start().await;
    for (what, client) in rig.clients() {
        let answer = client.get("/v1/models").await;
        assert_eq!(answer.status, 200, "{what}");
        let list = answer.json();
        assert_eq!(list["object"], "list", "{what}");
        assert_eq!(list["data"][0]["id"], "small", "{what}");
        assert_eq!(list["data"][1]["id"], "dear", "{what}");
        assert_eq!(list["data"][0]["cost"]["output"], 600, "{what}");
        assert_eq!(list["x_svc"]["credits_remaining"], 100, "{what}");
        assert_eq!(answer.header("cache-control"), Some("no-store"), "{what}");
        assert!(answer.header("ratelimit").is_some(), "{what}");
    }
    assert_eq!(rig.provider.call_count(), 0);
    assert_eq!(rig.finish().await.endings(), ["answered"; 4]);
}

#[tokio::test]
async fn the_price_of_a_request_is_charged_beside_its_tokens() {
    let rig = Rig::start().await;
    let mut body = chat(false);
    body["model"] = "dear".into();
    let answer = rig.client().post(CHAT, &body).await.json();
    assert_eq!(rig.record_charge(&answer), 50_000 + 16 * 200_000 + 10_000);
    assert_eq!(rig.provider.last_call().json()["model"], "dear");
    rig.finish().await;
}

#[tokio::test]
async fn many_requests_at_once_on_one_connection_are_each_answered_and_charged() {
    let rig = Rig::with("[server]\nworkers = 2").await;
    let client = rig.client().with_http2();
    let requests = (0..40).map(|number| {
        let client = &client;
        async move {
            let answer = client.stream(CHAT, &chat(number % 2 == 0)).await;
            answer.whole().await.status
        }
    });
    let statuses = join_all(requests).await;
    assert_eq!(statuses, vec![200; 40]);
    rig.add_expected_charge(40 * PRICE_OF_A_CHAT);
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 40);
}

/// Drives futures side by side on the current task.
async fn join_all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut futures: Vec<_> = futures
        .into_iter()
        .map(|one| (Box::pin(one), None))
        .collect();
    std::future::poll_fn(|cx| {
        let mut open = false;
        for (future, output) in &mut futures {
            if output.is_none() {
                match future.as_mut().poll(cx) {
                    std::task::Poll::Ready(value) => *output = Some(value),
                    std::task::Poll::Pending => open = true,
                }
            }
        }
        match open {
            true => std::task::Poll::Pending,
            false => std::task::Poll::Ready(()),
        }
    })
    .await;
    futures
        .into_iter()
        .filter_map(|(_, output)| output)
        .collect()
}
