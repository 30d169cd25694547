//! The routes of the gateway for modules: the facts that pages and documents state of a route.

use std::sync::Arc;

use http::Method;
use tollgate_clock::Timestamp;

use crate::RequiredAccess;

/// All routes, in the order of matching.
#[derive(Clone, Debug, Default)]
pub struct RouteList(pub Arc<[RouteFacts]>);

/// A route.
#[derive(Clone, Debug)]
pub struct RouteFacts {
    /// The pattern of the path.
    pub path: Arc<str>,
    /// The methods.
    pub methods: Vec<Method>,
    /// Maximum size of a request's body in bytes.
    pub body_bytes_max: usize,
    /// The access that a credential must have, where the route names scopes.
    pub access: Option<RequiredAccess>,
    /// The route's lifecycle, where an end is planned.
    pub lifecycle: Option<RouteLifecycle>,
}

/// The lifecycle of a route (RFC 9745, RFC 8594).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RouteLifecycle {
    /// The time of the deprecation, past or future.
    pub deprecated_at: Option<Timestamp>,
    /// The time from which the route may be gone.
    pub sunset_at: Option<Timestamp>,
    /// The address of the successor.
    pub successor: Option<String>,
}
