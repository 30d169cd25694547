//! The request to a provider, and the error of an attempt to send it.

use std::net::IpAddr;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tollgate_chain::UpstreamError;
use tollgate_money::OperationId;

use crate::telemetry::AttemptSpan;
use crate::trace_context::{TRACEPARENT, TRACESTATE, TraceContext};

const X_REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");

/// The request to a provider.
pub(in crate::upstream) struct ProviderRequest {
    /// The path below the base address.
    pub(in crate::upstream) path: &'static str,
    /// Whether the answer is to be an event stream.
    pub(in crate::upstream) stream: bool,
    /// The body as rendered for this provider.
    pub(in crate::upstream) body: Bytes,
    /// The client's address, if sent to the provider.
    pub(in crate::upstream) client: Option<IpAddr>,
    /// The ids of the request, if sent to the provider.
    pub(in crate::upstream) ids: Option<RequestIds>,
    /// The span of the attempt, if the request is traced.
    pub(in crate::upstream) span: Option<Box<AttemptSpan>>,
    /// Clock reading at the start of the attempt.
    pub(in crate::upstream) started: Duration,
    /// Clock reading at which the whole call times out.
    pub(in crate::upstream) deadline: Duration,
}

impl ProviderRequest {
    /// The time left of the call.
    pub(super) fn time_left(&self, now: Duration) -> Duration {
        self.deadline.saturating_sub(now)
    }
}

/// The ids that join a provider's logs and traces with the client's.
#[derive(Clone, Debug)]
pub(in crate::upstream) struct RequestIds {
    pub(in crate::upstream) request: OperationId,
    pub(in crate::upstream) trace: Option<TraceContext>,
}

impl RequestIds {
    /// The fields that a provider receives.
    pub(super) fn fields(&self) -> impl Iterator<Item = (HeaderName, HeaderValue)> {
        let id = HeaderValue::try_from(self.request.to_string()).expect("an id is ASCII");
        let trace = self.trace.iter().flat_map(|trace| {
            let state = trace.state.clone().map(|state| (TRACESTATE, state));
            [(TRACEPARENT, trace.parent.clone())]
                .into_iter()
                .chain(state)
        });
        [(X_REQUEST_ID, id)].into_iter().chain(trace)
    }
}

/// Why an attempt failed, and whether the request was delivered.
pub(in crate::upstream) struct AttemptError {
    pub(in crate::upstream) error: UpstreamError,
    pub(in crate::upstream) delivery: Delivery,
    /// The status of the answer, if any.
    pub(in crate::upstream) status: Option<u16>,
    pub(in crate::upstream) retry_after: Option<Duration>,
    /// Whether the provider refused for want of money in the gateway's account, and which requests.
    pub(in crate::upstream) unpaid: Option<Unpaid>,
}

/// Which requests a provider refuses for want of money in the gateway's account there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Unpaid {
    /// All of them.
    Account,
    /// This one, and maybe others: the provider holds the highest price of a request, which the client sets with `max_tokens`.
    Request,
}

/// Whether a failed request was delivered to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Delivery {
    /// The provider may be processing the request.
    Unknown,
    /// Not sent: without a connection.
    NotSent,
    /// It was not processed: the connection was closed already, or the stream was refused (RFC 9113 section 8.7). A new connection may
    /// succeed.
    Refused,
}

impl From<UpstreamError> for AttemptError {
    fn from(error: UpstreamError) -> AttemptError {
        AttemptError {
            error,
            delivery: Delivery::Unknown,
            status: None,
            retry_after: None,
            unpaid: None,
        }
    }
}

/// A failure to obtain a connection at all.
pub(super) fn connect_error(error: UpstreamError) -> AttemptError {
    AttemptError {
        delivery: Delivery::NotSent,
        ..error.into()
    }
}
