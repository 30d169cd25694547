//! The filter chain of a route, sorted by phase.

use std::sync::Arc;

use tollgate_filter::{Body, Contract, ErrorShape, FailureMode, Filter, Phase};

/// A filter with its contract, read once.
pub(crate) struct Link {
    pub(crate) filter: Arc<dyn Filter>,
    pub(crate) body: Body,
    pub(crate) on_failure: FailureMode,
    /// Whether the filter has a request phase.
    pub(crate) has_request_phase: bool,
}

/// The filters of a route, outermost first.
pub struct Chain {
    pub(crate) links: Vec<Link>,
    /// The indices of the filters with each phase after the first: the other filters need no visit.
    pub(crate) head: Vec<usize>,
    pub(crate) forward: Vec<usize>,
    pub(crate) refusal: Vec<usize>,
    pub(crate) first_byte: Vec<usize>,
    pub(crate) event: Vec<usize>,
    pub(crate) tail: Vec<usize>,
    pub(crate) end: Vec<usize>,
}

impl Chain {
    /// A chain of these filters.
    pub fn new(filters: Vec<Arc<dyn Filter>>) -> Chain {
        let contracts: Vec<Contract> = filters.iter().map(|filter| filter.contract()).collect();
        let with = |phase| -> Vec<usize> {
            let numbered = contracts.iter().enumerate();
            let those = numbered.filter(|(_, contract)| contract.phases.has(phase));
            those.map(|(at, _)| at).collect()
        };
        Chain {
            head: with(Phase::Head),
            forward: with(Phase::Forward),
            refusal: with(Phase::Refusal),
            first_byte: with(Phase::FirstByte),
            event: with(Phase::Event),
            tail: with(Phase::Tail),
            end: with(Phase::End),
            links: filters
                .into_iter()
                .zip(&contracts)
                .map(|(filter, contract)| Link {
                    filter,
                    body: contract.body,
                    on_failure: contract.on_failure,
                    has_request_phase: contract.phases.has(Phase::Request),
                })
                .collect(),
        }
    }

    /// The names of the filters, outermost first.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.links.iter().map(|link| link.filter.name())
    }
}

/// The driver's settings of a route.
pub struct Route {
    /// The path pattern as written in the settings: the route's name in logs and metrics.
    pub name: Arc<str>,
    /// The filters.
    pub chain: Chain,
    /// Maximum size of a request body in bytes.
    pub body_bytes_max: usize,
    /// The error format.
    pub errors: ErrorShape,
}
