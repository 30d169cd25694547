//! Expiry, purge and capacity of the cache.

use std::time::Duration;

use serde_json::{Value, json};
use tollgate_clock::Clock;
use tollgate_testing::Script;

use super::{metadata, rig, status};
use crate::rig::{CHAT, Rig, chat};

async fn ask(rig: &Rig, body: &Value) -> String {
    let answer = rig.client().post(CHAT, body).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.add_expected_charge(crate::rig::micros(&metadata(&answer)["credits_used"]));
    status(&answer)
}

fn question(text: &str) -> Value {
    json!({"model": "small", "messages": [{"role": "user", "content": text}], "max_tokens": 20})
}

#[tokio::test]
async fn a_response_is_served_until_its_ttl() {
    let rig = rig("cache.ttl_secs = 1").await;
    let clock = Clock::system();
    let began = clock.elapsed();
    assert_eq!(ask(&rig, &chat(false)).await, "stored");
    let mut hits = 0;
    let last = loop {
        match ask(&rig, &chat(false)).await.as_str() {
            "hit" => hits += 1,
            other => break other.to_owned(),
        }
    };
    // On a busy machine, the answer may expire before the request.
    let is_over = clock.elapsed() - began >= Duration::from_secs(1);
    assert!(hits > 0 || is_over, "it was given again at once");
    assert_eq!(last, "stored");
    assert_eq!(rig.provider.call_count(), 2);
    assert_eq!(
        rig.metric("tollgate_cache_removed_total{reason=\"expired\"}")
            .await,
        1
    );
    rig.finish().await;
}

#[tokio::test]
async fn a_response_above_the_entry_limit_is_not_stored() {
    let rig = rig("cache.max_entry_bytes = 1024").await;
    rig.provider.script(Script {
        words: Some(19),
        ..Script::default()
    });
    assert_eq!(ask(&rig, &question("small")).await, "stored");
    rig.provider.clear_scripts();
    rig.provider.script(Script {
        words: Some(2000),
        ..Script::default()
    });
    for stream in [false, true] {
        let mut body = question("large");
        body["stream"] = stream.into();
        body["max_tokens"] = 4000.into();
        body["x_stream"] = stream.into();
        for _ in 0..2 {
            assert_eq!(ask(&rig, &body).await, "too_large", "streamed: {stream}");
        }
    }
    assert_eq!(rig.provider.call_count(), 5);
    rig.finish().await;
}

#[tokio::test]
async fn an_operator_removes_one_answer_those_of_a_model_or_all() {
    let rig = rig("").await;
    let mut dear = question("dear");
    dear["model"] = "dear".into();
    let first = rig.client().post(CHAT, &question("one")).await;
    rig.record_charge(&first.json());
    let id = metadata(&first)["cache_entry_id"]
        .as_str()
        .expect("an id")
        .to_owned();
    assert_eq!(ask(&rig, &question("two")).await, "stored");
    assert_eq!(ask(&rig, &dear).await, "stored");
    let state = rig.operator().get("/cache").await.json();
    assert_eq!(
        (&state["entries"], &state["stored"]),
        (&json!(3), &json!(3))
    );

    let purge = async |query: &str| {
        let operator = rig.operator();
        let request = operator.request("DELETE", &format!("/cache{query}"), bytes::Bytes::new());
        let answer = operator.send(request).await;
        (answer.status, answer.text().trim().to_owned())
    };
    let removed = |count: u64| (200, format!("{{\"removed\":{count}}}"));
    assert_eq!(purge(&format!("?id={id}")).await, removed(1));
    assert_eq!(purge(&format!("?id={id}")).await, removed(0));
    assert_eq!(ask(&rig, &question("one")).await, "stored", "it is gone");
    assert_eq!(
        ask(&rig, &question("two")).await,
        "hit",
        "the others are not"
    );
    assert_eq!(purge("?model=small").await, removed(2));
    assert_eq!(ask(&rig, &dear).await, "hit");
    assert_eq!(purge("?all").await, removed(1));
    assert_eq!(ask(&rig, &dear).await, "stored");
    for query in [
        "",
        "?",
        "?all=1",
        "?id=",
        "?id=nonsense",
        "?model=unknown",
        "?other",
    ] {
        assert_eq!(purge(query).await.0, 400, "{query}");
    }
    assert_eq!(
        rig.metric("tollgate_cache_removed_total{reason=\"purged\"}")
            .await,
        4
    );
    assert_eq!(rig.metric("tollgate_cache_entries").await, 1);
    rig.finish().await;
}

#[tokio::test]
async fn distinct_requests_stay_within_the_cache_size() {
    const BYTES: i64 = 1 << 20;
    let rig = rig(&format!(
        "cache.max_bytes = {BYTES}\ncache.max_entry_bytes = 32768"
    ))
    .await;
    rig.provider.script(Script {
        words: Some(500),
        ..Script::default()
    });
    rig.grant(rig.account, 1_000_000_000).await;
    let mut most = 0;
    for number in 0..600 {
        let mut body = question(&format!("question {number}"));
        body["max_tokens"] = 500.into();
        body["stream"] = (number % 3 == 0).into();
        assert_eq!(ask(&rig, &body).await, "stored");
        if number % 100 == 99 {
            // The streamed form of a stored answer counts too.
            body["stream"] = true.into();
            ask(&rig, &body).await;
            most = most.max(rig.metric("tollgate_cache_bytes").await);
        }
    }
    assert!((BYTES / 4..=BYTES).contains(&most), "{most} bytes");
    assert!(
        rig.metric("tollgate_cache_removed_total{reason=\"evicted\"}")
            .await
            > 0
    );
    rig.finish().await;
}
