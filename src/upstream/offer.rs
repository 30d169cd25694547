//! The candidates for each model, and the selection of the next one.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;
use tollgate_filter::{Api, Choice, ProviderModel};

use super::budget::Budget;
use super::choice::{Places, each, least_busy, weighted};
use super::circuit::State;
use super::evidence::{Account, Failure};
use super::ground::Blame;
use super::health::{CandidateHealth, Opened, Trials};
use super::providers::Provider;
use super::room::Place;

/// How long a provider that rate-limits the gateway without `Retry-After` is called only when no other can serve.
const AVOIDED: Duration = Duration::from_secs(1);

/// A candidate: a model at one provider.
pub(super) struct Offer {
    pub(super) provider: Arc<Provider>,
    pub(super) at: ProviderModel,
    /// The model's name for clients.
    pub(super) model: Arc<str>,
    pub(super) health: CandidateHealth,
    /// The provider rate-limits the gateway and asked not to be called before then.
    limited_until: AtomicU64,
    /// Until then it is called only when no other candidate can serve: it rate-limited the gateway without `Retry-After`, or failed and
    /// asked not to be called.
    avoided_until: AtomicU64,
}

/// The candidates for one model.
pub(super) struct Offers {
    /// First the model's own, then those of its fallback models.
    pub(super) list: Box<[Arc<Offer>]>,
    ranks: Box<[Rank]>,
    /// Candidates without chat, and candidates without text completions.
    no_chat: Places,
    no_text: Places,
    pub(super) budget: Budget,
}

/// Candidates of equal rank: the model's own, or those of one fallback model.
pub(super) struct Rank {
    pub(super) places: Places,
    pub(super) choice: Choice,
}

/// The next candidate.
pub(super) enum Next {
    /// This one; the call is already counted.
    Go(usize, Ticket),
    /// This one, when a permit is available.
    Wait(usize, Admission),
    /// No candidate, and why.
    Nobody(Why),
}

/// Why no candidate is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// All have been called.
    Tried,
    /// Capacity and queues are full; a permit may take this long.
    Full(Duration),
    /// Their circuits are open until then.
    Open(u64),
    /// They rate-limit the gateway until then.
    Limited(u64),
}

/// How the circuits of a candidate apply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Admission {
    /// They admit it, perhaps as a trial request.
    ByCircuits,
    /// No other candidate is left: only the circuit of the provider counts, which no request can open.
    LastResort,
}

/// A change of health that operators see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// A circuit closed for all accounts.
    Closed,
    /// The circuit of this account opened.
    OpenedForAccount(Account),
    /// A circuit opened for all accounts.
    Opened,
}

/// The accounting of a call under way: permit and trial requests, released on drop.
pub(super) struct Ticket {
    pub(super) offer: Arc<Offer>,
    account: Account,
    _place: Place,
    admission: Admission,
    /// Whether it is a trial request for the circuit of the provider.
    tries_provider: bool,
    trials: Trials,
}

impl Offer {
    pub(super) fn new(model: Arc<str>, at: ProviderModel, provider: Arc<Provider>) -> Offer {
        Offer {
            provider,
            at,
            model,
            health: CandidateHealth::default(),
            limited_until: AtomicU64::new(0),
            avoided_until: AtomicU64::new(0),
        }
    }

    /// Whether it may be called at all.
    fn is_open(&self, now: u64) -> bool {
        self.limited_until.load(Relaxed) <= now
    }

    /// Whether it is preferred for this account: no circuit, limit or `Retry-After` is against it.
    pub(super) fn is_ready(&self, account: Account, now: u64) -> bool {
        let terms = &self.provider.terms;
        self.is_open(now)
            && self.avoided_until.load(Relaxed) <= now
            && self.health.admits(account, now, terms)
            && self.provider.circuit.admits(now, terms)
    }

    /// Whether the model is reported to clients as available here. Its own circuits do not matter: they never remove the last candidate.
    pub(super) fn is_had(&self, now: u64) -> bool {
        !matches!(self.provider.circuit.state(now), State::Open(_))
    }

    /// The provider rate-limits the gateway; `wait` is its `Retry-After`.
    pub(super) fn limited(&self, now: u64, wait: Option<Duration>) {
        let end = |wait: Duration| now.saturating_add(wait.as_micros() as u64);
        match wait {
            Some(wait) => self.limited_until.fetch_max(end(wait), Relaxed),
            None => self.avoided_until.fetch_max(end(AVOIDED), Relaxed),
        };
    }

    /// The provider failed a request of this account and asked not to be called for this long. A request can cause that, so it affects only
    /// the choice among candidates, and like its other failures the account first.
    pub(super) fn pause(&self, account: Account, now: u64, wait: Duration) {
        let (provider, terms) = (&self.provider, &self.provider.terms);
        let probe_failed = provider.probe_failed.load(Relaxed);
        if self.health.pause(account, now, wait, probe_failed, terms) {
            let until = now.saturating_add(wait.as_micros() as u64);
            self.avoided_until.fetch_max(until, Relaxed);
        }
    }

    /// When it may be called again, for the view of operators.
    pub(super) fn closed_until(&self, now: u64) -> Option<u64> {
        let limited = self.limited_until.load(Relaxed);
        let until = limited.max(self.avoided_until.load(Relaxed));
        (until > now).then_some(until)
    }

    /// Logs a change for the operator.
    pub(super) fn log(&self, news: News) {
        let (provider, model) = (&*self.provider.settings.name, &*self.model);
        match news {
            News::None => {}
            News::Closed => {
                tracing::warn!(provider, model, "closed circuit: a request succeeded");
            }
            News::OpenedForAccount(account) => tracing::warn!(
                provider,
                model,
                account = account.map(tracing::field::display),
                "opened circuit for one account: its requests failed"
            ),
            News::Opened => tracing::error!(
                provider,
                model,
                "opened circuit for all accounts: provider does not work"
            ),
        }
    }

    /// Records what counts as failed for the failure of a call.
    fn failed(&self, blame: Blame, failure: Failure, ticket: &Ticket) -> News {
        let (provider, terms) = (&self.provider, &self.provider.terms);
        let opened = match blame {
            // The provider is reachable and accepts the key; whether it can serve a valid request is still unknown.
            Blame::Nobody if provider.circuit.succeeded() => return News::Closed,
            Blame::Nobody => false,
            Blame::Offer => {
                let probe_failed = provider.probe_failed.load(Relaxed);
                let opened = self
                    .health
                    .failed(failure, &ticket.trials, probe_failed, terms);
                match opened {
                    Opened::None => false,
                    Opened::Account => return News::OpenedForAccount(failure.account),
                    Opened::All => true,
                }
            }
            Blame::Provider => {
                let is_trial = ticket.tries_provider;
                provider.circuit.failed(failure.at, is_trial, terms)
            }
            Blame::ProviderAtOnce => provider.circuit.open(failure.at, terms),
        };
        if opened { News::Opened } else { News::None }
    }

    /// Records an answer.
    fn answered(&self, account: Account, now: u64) -> News {
        let provider = self.provider.circuit.succeeded();
        if self.health.succeeded(account, now) || provider {
            News::Closed
        } else {
            News::None
        }
    }
}

impl Offers {
    pub(super) fn new(list: Vec<Arc<Offer>>, ranks: Vec<Rank>, budget: Budget) -> Offers {
        let without = |api| {
            let lacking = list.iter().enumerate();
            let lacking = lacking.filter(|(_, offer)| !offer.at.apis.has(api));
            lacking.fold(0, |places, (at, _)| places | (1 << at))
        };
        Offers {
            no_chat: without(Api::Chat),
            no_text: without(Api::Text),
            list: list.into(),
            ranks: ranks.into(),
            budget,
        }
    }

    /// The candidates that lack an operation.
    pub(super) fn without(&self, api: Api) -> Places {
        match api {
            Api::Chat => self.no_chat,
            Api::Text => self.no_text,
        }
    }

    /// Whether there is any candidate besides the first.
    pub(super) fn has_others(&self) -> bool {
        self.list.len() > 1
    }

    /// Whether one of the model's own candidates is available, or one of its fallbacks.
    pub(super) fn are_had(&self, now: u64) -> bool {
        self.list.iter().any(|offer| offer.is_had(now))
    }

    /// Whether it is a candidate of a fallback model.
    pub(super) fn is_fallback(&self, at: usize) -> bool {
        self.ranks
            .first()
            .is_some_and(|own| own.places >> at & 1 == 0)
    }

    fn keep(&self, places: Places, is: impl Fn(&Offer) -> bool) -> Places {
        each(places).fold(0, |kept, at| kept | (u64::from(is(&self.list[at])) << at))
    }

    fn choose(&self, places: Places, choice: Choice, draw: &impl Fn() -> u64) -> Option<usize> {
        if places.is_power_of_two() {
            return Some(places.trailing_zeros() as usize);
        }
        let weight = |at: usize| self.list[at].at.weight;
        match choice {
            Choice::Weighted => weighted(places, weight, draw()),
            Choice::LeastBusy => {
                let busy = |at: usize| self.list[at].provider.room.calls();
                least_busy(places, weight, busy, draw())
            }
        }
    }

    /// Takes one of these that has a free permit.
    fn take(
        &self,
        mut places: Places,
        choice: Choice,
        request: &Asking,
        admission: Admission,
        draw: &impl Fn() -> u64,
    ) -> Option<Next> {
        places = self.keep(places, |offer| offer.provider.room.is_free());
        while let Some(at) = self.choose(places, choice, draw) {
            let offer = &self.list[at];
            if let Some(place) = offer.provider.room.take()
                && let Some(ticket) = Ticket::begin(offer, place, request, admission)
            {
                return Some(Next::Go(at, ticket));
            }
            // Another request took the permit first.
            places &= !(1 << at);
        }
        None
    }

    /// The queue of one of these.
    fn queue(
        &self,
        places: Places,
        choice: Choice,
        admission: Admission,
        draw: &impl Fn() -> u64,
    ) -> Option<Next> {
        let queues = self.keep(places, |offer| offer.provider.room.may_wait());
        let at = self.choose(queues, choice, draw)?;
        Some(Next::Wait(at, admission))
    }

    /// The next candidate among those that have not been tried; `draw` gives random words.
    ///
    /// The model's own that the circuits admit, at once or from the queue; those of its fallback models; then candidates to avoid; then
    /// those with open circuits of their own; then, a few requests at a time, those of a provider with an open circuit. Never one that
    /// rate-limits the gateway and asked not to be called yet.
    pub(super) fn next(&self, tried: Places, request: &Asking, draw: impl Fn() -> u64) -> Next {
        let by_circuits = Admission::ByCircuits;
        for rank in &self.ranks {
            let ready = |offer: &Offer| offer.is_ready(request.account, request.now);
            let ready = self.keep(rank.places & !tried, ready);
            let next = self.take(ready, rank.choice, request, by_circuits, &draw);
            let next = next.or_else(|| self.queue(ready, rank.choice, by_circuits, &draw));
            if let Some(next) = next {
                return next;
            }
        }
        self.last_resort(tried, request, &draw)
    }

    #[cold]
    fn last_resort(&self, tried: Places, request: &Asking, draw: &impl Fn() -> u64) -> Next {
        let Asking { account, now } = *request;
        let open = |rank: &Rank| self.keep(rank.places & !tried, |offer| offer.is_open(now));
        for rank in &self.ranks {
            let admits = |offer: &Offer| {
                let terms = &offer.provider.terms;
                offer.health.admits(account, now, terms)
                    && offer.provider.circuit.admits(now, terms)
            };
            let admitted = self.keep(open(rank), admits);
            let next = self.take(admitted, rank.choice, request, Admission::ByCircuits, draw);
            if let Some(next) = next {
                return next;
            }
        }
        let last = Admission::LastResort;
        for rank in &self.ranks {
            let admits = |offer: &Offer| offer.provider.circuit.admits(now, &offer.provider.terms);
            let admitted = self.keep(open(rank), admits);
            let next = self.take(admitted, rank.choice, request, last, draw);
            let next = next.or_else(|| self.queue(admitted, rank.choice, last, draw));
            if let Some(next) = next {
                return next;
            }
        }
        for rank in &self.ranks {
            if let Some(next) = self.take(open(rank), rank.choice, request, last, draw) {
                return next;
            }
        }
        Next::Nobody(self.why(tried, now))
    }

    /// The reason that ends soonest.
    fn why(&self, tried: Places, now: u64) -> Why {
        let left = self.list.iter().enumerate();
        let left = left.filter(|(at, _)| tried >> at & 1 == 0);
        let end = |why: &Why| match *why {
            Why::Tried => u64::MAX,
            Why::Full(wait) => now.saturating_add(wait.as_micros() as u64),
            Why::Open(until) | Why::Limited(until) => until,
        };
        left.map(|(_, offer)| {
            let limited = offer.limited_until.load(Relaxed);
            let room = &offer.provider.room;
            match offer.provider.circuit.state(now) {
                _ if limited > now => Why::Limited(limited),
                State::Open(until) => Why::Open(until),
                State::Closed | State::HalfOpen if !room.is_free() => {
                    room.turned_away();
                    Why::Full(room.wait_max())
                }
                State::Closed | State::HalfOpen => Why::Open(now),
            }
        })
        .min_by_key(end)
        .unwrap_or(Why::Tried)
    }
}

/// A request for which a candidate is chosen.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asking {
    pub(super) account: Account,
    pub(super) now: u64,
}

impl Ticket {
    /// Starts a call, unless circuits do not admit it: one that is not closed admits a bounded number of trial requests.
    pub(super) fn begin(
        offer: &Arc<Offer>,
        place: Place,
        request: &Asking,
        admission: Admission,
    ) -> Option<Ticket> {
        let Asking { account, now } = *request;
        let terms = &offer.provider.terms;
        let tries_provider = offer.provider.circuit.enter(terms)?;
        let trials = match admission {
            Admission::ByCircuits => offer.health.enter(account, now, terms),
            Admission::LastResort => Some(Trials::default()),
        };
        let Some(trials) = trials else {
            if tries_provider {
                offer.provider.circuit.leave();
            }
            return None;
        };
        offer.provider.room.entered();
        offer.health.note_activity(account, now);
        Some(Ticket {
            offer: offer.clone(),
            account,
            _place: place,
            admission,
            tries_provider,
            trials,
        })
    }

    /// Whether the call was an ordinary one when it started: neither a trial request nor a last resort.
    pub(super) fn is_ordinary(&self) -> bool {
        self.admission == Admission::ByCircuits && !self.is_trial()
    }

    fn is_trial(&self) -> bool {
        self.tries_provider || self.trials.is_any()
    }

    /// The provider has started to answer. A trial request has its result; whether the answer is complete is another question.
    pub(super) fn answered(&mut self, now: u64) -> News {
        let news = if self.is_trial() {
            self.offer.answered(self.account, now)
        } else {
            News::None
        };
        self.leave();
        news
    }

    /// The answer is complete.
    pub(super) fn ended(&mut self, now: u64) {
        self.offer.health.note_activity(self.account, now);
        let news = self.offer.answered(self.account, now);
        self.offer.log(news);
    }

    /// The call has failed; `body` is what was sent to the provider.
    pub(super) fn failed(&mut self, blame: Blame, body: &[u8], now: u64) -> News {
        let failure = Failure::new(self.account, body, now);
        let news = self.offer.failed(blame, failure, self);
        self.leave();
        news
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.tries_provider) {
            self.offer.provider.circuit.leave();
        }
        self.offer.health.leave(&mut self.trials);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
        self.offer.provider.room.left();
    }
}
