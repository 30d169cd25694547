//! OpenTelemetry traces, sent over OTLP: a server span for each sampled request, and a client span for each attempt at a provider.
//!
//! A sampled request carries its [`Trace`]; an unsampled request costs a branch. A finished span is put into a bounded queue. A separate
//! thread sends the queued spans (`export`), so that no request waits for the collector.

mod attempt;
mod export;
mod otlp;

use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use http::HeaderValue;
use parking_lot::Mutex;
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_counters::Samples;
use tollgate_filter::{AnswerIdentity, Ending, Exchange, Principal, UpstreamFault};
use tollgate_money::OperationId;

pub(crate) use self::attempt::{AttemptFailure, AttemptSpan};

use self::attempt::{Answer, Attempt};
use self::export::{Counts, Destination, Exporter, Queue};
use self::otlp::{Kind, Span, Value};
use super::access::known_method;
use super::names;
use crate::config::Otlp;
use crate::trace_context::TraceContext;

/// The bits of an operation's id that decide on sampling: the last seven bytes, which are random.
const SAMPLED_BITS: u32 = 56;

/// The bound for a share of 0 to 1: among numbers of [`SAMPLED_BITS`] bits, numbers below the bound are in the share.
fn sampled_below(share: f64) -> u64 {
    (share * (1u64 << SAMPLED_BITS) as f64) as u64
}

/// Whether an operation is in the share of [`sampled_below`].
fn is_in_share(id: OperationId, below: u64) -> bool {
    let [.., a, b, c, d, e, f, g] = *id.as_bytes();
    u64::from_be_bytes([0, a, b, c, d, e, f, g]) < below
}

/// New settings of the export, prepared: every step that can fail has succeeded.
pub(crate) struct PreparedTraces(Change);

enum Change {
    /// The first collector is configured.
    Start(Box<Traces>),
    /// The share and the collector; `None` ends the export.
    Replace(Option<(u64, Destination)>),
}

impl PreparedTraces {
    /// # Errors
    ///
    /// As [`Traces::start`].
    pub(super) fn of(
        settings: Option<&Otlp>,
        known: Option<&Traces>,
        clock: &Clock,
    ) -> io::Result<PreparedTraces> {
        Ok(PreparedTraces(match (settings, known) {
            (Some(settings), None) => {
                Change::Start(Box::new(Traces::start(settings, clock, Entropy::system())?))
            }
            (Some(settings), Some(_)) => {
                let destination = Destination::of(settings)?;
                Change::Replace(Some((sampled_below(settings.sample), destination)))
            }
            (None, _) => Change::Replace(None),
        }))
    }

    /// Puts the new settings in force. Once started, the exporter thread stays until the end of the process.
    pub(super) fn apply(self, traces: &OnceLock<Traces>) {
        match self.0 {
            Change::Start(new) => {
                // Reloads run in sequence, so that no collector is set yet.
                let _ = traces.set(*new);
            }
            Change::Replace(new) => {
                if let Some(known) = traces.get() {
                    known.replace(new);
                }
            }
        }
    }
}

/// Starts spans of sampled requests, and exports finished spans.
pub(super) struct Traces {
    /// Whether spans are exported: a reload may have removed the collector.
    is_on: AtomicBool,
    /// Among numbers of [`SAMPLED_BITS`] bits, numbers below this bound are sampled.
    sampled_below: AtomicU64,
    clock: Clock,
    entropy: Entropy,
    queue: Queue,
    exporter: Exporter,
}

impl Traces {
    /// Starts the exporter thread.
    ///
    /// # Errors
    ///
    /// When TLS cannot be set up, or the system provides no thread.
    pub(super) fn start(settings: &Otlp, clock: &Clock, entropy: Entropy) -> io::Result<Traces> {
        let (queue, exporter) = export::start(Destination::of(settings)?, &entropy)?;
        Ok(Traces {
            is_on: AtomicBool::new(true),
            sampled_below: AtomicU64::new(sampled_below(settings.sample)),
            clock: clock.clone(),
            entropy,
            queue,
            exporter,
        })
    }

    /// Exports to another collector, or to no collector, from now on. Spans of requests already traced go to the new collector.
    fn replace(&self, new: Option<(u64, Destination)>) {
        self.is_on.store(new.is_some(), Relaxed);
        if let Some((sampled_below, destination)) = new {
            self.sampled_below.store(sampled_below, Relaxed);
            self.exporter.replace(destination);
        }
    }

    /// Starts the span of a request, if the client's trace is sampled. Without a client's trace, starts the span if the request is in the
    /// share.
    pub(super) fn begin(&self, exchange: &mut Exchange) {
        if !self.is_on.load(Relaxed) {
            return;
        }
        let client = TraceContext::of(&exchange.request.headers);
        let remote = client.as_ref().map(TraceContext::ids);
        let is_sampled = match &remote {
            Some(ids) => ids.is_sampled,
            None => is_in_share(exchange.request.id, self.sampled_below.load(Relaxed)),
        };
        if !is_sampled {
            return;
        }
        let started = exchange.record.started;
        let trace = Trace {
            id: remote
                .as_ref()
                .map_or_else(|| self.entropy.bytes(), |ids| ids.trace),
            span: self.entropy.bytes(),
            parent: remote.map(|ids| ids.span),
            state: client.and_then(|client| client.state),
            started,
            started_at: exchange.now_at(started, &self.clock),
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            ended: Mutex::new(Some(Vec::new())),
            queue: self.queue.clone(),
        };
        exchange.put(Arc::new(trace));
        exchange.put(AnswerIdentity::default());
    }

    /// Writes the numbers of exported and dropped spans.
    pub(super) fn show(&self, samples: &mut Samples) {
        show(samples, self.exporter.counts());
    }

    /// Sends the queued spans, within a time limit. Blocks.
    pub(super) fn close(&self) {
        self.exporter.close();
    }
}

/// Writes zeros without an export, so that the series exist.
pub(super) fn show_none(samples: &mut Samples) {
    show(samples, &Counts::default());
}

fn show(samples: &mut Samples, counts: &Counts) {
    samples.numbers(names::SPANS, counts.by_result());
}

/// The trace of a sampled request: its ids, and the ended attempts.
pub(crate) struct Trace {
    id: [u8; 16],
    /// The span of the request.
    span: [u8; 8],
    /// The client's span.
    parent: Option<[u8; 8]>,
    /// The client's `tracestate`.
    state: Option<HeaderValue>,
    /// Clock reading when the request's head was complete, and the wall-clock time of the reading.
    started: Duration,
    started_at: Timestamp,
    clock: Clock,
    entropy: Entropy,
    /// `None` once the request is reported: an attempt that ends later is exported immediately.
    ended: Mutex<Option<Vec<Attempt>>>,
    queue: Queue,
}

/// The content of a request's span besides the exchange.
pub(super) struct Ended<'a> {
    pub(super) route: Option<&'a str>,
    pub(super) ending: Ending,
    /// Clock reading at the end.
    pub(super) at: Duration,
}

impl Trace {
    /// The id of the trace.
    pub(super) fn id(&self) -> &[u8; 16] {
        &self.id
    }

    /// Exports the span of the request, and the spans of the request's attempts.
    pub(super) fn report(&self, exchange: &Exchange, ended: &Ended<'_>) {
        let attempts = self.ended.lock().take();
        let Some(attempts) = attempts else {
            return;
        };
        // The tokens are the sum of the whole request: with several answers, no single attempt has this number.
        let answered = attempts.iter().filter(|one| one.answered).count();
        for attempt in attempts {
            let is_the_answer = answered == 1 && attempt.answered;
            let answer = is_the_answer.then(|| Answer {
                record: &exchange.record,
                identity: exchange.get(),
            });
            self.queue.push(attempt.span(self, answer));
        }
        self.queue.push(self.server_span(exchange, ended));
    }

    fn server_span(&self, exchange: &Exchange, ended: &Ended<'_>) -> Span {
        let request = &exchange.request;
        let record = &exchange.record;
        let route = ended.route.unwrap_or("none");
        let method = match known_method(&request.method) {
            "other" => "_OTHER",
            known => known,
        };
        let scheme = if request.tls { "https" } else { "http" };
        let mut span = Span {
            trace: self.id,
            id: self.span,
            parent: self.parent,
            parent_is_remote: self.parent.is_some(),
            state: self.state_text(),
            name: format!("{method} {route}"),
            kind: Kind::Server,
            started: self.unix_nanos(self.started),
            ended: self.unix_nanos(ended.at),
            failed: false,
            attributes: vec![
                ("http.request.method", method.into()),
                ("http.route", Value::text(route)),
                ("url.scheme", scheme.into()),
                ("network.protocol.version", request.protocol.word().into()),
                ("tollgate.request.id", Value::text(request.id.to_string())),
                ("tollgate.ending", ended.ending.word().into()),
                ("tollgate.charge.microcredits", record.charged.get().into()),
            ],
        };
        let mut add = |name, value| span.attributes.push((name, value));
        // A path with a wildcard has text of the client, and may have a credential.
        if &*request.path == route {
            add("url.path", Value::text(route));
        }
        if record.status > 0 {
            add("http.response.status_code", i64::from(record.status).into());
        }
        if let Some(principal) = exchange.get::<Principal>() {
            add(
                "tollgate.account.id",
                Value::text(principal.account.to_string()),
            );
        }
        if let Some(model) = &record.model {
            add("tollgate.model", Value::text(&**model));
        }
        if let Some(cache) = record.cache {
            add("tollgate.cache", cache.word().into());
        }
        if let Some(error) = record.error {
            add("tollgate.error.code", error.word().into());
        }
        // A refusal is the client's error and no server error (HTTP conventions: 5xx only). A broken stream has the status 200.
        let fault = match ended.ending {
            Ending::UpstreamFailed(fault) | Ending::UpstreamCut(fault) => Some(fault),
            _ => None,
        };
        let is_client_fault = fault == Some(UpstreamFault::BadRequest) || record.status == 429;
        span.failed = record.status >= 500 || (fault.is_some() && !is_client_fault);
        if span.failed {
            let kind = fault.map_or_else(
                || Value::text(record.status.to_string()),
                |fault| fault.word().into(),
            );
            span.attributes.push(("error.type", kind));
        }
        span
    }

    fn attempt_ended(&self, attempt: Attempt) {
        let mut ended = self.ended.lock();
        match &mut *ended {
            Some(list) => list.push(attempt),
            None => self.queue.push(attempt.span(self, None)),
        }
    }

    /// Nanoseconds since 1970 at a clock reading. Every span of a request uses the request's single reading of the wall clock, so that the
    /// spans are in order.
    fn unix_nanos(&self, at: Duration) -> u64 {
        let started = u64::try_from(self.started_at.as_micros()).unwrap_or(0) * 1_000;
        let since = at.saturating_sub(self.started).as_nanos();
        started.saturating_add(u64::try_from(since).unwrap_or(u64::MAX))
    }

    fn state_text(&self) -> Option<Box<str>> {
        let text = self.state.as_ref()?.to_str().ok()?;
        Some(text.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The id with `number` as the random end.
    fn id(number: u64) -> OperationId {
        let mut bytes = [0xff; 16];
        bytes[9..].copy_from_slice(&number.to_be_bytes()[1..]);
        OperationId::from_bytes(bytes)
    }

    #[test]
    fn a_share_is_decided_by_the_random_end_of_the_id() {
        let largest = (1u64 << SAMPLED_BITS) - 1;
        let first_of_quarter = 1u64 << (SAMPLED_BITS - 2);
        for (share, number, is_in) in [
            (0.0, 0, false),
            (1.0, largest, true),
            (0.25, 0, true),
            (0.25, first_of_quarter - 1, true),
            (0.25, first_of_quarter, false),
            (0.25, largest, false),
        ] {
            let found = is_in_share(id(number), sampled_below(share));
            assert_eq!(found, is_in, "{number} in {share}");
        }
    }

    /// Of 10,000 random ids a tenth, within five standard deviations.
    #[test]
    fn a_share_of_a_tenth_is_a_tenth_of_all_requests() {
        let (entropy, below) = (Entropy::seeded(7), sampled_below(0.1));
        let ids = (0..10_000).map(|_| OperationId::from_bytes(entropy.bytes()));
        let sampled = ids.filter(|id| is_in_share(*id, below)).count();
        assert!((850..=1150).contains(&sampled), "{sampled} of 10,000");
    }
}
