//! The access log: a JSON object for each exchange.
//!
//! An entry names the route and not the path, and no header except the client's request id: other text from a client may contain a secret
//! by mistake. Filters add fields (`Exchange::log`).

use std::cell::RefCell;
use std::time::Duration;

use jiff::fmt::temporal::DateTimePrinter;
use tollgate_clock::Timestamp;
use tollgate_filter::{Ending, Exchange, LogFields, LogValue, Principal};

use super::address::LoggedAddress;
use super::json::{hex, number, string, word};
use super::metrics::Times;
use crate::trace_context::trace_id;

/// Maximum length of a logged client request id in bytes.
const CLIENT_ID_BYTES_MAX: usize = 128;

/// Prints RFC 3339 in UTC with microseconds: `2026-01-31T23:59:59.000001Z`.
static TIME: DateTimePrinter = DateTimePrinter::new().precision(Some(6));

/// A member's name with its separators, after another member.
macro_rules! member {
    ($name:literal) => {
        concat!(",\"", $name, "\":").as_bytes()
    };
}

/// A completed exchange and its additional log fields.
pub(super) struct Entry<'a> {
    pub(super) at: Timestamp,
    pub(super) route: Option<&'a str>,
    pub(super) exchange: &'a Exchange,
    pub(super) ending: Ending,
    pub(super) times: &'a Times,
    /// The id of the exchange's trace, if the trace is exported.
    pub(super) trace: Option<&'a [u8; 16]>,
    pub(super) addresses: &'a LoggedAddress,
}

/// The share of logged exchanges among exchanges without an error and without a charge.
#[derive(Clone, Copy, Debug)]
pub(super) struct AccessSample {
    /// Among numbers of 32 bits, numbers below this bound are logged.
    below: u64,
}

impl AccessSample {
    /// A share of 0 to 1.
    pub(super) fn of(share: f64) -> AccessSample {
        AccessSample {
            below: (share * (1u64 << 32) as f64) as u64,
        }
    }

    /// Whether an exchange is logged. The random end of the exchange's id decides, so that the decision needs no further random number.
    pub(super) fn takes(self, exchange: &Exchange, ending: Ending) -> bool {
        let record = &exchange.record;
        let is_kept = record.charged.is_positive()
            || record.status >= 400
            || record.error.is_some()
            || !matches!(ending, Ending::Complete | Ending::Answered);
        let [.., a, b, c, d] = *exchange.request.id.as_bytes();
        is_kept || u64::from(u32::from_be_bytes([a, b, c, d])) < self.below
    }
}

thread_local! {
    static LINE: RefCell<Vec<u8>> = RefCell::new(Vec::with_capacity(1024));
}

/// Writes the line of an entry into this thread's buffer, and passes the line to `take`.
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
        TIME.print_timestamp(&self.at.into(), &mut *out)
            .expect("a vector takes whatever is written to it");
        out.extend_from_slice(b"\",\"request_id\":\"req_");
        hex(out, request.id.as_bytes());
        out.push(b'"');
        self.write_client_ids(out);
        self.addresses
            .write(out, member!("client_address"), request.client, self.at);
        text(out, member!("method"), known_method(&request.method));
        text(out, member!("route"), self.route.unwrap_or("none"));
        keyword(out, member!("protocol"), request.protocol.word());
        flag(out, member!("tls"), request.tls);
        count(out, member!("status"), record.status);
        keyword(out, member!("ending"), self.ending.word());
        if let Ending::UpstreamFailed(fault) | Ending::UpstreamCut(fault) = self.ending {
            keyword(out, member!("fault"), fault.word());
        }
        if let Some(error) = record.error {
            keyword(out, member!("error"), error.word());
        }
        if let Some(principal) = self.exchange.get::<Principal>() {
            out.extend_from_slice(b",\"owner\":\"acct_");
            hex(out, principal.account.as_bytes());
            out.extend_from_slice(b"\",\"key\":\"key_");
            hex(out, principal.credential.as_bytes());
            out.push(b'"');
        }
        if let Some(class) = &record.class {
            text(out, member!("class"), class);
        }
        if let Some(model) = &record.model {
            text(out, member!("model"), model);
            flag(out, member!("stream"), record.stream);
            count(out, member!("prompt_tokens"), record.prompt_tokens);
            count(out, member!("completion_tokens"), record.completion_tokens);
            flag(out, member!("usage_estimated"), record.estimated);
            out.extend_from_slice(member!("credits"));
            out.extend_from_slice(record.charged.text().as_bytes());
        }
        if let Some(cache) = record.cache {
            keyword(out, member!("cache"), cache.word());
        }
        if let Some(entry) = record.cache_entry {
            out.extend_from_slice(member!("cache_entry"));
            out.push(b'"');
            out.extend_from_slice(&entry.text());
            out.push(b'"');
        }
        if let Some(provider) = &record.provider {
            text(out, member!("provider"), provider);
        }
        if let Some(model) = &record.served_by {
            text(out, member!("served_by"), model);
        }
        if record.upstream_calls > 0 {
            count(out, member!("upstream_calls"), record.upstream_calls);
        }
        count(out, member!("bytes"), record.bytes_sent);
        micros(out, member!("took_us"), Some(self.times.whole));
        micros(out, member!("first_byte_us"), self.times.first_byte);
        micros(
            out,
            member!("upstream_first_byte_us"),
            self.times.upstream_first_byte,
        );
        micros(out, member!("upstream_us"), self.times.upstream);
        if !record.log.fields().is_empty() {
            filter_fields(out, &record.log);
        }
        out.extend_from_slice(b"}\n");
    }

    /// The ids by which the client, or a collector of traces, identifies the request.
    fn write_client_ids(&self, out: &mut Vec<u8>) {
        if let Some(id) = self.client_request_id() {
            text(out, member!("client_request_id"), id);
        }
        if let Some(id) = self.trace {
            out.extend_from_slice(member!("trace_id"));
            out.push(b'"');
            hex(out, id);
            out.push(b'"');
        } else if let Some(id) = trace_id(&self.exchange.request.headers) {
            text(out, member!("trace_id"), id);
        }
    }

    /// The client's own request id, when it is short and printable.
    fn client_request_id(&self) -> Option<&str> {
        let id = self.exchange.request.single("x-request-id")?;
        let visible = id.bytes().all(|byte| byte.is_ascii_graphic());
        (!id.is_empty() && id.len() <= CLIENT_ID_BYTES_MAX && visible).then_some(id)
    }
}

/// The fields of filters: `"filter":{"NAME":{"FIELD":VALUE}}`. The separate object keeps the names apart from the gateway's names.
#[cold]
fn filter_fields(out: &mut Vec<u8>, log: &LogFields) {
    out.extend_from_slice(member!("filter"));
    let mut filter = None;
    for field in log.fields() {
        match filter {
            Some(name) if name == field.filter => out.push(b','),
            former => {
                out.extend_from_slice(if former.is_some() { b"}," } else { b"{" });
                string(out, field.filter);
                out.extend_from_slice(b":{");
                filter = Some(field.filter);
            }
        }
        string(out, field.name);
        out.push(b':');
        match &field.value {
            LogValue::Word(word) => string(out, word),
            LogValue::Text(text) => string(out, text),
            LogValue::Number(value) => number(out, *value),
            LogValue::Count(value) => number(out, *value),
            LogValue::Credits(amount) => out.extend_from_slice(amount.text().as_bytes()),
            LogValue::Flag(true) => out.extend_from_slice(b"true"),
            LogValue::Flag(false) => out.extend_from_slice(b"false"),
        }
    }
    out.extend_from_slice(b"}}");
    if log.dropped() > 0 {
        count(out, member!("filter_fields_dropped"), log.dropped());
    }
}

/// Methods are the client's text. A method that HTTP does not define is not repeated.
pub(super) fn known_method(method: &http::Method) -> &'static str {
    const KNOWN: [&str; 9] = [
        "POST", "GET", "HEAD", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT",
    ];
    let known = KNOWN.into_iter().find(|known| *known == method.as_str());
    known.unwrap_or("other")
}

/// A member and its value. This function and the next functions are inlined: at the call the name has a known length, and takes a few
/// instructions instead of a call.
#[inline(always)]
fn text(out: &mut Vec<u8>, member: &[u8], value: &str) {
    out.extend_from_slice(member);
    string(out, value);
}

#[inline(always)]
fn keyword(out: &mut Vec<u8>, member: &[u8], value: &'static str) {
    out.extend_from_slice(member);
    word(out, value);
}

#[inline(always)]
fn flag(out: &mut Vec<u8>, member: &[u8], value: bool) {
    out.extend_from_slice(member);
    out.extend_from_slice(if value { b"true" } else { b"false" });
}

#[inline(always)]
fn count(out: &mut Vec<u8>, member: &[u8], value: impl itoa::Integer) {
    out.extend_from_slice(member);
    number(out, value);
}

#[inline(always)]
fn micros(out: &mut Vec<u8>, member: &[u8], value: Option<Duration>) {
    if let Some(value) = value {
        count(
            out,
            member,
            u64::try_from(value.as_micros()).unwrap_or(u64::MAX),
        );
    }
}
