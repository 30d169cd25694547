//! Table of the parsers of input from the network or from disk, each callable with any bytes: for `fuzz/` and its corpora.

#[cfg(test)]
mod tests;

use std::path::Path;
use std::sync::Arc;

use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue};
use serde::de::IgnoredAny;
use tollgate_clock::Timestamp;
use tollgate_evm::{Address, Amount, Nonce, Signature, WrittenAddress};
use tollgate_openai::{
    Answer, BodyEdit, ChunkReader, CompletionRequest, EventCutter, Family, ObjectEdit, Patch,
    ProviderError, Tail, Usage,
};

use crate::{config, proxy, registry, trace_context, upstream};

/// A parser, and the checks of its result.
pub type Target = fn(&[u8]);

/// Every target, by the name of its corpus.
pub const TARGETS: &[(&str, Target)] = &[
    ("auth-credentials", tollgate_auth::fuzz::credentials),
    ("cache-record", tollgate_cache::fuzz::record),
    ("commerce-checkout", tollgate_commerce::fuzz::checkout),
    ("commerce-fields", tollgate_commerce::fuzz::fields),
    ("commerce-profile", tollgate_commerce::fuzz::profile),
    ("dates", dates),
    ("environment-file", config::fuzz_environment),
    ("evm", evm),
    ("export", tollgate_store::fuzz::export),
    ("journal-row", tollgate_store::fuzz::journal_row),
    ("mcp-request", tollgate_mcp::fuzz::request),
    ("mpp", tollgate_pay::fuzz::mpp),
    ("oauth-metadata", tollgate_oauth::fuzz::metadata),
    ("oauth-parameters", tollgate_oauth::fuzz::parameters),
    ("openai-answer", openai_answer),
    ("openai-events", openai_events),
    ("openai-object", openai_object),
    ("openai-request", openai_request),
    ("paypal-webhook", tollgate_paypal::fuzz::webhook),
    ("portal-cookie", tollgate_portal::fuzz::cookie),
    ("portal-form", tollgate_portal::fuzz::form),
    ("provider-answer", upstream::fuzz_answer),
    ("provider-error", provider_error),
    ("proxy-forwarded", proxy::fuzz::forwarded),
    ("proxy-header", proxy::fuzz::proxy_header),
    ("purchase", tollgate_pay::fuzz::purchase),
    ("request-head", proxy::fuzz::request_head),
    ("settings", settings),
    ("spool", tollgate_store::fuzz::spool),
    ("trace-context", trace),
    ("x402", tollgate_pay::fuzz::x402),
];

/// Fails unless `text` is a JSON value. The asserting parser has a separate limit for nesting.
fn assert_json(text: &[u8], what: &str) {
    if let Err(error) = serde_json::from_slice::<IgnoredAny>(text) {
        let nested = error.to_string().contains("recursion limit");
        assert!(
            nested,
            "{what} is no JSON ({error}): {}",
            text.escape_ascii()
        );
    }
}

/// Times of RFC 3339, and `Retry-After`.
fn dates(input: &[u8]) {
    if let Ok(text) = std::str::from_utf8(input) {
        let _ = Timestamp::from_rfc3339(text);
    }
    upstream::fuzz_retry_after(input);
}

fn evm(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    if let Ok(address) = text.parse::<Address>() {
        assert_eq!(address.to_string().parse(), Ok(address));
        assert_eq!(address.checksummed().parse(), Ok(address));
    }
    if let Ok(written) = text.parse::<WrittenAddress>() {
        let _ = written.is_plausible();
    }
    if let Ok(amount) = text.parse::<Amount>() {
        assert_eq!(amount.to_string().parse(), Ok(amount));
        let _ = amount.to_u64();
    }
    let _ = (text.parse::<Nonce>(), Signature::read(text));
}

/// A completion's body, and the body sent to the provider.
fn openai_request(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    for family in Family::ALL {
        let Ok(request) = CompletionRequest::read(family, &body) else {
            continue;
        };
        assert_json(&body, "an accepted body");
        let edit = |request: &CompletionRequest, body: &Bytes| {
            let edit = BodyEdit::new(request).model("m \"1\"").without_cache();
            edit.with_usage().cap_output(5).apply(body)
        };
        let edited = edit(&request, &body);
        let again = CompletionRequest::read(family, &edited);
        let again = again.unwrap_or_else(|error| {
            let (from, to) = (body.escape_ascii(), edited.escape_ascii());
            panic!("{from} becomes {to}: {error:?}")
        });
        assert_eq!(edit(&again, &edited), edited, "a second edit changes it");
    }
}

/// A stream: the events are equal for any size of pieces, and every event is written as JSON.
fn openai_events(input: &[u8]) {
    let whole = events(input, input.len().max(1));
    for piece in [1, 5] {
        assert_eq!(events(input, piece), whole, "in pieces of {piece} bytes");
    }
    for include_usage in [false, true] {
        let patch = Patch::new(Family::CHAT, "x_name").model("m");
        let mut reader = ChunkReader::new(Arc::new(patch), include_usage);
        for (data, _) in &whole.0 {
            let Ok(chunk) = reader.read(data) else { break };
            let mut text = String::new();
            chunk.append_text(&mut text);
            let (mut plain, mut last) = (BytesMut::new(), BytesMut::new());
            chunk.write(&mut plain);
            chunk.write_last(Some(Usage::new(3, 5)), b"{}", &mut last);
            assert_json(&plain, "an event");
            assert_json(&last, "a last event");
        }
    }
}

/// The events with a mark for named errors, and the rest at the end. Events after an event that is too large are missing.
type Cut = (Vec<(Vec<u8>, bool)>, Option<Vec<u8>>);

fn events(input: &[u8], piece: usize) -> Cut {
    let mut cutter = EventCutter::new(64 * 1024);
    let mut all = Vec::new();
    for piece in input.chunks(piece) {
        let mut events = cutter.push(piece);
        while let Ok(Some(event)) = events.next() {
            all.push((event.data.to_vec(), event.named_error));
        }
    }
    let tail = match cutter.finish() {
        Tail::Nothing => None,
        Tail::Event(event) => Some(event.data.to_vec()),
        Tail::Torn => Some(b"torn".to_vec()),
    };
    (all, tail)
}

/// A whole answer, and the answer for the client.
fn openai_answer(input: &[u8]) {
    let patch = Patch::new(Family::CHAT, "x_name").model("m");
    let Ok(answer) = Answer::read(input, &patch) else {
        return;
    };
    let mut text = String::new();
    answer.append_text(&mut text);
    let charged = Some(Usage::new(3, 5));
    let mut out = BytesMut::new();
    let facts = answer.facts();
    assert!(facts.write(input, &patch, charged, Some(b"{}"), &mut out));
    assert_json(&out, "an answer");
}

/// An object with an edit.
fn openai_object(input: &[u8]) {
    let body = Bytes::copy_from_slice(input);
    let Ok(object) = ObjectEdit::read(&body) else {
        return;
    };
    assert_json(&body, "an accepted object");
    let edited = object.set_text("k", "v").remove("j").apply();
    assert_json(&edited, "an edited object");
    let again = ObjectEdit::read(&edited).expect("an edited object is read");
    assert_eq!(again.value("k"), Some(&b"\"v\""[..]));
}

fn provider_error(input: &[u8]) {
    let error = ProviderError::read(input);
    for text in [error.message, error.kind, error.code, error.param] {
        let text = text.unwrap_or_default();
        assert!(text.chars().count() <= 400 && !text.contains(char::is_control));
    }
}

/// The settings file, written by an operator: every error has its place.
fn settings(input: &[u8]) {
    let Ok(text) = std::str::from_utf8(input) else {
        return;
    };
    let modules = registry::declarations(&registry::modules());
    let file = Path::new("/nonexistent/tollgate.toml");
    let environment = config::Environment::default();
    if let Err(report) = config::load_text(file, text, &environment, &modules) {
        assert!(!report.findings.is_empty(), "refused without a finding");
        report.findings.iter().for_each(|finding| {
            let _ = finding.to_string();
        });
    }
}

/// `traceparent` and `tracestate`: the lines of the input in turn.
fn trace(input: &[u8]) {
    let names = [trace_context::TRACEPARENT, trace_context::TRACESTATE];
    let values = input
        .split(|byte| *byte == b'\n')
        .map(HeaderValue::from_bytes);
    let fields = names.into_iter().cycle().zip(values);
    let headers: HeaderMap = fields
        .filter_map(|(name, value)| Some((name, value.ok()?)))
        .collect();
    let context = trace_context::TraceContext::of(&headers);
    assert_eq!(
        context.is_some(),
        trace_context::trace_id(&headers).is_some()
    );
}
