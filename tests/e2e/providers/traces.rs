//! Traces: the spans received by a collector for a request and the request's attempts, sampling, and a failing collector.

use serde_json::json;
use tollgate_testing::collector::{Collector, Span};
use tollgate_testing::{Certificate, Client};

use super::fixture::ProviderFixture;
use super::*;
use crate::rig::{Setup, TEXT};

const TRACE: &str = "4bf92f3577b34da6a3ce929d0e0e4736";
const PARENT: &str = "00f067aa0ba902b7";

/// The finish reasons of an answer with a single choice.
const STOP: &str = r#"{"values":[{"stringValue":"stop"}]}"#;

/// The usual gateway with `collector`.
async fn traced(collector: &Collector, sample: &str) -> Rig {
    let telemetry = settings(collector, sample);
    Setup::with(&telemetry).start().await
}

fn settings(collector: &Collector, sample: &str) -> String {
    format!(
        "[telemetry]\notlp_url = '{}'\notlp_sample = {sample}\n",
        collector.url()
    )
}

/// Sends a chat, with a `traceparent` of `flags` if any.
async fn chat_of_trace(rig: &Rig, client: &Client, flags: Option<&str>) {
    let mut request = client.request("POST", CHAT, chat(false).to_string().into());
    if let Some(flags) = flags {
        let value = format!("00-{TRACE}-{PARENT}-{flags}");
        let value = value.parse().expect("a value");
        request.headers_mut().insert("traceparent", value);
    }
    let answer = client.send(request).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.add_expected_charge(PRICE_OF_A_CHAT);
}

fn of_kind(spans: &[Span], kind: u64) -> Vec<&Span> {
    let found = spans.iter().filter(|span| span.number("kind") == kind);
    found.collect()
}

#[tokio::test]
async fn a_request_is_one_span_with_one_below_it_for_each_attempt() {
    let collector = Collector::start().await;
    let (rig, others) = ProviderFixture {
        others: &["forward_request_ids = true"],
        more: &settings(&collector, "0"),
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for (_, client) in rig.both() {
        rig.provider.script(Script::status(503).once());
        chat_of_trace(&rig, &client, Some("01")).await;
    }
    let spans = collector.spans(6).await;
    assert_eq!(spans.len(), 6);
    let servers = of_kind(&spans, 2);
    let clients = of_kind(&spans, 3);
    for span in &spans {
        assert_eq!(span.member("traceId"), TRACE);
    }
    for (server, attempts) in servers.iter().zip(clients.chunks(2)) {
        assert_eq!(server.member("parentSpanId"), PARENT);
        assert_eq!(server.number("flags"), 0x301, "sampled, of a remote parent");
        assert_eq!(server.member("name"), "POST /v1/chat/completions");
        assert!(!server.failed());
        for (name, value) in [
            ("http.request.method", "POST"),
            ("http.route", "/v1/chat/completions"),
            ("url.path", "/v1/chat/completions"),
            ("http.response.status_code", "200"),
            ("tollgate.ending", "complete"),
            ("tollgate.account.id", &rig.account.to_string()),
            ("tollgate.charge.microcredits", "9750"),
            ("tollgate.model", "small"),
        ] {
            assert_eq!(server.attribute(name), value, "{name}");
        }
        assert!(server.attribute("tollgate.request.id").starts_with("req_"));
        let [failed, answered] = attempts else {
            panic!("two attempts, got {attempts:?}");
        };
        assert!(failed.failed() && !answered.failed());
        assert_eq!(failed.member("name"), "chat vendor/small-1");
        for attempt in attempts {
            assert_eq!(attempt.member("parentSpanId"), server.member("spanId"));
            // The provider's name of the model.
            let model = attempt.attribute("gen_ai.request.model");
            assert_eq!(attempt.member("name"), format!("chat {model}").as_str());
            assert_eq!(attempt.attribute("gen_ai.operation.name"), "chat");
            assert_eq!(attempt.attribute("server.address"), "127.0.0.1");
            let within = |name| attempt.number(name) >= server.number("startTimeUnixNano");
            assert!(within("startTimeUnixNano"));
            assert!(attempt.number("endTimeUnixNano") <= server.number("endTimeUnixNano"));
        }
        for (span, name, value) in [
            (failed, "gen_ai.provider.name", "stand-in"),
            (failed, "gen_ai.request.model", "vendor/small-1"),
            (failed, "http.response.status_code", "503"),
            (failed, "error.type", "error"),
            (failed, "gen_ai.usage.input_tokens", ""),
            (failed, "gen_ai.response.model", ""),
            (answered, "gen_ai.provider.name", "other-1"),
            (answered, "gen_ai.request.model", "vendor/other-1"),
            (answered, "http.response.status_code", "200"),
            (answered, "gen_ai.usage.input_tokens", "1"),
            (answered, "gen_ai.usage.output_tokens", "16"),
            (answered, "gen_ai.response.model", "vendor/other-1"),
            (answered, "gen_ai.response.finish_reasons", STOP),
            (answered, "gen_ai.response.time_to_first_chunk", ""),
        ] {
            assert_eq!(span.attribute(name), value, "{name}");
        }
        let id = answered.attribute("gen_ai.response.id");
        assert!(id.starts_with("chatcmpl-standin"), "{id}");
    }
    let received = others[0].last_call();
    let last = clients.last().expect("an attempt").member("spanId");
    let expected = format!("00-{TRACE}-{last}-01");
    assert_eq!(received.header("traceparent"), Some(&*expected));
    let after = rig.finish().await;
    assert_eq!(after.each("trace_id"), [TRACE; 2]);
}

#[tokio::test]
async fn each_chat_of_a_text_request_is_a_span_and_the_log_has_its_trace() {
    let collector = Collector::start().await;
    let telemetry = settings(&collector, "1");
    let model = "[[model]]\nproviders = [{ provider = 'stand-in', model = 'vendor/small-1', api = ['chat'] }]\n";
    let rig = Setup::with(&format!("{telemetry}{model}")).start().await;
    let client = rig.client();
    let body = json!({"model": "small", "prompt": ["Halt!", "Go!"], "max_tokens": 32});
    let answer = client.post(TEXT, &body).await;
    rig.record_charge(&answer.json());
    let spans = collector.spans(3).await;
    let server = of_kind(&spans, 2)[0].member("spanId");
    for chat in of_kind(&spans, 3) {
        assert_eq!(chat.member("parentSpanId"), server);
        assert_eq!(chat.attribute("gen_ai.operation.name"), "chat");
        assert_eq!(
            chat.attribute("gen_ai.usage.output_tokens"),
            "",
            "of both together"
        );
    }
    let after = rig.finish().await;
    let id = spans[0].member("traceId");
    assert_eq!(after.each("trace_id"), [id], "the log has our own trace");
}

#[tokio::test]
async fn the_attempt_that_a_hedge_overtakes_is_cancelled_and_the_stream_has_the_tokens() {
    let collector = Collector::start().await;
    let (rig, _others) = ProviderFixture {
        others: &[""],
        more: &format!(
            "{}[upstream]\nhedge_after_ms = 50",
            settings(&collector, "1")
        ),
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::hold_head("never").once());
    let seen = observe(&rig.client(), true).await;
    assert_eq!(seen, Ok(Answer { words: 16 }));
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    let spans = collector.spans(3).await;
    let found = of_kind(&spans, 3).into_iter().map(|span| {
        let attributes = [
            "gen_ai.provider.name",
            "error.type",
            "gen_ai.usage.output_tokens",
            "gen_ai.request.stream",
            "gen_ai.response.finish_reasons",
        ];
        attributes.map(|name| span.attribute(name))
    });
    let mut found: Vec<[String; 5]> = found.collect();
    found.sort();
    let expected = [
        ["other-1", "", "16", "true", STOP],
        ["stand-in", "cancelled", "", "true", ""],
    ];
    assert_eq!(found, expected.map(|of| of.map(str::to_owned)));
    for span in of_kind(&spans, 3) {
        let answers = span.attribute("error.type").is_empty();
        let first = span.attribute("gen_ai.response.time_to_first_chunk");
        let seconds = first.parse::<f64>().ok();
        assert_eq!(
            seconds.is_some_and(|seconds| seconds > 0.0),
            answers,
            "{first}"
        );
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_request_that_no_provider_answers_has_failed_and_a_refused_one_has_not() {
    let collector = Collector::start().await;
    let rig = traced(&collector, "1").await;
    let client = rig.client();
    rig.provider.script(Script::status(500).once());
    let failed = client.post(CHAT, &chat(false)).await;
    assert_eq!(failed.status, 502);
    let refused = client.post(CHAT, &json!({"model": "none"})).await;
    assert!((400..500).contains(&refused.status), "{}", refused.text());
    let spans = collector.spans(3).await;
    let found: Vec<_> = of_kind(&spans, 2)
        .into_iter()
        .map(|span| {
            let status = span.attribute("http.response.status_code");
            (status, span.failed(), span.attribute("error.type"))
        })
        .collect();
    let refused = refused.status.to_string();
    assert_eq!(
        found,
        [
            ("502".to_owned(), true, "error".to_owned()),
            (refused, false, String::new())
        ]
    );
    rig.finish().await;
}

#[tokio::test]
async fn the_clients_flag_decides_and_without_it_the_share() {
    for (sample, flags, expected) in [
        ("0", None, 0),
        ("1", None, 2),
        ("0.0", Some("01"), 2),
        ("1.0", Some("00"), 0),
        ("1", Some("02"), 0),
    ] {
        let collector = Collector::start().await;
        let rig = traced(&collector, sample).await;
        let client = rig.client();
        chat_of_trace(&rig, &client, flags).await;
        // The end of the gateway exports the queued spans.
        rig.finish().await;
        let spans = collector.spans(expected).await;
        assert_eq!(spans.len(), expected, "{sample}, {flags:?}");
    }
}

#[tokio::test]
async fn spans_wait_for_a_collector_that_is_unavailable_and_are_dropped_by_one_that_refuses() {
    let collector = Collector::start().await;
    collector.answer(&[503, 429]);
    let setup = Setup {
        environment: tollgate::config::Environment::of([
            ("PROVIDER_KEY", crate::rig::PROVIDER_KEY),
            ("OTLP_HEADERS", "authorization=Bearer%20t0,x-team=edge"),
        ]),
        ..Setup::with(&format!(
            "{}otlp_headers_env = 'OTLP_HEADERS'\n",
            settings(&collector, "1")
        ))
    };
    let rig = setup.start().await;
    let client = rig.client();
    chat_of_trace(&rig, &client, None).await;
    let spans = collector.spans(2).await;
    assert_eq!(spans.len(), 2, "each once");
    let exports = collector.exports(3).await;
    assert_eq!(exports.len(), 3);
    for fields in exports {
        assert_eq!(fields["authorization"], "Bearer t0");
        assert_eq!(fields["x-team"], "edge");
    }
    collector.answer(&[400]);
    chat_of_trace(&rig, &client, None).await;
    wait_for_spans(&rig, "dropped", 2).await;
    wait_for_spans(&rig, "exported", 2).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_collector_that_never_answers_delays_neither_a_request_nor_the_end() {
    let collector = Collector::start().await;
    collector.hold();
    collector.hold();
    let rig = traced(&collector, "1").await;
    let client = rig.client();
    chat_of_trace(&rig, &client, None).await;
    collector.exports(1).await;
    for _ in 0..3 {
        chat_of_trace(&rig, &client, None).await;
    }
    rig.finish().await;
    let exports = collector.exports(2).await;
    assert_eq!(exports.len(), 2, "once more at the end, within its bound");
}

/// The token in the header fields of an export must reach no server except the collector.
#[tokio::test]
async fn spans_are_exported_over_tls_to_a_server_of_the_configured_authority_alone() {
    let certificate = Certificate::for_localhost();
    let folder = tollgate_testing::tempdir().expect("a folder");
    let other = Certificate::for_localhost();
    for (ca, expected) in [(&certificate.ca_pem, 2), (&other.ca_pem, 0)] {
        let collector = Collector::start_with_tls(&certificate).await;
        let file = folder.path().join("ca.pem");
        std::fs::write(&file, ca).expect("the folder takes files");
        let telemetry = settings(&collector, "1");
        let telemetry = format!("{telemetry}otlp_ca_file = '{}'\n", file.display());
        let rig = Setup::with(&telemetry).start().await;
        chat_of_trace(&rig, &rig.client(), None).await;
        // The end of the gateway exports the queued spans.
        rig.finish().await;
        assert_eq!(collector.spans(expected).await.len(), expected);
        assert_eq!(collector.exports(0).await.is_empty(), expected == 0);
        assert!(collector.connections() > 0, "it was tried");
    }
}

#[tokio::test]
async fn a_reload_brings_another_collector_and_ends_the_export() {
    let (first, second) = (Collector::start().await, Collector::start().await);
    let folder = tollgate_testing::tempdir().expect("a folder");
    let file = folder.path().join("headers");
    std::fs::write(&file, "x-team=one").expect("the folder takes files");
    let rig = Setup::with("").start().await;
    let client = rig.client();
    chat_of_trace(&rig, &client, Some("01")).await;
    let export = |collector: &Collector, sample: f64| {
        let (url, file) = (collector.url(), file.display().to_string());
        rig.edit(|table| {
            let telemetry = table
                .entry("telemetry")
                .or_insert_with(|| toml::Table::new().into());
            let telemetry = telemetry.as_table_mut().expect("a table");
            telemetry.insert("otlp_url".into(), url.into());
            telemetry.insert("otlp_sample".into(), sample.into());
            telemetry.insert("otlp_headers_file".into(), file.into());
        });
    };
    export(&first, 1.0);
    rig.reload().await.expect("traces begin");
    chat_of_trace(&rig, &client, None).await;
    assert_eq!(first.spans(2).await.len(), 2);

    std::fs::write(&file, "x-team=two").expect("the folder takes files");
    export(&second, 0.0);
    let changes = rig.reload().await.expect("another collector");
    let keys = [
        "telemetry.otlp_headers_file",
        "telemetry.otlp_sample",
        "telemetry.otlp_url",
    ];
    assert_eq!(changes, keys);
    chat_of_trace(&rig, &client, None).await;
    chat_of_trace(&rig, &client, Some("01")).await;
    assert_eq!(second.spans(2).await.len(), 2, "the sampled one alone");
    assert_eq!(second.exports(1).await[0]["x-team"], "two");
    assert_eq!(first.spans(2).await.len(), 2, "no more than before");

    rig.edit(|table| {
        let telemetry = table["telemetry"].as_table_mut().expect("a table");
        telemetry.retain(|key, _| !key.starts_with("otlp_"));
    });
    rig.reload().await.expect("traces end");
    chat_of_trace(&rig, &client, Some("01")).await;
    wait_for_spans(&rig, "exported", 4).await;
    rig.finish().await;
    assert_eq!(second.spans(2).await.len(), 2);
}

async fn wait_for_spans(rig: &Rig, result: &str, count: u64) {
    let line = format!("tollgate_trace_spans_total{{result=\"{result}\"}} {count}\n");
    tollgate_testing::within("the count of spans", async {
        let mut often = tokio::time::interval(std::time::Duration::from_millis(10));
        while !rig.admin_get("/metrics").await.text().contains(&line) {
            often.tick().await;
        }
    })
    .await;
}
