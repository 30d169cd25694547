//! The module `price-limit`: its settings, two filters with their places in a chain, a counter, and the route that gets them.

use std::sync::Arc;

use tollgate::counters::{Counters, Metric, metrics};
use tollgate::module::{Build, BuildError, FilterType, Module, RouteChange, SectionType};

use crate::config::RawPriceLimit;
use crate::price_limit::PriceLimit;
use crate::user_member::UserMember;

metrics! {
    LIMITED = "tollgate_price_limit_total", Counter, ["decision"],
        "Requests to routes with a price limit, by decision.";
}

/// Limits the price of a request.
pub(crate) struct PriceLimitModule;

impl Module for PriceLimitModule {
    fn name(&self) -> &'static str {
        "price-limit"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![
            FilterType::named("price-limit").needs(&["auth", "meter"]),
            FilterType::named("user-member")
                .needs(&["auth"])
                .before(&["completions"]),
        ]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawPriceLimit>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let filter = Arc::new(PriceLimit {
            settings: build.get()?,
            ledger: build.get()?,
            counters: Counters::default(),
        });
        let counted = filter.clone();
        build.metrics(Box::new(move |samples| {
            samples.numbers(LIMITED, counted.counters.values());
        }));
        build.shared_filter("price-limit", filter);
        build.shared_filter("user-member", Arc::new(UserMember));
        Ok(())
    }
}

/// The built-in route with both filters. Its methods, scope and other values stay.
pub(crate) fn completions() -> RouteChange {
    RouteChange::of("/v1/chat/completions").chain(&[
        "address-limit",
        "auth",
        "rate-limit",
        "user-member",
        "completions",
        "idempotency",
        "meter",
        "price-limit",
        "cache",
    ])
}
