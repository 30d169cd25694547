//! Several gateways that share limits through one Redis server.

use tollgate_testing::{Client, Redis, within};

use crate::rig::Rig;

/// Waits until each gateway reports this value.
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
    // By themselves they admit 90. On a busy machine calls may take too long, and then the shares decide: 30 more at most.
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
