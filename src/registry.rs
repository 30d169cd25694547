//! The module registry: every module of the gateway, in the order of construction. A module stands after modules whose services are
//! required or, if present, used. Another order is an error at the start.

use std::sync::Arc;

use tollgate_filter::Filter;
use tollgate_module::{Build, BuildError, Declarations, FilterType, Module, RouteContext};

/// The modules of the gateway.
pub(crate) fn modules() -> Vec<Box<dyn Module>> {
    vec![
        Box::new(tollgate_pages::PagesModule),
        Box::new(tollgate_pay::PurchaseModule),
        Box::new(tollgate_pay::PayPalModule),
        Box::new(tollgate_outbox::SigninModule),
        Box::new(tollgate_shared::SharedModule),
        Box::new(tollgate_rate_limit::RateLimitModule),
        Box::new(tollgate_auth::AuthModule),
        Box::new(tollgate_completions::CompletionsModule),
        Box::new(tollgate_cache::CacheModule),
        Box::new(tollgate_meter::MeterModule),
        Box::new(tollgate_idempotency::IdempotencyModule),
        Box::new(tollgate_mcp::McpModule),
        Box::new(tollgate_models::ModelsModule),
        Box::new(tollgate_pay::PayModule),
        Box::new(tollgate_commerce::CommerceModule),
        Box::new(tollgate_oauth::OAuthModule),
        Box::new(tollgate_portal::PortalModule),
        Box::new(tollgate_onboarding::OnboardingModule),
    ]
}

/// The modules' declarations for the settings.
pub(crate) fn declarations(modules: &[Box<dyn Module>]) -> Declarations {
    let mut all = Declarations::default();
    for module in modules {
        for filter in module.filters() {
            match all
                .filters
                .iter_mut()
                .find(|known| known.name() == filter.name())
            {
                Some(known) => *known = filter,
                None => all.filters.push(filter),
            }
        }
        // As with filters, a later section replaces an earlier section with an equal name. The module of the earlier section has no
        // settings and does not start.
        for section in module.sections() {
            all.sections.retain(|known| known.name() != section.name());
            all.sections.push(section);
        }
    }
    all
}

/// A module with a single filter, added by another program.
pub(crate) struct FilterModule<F> {
    filter: FilterType,
    build: Arc<F>,
}

impl<F> FilterModule<F> {
    /// The module of this filter.
    pub(crate) fn new(filter: FilterType, build: F) -> FilterModule<F> {
        FilterModule {
            filter,
            build: Arc::new(build),
        }
    }
}

impl<F> Module for FilterModule<F>
where
    F: Fn(&RouteContext<'_>) -> Result<Arc<dyn Filter>, BuildError> + Send + Sync + 'static,
{
    fn name(&self) -> &'static str {
        self.filter.name()
    }

    fn filters(&self) -> Vec<FilterType> {
        vec![self.filter]
    }

    fn build(&self, build: &mut Build<'_>) -> Result<(), BuildError> {
        let filter = self.build.clone();
        build.filter(self.filter.name(), move |route| filter(route));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use tollgate_counters::{Kind, Metric};

    use super::*;
    use crate::telemetry;

    /// The metrics of the gateway and of the modules, in the order of the reference.
    fn metrics() -> Vec<Metric> {
        let of_modules = modules().into_iter().flat_map(|module| module.metrics());
        telemetry::METRICS
            .iter()
            .chain(of_modules)
            .copied()
            .collect()
    }

    #[test]
    fn metric_names_follow_the_convention_and_are_unique() {
        let mut names = BTreeSet::new();
        for Metric {
            name, kind, help, ..
        } in metrics()
        {
            assert!(names.insert(name), "{name} is defined twice");
            assert!(name.starts_with("tollgate_"), "{name} lacks the prefix");
            assert_eq!(
                name.ends_with("_total"),
                kind == Kind::Counter,
                "{name}: counters, and only they, end in `_total`"
            );
            assert!(help.ends_with('.'), "{name}: help is a sentence");
        }
    }

    #[test]
    fn the_reference_the_alerts_and_the_dashboards_name_metrics_that_exist() {
        let conf = tollgate_testing::package_folder().join("conf");
        let page = conf.with_file_name("docs").join("metrics.md");
        let page = std::fs::read_to_string(page).expect("the list of metrics");
        let rows: Vec<&str> = page
            .lines()
            .filter(|line| line.starts_with("| `tollgate_"))
            .collect();
        let wanted: Vec<String> = metrics().iter().map(reference_row).collect();
        assert_eq!(rows, wanted, "docs/metrics.md has one row for each metric");

        let mut files = vec![conf.join("prometheus/alerts.yml")];
        let dashboards = std::fs::read_dir(conf.join("grafana")).expect("the dashboards");
        files.extend(dashboards.map(|entry| entry.expect("a dashboard").path()));
        let letters = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
        for file in files {
            let text = std::fs::read_to_string(&file).expect("a file of text");
            for word in text.split(|letter| !letters(letter)) {
                if !word.starts_with("tollgate_") {
                    continue;
                }
                let of_histogram = ["_bucket", "_sum", "_count"];
                let name = of_histogram.iter().find_map(|end| word.strip_suffix(end));
                assert!(
                    metrics()
                        .iter()
                        .any(|metric| metric.name == name.unwrap_or(word)),
                    "{} names `{word}`, which is no metric",
                    file.display()
                );
            }
        }
    }

    #[test]
    fn each_alert_has_an_entry_in_the_runbook_and_a_test() {
        let folder = tollgate_testing::package_folder().join("conf/prometheus");
        let after = |file: &str, start: &str| -> Vec<String> {
            let text = std::fs::read_to_string(folder.join(file)).expect("a file of text");
            let lines = text
                .lines()
                .filter_map(|line| line.trim().strip_prefix(start));
            lines.map(str::to_owned).collect()
        };
        let alerts = after("alerts.yml", "- alert: ");
        assert!(!alerts.is_empty());
        assert_eq!(after("runbook.md", "## "), alerts, "in the same order");
        let tests = std::fs::read_to_string(folder.join("alerts.test.yml"));
        let tests = tests.expect("a file of text");
        for alert in &alerts {
            let name = format!("alertname=\"{alert}\", instance=\"");
            assert!(
                tests.contains(&name),
                "{alert} has no test in which it fires"
            );
        }
    }

    fn reference_row(metric: &Metric) -> String {
        let labels: Vec<String> = metric
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        format!(
            "| `{}` | {} | {} | {} |",
            metric.name,
            metric.kind.word(),
            labels.join(", "),
            metric.help
        )
    }

    #[test]
    fn filter_names_are_unique() {
        let names: Vec<&str> = modules()
            .iter()
            .flat_map(|module| module.filters())
            .map(|filter| filter.name())
            .collect();
        let unique: BTreeSet<&str> = names.iter().copied().collect();
        assert_eq!(names.len(), unique.len(), "{names:?}");
    }
}
