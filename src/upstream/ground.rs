//! Failure policy: what follows from a failure before the first byte of an answer, retry or failover, and what counts as failed.

use super::attempt::{Failed, Seen};

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Another provider may succeed.
    pub(super) elsewhere: bool,
    /// The same provider may succeed a moment later, and has not started to process the request.
    pub(super) again: bool,
    pub(super) blame: Blame,
}

/// What counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// The request is at fault, or the provider is overloaded: that says nothing about the model there.
    Nobody,
    /// This model at this provider. A request can cause it, so it counts for its account first, and for all accounts only with more
    /// evidence.
    Offer,
    /// The provider, for all models and accounts: no request can cause it.
    Provider,
    /// The same, and one failure is enough: a repetition changes nothing.
    ProviderAtOnce,
}

/// The policy table; `README.md` in this folder has it in prose.
pub(super) fn verdict(failed: &Failed) -> Verdict {
    use Blame::{Nobody, Offer, Provider, ProviderAtOnce};
    let (elsewhere, again, blame) = match (failed.status, failed.seen) {
        // About the request: every provider gives the same answer.
        (Some(400 | 413 | 422), _) => (false, false, Nobody),
        // About the gateway: the key is wrong, or the account at the provider is empty.
        (Some(401 | 402), _) => (true, false, ProviderAtOnce),
        (Some(429), _) => (true, false, Nobody),
        // The provider states that it has not processed the request.
        (Some(502 | 503), _) => (true, true, Offer),
        // 403 and 404 among them: they are also the answers of moderation, and for a feature that no model of the provider has.
        (Some(_), _) => (true, false, Offer),
        (None, Seen::Never) => (true, true, Provider),
        // Too many concurrent streams of one client can cause it.
        (None, Seen::Refused) => (true, true, Offer),
        (None, Seen::Perhaps) => (true, false, Offer),
    };
    Verdict {
        elsewhere,
        again,
        blame,
    }
}
