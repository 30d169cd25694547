//! Samples of a scrape: values kept by parts of the program, read at the scrape.

use std::time::Duration;

use prometheus::proto::{Bucket, Counter, Gauge, Histogram, LabelPair, MetricFamily, MetricType};

use crate::{Kind, Metric};

/// A source of values, called at every scrape.
pub type Source = Box<dyn Fn(&mut Samples) + Send + Sync>;

/// The values of the sources at a scrape.
#[derive(Debug, Default)]
pub struct Samples {
    families: Vec<MetricFamily>,
}

impl Samples {
    /// Adds the value of a metric without labels.
    pub fn number(&mut self, metric: Metric, value: impl Into<i128>) {
        self.family(metric, vec![sample(metric.kind, Vec::new(), number(value))]);
    }

    /// Adds the value of a metric without labels, for a time.
    pub fn seconds(&mut self, metric: Metric, value: Duration) {
        let seconds = value.as_secs_f64();
        self.family(metric, vec![sample(metric.kind, Vec::new(), seconds)]);
    }

    /// Adds the values of a metric with a single label.
    pub fn numbers<'a>(
        &mut self,
        metric: Metric,
        values: impl IntoIterator<Item = (&'a str, impl Into<i128>)>,
    ) {
        let values = values.into_iter();
        self.labelled(metric, values.map(|(word, value)| ([word], value)));
    }

    /// Adds the values of a metric with several labels, in the order of its definition.
    pub fn labelled<'a, const N: usize>(
        &mut self,
        metric: Metric,
        values: impl IntoIterator<Item = ([&'a str; N], impl Into<i128>)>,
    ) {
        let values = values.into_iter().map(|(words, value)| {
            let labels = metric.labels.iter().zip(words).map(|(name, word)| {
                let mut label = LabelPair::default();
                label.set_name((*name).to_owned());
                label.set_value(word.to_owned());
                label
            });
            sample(metric.kind, labels.collect(), number(value))
        });
        self.family(metric, values.collect());
    }

    /// Adds a histogram without labels: upper bounds with non-cumulative counts, a count above the last bound, and the sum.
    pub fn histogram(
        &mut self,
        metric: Metric,
        buckets: impl Iterator<Item = (f64, u64)>,
        above: u64,
        sum: f64,
    ) {
        let mut count = 0;
        let buckets = buckets.map(|(bound, here)| {
            count += here;
            let mut bucket = Bucket::default();
            bucket.set_upper_bound(bound);
            bucket.set_cumulative_count(count);
            bucket
        });
        let mut histogram = Histogram::default();
        histogram.set_bucket(buckets.collect());
        histogram.set_sample_count(count + above);
        histogram.set_sample_sum(sum);
        let mut sample = prometheus::proto::Metric::default();
        sample.set_histogram(histogram);
        self.family(metric, vec![sample]);
    }

    /// All values, for the exposition.
    pub fn into_families(self) -> Vec<MetricFamily> {
        self.families
    }

    fn family(&mut self, metric: Metric, samples: Vec<prometheus::proto::Metric>) {
        let mut family = MetricFamily::default();
        family.set_name(metric.name.to_owned());
        family.set_help(metric.help.to_owned());
        family.set_field_type(match metric.kind {
            Kind::Counter => MetricType::COUNTER,
            Kind::Gauge => MetricType::GAUGE,
            Kind::Histogram => MetricType::HISTOGRAM,
        });
        family.set_metric(samples);
        self.families.push(family);
    }
}

/// The format has only floating point numbers; whole numbers are exact up to 2^53.
fn number(value: impl Into<i128>) -> f64 {
    value.into() as f64
}

/// A sample of a counter or a gauge.
fn sample(kind: Kind, labels: Vec<LabelPair>, value: f64) -> prometheus::proto::Metric {
    let mut sample = prometheus::proto::Metric::from_label(labels);
    if kind == Kind::Counter {
        let mut counter = Counter::default();
        counter.set_value(value);
        sample.set_counter(counter);
    } else {
        let mut gauge = Gauge::default();
        gauge.set_value(value);
        sample.set_gauge(gauge);
    }
    sample
}
