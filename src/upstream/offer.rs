//! What the providers offer for each model, and which of them is asked next.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;
use tollgate_filter::{Api, Choice, ProviderModel};

use super::budget::Budget;
use super::choice::{Places, each, least_busy, weighted};
use super::ground::Blame;
use super::health::{Health, State};
use super::providers::Provider;
use super::room::Place;

/// How long a provider that limits us without saying for how long is asked only when nobody else can serve.
const AVOIDED: Duration = Duration::from_secs(1);

/// A model at one provider.
pub(super) struct Offer {
    pub(super) provider: Arc<Provider>,
    pub(super) at: ProviderModel,
    /// What clients call the model.
    pub(super) model: Arc<str>,
    pub(super) health: Health,
    /// The provider asked not to be called before then.
    closed_until: AtomicU64,
    /// Whether it did so because of a limit on us.
    limited: AtomicBool,
    /// It had better not be called before then.
    avoided_until: AtomicU64,
}

/// Whom a request for one model may be put to.
pub(super) struct Offers {
    /// First the model's own, then those of the models that serve in its place.
    pub(super) list: Box<[Arc<Offer>]>,
    ranks: Box<[Rank]>,
    /// Those that have no chat, and those that have no text completions.
    no_chat: Places,
    no_text: Places,
    pub(super) budget: Budget,
}

/// Those among which one is chosen: the model's own, or those of one model that serves in its place.
pub(super) struct Rank {
    pub(super) places: Places,
    pub(super) choice: Choice,
}

/// Who is asked next.
pub(super) enum Next {
    /// This one; it has been told already.
    Go(usize, Ticket),
    /// This one, when a place is free.
    Wait(usize),
    /// Nobody, and why.
    Nobody(Why),
}

/// Why nobody can be asked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    /// All have been.
    Tried,
    /// There is no room, not even to wait; so long may it take.
    Full(Duration),
    /// They rest until then.
    Resting(u64),
    /// They limit us until then.
    Limited(u64),
}

/// Whether something changed for those who watch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum News {
    None,
    /// Something works again.
    Works,
    /// Something rests from now on that did not before.
    Rests,
}

/// A call that has begun, for those who count. Dropped, it has ended.
pub(super) struct Ticket {
    pub(super) offer: Arc<Offer>,
    _place: Place,
    tries_provider: bool,
    tries_offer: bool,
}

impl Offer {
    pub(super) fn new(model: Arc<str>, at: ProviderModel, provider: Arc<Provider>) -> Offer {
        Offer {
            provider,
            at,
            model,
            health: Health::default(),
            closed_until: AtomicU64::new(0),
            limited: AtomicBool::new(false),
            avoided_until: AtomicU64::new(0),
        }
    }

    /// Whether it may be called at all.
    fn is_open(&self, now: u64) -> bool {
        self.closed_until.load(Relaxed) <= now
    }

    /// Whether nothing speaks against calling it.
    pub(super) fn is_ready(&self, now: u64) -> bool {
        let ready = |health: &Health| match health.state(now) {
            State::Working => true,
            State::HalfOpen => !health.is_tried(),
            State::Resting(_) => false,
        };
        self.is_open(now)
            && self.avoided_until.load(Relaxed) <= now
            && ready(&self.health)
            && ready(&self.provider.health)
    }

    /// Whether clients may be told that the model can be had here.
    pub(super) fn is_had(&self, now: u64) -> bool {
        let had = |health: &Health| !matches!(health.state(now), State::Resting(_));
        had(&self.health) && had(&self.provider.health)
    }

    /// The end of its rest, if it rests.
    fn rests_until(&self, now: u64) -> u64 {
        [&self.health, &self.provider.health]
            .into_iter()
            .map(|health| match health.state(now) {
                State::Resting(until) => until,
                State::Working | State::HalfOpen => now,
            })
            .fold(now, u64::max)
    }

    /// The provider asked not to be called for so long.
    pub(super) fn close(&self, now: u64, wait: Option<Duration>, limited: bool) {
        match wait {
            Some(wait) => {
                let until = now.saturating_add(wait.as_micros() as u64);
                self.limited.store(limited, Relaxed);
                self.closed_until.fetch_max(until, Relaxed);
            }
            None if limited => {
                let until = now.saturating_add(AVOIDED.as_micros() as u64);
                self.avoided_until.fetch_max(until, Relaxed);
            }
            None => {}
        }
    }

    /// When it may be called again, for the view of operators.
    pub(super) fn closed_until(&self, now: u64) -> Option<u64> {
        let until = self.closed_until.load(Relaxed);
        (until > now).then_some(until)
    }

    /// Tells the operator of a change.
    pub(super) fn log(&self, news: News) {
        let (provider, model) = (&*self.provider.settings.name, &*self.model);
        match news {
            News::None => {}
            News::Works => tracing::warn!(provider, model, "provider works again"),
            News::Rests => {
                tracing::error!(
                    provider,
                    model,
                    "provider does not work; it rests before it is tried again"
                );
            }
        }
    }

    /// Notes who is to blame for a failure.
    pub(super) fn failed(&self, blame: Blame, now: u64, tries: (bool, bool)) -> News {
        let terms = &self.provider.terms;
        let rests = match blame {
            Blame::Nobody => return self.answered(),
            Blame::Offer => self.health.failed(now, tries.1, terms),
            Blame::OfferAtOnce => self.health.rest(now, terms),
            Blame::Provider => self.provider.health.failed(now, tries.0, terms),
            Blame::ProviderAtOnce => self.provider.health.rest(now, terms),
        };
        if rests { News::Rests } else { News::None }
    }

    /// Notes an answer.
    fn answered(&self) -> News {
        let provider = self.provider.health.succeeded();
        if self.health.succeeded() || provider {
            News::Works
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

    /// Those that do not have an operation.
    pub(super) fn without(&self, api: Api) -> Places {
        match api {
            Api::Chat => self.no_chat,
            Api::Text => self.no_text,
        }
    }

    /// Whether there is anybody to turn to besides the first.
    pub(super) fn has_others(&self) -> bool {
        self.list.len() > 1
    }

    /// Whether one of the model's own providers can be had, or one of those that serve in its place.
    pub(super) fn are_had(&self, now: u64) -> bool {
        self.list.iter().any(|offer| offer.is_had(now))
    }

    /// Whether it is one of a model that serves in the place of the one asked for.
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

    /// Takes one of these that has room.
    fn take(&self, mut places: Places, choice: Choice, draw: &impl Fn() -> u64) -> Option<Next> {
        places = self.keep(places, |offer| offer.provider.room.is_free());
        while let Some(at) = self.choose(places, choice, draw) {
            let offer = &self.list[at];
            if let Some(place) = offer.provider.room.take()
                && let Some(ticket) = Ticket::begin(offer, place)
            {
                return Some(Next::Go(at, ticket));
            }
            // Another request was faster.
            places &= !(1 << at);
        }
        None
    }

    /// Who is asked next of those that have not been tried; `draw` gives random words.
    ///
    /// The model's own that work, at once or from the queue; those that work of the models in its place; then whoever had better not
    /// be asked; then, one request at a time, those that rest. Never one that asked not to be called yet.
    pub(super) fn next(&self, tried: Places, now: u64, draw: impl Fn() -> u64) -> Next {
        for rank in &self.ranks {
            let ready = self.keep(rank.places & !tried, |offer| offer.is_ready(now));
            if let Some(next) = self.take(ready, rank.choice, &draw) {
                return next;
            }
            let queues = self.keep(ready, |offer| offer.provider.room.may_wait());
            if let Some(at) = self.choose(queues, rank.choice, &draw) {
                return Next::Wait(at);
            }
        }
        self.last_resort(tried, now, &draw)
    }

    #[cold]
    fn last_resort(&self, tried: Places, now: u64, draw: &impl Fn() -> u64) -> Next {
        let open = |rank: &Rank| self.keep(rank.places & !tried, |offer| offer.is_open(now));
        for rank in &self.ranks {
            let had = self.keep(open(rank), |offer| offer.is_had(now));
            if let Some(next) = self.take(had, rank.choice, draw) {
                return next;
            }
        }
        for rank in &self.ranks {
            if let Some(next) = self.take(open(rank), rank.choice, draw) {
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
            Why::Resting(until) | Why::Limited(until) => until,
        };
        left.map(|(_, offer)| {
            let closed = offer.closed_until.load(Relaxed);
            if closed > now && offer.limited.load(Relaxed) {
                Why::Limited(closed)
            } else if closed > now {
                Why::Resting(closed)
            } else if offer.is_had(now) && !offer.provider.room.is_free() {
                offer.provider.room.turned_away();
                Why::Full(offer.provider.room.wait_max())
            } else {
                Why::Resting(offer.rests_until(now))
            }
        })
        .min_by_key(end)
        .unwrap_or(Why::Tried)
    }
}

impl Ticket {
    /// Begins a call, unless the provider or what it offers is being tried by another request.
    pub(super) fn begin(offer: &Arc<Offer>, place: Place) -> Option<Ticket> {
        let tries_provider = offer.provider.health.enter()?;
        let Some(tries_offer) = offer.health.enter() else {
            if tries_provider {
                offer.provider.health.leave();
            }
            return None;
        };
        offer.provider.room.entered();
        Some(Ticket {
            offer: offer.clone(),
            _place: place,
            tries_provider,
            tries_offer,
        })
    }

    /// The provider has begun to answer. Whoever tried it has its result; whether the answer is whole is another question.
    pub(super) fn answered(&mut self) -> News {
        let news = if self.tries_provider || self.tries_offer {
            self.offer.answered()
        } else {
            News::None
        };
        self.leave();
        news
    }

    /// The answer is whole.
    pub(super) fn ended(&mut self) {
        let news = self.offer.answered();
        self.offer.log(news);
    }

    /// The call has failed.
    pub(super) fn failed(&mut self, blame: Blame, now: u64) -> News {
        let news = self
            .offer
            .failed(blame, now, (self.tries_provider, self.tries_offer));
        self.leave();
        news
    }

    fn leave(&mut self) {
        if std::mem::take(&mut self.tries_provider) {
            self.offer.provider.health.leave();
        }
        if std::mem::take(&mut self.tries_offer) {
            self.offer.health.leave();
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.leave();
        self.offer.provider.room.left();
    }
}
