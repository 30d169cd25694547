//! Idempotency keys: repeats of requests with equal keys.

use serde_json::{Value, json};
use tollgate_testing::provider::{Leave, UsageReport};
use tollgate_testing::{Answer, Client, Ended, Script};

use crate::rig::{CHAT, IN, OUT, PRICE_OF_A_CHAT, Rig, Setup, TEXT, chat, micros};

/// Sends a body under a key.
async fn send(client: &Client, path: &str, body: &Value, key: &str) -> Answer {
    let mut request = client.request("POST", path, body.to_string().into());
    let key = key.parse().expect("a header value");
    request.headers_mut().insert("idempotency-key", key);
    client.send(request).await
}

fn text(stream: bool) -> Value {
    json!({"model": "small", "prompt": "Halt!", "stream": stream})
}

fn replayed(answer: &Answer) -> bool {
    match answer.header("idempotent-replayed") {
        None => false,
        Some("true") => true,
        Some(other) => panic!("`{other}` is no word for it"),
    }
}

/// The charge in a whole response or a complete stream.
fn charge_in(answer: &Answer) -> i64 {
    let body: Value = match answer.text().strip_suffix("data: [DONE]\n\n") {
        None => answer.json(),
        Some(events) => {
            let last = events.trim_end().rsplit("data: ").next();
            serde_json::from_str(last.expect("an event")).expect("JSON")
        }
    };
    micros(&body["x_svc"]["credits_used"])
}

fn code(answer: &Answer) -> (u16, String) {
    let code = answer.json()["error"]["code"].clone();
    (answer.status, code.as_str().expect("a code").to_owned())
}

#[tokio::test]
async fn a_repeated_request_gets_the_same_bytes_and_is_charged_once() {
    let rig = Rig::start().await;
    let mut number = 0;
    for (what, client) in rig.clients() {
        for (path, body) in [
            (CHAT, chat(false)),
            (CHAT, chat(true)),
            (
                CHAT,
                json!({"messages": chat(true)["messages"], "stream": true, "stream_options": {"include_usage": true}, "n": 2}),
            ),
            (TEXT, text(false)),
            (TEXT, text(true)),
        ] {
            let case = format!("{what}, {path}, {body}");
            number += 1;
            let key = format!("key-{number}");
            let calls = rig.provider.call_count();
            let first = send(&client, path, &body, &key).await;
            assert_eq!(first.status, 200, "{case}: {}", first.text());
            assert!(!replayed(&first), "{case}");
            rig.add_expected_charge(charge_in(&first));
            for _ in 0..2 {
                let again = send(&client, path, &body, &key).await;
                assert_eq!(again.status, 200, "{case}");
                assert_eq!(again.text(), first.text(), "{case}");
                assert_eq!(
                    again.header("content-type"),
                    first.header("content-type"),
                    "{case}"
                );
                assert!(replayed(&again), "{case}");
                assert_ne!(
                    again.header("x-request-id"),
                    first.header("x-request-id"),
                    "{case}: it is another request"
                );
                assert!(again.header("ratelimit").is_some(), "{case}: it is counted");
            }
            assert_eq!(rig.provider.call_count(), calls + 1, "{case}");
        }
    }
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 20, "one record for each key");
    let charged = |line: &&Value| micros(&line["credits"]) > 0;
    let charged = after.log.iter().filter(charged).count();
    assert_eq!(charged, 20, "and one charge in the log");
}

#[tokio::test]
async fn an_idempotency_key_is_scoped_to_account_endpoint_and_body() {
    let rig = Rig::start().await;
    let other = rig.new_account("pro", 1_000_000).await;
    let (_, other_key) = rig.new_key(other, |_| {}).await;
    let other = Client::new(&rig.url()).with_key(&other_key);
    let client = rig.client();
    let first = send(&client, CHAT, &chat(false), "k").await;
    rig.add_expected_charge(charge_in(&first));
    let mut changed = chat(false);
    changed["temperature"] = 0.into();
    for body in [&changed, &chat(true)] {
        let refused = send(&client, CHAT, body, "k").await;
        assert_eq!(code(&refused), (409, "idempotency_conflict".to_owned()));
        assert_eq!(refused.header("x-should-retry"), Some("false"));
    }
    // An account neither sees nor blocks keys of another account.
    for (client, path, body) in [(&other, CHAT, chat(false)), (&client, TEXT, text(false))] {
        let answer = send(client, path, &body, "k").await;
        assert_eq!(answer.status, 200, "{path}: {}", answer.text());
        assert!(!replayed(&answer), "{path}");
        rig.add_expected_charge(charge_in(&answer));
    }
    assert_eq!(rig.provider.call_count(), 3);
    rig.finish().await;
}

#[tokio::test]
async fn a_concurrent_request_with_the_same_key_is_409() {
    let rig = Rig::start().await;
    for stream in [false, true] {
        let key = format!("key-{stream}");
        rig.provider.script(Script::hold_head("head").once());
        let gate = rig.provider.gate("head");
        let arrived = gate.arrived();
        let first = tokio::spawn({
            let (client, key) = (rig.client(), key.clone());
            async move { send(&client, CHAT, &chat(stream), &key).await }
        });
        gate.reached_by(arrived + 1).await;
        let refused = send(&rig.client(), CHAT, &chat(stream), &key).await;
        assert_eq!(code(&refused), (409, "in_progress".to_owned()));
        assert_eq!(refused.header("retry-after"), Some("1"));
        assert_eq!(refused.header("x-should-retry"), None, "a retry cures it");
        gate.release(1);
        let first = first.await.expect("no panic");
        rig.add_expected_charge(charge_in(&first));
        let again = send(&rig.client(), CHAT, &chat(stream), &key).await;
        assert!(replayed(&again));
        assert_eq!(again.text(), first.text());
    }
    rig.finish().await;
}

#[tokio::test]
async fn concurrent_requests_with_one_key_are_one_request() {
    let rig = Rig::with("[server]\nworkers = 2").await;
    rig.provider.script(Script::hold_head("head").once());
    let mut requests = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let client = rig.client();
        requests.spawn(async move { send(&client, CHAT, &chat(false), "k").await });
    }
    // One request waits for the provider. The request must not continue before the remaining requests have responses.
    for _ in 0..19 {
        let refused = requests.join_next().await.expect("one of the requests");
        let refused = refused.expect("no panic");
        assert_eq!(code(&refused), (409, "in_progress".to_owned()));
    }
    rig.provider.gate("head").release(1);
    let first = requests
        .join_next()
        .await
        .expect("the last of the requests");
    let first = first.expect("no panic");
    assert_eq!(first.status, 200);
    rig.add_expected_charge(charge_in(&first));
    assert_eq!(rig.provider.call_count(), 1);
    rig.finish().await;
}

#[tokio::test]
async fn a_failed_request_releases_its_key() {
    let rig = Setup::default().credits(1).start().await;
    let client = rig.client();
    // Too little credit; next several failures of the provider; an invalid request; and at last a success.
    let poor = send(&client, CHAT, &chat(false), "k").await;
    assert_eq!(poor.status, 402);
    rig.grant(rig.account, 10_000_000).await;
    for (script, status) in [
        (Script::status(500), 502),
        (Script::status(429), 429),
        (Script::status(400), 400),
        (Script::no_head(Leave::Reset), 502),
    ] {
        rig.provider.script(script.times(3));
        let failed = send(&client, CHAT, &chat(false), "k").await;
        assert_eq!(failed.status, status, "{}", failed.text());
        assert!(!replayed(&failed));
        rig.provider.clear_scripts();
    }
    let mut bad = chat(false);
    bad["messages"] = json!([]);
    assert_eq!(send(&client, CHAT, &bad, "k").await.status, 400);
    let good = send(&client, CHAT, &chat(true), "k").await;
    assert_eq!((good.status, replayed(&good)), (200, false));
    rig.add_expected_charge(charge_in(&good));
    rig.finish().await;
}

#[tokio::test]
async fn a_client_that_left_in_the_middle_gets_the_whole_answer_when_it_comes_again() {
    let rig = Rig::start().await;
    for (protocol, client) in rig.both() {
        let key = format!("key-{}", protocol.replace(' ', "-"));
        rig.provider.script(Script::hold(5, "middle").once());
        let gate = rig.provider.gate("middle");
        let arrived = gate.arrived();
        let first = tokio::spawn({
            let key = key.clone();
            async move { send(&client, CHAT, &chat(true), &key).await }
        });
        gate.reached_by(arrived + 1).await;
        first.abort();
        let _ = first.await;
        gate.release(1);
        let calls = rig.provider.calls_when_ended().await;
        let call = calls.last().expect("a call");
        assert_eq!(call.ended, Some(Ended::Whole), "{protocol}");
        rig.quiet().await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        let again = send(&rig.client(), CHAT, &chat(true), &key).await;
        assert!(replayed(&again), "{protocol}: {}", again.text());
        assert_eq!(charge_in(&again), PRICE_OF_A_CHAT, "{protocol}");
        assert!(again.text().ends_with("data: [DONE]\n\n"), "{protocol}");
    }
    assert_eq!(rig.provider.call_count(), 2);
    rig.finish().await;
}

/// A partial response was charged and is not recorded: the key is released, and a new response is charged again.
#[tokio::test]
async fn a_partial_response_is_never_replayed() {
    let rig = Rig::start().await;
    rig.provider
        .script(Script::cut_after(6, Leave::Reset).once());
    let cut = send(&rig.client(), CHAT, &chat(true), "k").await;
    assert!(cut.text().contains("\"error\""), "{}", cut.text());
    let books = rig.books.ledger.balance(rig.account).expect("an account");
    let charged = crate::rig::CREDITS - books.available.get();
    assert!(charged > 0, "what was relayed is paid for");
    rig.add_expected_charge(charged);
    let again = send(&rig.client(), CHAT, &chat(true), "k").await;
    assert_eq!((again.status, replayed(&again)), (200, false));
    rig.add_expected_charge(charge_in(&again));
    rig.finish().await;
}

#[tokio::test]
async fn an_account_that_spent_its_last_credit_on_an_answer_gets_it_again() {
    let rig = Setup::with("[meter]\nclamp_output = false")
        .credits(1)
        .start()
        .await;
    let mut body = chat(false);
    body["max_tokens"] = 16.into();
    let poor = send(&rig.client(), CHAT, &body, "k").await;
    let needed = micros(&poor.json()["error"]["required"]);
    rig.grant(rig.account, needed - 1).await;
    // Exactly the hold, to the last micro-credit.
    rig.provider.script(
        Script::usage(UsageReport::Exactly {
            prompt_tokens: ((needed - 16 * OUT) / IN) as u64,
            completion_tokens: 16,
        })
        .once(),
    );
    let first = send(&rig.client(), CHAT, &body, "k").await;
    assert_eq!(first.status, 200, "{}", first.text());
    rig.add_expected_charge(charge_in(&first));
    assert_eq!(rig.available(rig.account), 0, "all of it is spent");
    let again = send(&rig.client(), CHAT, &body, "k").await;
    assert_eq!(again.text(), first.text());
    let other = send(&rig.client(), CHAT, &body, "other").await;
    assert_eq!(other.status, 402);
    rig.finish().await;
}

#[tokio::test]
async fn a_response_too_large_to_record_is_not_charged_twice() {
    let rig = Rig::with("[idempotency]\nanswer_bytes_max = 2048").await;
    for (path, body) in [(CHAT, chat(false)), (CHAT, chat(true)), (TEXT, text(true))] {
        let key = body.to_string().replace('"', "'");
        rig.provider.script(Script {
            words: Some(1_000),
            ..Script::default().once()
        });
        let first = send(&rig.client(), path, &body, &key).await;
        assert_eq!(first.status, 200);
        rig.add_expected_charge(charge_in(&first));
        let calls = rig.provider.call_count();
        let again = send(&rig.client(), path, &body, &key).await;
        assert_eq!(code(&again), (409, "idempotency_conflict".to_owned()));
        assert_eq!(rig.provider.call_count(), calls);
    }
    rig.finish().await;
}

#[tokio::test]
async fn an_invalid_idempotency_key_is_refused() {
    let rig = Rig::start().await;
    for keys in [
        &[""][..],
        &["two\twords"],
        &["k\u{e9}"],
        &["one", "two"],
        &[&"k".repeat(256)],
    ] {
        for (protocol, client) in rig.both() {
            let mut request = client.request("POST", CHAT, chat(false).to_string().into());
            for key in keys {
                let key = http::HeaderValue::from_bytes(key.as_bytes()).expect("a header value");
                request.headers_mut().append("idempotency-key", key);
            }
            let refused = client.send(request).await;
            assert_eq!(
                code(&refused),
                (400, "invalid_header".to_owned()),
                "{keys:?}, {protocol}"
            );
            assert_eq!(refused.json()["error"]["param"], "Idempotency-Key");
        }
    }
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

/// A cached response is charged once at the price of a hit, and is replayed unchanged.
#[tokio::test]
async fn a_cached_response_is_recorded_like_any_other() {
    for ppm in [0, 500_000] {
        let rig = Rig::with(&format!("[cache]\nenabled = true\nhit_price_ppm = {ppm}")).await;
        let client = rig.client();
        let stored = send(&client, CHAT, &chat(false), "stored").await;
        rig.add_expected_charge(charge_in(&stored));
        assert_eq!(stored.json()["x_svc"]["cache_store_status"], "stored");
        for (key, body) in [("whole", chat(false)), ("stream", chat(true))] {
            let hit = send(&client, CHAT, &body, key).await;
            assert!(hit.text().contains("\"cache_hit\":true"), "{}", hit.text());
            assert_eq!(charge_in(&hit), PRICE_OF_A_CHAT * ppm / 1_000_000);
            rig.add_expected_charge(charge_in(&hit));
            let again = send(&client, CHAT, &body, key).await;
            assert!(replayed(&again), "{key}");
            assert_eq!(again.text(), hit.text(), "{key}");
        }
        let again = send(&client, CHAT, &chat(false), "stored").await;
        assert_eq!(again.text(), stored.text(), "stored, as it was then");
        assert_eq!(rig.provider.call_count(), 1);
        rig.finish().await;
    }
}

/// Every hit has a separate id and time. The answer is stored once per requested form.
#[tokio::test]
async fn sixty_hits_with_keys_store_their_answer_once() {
    let rig = Rig::with("[cache]\nenabled = true").await;
    let client = rig.client();
    rig.provider.script(Script {
        words: Some(2_000),
        ..Script::default()
    });
    let first = client.post(CHAT, &chat(false)).await;
    rig.add_expected_charge(charge_in(&first));
    let mut hits = Vec::new();
    for number in 0..60 {
        let body = chat(number % 2 == 1);
        let hit = send(&client, CHAT, &body, &format!("hit-{number}")).await;
        assert!(hit.text().contains("\"cache_hit\":true"), "{}", hit.text());
        hits.push((number, body, hit.text().to_owned()));
    }
    let ids: std::collections::HashSet<&str> = hits
        .iter()
        .map(|(_, _, text)| text.split('"').nth(3).expect("an id"))
        .collect();
    assert_eq!(ids.len(), 60, "each has its own id");
    for (number, body, text) in &hits {
        let again = send(&client, CHAT, body, &format!("hit-{number}")).await;
        assert!(replayed(&again));
        assert_eq!(again.text(), text, "hit {number}");
    }
    let file = rusqlite::Connection::open(rig.database());
    let file = file.expect("the database");
    let bytes = |query: &str| {
        file.query_row(query, [], |row| row.get::<_, i64>(0))
            .expect("a number")
    };
    assert_eq!(
        bytes("SELECT count(*) FROM answer_bodies"),
        2,
        "whole and streamed"
    );
    let whole = i64::try_from(first.text().len()).expect("small");
    let stored = bytes("SELECT sum(length(body)) FROM answer_bodies");
    assert!(
        stored < 6 * whole,
        "{stored} bytes for an answer of {whole}"
    );
    assert_eq!(
        bytes("SELECT sum(bytes) FROM completion_key_totals"),
        stored
    );
    drop(file);
    assert_eq!(rig.provider.call_count(), 1);
    rig.finish().await;
}

#[tokio::test]
async fn an_account_without_credit_gets_recorded_answers_and_claims_no_key() {
    let settings = "[server]\nmemory_bytes_max = 268435456";
    let rig = Setup::with(settings).credits(30_000).start().await;
    let client = rig.client();
    let body = chat(false);
    // The whole credit.
    rig.provider.script(Script::usage(UsageReport::Exactly {
        prompt_tokens: 200,
        completion_tokens: 0,
    }));
    let first = send(&client, CHAT, &body, "k").await;
    assert_eq!(first.status, 200, "{}", first.text());
    rig.add_expected_charge(charge_in(&first));
    assert_eq!(rig.available(rig.account), 0, "the answer took all");
    let again = send(&client, CHAT, &body, "k").await;
    assert_eq!((again.status, again.text()), (200, first.text()));
    assert!(replayed(&again));
    let claimed = rig
        .metric("tollgate_idempotency_total{event=\"claimed\"}")
        .await;
    for (what, body, key) in [
        ("a new key", body.clone(), "new"),
        ("another body", chat(true), "k"),
        (
            "a body beyond the share",
            json!({"messages": " ".repeat(19 << 20)}),
            "k",
        ),
    ] {
        let refused = send(&client, CHAT, &body, key).await;
        assert_eq!(
            code(&refused),
            (402, "insufficient_credits".to_owned()),
            "{what}"
        );
    }
    let later = rig
        .metric("tollgate_idempotency_total{event=\"claimed\"}")
        .await;
    assert_eq!(later, claimed);
    assert_eq!(rig.provider.call_count(), 1);
    rig.finish().await;
}

#[tokio::test]
async fn the_keys_and_the_recorded_bytes_of_an_account_are_limited() {
    let rig = Rig::with("[idempotency]\naccount_keys_max = 100").await;
    let client = rig.client();
    for number in 0..100 {
        let answer = send(&client, CHAT, &chat(false), &format!("key-{number}")).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.add_expected_charge(charge_in(&answer));
    }
    let refused = send(&client, CHAT, &chat(false), "one-more").await;
    assert_eq!(code(&refused), (429, "rate_limit_exceeded".to_owned()));
    assert_eq!(refused.header("retry-after"), Some("60"));
    assert_eq!(refused.json()["error"]["param"], "Idempotency-Key");
    let again = send(&client, CHAT, &chat(false), "key-0").await;
    assert_eq!(again.status, 200, "a recorded answer is still sent");
    let without = client.post(CHAT, &chat(false)).await;
    rig.record_charge(&without.json());
    rig.finish().await;
}

#[tokio::test]
async fn new_requests_are_refused_before_the_disk_is_full() {
    let rig = Rig::with("[store]\nfree_bytes_min = 0").await;
    let is_low = &rig.books.store.gauges().is_disk_low;
    for (low, status) in [(true, 503), (false, 200)] {
        is_low.store(low, std::sync::atomic::Ordering::Relaxed);
        for stream in [false, true] {
            let answer = rig.client().post(CHAT, &chat(stream)).await;
            assert_eq!(answer.status, status, "{}", answer.text());
            if low {
                assert_eq!(code(&answer), (503, "overloaded".to_owned()));
                let ready = rig.admin_get("/ready").await;
                assert!(ready.text().contains("nearly full"), "{}", ready.text());
            } else {
                rig.add_expected_charge(charge_in(&answer));
            }
        }
    }
    assert_eq!(rig.provider.call_count(), 2);
    rig.finish().await;
}
