//! The log line and the metrics of an exchange.

use std::io::Write;
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use http::{HeaderMap, HeaderValue, Method};
use tollgate_clock::{Clock, Timestamp};
use tollgate_filter::{
    CredentialKind, Ending, ErrorCode, Exchange, ModelAccess, Principal, Protocol, Request, Scopes,
    UpstreamFault,
};
use tollgate_money::{AccountId, CredentialId, Micros, OperationId};

use super::*;
use crate::config::{self, Environment};
use crate::registry;

/// A file for a test to read.
#[derive(Clone, Default)]
struct SharedBuffer(Arc<Mutex<Vec<u8>>>);

impl Write for SharedBuffer {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().expect("not poisoned").extend(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

const SETTINGS: &str = "
    [[provider]]
    name = 'local'
    base_url = 'http://127.0.0.1:9/v1'
    [[model]]
    id = 'small'
    providers = [{ provider = 'local' }]
    price = { input = '1', output = '2' }
";

struct TestTelemetry {
    telemetry: Telemetry,
    buffer: SharedBuffer,
}

impl TestTelemetry {
    /// At half past one in the morning, with a stopped clock.
    fn new() -> TestTelemetry {
        TestTelemetry::of(SETTINGS)
    }

    /// Starts with `settings`.
    fn of(settings: &str) -> TestTelemetry {
        let modules = registry::declarations(&registry::modules());
        let settings = config::load_text(
            Path::new("t.toml"),
            settings,
            &Environment::default(),
            &modules,
        )
        .expect("good settings");
        let (clock, hand) = Clock::manual(Timestamp::from_secs(1_767_230_999));
        hand.advance(Duration::from_secs(1));
        let buffer = SharedBuffer::default();
        TestTelemetry {
            telemetry: Telemetry::with_log(&settings, clock, Some(Box::new(buffer.clone())))
                .expect("it starts"),
            buffer,
        }
    }

    fn log(&self) -> String {
        let log = self.telemetry.inner.log.as_ref().expect("a log");
        assert!(log.flush(Duration::from_secs(60)), "the log is written");
        let bytes = self.buffer.0.lock().expect("not poisoned").clone();
        String::from_utf8(bytes).expect("the log is ASCII")
    }
}

fn exchange(headers: &[(&'static str, &'static str)]) -> Exchange {
    let mut map = HeaderMap::new();
    for (name, value) in headers {
        map.append(*name, HeaderValue::from_static(value));
    }
    Exchange::new(Request {
        id: OperationId::from_bytes([7; 16]),
        method: Method::POST,
        path: "/v1/chat/completions?not=logged".into(),
        query: Some("key=sk-secret".into()),
        headers: map,
        body: bytes::Bytes::new(),
        client: tollgate_filter::ClientAddress::direct([192, 0, 2, 1].into()),
        tls: true,
        protocol: Protocol::Http2,
    })
}

/// An answered, counted and charged stream.
fn completion() -> Exchange {
    let mut exchange = exchange(&[
        ("x-request-id", "mine-1"),
        (
            "traceparent",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
        ),
        ("authorization", "Bearer sk-secret"),
    ]);
    exchange.put(Principal {
        account: AccountId::from_bytes([1; 16]),
        credential: CredentialId::from_bytes([2; 16]),
        kind: CredentialKind::ApiKey,
        scopes: Scopes::API,
        class: "free".into(),
        models: ModelAccess::All,
        sharing: tollgate_filter::CacheSharing::Shared,
        spending_cap: None,
    });
    let at = |ms| Some(Duration::from_millis(ms));
    let record = &mut exchange.record;
    record.model = Some("small".into());
    record.provider = Some("local".into());
    record.class = Some("free".into());
    record.stream = true;
    record.prompt_tokens = 13;
    record.completion_tokens = 42;
    record.charged = Micros::new(97);
    record.status = 200;
    record.upstream_calls = 1;
    record.bytes_sent = 1234;
    record.started = Duration::from_millis(1000);
    record.upstream_started = at(1001);
    record.upstream_first_byte = at(1250);
    record.first_byte = at(1251);
    record.upstream_ended = at(1900);
    exchange
}

/// A stored answer, sent again at the price of a cache hit.
fn cache_hit() -> Exchange {
    let mut exchange = exchange(&[]);
    let record = &mut exchange.record;
    record.model = Some("small".into());
    record.completion_tokens = 8;
    record.charged = Micros::new(9);
    record.status = 200;
    record.started = Duration::from_secs(2);
    exchange
}

#[test]
fn a_log_line_describes_the_completion_without_secrets() {
    let fixture = TestTelemetry::new();
    fixture
        .telemetry
        .record(&completion(), Some(0), Ending::Complete);
    assert_eq!(
        fixture.log(),
        concat!(
            r#"{"time":"2026-01-01T01:30:00.000000Z","request_id":"req_07070707070707070707070707070707","#,
            r#""client_request_id":"mine-1","trace_id":"4bf92f3577b34da6a3ce929d0e0e4736","method":"POST","route":"/v1/chat/completions","protocol":"2","tls":true,"#,
            r#""status":200,"ending":"complete","owner":"acct_01010101010101010101010101010101","#,
            r#""key":"key_02020202020202020202020202020202","class":"free","model":"small","stream":true,"#,
            r#""prompt_tokens":13,"completion_tokens":42,"usage_estimated":false,"credits":0.000097,"#,
            r#""provider":"local","upstream_calls":1,"bytes":1234,"took_us":1000000,"first_byte_us":251000,"#,
            r#""upstream_first_byte_us":249000,"upstream_us":899000}"#,
            "\n"
        )
    );
}

#[test]
fn a_refusal_is_logged_with_its_error() {
    let fixture = TestTelemetry::new();
    let mut refused = exchange(&[]);
    refused.request.method = Method::from_bytes(b"SK-SECRET").expect("a token");
    refused.record.status = 501;
    refused.record.error = Some(ErrorCode::NotImplemented);
    refused.record.started = Duration::from_secs(2);
    fixture.telemetry.record(&refused, None, Ending::Refused);
    let mut cut = exchange(&[]);
    cut.record.started = Duration::from_secs(2);
    fixture
        .telemetry
        .record(&cut, Some(1), Ending::UpstreamCut(UpstreamFault::Timeout));
    let log = fixture.log();
    let lines: Vec<&str> = log.lines().collect();
    assert!(
        lines[0].contains(
            r#""method":"other","route":"none","protocol":"2","tls":true,"status":501,"ending":"refused","error":"not_implemented","#
        ),
        "{log}"
    );
    assert!(
        lines[1].contains(r#""ending":"upstream_cut","fault":"timeout""#),
        "{log}"
    );
}

#[test]
fn the_log_has_a_share_of_what_neither_failed_nor_was_charged() {
    // A quarter: the ids below 0x40000000 in their last four bytes.
    let sample = format!("{SETTINGS}\n[telemetry]\naccess_sample = 0.25\n");
    let fixture = TestTelemetry::of(&sample);
    let list = |id: u8| {
        let mut exchange = exchange(&[]);
        exchange.request.id = OperationId::from_bytes([id; 16]);
        exchange.record.status = 200;
        exchange.record.started = Duration::from_secs(2);
        exchange
    };
    let logged = |exchange: &Exchange, ending| {
        let before = fixture.log().len();
        fixture.telemetry.record(exchange, Some(1), ending);
        fixture.log().len() > before
    };
    for (id, expected) in [(0, true), (0x3f, true), (0x40, false), (0xff, false)] {
        assert_eq!(logged(&list(id), Ending::Answered), expected, "{id:x}");
    }
    let mut charged = list(0xff);
    charged.record.charged = Micros::new(1);
    assert!(logged(&charged, Ending::Complete));
    let mut failed = list(0xff);
    failed.record.status = 404;
    assert!(logged(&failed, Ending::Answered));
    assert!(logged(&list(0xff), Ending::GoneDuring));
}

#[test]
fn a_client_request_id_is_logged_only_when_short_and_printable() {
    let long = "x".repeat(129);
    let cases: [(&[&str], bool); 6] = [
        (&["abc-123"], true),
        (&[&long], false),
        (&["two words"], false),
        (&[""], false),
        (&["one", "two"], false),
        (&[], false),
    ];
    for (values, logged) in cases {
        let fixture = TestTelemetry::new();
        let mut exchange = exchange(&[]);
        for value in values {
            let value = HeaderValue::from_str(value).expect("a value");
            exchange.request.headers.append("x-request-id", value);
        }
        fixture
            .telemetry
            .record(&exchange, Some(0), Ending::Refused);
        assert_eq!(
            fixture.log().contains("client_request_id"),
            logged,
            "{values:?}"
        );
    }
}

#[test]
fn the_metrics_count_a_completion() {
    let fixture = TestTelemetry::new();
    fixture
        .telemetry
        .record(&completion(), Some(0), Ending::Complete);
    let mut limited = completion();
    limited.record.error = Some(ErrorCode::RateLimitExceeded);
    limited.record.status = 429;
    limited.record.model = None;
    fixture.telemetry.record(&limited, Some(0), Ending::Refused);
    fixture
        .telemetry
        .record(&cache_hit(), Some(1), Ending::Answered);
    fixture.telemetry.upstream_call("local", Ok(()));
    fixture
        .telemetry
        .upstream_call("local", Err(UpstreamFault::Cut));
    fixture.telemetry.upstream_call("stranger", Ok(()));
    let open = fixture.telemetry.connection();
    drop(fixture.telemetry.connection());
    let page = fixture.telemetry.metrics().render();
    for line in [
        r#"tollgate_requests_total{ending="complete",route="/v1/chat/completions",status="200"} 1"#,
        r#"tollgate_requests_total{ending="refused",route="/v1/chat/completions",status="429"} 1"#,
        r#"tollgate_tokens_total{direction="prompt",model="small",provider="local"} 13"#,
        r#"tollgate_tokens_total{direction="completion",model="small",provider="local"} 42"#,
        r#"tollgate_tokens_total{direction="completion",model="small",provider="none"} 8"#,
        r#"tollgate_charged_microcredits_total{model="small",provider="local"} 97"#,
        r#"tollgate_charged_microcredits_total{model="small",provider="none"} 9"#,
        r#"tollgate_model_requests_total{ending="complete",model="small",provider="local"} 1"#,
        r#"tollgate_model_requests_total{ending="answered",model="small",provider="none"} 1"#,
        r#"tollgate_model_request_seconds_count{model="small",provider="local"} 1"#,
        r#"tollgate_model_first_event_seconds_bucket{model="small",provider="local",le="0.25"} 0"#,
        r#"tollgate_model_first_event_seconds_bucket{model="small",provider="local",le="0.5"} 1"#,
        r#"tollgate_rate_limit_total{class="free",decision="admitted"} 1"#,
        r#"tollgate_rate_limit_total{class="free",decision="refused"} 1"#,
        r#"tollgate_upstream_calls_total{provider="local",result="ok"} 1"#,
        r#"tollgate_upstream_calls_total{provider="local",result="cut"} 1"#,
        r#"tollgate_overhead_seconds_count{route="/v1/chat/completions"} 2"#,
        r#"tollgate_overhead_seconds_bucket{route="/v1/chat/completions",le="0.002"} 2"#,
        "tollgate_connections 1",
        "tollgate_connections_total 2",
    ] {
        assert!(
            page.lines().any(|have| have == line),
            "no `{line}` in:\n{page}"
        );
    }
    assert!(!page.contains("acct_"), "no owner in the metrics");
    assert!(
        !page.contains("stranger"),
        "labels are those of the settings"
    );
    drop(open);
}

#[test]
fn the_start_of_the_process_is_a_metric() {
    let page = TestTelemetry::new().telemetry.metrics().render();
    let line = "tollgate_start_time_seconds 1767231000";
    assert!(page.lines().any(|have| have == line), "{page}");
}

#[test]
fn a_scrape_of_sixty_routes_and_twenty_models_in_use_is_below_200_kb_and_5_ms() {
    let mut settings = SETTINGS.to_owned();
    for model in 1..20 {
        settings.push_str(&format!(
            "[[model]]\nid = 'vendor/model-{model}'\nproviders = [{{ provider = 'local' }}]\nprice = {{ input = '1', output = '2' }}\n"
        ));
    }
    let fixture = TestTelemetry::of(&settings);
    let routes = (0..).take_while(|at| {
        fixture
            .telemetry
            .metrics()
            .names()
            .route_label(*at)
            .is_some()
    });
    let routes = routes.count();
    // Requests without a route are an additional label.
    assert!(routes >= 59, "{routes} routes");
    let empty = fixture.telemetry.metrics().render();
    assert!(
        !empty.contains("_bucket{route=") && !empty.contains("_bucket{model="),
        "no line for a histogram without samples"
    );
    for model in 0..20 {
        let mut used = completion();
        if model > 0 {
            used.record.model = Some(format!("vendor/model-{model}").into());
        }
        fixture.telemetry.record(&used, Some(0), Ending::Complete);
        used.record.stream = false;
        fixture.telemetry.record(&used, Some(1), Ending::GoneDuring);
    }
    let answer = |route| {
        let page = exchange(&[]);
        let telemetry = &fixture.telemetry;
        telemetry.record(&page, Some(route), Ending::Answered);
    };
    (0..routes).for_each(answer);
    // Of the processor, and the lowest of several: a busy machine does not decide.
    let times = (0..20).map(|_| {
        let began = thread_time();
        let page = fixture.telemetry.metrics().render();
        (thread_time() - began, page.len())
    });
    let (time, bytes) = times.min().expect("twenty");
    assert!(bytes < 200_000, "{bytes} bytes");
    assert!(time < Duration::from_millis(5), "{time:?}");
}

/// The processor time of the current thread (kernel documentation, "Scheduler statistics").
fn thread_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").expect("a kernel with it");
    let nanos = text.split(' ').next().and_then(|first| first.parse().ok());
    Duration::from_nanos(nanos.expect("nanoseconds"))
}

#[test]
fn every_status_and_ending_has_a_counter() {
    let fixture = TestTelemetry::new();
    let fault = UpstreamFault::Cut;
    let endings = [
        Ending::Complete,
        Ending::Answered,
        Ending::Refused,
        Ending::UpstreamFailed(fault),
        Ending::UpstreamCut(fault),
        Ending::GoneBefore,
        Ending::GoneDuring,
        Ending::Unsettled,
        Ending::Aborted,
    ];
    assert_eq!(endings.len(), Ending::WORDS.len());
    for ending in endings {
        for status in [0, 200, 418] {
            let mut exchange = exchange(&[]);
            exchange.record.status = status;
            fixture.telemetry.record(&exchange, Some(2), ending);
        }
    }
    let page = fixture.telemetry.metrics().render();
    for word in Ending::WORDS {
        for status in ["none", "200", "other"] {
            let line = format!(
                r#"tollgate_requests_total{{ending="{word}",route="/v1/models",status="{status}"}} 1"#
            );
            assert!(page.contains(&line), "no `{line}` in:\n{page}");
        }
    }
}
