//! Metrics by model and provider.
//!
//! The label `provider` is `none` for an answer without a provider: a refusal, or an answer from the cache.

use std::sync::{Arc, OnceLock};

use prometheus::{Histogram, HistogramVec, IntCounter, IntCounterVec};
use tollgate_filter::{Catalog, Ending, Model as CatalogModel, Record};

use super::metrics::{Make, Times, ending_column};
use super::names;

/// Upper bounds of whole answers, in seconds, close enough for a 95th percentile. A model has the bounds for each of its providers.
const WHOLE: &[f64] = &[
    0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 20.0, 40.0, 60.0, 120.0, 300.0,
];
/// Upper bounds of the time to the first token, in seconds.
const FIRST: &[f64] = &[0.1, 0.25, 0.5, 0.75, 1.0, 1.5, 2.5, 5.0, 10.0, 30.0];

/// The label of answers without a provider.
pub(super) const NO_PROVIDER: &str = "none";

/// The metrics that have a label for the model.
pub(super) struct ModelMetrics {
    requests: IntCounterVec,
    seconds: HistogramVec,
    first_event: HistogramVec,
    tokens: IntCounterVec,
    charged: IntCounterVec,
    estimated: IntCounterVec,
}

/// The series of one model. Cheap to clone.
#[derive(Clone)]
pub(super) struct ModelSeries {
    estimated: IntCounter,
    /// A series for each provider that may answer; the series of [`NO_PROVIDER`] is the first.
    providers: Arc<[ProviderSeries]>,
}

/// The series of a model at a provider.
struct ProviderSeries {
    name: Box<str>,
    /// A counter for each ending, created on first use.
    requests: [OnceLock<IntCounter>; Ending::WORDS.len()],
    seconds: Histogram,
    first_event: Histogram,
    prompt: IntCounter,
    completion: IntCounter,
    charged: IntCounter,
}

impl ModelMetrics {
    pub(super) fn new(make: &Make<'_>) -> ModelMetrics {
        ModelMetrics {
            requests: make.counters(names::MODEL_REQUESTS),
            seconds: make.histograms(names::MODEL_SECONDS, WHOLE),
            first_event: make.histograms(names::MODEL_FIRST_EVENT_SECONDS, FIRST),
            tokens: make.counters(names::TOKENS),
            charged: make.counters(names::CHARGED),
            estimated: make.counters(names::ESTIMATED),
        }
    }

    /// The series of a model: for its providers, for the providers of its fallback models, and for its providers in earlier settings. A
    /// provider of earlier settings may still answer requests under way.
    pub(super) fn series(
        &self,
        catalog: &Catalog,
        model: &CatalogModel,
        earlier: Option<&ModelSeries>,
    ) -> ModelSeries {
        let fallbacks = model
            .routing
            .fallback
            .iter()
            .filter_map(|id| catalog.get(id));
        let mut providers = vec![NO_PROVIDER];
        let own = model.providers.iter();
        let all = own.chain(fallbacks.flat_map(|other| &other.providers));
        let before = earlier.iter().flat_map(|series| series.providers.iter());
        for name in all
            .map(|place| &*place.provider)
            .chain(before.map(|one| &*one.name))
        {
            if !providers.contains(&name) {
                providers.push(name);
            }
        }
        ModelSeries {
            estimated: self.estimated.with_label_values(&[&*model.id]),
            providers: providers
                .iter()
                .map(|provider| self.provider(&model.id, provider))
                .collect(),
        }
    }

    fn provider(&self, model: &str, provider: &str) -> ProviderSeries {
        let labels = [model, provider];
        let tokens = |direction| self.tokens.with_label_values(&[model, provider, direction]);
        ProviderSeries {
            name: provider.into(),
            requests: Default::default(),
            seconds: self.seconds.with_label_values(&labels),
            first_event: self.first_event.with_label_values(&labels),
            prompt: tokens("prompt"),
            completion: tokens("completion"),
            charged: self.charged.with_label_values(&labels),
        }
    }

    /// Counts a completed exchange for this model.
    pub(super) fn count(
        &self,
        series: &ModelSeries,
        record: &Record,
        ending: Ending,
        times: &Times,
    ) {
        let provider = record.provider.as_deref();
        let of_provider = series
            .providers
            .iter()
            .find(|one| provider == Some(&*one.name))
            .unwrap_or(&series.providers[0]);
        of_provider.requests[ending_column(ending)]
            .get_or_init(|| {
                let model = record.model.as_deref().unwrap_or_default();
                self.requests
                    .with_label_values(&[model, &of_provider.name, ending.word()])
            })
            .inc();
        // The duration of a refusal says nothing about the model.
        if matches!(ending, Ending::Complete | Ending::Answered) {
            of_provider.seconds.observe(times.whole.as_secs_f64());
        }
        if record.stream
            && let Some(first) = times.first_byte
        {
            of_provider.first_event.observe(first.as_secs_f64());
        }
        of_provider.prompt.inc_by(record.prompt_tokens);
        of_provider.completion.inc_by(record.completion_tokens);
        // A charge is never negative.
        let charged = u64::try_from(record.charged.get()).unwrap_or(0);
        of_provider.charged.inc_by(charged);
        if record.estimated {
            series.estimated.inc();
        }
    }
}
