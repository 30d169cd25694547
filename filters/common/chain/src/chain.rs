//! The filters of a route, sorted by phase.

use std::sync::Arc;

use tollgate_filter::{Body, Contract, ErrorShape, FailureMode, Filter, Phase};

/// A filter with its contract, which is asked for once.
pub(crate) struct Link {
    pub(crate) filter: Arc<dyn Filter>,
    pub(crate) body: Body,
    pub(crate) on_failure: FailureMode,
    /// Whether it looks at requests.
    pub(crate) is_asked: bool,
}

/// The filters of a route, outermost first.
pub struct Chain {
    pub(crate) links: Vec<Link>,
    /// The numbers of those with each phase after the first, so that the others need not be visited.
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
                    is_asked: contract.phases.has(Phase::Request),
                })
                .collect(),
        }
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
