//! Provider selection for a call, and failover to another provider when the first fails before the first byte of an answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate_chain::{BodyLength, Opening, Upstream, UpstreamError};
use tollgate_filter::{Clock, Entropy, Exchange, Forward, UpstreamFault};

use super::attempt::{Ask, Connections, Failed, Seen};
use super::call::Call;
use super::choice::Places;
use super::evidence::{Account, account_of};
use super::fault;
use super::ground::{Verdict, verdict};
use super::hedge::Ended;
use super::offer::{Admission, Asking, Next, Offers, Ticket, Why};
use super::providers::Providers;
use super::relay::Relays;
use super::served::Served;
use crate::telemetry::Telemetry;

/// Minimum of the exponential backoff with jitter before a retry at the same provider: twice as long each time, and half of it random.
const PAUSE: Duration = Duration::from_millis(50);

/// Makes the calls of one worker.
pub(crate) struct Caller {
    pub(super) providers: Arc<Providers>,
    pub(super) clock: Clock,
    entropy: Entropy,
    telemetry: Telemetry,
    connections: Arc<Connections>,
    relays: Relays,
}

/// The state of a request across its attempts.
pub(super) struct Trip {
    account: Account,
    /// Clock reading at its start.
    pub(super) began: Duration,
    /// Clock reading now, or a moment ago.
    pub(super) now: Duration,
    pub(super) tried: Places,
    pub(super) attempts: u32,
    /// The last candidate, if it may be retried.
    again: Option<Again>,
    /// The error for the client if no candidate answers.
    error: Option<UpstreamError>,
}

/// A candidate that may be retried when no other is left.
#[derive(Clone, Copy)]
struct Again {
    at: usize,
    /// How many times it has been called.
    asked: u32,
    /// Whether to back off first; another of its addresses needs no pause.
    pause: bool,
}

impl Trip {
    /// The request, for the selection of a candidate.
    fn asking(&self) -> Asking {
        Asking {
            account: self.account,
            now: self.now.as_micros() as u64,
        }
    }
}

impl Caller {
    pub(crate) fn new(
        providers: Arc<Providers>,
        clock: Clock,
        entropy: Entropy,
        telemetry: Telemetry,
        relays: Relays,
    ) -> Caller {
        let connections = Connections::new(providers.any_needs_connector(), clock.clone());
        Caller {
            providers,
            clock,
            entropy,
            telemetry,
            connections: Arc::new(connections),
            relays,
        }
    }

    /// The request to one of the providers for an exchange.
    pub(super) fn ask(
        &self,
        exchange: &Exchange,
        ticket: &Ticket,
        trip: &Trip,
    ) -> Result<Ask, UpstreamError> {
        let Some(forward) = exchange.get::<Forward>() else {
            return Err(fault::invalid("nothing to forward"));
        };
        let offer = &*ticket.offer;
        Ok(Ask {
            path: forward.api.path(),
            stream: forward.stream,
            body: forward.body.render(exchange, &offer.at),
            client: exchange
                .request
                .client
                .limited()
                .filter(|_| offer.provider.settings.forward_client_address),
            began: trip.now,
            deadline: trip.began + offer.provider.settings.timeouts.total,
        })
    }

    /// Calls one provider once.
    pub(super) async fn attempt(
        &self,
        ticket: &Ticket,
        ask: &Ask,
        calls: &mut u32,
    ) -> Result<Call, Failed> {
        let provider = &ticket.offer.provider;
        let result = self.connections.attempt(provider, ask, calls).await;
        let fault = result.as_ref().map(|_| ());
        self.telemetry.upstream_call(
            &provider.settings.name,
            fault.map_err(|failed| failed.error.fault),
        );
        result
    }

    pub(super) fn next(&self, offers: &Offers, trip: &Trip) -> Next {
        offers.next(trip.tried, &trip.asking(), || {
            u64::from_le_bytes(self.entropy.bytes())
        })
    }

    /// Records that a call was answered.
    fn answered(&self, call: Call, mut ticket: Ticket, body: Bytes) -> Served {
        let news = ticket.answered(call.read_at.as_micros() as u64);
        self.providers.tell(&ticket.offer, news);
        Served { call, ticket, body }
    }

    /// Records a failure: what counts as failed, and the error for the client if no candidate answers.
    #[cold]
    pub(super) fn note(
        &self,
        offers: &Offers,
        trip: &mut Trip,
        (at, mut ticket, body): (usize, Ticket, &[u8]),
        failed: Failed,
    ) -> Verdict {
        let offer = &offers.list[at];
        let verdict = verdict(&failed);
        trip.now = self.clock.elapsed();
        trip.tried |= 1 << at;
        let now = trip.now.as_micros() as u64;
        let news = ticket.failed(verdict.blame, body, now);
        drop(ticket);
        let limited = failed.error.fault == UpstreamFault::RateLimited;
        match failed.wait {
            wait if limited => offer.limited(now, wait),
            Some(wait) => offer.pause(trip.account, now, wait),
            None => {}
        }
        self.providers.tell(offer, news);

        let asked = trip.again.filter(|last| last.at == at);
        let asked = asked.map_or(0, |last| last.asked);
        let retries = offer.provider.settings.retries;
        // A provider of several addresses may be reachable at the next one.
        let addresses = offer.provider.addresses();
        let elsewhere = failed.seen == Seen::Never && asked + 1 < addresses;
        let again = verdict.again && failed.wait.is_none() && (elsewhere || asked < retries);
        trip.again = again.then_some(Again {
            at,
            asked,
            pause: !elsewhere,
        });
        // A rate limit names a time to retry, which no other failure does, and the soonest of several is reported; but an invalid request
        // is invalid at every provider.
        let keep = trip.error.as_ref().is_some_and(|before| {
            let sooner = before.answer.retry_after <= failed.error.answer.retry_after;
            before.fault == UpstreamFault::RateLimited && verdict.elsewhere && (!limited || sooner)
        });
        if !keep {
            trip.error = Some(failed.error);
        }
        verdict
    }

    /// Whether another attempt may follow a failure.
    #[cold]
    fn goes_on(&self, offers: &Offers, trip: &Trip, at: usize, verdict: Verdict) -> bool {
        let offer = &offers.list[at];
        let in_time = trip.now - trip.began < offer.provider.settings.timeouts.total;
        let more = trip.again.is_some() || trip.tried.count_ones() < offers.list.len() as u32;
        let now = trip.now.as_micros() as u64;
        let goes_on = verdict.elsewhere
            && more
            && in_time
            && trip.attempts < self.providers.terms.attempts_max
            && offer.provider.counts.further(offers.budget.take(now));
        if goes_on && let Some(error) = &trip.error {
            let (provider, model) = (&*offer.provider.settings.name, &*offer.model);
            let (fault, detail) = (error.fault.word(), &error.detail);
            // A retry at the same provider answers, or fails with a log line of its own.
            if trip.tried.count_ones() < offers.list.len() as u32 {
                tracing::warn!(provider, model, fault, %detail, "model provider failed, asking another one");
            } else {
                tracing::debug!(provider, model, fault, %detail, "model provider failed, asking it again");
            }
        }
        goes_on
    }

    /// Waits for a permit of a provider. `None` when none was available.
    async fn wait(
        &self,
        offers: &Offers,
        trip: &mut Trip,
        at: usize,
        admission: Admission,
    ) -> Option<Ticket> {
        let offer = &offers.list[at];
        let room = &offer.provider.room;
        let left = (trip.began + offer.provider.settings.timeouts.total).saturating_sub(trip.now);
        let place = room.wait(room.wait_max().min(left)).await;
        let waited = self.clock.elapsed().saturating_sub(trip.now);
        trip.now += waited;
        let Some(place) = place else {
            trip.tried |= 1 << at;
            let detail = format!(
                "no call to `{}` ended in time",
                offer.provider.settings.name
            );
            let error = fault::overloaded(detail, room.wait_max());
            trip.error.get_or_insert(error);
            return None;
        };
        room.waited(waited);
        let request = trip.asking();
        // Failures of other requests may have opened its circuit meanwhile.
        if admission == Admission::ByCircuits && !offer.is_ready(request.account, request.now) {
            return None;
        }
        Ticket::begin(offer, place, &request, admission)
    }

    /// The error for the client when no candidate is left.
    #[cold]
    fn give_up(&self, trip: Trip, why: Why) -> UpstreamError {
        let now = trip.now.as_micros() as u64;
        let left = |until: u64| Duration::from_micros(until.saturating_sub(now));
        if let Some(error) = trip.error {
            return error;
        }
        match why {
            Why::Tried => fault::unreachable("the model has no provider"),
            Why::Full(wait) => fault::overloaded("no provider has room for another call", wait),
            Why::Open(until) => fault::overloaded(
                "no provider works: the circuits of all are open",
                left(until),
            ),
            Why::Limited(until) => {
                fault::limited("the providers asked not to be called yet", left(until))
            }
        }
    }

    /// Backs off, if a candidate that was called may be retried; it then counts as not called.
    async fn pause(&self, trip: &mut Trip) -> bool {
        let Some(again) = &mut trip.again else {
            return false;
        };
        let asked = again.asked;
        again.asked += 1;
        trip.tried &= !(1 << again.at);
        if !again.pause {
            return true;
        }
        let pause = PAUSE * (1 << asked.min(6));
        let chance = u32::from(u16::from_le_bytes(self.entropy.bytes()));
        tokio::time::sleep(pause + pause * chance / u32::from(u16::MAX)).await;
        trip.now = self.clock.elapsed();
        true
    }

    /// The next candidate, with or without a wait.
    pub(super) async fn somebody(
        &self,
        offers: &Offers,
        trip: &mut Trip,
    ) -> Result<(usize, Ticket), Why> {
        loop {
            match self.next(offers, trip) {
                Next::Go(at, ticket) => return Ok((at, ticket)),
                Next::Wait(at, admission) => {
                    let ticket = Box::pin(self.wait(offers, trip, at, admission)).await;
                    if let Some(ticket) = ticket {
                        return Ok((at, ticket));
                    }
                }
                Next::Nobody(why) => {
                    if !Box::pin(self.pause(trip)).await {
                        return Err(why);
                    }
                }
            }
        }
    }
}

impl Upstream for Caller {
    type Call = Served;

    async fn call(&self, exchange: &mut Exchange) -> Result<Served, UpstreamError> {
        let Some(forward) = exchange.get::<Forward>() else {
            return Err(fault::invalid("nothing to forward"));
        };
        let Some(offers) = self.providers.offers(&forward.model.id) else {
            return Err(fault::unreachable("the model has no provider"));
        };
        // The driver has just read the clock.
        let began = exchange.record.upstream_started;
        let began = began.unwrap_or_else(|| self.clock.elapsed());
        let mut trip = Trip {
            account: account_of(exchange),
            began,
            now: began,
            tried: offers.without(forward.api),
            attempts: 0,
            again: None,
            error: None,
        };
        offers.budget.request();
        loop {
            let (at, ticket) = match self.somebody(offers, &mut trip).await {
                Ok(next) => next,
                Err(why) => return Err(self.give_up(trip, why)),
            };
            trip.attempts += 1;
            let offer = &ticket.offer;
            exchange.record.provider = Some(offer.provider.settings.name.clone());
            exchange.record.served_by = offers.is_fallback(at).then(|| offer.model.clone());
            let hedge = self.providers.terms.hedge_after;
            let ended = match hedge.filter(|_| offers.has_others()) {
                None => {
                    let ask = self.ask(exchange, &ticket, &trip)?;
                    let calls = &mut exchange.record.upstream_calls;
                    let result = self.attempt(&ticket, &ask, calls).await;
                    let body = ask.body;
                    Ended {
                        at,
                        ticket,
                        body,
                        result,
                    }
                }
                Some(after) => {
                    let asked = (at, ticket);
                    Box::pin(self.hedged(exchange, offers, &mut trip, asked, after)).await?
                }
            };
            let Ended {
                at,
                ticket,
                body,
                result,
            } = ended;
            let failed = match result {
                Ok(call) => return Ok(self.answered(call, ticket, body)),
                Err(failed) => failed,
            };
            let verdict = self.note(offers, &mut trip, (at, ticket, &body), failed);
            if !self.goes_on(offers, &trip, at, verdict) {
                return Err(self.give_up(trip, Why::Tried));
            }
        }
    }

    fn open<'a>(&'a self, exchange: &'a mut Exchange, body: BodyLength) -> Opening<'a> {
        Box::pin(self.relays.open(exchange, body))
    }
}
