//! Composes the plan of the response to one request by its script.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use serde_json::Value;

use super::answer::{self, GeneratedAnswer};
use super::plan::{Plan, Step};
use super::request::Request;
use super::script::{Cut, Failure, Framing, Script};
use super::state::Shared;

/// Neither text nor JSON, containing what resembles an event and a head's end.
const GARBAGE: &[u8] = b"\x00\xff\xfe\x80{data: \x01\x02\xc0\xc1\n\n\r\n\r\n]\x00";

/// The response to a request for the OpenAI-compatible interface.
pub(super) fn plan(
    shared: &Shared,
    request: &Request,
    json: Option<&Value>,
    script: &Script,
    number: u64,
) -> Plan {
    let mut steps = Vec::new();
    steps.extend(
        script
            .hold_head
            .as_ref()
            .map(|name| Step::Wait(shared.gate(name))),
    );
    if script.delay_head_ms > 0 {
        steps.push(Step::Pause(Duration::from_millis(script.delay_head_ms)));
    }
    steps.extend(
        script
            .informational
            .iter()
            .map(|status| Step::Informational(*status)),
    );
    if let Some(leave) = script.instead_of_head {
        steps.push(Step::Leave(leave));
    } else {
        let content = content(shared, request, json, script, number);
        put_head(&mut steps, &content, script, number);
        put_pieces(&mut steps, content, script, shared);
    }
    Plan {
        steps,
        write_bytes: script.write_bytes,
    }
}

/// The content, before its encoding is decided.
struct Content {
    status: u16,
    content_type: &'static str,
    pieces: Vec<Bytes>,
    streamed: bool,
}

impl Content {
    fn of(status: u16, content_type: &'static str, body: impl Into<Bytes>) -> Self {
        Self {
            status,
            content_type,
            pieces: vec![body.into()],
            streamed: false,
        }
    }

    fn json(status: u16, body: &Value) -> Self {
        Self::of(status, "application/json", body.to_string())
    }
}

fn content(
    shared: &Shared,
    request: &Request,
    json: Option<&Value>,
    script: &Script,
    number: u64,
) -> Content {
    let status = script.status.unwrap_or(200);
    let text = |content_type, body: &'static [u8]| Content::of(status, content_type, body);
    match &script.failure {
        Some(Failure::Html) => {
            return text("text/html", b"<html><head><title>502 Bad Gateway</title></head><body>nothing here</body></html>");
        }
        Some(Failure::Garbage) => return text("application/json", GARBAGE),
        Some(Failure::InvalidJson) => {
            return text(
                "application/json",
                br#"{"id":"chatcmpl-standin","choices":[{"index":0,"#,
            );
        }
        Some(Failure::OtherJson) => return text("application/json", br#"{"weather":"fine"}"#),
        Some(Failure::Empty) => return text("application/json", b""),
        Some(Failure::Text(body)) => return Content::of(status, "text/plain", body.clone()),
        None if script
            .status
            .is_some_and(|status| !(200..300).contains(&status)) =>
        {
            return Content::json(status, &answer::error_body(status));
        }
        None => {}
    }
    if let Some(key) = &shared.settings.key {
        let borne = request
            .headers
            .get("authorization")
            .and_then(|value| value.to_str().ok());
        if borne.and_then(|value| value.strip_prefix("Bearer ")) != Some(key) {
            return Content::json(401, &answer::error_body(401));
        }
    }
    let chat = request.path.ends_with("/chat/completions");
    match (request.method.as_str(), json) {
        ("GET", _) if request.path.ends_with("/models") => {
            Content::json(status, &models(&shared.settings.models))
        }
        ("POST", Some(body)) if chat || request.path.ends_with("/completions") => {
            completion(status, body, chat, script, number)
        }
        ("POST", None) => Content::json(400, &answer::error_body(400)),
        _ => Content::json(404, &answer::error_body(404)),
    }
}

fn models(names: &[String]) -> Value {
    let model = |name: &String| serde_json::json!({"id": name, "object": "model", "created": answer::CREATED, "owned_by": "stand-in"});
    serde_json::json!({"object": "list", "data": names.iter().map(model).collect::<Vec<_>>()})
}

fn completion(status: u16, body: &Value, chat: bool, script: &Script, number: u64) -> Content {
    let generated = GeneratedAnswer::to(body, chat, number, script);
    if body["stream"] != true {
        return Content::json(status, &generated.body(script));
    }
    let event = |data: &str| Bytes::from(answer::event(data, script));
    let mut pieces: Vec<Bytes> = generated
        .chunks(script)
        .iter()
        .map(|chunk| event(&chunk.to_string()))
        .collect();
    if !script.no_done {
        pieces.push(event("[DONE]"));
    }
    if let Some(at) = script.error_event_at {
        pieces.truncate(at);
        let name = if script.event_names {
            format!("event: error{}", script.line_end.text())
        } else {
            String::new()
        };
        pieces.push((name + &answer::event(&answer::error_body(500).to_string(), script)).into());
    }
    Content {
        status,
        content_type: "text/event-stream",
        pieces,
        streamed: true,
    }
}

fn put_head(steps: &mut Vec<Step>, content: &Content, script: &Script, number: u64) {
    let value = |text: &str| HeaderValue::from_str(text).expect("scripts hold visible ASCII");
    // Provider headers that a gateway must not forward.
    let mut headers = vec![
        (http::header::CONTENT_TYPE, value(content.content_type)),
        (http::header::SERVER, value("stand-in")),
        (
            HeaderName::from_static("x-request-id"),
            value(&format!("req_standin{number}")),
        ),
        (HeaderName::from_static("openai-processing-ms"), value("7")),
        (
            HeaderName::from_static("x-ratelimit-remaining-requests"),
            value("9999"),
        ),
        (http::header::SET_COOKIE, value("stand_in=1; HttpOnly")),
    ];
    headers.extend(
        script
            .retry_after
            .as_ref()
            .map(|wait| (http::header::RETRY_AFTER, value(wait))),
    );
    for (name, text) in &script.headers {
        let name: HeaderName = name.parse().expect("scripts hold valid field names");
        headers.retain(|(there, _)| *there != name);
        headers.push((name, value(text)));
    }
    let endless = script.endless && content.streamed;
    steps.push(Step::Head {
        status: content.status,
        headers,
        framing: script.framing.unwrap_or(if content.streamed {
            Framing::Chunked
        } else {
            Framing::Length
        }),
        length: if endless {
            usize::MAX
        } else {
            content.pieces.iter().map(Bytes::len).sum()
        },
    });
}

fn put_pieces(steps: &mut Vec<Step>, content: Content, script: &Script, shared: &Shared) {
    let pace = script.pace.as_ref().map(|name| shared.gate(name));
    let cut = script.cut.clone().unwrap_or_default();
    let mut bytes_left = cut.after_bytes;
    // The first content event of a chat stream comes after the role chunk.
    let repeated = (script.endless && content.streamed)
        .then(|| content.pieces.get(1).cloned())
        .flatten();
    for (index, mut piece) in content.pieces.into_iter().enumerate() {
        put_stops(steps, index, script, shared);
        if cut.after_events == Some(index) {
            steps.push(Step::Leave(cut.by));
            return;
        }
        steps.extend(pace.clone().map(Step::Wait));
        if let Some(left) = &mut bytes_left {
            if *left < piece.len() {
                piece.truncate(*left);
                steps.extend([Step::Piece(piece), Step::Leave(cut.by)]);
                return;
            }
            *left -= piece.len();
        }
        steps.push(Step::Piece(piece));
        if let (1, Some(piece)) = (index, &repeated) {
            steps.push(Step::Endless(piece.clone(), pace));
            return;
        }
    }
    put_end_of_cut(steps, &cut, script.cut.is_some());
}

/// A cut after the last piece replaces the body's proper end.
fn put_end_of_cut(steps: &mut Vec<Step>, cut: &Cut, is_scripted: bool) {
    if is_scripted {
        steps.push(Step::Leave(cut.by));
    }
}

fn put_stops(steps: &mut Vec<Step>, index: usize, script: &Script, shared: &Shared) {
    if index > 0 && script.delay_piece_ms > 0 {
        steps.push(Step::Pause(Duration::from_millis(script.delay_piece_ms)));
    }
    let holds = script.holds.iter().filter(|hold| hold.before == index);
    steps.extend(holds.map(|hold| Step::Wait(shared.gate(&hold.gate))));
}
