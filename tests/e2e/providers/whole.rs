//! Whole answers, and failures before the first byte of whole answers and streams.

use super::*;

#[tokio::test]
async fn a_whole_answer_that_fails_is_an_error_and_costs_nothing() {
    let rig = Rig::start().await;
    let mut cases = before_the_first_byte();
    let framed = |framing, after| Script {
        framing: Some(framing),
        cut: Some(Cut {
            after_bytes: Some(after),
            ..Cut::default()
        }),
        ..Script::default()
    };
    let invalid = || Error(502, "upstream_invalid");
    let broken = || Error(502, "upstream_error");
    cases.extend([
        (
            "bytes that are no text",
            Script::failure(Failure::Garbage),
            invalid(),
            0,
        ),
        (
            "half a JSON object",
            Script::failure(Failure::InvalidJson),
            invalid(),
            0,
        ),
        (
            "another JSON object",
            Script::failure(Failure::OtherJson),
            invalid(),
            0,
        ),
        ("nothing", Script::failure(Failure::Empty), invalid(), 0),
        (
            "text",
            Script::failure(Failure::Text("Sorry!".to_owned())),
            invalid(),
            0,
        ),
        (
            "an error with status 200",
            headers(
                Script::failure(Failure::Text(answer::error_body(500).to_string())),
                "content-type",
                "application/json",
            ),
            broken(),
            0,
        ),
        (
            "events where JSON was requested",
            headers(Script::default(), "content-type", "text/event-stream"),
            invalid(),
            0,
        ),
        (
            "a body cut before its length",
            framed(Framing::Length, 40),
            broken(),
            0,
        ),
        (
            "a body cut before its first byte",
            framed(Framing::Length, 0),
            broken(),
            0,
        ),
        ("chunks cut", framed(Framing::Chunked, 40), broken(), 0),
        // The framing has no end, but the JSON has an end.
        (
            "a body to the end, cut",
            framed(Framing::UntilClose, 40),
            invalid(),
            0,
        ),
    ]);
    check(&rig, false, cases).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_whole_answer_that_is_odd_but_good_is_passed_on_and_charged() {
    let rig = Rig::start().await;
    let good = |what, script| (what, script, Answer { words: 16 }, PRICE_OF_A_CHAT);
    let framed = |framing| Script {
        framing: Some(framing),
        ..Script::default()
    };
    let usage = Script::usage;
    let exactly = |prompt_tokens, completion_tokens| {
        usage(UsageReport::Exactly {
            prompt_tokens,
            completion_tokens,
        })
    };
    let counted_answer = |what, script| (what, script, Answer { words: 16 }, counted(18));
    check(
        &rig,
        false,
        vec![
            good("chunks", framed(Framing::Chunked)),
            good(
                "a body to the end of the connection",
                framed(Framing::UntilClose),
            ),
            good(
                "interim heads",
                Script {
                    informational: vec![103, 102, 103],
                    ..Script::default()
                },
            ),
            good(
                "a byte at a time",
                Script {
                    write_bytes: Some(1),
                    ..Script::default()
                },
            ),
            good(
                "another name for the model",
                Script {
                    answer_model: Some("vendor/small-1-2026".to_owned()),
                    ..Script::default()
                },
            ),
            (
                "other words for its type",
                headers(
                    Script::default(),
                    "content-type",
                    "Application/JSON; charset=utf-8",
                ),
                Answer { words: 16 },
                PRICE_OF_A_CHAT,
            ),
            (
                "usage as reported",
                exactly(100, 200),
                Answer { words: 16 },
                100 * IN + 200 * OUT,
            ),
            counted_answer("no usage", usage(UsageReport::Forgotten)),
            counted_answer("usage below zero", usage(UsageReport::Negative)),
            counted_answer("usage in words", usage(UsageReport::Words)),
            counted_answer("usage of nothing", exactly(0, 0)),
        ],
    )
    .await;
    let after = rig.finish().await;
    let estimated = after
        .log
        .iter()
        .filter(|line| line["usage_estimated"] == true);
    assert_eq!(
        estimated.count(),
        8,
        "four counted cases over two protocols"
    );
}

#[tokio::test]
async fn an_implausible_usage_is_reduced_to_the_possible_maximum() {
    let rig = Rig::start().await;
    let beyond = UsageReport::Exactly {
        prompt_tokens: 10_000_000,
        completion_tokens: 5_000_000,
    };
    for (usage, charge, estimated) in [
        // The context in, the client's own cap out.
        (beyond, 128_000 * IN + 16 * OUT, false),
        // An impossible report counts as no report at all.
        (UsageReport::Absurd, counted(16), true),
    ] {
        let both = |streams: [bool; 2]| rig.both().into_iter().zip(streams);
        for ((protocol, client), stream) in both([false, true]).chain(both([true, false])) {
            rig.provider.script(Script::usage(usage.clone()).once());
            let mut body = chat(stream);
            body["max_tokens"] = 16.into();
            let mut answer = client.stream(CHAT, &body).await;
            assert_eq!(answer.status, 200, "{protocol}");
            let last = match stream {
                false => answer.whole().await.json(),
                true => {
                    let (events, _) = answer.rest().await;
                    let [.., last, done] = &events[..] else {
                        panic!("{protocol}: {events:?}");
                    };
                    assert!(done.is_done(), "{protocol}: {done:?}");
                    last.json()
                }
            };
            assert_eq!(rig.record_charge(&last), charge, "{protocol}, {usage:?}");
            assert_eq!(last["x_svc"]["usage_estimated"], estimated, "{protocol}");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_rate_limited_provider_sets_retry_after_and_is_not_called_before_it() {
    // the provider's Retry-After and retry-after-ms, the gateway's to the client, whether the next request is a call
    for (sent, millis, received, is_called) in [
        (Some("2"), None, "2", false),
        (Some("0"), None, "1", true),
        (Some("3600"), None, "60", false),
        (Some("11.2"), None, "12", false),
        (Some("1"), Some("12345"), "13", false),
        (None, Some("30000.5"), "31", false),
        (Some("30"), Some("soon"), "30", false),
        (Some("Wed, 21 Oct 2015 07:28:00 GMT"), None, "1", true),
        (Some("Wed, 21 Oct 2099 07:28:00 GMT"), None, "60", false),
        (Some("soon"), None, "5", true),
        (None, None, "5", true),
    ] {
        let rig = Rig::start().await;
        let headers = millis.map(|millis| ("retry-after-ms".to_owned(), millis.to_owned()));
        let script = Script {
            retry_after: sent.map(str::to_owned),
            headers: headers.into_iter().collect(),
            ..Script::status(429)
        };
        rig.provider.script(script.once());
        let answer = rig.client().post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 429, "{sent:?}");
        assert_eq!(answer.header("retry-after"), Some(received), "{sent:?}");
        for name in [
            "ratelimit-policy",
            "ratelimit",
            "ratelimit-limit",
            "ratelimit-remaining",
            "ratelimit-reset",
        ] {
            assert!(answer.header(name).is_some(), "{name} is missing on a 429");
        }
        let next = rig.client().post(CHAT, &chat(false)).await;
        let calls = rig.provider.call_count();
        if is_called {
            assert_eq!((next.status, calls), (200, 2), "{sent:?}");
            rig.record_charge(&next.json());
        } else {
            assert_eq!((next.status, calls), (429, 1), "{sent:?}");
            assert!(next.header("retry-after").is_some(), "{sent:?}");
        }
        rig.finish().await;
    }
}

#[tokio::test]
async fn a_failure_with_retry_after_names_that_time_in_the_first_answer() {
    for (status, expected) in [(500, 502), (502, 502), (503, 502), (504, 504)] {
        for stream in [false, true] {
            let rig = Rig::start().await;
            let script = Script {
                retry_after: Some("6.5".to_owned()),
                ..Script::status(status)
            };
            rig.provider.script(script.once());
            let answer = rig.client().stream(CHAT, &chat(stream)).await.whole().await;
            assert_eq!(answer.status, expected, "{status}");
            assert_eq!(answer.header("retry-after"), Some("7"), "{status}");
            rig.finish().await;
        }
    }
}

/// A provider limits the gateway for one model: the model waits for the provider's time, and no other model of the provider waits.
#[tokio::test]
async fn a_rate_limit_applies_to_one_model_and_for_its_time_alone() {
    let rig = Rig::start().await;
    let script = Script {
        retry_after: Some("0.02".to_owned()),
        model: Some("vendor/small-1".to_owned()),
        ..Script::status(429)
    };
    rig.provider.script(script.once());
    assert_eq!(rig.client().post(CHAT, &chat(false)).await.status, 429);
    let mut other = chat(false);
    other["model"] = "dear".into();
    other["max_tokens"] = 16.into();
    let answer = rig.client().post(CHAT, &other).await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    // The key of another account, without earlier requests.
    let account = rig.new_account("pro", CREDITS).await;
    let (_, key) = rig.new_key(account, |_| {}).await;
    let client = Client::new(&rig.url()).with_key(&key);
    let answer = tollgate_testing::within("the end of the rate limit", async {
        loop {
            let answer = client.post(CHAT, &chat(false)).await;
            if answer.status != 429 {
                break answer;
            }
        }
    });
    let answer = answer.await;
    assert_eq!(answer.status, 200, "{}", answer.text());
    rig.record_charge(&answer.json());
    assert_eq!(rig.provider.call_count(), 3, "none before its time");
    rig.finish().await;
}

#[tokio::test]
async fn only_the_message_of_a_refusal_of_the_provider_reaches_the_client() {
    let rig = Rig::start().await;
    rig.provider.script(Script::status(400).once());
    let answer = rig.client().post(CHAT, &chat(true)).await;
    let error = answer.json()["error"].clone();
    assert_eq!(
        error["message"],
        "This prompt is longer than the model can read."
    );
    // Messages about the gateway's account do not.
    for status in [401, 403, 404, 500] {
        rig.provider.script(Script::status(status).once());
        let answer = rig.client().post(CHAT, &chat(true)).await;
        let message = answer::error_body(status)["error"]["message"].clone();
        let message = message.as_str().expect("a message");
        assert!(
            !answer.text().contains(message),
            "{status}: {}",
            answer.text()
        );
        assert!(!answer.text().contains("vendor/"), "{status}");
        let _: Value = answer.json();
    }
    rig.finish().await;
}
