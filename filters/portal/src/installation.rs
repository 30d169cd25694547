//! What pages say about this installation, as it is set.

use std::sync::Arc;

use tollgate_filter::Catalog;
use tollgate_pages::format::count;

/// What pages say about this installation.
#[derive(Clone, Debug)]
pub struct Installation {
    /// The models on sale.
    pub catalog: Arc<Catalog>,
    /// What a credit costs, as a sentence, where that is set.
    pub credit_price: Option<String>,
    /// The rate classes.
    pub classes: Vec<RateClassInfo>,
    /// The most bytes of a request for a completion.
    pub completion_bytes_max: u64,
    /// The paths at which programs buy, as far as there are any.
    pub payment_paths: Vec<String>,
    /// The routes that end.
    pub deprecations: Vec<DeprecationInfo>,
}

/// How a route ends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeprecationInfo {
    /// Its methods and its path: `POST /v1/completions`.
    pub route: String,
    /// Since when, or from when on, nothing new should be built on it: microseconds since 1970.
    pub deprecated_at: Option<i64>,
    /// From when on it may be gone, likewise.
    pub sunset_at: Option<i64>,
    /// The address of what takes its place.
    pub successor: Option<String>,
}

/// How much a rate class allows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateClassInfo {
    /// Its name.
    pub name: String,
    /// Requests in one window.
    pub requests: u32,
    /// The window, in seconds.
    pub window_secs: u32,
    /// Tokens in one window, if that is limited.
    pub tokens: Option<u64>,
    /// Requests under way at once, if that is limited.
    pub concurrent: Option<u32>,
}

impl RateClassInfo {
    /// What it allows, in words: `600 requests a minute`.
    pub(crate) fn describe(&self) -> String {
        let requests = count(self.requests.into());
        match self.window_secs {
            1 => format!("{requests} requests a second"),
            60 => format!("{requests} requests a minute"),
            3600 => format!("{requests} requests an hour"),
            secs => format!("{requests} requests in {} seconds", count(secs.into())),
        }
    }
}
