//! Limits of an owner: concurrent requests, tokens, spending caps of keys.

use serde_json::{Value, json};
use tollgate_money::{CapPeriod, Micros, SpendingCap};
use tollgate_testing::{Answer, Client, Ended, Script};

use crate::rig::{CHAT, IN, OUT, PRICE_OF_A_CHAT, Rig, TEXT, chat};

fn error(answer: &Answer) -> Value {
    answer.json()["error"].clone()
}

/// The key of a free account.
async fn free(rig: &Rig) -> String {
    let account = rig.new_account("free", 10_000_000).await;
    rig.new_key(account, |_| {}).await.1
}

/// Clients with `key` over HTTP/1.1 and HTTP/2.
fn clients(rig: &Rig, key: &str) -> [Client; 2] {
    let client = || Client::new(&rig.url()).with_key(key);
    [client(), client().with_http2()]
}

#[tokio::test]
async fn concurrent_requests_are_limited_by_class_and_streams_count_until_their_end() {
    let rig =
        Rig::with("[limits.classes.free]\nquota = 100\nwindow_secs = 60\nconcurrent = 2").await;
    let key = free(&rig).await;
    let [one, two] = clients(&rig, &key);
    rig.provider.script(Script::hold(5, "gate").times(2));
    let mut streams = Vec::new();
    for client in [&one, &two] {
        let mut stream = client.stream(CHAT, &chat(true)).await;
        stream.next_event().await.expect("the role");
        streams.push(stream);
    }
    rig.provider.gate("gate").reached_by(2).await;
    for client in [&one, &two] {
        for path in [CHAT, "/v1/models"] {
            let answer = match path {
                CHAT => client.post(CHAT, &chat(false)).await,
                path => client.get(path).await,
            };
            assert_eq!(answer.status, 429, "{path}");
            assert_eq!(error(&answer)["code"], "concurrency_exceeded");
            assert_eq!(error(&answer)["type"], "rate_limit_error");
            assert_eq!(
                answer.header("ratelimit-policy"),
                Some("\"requests\";q=100;w=60, \"concurrent\";q=2;qu=\"concurrent-requests\"")
            );
            assert_eq!(answer.header("ratelimit"), Some("\"concurrent\";r=0;t=1"));
            assert_eq!(answer.header("ratelimit-limit"), Some("2"));
            assert_eq!(answer.header("retry-after"), Some("1"));
        }
    }
    // The second account has separate permits.
    rig.record_charge(&rig.client().post(CHAT, &chat(false)).await.json());
    rig.provider.gate("gate").open();
    for mut stream in streams {
        let (events, _) = stream.rest().await;
        assert!(events.last().expect("events").is_done());
    }
    rig.add_expected_charge(2 * PRICE_OF_A_CHAT);
    // After the end of a response, the permit is free.
    for client in [&one, &two].repeat(10) {
        let answer = client.post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.record_charge(&answer.json());
    }
    rig.finish().await;
}

/// A request with sixteen prompts is sixteen calls of a chat-only provider, and was counted as a single call.
#[tokio::test]
async fn each_prompt_of_a_text_request_is_a_concurrent_request() {
    let rig =
        Rig::with("[limits.classes.free]\nquota = 100\nwindow_secs = 60\nconcurrent = 4").await;
    let key = free(&rig).await;
    let [one, two] = clients(&rig, &key);
    let texts = |prompts: &[&str]| json!({"model": "small", "prompt": prompts, "max_tokens": 1});
    rig.provider.script(Script::hold_head("gate").once());
    let held = tokio::spawn({
        let client = Client::new(&rig.url()).with_key(&key);
        let body = texts(&["a", "b", "c"]);
        async move { client.post(TEXT, &body).await }
    });
    rig.provider.gate("gate").reached_by(1).await;
    // One permit is left.
    for (prompts, status) in [(&["a", "b"][..], 429), (&["a"][..], 200)] {
        let answer = two.post(TEXT, &texts(prompts)).await;
        assert_eq!(answer.status, status, "{}", answer.text());
        match status {
            200 => rig.record_charge(&answer.json()),
            _ => {
                assert_eq!(error(&answer)["code"], "concurrency_exceeded");
                0
            }
        };
    }
    rig.provider.gate("gate").open();
    let answer = held.await.expect("no panic");
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    // Every permit is free again: a request with more prompts than the limit needs every permit.
    for prompts in [&["a", "b", "c", "d"][..], &["a", "b", "c", "d", "e"]] {
        let answer = one.post(TEXT, &texts(prompts)).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        rig.record_charge(&answer.json());
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_concurrency_permit_is_released_however_a_request_ends() {
    let rig = Rig::with("[limits.classes.free]\nquota = 100\nwindow_secs = 60\nconcurrent = 1\n[meter]\nafter_leaving = \"stop\"").await;
    let clients = clients(&rig, &free(&rig).await);
    for client in clients.iter().cycle().take(4) {
        // Refused by the provider, cut by the provider, and disconnected by the client.
        rig.provider.script(Script::status(500).once());
        assert_eq!(settled(client, false).await, 502);
        rig.provider
            .script(Script::cut_after(1, tollgate_testing::provider::Leave::Close).once());
        assert_eq!(settled(client, true).await, 200);
        rig.provider.script(Script::hold(1, "never").once());
        let stream = client.stream(CHAT, &chat(true)).await;
        drop(stream);
        let calls = rig.provider.calls_when_ended().await;
        assert_eq!(
            calls.last().and_then(|call| call.ended),
            Some(Ended::PeerGone)
        );
    }
    rig.finish().await;
}

/// Sends until a permit is free: a failed request releases its permit a moment after the client gets the failure.
async fn settled(client: &Client, stream: bool) -> u16 {
    let asked = async {
        loop {
            let answer = client.stream(CHAT, &chat(stream)).await.whole().await;
            if answer.status != 429 {
                return answer.status;
            }
        }
    };
    tollgate_testing::within("a place", asked).await
}

#[tokio::test]
async fn token_limits_reserve_the_maximum_and_count_the_usage() {
    let rig = Rig::with(
        "[limits.classes.free]\nquota = 1000\nwindow_secs = 3600\ntokens_per_window = 400",
    )
    .await;
    let key = free(&rig).await;
    let [one, two] = clients(&rig, &key);
    let mut body = chat(false);
    body["max_tokens"] = 100.into();
    // A request may use 74 and 100 tokens, and uses 1 and 16.
    rig.provider.script(Script::hold_head("gate").times(2));
    let under_way: Vec<_> = clients(&rig, &key)
        .into_iter()
        .map(|client| {
            let body = body.clone();
            tokio::spawn(async move { client.post(CHAT, &body).await })
        })
        .collect();
    rig.provider.gate("gate").reached_by(2).await;
    for client in [&one, &two] {
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer.status, 429, "{}", answer.text());
        assert_eq!(error(&answer)["code"], "rate_limit_exceeded");
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some(
                "\"requests\";q=1000;w=3600, \"tokens\";q=400;w=3600;qu=\"tokens\", \"concurrent\";q=64;qu=\"concurrent-requests\""
            )
        );
        let state = answer.header("ratelimit").expect("a state");
        assert!(state.starts_with("\"tokens\";r="), "{state}");
        assert_eq!(answer.header("ratelimit-limit"), Some("400"));
        let wait = answer.header("retry-after");
        assert_eq!(wait, answer.header("ratelimit-reset"));
    }
    assert_eq!(
        rig.provider.call_count(),
        2,
        "refused requests call no provider"
    );
    rig.provider.gate("gate").open();
    for one in under_way {
        rig.record_charge(&one.await.expect("no panic").json());
    }
    // 34 were used. Ten more requests use 170, if a request gives back the unused rest.
    for client in [&one, &two].repeat(5) {
        let answer = client.post(CHAT, &body).await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        let state = answer.header("ratelimit").expect("a state");
        assert!(
            state.starts_with("\"requests\";r=") && state.contains(", \"tokens\";r="),
            "{state}"
        );
        assert_eq!(rig.record_charge(&answer.json()), IN + 16 * OUT);
    }
    // A failed request uses no quota.
    for _ in 0..5 {
        rig.provider.script(Script::status(500).once());
        let answer = one.post(CHAT, &body).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
    }
    rig.finish().await;
}

/// The hold of the requests below: 77 input tokens, a token per byte for an account without a payment, and 16 output tokens. The charge is
/// [`PRICE_OF_A_CHAT`].
const HELD: i64 = 77 * IN + 16 * OUT;

fn capped(stream: bool) -> Value {
    let mut body = chat(stream);
    body["max_tokens"] = 16.into();
    body
}

/// Clients over HTTP/1.1 and HTTP/2 with a key of the rig's account and a cap of `max` micro-credits.
async fn spender(rig: &Rig, max: i64, period: CapPeriod) -> [Client; 2] {
    let max = Micros::new(max);
    let (_, key) = rig
        .new_key(rig.account, |key| {
            key.spending_cap = Some(SpendingCap { max, period });
        })
        .await;
    clients(rig, &key)
}

#[tokio::test]
async fn a_key_cannot_spend_more_than_its_cap() {
    let rig = Rig::start().await;
    for (period, words) in [
        (CapPeriod::Total, "credits in all"),
        (CapPeriod::Month, "credits a month"),
    ] {
        let [one, two] = spender(&rig, HELD + 2 * PRICE_OF_A_CHAT, period).await;
        for (client, stream) in [(&one, false), (&two, true), (&one, true)] {
            let answer = client.stream(CHAT, &capped(stream)).await.whole().await;
            assert_eq!(answer.status, 200, "{}", answer.text());
            rig.add_expected_charge(PRICE_OF_A_CHAT);
            rig.quiet().await;
        }
        for (client, stream) in [(&one, false), (&two, true)] {
            let answer = client.stream(CHAT, &capped(stream)).await.whole().await;
            assert_eq!(answer.status, 403);
            let error = error(&answer);
            assert_eq!(error["type"], "permission_error");
            assert_eq!(error["code"], "key_spending_cap");
            let message = error["message"].as_str().expect("a message");
            let cap = format!(
                "may spend {} {words}",
                Micros::new(HELD + 2 * PRICE_OF_A_CHAT)
            );
            assert!(message.contains(&cap), "{message}");
        }
    }
    // The account's second key is not concerned.
    rig.record_charge(&rig.client().post(CHAT, &capped(false)).await.json());
    rig.finish().await;
}

#[tokio::test]
async fn concurrent_requests_cannot_exceed_the_keys_cap_and_failures_are_free() {
    let rig = Rig::start().await;
    let clients = spender(&rig, 3 * HELD, CapPeriod::Total).await;
    // A longer series of failures would open the provider's circuit.
    for _ in 0..2 {
        rig.provider.script(Script::status(500).once());
        let answer = clients[0].post(CHAT, &capped(false)).await;
        assert_eq!(answer.status, 502, "{}", answer.text());
    }
    rig.provider.script(Script::hold_head("all"));
    let (one, two, body) = (&clients[0], &clients[1], capped(false));
    let requests = (0..10).map(|number| {
        let client = if number % 2 == 0 { one } else { two };
        client.post(CHAT, &body)
    });
    let gate = rig.provider.gate("all");
    let opening = async {
        gate.reached_by(3).await;
        gate.open();
    };
    let (answers, ()) = tokio::join!(all(requests), opening);
    let statuses = |status| {
        answers
            .iter()
            .filter(|answer| answer.status == status)
            .count()
    };
    // A request after the charge of an earlier request may be admitted.
    assert!(statuses(200) >= 3, "{}", statuses(200));
    assert_eq!(statuses(200) + statuses(403), 10);
    for answer in answers.iter().filter(|answer| answer.status == 200) {
        rig.record_charge(&answer.json());
    }
    let spent = 100_000_000 - rig.available(rig.account);
    assert!(spent <= 3 * HELD, "{spent}");
    rig.finish().await;
}

async fn all<T>(futures: impl IntoIterator<Item = impl Future<Output = T>>) -> Vec<T> {
    let mut running: Vec<_> = futures.into_iter().map(Box::pin).collect();
    let mut done: Vec<Option<T>> = running.iter().map(|_| None).collect();
    std::future::poll_fn(|cx| {
        for (future, done) in running.iter_mut().zip(&mut done) {
            if done.is_none()
                && let std::task::Poll::Ready(value) = future.as_mut().poll(cx)
            {
                *done = Some(value);
            }
        }
        match done.iter().all(Option::is_some) {
            true => std::task::Poll::Ready(()),
            false => std::task::Poll::Pending,
        }
    })
    .await;
    done.into_iter().flatten().collect()
}

#[tokio::test]
async fn a_request_without_a_cap_is_capped_by_the_keys_spending_cap() {
    let rig = Rig::start().await;
    let [one, _] = spender(&rig, HELD, CapPeriod::Total).await;
    let answer = one.post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    assert_eq!(rig.provider.last_call().json()["max_tokens"], 16);
    rig.finish().await;
}
