//! Configuration of this installation as pages show it: models, prices, limits, deprecations.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_filter::Catalog;
use tollgate_pages::format::count;

/// Configuration of this installation as pages show it.
#[derive(Clone, Debug)]
pub struct Installation {
    /// Models for sale.
    pub catalog: Arc<Catalog>,
    /// Price of a credit as a sentence, if configured.
    pub credit_price: Option<String>,
    /// The rate classes.
    pub classes: Vec<RateClassInfo>,
    /// Maximum size of a completion request, in bytes.
    pub completion_bytes_max: u64,
    /// Paths of the payment endpoints, if any.
    pub payment_paths: Vec<String>,
    /// Deprecated routes.
    pub deprecations: Vec<DeprecationInfo>,
}

/// Deprecation and sunset of a route.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DeprecationInfo {
    /// Methods and path: `POST /v1/completions`.
    pub route: String,
    /// Time of deprecation; may be in the future.
    pub deprecated_at: Option<Timestamp>,
    /// Time from which the route may be removed.
    pub sunset_at: Option<Timestamp>,
    /// URL of the successor.
    pub successor: Option<String>,
}

/// Limits of a rate class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RateClassInfo {
    /// Name.
    pub name: String,
    /// Requests per window.
    pub requests: u32,
    /// Length of the window, in seconds.
    pub window_secs: u32,
    /// Tokens per window, if limited.
    pub tokens: Option<u64>,
    /// Concurrent requests, if limited.
    pub concurrent: Option<u32>,
}

impl RateClassInfo {
    /// The request limit as text: `600 requests a minute`.
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
