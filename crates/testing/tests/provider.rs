//! The provider stand-in from outside: it responds as documented, over every protocol it speaks.

use serde_json::{Value, json};
use tollgate_testing::provider::{Settings, answer};
use tollgate_testing::{Certificate, Client, Ended, Event, Provider, RawClient, Script, StreamEnd};

const CHAT: &str = "/v1/chat/completions";

fn question(stream: bool) -> Value {
    json!({"model": "demo-small", "stream": stream, "messages": [{"role": "user", "content": "May I pass here?"}]})
}

async fn secure() -> (Provider, Certificate) {
    let certificate = Certificate::for_localhost();
    let tls = Some(certificate.clone());
    let provider = Provider::start_with(Settings {
        tls,
        ..Settings::default()
    })
    .await
    .expect("a free port");
    (provider, certificate)
}

/// The properties of every completion, independent of the transport.
fn check_whole(answer: &Value) {
    assert_eq!(answer["object"], "chat.completion");
    assert_eq!(answer["model"], "demo-small");
    assert_eq!(answer["choices"][0]["message"]["content"], answer::text(16));
    assert_eq!(answer["choices"][0]["finish_reason"], "stop");
    assert_eq!(
        answer["usage"],
        json!({"prompt_tokens": 4, "completion_tokens": 16, "total_tokens": 20})
    );
}

fn check_streamed(events: &[Event], end: &StreamEnd) {
    assert_eq!(*end, StreamEnd::Proper);
    let (done, chunks) = events.split_last().expect("events");
    assert!(done.is_done());
    assert_eq!(chunks.len(), 1 + 16 + 1);
    assert_eq!(
        chunks[0].json()["choices"][0]["delta"],
        json!({"role": "assistant", "content": ""})
    );
    assert_eq!(chunks[17].json()["choices"][0]["finish_reason"], "stop");
    let ids: Vec<Value> = chunks
        .iter()
        .map(|chunk| chunk.json()["id"].clone())
        .collect();
    assert!(
        ids.windows(2).all(|pair| pair[0] == pair[1]),
        "one id in all chunks: {ids:?}"
    );
}

#[tokio::test]
async fn it_speaks_both_versions_of_http_with_tls_and_without() {
    let plain = Provider::start().await;
    let (tls, certificate) = secure().await;
    for (provider, client, protocol) in [
        (&plain, Client::new(&plain.url()), "HTTP/1.1"),
        (&plain, Client::new(&plain.url()).with_http2(), "HTTP/2.0"),
        (
            &tls,
            Client::new(&tls.url()).with_tls(&certificate.ca_pem),
            "HTTP/1.1",
        ),
        (
            &tls,
            Client::new(&tls.url())
                .with_http2()
                .with_tls(&certificate.ca_pem),
            "HTTP/2.0",
        ),
    ] {
        check_whole(&client.post(CHAT, &question(false)).await.json());
        let mut stream = client.stream(CHAT, &question(true)).await;
        let (events, end) = stream.rest().await;
        check_streamed(&events, &end);
        assert_eq!(provider.last_call().protocol, protocol);
    }
    assert!(plain.malformed().is_empty());
}

#[test]
fn it_runs_on_a_thread_of_its_own() {
    let provider = Provider::start_own_thread(Settings::default()).expect("a free port");
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let answer = runtime.block_on(async {
        Client::new(&provider.url())
            .post(CHAT, &question(false))
            .await
    });
    check_whole(&answer.json());
    drop(provider);
}

#[tokio::test]
async fn text_completions_have_their_own_format() {
    let provider = Provider::start().await;
    let client = Client::new(&provider.url());
    let body = json!({"model": "m", "prompt": ["one two", "three"], "max_tokens": 5, "n": 2});
    let answer = client.post("/v1/completions", &body).await.json();
    assert_eq!(answer["object"], "text_completion");
    assert_eq!(answer["choices"].as_array().expect("choices").len(), 4);
    assert_eq!(answer["choices"][3]["text"], answer::text(5));
    assert_eq!(answer["choices"][3]["finish_reason"], "length");
    assert_eq!(answer["usage"]["prompt_tokens"], 3);
    assert_eq!(answer["usage"]["completion_tokens"], 20);
}

#[tokio::test]
async fn usage_ends_a_stream_that_asked_for_it() {
    let provider = Provider::start().await;
    let mut body = question(true);
    body["stream_options"] = json!({"include_usage": true});
    let (events, _) = Client::new(&provider.url())
        .stream(CHAT, &body)
        .await
        .rest()
        .await;
    let usage = events[events.len() - 2].json();
    assert_eq!(usage["choices"], json!([]));
    assert_eq!(usage["usage"]["total_tokens"], 20);
    assert_eq!(events[0].json().get("usage"), Some(&Value::Null));
}

#[tokio::test]
async fn tools_are_called_when_requested() {
    let provider = Provider::start().await;
    let client = Client::new(&provider.url());
    let mut body = question(false);
    body["tools"] = json!([{"type": "function", "function": {"name": "find_gate"}}]);
    body["tool_choice"] = json!("required");
    let answer = client.post(CHAT, &body).await.json();
    let message = &answer["choices"][0]["message"];
    assert_eq!(message["content"], Value::Null);
    assert_eq!(message["tool_calls"][0]["function"]["name"], "find_gate");
    assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls");

    body["stream"] = json!(true);
    let (events, _) = client.stream(CHAT, &body).await.rest().await;
    let arguments: String = events[..events.len() - 1]
        .iter()
        .filter_map(|event| {
            let call = &event.json()["choices"][0]["delta"]["tool_calls"][0];
            call["function"]["arguments"].as_str().map(str::to_owned)
        })
        .collect();
    assert_eq!(arguments, answer::TOOL_ARGUMENTS);
}

#[tokio::test]
async fn models_are_listed() {
    let provider = Provider::start().await;
    let answer = Client::new(&provider.url()).get("/v1/models").await.json();
    let ids: Vec<&Value> = answer["data"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|model| &model["id"])
        .collect();
    assert_eq!(ids, ["demo-small", "demo-large"]);
}

#[tokio::test]
async fn a_wrong_key_is_refused() {
    let key = Some("the-providers-key".to_owned());
    let provider = Provider::start_with(Settings {
        key,
        ..Settings::default()
    })
    .await
    .expect("a free port");
    for (client, status) in [
        (Client::new(&provider.url()), 401),
        (Client::new(&provider.url()).with_key("another-key"), 401),
        (
            Client::new(&provider.url()).with_key("the-providers-key"),
            200,
        ),
    ] {
        assert_eq!(client.post(CHAT, &question(false)).await.status, status);
    }
}

#[tokio::test]
async fn a_call_shows_what_was_sent_byte_for_byte() {
    let provider = Provider::start().await;
    let mut client = RawClient::connect(provider.address()).await;
    let body = "{\"model\":\"m\",  \"messages\":[],\"odd\":1.50}";
    client.post(CHAT, "sk-1", body).await;
    let (head, _) = client.read_answer().await;
    assert_eq!(head.status(), 200);
    client.post(CHAT, "sk-2", body).await;
    client.read_answer().await;

    let calls = provider.calls();
    assert_eq!(provider.call_count(), 2);
    assert_eq!(calls[0].body, body);
    assert_eq!(calls[0].header("authorization"), Some("Bearer sk-1"));
    assert!(
        calls[0]
            .raw_head
            .starts_with(b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n")
    );
    assert_eq!(
        calls[0].connection, calls[1].connection,
        "one connection carried both"
    );
    assert_eq!(calls[0].ended, Some(Ended::Whole));
}

#[tokio::test]
async fn a_request_that_is_not_http_is_recorded_and_refused() {
    for bad in [
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        "POST /v1/chat/completions HTTP/1.1\r\nHost : a\r\n\r\n",
    ] {
        let provider = Provider::start().await;
        let mut client = RawClient::connect(provider.address()).await;
        client.send(bad).await;
        assert_eq!(client.read_head().await.status(), 400, "for {bad:?}");
        assert_eq!(provider.malformed().len(), 1, "for {bad:?}");
        assert_eq!(provider.call_count(), 0);
    }
}

#[tokio::test]
async fn the_control_address_does_what_the_handle_does() {
    let provider = Provider::start().await;
    let client = Client::new(&provider.url());
    let script = json!({"times": 1, "hold_head": "door"});
    assert_eq!(client.post("/_control/script", &script).await.status, 200);

    let body = question(false);
    let held = client.post(CHAT, &body);
    let control = Client::new(&provider.url());
    let opens = async {
        control
            .post("/_control/reached", &json!({"gate": "door"}))
            .await;
        control
            .post("/_control/open", &json!({"gate": "door"}))
            .await
    };
    let (answer, opened) = tokio::join!(held, opens);
    assert_eq!(opened.status, 200);
    check_whole(&answer.json());

    let calls = client.get("/_control/calls").await.json();
    assert_eq!(calls["count"], 1);
    assert_eq!(calls["calls"][0]["ended"], "whole");
    assert_eq!(calls["calls"][0]["target"], CHAT);
    let wrong = client
        .post("/_control/script", &json!({"no_such_thing": 1}))
        .await;
    assert_eq!(wrong.status, 400);
    assert!(wrong.text().contains("no_such_thing"), "{}", wrong.text());
}

#[tokio::test]
async fn scripts_are_consumed_by_the_requests_they_match() {
    let provider = Provider::start().await;
    let client = Client::new(&provider.url());
    provider.script(Script {
        model: Some("other".to_owned()),
        ..Script::status(500)
    });
    provider.script(Script::status(429).times(2));
    for status in [429, 429, 200] {
        assert_eq!(client.post(CHAT, &question(false)).await.status, status);
    }
    let other = json!({"model": "other", "messages": []});
    assert_eq!(client.post(CHAT, &other).await.status, 500);
    provider.clear_scripts();
    assert_eq!(client.post(CHAT, &other).await.status, 200);
}
