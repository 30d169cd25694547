//! Prometheus collector of values that other modules keep, read at each scrape.

use std::sync::Arc;

use parking_lot::Mutex;
use prometheus::core::{Collector, Desc};
use prometheus::proto::MetricFamily;
use tollgate_counters::{Samples, Source};

/// Every source, as a single collector of the registry. Cheap to clone.
#[derive(Clone, Default)]
pub(super) struct Sources(Arc<Mutex<Vec<Source>>>);

impl Sources {
    pub(super) fn add(&self, source: Source) {
        self.0.lock().push(source);
    }
}

impl Collector for Sources {
    /// Empty: sources are added after the collector is registered. A test of the registry of modules keeps the names unique.
    fn desc(&self) -> Vec<&Desc> {
        Vec::new()
    }

    fn collect(&self) -> Vec<MetricFamily> {
        let mut samples = Samples::default();
        let sources = self.0.lock();
        for source in &*sources {
            source(&mut samples);
        }
        samples.into_families()
    }
}
