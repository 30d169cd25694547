//! Whole answers, in sequence.

use serde_json::{Value, json};
use tollgate_clock::Timestamp;
use tollgate_store::{PageCursor, RequestsQuery, UsageFlags};

use super::{metadata, rig, status};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

#[tokio::test]
async fn an_equal_request_is_a_free_cache_hit() {
    let rig = rig("").await;
    let first = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(status(&first), "stored");
    assert_eq!(rig.record_charge(&first.json()), PRICE_OF_A_CHAT);
    let left = rig.available(rig.account);
    for (what, client) in rig.clients() {
        let again = client.post(CHAT, &chat(false)).await;
        assert_eq!(
            (again.status, status(&again).as_str()),
            (200, "hit"),
            "{what}"
        );
        let (one, other) = (first.json(), again.json());
        assert_eq!(rig.record_charge(&other), 0, "{what}");
        assert_ne!(
            one["id"], other["id"],
            "{what}: a reply has an id of its own"
        );
        assert!(
            other["id"]
                .as_str()
                .is_some_and(|id| id.starts_with("chatcmpl-"))
        );
        for member in ["object", "model", "choices", "usage", "system_fingerprint"] {
            assert_eq!(one[member], other[member], "{what}: {member}");
        }
        let (one, other) = (metadata(&first), metadata(&again));
        assert_eq!(one["cache_entry_id"], other["cache_entry_id"], "{what}");
        assert!(
            one["cache_entry_id"]
                .as_str()
                .is_some_and(|id| id.starts_with("ce_"))
        );
        assert_eq!(
            one["credits_remaining"], other["credits_remaining"],
            "{what}"
        );
    }
    assert_eq!(rig.available(rig.account), left);
    assert_eq!(rig.provider.call_count(), 1);
    assert_priced_by_version(&rig).await;
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 5, "every request has its record");
    assert_eq!(after.each("cache"), ["stored", "hit", "hit", "hit", "hit"]);
    assert_eq!(after.endings()[1..], ["answered"; 4]);
}

/// Asserts for every answer from the cache: the saving is computed with the price version of the answer's record.
async fn assert_priced_by_version(rig: &Rig) {
    let store = &rig.books.store;
    tollgate_store::flush(&**store)
        .await
        .expect("free answers are durable too");
    let wanted = RequestsQuery {
        account: rig.account,
        from: Timestamp::MIN,
        to: Timestamp::MAX,
        model: None,
        credential: None,
        cursor: PageCursor::Newest,
        limit: 10,
    };
    let rows = store.requests(&wanted).expect("a read");
    for row in &rows {
        let flags = row.usage.flags;
        let is_hit = flags.contains(UsageFlags::CACHE_HIT);
        let is_by_version = flags.contains(UsageFlags::PRICE_OF_VERSION);
        assert_eq!(is_hit, is_by_version, "{row:?}");
        assert!(row.price_version.is_some(), "{row:?}");
    }
    assert_eq!(rows.len(), 5);
}

#[tokio::test]
async fn equivalent_requests_share_an_entry() {
    let rig = rig("").await;
    let first = rig.client().post(CHAT, &chat(false)).await;
    rig.record_charge(&first.json());
    let messages = chat(false)["messages"].to_string();
    let spelled = messages.replace("Halt!", r"\u0048alt!");
    for (body, expected) in [
        (format!(r#"{{"messages":{messages}}}"#), "hit"),
        (
            format!(r#" {{ "user":"u1", "model" : "small", "m\u0065ssages": {messages} }} "#),
            "hit",
        ),
        (
            format!(
                r#"{{"model":"small","messages":{messages},"metadata":{{"a":1}},"cache":true}}"#
            ),
            "hit",
        ),
        // A value counts as written.
        (format!(r#"{{"messages":{spelled}}}"#), "stored"),
    ] {
        let request = rig.client().request("POST", CHAT, body.clone().into());
        let answer = rig.client().send(request).await;
        assert_eq!(status(&answer), expected, "{body}");
        if expected == "stored" {
            rig.record_charge(&answer.json());
        }
    }
    for (body, why) in [
        (
            json!({"messages": [{"role": "user", "content": "Halt!"}], "seed": 1}),
            "another member",
        ),
        (
            json!({"messages": [{"role": "user", "content": "Halt!"}], "x_new": null}),
            "an unknown one",
        ),
        (
            json!({"messages": [{"role": "user", "content": "Halt! "}]}),
            "another text",
        ),
        (
            json!({"messages": [{"role": "user", "content": "Halt!"}], "model": "dear", "max_tokens": 99}),
            "another model",
        ),
    ] {
        let answer = rig.client().post(CHAT, &body).await;
        assert_eq!(status(&answer), "stored", "{why}");
        rig.record_charge(&answer.json());
    }
    assert_eq!(rig.provider.call_count(), 6);
    rig.finish().await;
}

#[tokio::test]
async fn an_uncached_request_neither_reads_nor_stores() {
    let rig = rig("").await;
    let mut without = chat(false);
    without["cache"] = false.into();
    for round in 0..2 {
        let answer = rig.client().post(CHAT, &without).await;
        assert_eq!(status(&answer), "bypass", "round {round}");
        assert_eq!(metadata(&answer)["cache_entry_id"], Value::Null);
        rig.record_charge(&answer.json());
    }
    let with = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(status(&with), "stored", "nothing was written before");
    rig.record_charge(&with.json());
    let answer = rig.client().post(CHAT, &without).await;
    assert_eq!(status(&answer), "bypass", "nothing is read");
    rig.record_charge(&answer.json());
    assert_eq!(rig.provider.call_count(), 4);
    rig.finish().await;
}

#[tokio::test]
async fn without_a_cache_every_request_calls_the_provider() {
    let rig = Rig::start().await;
    for _ in 0..2 {
        let answer = rig.client().post(CHAT, &chat(false)).await;
        assert_eq!(status(&answer), "bypass");
        rig.record_charge(&answer.json());
    }
    assert_eq!(rig.provider.call_count(), 2);
    rig.finish().await;
}
