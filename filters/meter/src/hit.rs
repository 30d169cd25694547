//! Answers from the cache: no hold, and the charge is settled at the tail.

use tollgate_clock::Deadline;
use tollgate_filter::{AnswerUsage, Exchange, FilterError, Outcome, Principal, Step, Tokens};
use tollgate_ledger::{ChargeError, Hold, HoldError, HoldRequest, Settlement};
use tollgate_money::Micros;
use tollgate_store::UsageFlags;

use crate::bill;
use crate::counters::MeterEvent;
use crate::error::{MeterError, cap_reached, charge_failed, hold_failed, settle_failed};
use crate::filter::{LEAST, Meter, Used, attached_part, principal};
use crate::quote::Quote;
use crate::spending::{CapReached, Kept};

impl Meter {
    /// Charges an answer from the cache, without a hold.
    pub(crate) fn hit<'a>(&'a self, exchange: &'a mut Exchange, quote: Quote) -> Step<'a, Outcome> {
        let usage = exchange.take::<AnswerUsage>().unwrap_or_default();
        match usage.reported {
            Some(tokens) if self.ledger.has_allotments() => {
                Step::later(self.hit_allotted(exchange, quote, tokens, false))
            }
            Some(tokens) => match self.charge_hit(exchange, &quote, tokens, false, None, None) {
                Ok(None) => Step::now(Outcome::Continue),
                Ok(Some(settlement)) => Step::later(durable(settlement)),
                Err(error) => self.hit_failed(error),
            },
            None => Step::later(async move {
                let tokens = self.count(exchange, &quote.model, usage).await?;
                exchange.invalidate_now();
                self.hit_allotted(exchange, quote, tokens, true).await
            }),
        }
    }

    /// Charges; on one of several nodes after credit for it was taken, as much as there is, and refused where there is none.
    async fn hit_allotted(
        &self,
        exchange: &mut Exchange,
        quote: Quote,
        tokens: Tokens,
        estimated: bool,
    ) -> Result<Outcome, FilterError> {
        let mut covered = None;
        let mut kept = None;
        if self.ledger.has_allotments() {
            let tokens = quote.sizes.bounded(tokens);
            let full = quote.model.price.charge(tokens.prompt, tokens.completion);
            let amount = bill::part_of(full, self.hit_price_ppm);
            let Principal {
                account,
                credential,
                spending_cap,
                ..
            } = *principal(exchange)?;
            let at = exchange.now(&self.clock);
            if let Some(cap) = spending_cap.filter(|_| amount.is_positive()) {
                let request = HoldRequest {
                    operation: exchange.request.id,
                    account,
                    amount,
                    price_version: None,
                    at,
                    deadline: Deadline::NEVER,
                    expires_at: at,
                };
                let capped = (credential, cap.period);
                match self.ledger.acquire_cap(capped, request, |_| None).await {
                    Ok(reserved) => kept = Some(Kept::Allotted(reserved)),
                    Err(HoldError::InsufficientCredit { available, .. }) => {
                        let reached = CapReached::of(cap, available, at);
                        let refused = self.hit_failed(HitError::Cap(amount, reached));
                        return refused.finish().await;
                    }
                    Err(error) => return hold_failed(error),
                }
            }
            // Of an account without credit this node knows only by asking: a free answer needs some too.
            covered = match self.ledger.cover(account, amount.max(LEAST), at).await {
                Ok(Some(covered)) => Some(covered),
                Ok(None) => return Ok(self.refuse(&quote, Micros::ZERO)),
                Err(error) => return hold_failed(error),
            };
            exchange.invalidate_now();
        }
        match self.charge_hit(exchange, &quote, tokens, estimated, covered, kept) {
            Ok(None) => Ok(Outcome::Continue),
            Ok(Some(settlement)) => durable(settlement).await,
            Err(error) => self.hit_failed(error).finish().await,
        }
    }

    /// Queues the charge of an answer from the cache, and returns what to wait for. A free answer without an attached part of another
    /// filter is not waited for: a crash could lose only its record.
    fn charge_hit(
        &self,
        exchange: &mut Exchange,
        quote: &Quote,
        tokens: Tokens,
        estimated: bool,
        covered: Option<Hold>,
        mut kept: Option<Kept>,
    ) -> Result<Option<Settlement>, HitError> {
        let mut flags = UsageFlags::CACHE_HIT | UsageFlags::PRICE_OF_VERSION;
        if estimated {
            flags |= UsageFlags::ESTIMATED;
        }
        if exchange.record.stream {
            flags |= UsageFlags::STREAMED;
        }
        let used = Used {
            tokens: self.bounded(exchange, quote, tokens),
            estimated,
            succeeded: true,
            flags,
            whole: true,
        };
        let full = quote
            .model
            .price
            .charge(used.tokens.prompt, used.tokens.completion);
        let amount = bill::part_of(full, self.hit_price_ppm);
        let at = exchange.now(&self.clock);
        let Principal {
            account,
            credential,
            spending_cap,
            ..
        } = *principal(exchange)?;
        // Reserved before the charge, as for any other answer: concurrent hits could exceed the cap together.
        let is_counted_here = amount.is_positive() && !self.ledger.has_allotments();
        if let Some(cap) = spending_cap.filter(|_| is_counted_here) {
            let reserved = self.spending.reserve(credential, cap, amount, at);
            let reserved = reserved.ok_or(MeterError::NotLoaded)?;
            let reserved = reserved.map_err(|reached| HitError::Cap(amount, reached))?;
            kept = Some(Kept::Here(cap, reserved));
        }
        let attached = attached_part(exchange, &used);
        let is_recorded = attached.is_some();
        let charge = tollgate_ledger::Charge {
            operation: exchange.request.id,
            account,
            amount,
            price_version: Some(quote.model.price_version),
            usage: self.usage_record(exchange, &quote.model, &used)?,
            at,
        };
        let settlement = self.ledger.charge_held(charge, attached, covered)?;
        let settled = settlement.settled();
        let of = (exchange.request.id, at);
        self.count_charge(kept, credential, &settlement, of);
        self.report_charge(exchange, &used, settled);
        Ok((amount.is_positive() || is_recorded).then_some(settlement))
    }

    fn hit_failed<'a>(&self, error: HitError) -> Step<'a, Outcome> {
        Step::Now(match error {
            HitError::Charge(error) => charge_failed(error),
            HitError::Cap(required, reached) => {
                self.counters.events.inc(MeterEvent::Refused);
                Ok(Outcome::refuse(cap_reached(Some(required), reached)))
            }
            HitError::Filter(error) => Err(error),
        })
    }
}

/// Why an answer from the cache was not charged.
enum HitError {
    Charge(ChargeError),
    /// The credential's cap leaves less than the amount.
    Cap(Micros, CapReached),
    Filter(FilterError),
}

impl From<ChargeError> for HitError {
    fn from(error: ChargeError) -> HitError {
        HitError::Charge(error)
    }
}

impl From<FilterError> for HitError {
    fn from(error: FilterError) -> HitError {
        HitError::Filter(error)
    }
}

impl From<MeterError> for HitError {
    fn from(error: MeterError) -> HitError {
        HitError::Filter(error.into())
    }
}

/// The last byte waits until the charge is durable, as for any other charge.
async fn durable(settlement: Settlement) -> Result<Outcome, FilterError> {
    settlement.await.map_err(settle_failed)?;
    Ok(Outcome::Continue)
}
