//! Circuit breakers: the accounts for which a failure opens a circuit, and the calls admitted by an open circuit.

use tokio::task::JoinHandle;
use tollgate_testing::{Answer as Response, Provider};

use super::fixture::{ProviderFixture, state, wait_for_state};
use super::*;
use crate::rig::TEXT;

/// Failures caused by a request, with path, streaming flag and script.
fn failures() -> [(&'static str, bool, Script); 6] {
    let too_dear = Script {
        status: Some(402),
        ..Script::failure(Failure::Text(
            r#"{"error":{"message":"can only afford 30104","code":402}}"#.to_owned(),
        ))
    };
    [
        ("an error", false, Script::status(500)),
        ("a refusal", false, Script::status(403)),
        ("too little money for it", false, too_dear),
        (
            "a cut before the head",
            false,
            Script::no_head(Leave::Reset),
        ),
        ("a time-out", false, Script::hold_head("never")),
        ("a cut answer", true, Script::cut_after(5, Leave::Close)),
    ]
}

const TIMEOUTS: &str = "timeouts = { first_byte_secs = 1, first_byte_whole_secs = 1 }";

/// A key of a new account.
async fn new_key(rig: &Rig) -> String {
    let account = rig.new_account("pro", CREDITS).await;
    rig.new_key(account, |_| {}).await.1
}

fn client(rig: &Rig, key: &str) -> Client {
    Client::new(&rig.url()).with_key(key)
}

/// A chat with the text `text`.
fn chat_with(text: &str, stream: bool) -> Value {
    json!({"model": "small", "stream": stream, "messages": [{"role": "user", "content": text}]})
}

/// Sends a chat and expects an answer.
async fn serve(rig: &Rig, key: &str, text: &str) {
    let response = client(rig, key).post(CHAT, &chat_with(text, false)).await;
    assert_eq!(response.status, 200, "{text}: {}", response.text());
    rig.record_charge(&response.json());
}

/// Sends a chat that fails at the rig's own provider by `script`. Another provider may answer the chat.
async fn fail(rig: &Rig, key: &str, text: &str, stream: bool, script: &Script) {
    // On a pooled connection, a cut before the head causes a second try on a new connection.
    rig.provider.script(script.clone());
    let calls = rig.provider.call_count();
    let mut response = client(rig, key)
        .stream(CHAT, &chat_with(text, stream))
        .await;
    let kind = response
        .header("content-type")
        .unwrap_or_default()
        .to_owned();
    if kind == "text/event-stream" {
        let (events, _) = response.rest().await;
        rig.quiet().await;
        rig.add_expected_charge(counted(words(&events) as i64));
    } else {
        let whole = response.whole().await;
        if whole.status == 200 {
            rig.record_charge(&whole.json());
        }
    }
    assert!(rig.provider.call_count() > calls, "{text}: it was called");
    rig.provider.clear_scripts();
}

/// Sends `count` chats at once, and expects an answer to every chat. The rig's own provider holds the chats until the last chat arrives.
async fn serve_at_once(rig: &Rig, key: &str, count: usize) {
    let held = hold(rig, key, count).await;
    rig.provider.gate("held").open();
    for response in held {
        let response = response.await.expect("no panic");
        assert_eq!(response.status, 200, "{}", response.text());
        rig.record_charge(&response.json());
    }
    rig.provider.clear_scripts();
}

/// Sends `count` chats at once and waits until the rig's own provider has every chat; the gate `held` holds the chats.
async fn hold(rig: &Rig, key: &str, count: usize) -> Vec<JoinHandle<Response>> {
    rig.provider.script(Script::hold_head("held"));
    let sent = (0..count).map(|number| {
        let (client, body) = (
            client(rig, key),
            chat_with(&format!("good {number}"), false),
        );
        tokio::spawn(async move { client.post(CHAT, &body).await })
    });
    let sent: Vec<_> = sent.collect();
    rig.provider.gate("held").reached_by(count).await;
    sent
}

/// The number of accounts with an open circuit for the first model of a provider, as shown to operators.
async fn accounts_open(rig: &Rig, provider: usize) -> Value {
    rig.admin_get("/providers").await.json()[provider]["models"][0]["accounts_open"].clone()
}

#[tokio::test]
async fn failures_of_one_account_do_not_affect_another() {
    for (what, stream, script) in failures() {
        let settings =
            format!("[[provider]]\nhealth = {{ failures = 2, cooldown_secs = 3600 }}\n{TIMEOUTS}");
        let rig = Rig::with(&settings).await;
        let other = new_key(&rig).await;
        serve(&rig, &other, "first").await;
        for _ in 0..3 {
            fail(&rig, &rig.key, "Halt!", stream, &script).await;
        }
        assert_eq!(state(&rig, 0, true).await, "working", "{what}");
        assert_eq!(state(&rig, 0, false).await, "working", "{what}");
        assert_eq!(accounts_open(&rig, 0).await, 1, "{what}");
        let metric = "tollgate_provider_account_circuits{provider=\"stand-in\"}";
        assert_eq!(rig.metric(metric).await, 1, "{what}");
        serve_at_once(&rig, &other, 8).await;
        // The last provider also answers the failing account, and the success closes the account's circuit.
        serve(&rig, &rig.key, "good").await;
        assert_eq!(accounts_open(&rig, 0).await, 0, "{what}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn an_account_whose_circuit_is_open_is_served_by_another_provider() {
    for (what, stream, script) in failures() {
        let first = format!("health = {{ failures = 2, cooldown_secs = 3600 }}\n{TIMEOUTS}");
        let (rig, others) = ProviderFixture {
            first: &first,
            others: &[""],
            ..ProviderFixture::default()
        }
        .open()
        .await;
        let other = new_key(&rig).await;
        serve(&rig, &other, "first").await;
        for _ in 0..2 {
            fail(&rig, &rig.key, "Halt!", stream, &script).await;
        }
        let calls = (rig.provider.call_count(), others[0].call_count());
        serve(&rig, &rig.key, "third").await;
        assert_eq!(rig.provider.call_count(), calls.0, "{what}: its own");
        assert_eq!(others[0].call_count(), calls.1 + 1, "{what}: its own");
        serve(&rig, &other, "second").await;
        assert_eq!(rig.provider.call_count(), calls.0 + 1, "{what}: another");
        rig.finish().await;
    }
}

#[tokio::test]
async fn failures_of_distinct_accounts_with_distinct_bodies_open_the_circuit_for_all() {
    //   who fails with which body, and whether that opens the circuit for all
    for (failed, opens) in [
        (&[(0, "a"), (1, "b"), (2, "c")][..], true),
        (&[(0, "a"), (0, "b"), (1, "c")][..], true),
        (&[(0, "a"), (1, "a"), (2, "a")][..], false),
        (&[(0, "a"), (0, "b"), (0, "c"), (1, "a")][..], false),
        (&[(0, "a"), (1, "b")][..], false),
    ] {
        let (rig, others) = ProviderFixture {
            first: "health = { failures = 3, cooldown_secs = 3600 }",
            others: &[""],
            ..ProviderFixture::default()
        }
        .open()
        .await;
        let mut keys = Vec::new();
        for _ in 0..3 {
            let key = new_key(&rig).await;
            serve(&rig, &key, "first").await;
            keys.push(key);
        }
        for (who, text) in failed {
            fail(&rig, &keys[*who], text, false, &Script::status(500)).await;
        }
        let expected = if opens { "resting" } else { "working" };
        assert_eq!(state(&rig, 0, true).await, expected, "{failed:?}");
        let calls = (rig.provider.call_count(), others[0].call_count());
        serve(&rig, &new_key(&rig).await, "good").await;
        let calls = (
            rig.provider.call_count() - calls.0,
            others[0].call_count() - calls.1,
        );
        assert_eq!(calls, if opens { (0, 1) } else { (1, 0) }, "{failed:?}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_success_in_between_resets_the_count() {
    let (rig, _others) = ProviderFixture {
        first: "health = { failures = 2, cooldown_secs = 3600 }",
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let other = new_key(&rig).await;
    serve(&rig, &other, "first").await;
    for round in 0..3 {
        let text = format!("one {round}");
        fail(&rig, &rig.key, &text, false, &Script::status(500)).await;
        serve(&rig, &rig.key, "good").await;
        let text = format!("other {round}");
        fail(&rig, &other, &text, false, &Script::status(500)).await;
        serve(&rig, &other, "good").await;
    }
    assert_eq!(state(&rig, 0, true).await, "working");
    assert_eq!(accounts_open(&rig, 0).await, 0);
    rig.finish().await;
}

#[tokio::test]
async fn a_refused_request_in_between_neither_counts_nor_resets_the_count() {
    for status in [400, 429] {
        let (rig, _others) = ProviderFixture {
            first: "health = { failures = 2, cooldown_secs = 3600 }",
            others: &[""],
            ..ProviderFixture::default()
        }
        .open()
        .await;
        fail(&rig, &rig.key, "a", false, &Script::status(500)).await;
        fail(&rig, &rig.key, "b", false, &Script::status(status)).await;
        assert_eq!(state(&rig, 0, true).await, "working", "{status}");
        tollgate_testing::within("the end of the limit", async {
            while rig.admin_get("/providers").await.json()[0]["models"][0]["closed_ms"] != 0 {
                tokio::task::yield_now().await;
            }
        })
        .await;
        fail(&rig, &rig.key, "c", false, &Script::status(500)).await;
        assert_eq!(state(&rig, 0, true).await, "resting", "{status}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn failures_that_a_request_can_cause_never_remove_the_last_provider_of_a_model() {
    for others in [
        &[][..],
        &["health = { failures = 2, cooldown_secs = 3600 }"],
    ] {
        let (rig, others) = ProviderFixture {
            first: "health = { failures = 2, cooldown_secs = 3600 }",
            others,
            ..ProviderFixture::default()
        }
        .open()
        .await;
        let (one, other) = (new_key(&rig).await, new_key(&rig).await);
        for (key, text) in [(&one, "a"), (&other, "b"), (&one, "c"), (&other, "d")] {
            rig.provider.script(Script::status(500).once());
            for provider in &others {
                provider.script(Script::status(500).once());
            }
            let response = client(&rig, key).post(CHAT, &chat_with(text, false)).await;
            assert_eq!(response.status, 502, "{}", response.text());
            clear(&rig, &others);
        }
        for provider in 0..=others.len() {
            assert_eq!(state(&rig, provider, true).await, "resting");
        }
        let list = client(&rig, &rig.key).get("/v1/models").await.json();
        assert_eq!(list["data"].as_array().map(Vec::len), Some(2), "{list}");
        serve_at_once(&rig, &rig.key, 8).await;
        assert_eq!(state(&rig, 0, true).await, "working", "it answered");
        rig.finish().await;
    }
}

fn clear(rig: &Rig, others: &[Provider]) {
    rig.provider.clear_scripts();
    for provider in others {
        provider.clear_scripts();
    }
}

#[tokio::test]
async fn a_provider_with_an_open_circuit_that_is_the_last_one_keeps_its_queue() {
    let rig = Rig::with(
        "[[provider]]\nconcurrency_max = 2\nhealth = { failures = 1, cooldown_secs = 3600 }",
    )
    .await;
    fail(&rig, &rig.key, "a", false, &Script::status(500)).await;
    assert_eq!(state(&rig, 0, true).await, "resting");
    let held = hold(&rig, &rig.key, 2).await;
    let (client, body) = (client(&rig, &rig.key), chat_with("waits", false));
    let waits = tokio::spawn(async move { client.post(CHAT, &body).await });
    tollgate_testing::within("a request in the queue", async {
        while rig
            .metric("tollgate_provider_queue{provider=\"stand-in\"}")
            .await
            != 1
        {
            tokio::task::yield_now().await;
        }
    })
    .await;
    rig.provider.gate("held").open();
    for response in held.into_iter().chain([waits]) {
        let response = response.await.expect("no panic");
        assert_eq!(response.status, 200, "{}", response.text());
        rig.record_charge(&response.json());
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_server_error_with_retry_after_does_not_remove_the_last_provider() {
    let rig = Rig::start().await;
    let other = new_key(&rig).await;
    let busy = Script {
        retry_after: Some("3600".to_owned()),
        ..Script::status(503)
    };
    fail(&rig, &rig.key, "a", false, &busy).await;
    serve_at_once(&rig, &other, 8).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_server_error_with_retry_after_applies_to_its_account() {
    let (rig, others) = ProviderFixture {
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let other = new_key(&rig).await;
    serve(&rig, &other, "first").await;
    let busy = Script {
        retry_after: Some("3600".to_owned()),
        ..Script::status(503)
    };
    fail(&rig, &rig.key, "a", false, &busy).await;
    let calls = (rig.provider.call_count(), others[0].call_count());
    serve(&rig, &rig.key, "b").await;
    assert_eq!(others[0].call_count(), calls.1 + 1, "its own");
    serve(&rig, &other, "c").await;
    assert_eq!(rig.provider.call_count(), calls.0 + 1, "another");
    rig.finish().await;
}

#[tokio::test]
async fn a_failed_probe_makes_the_failures_of_one_account_count_for_all() {
    let (rig, _others) = ProviderFixture {
        first: "health = { failures = 2, cooldown_secs = 3600, probe_path = \"/probed\", probe_secs = 3600 }",
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    // The stand-in does not have the probe's path.
    tollgate_testing::within("a failed probe", async {
        while rig.admin_get("/providers").await.json()[0]["probe_failed"] != true {
            tokio::task::yield_now().await;
        }
    })
    .await;
    let other = new_key(&rig).await;
    serve(&rig, &other, "first").await;
    for text in ["a", "a"] {
        fail(&rig, &rig.key, text, false, &Script::status(500)).await;
    }
    assert_eq!(state(&rig, 0, true).await, "resting");
    assert_eq!(state(&rig, 0, false).await, "working", "one failed probe");
    rig.finish().await;
}

#[tokio::test]
async fn failures_that_a_request_can_cause_do_not_open_a_circuit_at_once() {
    for status in [403, 404] {
        let (rig, _others) = ProviderFixture {
            others: &[""],
            ..ProviderFixture::default()
        }
        .open()
        .await;
        let other = new_key(&rig).await;
        serve(&rig, &other, "first").await;
        for text in ["a", "b"] {
            fail(&rig, &rig.key, text, false, &Script::status(status)).await;
        }
        assert_eq!(state(&rig, 0, true).await, "working", "{status}");
        assert_eq!(state(&rig, 0, false).await, "working", "{status}");
        assert_eq!(accounts_open(&rig, 0).await, 0, "{status}");
        fail(&rig, &rig.key, "c", false, &Script::status(status)).await;
        assert_eq!(accounts_open(&rig, 0).await, 1, "{status}");
        assert_eq!(state(&rig, 0, true).await, "working", "{status}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_text_that_goes_through_chat_counts_for_its_account() {
    let rig = Rig::with(
        "[[provider]]\nhealth = { failures = 2, cooldown_secs = 3600 }\n\
         [[model]]\nproviders = [{ provider = \"stand-in\", model = \"vendor/small-1\", api = [\"chat\"] }]",
    )
    .await;
    let other = new_key(&rig).await;
    let body = |text: &str| json!({"model": "small", "prompt": text});
    let response = client(&rig, &other).post(TEXT, &body("good")).await;
    rig.record_charge(&response.json());
    for text in ["a", "b"] {
        rig.provider.script(Script::status(500).once());
        let response = client(&rig, &rig.key).post(TEXT, &body(text)).await;
        assert_eq!(response.status, 502, "{}", response.text());
    }
    assert_eq!(state(&rig, 0, true).await, "working");
    assert_eq!(accounts_open(&rig, 0).await, 1);
    rig.finish().await;
}

#[tokio::test]
async fn a_half_open_circuit_admits_as_many_requests_as_configured() {
    //   settings                                     trial requests
    for (more, trials) in [
        ("trial_requests = 2", 2),
        ("trial_requests = 1", 1),
        ("", 4),
    ] {
        let comma = if more.is_empty() { "" } else { ", " };
        let first = format!("health = {{ failures = 2, cooldown_secs = 1{comma}{more} }}");
        let (rig, others) = ProviderFixture {
            first: &first,
            others: &[""],
            ..ProviderFixture::default()
        }
        .open()
        .await;
        // The only active account opens the circuit for every account.
        for text in ["a", "a"] {
            fail(&rig, &rig.key, text, false, &Script::status(500)).await;
        }
        wait_for_state(&rig, 0, true, "half_open").await;
        let other = new_key(&rig).await;
        let held = hold(&rig, &other, trials).await;
        let calls = (rig.provider.call_count(), others[0].call_count());
        for _ in 0..3 {
            serve(&rig, &other, "beside").await;
        }
        assert_eq!(rig.provider.call_count(), calls.0, "{more}");
        assert_eq!(others[0].call_count(), calls.1 + 3, "{more}");
        rig.provider.gate("held").open();
        for response in held {
            rig.record_charge(&response.await.expect("no panic").json());
        }
        assert_eq!(state(&rig, 0, true).await, "working", "{more}");
        rig.finish().await;
    }
}

/// Only one of two active accounts fails: the account's trial request does not open the circuit for the second account again.
#[tokio::test]
async fn a_trial_request_of_one_account_that_fails_does_not_open_the_circuit_again() {
    let (rig, _others) = ProviderFixture {
        first: "health = { failures = 2, cooldown_secs = 1, trial_requests = 1 }",
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    let (one, other) = (new_key(&rig).await, new_key(&rig).await);
    fail(&rig, &one, "a", false, &Script::status(500)).await;
    fail(&rig, &other, "b", false, &Script::status(500)).await;
    wait_for_state(&rig, 0, true, "half_open").await;
    fail(&rig, &one, "c", false, &Script::status(500)).await;
    assert_eq!(state(&rig, 0, true).await, "half_open");
    fail(&rig, &other, "d", false, &Script::status(500)).await;
    assert_ne!(state(&rig, 0, true).await, "working");
    wait_for_state(&rig, 0, true, "half_open").await;
    serve(&rig, &rig.key, "good").await;
    assert_eq!(state(&rig, 0, true).await, "working");
    rig.finish().await;
}
