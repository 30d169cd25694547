//! The shared server in the log, in reloads, and in the check of the settings.

use tollgate_testing::{Redis, within};

use super::installation::{Installation, Serving, ended};

const UNREACHABLE: &str = "shared server unreachable, each node uses its share of the limits";
const CONNECTED: &str = "connected to the shared server, limits are shared";

async fn is_reachable(serving: &Serving, value: u64) {
    let polled = async { while serving.metric("tollgate_shared_reachable").await != value {} };
    within("a change of reachability", polled).await;
}

#[tokio::test]
async fn each_change_of_reachability_is_one_line_of_the_log() {
    let mut redis = Redis::start();
    let settings = format!("[shared]\nurl = '{}'", redis.url());
    redis.kill();
    let installation = Installation::new(&settings).await;
    let mut serving = installation.serve().await;
    is_reachable(&serving, 0).await;
    let answer = serving.client(&installation).get("/v1/models").await;
    assert_eq!(answer.status, 200, "it serves without the server");
    for _ in 0..2 {
        redis.restart();
        is_reachable(&serving, 1).await;
        redis.kill();
        is_reachable(&serving, 0).await;
    }
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    let changes: Vec<bool> = output
        .lines()
        .filter(|line| line.contains(UNREACHABLE) || line.contains(CONNECTED))
        .map(|line| line.contains(CONNECTED))
        .collect();
    assert!(changes.len() >= 4, "{output}");
    assert!(
        changes.windows(2).all(|pair| pair[0] != pair[1]),
        "a line without a change:\n{output}"
    );
    let first = output.lines().find(|line| line.contains(UNREACHABLE));
    let first = first.expect("the first state");
    assert!(
        first.contains("cannot connect"),
        "without its cause: {first}"
    );
}

#[tokio::test]
async fn a_bad_url_is_refused_with_its_line_and_another_server_needs_a_restart() {
    let redis = Redis::start();
    let settings = format!("[shared]\nurl = '{}'", redis.url());
    let installation = Installation::new(&settings).await;
    let serving = installation.serve().await;
    let text = std::fs::read_to_string(&installation.config).expect("the settings");
    let run = async |from: &str, to: &str, words: &[&str]| {
        std::fs::write(&installation.config, text.replace(from, to)).expect("written");
        let mut process = installation.spawn(installation.command(words));
        assert_eq!(ended(&mut process).await.code(), Some(1), "{words:?}");
        process.output()
    };
    let refused = run("redis://", "http://", &["check"]).await;
    let line = 1 + text
        .lines()
        .position(|line| line.contains("redis://"))
        .expect("the URL");
    for words in [
        &*format!("tollgate.toml:{line}"),
        "shared.url",
        "does not start with `redis://` or `rediss://`; write it like `redis://10.0.0.5:6379`",
    ] {
        assert!(refused.contains(words), "no `{words}` in: {refused}");
    }
    let differs = run(
        "redis://127.0.0.1",
        "redis://localhost",
        &["settings", "diff"],
    )
    .await;
    assert!(
        differs.contains("shared.url: changed, needs `tollgate upgrade`"),
        "{differs}"
    );
    drop(serving);
}
