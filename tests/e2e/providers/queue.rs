//! Concurrency limits of providers, and the queues before the limits.

use tollgate_testing::{Answer, Client};

use super::fixture::{ProviderFixture, metric};
use super::*;

/// One concurrent call, and a queue of two.
const NARROW: &str = "concurrency_max = 1\nqueue_max = 2\nqueue_wait_secs = 60";

/// Sends a chat, identified by the first word.
fn post(client: Client, word: &str) -> tokio::task::JoinHandle<Answer> {
    let mut body = chat(false);
    body["messages"][0]["content"] = word.into();
    tokio::spawn(async move { client.post(CHAT, &body).await })
}

async fn wait_for_queue(rig: &Rig, count: u64) {
    tollgate_testing::within("the queue", async {
        let mut often = tokio::time::interval(std::time::Duration::from_millis(5));
        while metric(rig, "tollgate_provider_queue", "stand-in").await != count {
            often.tick().await;
        }
    })
    .await;
}

#[tokio::test]
async fn the_queue_is_first_come_first_served_and_a_full_one_is_503_with_retry_after() {
    // The limit is common to the workers.
    let rig = Rig::with(&format!("[server]\nworkers = 2\n[[provider]]\n{NARROW}")).await;
    rig.provider.script(Script::hold_head("gate"));
    let gate = rig.provider.gate("gate");
    let mut clients = Vec::new();
    for (before, word) in ["one", "two", "three"].into_iter().enumerate() {
        clients.push(post(rig.client(), word));
        if before == 0 {
            gate.reached_by(1).await;
        }
        wait_for_queue(&rig, before as u64).await;
    }
    for (protocol, client) in rig.both() {
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 503, "{protocol}");
        assert_eq!(answer.json()["error"]["code"], "overloaded");
        assert!(answer.header("retry-after").is_some());
    }
    assert_eq!(metric(&rig, "tollgate_provider_calls", "stand-in").await, 1);
    for calls in 1..=3 {
        gate.reached_by(calls).await;
        assert_eq!(rig.provider.call_count(), calls as u64, "one at a time");
        gate.release(1);
    }
    for client in clients {
        rig.record_charge(&client.await.expect("no panic").json());
    }
    let calls = rig.provider.calls();
    let words: Vec<Value> = calls
        .iter()
        .map(|call| call.json()["messages"][0]["content"].clone())
        .collect();
    assert_eq!(words, ["one", "two", "three"]);
    let name = "stand-in";
    assert_eq!(
        metric(&rig, "tollgate_provider_waited_total", name).await,
        2
    );
    assert_eq!(
        metric(&rig, "tollgate_provider_turned_away_total", name).await,
        2
    );
    rig.finish().await;
}

#[tokio::test]
async fn a_client_that_disconnects_in_the_queue_frees_its_position() {
    let rig = Rig::with(&format!("[[provider]]\n{NARROW}")).await;
    rig.provider.script(Script::hold_head("gate"));
    let gate = rig.provider.gate("gate");
    let first = post(rig.client(), "first");
    gate.reached_by(1).await;
    let mut disconnects = rig.raw().await;
    disconnects
        .post(CHAT, &rig.key, &chat(false).to_string())
        .await;
    wait_for_queue(&rig, 1).await;
    let last = post(rig.client(), "last");
    wait_for_queue(&rig, 2).await;
    disconnects.reset();
    wait_for_queue(&rig, 1).await;
    gate.open();
    for client in [first, last] {
        rig.record_charge(&client.await.expect("no panic").json());
    }
    assert_eq!(rig.provider.call_count(), 2);
    let after = rig.finish().await;
    assert_eq!(after.endings()[0], "gone_before");
}

#[tokio::test]
async fn a_queue_wait_that_times_out_is_503() {
    let narrow = NARROW.replace("60", "1");
    let rig = Rig::with(&format!("[[provider]]\n{narrow}")).await;
    rig.provider.script(Script::hold_head("gate").once());
    let first = post(rig.client(), "first");
    let gate = rig.provider.gate("gate");
    gate.reached_by(1).await;
    for stream in [false, true] {
        let answer = rig.client().post(CHAT, &chat(stream)).await;
        assert_eq!(answer.status, 503);
        assert_eq!(answer.json()["error"]["code"], "overloaded");
        assert_eq!(answer.header("retry-after"), Some("1"));
    }
    gate.open();
    rig.record_charge(&first.await.expect("no panic").json());
    assert_eq!(rig.provider.call_count(), 1);
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_with_a_free_permit_is_called_before_a_request_is_queued() {
    let (rig, others) = ProviderFixture {
        first: NARROW,
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::hold(3, "gate").once());
    let mut stream = rig.client().stream(CHAT, &chat(true)).await;
    stream.next_event().await.expect("it has started");
    let answer = post(rig.client(), "second").await.expect("no panic");
    rig.record_charge(&answer.json());
    assert_eq!((rig.provider.call_count(), others[0].call_count()), (1, 1));
    // The permit is free when the stream has ended.
    rig.provider.gate("gate").open();
    let (_, end) = stream.rest().await;
    assert_eq!(end, StreamEnd::Proper);
    rig.quiet().await;
    rig.add_expected_charge(PRICE_OF_A_CHAT);
    rig.provider.calls_when_ended().await;
    tollgate_testing::within("the permit", async {
        let mut often = tokio::time::interval(std::time::Duration::from_millis(5));
        while metric(&rig, "tollgate_provider_calls", "stand-in").await != 0 {
            often.tick().await;
        }
    })
    .await;
    let answer = post(rig.client(), "third").await.expect("no panic");
    rig.record_charge(&answer.json());
    assert_eq!((rig.provider.call_count(), others[0].call_count()), (2, 1));
    rig.finish().await;
}
