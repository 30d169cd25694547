//! Metric definitions: name, kind, labels and help text.

/// A metric.
///
/// Labels are bounded by the settings and by lists in the program: route patterns, models, providers, classes, statuses, endings. A label
/// never contains an account, a key, an address or other text from a client. Money is counted in whole micro-credits.
#[derive(Clone, Copy, Debug)]
pub struct Metric {
    /// The metric's name.
    pub name: &'static str,
    /// The metric's kind.
    pub kind: Kind,
    /// The names of the labels.
    pub labels: &'static [&'static str],
    /// The metric's meaning, a sentence.
    pub help: &'static str,
}

/// The kinds of metric.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Counter: only increases.
    Counter,
    /// Gauge: increases and decreases.
    Gauge,
    /// Histogram: values in buckets.
    Histogram,
}

impl Kind {
    /// The keyword in the text format.
    pub fn word(self) -> &'static str {
        match self {
            Kind::Counter => "counter",
            Kind::Gauge => "gauge",
            Kind::Histogram => "histogram",
        }
    }
}

/// Defines metrics as constants, and `METRICS`, the ordered list of the metrics.
#[macro_export]
macro_rules! metrics {
    ($($id:ident = $name:literal, $kind:ident, [$($label:literal),*], $help:literal;)*) => {
        $(pub(crate) const $id: $crate::Metric = $crate::Metric {
            name: $name,
            kind: $crate::Kind::$kind,
            labels: &[$($label),*],
            help: $help,
        };)*

        /// Every metric, in the order of the reference.
        pub(crate) const METRICS: &[$crate::Metric] = &[$($id,)*];
    };
}
