//! Answers from a cache: nothing was held, and what they cost is taken when they leave.

use tollgate_filter::{AnswerUsage, Exchange, FilterError, Outcome, Step, Tokens};
use tollgate_ledger::{ChargeError, Settlement};
use tollgate_store::UsageFlags;

use crate::bill;
use crate::error::{MeterError, charge_failed, settle_failed};
use crate::filter::{Meter, Used, beside, principal};
use crate::quote::Quote;

impl Meter {
    /// Charges an answer from a cache: nothing was held, and what it costs is taken at once.
    pub(crate) fn hit<'a>(&'a self, exchange: &'a mut Exchange, quote: Quote) -> Step<'a, Outcome> {
        let usage = exchange.take::<AnswerUsage>().unwrap_or_default();
        match usage.reported {
            Some(tokens) => match self.charge_hit(exchange, &quote, tokens, false) {
                Ok(None) => Step::now(Outcome::Continue),
                Ok(Some(settlement)) => Step::later(durable(settlement)),
                Err(error) => hit_failed(error),
            },
            None => Step::later(async move {
                let tokens = self.count(exchange, &quote.model, usage).await?;
                match self.charge_hit(exchange, &quote, tokens, true) {
                    Ok(None) => Ok(Outcome::Continue),
                    Ok(Some(settlement)) => durable(settlement).await,
                    Err(error) => hit_failed(error).finish().await,
                }
            }),
        }
    }

    /// Queues the charge of an answer from a cache, and gives what to wait for: one that costs nothing, and with which nobody else
    /// wants anything durable, is not waited for, since all that a crash could lose is the record of it.
    fn charge_hit(
        &self,
        exchange: &mut Exchange,
        quote: &Quote,
        tokens: Tokens,
        estimated: bool,
    ) -> Result<Option<Settlement>, HitError> {
        let mut flags = UsageFlags::CACHE_HIT;
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
        let beside = beside(exchange, &used);
        let is_recorded = beside.is_some();
        let full = quote
            .model
            .price
            .charge(used.tokens.prompt, used.tokens.completion);
        let amount = bill::part_of(full, self.hit_price_ppm);
        let charge = tollgate_ledger::Charge {
            operation: exchange.request.id,
            account: principal(exchange)?.account,
            amount,
            price_version: Some(quote.model.price_version),
            usage: self.usage_record(exchange, &quote.model, &used)?,
            at: self.clock.unix_micros(),
        };
        let settlement = self.ledger.charge_with(charge, beside)?;
        let settled = settlement.settled();
        let principal = principal(exchange)?;
        if let Some(cap) = principal.spending_cap {
            let now = self.clock.unix_micros();
            self.spending
                .add(principal.credential, cap, settled.charged, now);
        }
        self.tell(exchange, &used, settled);
        Ok((amount.is_positive() || is_recorded).then_some(settlement))
    }
}

/// Why an answer from a cache was not charged.
enum HitError {
    Charge(ChargeError),
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

fn hit_failed<'a>(error: HitError) -> Step<'a, Outcome> {
    Step::Now(match error {
        HitError::Charge(error) => charge_failed(error),
        HitError::Filter(error) => Err(error),
    })
}

/// The last byte waits for the disk, as for any other charge.
async fn durable(settlement: Settlement) -> Result<Outcome, FilterError> {
    settlement.await.map_err(settle_failed)?;
    Ok(Outcome::Continue)
}
