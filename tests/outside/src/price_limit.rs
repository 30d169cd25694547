//! The filter `price-limit`: refuses requests whose quote exceeds a limit, and logs what they cost.

use tollgate::counters::{Counters, labels};
use tollgate::filter::{
    Body, Charge, Contract, Ending, ErrorType, Exchange, FailureMode, Filter, FilterCode, Forward,
    LogValue, Outcome, Phase, Principal, Step,
};
use tollgate::ledger::Ledger;

use crate::config::PriceLimitSettings;

/// The request may cost more than the limit.
static TOO_EXPENSIVE: FilterCode =
    FilterCode::new("price-limit.too_expensive", 400, ErrorType::InvalidRequest).never_retry();

labels! {
    /// The decision on a request.
    pub(crate) enum Decision {
        /// It costs no more than the limit.
        Admitted = "admitted",
        /// It may cost more.
        Refused = "refused",
    }
}

/// Refuses requests that may cost more than the limit.
pub(crate) struct PriceLimit {
    pub(crate) settings: PriceLimitSettings,
    pub(crate) ledger: Ledger,
    pub(crate) counters: Counters<Decision>,
}

impl Filter for PriceLimit {
    fn name(&self) -> &'static str {
        "price-limit"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    /// After `meter`, which has computed the quote and not yet held it.
    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let Some(quote) = exchange.get::<Forward>().and_then(|forward| forward.quote) else {
            return Step::now(Outcome::Continue);
        };
        exchange.log("price-limit", "quote", quote);
        let limit = self.settings.price_max;
        if quote <= limit {
            self.counters.inc(Decision::Admitted);
            return Step::now(Outcome::Continue);
        }
        self.counters.inc(Decision::Refused);
        Step::now(Outcome::refuse(TOO_EXPENSIVE.error(format!(
            "The request may cost {quote} credits; the limit is {limit}. Lower `max_tokens`."
        ))))
    }

    fn on_end(&self, exchange: &mut Exchange, _ending: Ending) {
        let Some(principal) = exchange.get::<Principal>() else {
            return;
        };
        let class = LogValue::text(&principal.class);
        let available = self
            .ledger
            .balance(principal.account)
            .map(|balance| balance.available);
        let charged = exchange.get::<Charge>().map(|charge| charge.used);
        exchange.log("price-limit", "class", class);
        if let Some(available) = available {
            exchange.log("price-limit", "available", available);
        }
        if let Some(charged) = charged {
            exchange.log("price-limit", "charged", charged);
        }
    }
}
