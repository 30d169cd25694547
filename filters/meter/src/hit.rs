//! Answers from the cache: no hold, and the charge is settled at the tail.

use tollgate_clock::Deadline;
use tollgate_filter::{AnswerUsage, Exchange, FilterError, Outcome, Principal, Step, Tokens};
use tollgate_ledger::{
    CapHold, CapReached, ChargeError, Decision, Hold, HoldError, HoldRequest, Settlement,
};
use tollgate_money::Micros;
use tollgate_store::UsageFlags;

use crate::bill;
use crate::counters::MeterEvent;
use crate::error::{MeterError, cap_reached, charge_failed, hold_failed, settle_failed};
use crate::filter::{Meter, Used, attached_part, principal};
use crate::quote::Quote;

impl Meter {
    /// Charges an answer from the cache, without a hold.
    pub(crate) fn hit<'a>(&'a self, exchange: &'a mut Exchange, quote: Quote) -> Step<'a, Outcome> {
        let usage = exchange.take::<AnswerUsage>().unwrap_or_default();
        match usage.reported {
            Some(tokens) => self.hit_with(exchange, quote, tokens, false),
            None => Step::later(async move {
                let tokens = self.count(exchange, &quote.model, usage).await?;
                exchange.invalidate_now();
                let hit = self.hit_with(exchange, quote, tokens, true);
                hit.finish().await
            }),
        }
    }

    /// Charges tokens, after the amount was reserved under the cap of the request's key: concurrent hits could exceed the cap together.
    fn hit_with<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        quote: Quote,
        tokens: Tokens,
        estimated: bool,
    ) -> Step<'a, Outcome> {
        let mut flags = UsageFlags::CACHE_HIT | UsageFlags::PRICE_OF_VERSION;
        if estimated {
            flags |= UsageFlags::ESTIMATED;
        }
        if exchange.record.stream {
            flags |= UsageFlags::STREAMED;
        }
        let used = Used {
            tokens: self.bounded(exchange, &quote, tokens),
            estimated,
            succeeded: true,
            flags,
            whole: true,
        };
        let price = &quote.model.price;
        let full = price.charge(used.tokens.prompt, used.tokens.completion);
        let hit = Hit {
            amount: bill::part_of(full, self.hit_price_ppm),
            quote,
            used,
        };
        let at = exchange.now(&self.clock);
        let (account, credential, spending_cap) = match principal(exchange) {
            Ok(it) => (it.account, it.credential, it.spending_cap),
            Err(error) => return Step::failed(error.into()),
        };
        let Some(cap) = spending_cap.filter(|_| hit.amount.is_positive()) else {
            return self.charge_covered(exchange, hit, None);
        };
        let request = HoldRequest {
            operation: exchange.request.id,
            account,
            amount: hit.amount,
            price_version: None,
            at,
            deadline: Deadline::NEVER,
            expires_at: at,
            is_written: false,
        };
        let under = move |exchange: &'a mut Exchange, reserved: Result<CapHold, HoldError>| {
            match reserved {
                Ok(reserved) => self.charge_covered(exchange, hit, Some(reserved)),
                Err(HoldError::InsufficientCredit { available, .. }) => {
                    self.counters.events.inc(MeterEvent::Refused);
                    let reached = CapReached::of(cap, available, at);
                    Step::now(Outcome::refuse(cap_reached(Some(hit.amount), reached)))
                }
                Err(error) => Step::Now(hold_failed(error)),
            }
        };
        match self.ledger.hold_cap((credential, cap), request, |_| None) {
            Decision::Now(reserved) => under(exchange, reserved),
            Decision::Later(reserved) => Step::later(async move {
                let reserved = reserved.await;
                exchange.invalidate_now();
                under(exchange, reserved).finish().await
            }),
        }
    }

    /// Charges. Where this node has less credit than the amount, the node takes credit first. Charges at most the available credit, and
    /// refuses without any credit.
    fn charge_covered<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        hit: Hit,
        cap: Option<CapHold>,
    ) -> Step<'a, Outcome> {
        let account = match principal(exchange) {
            Ok(principal) => principal.account,
            Err(error) => return Step::failed(error.into()),
        };
        let (amount, at) = (hit.amount, exchange.now(&self.clock));
        let covered = move |exchange: &'a mut Exchange,
                            covered: Result<Option<Hold>, HoldError>| {
            match covered {
                Ok(covered) => match self.charge_hit(exchange, &hit, covered, cap) {
                    Ok(None) => Step::now(Outcome::Continue),
                    Ok(Some(settlement)) => Step::later(durable(settlement)),
                    Err(HitError::Charge(error)) => Step::Now(charge_failed(error)),
                    Err(HitError::Filter(error)) => Step::failed(error),
                },
                Err(HoldError::InsufficientCredit { .. }) => {
                    Step::now(self.refuse(&hit.quote, Micros::ZERO))
                }
                Err(error) => Step::Now(hold_failed(error)),
            }
        };
        match self.ledger.cover(account, amount, at) {
            Decision::Now(hold) => covered(exchange, hold),
            Decision::Later(hold) => Step::later(async move {
                let hold = hold.await;
                exchange.invalidate_now();
                covered(exchange, hold).finish().await
            }),
        }
    }

    /// Queues the charge of an answer from the cache, and returns the future of the charge. A free answer without an attached part of
    /// another filter is not waited for: a crash could lose only the answer's record.
    fn charge_hit(
        &self,
        exchange: &mut Exchange,
        hit: &Hit,
        covered: Option<Hold>,
        cap: Option<CapHold>,
    ) -> Result<Option<Settlement>, HitError> {
        let Hit {
            quote,
            used,
            amount,
        } = hit;
        let at = exchange.now(&self.clock);
        let Principal {
            account,
            credential,
            ..
        } = *principal(exchange)?;
        let attached = attached_part(exchange, used);
        let is_recorded = attached.is_some();
        let charge = tollgate_ledger::Charge {
            operation: exchange.request.id,
            account,
            amount: *amount,
            price_version: Some(quote.model.price_version),
            usage: self.usage_record(exchange, &quote.model, used)?,
            at,
        };
        let mut settlement = self.ledger.charge_held(charge, attached, covered)?;
        let settled = settlement.settled();
        self.ledger.count(&mut settlement, credential, cap, at);
        self.report_charge(exchange, used, settled);
        Ok((amount.is_positive() || is_recorded).then_some(settlement))
    }
}

/// An answer from the cache, to be charged.
struct Hit {
    quote: Quote,
    used: Used,
    amount: Micros,
}

/// Why an answer from the cache was not charged.
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

/// As for any other charge, the last byte waits until the charge is durable.
async fn durable(settlement: Settlement) -> Result<Outcome, FilterError> {
    settlement.await.map_err(settle_failed)?;
    Ok(Outcome::Continue)
}
