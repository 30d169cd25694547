//! Placing of holds: the worst case of a request, under its key's cap, on the credit of its account.

use tollgate_clock::{Deadline, Timestamp};
use tollgate_filter::{Clamped, Exchange, FilterError, Forward, Outcome, OutputCap};
use tollgate_ledger::{Hold, HoldError, HoldRequest};
use tollgate_money::{CredentialId, Micros, SpendingCap};

use crate::counters::MeterEvent;
use crate::error::{MeterError, hold_failed};
use crate::filter::{Held, LEAST, Meter, principal};
use crate::quote::Quote;
use crate::spending::{CapReached, Kept, Reserved};

/// A hold to be placed.
struct Placing {
    request: HoldRequest,
    is_stream: bool,
    /// The quote of a shorter answer.
    clamped: Option<Quote>,
    /// The reservation against the credential's own cap.
    kept: Option<Kept>,
}

impl Placing {
    /// The hold is as large as what its key's cap leaves.
    fn keep(&mut self, kept: Kept, smaller: Option<Quote>) {
        self.kept = Some(kept);
        if let Some(smaller) = &smaller {
            self.request.amount = smaller.amount;
        }
        self.clamped = smaller;
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
    let held = exchange.get::<Held>();
    held.map(|held| &held.quote)
        .ok_or(MeterError::Missing { what: "quote" })
}

impl Meter {
    /// Holds the worst case in memory; for a stream also on the disk, concurrently with the upstream call.
    pub(crate) fn hold(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let mut placing = self.prepare_hold(exchange)?;
        if let Some((credential, cap)) = capped(exchange)? {
            let quote = quote(exchange)?;
            match self.keep(credential, cap, quote, placing.request.at)? {
                Ok((reserved, smaller)) => placing.keep(Kept::Here(cap, reserved), smaller),
                Err(reached) => return Ok(self.refuse_cap(quote, reached)),
            }
        }
        let placed = {
            let quote = quote(exchange)?;
            let fallback = |available| self.fall_back(quote, available, &mut placing.clamped);
            // No byte of a whole answer is sent before it is settled: a hold in memory is enough until then, and its settlement is one row.
            match placing.is_stream {
                true => self.ledger.hold_within(placing.request, fallback),
                false => self.ledger.reserve_within(placing.request, fallback),
            }
        };
        self.finish_hold(exchange, placing, placed)
    }

    /// The same on one of several nodes, which may have to take credit for it first.
    pub(crate) async fn hold_allotted(
        &self,
        exchange: &mut Exchange,
    ) -> Result<Outcome, FilterError> {
        let mut placing = self.prepare_hold(exchange)?;
        if let Some((credential, cap)) = capped(exchange)? {
            let quote = quote(exchange)?;
            let mut smaller = None;
            let fallback = |left| self.fall_back(quote, left, &mut smaller);
            let capped = (credential, cap.period);
            let reserved = self.ledger.acquire_cap(capped, placing.request, fallback);
            match reserved.await {
                Ok(reserved) => placing.keep(Kept::Allotted(reserved), smaller),
                Err(HoldError::InsufficientCredit { available, .. }) => {
                    let reached = CapReached::of(cap, available, placing.request.at);
                    return Ok(self.refuse_cap(quote, reached));
                }
                Err(error) => return hold_failed(error),
            }
        }
        let is_free = !placing.request.amount.is_positive();
        // A free answer needs some credit too, and a hold of nothing would be placed without asking whether the account has any.
        placing.request.amount = placing.request.amount.max(LEAST);
        let placed = {
            let quote = quote(exchange)?;
            let fallback = |available| match is_free {
                true => None,
                false => self.fall_back(quote, available, &mut placing.clamped),
            };
            self.ledger
                .acquire(placing.request, placing.is_stream, fallback)
                .await
        };
        exchange.invalidate_now();
        self.finish_hold(exchange, placing, placed)
    }

    /// The hold of the worst case.
    fn prepare_hold(&self, exchange: &mut Exchange) -> Result<Placing, FilterError> {
        let account = principal(exchange)?.account;
        let operation = exchange.request.id;
        let is_stream = exchange.record.stream;
        let at = exchange.now(&self.clock);
        let elapsed = exchange.elapsed(&self.clock);
        let quote = quote(exchange)?;
        let hold = self.settings.load().hold;
        let request = HoldRequest {
            operation,
            account,
            amount: quote.amount,
            price_version: Some(quote.model.price_version),
            at,
            deadline: Deadline::after(elapsed, hold),
            expires_at: at + hold,
        };
        Ok(Placing {
            request,
            is_stream,
            clamped: None,
            kept: None,
        })
    }

    /// The smaller amount of a request without an output cap. From the original request: clamping to its key's cap does not exclude further
    /// clamping.
    fn fall_back(
        &self,
        quote: &Quote,
        available: Micros,
        clamped: &mut Option<Quote>,
    ) -> Option<Micros> {
        let smaller = self.clamp(quote, available)?;
        let amount = smaller.amount;
        *clamped = Some(smaller);
        Some(amount)
    }

    /// Keeps a hold with the exchange, or refuses the request.
    fn finish_hold(
        &self,
        exchange: &mut Exchange,
        placing: Placing,
        placed: Result<Hold, HoldError>,
    ) -> Result<Outcome, FilterError> {
        let Placing { clamped, kept, .. } = placing;
        let held = exchange
            .get_mut::<Held>()
            .ok_or(MeterError::Missing { what: "quote" })?;
        let hold = match placed {
            Ok(hold) => hold,
            Err(HoldError::InsufficientCredit { available, .. }) => {
                return Ok(self.refuse(&held.quote, available));
            }
            Err(error) => return hold_failed(error),
        };
        held.hold = Some(hold);
        held.kept = kept;
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

    /// Reserves the worst case under the credential's own cap, or the remainder of the cap where the request has no output cap.
    fn keep(
        &self,
        credential: CredentialId,
        cap: SpendingCap,
        quote: &Quote,
        now: Timestamp,
    ) -> Result<Result<(Reserved, Option<Quote>), CapReached>, MeterError> {
        let reserve = |amount| {
            let reserved = self.spending.reserve(credential, cap, amount, now);
            reserved.ok_or(MeterError::NotLoaded)
        };
        Ok(match reserve(quote.amount)? {
            Ok(reserved) => Ok((reserved, None)),
            Err(reached) => match self.clamp(quote, reached.left) {
                Some(smaller) => reserve(smaller.amount)?.map(|reserved| (reserved, Some(smaller))),
                None => Err(reached),
            },
        })
    }
}
