//! Providers that rest, and what brings them back.

use super::house::{House, becomes, metric, state};
use super::*;

/// Sends a chat that somebody answers.
async fn serve(rig: &Rig) {
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.told(&answer.json());
}

#[tokio::test]
async fn a_provider_that_fails_rests() {
    let (rig, _others) = House {
        first: "health = { failures = 2, cooldown_secs = 3600 }",
        others: &[""],
        ..House::default()
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
    assert_eq!(rig.provider.call_count(), 2, "while it rests");
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_that_has_rested_is_tried_by_one_request() {
    let (rig, others) = House {
        first: "health = { failures = 2, cooldown_secs = 1, trial_requests = 1 }",
        others: &[""],
        ..House::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(500).times(2));
    for _ in 0..2 {
        serve(&rig).await;
    }
    // One request tries it; the others do not wait for that.
    becomes(&rig, 0, true, "half_open").await;
    rig.provider.script(Script::hold_head("gate").once());
    let client = rig.client();
    let tries = tokio::spawn(async move { client.post(CHAT, &chat(false)).await });
    rig.provider.gate("gate").reached_by(1).await;
    let before = others[0].call_count();
    for _ in 0..3 {
        serve(&rig).await;
    }
    assert_eq!(rig.provider.call_count(), 3, "one tries");
    assert_eq!(others[0].call_count(), before + 3);
    rig.provider.gate("gate").open();
    rig.told(&tries.await.expect("no panic").json());
    assert_eq!(state(&rig, 0, true).await, "working");
    serve(&rig).await;
    assert_eq!(rig.provider.call_count(), 4, "it serves again");

    // A try that fails begins the rest anew, and costs the client nothing but another attempt.
    rig.provider.script(Script::status(500).times(3));
    for _ in 0..2 {
        serve(&rig).await;
    }
    becomes(&rig, 0, true, "half_open").await;
    serve(&rig).await;
    assert_eq!(rig.provider.call_count(), 7);
    // It rests, or has rested already and is to be tried by one.
    assert_ne!(state(&rig, 0, true).await, "working");
    rig.finish().await;
}

#[tokio::test]
async fn a_try_that_the_client_leaves_is_nobodys_fault_and_another_may_try() {
    let (rig, _others) = House {
        first: "health = { failures = 1, cooldown_secs = 1, trial_requests = 1 }",
        others: &[""],
        ..House::default()
    }
    .open()
    .await;
    rig.provider.script(Script::status(500).once());
    let answer = rig.client().post(CHAT, &chat(false)).await;
    rig.told(&answer.json());
    becomes(&rig, 0, true, "half_open").await;
    rig.provider.script(Script::hold_head("gate").once());
    let mut raw = rig.raw().await;
    raw.post(CHAT, &rig.key, &chat(false).to_string()).await;
    rig.provider.gate("gate").reached_by(1).await;
    raw.reset();
    rig.provider.calls_when_ended().await;
    rig.quiet().await;
    assert_eq!(state(&rig, 0, true).await, "half_open");
    let answer = rig.client().post(CHAT, &chat(false)).await;
    rig.told(&answer.json());
    assert_eq!(rig.provider.call_count(), 3, "the next one tries");
    assert_eq!(state(&rig, 0, true).await, "working");
    rig.finish().await;
}

#[tokio::test]
async fn the_only_provider_that_refused_connections_is_tried_by_as_many_requests_as_the_settings_say()
 {
    //   settings                                       requests that try it
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
        let seen = look(&rig.client(), false).await;
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
        for tried in tries {
            rig.told(&tried.await.expect("no panic").json());
        }
        assert_eq!(state(&rig, 0, false).await, "working");
        let after = rig.finish().await;
        assert_eq!(after.each("fault")[1..3], ["overloaded", "overloaded"]);
    }
}

#[tokio::test]
async fn a_probe_finds_a_dead_provider_before_a_client_does_and_brings_it_back() {
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
    becomes(&rig, 0, false, "resting").await;
    assert_eq!(metric(&rig, "tollgate_provider_state", "stand-in").await, 2);
    let ready = rig.look_at("/ready").await;
    assert_eq!(ready.status, 200, "clients may come all the same");
    assert!(ready.text().contains("`stand-in`"), "{}", ready.text());
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(list["data"], json!([]), "what cannot be had is not listed");
    rig.provider.listen_again().await;
    becomes(&rig, 0, false, "working").await;
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(2));
    let answer = rig.client().post(CHAT, &chat(false)).await;
    rig.told(&answer.json());
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_is_left_alone_for_as_long_as_it_asks() {
    for status in [429, 503] {
        //   how long it asks for, and how many requests come before that is over
        for (secs, before) in [("3600", 4), ("1", 1)] {
            let (rig, others) = House {
                others: &[""],
                ..House::default()
            }
            .open()
            .await;
            let busy = Script {
                retry_after: Some(secs.to_owned()),
                ..Script::status(status)
            };
            rig.provider.script(busy.once());
            for _ in 0..before {
                serve(&rig).await;
            }
            assert_eq!(rig.provider.call_count(), 1, "{status}, {secs}");
            assert_eq!(others[0].call_count(), before);
            if secs == "1" {
                tollgate_testing::within("its time", async {
                    let mut often = tokio::time::interval(std::time::Duration::from_millis(20));
                    while rig.look_at("/providers").await.json()[0]["models"][0]["closed_ms"] != 0 {
                        often.tick().await;
                    }
                })
                .await;
                serve(&rig).await;
                assert_eq!(rig.provider.call_count(), 2, "{status}: its time is over");
            }
            rig.finish().await;
        }
    }
}

#[tokio::test]
async fn an_answer_that_breaks_off_counts_as_a_failure() {
    let (rig, others) = House {
        first: "health = { failures = 2 }",
        others: &[""],
        ..House::default()
    }
    .open()
    .await;
    for _ in 0..2 {
        rig.provider
            .script(Script::cut_after(5, Leave::Close).once());
        let seen = look(&rig.client(), true).await;
        let broken = Broken {
            words: 4,
            code: "upstream_error",
        };
        assert_eq!(seen, Ok(broken));
        rig.quiet().await;
        rig.charged(counted(4));
    }
    assert_eq!(state(&rig, 0, true).await, "resting");
    assert_eq!(others[0].call_count(), 0);
    rig.finish().await;
}
