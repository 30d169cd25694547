//! Hedged requests: a second attempt beside a slow one; the first answer serves, the other attempt is cancelled.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use tollgate_chain::UpstreamError;
use tollgate_filter::Exchange;

use super::attempt::{Ask, Failed};
use super::call::Call;
use super::caller::{Caller, Trip};
use super::offer::{Next, Offers, Ticket};

/// An attempt that has finished, and its position.
pub(super) struct Ended {
    pub(super) at: usize,
    pub(super) ticket: Ticket,
    /// The body sent to the provider.
    pub(super) body: Bytes,
    pub(super) result: Result<Call, Failed>,
}

impl Caller {
    /// Calls one provider, and after a delay another one too.
    pub(super) async fn hedged(
        &self,
        exchange: &mut Exchange,
        offers: &Offers,
        trip: &mut Trip,
        (at, ticket): (usize, Ticket),
        after: Duration,
    ) -> Result<Ended, UpstreamError> {
        let ask = self.ask(exchange, &ticket, trip)?;
        let (mut calls, mut more) = (0, 0);
        let mut second = None;
        let (one, other) = {
            let mut first = pin!(self.attempt(&ticket, &ask, &mut calls));
            match tokio::time::timeout(after, first.as_mut()).await {
                Ok(result) => (Some(result), None),
                Err(_) => {
                    trip.tried |= 1 << at;
                    second = self.second(exchange, offers, trip, &ticket)?;
                    match &second {
                        None => (Some(first.await), None),
                        Some((_, ticket, ask)) => {
                            let other = pin!(self.attempt(ticket, ask, &mut more));
                            race(first, other).await
                        }
                    }
                }
            }
        };
        exchange.record.upstream_calls += calls + more;
        let body = ask.body;
        let Some((second_at, second, second_ask)) = second else {
            let result = one.expect("one attempt was made and has ended");
            return Ok(Ended {
                at,
                ticket,
                body,
                result,
            });
        };
        trip.attempts += 1;
        let counts = &second.offer.provider.counts;
        if let Some(Ok(call)) = one {
            counts.hedges_lost.fetch_add(1, Relaxed);
            return Ok(Ended {
                at,
                ticket,
                body,
                result: Ok(call),
            });
        }
        let result = match other {
            Some(result) => result,
            None => unreachable!("a race ends with an answer or two failures"),
        };
        match &result {
            Ok(_) => counts.hedges_won.fetch_add(1, Relaxed),
            Err(_) => counts.hedges_lost.fetch_add(1, Relaxed),
        };
        if let Some(Err(failed)) = one {
            self.note(offers, trip, (at, ticket, &body), failed);
        }
        let winner = &second.offer;
        exchange.record.provider = Some(winner.provider.settings.name.clone());
        exchange.record.served_by = offers.is_fallback(second_at).then(|| winner.model.clone());
        Ok(Ended {
            at: second_at,
            ticket: second,
            body: second_ask.body,
            result,
        })
    }

    /// Another candidate that is healthy and has capacity, and the request for it. A hedge is never a trial request and never waits in a
    /// queue.
    fn second(
        &self,
        exchange: &Exchange,
        offers: &Offers,
        trip: &mut Trip,
        first: &Ticket,
    ) -> Result<Option<(usize, Ticket, Ask)>, UpstreamError> {
        trip.now = self.clock.elapsed();
        if trip.attempts >= self.providers.terms.attempts_max {
            return Ok(None);
        }
        let now = trip.now.as_micros() as u64;
        let Next::Go(at, ticket) = self.next(offers, trip) else {
            return Ok(None);
        };
        if !ticket.is_ordinary() {
            return Ok(None);
        }
        if !offers.budget.take(now) {
            first.offer.provider.counts.refused.fetch_add(1, Relaxed);
            return Ok(None);
        }
        let ask = self.ask(exchange, &ticket, trip)?;
        Ok(Some((at, ticket, ask)))
    }
}

/// Waits for the first answer, or for two failures.
async fn race<T, E>(
    mut first: impl Future<Output = Result<T, E>> + Unpin,
    mut second: impl Future<Output = Result<T, E>> + Unpin,
) -> (Option<Result<T, E>>, Option<Result<T, E>>) {
    let (mut one, mut other) = (None, None);
    while one.is_none() || other.is_none() {
        let answered = tokio::select! {
            biased;
            result = &mut first, if one.is_none() => one.insert(result).is_ok(),
            result = &mut second, if other.is_none() => other.insert(result).is_ok(),
        };
        if answered {
            break;
        }
    }
    (one, other)
}
