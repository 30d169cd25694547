//! What follows from a failure before the first byte of an answer: who else may be asked, and who counts as failed.

use tollgate_filter::UpstreamFault;

use super::attempt::{Failed, Seen};

/// What follows from a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Verdict {
    /// Another provider may do better.
    pub(super) elsewhere: bool,
    /// The same one may do better a moment later, and has not begun to work on the request.
    pub(super) again: bool,
    pub(super) blame: Blame,
}

/// Who counts as failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Blame {
    /// It works: the client is at fault, or there is only too much to do.
    Nobody,
    /// This model at this provider.
    Offer,
    /// The same, and once is enough: no repetition changes it.
    OfferAtOnce,
    /// The provider, whatever it is asked for.
    Provider,
    /// The same, and once is enough.
    ProviderAtOnce,
}

/// The table; `README.md` in this folder says it in words.
pub(super) fn verdict(failed: &Failed) -> Verdict {
    use Blame::{Nobody, Offer, OfferAtOnce, Provider, ProviderAtOnce};
    let (elsewhere, again, blame) = match (failed.status, failed.seen) {
        // About the request: whoever is asked will say the same.
        (Some(400 | 413 | 422), _) => (false, false, Nobody),
        // About us: the key is wrong, or the account with the provider is empty.
        (Some(401..=403), _) => (true, false, ProviderAtOnce),
        // The name of the model or the address is wrong.
        (Some(404), _) => (true, false, OfferAtOnce),
        (Some(429), _) => (true, false, Nobody),
        // Says of itself that it has not worked on it.
        (Some(502 | 503), _) => (true, true, Offer),
        (Some(_), _) => (true, false, Offer),
        (None, Seen::Never | Seen::Refused) => (true, true, Provider),
        (None, Seen::Perhaps) => match failed.error.fault {
            UpstreamFault::Cut => (true, false, Provider),
            _ => (true, false, Offer),
        },
    };
    Verdict {
        elsewhere,
        again,
        blame,
    }
}
