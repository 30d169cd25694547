//! Placing of holds: the worst case of a request, under the cap of the request's key, on the credit of the account.

use std::num::NonZeroU64;

use tollgate_clock::Deadline;
use tollgate_filter::{Clamped, Exchange, FilterError, Forward, Outcome, OutputCap, Step};
use tollgate_ledger::{CapHold, CapReached, Decision, Hold, HoldError, HoldRequest};
use tollgate_money::{CredentialId, Micros, Price, SpendingCap};

use crate::counters::MeterEvent;
use crate::error::{MeterError, hold_failed};
use crate::filter::{Meter, QuoteHold, principal};
use crate::quote::{Quote, Sizes};

/// A hold to be placed.
struct Placing {
    request: HoldRequest,
    shorter: Shorter,
    /// The reservation against the credential's own cap.
    cap: Option<CapHold>,
}

/// The shorter answer that a request without an output cap may get. From the original request: a clamp to the key's cap does not exclude
/// further clamping.
#[derive(Clone, Copy)]
struct Shorter {
    sizes: Sizes,
    price: Price,
    /// The least tokens of an answer; `None` where no answer is shortened.
    floor: Option<u64>,
}

impl Shorter {
    /// The amount of the longest answer that `available` pays for.
    fn amount(self, available: Micros) -> Option<Micros> {
        let sizes = self.sizes.clamp(available, &self.price, self.floor?)?;
        Some(sizes.amount(&self.price))
    }
}

/// The credential of an exchange and its cap.
fn capped(exchange: &Exchange) -> Result<Option<(CredentialId, SpendingCap)>, MeterError> {
    let principal = principal(exchange)?;
    Ok(principal
        .spending_cap
        .map(|cap| (principal.credential, cap)))
}

/// The quote of an exchange.
fn quote(exchange: &Exchange) -> Result<&Quote, MeterError> {
    let held = exchange.get::<QuoteHold>();
    held.map(|held| &held.quote)
        .ok_or(MeterError::Missing { what: "quote" })
}

impl Meter {
    /// Holds the worst case in memory; for a stream also on the disk, concurrently with the upstream call.
    pub(crate) fn hold<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let prepared = self.prepare_hold(exchange);
        let capped = capped(exchange).map_err(FilterError::from);
        let (placing, capped) = match (prepared, capped) {
            (Ok(placing), Ok(capped)) => (placing, capped),
            (Err(error), _) | (_, Err(error)) => return Step::failed(error),
        };
        let Some(capped) = capped else {
            return self.place(exchange, placing);
        };
        let (request, shorter) = (placing.request, placing.shorter);
        let fallback = move |left| shorter.amount(left);
        match self.ledger.hold_cap(capped, request, fallback) {
            Decision::Now(reserved) => self.place_under(exchange, placing, capped.1, reserved),
            Decision::Later(reserved) => Step::later(async move {
                let reserved = reserved.await;
                exchange.invalidate_now();
                let placed = self.place_under(exchange, placing, capped.1, reserved);
                placed.finish().await
            }),
        }
    }

    /// Places a hold as large as the remaining cap of the key.
    fn place_under<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        mut placing: Placing,
        cap: SpendingCap,
        reserved: Result<CapHold, HoldError>,
    ) -> Step<'a, Outcome> {
        match reserved {
            Ok(reserved) => {
                placing.request.amount = reserved.amount();
                placing.cap = Some(reserved);
                self.place(exchange, placing)
            }
            Err(HoldError::InsufficientCredit { available, .. }) => {
                let reached = CapReached::of(cap, available, placing.request.at);
                Step::Now(
                    quote(exchange)
                        .map_err(FilterError::from)
                        .map(|quote| self.refuse_cap(quote, reached)),
                )
            }
            Err(error) => Step::Now(hold_failed(error)),
        }
    }

    fn place<'a>(&'a self, exchange: &'a mut Exchange, mut placing: Placing) -> Step<'a, Outcome> {
        let is_free = !placing.request.amount.is_positive();
        // A free answer needs some credit too, and a hold of zero does not check for credit.
        placing.request.amount = placing.request.amount.max(self.ledger.least_hold());
        let shorter = placing.shorter;
        let fallback = move |available| match is_free {
            true => None,
            false => shorter.amount(available),
        };
        match self.ledger.hold(placing.request, fallback) {
            Decision::Now(placed) => Step::Now(self.finish_hold(exchange, placing, placed)),
            Decision::Later(placed) => Step::later(async move {
                let placed = placed.await;
                exchange.invalidate_now();
                self.finish_hold(exchange, placing, placed)
            }),
        }
    }

    /// The hold of the worst case.
    fn prepare_hold(&self, exchange: &mut Exchange) -> Result<Placing, FilterError> {
        let account = principal(exchange)?.account;
        let operation = exchange.request.id;
        let is_stream = exchange.record.stream;
        let at = exchange.now(&self.clock);
        let elapsed = exchange.elapsed(&self.clock);
        let quote = quote(exchange)?;
        let settings = self.settings.load();
        let hold = settings.hold;
        let request = HoldRequest {
            operation,
            account,
            amount: quote.amount,
            price_version: Some(quote.model.price_version),
            at,
            deadline: Deadline::after(elapsed, hold),
            expires_at: at + hold,
            // No byte of a whole answer is sent before the settlement. Until the settlement a hold in memory is enough, and the settlement
            // is a single row.
            is_written: is_stream,
        };
        Ok(Placing {
            request,
            shorter: Shorter {
                sizes: quote.sizes,
                price: quote.model.price,
                floor: settings.clamp_tokens_min.map(NonZeroU64::get),
            },
            cap: None,
        })
    }

    /// Keeps a hold with the exchange, or refuses the request.
    fn finish_hold(
        &self,
        exchange: &mut Exchange,
        placing: Placing,
        placed: Result<Hold, HoldError>,
    ) -> Result<Outcome, FilterError> {
        let held = exchange
            .get_mut::<QuoteHold>()
            .ok_or(MeterError::Missing { what: "quote" })?;
        let hold = match placed {
            Ok(hold) => hold,
            Err(HoldError::InsufficientCredit { available, .. }) => {
                return Ok(self.refuse(&held.quote, available));
            }
            Err(error) => return hold_failed(error),
        };
        let is_shorter = hold.amount() < held.quote.amount;
        let clamped = match (is_shorter, placing.shorter.floor) {
            (true, Some(floor)) => held.quote.clamp(hold.amount(), floor),
            _ => None,
        };
        if is_shorter && clamped.is_none() {
            return Err(MeterError::Missing { what: "output cap" }.into());
        }
        held.hold = Some(hold);
        held.cap = placing.cap;
        if let Some(clamped) = clamped {
            let cap = OutputCap {
                tokens: clamped.sizes.output_each,
                member: clamped.model.cap_member,
            };
            let quote = clamped.amount;
            held.quote = clamped;
            let forward = exchange
                .get_mut::<Forward>()
                .ok_or(MeterError::Missing { what: "forward" })?;
            forward.body.cap_output(cap);
            forward.quote = Some(quote);
            exchange.put(Clamped);
            self.counters.events.inc(MeterEvent::Clamped);
        }
        Ok(Outcome::Continue)
    }
}
