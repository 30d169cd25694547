//! W3C Trace Context (sections 3.2 and 3.3): the fields by which a client names the trace of its request.

use http::{HeaderMap, HeaderName, HeaderValue};

pub(crate) const TRACEPARENT: HeaderName = HeaderName::from_static("traceparent");
pub(crate) const TRACESTATE: HeaderName = HeaderName::from_static("tracestate");

/// Length of version 00: `00-` trace id `-` parent id `-` flags.
const PARENT_LENGTH: usize = 55;
/// Longer values may be dropped (section 3.3.1.1).
const STATE_LENGTH_MAX: usize = 512;

/// The trace of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct TraceContext {
    /// `traceparent`.
    pub(crate) parent: HeaderValue,
    /// `tracestate`, if the value is short enough.
    pub(crate) state: Option<HeaderValue>,
}

/// The ids of a trace and of the parent span, and whether the parent span is recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TraceIds {
    pub(crate) trace: [u8; 16],
    pub(crate) span: [u8; 8],
    pub(crate) is_sampled: bool,
}

impl TraceContext {
    /// A recorded trace with this span as the parent.
    pub(crate) fn sampled(
        trace: &[u8; 16],
        span: &[u8; 8],
        state: Option<HeaderValue>,
    ) -> TraceContext {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-01";
        for (bytes, place) in [(&trace[..], 3..35), (&span[..], 36..52)] {
            base16ct::lower::encode(bytes, &mut text[place]).expect("two digits for each byte");
        }
        TraceContext {
            parent: HeaderValue::from_bytes(&text).expect("digits are a field value"),
            state,
        }
    }

    /// The ids of the trace and of the parent span.
    pub(crate) fn ids(&self) -> TraceIds {
        let text = self.parent.as_bytes();
        let mut ids = TraceIds {
            trace: [0; 16],
            span: [0; 8],
            is_sampled: matches!(
                text[54],
                b'1' | b'3' | b'5' | b'7' | b'9' | b'b' | b'd' | b'f'
            ),
        };
        base16ct::lower::decode(&text[3..35], &mut ids.trace).expect("checked digits");
        base16ct::lower::decode(&text[36..52], &mut ids.span).expect("checked digits");
        ids
    }

    /// The trace named in the fields of a request, if the fields are valid.
    pub(crate) fn of(headers: &HeaderMap) -> Option<TraceContext> {
        let parent = parent(headers)?;
        Some(TraceContext {
            parent: parent.clone(),
            state: one(headers, &TRACESTATE)
                .filter(|state| state.len() <= STATE_LENGTH_MAX && state.to_str().is_ok())
                .cloned(),
        })
    }
}

/// The two fields alone.
pub(crate) fn fields_of(headers: &HeaderMap) -> HeaderMap {
    let mut fields = HeaderMap::new();
    for name in [TRACEPARENT, TRACESTATE] {
        for value in headers.get_all(&name) {
            fields.append(&name, value.clone());
        }
    }
    fields
}

/// The id of the trace: 32 hexadecimal digits.
pub(crate) fn trace_id(headers: &HeaderMap) -> Option<&str> {
    parent(headers)?.to_str().ok()?.get(3..35)
}

fn parent(headers: &HeaderMap) -> Option<&HeaderValue> {
    one(headers, &TRACEPARENT).filter(|value| is_valid(value.as_bytes()))
}

/// The field, where it occurs once.
fn one<'h>(headers: &'h HeaderMap, name: &HeaderName) -> Option<&'h HeaderValue> {
    let mut values = headers.get_all(name).iter();
    values.next().filter(|_| values.next().is_none())
}

/// Version 00: lower-case digits, and ids with a digit other than zero.
fn is_valid(value: &[u8]) -> bool {
    let is_id = |range: std::ops::Range<usize>| {
        let digits = &value[range];
        let is_digit = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
        digits.iter().all(is_digit) && digits.iter().any(|byte| *byte != b'0')
    };
    let is_flags = |byte: &u8| matches!(byte, b'0'..=b'9' | b'a'..=b'f');
    value.len() == PARENT_LENGTH
        && value.starts_with(b"00-")
        && value[35] == b'-'
        && value[52] == b'-'
        && is_id(3..35)
        && is_id(36..52)
        && value[53..].iter().all(is_flags)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The example of section 3.2.4.
    const EXAMPLE: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    fn headers(fields: &[(&'static str, &str)]) -> HeaderMap {
        let mut map = HeaderMap::new();
        for (name, value) in fields {
            map.append(*name, HeaderValue::from_str(value).expect("a value"));
        }
        map
    }

    #[test]
    fn a_valid_trace_is_taken_with_its_state() {
        let state = "rojo=00f067aa0ba902b7";
        let found = headers(&[("traceparent", EXAMPLE), ("tracestate", state)]);
        let trace = TraceContext::of(&found).expect("a trace");
        assert_eq!(
            (trace.parent, trace.state.expect("a state")),
            (
                EXAMPLE.parse().expect("a value"),
                state.parse().expect("a value")
            )
        );
        assert_eq!(trace_id(&found), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        let long = "x".repeat(STATE_LENGTH_MAX + 1);
        let trace = TraceContext::of(&headers(&[("traceparent", EXAMPLE), ("tracestate", &long)]));
        assert_eq!(trace.expect("a trace").state, None);
    }

    #[test]
    fn the_ids_of_a_trace_are_read_and_written() {
        let found = headers(&[("traceparent", EXAMPLE)]);
        let trace = TraceContext::of(&found).expect("a trace");
        let ids = trace.ids();
        assert!(ids.is_sampled);
        assert_eq!(TraceContext::sampled(&ids.trace, &ids.span, None), trace);
        for (flags, is_sampled) in [("00", false), ("02", false), ("03", true), ("ff", true)] {
            let text = format!("{}{flags}", &EXAMPLE[..53]);
            let trace = TraceContext::of(&headers(&[("traceparent", &text)]));
            assert_eq!(
                trace.expect("a trace").ids().is_sampled,
                is_sampled,
                "{flags}"
            );
        }
    }

    #[test]
    fn an_invalid_trace_is_ignored() {
        for value in [
            "",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01-",
            "01-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01",
            "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-0000000000000000-01",
            "00-4bf92f3577b34da6a3ce929d0e0e473x-00f067aa0ba902b7-01",
            "00_4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01",
            "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-0g",
        ] {
            assert_eq!(
                TraceContext::of(&headers(&[("traceparent", value)])),
                None,
                "{value}"
            );
        }
        let twice = headers(&[("traceparent", EXAMPLE), ("traceparent", EXAMPLE)]);
        assert_eq!(trace_id(&twice), None);
    }
}
