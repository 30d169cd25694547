//! The module `cache`: the filter, its metrics, and the removal of expired entries.

use std::sync::Arc;

use tollgate_counters::{Metric, metrics};
use tollgate_filter::{HitPrice, ServiceIdentity};
use tollgate_module::{
    Build, BuildError, FilterType, Module, Reload, Reloadable, SectionType, Services, provided,
    reload_snapshot,
};
use tollgate_store::Store;

use crate::config::RawCache;
use crate::{Cache, CacheDeps, CacheSettings};

provided! {
    "cache" => [CacheSettings, Cache];
}

metrics! {
    CACHE_LOOKUPS = "tollgate_cache_lookups_total", Counter, ["result"],
        "Cache lookups, by result.";
    CACHE_STORES = "tollgate_cache_stores_total", Counter, ["result"],
        "Answers to cache misses, by whether they were stored.";
    CACHE_REMOVED = "tollgate_cache_removed_total", Counter, ["reason"],
        "Cache entries removed, by reason.";
    CACHE_FOLLOWERS = "tollgate_cache_followers_total", Counter, ["outcome"],
        "Requests that waited for the answer to an equal one (single flight), by outcome.";
    CACHE_SHARED = "tollgate_cache_shared_total", Counter, ["result"],
        "Answers read from and written to the shared server (`[shared]`), by result.";
    CACHE_WAITING = "tollgate_cache_waiting", Gauge, [],
        "Requests that wait for the answer to an equal one.";
    CACHE_ENTRIES = "tollgate_cache_entries", Gauge, [],
        "Stored answers.";
    CACHE_BYTES = "tollgate_cache_bytes", Gauge, [],
        "Bytes of memory used by stored answers, as counted by the cache.";
}

/// The completion cache.
pub struct CacheModule;

impl Reloadable for CacheSettings {
    /// The sizes are fixed with the memory set aside at the start, and the meter has copied the price of a hit.
    fn fixed(&self, new: &CacheSettings) -> Vec<(&'static str, bool)> {
        vec![
            ("max_bytes", self.bytes_max != new.bytes_max),
            (
                "max_entry_bytes",
                self.entry_bytes_max != new.entry_bytes_max,
            ),
            ("hit_price_ppm", self.hit_price_ppm != new.hit_price_ppm),
        ]
    }
}

impl Module for CacheModule {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![
            FilterType::named("cache")
                .needs(&["auth", "completions"])
                .after(&["idempotency", "meter"]),
        ]
    }

    fn sections(&self) -> Vec<SectionType> {
        vec![SectionType::of::<RawCache>()]
    }

    fn metrics(&self) -> &'static [Metric] {
        METRICS
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let settings: CacheSettings = build.get()?;
        let service: ServiceIdentity = build.get()?;
        let store: Arc<dyn Store> = build.get()?;
        let root = store.root_secret().0;
        build.provide(HitPrice(settings.hit_price_ppm));
        let mut cache = Cache::new(CacheDeps {
            bytes_max: settings.bytes_within(build.find()),
            settings,
            service: &service.name,
            root: &root,
            clock: build.get()?,
            entropy: build.get()?,
        });
        let writes = build.find().map(|shared| cache.share(shared, &root));
        let cache = Arc::new(cache);
        cache.follow_purges(&*store);
        if let Some(writes) = writes {
            build.background(cache.clone().write_behind(writes));
        }
        build.provide(cache.settings().clone());
        build.metrics(source(cache.clone()));
        let swept = cache.clone();
        build.sweep(move || {
            swept.sweep();
        });
        build.provide(cache.clone());
        build.shared_filter("cache", cache);
        Ok(())
    }

    fn reload(&self, running: &Services, settings: &Services) -> Result<Reload, BuildError> {
        reload_snapshot::<CacheSettings>(self.name(), (running, settings))
    }
}

/// The contents and counters of the cache.
fn source(cache: Arc<Cache>) -> tollgate_counters::Source {
    let counters = cache.counters();
    Box::new(move |samples| {
        samples.numbers(CACHE_LOOKUPS, counters.lookups.values());
        samples.numbers(CACHE_STORES, counters.stores.values());
        samples.numbers(CACHE_REMOVED, counters.removals.values());
        samples.numbers(CACHE_FOLLOWERS, counters.followers.values());
        samples.numbers(CACHE_SHARED, counters.shared.values());
        let totals = cache.totals();
        samples.number(CACHE_WAITING, totals.waiting);
        samples.number(CACHE_ENTRIES, totals.entries);
        samples.number(CACHE_BYTES, totals.bytes);
    })
}

#[cfg(test)]
mod tests {
    use tollgate_module::check_reload;

    use super::*;

    #[test]
    fn a_reload_changes_what_is_not_fixed_at_the_start() {
        let fixed = [
            "max_bytes = 536870912",
            "max_entry_bytes = 1024",
            "hit_price_ppm = 1",
        ];
        check_reload::<RawCache>(
            &CacheModule,
            &fixed,
            "ttl_secs = 60\nwait_secs = 1\nenabled = false",
        );
    }
}
