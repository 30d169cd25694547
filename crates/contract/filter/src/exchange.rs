//! The exchange: a request, its response, and the filters' shared state.

use std::time::Duration;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method};
use smallvec::SmallVec;
use tollgate_clock::{Clock, Reading, Timestamp};
use tollgate_memory::MemoryUse;
use tollgate_money::OperationId;

use crate::slots::Slots;
use crate::time::Time;
use crate::{ClientAddress, DeferredHeaders, LogValue, Record};

/// The fields that the access log reads.
const LOGGED: [&str; 2] = ["x-request-id", "traceparent"];

const EMPTY: HeaderValue = HeaderValue::from_static("");

/// Capacity of the response's header map before its memory has to grow.
const REPLY_FIELDS: usize = 24;

/// A request and the state of its response.
pub struct Exchange {
    /// The request.
    pub request: Request,
    /// Fields set on every response, refusals included. Later sources override `reply_headers`: first [`Exchange::defer_headers`], then the
    /// response's fields, then the fields that every response has.
    pub reply_headers: HeaderMap,
    deferred_headers: SmallVec<[Box<dyn DeferredHeaders>; 3]>,
    /// Facts for the access log and the metrics.
    pub record: Record,
    /// The bytes of the request's body and buffers. Without a limit until the driver sets a limit.
    pub memory: MemoryUse,
    time: Time,
    slots: Slots,
}

impl Exchange {
    /// A new exchange.
    pub fn new(request: Request) -> Exchange {
        Exchange {
            request,
            // Empty: most responses have only deferred fields.
            reply_headers: HeaderMap::new(),
            deferred_headers: SmallVec::new(),
            record: Record::default(),
            memory: MemoryUse::default(),
            time: Time::default(),
            slots: Slots::default(),
        }
    }

    /// An exchange that starts now.
    pub fn beginning(request: Request, reading: Reading) -> Exchange {
        let mut exchange = Exchange::new(request);
        exchange.record.started = reading.elapsed;
        exchange.time = Time::at(reading);
        exchange
    }

    /// Adds deferred fields to every response. Deferred fields are written with the response's head: after `reply_headers`, in the order of
    /// the calls.
    pub fn defer_headers(&mut self, fields: impl DeferredHeaders + 'static) {
        self.deferred_headers.push(Box::new(fields));
    }

    /// Takes all fields set for every response, for the response's head. No fields remain.
    pub fn take_reply_headers(&mut self) -> HeaderMap {
        let mut headers = std::mem::take(&mut self.reply_headers);
        headers.reserve(REPLY_FIELDS);
        for fields in std::mem::take(&mut self.deferred_headers) {
            fields.write(&mut headers);
        }
        headers
    }

    /// The cached [`Clock::elapsed`] of the filters' last reading, if no wait has followed. For a filter that decides at once.
    pub fn elapsed(&mut self, clock: &Clock) -> Duration {
        self.time.elapsed(clock)
    }

    /// [`Clock::now`] as of the cached reading. A change of the wall clock is followed within a second.
    pub fn now(&mut self, clock: &Clock) -> Timestamp {
        self.time.now(clock)
    }

    /// [`Clock::now`] at a fresh reading of [`Clock::elapsed`].
    pub fn now_at(&self, elapsed: Duration, clock: &Clock) -> Timestamp {
        let extrapolated = self.time.extrapolated(elapsed);
        extrapolated.unwrap_or_else(|| clock.now())
    }

    /// Invalidates the cached time after a wait: the next reading is fresh. The driver invalidates the time after its own waits, and after
    /// every step that a filter completes later. A filter has to invalidate the time after waits in the middle of a step.
    pub fn invalidate_now(&mut self) {
        self.time.invalidate();
    }

    /// Reads the clock, regardless of the last reading.
    pub fn refresh_now(&mut self, clock: &Clock) -> Duration {
        self.time.invalidate();
        self.time.elapsed(clock)
    }

    /// Adds a field to the exchange's line in the access log, as `filter.FILTER.NAME`. At most 16 fields for all filters, with texts of at
    /// most 128 bytes; more is dropped. Never log a secret, or a client's text that may contain a secret.
    pub fn log(&mut self, filter: &'static str, name: &'static str, value: impl Into<LogValue>) {
        self.record.log.set(filter, name, value.into());
    }

    /// Stores a value for later phases and later filters, at most one value per type. Returns the previous value.
    pub fn put<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        self.slots.put(value)
    }

    /// [`Exchange::put`] for a boxed value, which is not moved. For large values, as with [`Exchange::take_boxed`].
    pub fn put_boxed<T: Send + Sync + 'static>(&mut self, value: Box<T>) -> Option<Box<T>> {
        self.slots.put_boxed(value)
    }

    /// The value of the type, if stored.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        self.slots.find()
    }

    /// The value of the type, mutable.
    pub fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        self.slots.find_mut()
    }

    /// Removes the value of the type.
    pub fn take<T: 'static>(&mut self) -> Option<T> {
        self.slots.take()
    }

    /// Removes the value of the type without moving the value. For large, rarely used values. A value with a dedicated field in every
    /// exchange has to be moved into a box.
    pub fn take_boxed<T: 'static>(&mut self) -> Option<Box<T>> {
        self.slots.take_boxed()
    }
}

/// A request as the client sent it.
#[derive(Debug)]
pub struct Request {
    /// The request id: unique, sorted by time, generated here and never taken from the client.
    pub id: OperationId,
    /// The method.
    pub method: Method,
    /// The path, undecoded, without the query: the key of the route lookup.
    pub path: Box<str>,
    /// The query, undecoded, without `?`.
    pub query: Option<Box<str>>,
    /// The header fields.
    pub headers: HeaderMap,
    /// The body; empty until the body was read for a filter whose contract requires a body.
    pub body: Bytes,
    /// The client address.
    pub client: ClientAddress,
    /// Whether the request arrived over TLS.
    pub tls: bool,
    /// The protocol's version.
    pub protocol: Protocol,
}

impl Request {
    /// Frees the head before a wait for the client to read the answer. Keeps only the fields for the access log.
    #[cold]
    pub fn free_head(&mut self) {
        let mut kept = HeaderMap::new();
        for name in LOGGED {
            // A repeated field is not logged, like a missing field.
            if let (Some(value), true) = (self.headers.get(name), self.single(name).is_some()) {
                kept.insert(
                    name,
                    HeaderValue::from_bytes(value.as_bytes()).unwrap_or(EMPTY),
                );
            }
        }
        self.headers = kept;
        self.path = "".into();
        self.query = None;
    }

    /// Bytes of the request's head: names, values and target.
    pub fn head_bytes(&self) -> usize {
        let fields = self.headers.iter();
        let fields = fields.map(|(name, value)| name.as_str().len() + value.len());
        let query = self.query.as_ref().map_or(0, |query| query.len());
        self.path.len() + query + fields.sum::<usize>()
    }

    /// The value of a singleton field: `None` for a missing or repeated field, or a value that is not visible ASCII.
    pub fn single(&self, name: &str) -> Option<&str> {
        let mut values = self.headers.get_all(name).iter();
        match (values.next(), values.next()) {
            (Some(value), None) => value.to_str().ok(),
            _ => None,
        }
    }
}

/// Set on an exchange whose connection negotiated a TLS version before 1.3, for endpoints that require TLS 1.3.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldTls;

/// The HTTP version of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    /// HTTP/1.0
    Http10,
    /// HTTP/1.1
    Http11,
    /// HTTP/2
    Http2,
}

impl Protocol {
    /// As in logs: `1.0`, `1.1`, `2`.
    pub fn word(self) -> &'static str {
        match self {
            Protocol::Http10 => "1.0",
            Protocol::Http11 => "1.1",
            Protocol::Http2 => "2",
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    /// Sets every value, replacing or appending.
    struct Deferred(&'static [(&'static str, &'static str, bool)]);

    impl DeferredHeaders for Deferred {
        fn write(&self, headers: &mut HeaderMap) {
            for &(name, value, behind) in self.0 {
                let value = HeaderValue::from_static(value);
                match behind {
                    true => headers.append(name, value),
                    false => headers.insert(name, value).is_some(),
                };
            }
        }
    }

    #[test]
    fn an_answer_has_all_fields_and_the_deferred_ones_last() {
        let request = Request {
            id: OperationId::from_bytes([1; 16]),
            method: Method::GET,
            path: "/".into(),
            query: None,
            headers: HeaderMap::new(),
            body: Bytes::new(),
            client: ClientAddress::direct([127, 0, 0, 1].into()),
            tls: false,
            protocol: Protocol::Http11,
        };
        let mut exchange = Exchange::new(request);
        assert!(exchange.take_reply_headers().is_empty());

        exchange.defer_headers(Deferred(&[("a", "1", false), ("b", "1", false)]));
        exchange.defer_headers(Deferred(&[
            ("b", "2", false),
            ("b", "3", true),
            ("c", "4", true),
        ]));
        for (name, value) in [("a", "0"), ("c", "3"), ("d", "5")] {
            let value = HeaderValue::from_static(value);
            exchange.reply_headers.insert(name, value);
        }
        let headers = exchange.take_reply_headers();
        let fields: Vec<(&str, &[u8])> = headers
            .iter()
            .map(|(name, value)| (name.as_str(), value.as_bytes()))
            .collect();
        let expected = [
            ("a", "1"),
            ("c", "3"),
            ("c", "4"),
            ("d", "5"),
            ("b", "2"),
            ("b", "3"),
        ];
        assert_eq!(
            fields,
            expected.map(|(name, value)| (name, value.as_bytes()))
        );
        assert!(exchange.take_reply_headers().is_empty(), "they are taken");
    }
}
