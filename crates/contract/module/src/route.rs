//! The route for which a filter is built.

use std::sync::Arc;

use tollgate_filter::RequiredAccess;

use crate::services::Services;

/// The inputs of a filter's constructor. A filter is built once per route that names the filter.
#[derive(Clone, Copy, Debug)]
pub struct RouteContext<'a> {
    /// The pattern of the path.
    pub path: &'a str,
    /// Maximum size of a request's body in bytes.
    pub body_bytes_max: usize,
    /// The access that a credential must have, where the route names scopes.
    pub access: Option<RequiredAccess>,
    /// The rate class that counts requests of the route; `None`: the class of the account.
    pub class: Option<&'a str>,
    /// Names of the chain's filters, outermost first.
    pub chain: &'a [Arc<str>],
    /// The services of all modules.
    pub services: &'a Services,
}

impl RouteContext<'_> {
    /// Whether the chain has a filter of the name.
    pub fn has_filter(&self, name: &str) -> bool {
        self.chain.iter().any(|filter| **filter == *name)
    }
}
