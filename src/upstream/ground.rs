//! What follows from a failure before the first byte of an answer: who else may be asked, and who counts as failed.

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
    /// The client is at fault, or there is only too much to do: that says nothing about the model there.
    Nobody,
    /// This model at this provider. A request can cause it, so it counts for its account first, and for all accounts only with more
    /// evidence.
    Offer,
    /// The provider, whatever it is asked for and by whom: no request can cause it.
    Provider,
    /// The same, and once is enough: no repetition changes it.
    ProviderAtOnce,
}

/// The table; `README.md` in this folder says it in words.
pub(super) fn verdict(failed: &Failed) -> Verdict {
    use Blame::{Nobody, Offer, Provider, ProviderAtOnce};
    let (elsewhere, again, blame) = match (failed.status, failed.seen) {
        // About the request: whoever is asked will say the same.
        (Some(400 | 413 | 422), _) => (false, false, Nobody),
        // About us: the key is wrong, or the account with the provider is empty.
        (Some(401 | 402), _) => (true, false, ProviderAtOnce),
        (Some(429), _) => (true, false, Nobody),
        // Says of itself that it has not worked on it.
        (Some(502 | 503), _) => (true, true, Offer),
        // 403 and 404 among them: moderation, and a feature that no model of the provider has, are answered so too.
        (Some(_), _) => (true, false, Offer),
        (None, Seen::Never) => (true, true, Provider),
        // Too many streams of one client at once can cause it.
        (None, Seen::Refused) => (true, true, Offer),
        (None, Seen::Perhaps) => (true, false, Offer),
    };
    Verdict {
        elsewhere,
        again,
        blame,
    }
}
