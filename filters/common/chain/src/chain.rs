//! The filters of a route, sorted by phase.

use std::sync::Arc;

use tollgate_filter::{Body, ErrorShape, FailureMode, Filter, Phase};

/// A filter with its contract, which is asked for once.
pub(crate) struct Link {
    pub(crate) filter: Arc<dyn Filter>,
    pub(crate) body: Body,
    pub(crate) on_failure: FailureMode,
    phases: tollgate_filter::Phases,
}

impl Link {
    pub(crate) fn has(&self, phase: Phase) -> bool {
        self.phases.has(phase)
    }
}

/// The filters of a route, outermost first.
pub struct Chain {
    pub(crate) links: Vec<Link>,
}

impl Chain {
    /// A chain of these filters.
    pub fn new(filters: Vec<Arc<dyn Filter>>) -> Chain {
        let links = filters
            .into_iter()
            .map(|filter| {
                let contract = filter.contract();
                Link {
                    filter,
                    body: contract.body,
                    on_failure: contract.on_failure,
                    phases: contract.phases,
                }
            })
            .collect();
        Chain { links }
    }

    /// The names of the filters, outermost first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.links.iter().map(|link| link.filter.name())
    }
}

/// What the driver needs to know of a route.
pub struct Route {
    /// The path pattern as written in the settings: what logs and metrics call the route.
    pub name: Arc<str>,
    /// The filters.
    pub chain: Chain,
    /// The most bytes a request's body may have.
    pub body_bytes_max: usize,
    /// How errors are written.
    pub errors: ErrorShape,
}
