//! Single flight: equal requests at once.

use tollgate_testing::provider::Leave;
use tollgate_testing::{Answer, Script};

use super::{metadata, rig, status};
use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, chat};

/// Waits until `count` requests wait for the answer to an equal request.
async fn waiting(rig: &Rig, count: i64) {
    tollgate_testing::within("requests that wait", async {
        while rig.metric("tollgate_cache_waiting").await != count {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

/// `count` equal requests by `count` tasks, plain and streamed, over HTTP/1.1 and HTTP/2.
fn spawn_requests(rig: &Rig, count: usize) -> Vec<tokio::task::JoinHandle<Answer>> {
    let clients: Vec<_> = (0..8)
        .map(|_| std::sync::Arc::new(rig.client().with_http2()))
        .collect();
    let send = |number: usize| {
        let body = chat(number.is_multiple_of(2));
        let shared = clients[number % clients.len()].clone();
        let own = (number % 4 == 3).then(|| rig.client());
        tokio::spawn(async move { own.as_ref().unwrap_or(&shared).post(CHAT, &body).await })
    };
    (0..count).map(send).collect()
}

/// Counts the responses by cache status.
async fn count(rig: &Rig, responses: Vec<tokio::task::JoinHandle<Answer>>) -> (usize, usize) {
    let (mut stored, mut hits) = (0, 0);
    for one in responses {
        let answer = one.await.expect("no panic");
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.add_expected_charge(crate::rig::micros(&metadata(&answer)["credits_used"]));
        match status(&answer).as_str() {
            "stored" => stored += 1,
            "hit" => hits += 1,
            other => panic!("{other}"),
        }
    }
    (stored, hits)
}

#[tokio::test]
async fn a_thousand_equal_requests_at_once_are_one_call() {
    let rig = rig("server = { workers = 2, h2_streams_max = 200 }
         limits.classes.pro = { quota = 1000000, window_secs = 60, concurrent = 1000 }")
    .await;
    rig.provider.script(Script::hold_head("all"));
    let responses = spawn_requests(&rig, 1000);
    let gate = rig.provider.gate("all");
    gate.reached_by(1).await;
    waiting(&rig, 999).await;
    gate.open();
    assert_eq!(count(&rig, responses).await, (1, 999));
    assert_eq!(rig.provider.call_count(), 1);
    assert_eq!(
        rig.metric("tollgate_cache_followers_total{outcome=\"followed\"}")
            .await,
        999
    );
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 1000, "who waited has a record too");
}

#[tokio::test]
async fn when_a_leader_fails_one_follower_takes_over_once() {
    let rig = rig("server = { workers = 2 }\nupstream = { attempts_max = 1 }").await;
    // The first two calls fail; the third call succeeds.
    rig.provider.script(
        Script {
            hold_head: Some("one".into()),
            ..Script::status(500)
        }
        .once(),
    );
    rig.provider.script(
        Script {
            hold_head: Some("two".into()),
            ..Script::no_head(Leave::Reset)
        }
        .once(),
    );
    rig.provider.script(Script::hold_head("three").once());
    let responses = spawn_requests(&rig, 30);
    for (at, gate) in ["one", "two", "three"].into_iter().enumerate() {
        let gate = rig.provider.gate(gate);
        gate.reached_by(1).await;
        waiting(&rig, 29 - at as i64).await;
        assert_eq!(rig.provider.call_count(), 1 + at as u64, "one at a time");
        gate.open();
    }
    let mut statuses = std::collections::BTreeMap::new();
    for one in responses {
        let answer = one.await.expect("no panic");
        *statuses.entry(answer.status).or_insert(0) += 1;
        if answer.status == 200 {
            rig.add_expected_charge(crate::rig::micros(&metadata(&answer)["credits_used"]));
        }
    }
    assert_eq!(
        statuses.into_iter().collect::<Vec<_>>(),
        [(200, 28), (502, 2)]
    );
    assert_eq!(rig.provider.call_count(), 3);
    rig.finish().await;
}

#[tokio::test]
async fn a_cut_stream_is_not_stored_and_a_follower_takes_over() {
    let rig = rig("").await;
    rig.provider.script(
        Script {
            hold_head: Some("cut".into()),
            ..Script::cut_after(5, Leave::Reset)
        }
        .once(),
    );
    let client = rig.client();
    let leader = tokio::spawn(async move { client.post(CHAT, &chat(true)).await });
    rig.provider.gate("cut").reached_by(1).await;
    let client = rig.client();
    let follower = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    waiting(&rig, 1).await;
    rig.provider.gate("cut").open();
    let cut = leader.await.expect("no panic");
    assert!(cut.text().contains("\"error\""), "{}", cut.text());
    let whole = follower.await.expect("no panic");
    assert_eq!(status(&whole), "stored");
    rig.record_charge(&whole.json());
    rig.quiet().await;
    // The relayed part of the cut answer is charged: three words, and the prompt.
    let spent = crate::rig::CREDITS - rig.available(rig.account);
    rig.add_expected_charge(spent - PRICE_OF_A_CHAT);
    assert_eq!(rig.provider.call_count(), 2);
    rig.finish().await;
}

#[tokio::test]
async fn a_disconnected_follower_does_not_become_the_leader() {
    let rig = rig("upstream = { attempts_max = 1 }").await;
    rig.provider.script(
        Script {
            hold_head: Some("one".into()),
            ..Script::status(500)
        }
        .once(),
    );
    let client = rig.client();
    let leader = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    rig.provider.gate("one").reached_by(1).await;
    // A client over HTTP/1.1 with a close, a client over HTTP/2 with a reset stream, and a client that stays.
    let mut raw = rig.raw().await;
    raw.post(CHAT, &rig.key, &chat(true).to_string()).await;
    waiting(&rig, 1).await;
    let client = rig.client().with_http2();
    let other = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    waiting(&rig, 2).await;
    let client = rig.client();
    let stays = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    waiting(&rig, 3).await;
    raw.reset();
    other.abort();
    waiting(&rig, 1).await;
    assert_eq!(rig.provider.call_count(), 1, "no follower was woken");
    rig.provider.gate("one").open();
    assert_eq!(leader.await.expect("no panic").status, 502);
    let answer = stays.await.expect("no panic");
    assert_eq!(status(&answer), "stored");
    rig.record_charge(&answer.json());
    assert_eq!(rig.provider.call_count(), 2);
    let after = rig.finish().await;
    let gone = after
        .endings()
        .into_iter()
        .filter(|ending| *ending == "gone_before");
    assert_eq!(gone.count(), 2);
}

#[tokio::test]
async fn a_complete_response_is_stored_after_its_client_disconnected() {
    let rig = rig("").await;
    rig.provider.script(Script::hold(4, "rest").once());
    let mut raw = rig.raw().await;
    raw.post(CHAT, &rig.key, &chat(true).to_string()).await;
    let head = raw.read_head().await;
    for _ in 0..2 {
        raw.next_event(&head).await.expect("an event");
    }
    rig.provider.gate("rest").reached_by(1).await;
    let client = rig.client();
    let follower = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    waiting(&rig, 1).await;
    raw.reset();
    rig.provider.gate("rest").open();
    let answer = follower.await.expect("no panic");
    assert_eq!(status(&answer), "hit");
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    assert_eq!(rig.provider.call_count(), 1);
    rig.finish().await;
}

#[tokio::test]
async fn an_uncached_request_is_neither_leader_nor_follower() {
    let rig = rig("").await;
    rig.provider.script(Script::hold_head("held").times(2));
    let mut without = chat(false);
    without["cache"] = false.into();
    let send = |body: serde_json::Value| {
        let client = rig.client();
        tokio::spawn(async move { client.post(CHAT, &body).await })
    };
    let bypassing = send(without.clone());
    rig.provider.gate("held").reached_by(1).await;
    let leader = send(chat(false));
    rig.provider.gate("held").reached_by(2).await;
    // A third request during the two requests is answered.
    let third = rig.client().post(CHAT, &without).await;
    assert_eq!(status(&third), "bypass");
    rig.record_charge(&third.json());
    rig.provider.gate("held").open();
    for (one, expected) in [(bypassing, "bypass"), (leader, "stored")] {
        let answer = one.await.expect("no panic");
        assert_eq!(status(&answer), expected);
        rig.record_charge(&answer.json());
    }
    assert_eq!(rig.provider.call_count(), 3);
    rig.finish().await;
}

#[tokio::test]
async fn a_follower_calls_the_provider_after_its_wait_limit() {
    let rig = rig("cache.wait_secs = 1").await;
    rig.provider.script(Script::hold_head("held").once());
    let client = rig.client();
    let leader = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    rig.provider.gate("held").reached_by(1).await;
    let impatient = rig.client().post(CHAT, &chat(true)).await;
    assert_eq!(status(&impatient), "stored");
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    rig.provider.gate("held").open();
    let answer = leader.await.expect("no panic");
    assert_eq!(status(&answer), "stored");
    rig.record_charge(&answer.json());
    assert_eq!(
        rig.metric("tollgate_cache_followers_total{outcome=\"gave_up\"}")
            .await,
        1
    );
    rig.finish().await;
}

#[tokio::test]
async fn an_answer_cut_by_the_leaders_balance_is_not_stored_and_a_follower_takes_over() {
    let rig = rig("").await;
    let poor = rig.new_account("pro", 45_000).await;
    let (_, key) = rig.new_key(poor, |_| {}).await;
    rig.provider.script(
        Script {
            words: Some(500),
            ..Script::hold_head("held")
        }
        .once(),
    );
    let client = tollgate_testing::Client::new(&rig.url()).with_key(&key);
    let capped = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    rig.provider.gate("held").reached_by(1).await;
    let client = rig.client();
    let full = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    waiting(&rig, 1).await;
    rig.provider.gate("held").open();
    let full = full.await.expect("no panic");
    assert_eq!(status(&full), "stored");
    rig.record_charge(&full.json());
    let capped = capped.await.expect("no panic");
    assert_eq!(status(&capped), "uncacheable");
    rig.record_charge(&capped.json());
    assert_eq!(rig.provider.call_count(), 2);
    rig.finish().await;
}
