//! Several gateways with limits shared through a Redis server.

use tollgate_testing::{Client, Redis, within};

use crate::rig::{CHAT, PRICE_OF_A_CHAT, Rig, Setup, chat};

/// Waits until every gateway reports `value`.
async fn reports(rigs: &[Rig], metric: &str, value: i64) {
    for rig in rigs {
        let polled = async { while rig.metric(metric).await != value {} };
        within(metric, polled).await;
    }
}

#[tokio::test]
async fn three_gateways_share_the_quota_of_a_client() {
    let mut redis = Redis::start();
    let settings = format!(
        "[shared]\nurl = '{}'\n[limits.classes.anonymous]\nquota = 30\nwindow_secs = 86400",
        redis.url()
    );
    let rigs = [
        Rig::with(&settings).await,
        Rig::with(&settings).await,
        Rig::with(&settings).await,
    ];
    reports(&rigs, "tollgate_shared_nodes", 3).await;
    let mut admitted = 0;
    for _ in 0..40 {
        for rig in &rigs {
            let answer = Client::new(&rig.url()).get("/robots.txt").await;
            assert!([200, 429].contains(&answer.status), "{}", answer.text());
            admitted += u32::from(answer.status == 200);
        }
    }
    // Without the shared server, the gateways admit 90. On a busy machine calls may take too long, and the shares decide: at most 30 more.
    assert!((20..=60).contains(&admitted), "{admitted}");
    redis.kill();
    reports(&rigs, "tollgate_shared_reachable", 0).await;
    for rig in &rigs {
        let answer = Client::new(&rig.url()).get("/robots.txt").await;
        assert!([200, 429].contains(&answer.status), "{}", answer.text());
    }
    for rig in rigs {
        rig.finish().await;
    }
}

#[tokio::test]
async fn an_answer_of_one_gateway_is_a_hit_on_another_and_charged_as_one() {
    let redis = Redis::start();
    let settings = format!(
        "[shared]\nurl = '{}'\n[cache]\nenabled = true\nhit_price_ppm = 100000",
        redis.url()
    );
    let start = async |provider_url| {
        let setup = Setup {
            root_secret: Some([7; 32]),
            provider_url,
            ..Setup::with(&settings)
        };
        setup.start().await
    };
    for stream in [false, true] {
        let one = start(None).await;
        // An answer is of a provider's address.
        let other = start(Some(one.provider.base_url())).await;
        let rigs = [one, other];
        reports(&rigs, "tollgate_shared_reachable", 1).await;
        let mut body = chat(stream);
        // An answer stored in the first round is a hit in the second round.
        let seeds =
            [1_000_000, 2_000_000, 3_000_000].map(|seed| seed + u64::from(stream) * 4_000_000);
        for (rig, seed) in rigs.iter().zip(seeds) {
            uses_second_level(rig, seed).await;
        }
        let [one, other] = &rigs;
        body["seed"] = seeds[2].into();
        let answer = one.client().stream(CHAT, &body).await.whole().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        one.add_expected_charge(PRICE_OF_A_CHAT);
        let calls = one.provider.call_count();
        let written = async { while writes(one).await + writes(other).await < calls as i64 {} };
        within("the write of the answer", written).await;
        let answer = other.client().stream(CHAT, &body).await.whole().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        assert!(
            answer.text().contains("\"cache_store_status\":\"hit\""),
            "{}",
            answer.text()
        );
        assert_eq!(one.provider.call_count(), calls);
        other.add_expected_charge(PRICE_OF_A_CHAT / 10);
        for rig in rigs {
            rig.finish().await;
        }
    }
}

/// Sends distinct requests until a lookup in the second level. The second level is used a moment after the connection.
async fn uses_second_level(rig: &Rig, seed: u64) {
    let missed = "tollgate_cache_shared_total{result=\"miss\"}";
    let sent = async {
        for seed in seed.. {
            let mut body = chat(false);
            body["seed"] = seed.into();
            rig.record_charge(&rig.client().post(CHAT, &body).await.json());
            if rig.metric(missed).await > 0 {
                break;
            }
        }
    };
    within("a lookup in the second level", sent).await;
}

/// The number of answers written to the second level, plus the number of answers dropped by an unready second level.
async fn writes(rig: &Rig) -> i64 {
    let stored = rig.metric("tollgate_cache_shared_total{result=\"stored\"}");
    let dropped = rig.metric("tollgate_cache_shared_total{result=\"dropped\"}");
    stored.await + dropped.await
}
