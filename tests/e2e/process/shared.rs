//! The shared server in the log, in reloads, and in the check of the settings.

use std::time::Duration;

use serde_json::Value;
use tollgate_clock::Clock;
use tollgate_testing::{Client, Redis, RedisLink, within};

use super::installation::{Installation, Serving, ended};
use crate::rig::{CHAT, chat};

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
    let changes: Vec<bool> = (changes(&output).iter())
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

/// Lines of the log about reachability, including the cause of the last change.
fn changes(output: &str) -> Vec<&str> {
    let lines = output.lines();
    let lines = lines.filter(|line| line.contains(UNREACHABLE) || line.contains(CONNECTED));
    lines.collect()
}

/// A new question, with reads of the two levels of the cache.
fn question(seed: i32) -> Value {
    let mut body = chat(false);
    body["seed"] = seed.into();
    body
}

/// A call waits 20 ms, and a read of the cache 15 ms, never for the answer. After three late calls no request waits.
#[tokio::test]
async fn a_server_that_answers_late_costs_a_few_requests_some_milliseconds_and_is_logged_once() {
    // Far above the time of a request without the server on a busy machine.
    const LATE: Duration = Duration::from_secs(3);
    let redis = Redis::start();
    let link = RedisLink::start(&redis);
    let settings = format!("[shared]\nurl = '{}'\n[cache]\nenabled = true", link.url());
    let installation = Installation::new(&settings).await;
    let mut serving = installation.serve().await;
    is_reachable(&serving, 1).await;
    let client: Client = serving.client(&installation);
    let clock = Clock::system();
    let asked = async |seed: i32| {
        let began = clock.elapsed();
        let answer = client.post(CHAT, &question(seed)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        clock.elapsed() - began
    };
    for round in 1..=2 {
        asked(round).await;
        let calls = async |result: &str| {
            let name = format!("tollgate_shared_calls_total{{result=\"{result}\"}}");
            serving.metric(&name).await
        };
        // Before the delay: a heartbeat counts among the late calls.
        let late = calls("timeout").await;
        link.delay(LATE);
        let answered = calls("ok").await;
        let mut waits = Vec::new();
        while serving.metric("tollgate_shared_reachable").await == 1 {
            waits.push(asked(100 * round + waits.len() as i32).await);
        }
        // On a loaded machine, calls before the delay were late too, and count among the three calls.
        let more = calls("timeout").await - late;
        assert!(more >= 1, "no call was late");
        // The calls of a begun request, and a heartbeat.
        assert!(more <= 8, "{more} calls waited");
        let written = answered + 2 + waits.len() as u64;
        for seed in 0..20 {
            waits.push(asked(1000 * round + seed).await);
        }
        // No call waited for an answer, except stores of the provider's answers, behind the path of requests.
        assert!(calls("ok").await <= written, "a call was answered");
        let fastest = waits.iter().min().expect("requests");
        assert!(*fastest < LATE, "{waits:?}");
        link.delay(Duration::ZERO);
        is_reachable(&serving, 1).await;
    }
    serving.process.signal("TERM");
    assert_eq!(ended(&mut serving.process).await.code(), Some(0));
    let output = serving.process.output();
    let changes = changes(&output);
    // Lines alternate: each change is logged once. A busy machine has more than the two changes of the test.
    let is_connected = |line: &str| line.contains(CONNECTED);
    let alternate = |pair: &[&str]| is_connected(pair[0]) != is_connected(pair[1]);
    assert!(changes.windows(2).all(alternate), "{output}");
    let (connected, unreachable): (Vec<&str>, Vec<&str>) =
        changes.iter().copied().partition(|line| is_connected(line));
    assert!(connected.len() >= 3 && unreachable.len() >= 2, "{output}");
    let late = |line: &&str| line.contains("no answer within");
    assert!(unreachable.iter().all(late), "{output}");
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
