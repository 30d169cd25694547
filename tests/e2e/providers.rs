//! Providers that fail, each in its own way: what the client sees, what is charged, what the provider saw. Nothing stays held.

use serde_json::{Value, json};
use tollgate_testing::provider::{Cut, Failure, Framing, Leave, LineEnd, UsageReport, answer};
use tollgate_testing::{Client, Ended, Event, Script, StreamEnd};

use crate::rig::{CHAT, CREDITS, IN, OUT, PRICE_OF_A_CHAT, Rig, chat};

/// What a client sees of an answer.
#[derive(Debug, PartialEq)]
enum Seen {
    /// A whole answer, or a stream with so many words that ended with `[DONE]`.
    Answer { words: u64 },
    /// An error with this status and code, before anything else.
    Error(u16, &'static str),
    /// A stream of so many words that ended with an error event of this code and no `[DONE]`.
    Broken { words: u64, code: &'static str },
}

use Seen::{Answer, Broken, Error};

/// One way to fail: what it is, how the provider does it, what is seen, and the charge in micro-credits.
type Case = (&'static str, Script, Seen, i64);

/// Tokens counted here instead of reported: the prompt of [`chat`] as the meter counts it.
const COUNTED_PROMPT: i64 = 9;

/// The charge for an answer of so many words, one token each, that had to be counted.
const fn counted(words: i64) -> i64 {
    COUNTED_PROMPT * IN + words * OUT
}

/// Puts every case to the gateway over both protocols; fails with all that went otherwise.
async fn check(rig: &Rig, stream: bool, cases: Vec<Case>) {
    let mut problems = Vec::new();
    let mut left = CREDITS;
    for (what, script, expected, charge) in &cases {
        for (protocol, client) in rig.both() {
            rig.provider.script(script.clone().once());
            rig.provider.forget_calls();
            let seen = look(&client, stream).await;
            rig.quiet().await;
            rig.charged(*charge);
            let charged = left - rig.available(rig.account);
            left -= charged;
            let ended = rig.provider.calls_when_ended().await.len();
            if seen.as_ref().ok() != Some(expected) {
                problems.push(format!(
                    "{what}, {protocol}: saw {seen:?}, not {expected:?}"
                ));
            }
            if charged != *charge {
                problems.push(format!(
                    "{what}, {protocol}: charged {charged}, not {charge}"
                ));
            }
            if ended != 1 {
                problems.push(format!("{what}, {protocol}: {ended} calls"));
            }
            rig.provider.clear_scripts();
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

/// Asks once and says what came.
async fn look(client: &Client, stream: bool) -> Result<Seen, String> {
    let mut answer = client.stream(CHAT, &chat(stream)).await;
    let kind = answer.header("content-type").unwrap_or_default().to_owned();
    if kind != "text/event-stream" {
        let answer = answer.whole().await;
        let body = answer.json();
        if answer.status == 200 {
            let text = body["choices"][0]["message"]["content"].as_str();
            let words = answer::tokens(text.ok_or("no text")?);
            return Ok(Answer { words });
        }
        let code = body["error"]["code"].as_str().unwrap_or_default();
        return Ok(Error(answer.status, known(code)?));
    }
    let (events, end) = answer.rest().await;
    if end != StreamEnd::Proper {
        return Err(format!("{end:?}"));
    }
    let (last, before) = events.split_last().ok_or("no event")?;
    let words = words(before);
    if last.is_done() {
        return Ok(Answer { words });
    }
    let code = &last.json()["error"]["code"];
    let code = known(code.as_str().unwrap_or_default())?;
    Ok(Broken { words, code })
}

fn words(events: &[Event]) -> u64 {
    let text: String = events
        .iter()
        .map(Event::json)
        .filter_map(|chunk| {
            let text = chunk["choices"][0]["delta"]["content"].as_str();
            text.map(str::to_owned)
        })
        .collect();
    answer::tokens(&text)
}

fn known(code: &str) -> Result<&'static str, String> {
    [
        "upstream_rejected",
        "upstream_error",
        "upstream_invalid",
        "upstream_timeout",
        "upstream_unreachable",
        "rate_limit_exceeded",
    ]
    .into_iter()
    .find(|one| *one == code)
    .ok_or_else(|| format!("the code is `{code}`"))
}

fn headers(script: Script, name: &str, value: &str) -> Script {
    Script {
        headers: vec![(name.to_owned(), value.to_owned())],
        ..script
    }
}

/// What goes wrong before the first byte of an answer goes wrong in the same way for both kinds.
fn before_the_first_byte() -> Vec<Case> {
    let mut cases: Vec<Case> = Vec::new();
    for (status, expected) in [
        (201, Error(502, "upstream_invalid")),
        (204, Error(502, "upstream_invalid")),
        (302, Error(502, "upstream_invalid")),
        (400, Error(400, "upstream_rejected")),
        (401, Error(502, "upstream_error")),
        (403, Error(502, "upstream_error")),
        (404, Error(502, "upstream_error")),
        (408, Error(504, "upstream_timeout")),
        (413, Error(400, "upstream_rejected")),
        (418, Error(502, "upstream_invalid")),
        (422, Error(400, "upstream_rejected")),
        (429, Error(429, "rate_limit_exceeded")),
        (500, Error(502, "upstream_error")),
        (502, Error(502, "upstream_error")),
        (503, Error(502, "upstream_error")),
        (504, Error(504, "upstream_timeout")),
    ] {
        cases.push(("a status", Script::status(status), expected, 0));
    }
    let bad_gateway = Script {
        status: Some(502),
        ..Script::failure(Failure::Html)
    };
    cases.extend([
        (
            "a page of a proxy with 502",
            bad_gateway,
            Error(502, "upstream_error"),
            0,
        ),
        (
            "a page of a proxy with 200",
            Script::failure(Failure::Html),
            Error(502, "upstream_invalid"),
            0,
        ),
        (
            "a compressed answer",
            headers(Script::default(), "content-encoding", "gzip"),
            Error(502, "upstream_invalid"),
            0,
        ),
    ]);
    cases
}

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
            "events where JSON was asked for",
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
        // Nobody can tell where it should have ended, but JSON can.
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
                "usage as it says",
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
async fn a_claim_of_absurd_usage_is_cut_down_to_what_can_have_been_used() {
    let rig = Rig::start().await;
    let beyond = UsageReport::Exactly {
        prompt_tokens: 10_000_000,
        completion_tokens: 5_000_000,
    };
    for (usage, charge, estimated) in [
        // The context in, the client's own cap out.
        (beyond, 128_000 * IN + 16 * OUT, false),
        // What no model can do is no report at all.
        (UsageReport::Absurd, counted(16), true),
    ] {
        for (protocol, client) in rig.both() {
            rig.provider.script(Script::usage(usage.clone()).once());
            let mut body = chat(false);
            body["max_tokens"] = 16.into();
            let answer = client.post(CHAT, &body).await;
            assert_eq!(answer.status, 200, "{protocol}");
            assert_eq!(rig.told(&answer.json()), charge, "{protocol}, {usage:?}");
            assert_eq!(
                answer.json()["x_svc"]["usage_estimated"],
                estimated,
                "{protocol}"
            );
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_that_fails_is_told_by_status_or_by_an_event_and_costs_what_was_delivered() {
    let rig = Rig::start().await;
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
            "JSON where events were asked for",
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
    let rig = Rig::start().await;
    for (protocol, client) in rig.both() {
        // A reset may overtake what was sent before it, so how many words arrive is open.
        rig.provider
            .script(Script::cut_after(5, Leave::Reset).once());
        let seen = look(&client, true).await.expect("a proper end");
        rig.quiet().await;
        let words = match seen {
            Broken {
                words,
                code: "upstream_error",
            } if words <= 4 => words,
            Error(502, "upstream_error") => 0,
            other => panic!("{protocol}: {other:?}"),
        };
        rig.charged(match words {
            0 => 0,
            words => counted(i64::try_from(words).expect("at most four")),
        });
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_stream_cut_in_the_middle_of_an_event_shows_no_half_of_it() {
    let rig = Rig::start().await;
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
        }) = look(&rig.client(), true).await
        else {
            panic!("no error event after a cut at {bytes} bytes");
        };
        rig.quiet().await;
        rig.charged(counted(i64::try_from(words).expect("a few")));
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
                "an event of 3 MB",
                Script {
                    event_bytes: Some(3 << 20),
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
async fn no_event_of_an_odd_stream_carries_a_usage_that_nobody_asked_for() {
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
        rig.told(&data.last().expect("an event").json());
    }
    rig.finish().await;
}

#[tokio::test]
async fn an_event_that_is_too_large_ends_the_stream() {
    let rig = Rig::start().await;
    let huge = Script {
        event_bytes: Some(9 << 20),
        ..Script::default()
    };
    check(
        &rig,
        true,
        vec![(
            "an event of 9 MB",
            huge,
            Broken {
                words: 0,
                code: "upstream_invalid",
            },
            0,
        )],
    )
    .await;
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_that_is_silent_is_504_or_an_error_event() {
    let limits = "[[provider]]\ntimeouts = { first_byte_secs = 1, first_byte_whole_secs = 1, between_bytes_secs = 1 }";
    let rig = Rig::with(limits).await;
    let timeout = || Error(504, "upstream_timeout");
    check(
        &rig,
        false,
        vec![
            ("no head", Script::hold_head("never"), timeout(), 0),
            ("no body", Script::hold(0, "never"), timeout(), 0),
        ],
    )
    .await;
    // The clock of the books goes on where the first table stopped.
    rig.finish().await;

    let rig = Rig::with(limits).await;
    check(
        &rig,
        true,
        vec![
            ("no head", Script::hold_head("never"), timeout(), 0),
            ("no event", Script::hold(0, "never"), timeout(), 0),
            (
                "no event after the role",
                Script::hold(1, "never"),
                Broken {
                    words: 0,
                    code: "upstream_timeout",
                },
                0,
            ),
            (
                "no event after four words",
                Script::hold(5, "never"),
                Broken {
                    words: 4,
                    code: "upstream_timeout",
                },
                counted(4),
            ),
        ],
    )
    .await;
    let calls = rig.provider.calls();
    assert!(
        calls.iter().all(|call| call.ended == Some(Ended::PeerGone)),
        "the gateway hangs up on a provider that is silent"
    );
    rig.finish().await;
}

#[tokio::test]
async fn an_answer_that_takes_too_long_in_all_is_ended() {
    let rig = Rig::with("[[provider]]\ntimeouts = { total_secs = 1 }").await;
    // Something comes all the time: now and then, or so fast that there is always something to read.
    for pace in [Some("pace".to_owned()), None] {
        rig.provider.script(
            Script {
                endless: true,
                usage: UsageReport::EveryChunk,
                pace,
                ..Script::default()
            }
            .once(),
        );
        let gate = rig.provider.gate("pace");
        gate.release(3);
        let mut stream = rig.client().stream(CHAT, &chat(true)).await;
        let end = loop {
            match stream.next_event().await {
                Ok(event) if !event.raw.contains("\"error\"") => gate.release(1),
                Ok(event) => break event.json(),
                Err(end) => panic!("{end:?} without an error event"),
            }
        };
        assert_eq!(end["error"]["code"], "upstream_timeout");
        rig.quiet().await;
        rig.charged(PRICE_OF_A_CHAT);
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_provider_that_speaks_http2_may_fail_in_the_same_ways() {
    let http2 = "[[provider]]\nhttp2 = true\ntimeouts = { first_byte_secs = 1, first_byte_whole_secs = 1, between_bytes_secs = 1 }";
    let rig = Rig::with(http2).await;
    let cut = Script::cut_after;
    let broken = |words| Broken {
        words,
        code: "upstream_error",
    };
    check(
        &rig,
        true,
        vec![
            (
                "no head",
                Script::no_head(Leave::Reset),
                Error(502, "upstream_error"),
                0,
            ),
            (
                "a status",
                Script::status(503),
                Error(502, "upstream_error"),
                0,
            ),
            (
                "silence",
                Script::hold_head("never"),
                Error(504, "upstream_timeout"),
                0,
            ),
            ("cut after the role", cut(1, Leave::Reset), broken(0), 0),
            (
                "cut after four words",
                cut(5, Leave::Reset),
                broken(4),
                counted(4),
            ),
            (
                "nothing wrong",
                Script::default(),
                Answer { words: 16 },
                PRICE_OF_A_CHAT,
            ),
        ],
    )
    .await;
    let calls = rig.provider.calls_when_ended().await;
    assert!(calls.iter().all(|call| call.protocol == "HTTP/2.0"));
    let after = rig.finish().await;
    assert_eq!(after.report.usage, 4);
}

#[tokio::test]
async fn a_provider_that_refuses_connections_is_502_until_it_comes_back() {
    let rig = Rig::start().await;
    rig.provider.stop_listening().await;
    for (protocol, client) in rig.both() {
        for stream in [false, true] {
            let seen = look(&client, stream).await;
            assert_eq!(seen, Ok(Error(502, "upstream_unreachable")), "{protocol}");
        }
    }
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(
        list["data"],
        json!([]),
        "a model that cannot be had is not listed"
    );
    rig.provider.listen_again().await;
    let seen = look(&rig.client(), false).await;
    assert_eq!(seen, Ok(Answer { words: 16 }), "it is tried all the same");
    rig.charged(PRICE_OF_A_CHAT);
    let list = rig.client().get("/v1/models").await.json();
    assert_eq!(
        list["data"].as_array().map(Vec::len),
        Some(2),
        "it works again"
    );
    rig.finish().await;
}

#[tokio::test]
async fn a_new_connection_that_breaks_before_the_head_is_not_tried_again() {
    let rig = Rig::start().await;
    for leave in [Leave::Close, Leave::Reset] {
        for stream in [false, true] {
            rig.provider.forget_calls();
            rig.provider.script(Script::no_head(leave).once());
            let seen = look(&rig.client(), stream).await;
            assert_eq!(seen, Ok(Error(502, "upstream_error")), "{leave:?}");
            assert_eq!(rig.provider.call_count(), 1, "{leave:?}");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_pooled_connection_that_went_stale_costs_one_retry_and_nothing_else() {
    // Over plain HTTP/1.1 the pool is ours, over TLS and HTTP/2 it is the connector's.
    for (tls, http2) in [(false, false), (true, false)] {
        let mut setup = crate::rig::Setup::with(&format!(
            "[[provider]]\nhttp2 = {http2}\n{}",
            if tls {
                "ca_file = \"provider-ca.pem\""
            } else {
                ""
            }
        ));
        setup.provider_tls = tls;
        let rig = setup.start().await;
        for leave in [Leave::Close, Leave::Reset] {
            for stream in [false, true] {
                // Two connections lie in the pool, both of which will break when they are used again.
                rig.provider.clear_scripts();
                fill_pool(&rig, 2).await;
                rig.provider.forget_calls();
                rig.provider.script(Script {
                    on_reused_connection: true,
                    ..Script::no_head(leave)
                });
                let seen = look(&rig.client(), stream).await;
                let what = format!("TLS {tls}, {leave:?}, stream {stream}");
                assert_eq!(seen, Ok(Answer { words: 16 }), "{what}");
                rig.charged(PRICE_OF_A_CHAT);
                let calls = rig.provider.calls_when_ended().await;
                assert_eq!(calls.len(), 2, "{what}: one retry, exactly");
                assert_eq!(calls[0].body, calls[1].body, "{what}");
                assert_eq!(calls[1].ended, Some(Ended::Whole), "{what}");
            }
        }
        let after = rig.finish().await;
        let calls: u64 = after
            .log
            .iter()
            .filter_map(|line| line["upstream_calls"].as_u64())
            .sum();
        assert_eq!(
            calls,
            4 * (2 + 2),
            "two to fill the pool, two for the retried one"
        );
    }
}

/// Has so many calls at once, so that their connections are idle together afterwards.
async fn fill_pool(rig: &Rig, count: usize) {
    rig.provider
        .script(Script::hold_head("together").times(u32::try_from(count).expect("a few")));
    let gate = rig.provider.gate("together");
    let before = gate.arrived();
    let clients: Vec<_> = (0..count)
        .map(|_| {
            let client = rig.client();
            tokio::spawn(async move { client.post(CHAT, &chat(false)).await.status })
        })
        .collect();
    gate.reached_by(before + count).await;
    gate.release(count);
    for client in clients {
        assert_eq!(client.await.expect("no panic"), 200);
        rig.charged(PRICE_OF_A_CHAT);
    }
    rig.provider.calls_when_ended().await;
}

#[tokio::test]
async fn a_connection_that_the_provider_closed_while_it_was_idle_is_not_used() {
    let rig = Rig::start().await;
    for round in 0..3 {
        let seen = look(&rig.client(), round % 2 == 0).await;
        assert_eq!(seen, Ok(Answer { words: 16 }));
        rig.charged(PRICE_OF_A_CHAT);
        rig.provider.calls_when_ended().await;
        rig.provider.hang_up_idle();
    }
    assert_eq!(rig.provider.call_count(), 3);
    rig.finish().await;
}

#[tokio::test]
async fn a_busy_provider_tells_the_client_how_long_to_wait() {
    let rig = Rig::start().await;
    //   it says      the client is told
    for (said, told) in [
        (Some("2"), "2"),
        (Some("0"), "1"),
        (Some("3600"), "60"),
        (Some("Wed, 21 Oct 2026 07:28:00 GMT"), "5"),
        (None, "5"),
    ] {
        let script = Script {
            retry_after: said.map(str::to_owned),
            ..Script::status(429)
        };
        rig.provider.script(script.once());
        let answer = rig.client().post(CHAT, &chat(false)).await;
        assert_eq!(answer.status, 429, "{said:?}");
        assert_eq!(answer.header("retry-after"), Some(told), "{said:?}");
        for name in [
            "ratelimit-policy",
            "ratelimit",
            "ratelimit-limit",
            "ratelimit-remaining",
            "ratelimit-reset",
        ] {
            assert!(answer.header(name).is_some(), "{name} is missing on a 429");
        }
    }
    rig.finish().await;
}

#[tokio::test]
async fn a_refusal_of_the_provider_reaches_the_client_in_its_own_words_and_nothing_else_does() {
    let rig = Rig::start().await;
    rig.provider.script(Script::status(400).once());
    let answer = rig.client().post(CHAT, &chat(true)).await;
    let error = answer.json()["error"].clone();
    assert_eq!(
        error["message"],
        "This prompt is longer than the model can read."
    );
    // What says something about us does not.
    for status in [401, 403, 404, 500] {
        rig.provider.script(Script::status(status).once());
        let answer = rig.client().post(CHAT, &chat(true)).await;
        let said = answer::error_body(status)["error"]["message"].clone();
        let said = said.as_str().expect("a message");
        assert!(!answer.text().contains(said), "{status}: {}", answer.text());
        assert!(!answer.text().contains("vendor/"), "{status}");
        let _: Value = answer.json();
    }
    rig.finish().await;
}
