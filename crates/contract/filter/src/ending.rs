//! The closed list of endings: every way an exchange can end, and every kind of upstream fault.

/// Every way an exchange can end. An exchange gets exactly one ending, at `on_end`, in the access log and in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The whole response of the upstream was sent.
    Complete,
    /// A filter responded: a list, a page, a stored completion.
    Answered,
    /// A filter or the gateway refused with an error of the 4xx or 5xx range, before the upstream was called.
    Refused,
    /// The upstream gave no usable response and nothing had been sent; the client got an error.
    UpstreamFailed(UpstreamFault),
    /// The upstream stopped in the middle; the client got the partial response, and an error event.
    UpstreamCut(UpstreamFault),
    /// The client disconnected before anything was sent.
    GoneBefore,
    /// The client disconnected, or stopped reading, in the middle of the response.
    GoneDuring,
    /// The response was ready, but its charge could not be made durable: the response was not delivered.
    Unsettled,
    /// A panic, or the process stopped before the exchange was finished.
    Aborted,
}

impl Ending {
    /// The name in logs and metric labels.
    pub fn word(self) -> &'static str {
        match self {
            Ending::Complete => "complete",
            Ending::Answered => "answered",
            Ending::Refused => "refused",
            Ending::UpstreamFailed(_) => "upstream_failed",
            Ending::UpstreamCut(_) => "upstream_cut",
            Ending::GoneBefore => "gone_before",
            Ending::GoneDuring => "gone_during",
            Ending::Unsettled => "unsettled",
            Ending::Aborted => "aborted",
        }
    }

    /// Every name, for metrics that list their labels up front.
    pub const WORDS: [&'static str; 9] = [
        "complete",
        "answered",
        "refused",
        "upstream_failed",
        "upstream_cut",
        "gone_before",
        "gone_during",
        "unsettled",
        "aborted",
    ];
}

/// The kind of upstream failure, for the client and the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamFault {
    /// No connection: refused, no route, name not resolved, TLS not trusted.
    Unreachable,
    /// A timeout: connecting, the first byte, between bytes, or in total.
    Timeout,
    /// The connection broke or ended too early.
    Cut,
    /// A response that is no completion: invalid data, an unknown status, a body above its limit.
    Invalid,
    /// The upstream reported an error.
    Error,
    /// The upstream refused the request as the client's fault (status 400, 413 or 422).
    BadRequest,
    /// The upstream's rate limit.
    RateLimited,
    /// No call was made: every upstream was at its concurrency limit, or had failed and its circuit was open.
    Overloaded,
}

impl UpstreamFault {
    /// The name in logs and metric labels.
    pub fn word(self) -> &'static str {
        match self {
            UpstreamFault::Unreachable => "unreachable",
            UpstreamFault::Timeout => "timeout",
            UpstreamFault::Cut => "cut",
            UpstreamFault::Invalid => "invalid",
            UpstreamFault::Error => "error",
            UpstreamFault::BadRequest => "bad_request",
            UpstreamFault::RateLimited => "rate_limited",
            UpstreamFault::Overloaded => "overloaded",
        }
    }
}
