//! Circuits of providers: openings, trial requests, and probes.

use super::fixture::{ProviderFixture, metric, state, wait_for_state};
use super::*;

/// Sends a chat and expects an answer.
async fn serve(rig: &Rig) {
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
}

#[tokio::test]
async fn a_provider_that_fails_has_its_circuit_opened() {
    let (rig, _others) = ProviderFixture {
        first: "health = { failures = 2, cooldown_secs = 3600 }",
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(500).times(2));
    for _ in 0..2 {
        serve(&rig).await;
    }
    assert_eq!(state(&rig, 0, true).await, "resting");
    assert_eq!(state(&rig, 0, false).await, "working", "only this model");
    serve(&rig).await;
    assert_eq!(rig.provider.call_count(), 2, "while its circuit is open");
    rig.finish().await;
}

#[tokio::test]
async fn a_half_open_circuit_admits_one_trial_request() {
    let (rig, others) = ProviderFixture {
        first: "health = { failures = 2, cooldown_secs = 1, trial_requests = 1 }",
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(500).times(2));
    for _ in 0..2 {
        serve(&rig).await;
    }
    // One request is a trial; the remaining requests do not wait for the trial.
    wait_for_state(&rig, 0, true, "half_open").await;
    rig.provider.script(Script::hold_head("gate").once());
    let client = rig.client();
    let trial = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    rig.provider.gate("gate").reached_by(1).await;
    let before = others[0].call_count();
    for _ in 0..3 {
        serve(&rig).await;
    }
    assert_eq!(rig.provider.call_count(), 3, "one trial request");
    assert_eq!(others[0].call_count(), before + 3);
    rig.provider.gate("gate").open();
    rig.record_charge(&trial.await.expect("no panic").json());
    assert_eq!(state(&rig, 0, true).await, "working");
    serve(&rig).await;
    assert_eq!(rig.provider.call_count(), 4, "it serves again");

    // A failed trial request starts the cooldown again, and costs the client another attempt.
    rig.provider.script(Script::status(500).times(3));
    for _ in 0..2 {
        serve(&rig).await;
    }
    wait_for_state(&rig, 0, true, "half_open").await;
    serve(&rig).await;
    assert_eq!(rig.provider.call_count(), 7);
    // The provider's circuit is open, or half-open already.
    assert_ne!(state(&rig, 0, true).await, "working");
    rig.finish().await;
}

#[tokio::test]
async fn a_trial_request_whose_client_disconnects_counts_for_nothing_and_admits_another() {
    let (rig, _others) = ProviderFixture {
        first: "health = { failures = 1, cooldown_secs = 1, trial_requests = 1 }",
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(500).once());
    let answer = rig.client().post(CHAT, &chat(false)).await;
    rig.record_charge(&answer.json());
    wait_for_state(&rig, 0, true, "half_open").await;
    rig.provider.script(Script::hold_head("gate").once());
    let mut raw = rig.raw().await;
    raw.post(CHAT, &rig.key, &chat(false).to_string()).await;
    rig.provider.gate("gate").reached_by(1).await;
    raw.reset();
    rig.provider.calls_when_ended().await;
    rig.quiet().await;
    assert_eq!(state(&rig, 0, true).await, "half_open");
    let answer = rig.client().post(CHAT, &chat(false)).await;
    rig.record_charge(&answer.json());
    assert_eq!(rig.provider.call_count(), 3, "the next one is a trial");
    assert_eq!(state(&rig, 0, true).await, "working");
    rig.finish().await;
}

#[tokio::test]
async fn the_only_provider_that_refused_connections_gets_as_many_trial_requests_as_configured() {
    //   settings                                       trial requests
    for (more, trials) in [
        ("", 4),
        ("trial_requests = 1", 1),
        ("trial_requests = 6", 6),
    ] {
        let comma = if more.is_empty() { "" } else { ", " };
        let rig = Rig::with(&format!(
            "[[provider]]\nhealth = {{ failures = 1, cooldown_secs = 3600{comma}{more} }}"
        ))
        .await;
        rig.provider.stop_listening().await;
        let seen = observe(&rig.client(), false).await;
        assert_eq!(seen, Ok(Error(502, "upstream_unreachable")));
        assert_eq!(state(&rig, 0, false).await, "resting");
        rig.provider.listen_again().await;
        rig.provider.script(Script::hold_head("gate"));
        let tries: Vec<_> = (0..trials)
            .map(|_| {
                let client = rig.client();
                tokio::spawn(async move { client.post(CHAT, &chat(false)).await })
            })
            .collect();
        rig.provider.gate("gate").reached_by(trials).await;
        for (protocol, client) in rig.both() {
            let answer = client.post(CHAT, &chat(true)).await;
            assert_eq!(answer.status, 503, "{protocol}");
            assert_eq!(answer.json()["error"]["code"], "overloaded");
            let wait = answer.header("retry-after").expect("a wait");
            assert!(
                (3000..=3600).contains(&wait.parse().expect("seconds")),
                "{wait}"
            );
        }
        assert_eq!(rig.provider.call_count(), trials as u64, "{more}");
        rig.provider.gate("gate").open();
        for trial in tries {
            rig.record_charge(&trial.await.expect("no panic").json());
        }
        assert_eq!(state(&rig, 0, false).await, "working");
        let after = rig.finish().await;
        assert_eq!(after.each("fault")[1..3], ["overloaded", "overloaded"]);
    }
}

#[tokio::test]
async fn probes_open_and_close_the_circuit_of_a_provider() {
    let rig = Rig::with(
        "[[provider]]\nhealth = { failures = 1, cooldown_secs = 3600, probe_path = \"/models\", probe_secs = 1 }",
    )
    .await;
    let calls = rig
        .provider
        .calls_when("a probe", |calls| !calls.is_empty())
        .await;
    assert_eq!(calls[0].method, "GET");
    assert_eq!(calls[0].target, "/v1/models");
    assert!(calls[0].header("authorization").is_some());
    rig.provider.stop_listening().await;
    rig.provider.hang_up_idle();
    wait_for_state(&rig, 0, false, "resting").await;
    assert_eq!(metric(&rig, "tollgate_provider_state", "stand-in").await, 2);
    let ready = rig.admin_get("/ready").await;
    assert_eq!(ready.status, 200, "the gateway still serves");
    assert!(ready.text().contains("`stand-in`"), "{}", ready.text());
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(list["data"], json!([]), "unavailable models are not listed");
    rig.provider.listen_again().await;
    wait_for_state(&rig, 0, false, "working").await;
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(2));
    let answer = rig.client().post(CHAT, &chat(false)).await;
    rig.record_charge(&answer.json());
    rig.finish().await;
}

#[tokio::test]
async fn retry_after_of_a_provider_is_respected() {
    for (status, in_body) in [(429, false), (429, true), (503, false)] {
        // Retry-After in seconds, and the requests before the end of the time
        for (secs, before) in [("3600", 4), ("1", 1)] {
            let (rig, others) = ProviderFixture {
                others: &[""],
                ..ProviderFixture::default()
            }
            .open()
            .await;
            // The form of Google (`google.rpc.RetryInfo`).
            let body = format!(
                r#"[{{"error":{{"message":"quota","details":[{{"retryDelay":"{secs}s"}}]}}}}]"#
            );
            let busy = Script {
                retry_after: (!in_body).then(|| secs.to_owned()),
                failure: in_body.then_some(Failure::Text(body)),
                ..Script::status(status)
            };
            rig.provider.script(busy.once());
            for _ in 0..before {
                serve(&rig).await;
            }
            assert_eq!(rig.provider.call_count(), 1, "{status}, {secs}");
            assert_eq!(others[0].call_count(), before);
            if secs == "1" {
                tollgate_testing::within("Retry-After", async {
                    let mut often = tokio::time::interval(std::time::Duration::from_millis(20));
                    while rig.admin_get("/providers").await.json()[0]["models"][0]["closed_ms"] != 0
                    {
                        often.tick().await;
                    }
                })
                .await;
                serve(&rig).await;
                assert_eq!(
                    rig.provider.call_count(),
                    2,
                    "{status}: Retry-After has passed"
                );
            }
            rig.finish().await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_counts_as_a_failure() {
    let (rig, others) = ProviderFixture {
        first: "health = { failures = 2 }",
        others: &[""],
        ..ProviderFixture::default()
    }
    .open()
    .await;
    for _ in 0..2 {
        rig.provider
            .script(Script::cut_after(5, Leave::Close).once());
        let seen = observe(&rig.client(), true).await;
        let broken = Broken {
            words: 4,
            code: "upstream_error",
        };
        assert_eq!(seen, Ok(broken));
        rig.quiet().await;
        rig.add_expected_charge(counted(4));
    }
    assert_eq!(state(&rig, 0, true).await, "resting");
    assert_eq!(others[0].call_count(), 0);
    rig.finish().await;
}
