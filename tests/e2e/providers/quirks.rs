//! Table test of provider peculiarities: the bodies of `quirks.toml` from a provider's socket, the client's view, and the exact bill.

use std::sync::Arc;

use bytes::Bytes;
use http::{HeaderValue, header};
use parking_lot::Mutex;
use serde::Deserialize;
use tollgate_testing::provider::{Plan, Step};

use super::*;
use crate::rig::{Setup, TEXT};

/// The price of a successful request, in micro-credits.
const REQUEST: i64 = 10_000;

#[derive(Deserialize)]
struct Table {
    streams: Vec<Row>,
    answers: Vec<Row>,
    text_streams: Vec<Row>,
    text_answers: Vec<Row>,
}

/// The operation of rows.
#[derive(Clone, Copy, PartialEq)]
enum Operation {
    Chat,
    Text,
}

/// One peculiarity.
#[derive(Deserialize)]
struct Row {
    name: String,
    /// The source of the peculiarity.
    #[serde(rename = "source")]
    _source: String,
    body: String,
    /// The client's view, in the form of [`seen`].
    seen: String,
    /// Input tokens, output tokens, request prices; empty without a charge.
    bill: Vec<i64>,
    #[serde(default)]
    more: More,
}

#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct More {
    /// The type of the body; `None` for the usual type.
    kind: Option<String>,
    /// The message of the error received by the client.
    message: Option<String>,
    /// Members of the request.
    request: toml::Table,
    /// A text of the body, and the replacement at every occurrence.
    replace: Option<(String, String)>,
}

impl Row {
    fn charge(&self) -> i64 {
        match self.bill[..] {
            [] => 0,
            [input, output, requests] => input * IN + output * OUT + requests * REQUEST,
            _ => panic!("{}: a bill has three numbers or none", self.name),
        }
    }

    /// The bytes of the body.
    fn bytes(&self, operation: Operation) -> Vec<u8> {
        let usage = |list: &str| {
            let (input, output) = list.split_once(',').expect("two counts");
            let count = |text: &str| text.parse::<u64>().expect("a count");
            let (input, output) = (count(input), count(output));
            format!(
                r#"{{"prompt_tokens":{input},"completion_tokens":{output},"total_tokens":{}}}"#,
                input + output
            )
        };
        let (object, part, whole) = match operation {
            Operation::Chat => ("chat.completion", "delta", "message"),
            Operation::Text => ("text_completion", "text", "text"),
        };
        let kind = match operation {
            Operation::Chat => "chat.completion.chunk",
            Operation::Text => object,
        };
        let chunk = |delta: &str, finish: &str| {
            format!(
                r#"data: {{"id":"7","object":"{kind}","created":1,"model":"m","choices":[{{"index":0,"{part}":{delta},"finish_reason":{finish}}}]"#
            )
        };
        // The first event, an event without text, an event of a text, and a whole text.
        let (role, silent, answer) = match operation {
            Operation::Chat => (
                r#"{"role":"assistant","content":""}"#,
                "{}",
                r#"{"role":"assistant","content":"The toll"}"#,
            ),
            Operation::Text => ("\"\"", "\"\"", "\"The toll\""),
        };
        let say = |word: &str| match operation {
            Operation::Chat => format!(r#"{{"content":" {word}"}}"#),
            Operation::Text => format!(r#"" {word}""#),
        };
        let mut body = self.body.clone();
        for (word, text) in [
            ("@good", "@role@say(The)@say(toll)@stop@usage(5,2)@done"),
            ("@role", &(chunk(role, "null") + "}\\n\\n")),
            ("@stop", &(chunk(silent, "\"stop\"") + "}\\n\\n")),
            ("@done", "data: [DONE]\\n\\n"),
        ] {
            body = body.replace(word, text);
        }
        let body = replace_calls(&body, "@u(", usage);
        let body = replace_calls(&body, "@say(", |word| chunk(&say(word), "null") + "}\\n\\n");
        let body = replace_calls(&body, "@usage(", |list| {
            format!("data: {{\"choices\":[],\"usage\":{}}}\\n\\n", usage(list))
        });
        let body = replace_calls(&body, "@last(", |usage| {
            chunk(silent, "\"stop\"") + &format!(",\"usage\":{usage}}}\\n\\n")
        });
        let body = replace_calls(&body, "@answer(", |usage| {
            format!(
                r#"{{"id":"7","object":"{object}","created":1,"model":"m","choices":[{{"index":0,"{whole}":{answer},"finish_reason":"stop"}}],"usage":{usage}}}"#
            )
        });
        let mut bytes = unescape(&body);
        if let Some((from, to)) = &self.more.replace {
            let text = String::from_utf8(bytes).expect("a text");
            bytes = text.replace(from.as_str(), to).into_bytes();
        }
        bytes
    }

    fn plan(&self, operation: Operation, stream: bool, write_bytes: Option<usize>) -> Plan {
        let usual = match stream {
            true => "text/event-stream",
            false => "application/json",
        };
        let kind = self.more.kind.as_deref().unwrap_or(usual);
        let body = self.bytes(operation);
        let head = Step::Head {
            status: 200,
            headers: vec![(
                header::CONTENT_TYPE,
                HeaderValue::from_str(kind).expect("a type"),
            )],
            framing: Framing::Chunked,
            length: body.len(),
        };
        Plan {
            steps: match body.is_empty() {
                true => vec![head],
                false => vec![head, Step::Piece(Bytes::from(body))],
            },
            write_bytes,
        }
    }

    fn request(&self, operation: Operation, stream: bool, include_usage: bool) -> Value {
        let mut request = match operation {
            Operation::Chat => chat(stream),
            Operation::Text => {
                json!({"model": "small", "prompt": "Who goes there?", "stream": stream})
            }
        };
        if include_usage {
            request["stream_options"] = json!({"include_usage": true});
        }
        for (name, value) in &self.more.request {
            request[name] = serde_json::to_value(value).expect("TOML is JSON");
        }
        request
    }
}

/// Replaces every `word` with the argument of `word`. The argument ends at the closing parenthesis.
fn replace_calls(text: &str, word: &str, with: impl Fn(&str) -> String) -> String {
    let mut out = String::new();
    let mut rest = text;
    while let Some(at) = rest.find(word) {
        out += &rest[..at];
        let argument = &rest[at + word.len()..];
        let end = argument.find(')').expect("a closing parenthesis");
        out += &with(&argument[..end]);
        rest = &argument[end + 1..];
    }
    out + rest
}

/// The bytes of a text with `\n`, `\r` and `\xHH`; any other backslash is JSON's.
fn unescape(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut rest = text;
    while let Some(at) = rest.find('\\') {
        bytes.extend_from_slice(&rest.as_bytes()[..at]);
        let (byte, length) = match rest.as_bytes().get(at + 1) {
            Some(b'n') => (b'\n', 2),
            Some(b'r') => (b'\r', 2),
            Some(b'x') => {
                let digits = &rest[at + 2..at + 4];
                (u8::from_str_radix(digits, 16).expect("two digits"), 4)
            }
            _ => (b'\\', 1),
        };
        bytes.push(byte);
        rest = &rest[at + length..];
    }
    bytes.extend_from_slice(rest.as_bytes());
    bytes
}

/// The answer received by a client.
struct Received {
    /// `2 words`, `2 words, CODE` for a stream with an error event at the end, or `STATUS CODE`.
    seen: String,
    message: Option<String>,
    /// The metadata objects of the answer.
    metadata: Vec<Value>,
    /// The values of `usage` except null, and whether the member exists at all.
    usages: Vec<Value>,
    has_usage: bool,
}

impl Received {
    fn of(seen: String, objects: &[Value]) -> Received {
        let all = |name: &str| -> Vec<Value> {
            let found = objects.iter().filter_map(|one| one.get(name).cloned());
            found.collect()
        };
        let usages = all("usage");
        let message = objects.last().and_then(|last| {
            let message = last["error"]["message"].as_str();
            message.map(str::to_owned)
        });
        Received {
            seen,
            message,
            metadata: all("x_svc"),
            has_usage: !usages.is_empty(),
            usages: usages.into_iter().filter(|one| !one.is_null()).collect(),
        }
    }
}

async fn receive(client: &Client, operation: Operation, request: &Value) -> Received {
    let path = match operation {
        Operation::Chat => CHAT,
        Operation::Text => TEXT,
    };
    let mut answer = client.stream(path, request).await;
    let kind = answer.header("content-type").unwrap_or_default().to_owned();
    if kind != "text/event-stream" {
        let answer = answer.whole().await;
        let body = answer.json();
        let seen = match answer.status {
            200 => {
                let choice = &body["choices"][0];
                let text = choice["message"]["content"].as_str();
                let text = text.or(choice["text"].as_str());
                format!("{} words", answer::tokens(text.unwrap_or_default()))
            }
            status => format!("{status} {}", body["error"]["code"].as_str().unwrap_or("-")),
        };
        return Received::of(seen, &[body]);
    }
    let (events, end) = answer.rest().await;
    let (done, events): (Vec<Event>, Vec<Event>) = events.into_iter().partition(Event::is_done);
    let objects: Vec<Value> = events.iter().map(Event::json).collect();
    let text: String = objects.iter().map(text_of).collect();
    let code = objects
        .last()
        .and_then(|last| last["error"]["code"].as_str());
    let seen = match (code, done.len(), end) {
        (None, 1, StreamEnd::Proper) => format!("{} words", answer::tokens(&text)),
        (Some(code), 0, StreamEnd::Proper) => format!("{} words, {code}", answer::tokens(&text)),
        other => format!("an end that is neither: {other:?}"),
    };
    Received::of(seen, &objects)
}

/// The text of an event: a string, or the texts of the event's parts.
fn text_of(event: &Value) -> String {
    let choice = &event["choices"][0];
    let content = match &choice["delta"] {
        Value::Null => &choice["text"],
        delta => &delta["content"],
    };
    let parts = content.as_array().into_iter().flatten();
    let parts = parts.filter_map(|part| part["text"].as_str());
    parts.chain(content.as_str()).collect()
}

/// The differences between a row and the received answer.
fn differences(row: &Row, include_usage: bool, received: &Received, charged: i64) -> Vec<String> {
    let mut found = Vec::new();
    let mut expect = |what: &str, is: String, wanted: String| {
        if is != wanted {
            found.push(format!("{what} is {is}, not {wanted}"));
        }
    };
    expect("the answer", received.seen.clone(), row.seen.clone());
    expect("the charge", charged.to_string(), row.charge().to_string());
    if let Some(message) = &row.more.message {
        let is = received.message.clone().unwrap_or_default();
        expect("the message", is, message.clone());
    }
    let shown: Vec<i64> = received
        .metadata
        .iter()
        .map(|one| crate::rig::micros(&one["credits_used"]))
        .collect();
    let wanted: &[i64] = match charged {
        0 => &[],
        _ => &[charged],
    };
    expect("x_svc", format!("{shown:?}"), format!("{wanted:?}"));
    let usages: Vec<[i64; 2]> = received
        .usages
        .iter()
        .map(|usage| {
            ["prompt_tokens", "completion_tokens"]
                .map(|name| usage[name].as_f64().map_or(-1, |count| count as i64))
        })
        .collect();
    let wanted: Vec<[i64; 2]> = match row.bill[..] {
        [input, output, _] if include_usage => vec![[input, output]],
        _ => Vec::new(),
    };
    expect("the usage", format!("{usages:?}"), format!("{wanted:?}"));
    if !include_usage && received.has_usage {
        found.push("a usage is shown that was not requested".to_owned());
    }
    found
}

/// Every row over HTTP/1.1 in a single piece and over HTTP/2 a byte at a time; streams with and without a requested usage.
async fn check_rows(operation: Operation, rows: &[Row], stream: bool) {
    let current: Arc<Mutex<Plan>> = Arc::default();
    let played = current.clone();
    let custom = move |_: &tollgate_testing::provider::Request| Some(played.lock().clone());
    let settings = "[[model]]\nprice = { input = \"150\", output = \"600\", request = \"0.01\" }";
    let setup = Setup {
        custom: Some(Arc::new(custom)),
        ..Setup::with(settings).credits(1_000_000_000_000)
    };
    let rig = setup.start().await;
    let mut left = rig.available(rig.account);
    let mut problems = Vec::new();
    for row in rows {
        for ((protocol, client), write_bytes) in rig.both().into_iter().zip([None, Some(1)]) {
            for include_usage in [false, true] {
                *current.lock() = row.plan(operation, stream, write_bytes);
                let request = row.request(operation, stream, include_usage && stream);
                let received = receive(&client, operation, &request).await;
                rig.quiet().await;
                let charged = left - rig.available(rig.account);
                left -= charged;
                rig.add_expected_charge(charged);
                // A whole answer always has usage.
                let shows_usage = include_usage || !stream;
                for difference in differences(row, shows_usage, &received, charged) {
                    problems.push(format!(
                        "{}, {protocol}, {include_usage}: {difference}",
                        row.name
                    ));
                }
                if !stream {
                    break;
                }
            }
        }
    }
    assert!(problems.is_empty(), "{}", problems.join("\n"));
    rig.finish().await;
}

fn table() -> Table {
    toml::from_str(include_str!("quirks.toml")).expect("the table is TOML")
}

#[tokio::test]
async fn every_peculiar_stream_is_shown_and_charged_as_its_row_says() {
    check_rows(Operation::Chat, &table().streams, true).await;
}

#[tokio::test]
async fn every_peculiar_whole_answer_is_shown_and_charged_as_its_row_says() {
    check_rows(Operation::Chat, &table().answers, false).await;
}

#[tokio::test]
async fn every_peculiar_text_stream_is_shown_and_charged_as_its_row_says() {
    check_rows(Operation::Text, &table().text_streams, true).await;
}

#[tokio::test]
async fn every_peculiar_whole_text_is_shown_and_charged_as_its_row_says() {
    check_rows(Operation::Text, &table().text_answers, false).await;
}
