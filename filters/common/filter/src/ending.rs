//! How an exchange ended.

/// Every way an exchange can end. Each gets exactly one of these, at `on_end`, in the access log and in the metrics.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Ending {
    /// The whole answer of the upstream was sent.
    Complete,
    /// A filter answered: a list, a page, a stored completion.
    Answered,
    /// A filter or the gateway refused with an error of the 4xx or 5xx range, before the upstream was called.
    Refused,
    /// The upstream gave no usable answer and nothing had been sent; the client got an error.
    UpstreamFailed(UpstreamFault),
    /// The upstream stopped in the middle; the client got what there was, and an error event.
    UpstreamCut(UpstreamFault),
    /// The client left before anything was sent.
    GoneBefore,
    /// The client left, or stopped reading, in the middle of the answer.
    GoneDuring,
    /// The answer was ready, but its charge could not be made durable, so it was not delivered.
    Unsettled,
    /// A panic, or the process stopped before the exchange was over.
    Aborted,
}

impl Ending {
    /// The word in logs and metric labels.
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

    /// Every word, for metrics that list their labels up front.
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

/// What the upstream did wrong, as far as the client and the metrics need to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum UpstreamFault {
    /// No connection: refused, no route, name unknown, TLS not trusted.
    Unreachable,
    /// A time limit passed: connecting, the first byte, between bytes, or in all.
    Timeout,
    /// The connection broke or ended too early.
    Cut,
    /// An answer that is no completion: garbage, an unknown status, a body past its limit.
    Invalid,
    /// The upstream reported an error of its own.
    Error,
    /// The upstream refused the request as the client's fault (its 400, 413 or 422).
    BadRequest,
    /// The upstream's own rate limit.
    RateLimited,
    /// No call was made: no upstream had room, or all of them had failed and rested.
    Overloaded,
}

impl UpstreamFault {
    /// The word in logs and metric labels.
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
