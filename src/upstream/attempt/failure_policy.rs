//! Failure policy: whether a failure before the first byte of an answer leads to failover or a retry, and which circuit counts the failure.

use crate::upstream::route::FailureScope;
use crate::upstream::transport::{AttemptError, Delivery, Unpaid};

/// The consequences of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FailureAction {
    /// Another provider may succeed.
    pub(super) failover: bool,
    /// The same provider may succeed a moment later, and has not started to process the request.
    pub(super) retry: bool,
    pub(super) scope: FailureScope,
}

/// The policy table; in prose in `README.md` of the folder above.
pub(super) fn classify(failed: &AttemptError) -> FailureAction {
    use FailureScope::{Candidate, NotCounted, Provider, ProviderImmediate, ProviderUnpaid};
    let (failover, retry, scope) = match (failed.status, failed.delivery) {
        // About the gateway's account at the provider, with whatever status.
        _ if failed.unpaid == Some(Unpaid::Account) => (true, false, ProviderUnpaid),
        // A cheaper request may be served: its price is chosen by the client.
        _ if failed.unpaid == Some(Unpaid::Request) => (true, false, Candidate),
        // About the request: every provider gives the same answer.
        (Some(400 | 413 | 422), _) => (false, false, NotCounted),
        // About the gateway: the key is wrong.
        (Some(401), _) => (true, false, ProviderImmediate),
        (Some(429), _) => (true, false, NotCounted),
        // The provider states that the request was not processed.
        (Some(502 | 503), _) => (true, true, Candidate),
        // Including 403 and 404: answers of moderation too, and answers for a feature missing in all models of the provider.
        (Some(_), _) => (true, false, Candidate),
        (None, Delivery::NotSent) => (true, true, Provider),
        // A possible cause: too many concurrent streams of one client.
        (None, Delivery::Refused) => (true, true, Candidate),
        (None, Delivery::Unknown) => (true, false, Candidate),
    };
    FailureAction {
        failover,
        retry,
        scope,
    }
}
