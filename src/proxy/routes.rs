//! Routing: finds the route of a request by path and method.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;
use std::sync::Arc;

use http::{HeaderValue, Method, header};
use tollgate_chain::Route;
use tollgate_filter::{ApiError, ErrorCode, ErrorPage};
use tollgate_money::IdHasher;

use super::lifecycle::LifecycleHeaders;
use crate::config::{Cors, PathPattern};

/// A route in the proxy's form.
pub(crate) struct RouteEntry {
    /// The index of the path in the metrics.
    pub(crate) index: Option<usize>,
    /// The settings for the driver.
    pub(crate) route: Route,
    /// The pattern of the path.
    pub(crate) path: PathPattern,
    /// Whether the route also answers at the path with a final slash, unless another route has the path.
    pub(crate) is_also_slashed: bool,
    /// The methods of the route; `HEAD` with `GET`.
    pub(crate) methods: Vec<Method>,
    /// Its CORS policy.
    pub(crate) cors: Cors,
    pub(crate) lifecycle: Option<Arc<LifecycleHeaders>>,
    /// Renders its errors as pages.
    pub(crate) pages: Option<ErrorPage>,
}

/// All routes. Several may share a path with different methods.
pub(crate) struct Routes {
    entries: Vec<RouteEntry>,
    /// Positions of the routes without a wildcard, by path.
    exact: HashMap<Box<str>, Vec<usize>, BuildHasherDefault<IdHasher>>,
    /// Positions of the others, in the order of the settings.
    patterns: Vec<usize>,
}

/// The result of routing a path.
pub(super) enum Found<'r> {
    /// A route for this method.
    Route(&'r RouteEntry),
    /// Only routes for other methods; `Allow` lists them.
    OtherMethods {
        /// The available methods, with `OPTIONS`.
        allow: HeaderValue,
        /// The first of the routes.
        first: &'r RouteEntry,
    },
    /// No route.
    None,
}

impl Routes {
    pub(crate) fn new(entries: Vec<RouteEntry>) -> Routes {
        let mut exact: HashMap<Box<str>, Vec<usize>, _> = HashMap::default();
        let mut patterns = Vec::new();
        for (at, entry) in entries.iter().enumerate() {
            match entry.path.exact() {
                Some(path) => exact.entry(path.into()).or_default().push(at),
                None => patterns.push(at),
            }
        }
        // Afterwards: a route written with the slash has precedence.
        for (at, entry) in entries.iter().enumerate() {
            if let Some(path) = entry.path.exact().filter(|_| entry.is_also_slashed) {
                exact.entry(format!("{path}/").into()).or_default().push(at);
            }
        }
        Routes {
            entries,
            exact,
            patterns,
        }
    }

    /// Finds the route of a raw path. Routes without a wildcard have precedence.
    pub(super) fn find(&self, method: &Method, path: &str) -> Found<'_> {
        let exact = self.exact.get(path).map_or(&[][..], Vec::as_slice);
        let mut first = None;
        let matching = || {
            let wild = self
                .patterns
                .iter()
                .filter(|&&at| self.entries[at].path.fits(path));
            exact.iter().chain(wild).map(|&at| &self.entries[at])
        };
        for entry in matching() {
            if entry.methods.contains(method) {
                return Found::Route(entry);
            }
            first.get_or_insert(entry);
        }
        match first {
            None => Found::None,
            Some(first) => Found::OtherMethods {
                allow: allow(matching()),
                first,
            },
        }
    }
}

fn allow<'r>(entries: impl Iterator<Item = &'r RouteEntry>) -> HeaderValue {
    let mut methods: Vec<&str> = Vec::new();
    for method in entries.flat_map(|entry| &entry.methods) {
        if !methods.contains(&method.as_str()) {
            methods.push(method.as_str());
        }
    }
    methods.push("OPTIONS");
    HeaderValue::from_str(&methods.join(", ")).expect("method names are tokens")
}

/// The refusal of a method: 405 for a method of HTTP, 501 for an unknown method (RFC 9110 section 9.1).
pub(super) fn refuse_method(method: &Method, allow: HeaderValue) -> ApiError {
    let known = [
        Method::GET,
        Method::HEAD,
        Method::POST,
        Method::PUT,
        Method::DELETE,
        Method::CONNECT,
        Method::OPTIONS,
        Method::TRACE,
        Method::PATCH,
    ];
    // `QUERY` is defined for HTTP, though not in the crate.
    if !known.contains(method) && method.as_str() != "QUERY" {
        return ApiError::new(
            ErrorCode::NotImplemented,
            "This method is not implemented. Use one that `OPTIONS` lists.",
        );
    }
    let message = format!(
        "This path does not support `{method}`. Use {}.",
        allow.to_str().unwrap_or("another method")
    );
    ApiError::new(ErrorCode::MethodNotAllowed, message).header(header::ALLOW, allow)
}

pub(super) fn not_found() -> ApiError {
    ApiError::new(
        ErrorCode::NotFound,
        "No route matches this path. Check it; the paths of the API start with /v1.",
    )
}
