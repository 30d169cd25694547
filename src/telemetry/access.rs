//! The access log: one JSON object for each exchange.
//!
//! It names the route and not the path, and no header but the client's request id, since whatever else a client chooses may hold a
//! secret by mistake.

use std::cell::RefCell;
use std::io::Write;
use std::time::Duration;

use tollgate_filter::{Ending, Exchange, Principal};

use super::json::{hex, number, string};
use super::metrics::Times;
use super::time;

/// Bytes of a client's request id beyond which it is not logged.
const CLIENT_ID_BYTES_MAX: usize = 128;

/// An ended exchange and what the log says of it besides.
pub(super) struct Entry<'a> {
    pub(super) unix_micros: i64,
    pub(super) route: Option<&'a str>,
    pub(super) exchange: &'a Exchange,
    pub(super) ending: Ending,
    pub(super) times: &'a Times,
}

thread_local! {
    static LINE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(1024));
}

/// Writes the line of an entry into this thread's buffer and hands it over.
pub(super) fn with_line(entry: &Entry<'_>, take: impl FnOnce(&[u8])) {
    LINE.with_borrow_mut(|line| {
        line.clear();
        entry.write(line);
        take(line);
    });
}

impl Entry<'_> {
    fn write(&self, out: &mut Vec<u8>) {
        let request = &self.exchange.request;
        let record = &self.exchange.record;
        out.extend_from_slice(b"{\"time\":\"");
        time::stamp(out, self.unix_micros);
        out.extend_from_slice(b"\",\"request_id\":\"req_");
        hex(out, request.id.as_bytes());
        out.push(b'"');
        if let Some(id) = self.client_request_id() {
            text(out, b"client_request_id", id);
        }
        text(out, b"method", known_method(&request.method));
        text(out, b"route", self.route.unwrap_or("none"));
        text(out, b"protocol", request.protocol.word());
        flag(out, b"tls", request.tls);
        count(out, b"status", record.status);
        text(out, b"ending", self.ending.word());
        if let Ending::UpstreamFailed(fault) | Ending::UpstreamCut(fault) = self.ending {
            text(out, b"fault", fault.word());
        }
        if let Some(error) = record.error {
            text(out, b"error", error.word());
        }
        if let Some(principal) = self.exchange.get::<Principal>() {
            out.extend_from_slice(b",\"owner\":\"acct_");
            hex(out, principal.account.as_bytes());
            out.extend_from_slice(b"\",\"key\":\"key_");
            hex(out, &principal.credential.0);
            out.push(b'"');
        }
        if let Some(class) = &record.class {
            text(out, b"class", class);
        }
        if let Some(model) = &record.model {
            text(out, b"model", model);
            flag(out, b"stream", record.stream);
            count(out, b"prompt_tokens", record.prompt_tokens);
            count(out, b"completion_tokens", record.completion_tokens);
            flag(out, b"usage_estimated", record.estimated);
            key(out, b"credits");
            write!(out, "{}", record.charged).expect("a buffer takes text");
        }
        if let Some(cache) = record.cache {
            text(out, b"cache", cache.word());
        }
        if let Some(entry) = record.cache_entry {
            key(out, b"cache_entry");
            out.push(b'"');
            out.extend_from_slice(&entry.text());
            out.push(b'"');
        }
        if let Some(provider) = &record.provider {
            text(out, b"provider", provider);
        }
        if let Some(model) = &record.served_by {
            text(out, b"served_by", model);
        }
        if record.upstream_calls > 0 {
            count(out, b"upstream_calls", record.upstream_calls);
        }
        count(out, b"bytes", record.bytes_sent);
        micros(out, b"took_us", Some(self.times.whole));
        micros(out, b"first_byte_us", self.times.first_byte);
        micros(
            out,
            b"upstream_first_byte_us",
            self.times.upstream_first_byte,
        );
        micros(out, b"upstream_us", self.times.upstream);
        out.extend_from_slice(b"}\n");
    }

    /// The client's own id of the request, when it is short and visible.
    fn client_request_id(&self) -> Option<&str> {
        let id = self.exchange.request.single("x-request-id")?;
        let visible = id.bytes().all(|byte| byte.is_ascii_graphic());
        (!id.is_empty() && id.len() <= CLIENT_ID_BYTES_MAX && visible).then_some(id)
    }
}

/// Methods are what a client makes of them; one that HTTP does not know is not repeated.
fn known_method(method: &http::Method) -> &str {
    match method.as_str() {
        known @ ("GET" | "HEAD" | "POST" | "PUT" | "PATCH" | "DELETE" | "OPTIONS" | "TRACE"
        | "CONNECT") => known,
        _ => "other",
    }
}

fn key(out: &mut Vec<u8>, key: &[u8]) {
    out.extend_from_slice(b",\"");
    out.extend_from_slice(key);
    out.extend_from_slice(b"\":");
}

fn text(out: &mut Vec<u8>, name: &[u8], value: &str) {
    key(out, name);
    string(out, value);
}

fn flag(out: &mut Vec<u8>, name: &[u8], value: bool) {
    key(out, name);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

fn count(out: &mut Vec<u8>, name: &[u8], value: impl itoa::Integer) {
    key(out, name);
    number(out, value);
}

fn micros(out: &mut Vec<u8>, name: &[u8], value: Option<Duration>) {
    if let Some(value) = value {
        count(
            out,
            name,
            u64::try_from(value.as_micros()).unwrap_or(u64::MAX),
        );
    }
}
