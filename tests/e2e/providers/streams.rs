//! Event streams: reports and charges of failures in streams.

use std::time::Duration;

use super::*;

#[tokio::test]
async fn a_stream_that_fails_is_reported_by_status_or_event_and_costs_what_was_delivered() {
    let rig = Rig::with(WITH_REQUEST_PRICE).await;
    let mut cases = before_the_first_byte();
    let events = |text: &str| {
        headers(
            Script::failure(Failure::Text(text.to_owned())),
            "content-type",
            "text/event-stream",
        )
    };
    let cut = Script::cut_after;
    let error_at = |at| Script {
        error_event_at: Some(at),
        ..Script::default()
    };
    let named = |at| Script {
        event_names: true,
        ..error_at(at)
    };
    let invalid = || Error(502, "upstream_invalid");
    let chunk = |content: &str| {
        let choice = json!({"index": 0, "delta": {"content": content}, "finish_reason": null});
        format!(
            "data: {}\n\n",
            json!({"id": "x", "object": "chat.completion.chunk", "created": 1, "model": "m", "choices": [choice]})
        )
    };
    let broken = |words, code| Broken { words, code };
    cases.extend([
        (
            "JSON where events were requested",
            Script::failure(Failure::OtherJson),
            invalid(),
            0,
        ),
        (
            "events that are no JSON",
            events("data: hello\n\ndata: [DONE]\n\n"),
            invalid(),
            0,
        ),
        (
            "an event of garbage",
            headers(
                Script::failure(Failure::Garbage),
                "content-type",
                "text/event-stream",
            ),
            Error(502, "upstream_error"),
            0,
        ),
        ("no event", events(""), Error(502, "upstream_error"), 0),
        (
            "comments alone",
            events(": one\n\n: two\n\n"),
            Error(502, "upstream_error"),
            0,
        ),
        (
            "half an event",
            events("data: {\"id\":"),
            Error(502, "upstream_error"),
            0,
        ),
        (
            "cut before the first event",
            cut(0, Leave::Close),
            Error(502, "upstream_error"),
            0,
        ),
        (
            "cut after the role",
            cut(1, Leave::Close),
            broken(0, "upstream_error"),
            0,
        ),
        (
            "cut after four words",
            cut(5, Leave::Close),
            broken(4, "upstream_error"),
            counted(4),
        ),
        (
            "an error event at once",
            error_at(0),
            Error(502, "upstream_error"),
            0,
        ),
        (
            "an error event after the role",
            error_at(1),
            broken(0, "upstream_error"),
            0,
        ),
        (
            "an error event after four words",
            error_at(5),
            broken(4, "upstream_error"),
            counted(4),
        ),
        (
            "a named error event at once",
            named(0),
            Error(502, "upstream_error"),
            0,
        ),
        (
            "a named error event after four words",
            named(5),
            broken(4, "upstream_error"),
            counted(4),
        ),
        (
            "garbage after a word",
            events(&(chunk("The") + "data: {{{\n\n")),
            broken(1, "upstream_invalid"),
            counted(1),
        ),
        (
            "an end without a finish",
            events(&chunk("The")),
            broken(1, "upstream_error"),
            counted(1),
        ),
        (
            "an end without a last blank line",
            events(chunk("The").trim_end()),
            broken(1, "upstream_error"),
            counted(1),
        ),
    ]);
    check(&rig, true, cases).await;
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_that_is_reset_ends_with_an_error_event_and_costs_at_most_what_was_delivered() {
    let rig = Rig::with(WITH_REQUEST_PRICE).await;
    for (protocol, client) in rig.both() {
        // A reset may overtake earlier data, so the number of arriving words varies.
        rig.provider
            .script(Script::cut_after(5, Leave::Reset).once());
        let seen = observe(&client, true).await.expect("a proper end");
        rig.quiet().await;
        let words = match seen {
            Broken {
                words,
                code: "upstream_error",
            } if words <= 4 => words,
            Error(502, "upstream_error") => 0,
            other => panic!("{protocol}: {other:?}"),
        };
        rig.add_expected_charge(match words {
            0 => 0,
            words => counted(i64::try_from(words).expect("at most four")),
        });
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_cut_in_the_middle_of_an_event_shows_no_half_of_it() {
    let rig = Rig::with(WITH_REQUEST_PRICE).await;
    for bytes in [700, 701, 777] {
        let cut = Cut {
            after_bytes: Some(bytes),
            ..Cut::default()
        };
        rig.provider.script(
            Script {
                cut: Some(cut),
                ..Script::default()
            }
            .once(),
        );
        let Ok(Broken {
            words,
            code: "upstream_error",
        }) = observe(&rig.client(), true).await
        else {
            panic!("no error event after a cut at {bytes} bytes");
        };
        rig.quiet().await;
        rig.add_expected_charge(counted(i64::try_from(words).expect("a few")));
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_that_is_odd_but_good_is_passed_on_and_charged() {
    let rig = Rig::start().await;
    let good = |what, script| (what, script, Answer { words: 16 }, PRICE_OF_A_CHAT);
    let lines = |line_end| Script {
        line_end,
        ..Script::default()
    };
    let usage = Script::usage;
    let counted_answer = |what, script| (what, script, Answer { words: 16 }, counted(18));
    check(
        &rig,
        true,
        vec![
            good("carriage returns and line feeds", lines(LineEnd::Crlf)),
            good("carriage returns", lines(LineEnd::Cr)),
            good(
                "no space",
                Script {
                    no_space: true,
                    ..Script::default()
                },
            ),
            good(
                "comments",
                Script {
                    comments: true,
                    ..Script::default()
                },
            ),
            good(
                "all of it, a byte at a time",
                Script {
                    comments: true,
                    no_space: true,
                    line_end: LineEnd::Crlf,
                    write_bytes: Some(1),
                    ..Script::default()
                },
            ),
            good(
                "no [DONE]",
                Script {
                    no_done: true,
                    ..Script::default()
                },
            ),
            good(
                "an event of 1 MB",
                Script {
                    event_bytes: Some(1 << 20),
                    ..Script::default()
                },
            ),
            good(
                "interim heads",
                Script {
                    informational: vec![103, 100],
                    ..Script::default()
                },
            ),
            good(
                "a body to the end of the connection",
                Script {
                    framing: Some(Framing::UntilClose),
                    ..Script::default()
                },
            ),
            (
                "other words for its type",
                headers(
                    Script::default(),
                    "content-type",
                    "Text/Event-Stream;charset=utf-8",
                ),
                Answer { words: 16 },
                PRICE_OF_A_CHAT,
            ),
            good("usage in every chunk", usage(UsageReport::EveryChunk)),
            good("usage that grows", usage(UsageReport::Cumulative)),
            counted_answer("no usage", usage(UsageReport::Forgotten)),
            counted_answer("usage below zero", usage(UsageReport::Negative)),
            counted_answer("usage in words", usage(UsageReport::Words)),
        ],
    )
    .await;
    rig.finish().await;
}

#[tokio::test]
async fn no_event_of_an_odd_stream_carries_a_usage_that_was_not_requested() {
    let rig = Rig::start().await;
    for usage in [
        UsageReport::EveryChunk,
        UsageReport::Cumulative,
        UsageReport::Unasked,
    ] {
        rig.provider.script(Script::usage(usage.clone()).once());
        let (events, _) = rig.client().stream(CHAT, &chat(true)).await.rest().await;
        let (_, data) = events.split_last().expect("events");
        for event in data {
            assert!(
                event.json().get("usage").is_none(),
                "{usage:?}: {}",
                event.raw
            );
            assert_ne!(
                event.json()["choices"],
                json!([]),
                "{usage:?}: {}",
                event.raw
            );
        }
        rig.record_charge(&data.last().expect("an event").json());
    }
    rig.finish().await;
}

#[tokio::test]
async fn an_event_that_is_too_large_ends_the_stream() {
    let huge = |bytes: usize| Script {
        event_bytes: Some(bytes),
        ..Script::default()
    };
    for (settings, accepted, refused) in [
        ("", 7 << 20, 9 << 20),
        ("[server]\nevent_bytes_max = 65536", 60_000, 70_000),
    ] {
        let rig = Rig::with(settings).await;
        let invalid = Broken {
            words: 0,
            code: "upstream_invalid",
        };
        let cases = vec![
            (
                "an event below the limit",
                huge(accepted),
                Answer { words: 16 },
                PRICE_OF_A_CHAT,
            ),
            ("an event above the limit", huge(refused), invalid, 0),
        ];
        check(&rig, true, cases).await;
        rig.finish().await;
    }
}

/// 448 frames at HTTP/2: several seconds in sum, and less than a second per piece of 64 KiB.
#[tokio::test]
async fn a_slow_client_has_the_write_limit_for_each_piece_of_a_large_event() {
    let rig = Rig::with("[server]\nwrite_secs = 1").await;
    for (protocol, client) in rig.both() {
        let large = Script {
            event_bytes: Some(7 << 20),
            ..Script::default()
        };
        rig.provider.script(large.once());
        let mut answer = client.stream(CHAT, &chat(true)).await;
        answer.read_slowly(Duration::from_millis(10));
        let (events, end) = answer.rest().await;
        assert_eq!(end, StreamEnd::Proper, "{protocol}");
        assert!(events.last().is_some_and(Event::is_done), "{protocol}");
        rig.quiet().await;
        rig.add_expected_charge(PRICE_OF_A_CHAT);
    }
    rig.finish().await;
}
