//! Hedged requests: a second attempt beside a slow attempt.

use super::fixture::{ProviderFixture, metric};
use super::*;

const SOON: &str = "[upstream]\nhedge_after_ms = 50";

#[tokio::test]
async fn the_faster_of_two_serves_and_the_slower_is_cancelled() {
    for http2 in [false, true] {
        let own = format!("http2 = {http2}");
        let (rig, others) = ProviderFixture {
            first: &own,
            others: &[&own],
            more: SOON,
            ..ProviderFixture::default()
        }
        .open()
        .await;
        for stream in [false, true] {
            let what = format!("HTTP/2 {http2}, stream {stream}");
            // The second attempt answers.
            rig.provider.script(Script::hold_head("never").once());
            let seen = observe(&rig.client(), stream).await;
            assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
            rig.quiet().await;
            rig.add_expected_charge(PRICE_OF_A_CHAT);
            let calls = rig.provider.calls_when_ended().await;
            let ended = calls.last().expect("a call").ended;
            assert_eq!(ended, Some(Ended::PeerGone), "{what}: cancelled");
            // The first attempt answers after all.
            rig.provider.script(Script::hold_head("gate").once());
            others[0].script(Script::hold_head("never").once());
            let client = rig.client();
            let observed = tokio::spawn(async move { observe(&client, stream).await });
            others[0]
                .gate("never")
                .reached_by(1 + usize::from(stream))
                .await;
            rig.provider.gate("gate").release(1);
            let seen = observed.await.expect("no panic");
            assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
            rig.quiet().await;
            rig.add_expected_charge(PRICE_OF_A_CHAT);
            let calls = others[0].calls_when_ended().await;
            let ended = calls.last().expect("a call").ended;
            assert_eq!(ended, Some(Ended::PeerGone), "{what}: cancelled");
        }
        assert_eq!(
            metric(&rig, "tollgate_hedges_won_total", "other-1").await,
            2
        );
        assert_eq!(
            metric(&rig, "tollgate_hedges_lost_total", "other-1").await,
            2
        );
        let after = rig.finish().await;
        let served = ["other-1", "stand-in", "other-1", "stand-in"];
        assert_eq!(after.each("provider"), served);
        assert!(after.log.iter().all(|line| line["upstream_calls"] == 2));
        assert_eq!(after.report.usage, 4, "one charge each");
    }
}

#[tokio::test]
async fn a_call_and_its_hedge_that_both_fail_are_one_failure_and_a_third_provider_may_serve() {
    let (rig, others) = ProviderFixture {
        others: &["", ""],
        weights: Some(&[1, 0, 0]),
        more: SOON,
        ..ProviderFixture::default()
    }
    .open()
    .await;
    // The second attempt fails during the silence of the first attempt. Next the first attempt fails, and a further provider is called.
    rig.provider.script(
        Script {
            hold_head: Some("gate".to_owned()),
            ..Script::status(500)
        }
        .once(),
    );
    others[0].script(Script::status(503).once());
    others[1].script(Script::status(503).once());
    let client = rig.client();
    let observed = tokio::spawn(async move { observe(&client, false).await });
    rig.provider.gate("gate").reached_by(1).await;
    tollgate_testing::within("the second attempt", async {
        let mut often = tokio::time::interval(std::time::Duration::from_millis(5));
        while others[0].call_count() + others[1].call_count() == 0 {
            often.tick().await;
        }
    })
    .await;
    rig.provider.gate("gate").open();
    let seen = observed.await.expect("no panic");
    assert_eq!(seen, Ok(Error(502, "upstream_error")));
    assert_eq!(rig.provider.call_count(), 1);
    assert_eq!((others[0].call_count(), others[1].call_count()), (1, 1));
    let after = rig.finish().await;
    assert_eq!(after.log[0]["upstream_calls"], 3);
}

#[tokio::test]
async fn no_hedge_is_sent_unless_configured_or_without_budget() {
    for more in [
        "",
        "[upstream]\nhedge_after_ms = 1\nbudget = { percent = 0, per_sec = 0, burst = 1 }",
    ] {
        let (rig, others) = ProviderFixture {
            others: &[""],
            more,
            ..ProviderFixture::default()
        }
        .open()
        .await;
        if !more.is_empty() {
            // The request spends the budget.
            rig.provider.script(Script::hold_head("never").once());
            let answer = rig.client().post(CHAT, &chat(false)).await;
            rig.record_charge(&answer.json());
            others[0].forget_calls();
        }
        rig.provider.script(Script::hold_head("gate").once());
        let client = rig.client();
        let observed = tokio::spawn(async move { observe(&client, false).await });
        rig.provider.gate("gate").reached_by(1).await;
        if !more.is_empty() {
            tollgate_testing::within("the refusal by the budget", async {
                let mut often = tokio::time::interval(std::time::Duration::from_millis(5));
                let name = "tollgate_upstream_retries_refused_total";
                while metric(&rig, name, "stand-in").await == 0 {
                    often.tick().await;
                }
            })
            .await;
        }
        rig.provider.gate("gate").open();
        assert_eq!(observed.await.expect("no panic"), Ok(Answer { words: 16 }));
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        assert_eq!(others[0].call_count(), 0, "{more}");
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_hedge_counts_as_an_attempt() {
    for (attempts, served) in [(1, "stand-in"), (2, "other-1")] {
        let more = format!("[upstream]\nhedge_after_ms = 1\nattempts_max = {attempts}");
        let (rig, others) = ProviderFixture {
            others: &[""],
            weights: Some(&[1, 0]),
            more: &more,
            ..ProviderFixture::default()
        }
        .open()
        .await;
        // Without a second attempt, the first attempt answers long after the time of a hedge.
        rig.provider.script(match attempts {
            1 => Script {
                delay_head_ms: 200,
                ..Script::default()
            },
            _ => Script::hold_head("never"),
        });
        assert_eq!(
            observe(&rig.client(), false).await,
            Ok(Answer { words: 16 })
        );
        rig.quiet().await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        assert_eq!(others[0].call_count(), attempts - 1);
        let after = rig.finish().await;
        assert_eq!(after.each("provider"), [served]);
    }
}
