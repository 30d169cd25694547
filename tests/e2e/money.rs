//! Credentials, quotas, holds and balances.

use std::sync::Arc;
use std::time::Duration;

use serde_json::{Value, json};
use tollgate_clock::Clock;
use tollgate_filter::{Scope, Scopes};
use tollgate_identity::{revoke_key, set_status};
use tollgate_store::AccountStatus;
use tollgate_testing::{Answer, Client, Script};

use crate::rig::{CHAT, IN, OUT, PRICE_OF_A_CHAT, Rig, Setup, TEXT, chat, micros};

fn error(answer: &Answer) -> Value {
    answer.json()["error"].clone()
}

#[tokio::test]
async fn a_402_names_needed_and_available_credits_and_the_topup_url() {
    const TOPUP_URL: &str = "https://toll.example/credits";
    let settings = format!("[credits]\ntopup_url = \"{TOPUP_URL}\"");
    let rig = Setup::with(&settings).credits(0).start().await;
    let text = |stream| json!({"model": "small", "prompt": "Halt!", "stream": stream});
    for (what, client) in rig.clients() {
        for (path, body) in [
            (CHAT, chat(false)),
            (CHAT, chat(true)),
            (TEXT, text(false)),
            (TEXT, text(true)),
        ] {
            let answer = client.stream(path, &body).await.whole().await;
            assert_eq!(answer.status, 402, "{what}");
            assert_eq!(answer.header("x-should-retry"), Some("false"), "{what}");
            let error = error(&answer);
            assert_eq!(error["type"], "insufficient_credits_error", "{what}");
            assert_eq!(error["code"], "insufficient_credits", "{what}");
            assert_eq!(error["available"], 0, "{what}");
            // The price of the request is unknown before the body is read.
            assert_eq!(error.get("required"), None, "{what}: {error}");
            assert_eq!(error["topup_url"], TOPUP_URL, "{what}");
            let message = error["message"].as_str().expect("a message");
            assert!(message.contains(TOPUP_URL), "{what}: {message}");
            assert!(
                answer.header("ratelimit").is_some(),
                "{what}: it was counted"
            );
        }
    }
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn the_amount_in_a_402_is_sufficient() {
    let rig = Setup::default().credits(1).start().await;
    let mut body = chat(false);
    body["max_tokens"] = 100.into();
    let answer = rig.client().post(CHAT, &body).await;
    assert_eq!(answer.status, 402);
    let (required, available) = (
        micros(&error(&answer)["required"]),
        micros(&error(&answer)["available"]),
    );
    assert_eq!(available, 1);
    rig.grant(rig.account, required - available - 1).await;
    assert_eq!(
        rig.client().post(CHAT, &body).await.status,
        402,
        "one micro-credit less is not"
    );
    rig.grant(rig.account, 1).await;
    let answer = rig.client().post(CHAT, &body).await;
    assert_eq!(answer.status, 200);
    assert_eq!(rig.record_charge(&answer.json()), PRICE_OF_A_CHAT);
    rig.finish().await;
}

#[tokio::test]
async fn a_request_without_a_cap_is_capped_at_what_its_account_can_pay() {
    // Enough for the prompt and some fifty tokens of the model's maximum of 4,096 tokens.
    let rig = Setup::default().credits(45_000).start().await;
    for stream in [false, true] {
        let answer = rig.client().stream(CHAT, &chat(stream)).await.whole().await;
        assert_eq!(answer.status, 200);
        rig.add_expected_charge(PRICE_OF_A_CHAT);
        rig.quiet().await;
        let cap = rig.provider.last_call().json()["max_tokens"]
            .as_i64()
            .expect("a cap");
        assert!((16..4096).contains(&cap), "{cap}");
    }
    // The remaining credit does not buy sixteen tokens.
    let mut body = chat(false);
    while rig.available(rig.account) > 20_000 {
        body["max_tokens"] = 16.into();
        let answer = rig.client().post(CHAT, &body).await;
        assert_eq!(answer.status, 200);
        rig.record_charge(&answer.json());
    }
    let answer = rig.client().post(CHAT, &chat(false)).await;
    assert_eq!(answer.status, 402);
    rig.finish().await;
}

#[tokio::test]
async fn concurrent_requests_are_admitted_up_to_the_balance() {
    const PAID_FOR: usize = 20;
    let rig = Setup::with("[server]\nworkers = 2")
        .credits(1)
        .start()
        .await;
    let mut body = chat(false);
    body["max_tokens"] = 16.into();
    // The credit needed by a request, as reported by the gateway to an account with credit.
    let needed = micros(&error(&rig.client().post(CHAT, &body).await)["required"]);
    rig.grant(rig.account, needed * PAID_FOR as i64 - 1).await;
    // No request ends before every request is admitted or refused.
    rig.provider.script(Script::hold_head("all"));
    let requests: Vec<_> = (0..5 * PAID_FOR)
        .map(|number| {
            let client = match number % 2 {
                0 => rig.client(),
                _ => rig.client().with_http2(),
            };
            let body = body.clone();
            tokio::spawn(async move { client.post(CHAT, &body).await.status })
        })
        .collect();
    let gate = rig.provider.gate("all");
    gate.reached_by(PAID_FOR).await;
    crate::rig::poll(|| requests.iter().filter(|one| one.is_finished()).count() == 4 * PAID_FOR)
        .await;
    assert_eq!(rig.available(rig.account), 0);
    gate.open();
    let mut statuses = Vec::new();
    for one in requests {
        statuses.push(one.await.expect("no panic"));
    }
    let accepted = statuses.iter().filter(|status| **status == 200).count();
    let refused = statuses.iter().filter(|status| **status == 402).count();
    assert_eq!((accepted, refused), (PAID_FOR, 4 * PAID_FOR));
    rig.add_expected_charge(PAID_FOR as i64 * PRICE_OF_A_CHAT);
    assert_eq!(rig.provider.call_count(), PAID_FOR as u64);
    let after = rig.finish().await;
    assert_eq!(after.report.usage, PAID_FOR as u64);
}

#[tokio::test]
async fn the_unused_part_of_a_hold_is_released() {
    let rig = Setup::default().credits(1).start().await;
    let mut body = chat(false);
    body["max_tokens"] = 1000.into();
    let needed = micros(&error(&rig.client().post(CHAT, &body).await)["required"]);
    rig.grant(rig.account, needed + 2 * PRICE_OF_A_CHAT - 1)
        .await;
    for _ in 0..3 {
        let answer = rig.client().post(CHAT, &body).await;
        assert_eq!(answer.status, 200);
        rig.record_charge(&answer.json());
    }
    assert_eq!(rig.client().post(CHAT, &body).await.status, 402);
    rig.finish().await;
}

#[tokio::test]
async fn usage_beyond_the_hold_is_charged_up_to_the_available_balance() {
    for (stream, http2) in [(false, false), (false, true), (true, false), (true, true)] {
        let rig = Setup::default().credits(30_000).start().await;
        let mut body = chat(stream);
        body["max_tokens"] = 16.into();
        rig.provider.script(
            Script::usage(tollgate_testing::provider::UsageReport::Exactly {
                prompt_tokens: 100,
                completion_tokens: 16,
            })
            .once(),
        );
        let [one, two] = rig.both().map(|(_, client)| client);
        let client = if http2 { two } else { one };
        let answer = client.stream(CHAT, &body).await.whole().await;
        assert_eq!(answer.status, 200, "{}", answer.text());
        // More than the hold was sized for, less than the account has.
        let charge = 100 * IN + 16 * OUT;
        match stream {
            true => rig.add_expected_charge(charge),
            false => assert_eq!(rig.record_charge(&answer.json()), charge),
        }
        assert_eq!(rig.available(rig.account), 30_000 - charge);
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_revoked_key_is_refused_on_the_next_request_of_the_same_connection() {
    let rig = Rig::start().await;
    let (id, key) = rig.new_key(rig.account, |_| {}).await;
    let mut raw = rig.raw().await;
    let h2 = Client::new(&rig.url()).with_key(&key).with_http2();
    for (round, status) in [(1, 200), (2, 401)] {
        raw.post(CHAT, &key, &chat(false).to_string()).await;
        let (head, body) = raw.read_answer().await;
        assert_eq!(head.status(), status, "round {round}: {body:?}");
        assert_eq!(
            h2.post(CHAT, &chat(false)).await.status,
            status,
            "round {round}"
        );
        if round == 1 {
            rig.add_expected_charge(2 * PRICE_OF_A_CHAT);
            let now = Clock::system().now();
            revoke_key(&*rig.books.store, id, now)
                .await
                .expect("revoked");
        } else {
            let error: Value = serde_json::from_slice(&body).expect("JSON");
            assert_eq!(error["error"]["code"], "invalid_credential");
            let challenge = head.header("www-authenticate").expect("a challenge");
            assert!(
                challenge.starts_with("Bearer ") && challenge.contains("invalid_token"),
                "{challenge}"
            );
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_suspended_account_is_refused_until_reactivated() {
    let rig = Rig::start().await;
    for (status, expected) in [
        (AccountStatus::Suspended, 403),
        (AccountStatus::Active, 200),
    ] {
        let now = Clock::system().now();
        set_status(&*rig.books.store, rig.account, status, now)
            .await
            .expect("changed");
        for (what, client) in rig.both() {
            let answer = client.post(CHAT, &chat(false)).await;
            assert_eq!(answer.status, expected, "{what}");
            match expected {
                200 => drop(rig.record_charge(&answer.json())),
                _ => assert_eq!(error(&answer)["code"], "account_suspended", "{what}"),
            }
        }
    }
    rig.finish().await;
}

/// A begun stream continued to the end.
#[tokio::test]
async fn a_stream_of_an_account_that_is_suspended_ends_and_what_was_delivered_is_charged() {
    let rig = Rig::with("[meter]\nafter_leaving = \"stop\"").await;
    for (what, client) in rig.both() {
        let set = async |status| {
            let now = Clock::system().now();
            let changed = set_status(&*rig.books.store, rig.account, status, now).await;
            changed.expect("changed");
        };
        let before = rig.available(rig.account);
        rig.provider.script(Script::hold(5, what).once());
        let mut stream = client.stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200, "{what}");
        stream.next_event().await.expect("the role");
        rig.provider.gate(what).reached_by(1).await;
        set(AccountStatus::Suspended).await;
        rig.provider.gate(what).open();
        let (events, _) = stream.rest().await;
        assert!(!events.iter().any(|event| event.is_done()), "{what}");
        rig.quiet().await;
        let charged = before - rig.available(rig.account);
        assert!(
            0 < charged && charged < PRICE_OF_A_CHAT,
            "{what}: {charged} for a part"
        );
        rig.add_expected_charge(charged);
        set(AccountStatus::Active).await;
    }
    rig.finish().await;
}

/// The account left memory with the last key, and the stream did not learn of the suspension.
#[tokio::test]
async fn a_suspension_ends_a_stream_whose_key_was_revoked_before() {
    let rig = Rig::with("[meter]\nafter_leaving = \"stop\"").await;
    let account = rig.new_account("pro", 10 * PRICE_OF_A_CHAT).await;
    for (what, client) in rig.both() {
        let (id, key) = rig.new_key(account, |_| {}).await;
        let before = rig.available(account);
        rig.provider.script(Script::hold(5, what).once());
        let mut stream = client.with_key(&key).stream(CHAT, &chat(true)).await;
        assert_eq!(stream.status, 200, "{what}");
        stream.next_event().await.expect("the role");
        rig.provider.gate(what).reached_by(1).await;
        let (store, now) = (&*rig.books.store, Clock::system().now());
        let revoked = revoke_key(store, id, now).await;
        revoked.expect("revoked");
        let suspended = set_status(store, account, AccountStatus::Suspended, now).await;
        suspended.expect("changed");
        rig.provider.gate(what).open();
        let (events, _) = stream.rest().await;
        assert!(!events.iter().any(|event| event.is_done()), "{what}");
        rig.quiet().await;
        let charged = before - rig.available(account);
        assert!(
            0 < charged && charged < PRICE_OF_A_CHAT,
            "{what}: {charged} for a part"
        );
        rig.add_expected_charge(charged);
        let active = set_status(store, account, AccountStatus::Active, now).await;
        active.expect("changed");
    }
    rig.finish().await;
}

#[tokio::test]
async fn invalid_and_insufficient_credentials_are_refused() {
    let rig = Rig::start().await;
    let (_, expired) = rig
        .new_key(rig.account, |key| {
            key.expires_at = Some(key.created_at + Duration::from_micros(1));
        })
        .await;
    let (_, models_only) = rig
        .new_key(rig.account, |key| {
            key.scopes = Scopes::NONE.with(Scope::ApiModels).bits()
        })
        .await;
    let (_, dear_only) = rig
        .new_key(rig.account, |key| {
            key.models = Some(Arc::from([Arc::from("dear")]))
        })
        .await;
    let damaged = {
        let mut key = rig.key.clone();
        let last = if key.ends_with('0') { '1' } else { '0' };
        key.pop();
        key.push(last);
        key
    };
    let bearer = |key: &str| Some(format!("Bearer {key}"));
    for (what, credential, path, status, code) in [
        ("none", None, CHAT, 401, "missing_credential"),
        (
            "another scheme",
            Some(String::from("Basic eDp5")),
            CHAT,
            401,
            "missing_credential",
        ),
        (
            "an empty one",
            Some(String::from("Bearer ")),
            CHAT,
            401,
            "missing_credential",
        ),
        (
            "not ours",
            bearer("sk-other-1234567890"),
            CHAT,
            401,
            "invalid_credential",
        ),
        ("damaged", bearer(&damaged), CHAT, 401, "invalid_credential"),
        ("expired", bearer(&expired), CHAT, 401, "invalid_credential"),
        (
            "without the scope",
            bearer(&models_only),
            CHAT,
            403,
            "key_not_permitted",
        ),
        (
            "without the scope",
            bearer(&models_only),
            TEXT,
            403,
            "key_not_permitted",
        ),
        (
            "without the model",
            bearer(&dear_only),
            CHAT,
            403,
            "key_not_permitted",
        ),
    ] {
        for (protocol, client) in rig.both() {
            let mut request = client.request("POST", path, chat(false).to_string().into());
            request.headers_mut().remove("authorization");
            if let Some(credential) = &credential {
                let value = credential.parse().expect("a value");
                request.headers_mut().insert("authorization", value);
            }
            let answer = client.send(request).await;
            let case = format!("{what}, {protocol}");
            assert_eq!(answer.status, status, "{case}: {}", answer.text());
            assert_eq!(error(&answer)["code"], code, "{case}");
            assert_eq!(
                answer.header("www-authenticate").is_some(),
                status == 401,
                "{case}"
            );
            if status == 401 {
                assert!(
                    answer.header("ratelimit").is_none(),
                    "{case}: no account's quota"
                );
            }
        }
    }
    let list = Client::new(&rig.url())
        .with_key(&models_only)
        .get("/v1/models")
        .await;
    assert_eq!(list.status, 200);
    let list = Client::new(&rig.url())
        .with_key(&dear_only)
        .get("/v1/models")
        .await
        .json();
    assert_eq!(list["data"].as_array().map(Vec::len), Some(1));
    assert_eq!(list["data"][0]["id"], "dear");
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn a_key_in_the_query_is_refused_and_never_logged() {
    let rig = Rig::start().await;
    let path = format!("/v1/models?api_key={}", rig.key);
    let with = rig.client().get(&path).await;
    assert_eq!(
        (with.status, &error(&with)["code"]),
        (400, &json!("invalid_request"))
    );
    let without = Client::new(&rig.url()).get(&path).await;
    assert_eq!(
        (without.status, &error(&without)["code"]),
        (401, &json!("missing_credential"))
    );
    // `finish` searches the log for every key.
    rig.finish().await;
}

#[tokio::test]
async fn an_exhausted_quota_is_429_with_rate_limit_fields() {
    let rig = Rig::with("[limits.classes.free]\nquota = 3\nwindow_secs = 3600").await;
    let account = rig.new_account("free", 1_000_000).await;
    let (_, key) = rig.new_key(account, |_| {}).await;
    let (_, other_key) = rig.new_key(account, |_| {}).await;
    let client = Client::new(&rig.url()).with_key(&key);
    let other = Client::new(&rig.url()).with_key(&other_key).with_http2();
    for left in [2, 1, 0] {
        let client = if left == 1 { &other } else { &client };
        let answer = client.get("/v1/models").await;
        assert_eq!(answer.status, 200);
        assert_eq!(
            answer.header("ratelimit-policy"),
            Some("\"requests\";q=3;w=3600, \"concurrent\";q=64;qu=\"concurrent-requests\"")
        );
        assert_eq!(answer.header("ratelimit-limit"), Some("3"));
        assert_eq!(
            answer.header("ratelimit-remaining"),
            Some(left.to_string().as_str())
        );
        let reset = answer.header("ratelimit-reset").expect("a wait");
        assert_eq!(
            answer.header("ratelimit"),
            Some(format!("\"requests\";r={left};t={reset}").as_str())
        );
    }
    // The quota is the owner's: a second key of the account shares the quota.
    for client in [&client, &other] {
        let answer = client.post(CHAT, &chat(true)).await;
        assert_eq!(answer.status, 429);
        assert_eq!(error(&answer)["code"], "rate_limit_exceeded");
        assert_eq!(error(&answer)["type"], "rate_limit_error");
        assert_eq!(answer.header("ratelimit-remaining"), Some("0"));
        let reset: u64 = answer
            .header("ratelimit-reset")
            .and_then(|text| text.parse().ok())
            .expect("seconds");
        let wait: u64 = answer
            .header("retry-after")
            .and_then(|text| text.parse().ok())
            .expect("seconds");
        // One request in 1200 s, and up to a tenth more, to spread the returns of clients.
        assert!((1190..=1320).contains(&reset), "{reset}");
        assert!(wait >= reset, "{wait} is before {reset}");
        assert_eq!(
            answer.header("x-should-retry"),
            Some("false"),
            "a long wait"
        );
    }
    // A second account has a separate quota.
    assert_eq!(rig.client().get("/v1/models").await.status, 200);
    assert_eq!(rig.provider.call_count(), 0);
    rig.finish().await;
}

#[tokio::test]
async fn a_request_after_retry_after_is_admitted() {
    let rig = Rig::with("[limits.classes.free]\nquota = 1\nwindow_secs = 1").await;
    let account = rig.new_account("free", 1_000_000).await;
    let (_, key) = rig.new_key(account, |_| {}).await;
    let client = Client::new(&rig.url()).with_key(&key);
    let clock = Clock::system();
    let began = clock.elapsed();
    assert_eq!(client.get("/v1/models").await.status, 200);
    // Refusals do not use quota: repeated requests are admitted in the end, at most a second before the end of the wait.
    let mut refused = 0;
    loop {
        let answer = client.get("/v1/models").await;
        match answer.status {
            200 => break,
            429 => assert_eq!(answer.header("retry-after"), Some("1")),
            other => panic!("{other}"),
        }
        refused += 1;
    }
    // On a busy machine, the window may be over before the second request.
    let is_over = clock.elapsed() - began >= Duration::from_secs(1);
    assert!(refused > 0 || is_over, "the second one was admitted");
    rig.finish().await;
}

#[tokio::test]
async fn credential_guessing_is_limited_by_address() {
    let rig = Rig::with("[limits.failed_credentials]\nquota = 5\nwindow_secs = 3600").await;
    let guess = Client::new(&rig.url()).with_key("sk-svc-0123456789");
    let mut statuses = Vec::new();
    for _ in 0..7 {
        statuses.push(guess.get("/v1/models").await.status);
    }
    assert_eq!(statuses, [401, 401, 401, 401, 401, 429, 429]);
    let answer = guess.get("/v1/models").await;
    assert_eq!(
        answer.header("ratelimit-policy"),
        Some("\"failed-credentials\";q=5;w=3600")
    );
    assert!(answer.header("retry-after").is_some());
    let victim = rig.client().get("/v1/models").await;
    assert_eq!(victim.status, 200, "a valid credential is let in");
    rig.finish().await;
}

#[tokio::test]
async fn concurrent_accounts_are_charged_separately() {
    let rig = Rig::with("[server]\nworkers = 2").await;
    let other = rig.new_account("pro", 1_000_000).await;
    let (_, key) = rig.new_key(other, |_| {}).await;
    let requests: Vec<_> = (0..30)
        .map(|number| {
            let key = if number % 3 == 0 { &key } else { &rig.key };
            let client = Client::new(&rig.url()).with_key(key);
            let mut body = chat(false);
            body["max_tokens"] = 16.into();
            tokio::spawn(async move { client.post(CHAT, &body).await.json() })
        })
        .collect();
    let mut owners = Vec::new();
    for one in requests {
        let body = one.await.expect("no panic");
        rig.record_charge(&body);
        owners.push(
            body["x_svc"]["owner"]
                .as_str()
                .expect("an owner")
                .to_owned(),
        );
    }
    let others = owners
        .iter()
        .filter(|owner| **owner == other.to_string())
        .count();
    assert_eq!(others, 10);
    assert_eq!(rig.available(other), 1_000_000 - 10 * PRICE_OF_A_CHAT);
    rig.finish().await;
}
