//! Metrics in the Prometheus text format.
//!
//! Every counter that a request updates is resolved once and kept: when the settings are known, or at the first use. A request finds its
//! handles by the index of its path and by a lookup for its model, provider and class.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use arc_swap::{ArcSwap, Guard};
use prometheus::proto::{LabelPair, MetricType};
use prometheus::{
    Histogram, HistogramOpts, HistogramVec, IntCounter, IntCounterVec, IntGauge, Opts, Registry,
    TextEncoder,
};
use tollgate_counters::{Metric, Source};
use tollgate_filter::{Ending, ErrorCode, Exchange, Record, RelayUpstreams, UpstreamFault};
use tollgate_money::IdHasher;
use tollgate_rate_limit::Limits;

use super::collector::Sources;
use super::models::{ModelMetrics, ModelSeries, NO_PROVIDER};
use super::names;
use crate::config::Settings;
use crate::release;

/// Upper bounds of whole exchanges of a route, in seconds: from a list to a long stream, close enough for a 95th percentile. A scrape has
/// the bounds for every route.
const WHOLE: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 120.0];
/// Upper bounds of the time to a first byte, in seconds.
const LONG: &[f64] = &[0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 60.0];
/// Upper bounds of the gateway's own share, in seconds.
const SHORT: &[f64] = &[
    0.000_05, 0.000_1, 0.000_2, 0.000_5, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.5,
];

/// The statuses with a separate counter; any other status counts as `other`.
const STATUSES: [u16; 29] = [
    0, 200, 201, 204, 304, 400, 401, 402, 403, 404, 405, 408, 409, 411, 413, 414, 415, 417, 422,
    424, 429, 431, 500, 501, 502, 503, 504, 100, 206,
];

/// The results of a call upstream: success, then every fault.
const RESULTS: [Result<(), UpstreamFault>; 8] = [
    Ok(()),
    Err(UpstreamFault::Unreachable),
    Err(UpstreamFault::Timeout),
    Err(UpstreamFault::Cut),
    Err(UpstreamFault::Invalid),
    Err(UpstreamFault::Error),
    Err(UpstreamFault::BadRequest),
    Err(UpstreamFault::RateLimited),
];

/// The counters for each name in the settings.
type ByName<T> = HashMap<Box<str>, T, BuildHasherDefault<IdHasher>>;

/// The metrics of one process.
pub struct Metrics {
    registry: Registry,
    requests: IntCounterVec,
    route_histograms: RouteHistograms,
    unrouted: Route,
    /// The names in the settings. A reload adds new names. Names that have left the settings stay, for requests under way.
    names: ArcSwap<Names>,
    models: ModelMetrics,
    calls: IntCounterVec,
    first_byte: HistogramVec,
    rate_limit: IntCounterVec,
    connections: IntGauge,
    connections_total: IntCounter,
    connections_waited: IntCounter,
    connections_closed: [IntCounter; ClosedConnection::ALL.len()],
    admin_connections_closed: [IntCounter; ClosedConnection::ALL.len()],
    proxy_protocol_refused: [IntCounter; ProxyProtocolFault::ALL.len()],
    filter_failures: IntCounterVec,
    sources: Sources,
}

struct Route {
    label: Arc<str>,
    seconds: Histogram,
    first_event: Histogram,
    overhead: Histogram,
    /// A counter for each status and ending, created on first use.
    counters: Box<[OnceLock<IntCounter>]>,
}

/// The histograms by route.
struct RouteHistograms {
    seconds: HistogramVec,
    first_event: HistogramVec,
    overhead: HistogramVec,
}

/// The routes, models, providers and rate classes of the settings so far.
#[derive(Clone, Default)]
pub(super) struct Names {
    /// A route for each path, at the index of the path's routes in the proxy.
    routes: Vec<Arc<Route>>,
    models: ByName<ModelSeries>,
    providers: ByName<Provider>,
    classes: ByName<Class>,
}

impl Names {
    /// The path of a route, as the settings write it.
    pub(super) fn route_label(&self, route: usize) -> Option<&str> {
        self.routes.get(route).map(|route| &*route.label)
    }
}

#[derive(Clone)]
struct Provider {
    results: [IntCounter; RESULTS.len()],
    first_byte: Histogram,
}

#[derive(Clone)]
struct Class {
    admitted: IntCounter,
    refused: IntCounter,
}

/// The times of a completed exchange.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Times {
    /// From the complete head to the end.
    pub(super) whole: Duration,
    /// From the complete head to the first byte of the answer sent.
    pub(super) first_byte: Option<Duration>,
    /// From the start of the last call upstream to its first byte.
    pub(super) upstream_first_byte: Option<Duration>,
    /// From the start of the last call upstream to its end.
    pub(super) upstream: Option<Duration>,
    /// The latency added by the gateway until the first byte of the answer was sent.
    pub(super) overhead: Option<Duration>,
}

impl Times {
    pub(super) fn of(record: &Record, whole: Duration) -> Times {
        let between =
            |from: Option<Duration>, to: Option<Duration>| Some(to?.saturating_sub(from?));
        // A whole answer is sent when the answer is complete, a stream from its first byte.
        let ready = if record.stream {
            record.upstream_first_byte
        } else {
            record.upstream_ended
        };
        let before = between(Some(record.started), record.upstream_started);
        let after = between(ready, record.first_byte);
        Times {
            whole,
            first_byte: between(Some(record.started), record.first_byte),
            upstream_first_byte: between(record.upstream_started, record.upstream_first_byte),
            upstream: between(record.upstream_started, record.upstream_ended),
            overhead: before.zip(after).map(|(before, after)| before + after),
        }
    }
}

impl Metrics {
    /// Metrics with the labels of these settings.
    pub(super) fn new(settings: &Settings) -> Metrics {
        let registry = Registry::new();
        let make = Make {
            registry: &registry,
        };
        let requests = make.counters(names::REQUESTS);
        let route_histograms = RouteHistograms {
            seconds: make.histograms(names::REQUEST_SECONDS, WHOLE),
            first_event: make.histograms(names::FIRST_EVENT_SECONDS, LONG),
            overhead: make.histograms(names::OVERHEAD_SECONDS, SHORT),
        };
        let models = ModelMetrics::new(&make);
        let calls = make.counters(names::UPSTREAM_CALLS);
        let first_byte = make.histograms(names::UPSTREAM_SECONDS, LONG);
        let rate_limit = make.counters(names::RATE_LIMIT);
        make.gauges(names::BUILD)
            .with_label_values(&[release::VERSION, release::COMMIT])
            .set(1);
        let sources = make.register(Ok(Sources::default()));
        let metrics = Metrics {
            requests,
            unrouted: route_histograms.route("none"),
            route_histograms,
            names: ArcSwap::default(),
            models,
            calls,
            first_byte,
            rate_limit,
            connections: make.gauge(names::CONNECTIONS),
            connections_total: make.counter(names::CONNECTIONS_TOTAL),
            connections_waited: make.counter(names::CONNECTIONS_WAITED),
            connections_closed: closed(make.counters(names::CONNECTIONS_CLOSED)),
            admin_connections_closed: closed(make.counters(names::ADMIN_CONNECTIONS_CLOSED)),
            proxy_protocol_refused: {
                let counters = make.counters(names::PROXY_PROTOCOL_REFUSED);
                ProxyProtocolFault::ALL.map(|fault| counters.with_label_values(&[fault.word()]))
            },
            filter_failures: make.counters(names::FILTER_FAILURES),
            sources,
            registry,
        };
        metrics.add_routes(settings);
        metrics.add_names(settings);
        metrics
    }

    /// Adds the routes of these settings. A route has no lines before its first request.
    pub(super) fn add_routes(&self, settings: &Settings) {
        let mut names = Names::clone(&self.names.load());
        for route in &settings.routes {
            let path = route.path.as_str();
            if !names.routes.iter().any(|known| *known.label == *path) {
                let route = self.route_histograms.route(path);
                names.routes.push(Arc::new(route));
            }
        }
        self.names.store(Arc::new(names));
    }

    /// The index of a path for [`Metrics::exchange`]; `None` before the path's route was added.
    pub(super) fn route(&self, path: &str) -> Option<usize> {
        let names = self.names.load();
        names.routes.iter().position(|one| *one.label == *path)
    }

    /// The names in the settings, for an exchange.
    pub(super) fn names(&self) -> Guard<Arc<Names>> {
        self.names.load()
    }

    /// Adds the models, providers and rate classes of these settings.
    pub(super) fn add_names(&self, settings: &Settings) {
        let mut names = Names::clone(&self.names.load());
        let limits: Limits = settings.sections.find().unwrap_or_default();
        let classes = limits.classes().iter().map(|one| &*one.name);
        for name in classes.chain([
            tollgate_rate_limit::FAILED_CREDENTIALS,
            tollgate_rate_limit::MISSING_CREDENTIALS,
        ]) {
            let decided = |decision| self.rate_limit.with_label_values(&[name, decision]);
            names.classes.entry(name.into()).or_insert_with(|| Class {
                admitted: decided("admitted"),
                refused: decided("refused"),
            });
        }
        for model in settings.catalog.models() {
            let earlier = names.models.get(&*model.id);
            let series = self.models.series(&settings.catalog, model, earlier);
            names.models.insert((&*model.id).into(), series);
        }
        let RelayUpstreams(relays) = settings.sections.find().unwrap_or_default();
        let relays = relays.iter().map(|one| &*one.name);
        for name in settings
            .providers
            .iter()
            .map(|one| &*one.name)
            .chain(relays)
        {
            let result = |result| self.calls.with_label_values(&[name, result_word(result)]);
            names
                .providers
                .entry(name.into())
                .or_insert_with(|| Provider {
                    results: RESULTS.map(result),
                    first_byte: self.first_byte.with_label_values(&[name]),
                });
        }
        self.names.store(Arc::new(names));
    }

    /// Adds a source of values.
    pub fn add_source(&self, source: Source) {
        self.sources.add(source);
    }

    /// Every metric in the Prometheus text format, version 0.0.4. For a histogram with labels, the text omits series without samples. The
    /// text also omits counters of answers without a provider while the counters are 0. With many routes and models, these series would be
    /// most of the text. The text has only the beginning of a long description; the reference has the rest.
    pub fn render(&self) -> String {
        let mut families = self.registry.gather();
        for family in &mut families {
            let kind = family.get_field_type();
            let mut series = family.take_metric();
            series.retain(|one| match kind {
                MetricType::HISTOGRAM => {
                    one.get_label().is_empty() || one.get_histogram().get_sample_count() > 0
                }
                MetricType::COUNTER => {
                    one.get_counter().get_value() > 0.0
                        || !one.get_label().iter().any(is_without_provider)
                }
                _ => true,
            });
            family.set_metric(series);
            let help = help_line(family.help()).to_owned();
            family.set_help(help);
        }
        families.retain(|family| !family.get_metric().is_empty());
        TextEncoder::new()
            .encode_to_string(&families)
            .expect("metrics are written to memory")
    }

    /// Counts a completed exchange.
    pub(super) fn exchange(
        &self,
        names: &Names,
        exchange: &Exchange,
        route: Option<usize>,
        ending: Ending,
        times: &Times,
    ) {
        let record = &exchange.record;
        let route = route
            .and_then(|at| names.routes.get(at))
            .map_or(&self.unrouted, |route| &**route);
        self.request(route, record.status, ending).inc();
        route.seconds.observe(times.whole.as_secs_f64());
        if record.stream
            && let Some(first) = times.first_byte
        {
            route.first_event.observe(first.as_secs_f64());
        }
        if let Some(overhead) = times.overhead {
            route.overhead.observe(overhead.as_secs_f64());
        }
        if let Some(series) = record.model.as_deref().and_then(|id| names.models.get(id)) {
            self.models.count(series, record, ending, times);
        }
        if let Some(class) = record
            .class
            .as_deref()
            .and_then(|name| names.classes.get(name))
        {
            match record.error {
                // A provider's rate limit has an equal code, but another ending.
                Some(ErrorCode::RateLimitExceeded | ErrorCode::ConcurrencyExceeded)
                    if ending == Ending::Refused =>
                {
                    class.refused.inc();
                }
                _ => class.admitted.inc(),
            }
        }
        if let Some(provider) = record
            .provider
            .as_deref()
            .and_then(|name| names.providers.get(name))
            && let Some(first) = times.upstream_first_byte
        {
            provider.first_byte.observe(first.as_secs_f64());
        }
    }

    fn request<'a>(&'a self, route: &'a Route, status: u16, ending: Ending) -> &'a IntCounter {
        let status = STATUSES.iter().position(|known| *known == status);
        let column = ending_column(ending);
        let row = status.unwrap_or(STATUSES.len());
        route.counters[row * Ending::WORDS.len() + column].get_or_init(|| {
            let word = match status.map(|at| STATUSES[at]) {
                Some(0) => "none".to_owned(),
                Some(status) => status.to_string(),
                None => "other".to_owned(),
            };
            self.requests
                .with_label_values(&[&*route.label, &*word, ending.word()])
        })
    }

    pub(super) fn upstream_call(&self, provider: &str, result: Result<(), UpstreamFault>) {
        let at = RESULTS.iter().position(|known| *known == result);
        if let (Some(provider), Some(at)) = (self.names.load().providers.get(provider), at) {
            provider.results[at].inc();
        }
    }

    pub(super) fn connection(&self) -> ConnectionGuard {
        self.connections.inc();
        self.connections_total.inc();
        ConnectionGuard {
            open: self.connections.clone(),
        }
    }

    pub(super) fn connection_waited(&self) {
        self.connections_waited.inc();
    }

    pub(super) fn connection_closed(&self, side: ConnectionSide, reason: ClosedConnection) {
        let counters = match side {
            ConnectionSide::Client => &self.connections_closed,
            ConnectionSide::Admin => &self.admin_connections_closed,
        };
        counters[reason as usize].inc();
    }

    pub(super) fn proxy_protocol_refused(&self, fault: ProxyProtocolFault) {
        self.proxy_protocol_refused[fault as usize].inc();
    }

    pub(super) fn filter_failed(&self, filter: &str) {
        self.filter_failures.with_label_values(&[filter]).inc();
    }
}

impl RouteHistograms {
    fn route(&self, label: &str) -> Route {
        Route {
            label: label.into(),
            seconds: self.seconds.with_label_values(&[label]),
            first_event: self.first_event.with_label_values(&[label]),
            overhead: self.overhead.with_label_values(&[label]),
            counters: (0..(STATUSES.len() + 1) * Ending::WORDS.len())
                .map(|_| OnceLock::new())
                .collect(),
        }
    }
}

/// A description, or its beginning if the description is longer than a line.
fn help_line(description: &str) -> &str {
    let end = [": ", "; ", ". "]
        .iter()
        .filter_map(|end| description.find(end))
        .min();
    match end {
        Some(end) if description.len() > 100 => &description[..end],
        _ => description,
    }
}

fn is_without_provider(label: &LabelPair) -> bool {
    label.name() == "provider" && label.value() == NO_PROVIDER
}

fn result_word(result: Result<(), UpstreamFault>) -> &'static str {
    match result {
        Ok(()) => "ok",
        Err(fault) => fault.word(),
    }
}

pub(super) fn ending_column(ending: Ending) -> usize {
    match ending {
        Ending::Complete => 0,
        Ending::Answered => 1,
        Ending::Refused => 2,
        Ending::UpstreamFailed(_) => 3,
        Ending::UpstreamCut(_) => 4,
        Ending::GoneBefore => 5,
        Ending::GoneDuring => 6,
        Ending::Unsettled => 7,
        Ending::Aborted => 8,
    }
}

/// Counts a connection as open until it is dropped.
#[derive(Debug)]
pub struct ConnectionGuard {
    open: IntGauge,
}

impl Drop for ConnectionGuard {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// Creates metrics from the list of names and registers them.
pub(super) struct Make<'a> {
    registry: &'a Registry,
}

impl Make<'_> {
    fn register<T: prometheus::core::Collector + Clone + 'static>(
        &self,
        made: prometheus::Result<T>,
    ) -> T {
        let made = made.expect("the list of names makes metrics");
        self.registry
            .register(Box::new(made.clone()))
            .expect("a name stands once in the list");
        made
    }

    fn opts(metric: Metric) -> Opts {
        Opts::new(metric.name, metric.help)
    }

    fn counter(&self, metric: Metric) -> IntCounter {
        self.register(IntCounter::with_opts(Make::opts(metric)))
    }

    fn gauge(&self, metric: Metric) -> IntGauge {
        self.register(IntGauge::with_opts(Make::opts(metric)))
    }

    pub(super) fn counters(&self, metric: Metric) -> IntCounterVec {
        self.register(IntCounterVec::new(Make::opts(metric), metric.labels))
    }

    fn gauges(&self, metric: Metric) -> prometheus::IntGaugeVec {
        self.register(prometheus::IntGaugeVec::new(
            Make::opts(metric),
            metric.labels,
        ))
    }

    pub(super) fn histograms(&self, metric: Metric, bounds: &[f64]) -> HistogramVec {
        let opts = HistogramOpts::new(metric.name, metric.help).buckets(bounds.to_vec());
        self.register(HistogramVec::new(opts, metric.labels))
    }
}

/// Why a connection was closed on a listener with the PROXY protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProxyProtocolFault {
    /// The connection came from an untrusted address.
    Untrusted,
    /// The connection did not start with a valid header.
    Malformed,
    /// The header was truncated, or timed out.
    Incomplete,
}

impl ProxyProtocolFault {
    /// Every reason.
    const ALL: [ProxyProtocolFault; 3] = [
        ProxyProtocolFault::Untrusted,
        ProxyProtocolFault::Malformed,
        ProxyProtocolFault::Incomplete,
    ];

    /// As in the label `reason`.
    pub fn word(self) -> &'static str {
        match self {
            ProxyProtocolFault::Untrusted => "untrusted",
            ProxyProtocolFault::Malformed => "malformed",
            ProxyProtocolFault::Incomplete => "incomplete",
        }
    }
}

/// The sockets that a connection was accepted from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConnectionSide {
    /// The listeners of clients.
    Client,
    /// The admin address.
    Admin,
}

/// Why a connection was closed for lack of places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClosedConnection {
    /// The connection was idle for the longest time when every place was taken.
    Full,
    /// The connection was idle for the longest time among the connections of an address prefix at its share.
    Share,
    /// The connection was new, its address prefix had its share, and every connection of the prefix had requests under way.
    Refused,
}

/// A counter for each reason.
fn closed(counters: IntCounterVec) -> [IntCounter; ClosedConnection::ALL.len()] {
    ClosedConnection::ALL.map(|reason| counters.with_label_values(&[reason.word()]))
}

impl ClosedConnection {
    /// Every reason.
    const ALL: [ClosedConnection; 3] = [
        ClosedConnection::Full,
        ClosedConnection::Share,
        ClosedConnection::Refused,
    ];

    /// As in the label `reason`.
    fn word(self) -> &'static str {
        match self {
            ClosedConnection::Full => "full",
            ClosedConnection::Share => "share",
            ClosedConnection::Refused => "refused",
        }
    }
}
