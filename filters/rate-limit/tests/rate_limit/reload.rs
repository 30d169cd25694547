//! Reloads of the settings: filters are built again, and counts continue.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_filter::Filter;
use tollgate_module::{BuildError, Built, Module, RouteContext, Services};
use tollgate_rate_limit::RateLimitModule;

use super::{SETTINGS, admitted, exchange_of, limits};

/// The module, built with the services it needs, and a filter of a route without a class.
fn built() -> (Built, Arc<dyn Filter>) {
    let (clock, _) = Clock::manual(Timestamp::from_secs(1_700_000_000));
    let mut built = Built::default();
    built.services.provide(limits(SETTINGS));
    built.services.provide(clock);
    built.services.provide(Entropy::seeded(1));
    built.module(&RateLimitModule).expect("nothing is missing");
    let filter = filter_of(&built, &built.services, None).expect("a filter");
    (built, filter)
}

fn filter_of(
    built: &Built,
    services: &Services,
    class: Option<&str>,
) -> Result<Arc<dyn Filter>, BuildError> {
    let mut filters = built.filters.iter();
    let (_, build) = filters
        .find(|(name, _)| *name == "rate-limit")
        .expect("the filter");
    build(&RouteContext {
        path: "/v1/models",
        body_bytes_max: 0,
        access: None,
        class,
        chain: &[],
        services,
    })
}

/// The filter of a route after a reload.
fn reloaded(built: &Built, text: &str, class: Option<&str>) -> Arc<dyn Filter> {
    let mut settings = built.services.clone();
    settings.provide(limits(text));
    let reload = RateLimitModule.reload(&built.services, &settings);
    let applied = reload.expect("the module was built").apply();
    assert_eq!(applied, Ok(()), "no setting is fixed");
    filter_of(built, &settings, class).expect("a filter")
}

#[test]
fn after_a_reload_filters_have_the_new_quotas_and_classes_and_keep_the_counts() {
    let (built, before) = built();
    assert_eq!(admitted(&*before, 10, || exchange_of(1, "free")), 4);
    let larger = SETTINGS.replace("quota = 4", "quota = 6");
    let after = reloaded(&built, &larger, None);
    assert_eq!(
        admitted(&*after, 10, || exchange_of(1, "free")),
        0,
        "the window that is used up stays used up"
    );
    assert_eq!(admitted(&*after, 10, || exchange_of(2, "free")), 6);
    assert_eq!(
        admitted(&*before, 10, || exchange_of(3, "free")),
        4,
        "requests that began before keep their quota"
    );

    let gold = format!("{larger}\n[classes.gold]\nquota = 9\nwindow_secs = 60\n");
    let after = reloaded(&built, &gold, None);
    assert_eq!(admitted(&*after, 10, || exchange_of(4, "gold")), 9);
    let on_a_route = reloaded(&built, &gold, Some("gold"));
    assert_eq!(admitted(&*on_a_route, 10, || exchange_of(5, "free")), 9);
    let after = reloaded(&built, &larger, None);
    assert_eq!(
        admitted(&*after, 10, || exchange_of(6, "gold")),
        6,
        "a class that is gone is `free`"
    );
}
