//! Failures of providers: the client's answer, the charge, and the calls. No hold is left.

mod addresses;
mod circuits;
mod connections;
mod failover;
mod fixture;
mod health;
mod hedge;
mod queue;
mod quirks;
mod refusals;
mod streams;
mod traces;
mod unclosed;
mod whole;

use serde_json::{Value, json};
use tollgate_testing::provider::{Cut, Failure, Framing, Leave, LineEnd, UsageReport, answer};
use tollgate_testing::{Client, Ended, Event, Script, StreamEnd};

use crate::endings::WITH_REQUEST_PRICE;
use crate::rig::{CHAT, CREDITS, IN, OUT, PRICE_OF_A_CHAT, Rig, chat};

/// The answer seen by a client.
#[derive(Debug, PartialEq)]
enum Observed {
    /// A whole answer, or a stream with `words` words and `[DONE]` at the end.
    Answer { words: u64 },
    /// An error with status and code, before any other byte.
    Error(u16, &'static str),
    /// A stream of `words` words with an error event of `code` at the end, and without `[DONE]`.
    Broken { words: u64, code: &'static str },
}

use Observed::{Answer, Broken, Error};

/// A failure: name, the provider's script, the client's observation, and the charge in micro-credits.
type Case = (&'static str, Script, Observed, i64);

/// Tokens counted by the gateway instead of reported: the prompt of [`chat`] by the count of the meter.
const COUNTED_PROMPT: i64 = 9;

/// The charge for a counted answer of `words` words, a token per word.
const fn counted(words: i64) -> i64 {
    COUNTED_PROMPT * IN + words * OUT
}

/// Runs every case over HTTP/1.1 and HTTP/2, and fails with the list of differences.
async fn check(rig: &Rig, stream: bool, cases: Vec<Case>) {
    let mut problems = Vec::new();
    let mut left = CREDITS;
    for (what, script, expected, charge) in &cases {
        for (protocol, client) in rig.both() {
            rig.provider.script(script.clone().once());
            rig.provider.forget_calls();
            let seen = observe(&client, stream).await;
            rig.quiet().await;
            rig.add_expected_charge(*charge);
            let charged = left - rig.available(rig.account);
            left -= charged;
            let ended = rig.provider.calls_when_ended().await.len();
            if seen.as_ref().ok() != Some(expected) {
                problems.push(format!(
                    "{what}, {protocol}: observed {seen:?}, not {expected:?}"
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

/// Sends a chat and returns the client's observation.
async fn observe(client: &Client, stream: bool) -> Result<Observed, String> {
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

/// A failure before the first byte of an answer does not differ between whole answers and streams.
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
