//! The client's address reported by a trusted proxy in header fields, and the effect on limits, log and providers.

use bytes::Bytes;
use serde_json::json;
use tollgate_clock::Clock;
use tollgate_testing::{Answer, Client, RawClient};

use crate::oauth::support::setup;
use crate::rig::{Browser, CHAT, Rig, chat};
use crate::sign_in::{ask, with_mailbox};

const MODELS: &str = "/v1/models";

/// The test is a trusted proxy, on the two listeners.
const TRUSTED: &str = r#"
    [[listener]]
    trusted_proxies = ["127.0.0.1"]
    proxy_protocol = false
    [[listener]]
    trusted_proxies = ["127.0.0.1"]
    proxy_protocol = false
    [telemetry]
    client_address = "whole"
"#;

/// A request with the fields `fields`.
async fn get(client: &Client, path: &str, fields: &[(&'static str, &str)]) -> Answer {
    let mut request = client.request("GET", path, Bytes::new());
    for (name, value) in fields {
        let value = value.parse().expect("a value");
        request.headers_mut().append(*name, value);
    }
    client.send(request).await
}

#[tokio::test]
async fn clients_behind_a_trusted_proxy_have_limits_of_their_own() {
    let rig = Rig::with(&format!(
        "{TRUSTED}\n[limits.missing_credentials]\nquota = 2\nwindow_secs = 3600\n\
         [limits.classes.anonymous]\nquota = 2\nwindow_secs = 3600"
    ))
    .await;
    for (what, client) in rig.clients() {
        let anonymous = {
            let tls = what.ends_with("TLS");
            let url = match tls {
                true => format!("https://localhost:{}", rig.tls.port()),
                false => rig.url(),
            };
            let mut anonymous = Client::new(&url);
            if tls {
                anonymous = anonymous.with_tls(&rig.ca_pem);
            }
            if !what.starts_with("HTTP/1.1") {
                anonymous = anonymous.with_http2();
            }
            anonymous
        };
        // Every protocol has two addresses for itself.
        let one = format!("203.0.113.{}", what.len());
        let other = format!("198.51.100.{}", what.len());
        for path in [MODELS, "/llms.txt"] {
            let mut seen = Vec::new();
            for address in [&one, &one, &one, &other] {
                // Text of the client in front has no effect.
                let field = format!("10.0.0.1, \"8.8.8.8, {address}:4711, 127.0.0.1");
                let fields = [("x-forwarded-for", &*field)];
                seen.push(get(&anonymous, path, &fields).await.status);
            }
            let let_in = if path == MODELS { 401 } else { 200 };
            assert_eq!(seen, [let_in, let_in, 429, let_in], "{what} {path}");
        }
        let fields = [("x-forwarded-for", &*one)];
        assert_eq!(get(&client, MODELS, &fields).await.status, 200, "{what}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_trusted_proxy_that_reports_no_client_is_not_limited_by_its_address() {
    let rig = Rig::with(&format!(
        "{TRUSTED}\n[limits.missing_credentials]\nquota = 1\nwindow_secs = 3600\n\
         [limits.failed_credentials]\nquota = 1\nwindow_secs = 3600\n\
         [limits.classes.anonymous]\nquota = 1\nwindow_secs = 3600"
    ))
    .await;
    let anonymous = Client::new(&rig.url());
    let unknown = Client::new(&rig.url()).with_key("sk-svc-0123456789");
    for fields in [
        &[][..],
        &[("x-forwarded-for", "unknown")],
        &[("x-forwarded-for", "127.0.0.1")],
        &[("forwarded", "for=_hidden")],
    ] {
        for _ in 0..3 {
            assert_eq!(
                get(&anonymous, MODELS, fields).await.status,
                401,
                "{fields:?}"
            );
            assert_eq!(
                get(&unknown, MODELS, fields).await.status,
                401,
                "{fields:?}"
            );
            let answer = get(&anonymous, "/llms.txt", fields).await;
            assert_eq!(answer.status, 200, "{fields:?}");
            assert_eq!(answer.header("ratelimit"), None, "it is not counted");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn fields_of_an_untrusted_peer_are_ignored() {
    let settings = r#"
        [[listener]]
        trusted_proxies = ["10.0.0.0/8"]
        [telemetry]
        client_address = "whole"
        [limits.missing_credentials]
        quota = 2
        window_secs = 3600
    "#;
    let rig = Rig::with(settings).await;
    let anonymous = Client::new(&rig.url());
    let mut seen = Vec::new();
    for number in 0..4 {
        let forged = format!("203.0.113.{number}");
        let element = format!("for={forged}");
        let fields = [
            ("x-forwarded-for", &*forged),
            ("forwarded", &element),
            ("x-real-ip", &forged),
        ];
        seen.push(get(&anonymous, MODELS, &fields).await.status);
    }
    assert_eq!(seen, [401, 401, 429, 429]);
    let after = rig.finish().await;
    assert_eq!(after.each("client_address"), ["127.0.0.1"; 4]);
}

#[tokio::test]
async fn the_field_is_the_one_that_the_settings_name() {
    let x = ("x-forwarded-for", "192.0.2.1");
    let forwarded = ("forwarded", "for=\"[2001:db8::1]:4711\";proto=https");
    /// Setting, fields, status, client.
    type Case<'a> = (&'a str, &'a [(&'static str, &'a str)], u16, &'a str);
    let cases: [Case<'_>; 9] = [
        ("either", &[x], 200, "192.0.2.1"),
        ("either", &[forwarded], 200, "2001:db8::1"),
        (
            "either",
            &[x, ("forwarded", "for=192.0.2.1")],
            200,
            "192.0.2.1",
        ),
        ("either", &[x, forwarded], 400, "127.0.0.1"),
        ("x-forwarded-for", &[x, forwarded], 200, "192.0.2.1"),
        ("x-forwarded-for", &[forwarded], 200, "127.0.0.1"),
        ("forwarded", &[x, forwarded], 200, "2001:db8::1"),
        ("forwarded", &[x], 200, "127.0.0.1"),
        ("none", &[x, forwarded], 200, "127.0.0.1"),
    ];
    for setting in ["either", "x-forwarded-for", "forwarded", "none"] {
        let field = format!("proxy_protocol = false\nforwarded_field = \"{setting}\"");
        let settings = TRUSTED.replace("proxy_protocol = false", &field);
        let rig = Rig::with(&settings).await;
        let mut clients = Vec::new();
        for (_, fields, status, client) in cases.iter().filter(|case| case.0 == setting) {
            for (what, protocol) in rig.both() {
                let answer = get(&protocol, MODELS, fields).await;
                assert_eq!(answer.status, *status, "{what} {setting} {fields:?}");
                if *status == 400 {
                    assert_eq!(answer.json()["error"]["code"], "invalid_header");
                }
                clients.push(*client);
            }
        }
        let after = rig.finish().await;
        assert_eq!(after.each("client_address"), clients, "{setting}");
    }
}

#[tokio::test]
async fn an_ipv4_client_of_a_listener_for_both_is_known_by_its_ipv4_address() {
    for (trusted, client) in [("10.0.0.0/8", "127.0.0.1"), ("127.0.0.0/8", "192.0.2.1")] {
        let rig = Rig::with(&format!(
            "[[listener]]\naddress = \"[::]:0\"\ntrusted_proxies = [\"{trusted}\"]\n\
             [telemetry]\nclient_address = \"whole\""
        ))
        .await;
        let url = format!("http://127.0.0.1:{}", rig.plain.port());
        let key = rig.key.clone();
        let caller = Client::new(&url).with_key(&key);
        let fields = [("x-forwarded-for", "::ffff:192.0.2.1")];
        assert_eq!(get(&caller, MODELS, &fields).await.status, 200);
        let after = rig.finish().await;
        assert_eq!(after.each("client_address"), [client], "{trusted}");
    }
}

#[tokio::test]
async fn codes_and_registrations_are_limited_by_the_address_that_the_proxy_reports() {
    let trusted = "[[listener]]\ntrusted_proxies = [\"127.0.0.1\"]\n";
    let settings = format!("{trusted}[signin]\nnetwork_hourly_max = 2");
    let (rig, _mailbox) = with_mailbox(&settings).await;
    for (number, (address, status)) in [
        ("192.0.2.1", 303),
        ("192.0.2.1", 303),
        ("192.0.2.1", 429),
        ("192.0.2.2", 303),
        // No client is reported: the request has no network for a count.
        ("unknown", 303),
        ("unknown", 303),
        ("unknown", 303),
    ]
    .into_iter()
    .enumerate()
    {
        let mut browser = Browser::new(&rig).forwarded_for(address);
        let login = format!("anonymous{number}@example.com");
        let answer = ask(&mut browser, "/sign-in", &login).await;
        assert_eq!(answer.status, status, "{number}: {address}");
    }
    rig.finish().await;

    let mut setup = setup(trusted);
    setup.settings = setup.settings.replace(
        "[limits.classes.register]\nquota = 1000000\nwindow_secs = 1\n",
        "[limits.classes.register]\nquota = 1\nwindow_secs = 3600\n",
    );
    let rig = setup.start().await;
    let metadata = json!({"client_name": "A", "redirect_uris": ["https://app.example/cb"]});
    for (address, status) in [("192.0.2.1", 201), ("192.0.2.1", 429), ("192.0.2.2", 201)] {
        let client = Client::new(&rig.url());
        let body = metadata.to_string().into();
        let mut request = client.request("POST", "/oauth/register", body);
        let value = address.parse().expect("a value");
        request.headers_mut().insert("x-forwarded-for", value);
        assert_eq!(client.send(request).await.status, status, "{address}");
    }
    rig.finish().await;
}

#[tokio::test]
async fn the_access_log_has_the_configured_form_of_the_address() {
    for (setting, one, other) in [
        (None, "", ""),
        (Some("none"), "", ""),
        (Some("whole"), "192.0.2.1", "2001:db8:1:2:3::4"),
        (Some("prefix"), "192.0.2.1/32", "2001:db8:1:2::/64"),
    ] {
        let setting = setting.map(|word| format!("[telemetry]\nclient_address = \"{word}\""));
        let setting = setting.unwrap_or_default();
        let trusted = "[[listener]]\ntrusted_proxies = [\"127.0.0.1\"]\n";
        let rig = Rig::with(&format!("{trusted}{setting}")).await;
        for address in ["192.0.2.1", "2001:db8:1:2:3::4"] {
            get(&rig.client(), MODELS, &[("x-forwarded-for", address)]).await;
        }
        // A head that cannot be parsed reports no client.
        let mut raw = rig.raw().await;
        raw.send("GET / HTTP/1.1\r\nX-Forwarded-For : 192.0.2.9\r\n\r\n")
            .await;
        assert_eq!(raw.read_head().await.status(), 400);
        let own = match setting.as_str() {
            text if text.contains("whole") => "127.0.0.1",
            text if text.contains("prefix") => "127.0.0.1/32",
            _ => "",
        };
        let after = rig.finish().await;
        assert_eq!(after.each("client_address"), [one, other, own], "{setting}");
    }
}

#[tokio::test]
async fn a_hashed_address_is_the_same_for_a_client_and_is_not_the_address() {
    let rig = Rig::with(
        "[[listener]]\ntrusted_proxies = [\"127.0.0.1\"]\n[telemetry]\nclient_address = \"hashed\"",
    )
    .await;
    let before = utc_day();
    for address in ["192.0.2.1", "192.0.2.1:5", "192.0.2.2"] {
        get(&rig.client(), MODELS, &[("x-forwarded-for", address)]).await;
    }
    let after = rig.finish().await;
    let [one, again, other] = after.each("client_address")[..] else {
        panic!("three requests");
    };
    assert!(one.len() == 32 && one.bytes().all(|byte| byte.is_ascii_hexdigit()));
    // Another day has different hashes.
    if before == utc_day() {
        assert_eq!(one, again);
    }
    assert_ne!(one, other);
}

/// The number of the current day.
fn utc_day() -> i64 {
    Clock::system().now().as_secs().div_euclid(86_400)
}

#[tokio::test]
async fn a_provider_receives_the_client_address_where_configured_and_never_what_a_client_sends() {
    for forward in [false, true] {
        for (transport, provider) in [("plain", ""), ("h2", "http2 = true")] {
            let rig = Rig::with(&format!(
                "[[listener]]\ntrusted_proxies = [\"127.0.0.1\"]\n\
                 [[provider]]\nforward_client_address = {forward}\n{provider}"
            ))
            .await;
            // body, the proxy's report, the fields received by the provider
            let cases: [(_, _, &[&[u8]]); 4] = [
                (chat(false), "203.0.113.9, 192.0.2.1", &[b"192.0.2.1"]),
                (chat(true), "203.0.113.9, 192.0.2.1", &[b"192.0.2.1"]),
                // No client: the proxy's own address is not for providers.
                (chat(false), "203.0.113.9, unknown", &[]),
                (chat(true), "203.0.113.9, 127.0.0.1, _hidden", &[]),
            ];
            for (body, reported, expected) in cases {
                let client = rig.client();
                let mut request = client.request("POST", CHAT, body.to_string().into());
                for (name, value) in [
                    ("x-forwarded-for", reported),
                    ("x-real-ip", "203.0.113.9"),
                    ("x-client-ip", "203.0.113.9"),
                ] {
                    let value = value.parse().expect("a value");
                    request.headers_mut().insert(name, value);
                }
                let answer = client.send(request).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                rig.add_expected_charge(crate::rig::PRICE_OF_A_CHAT);
                let call = rig.provider.last_call();
                let received = call.headers.get_all("x-forwarded-for").iter();
                let received: Vec<&[u8]> = received.map(|value| value.as_bytes()).collect();
                let expected: &[&[u8]] = if forward { expected } else { &[] };
                assert_eq!(received, expected, "{transport}: {reported}");
                let head = format!("{:?}", call.headers);
                assert!(!head.contains("203.0.113.9"), "{transport}: {head}");
            }
            rig.finish().await;
        }
    }
}

#[tokio::test]
async fn each_request_of_a_connection_has_the_client_that_is_reported_with_it() {
    let rig = Rig::with(TRUSTED).await;
    let mut raw = RawClient::connect(rig.plain).await;
    for number in 1..4 {
        raw.send(format!(
            "GET /llms.txt HTTP/1.1\r\nHost: localhost\r\nX-Forwarded-For: 192.0.2.{number}\r\n\r\n"
        ))
        .await;
        assert_eq!(raw.read_answer().await.0.status(), 200);
    }
    drop(raw);
    let after = rig.finish().await;
    let expected = ["192.0.2.1", "192.0.2.2", "192.0.2.3"];
    assert_eq!(after.each("client_address"), expected);
}

#[tokio::test]
async fn a_provider_receives_the_ids_of_the_request_and_its_trace_where_configured() {
    const TRACE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
    for forward in [false, true] {
        for (transport, provider) in [("plain", ""), ("h2", "http2 = true")] {
            let settings = format!("[[provider]]\nforward_request_ids = {forward}\n{provider}");
            let rig = Rig::with(&settings).await;
            for (body, trace) in [
                (chat(false), TRACE),
                (chat(true), TRACE),
                (chat(false), "00-x"),
            ] {
                let client = rig.client();
                let mut request = client.request("POST", CHAT, body.to_string().into());
                for (name, value) in [
                    ("traceparent", trace),
                    ("tracestate", "a=1"),
                    ("x-request-id", "mine"),
                ] {
                    let value = value.parse().expect("a value");
                    request.headers_mut().insert(name, value);
                }
                let answer = client.send(request).await;
                assert_eq!(answer.status, 200, "{}", answer.text());
                rig.add_expected_charge(crate::rig::PRICE_OF_A_CHAT);
                let call = rig.provider.last_call();
                let received = |name: &str| {
                    let value = call.headers.get(name)?;
                    Some(value.to_str().expect("text").to_owned())
                };
                let ours = answer.header("x-request-id").map(str::to_owned);
                assert_eq!(
                    received("x-request-id"),
                    ours.filter(|_| forward),
                    "{transport}"
                );
                let is_valid = forward && trace == TRACE;
                let expected = |value: &str| is_valid.then(|| value.to_owned());
                assert_eq!(received("traceparent"), expected(TRACE), "{transport}");
                assert_eq!(received("tracestate"), expected("a=1"), "{transport}");
            }
            rig.finish().await;
        }
    }
}
