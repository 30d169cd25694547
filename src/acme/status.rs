//! The state of the certificates by ACME, for `/ready` and the metrics.

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};
use tollgate_counters::{Counters, Metric, Source, labels};

use crate::config::AcmeOrder;
use crate::telemetry::names;

labels! {
    /// The end of an order.
    pub(super) enum OrderResult {
        /// A certificate was issued.
        Issued = "issued",
        /// The order failed.
        Failed = "failed",
    }
}

/// The state of every certificate. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct AcmeStatus {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    results: Counters<OrderResult>,
    /// By label.
    certificates: Mutex<BTreeMap<String, State>>,
}

#[derive(Debug, Default)]
struct State {
    is_installed: bool,
    failures: u32,
    cause: Option<Arc<str>>,
}

impl AcmeStatus {
    /// Adds a certificate, unless the certificate is known.
    pub(super) fn begin(&self, order: &AcmeOrder) {
        self.certificates().entry(order.label()).or_default();
    }

    /// Removes a certificate.
    pub(super) fn end(&self, order: &AcmeOrder) {
        self.certificates().remove(&order.label());
    }

    pub(super) fn installed(&self, order: &AcmeOrder) {
        self.change(order, |state| state.is_installed = true);
    }

    /// Sets the attempts from the stored row.
    pub(super) fn attempts(&self, order: &AcmeOrder, failures: u32, cause: Option<Arc<str>>) {
        self.change(order, |state| {
            state.failures = failures;
            state.cause = cause;
        });
    }

    pub(super) fn ended(&self, result: OrderResult) {
        self.shared.results.inc(result);
    }

    fn change(&self, order: &AcmeOrder, change: impl FnOnce(&mut State)) {
        // A task that is being cancelled may be late.
        if let Some(state) = self.certificates().get_mut(&order.label()) {
            change(state);
        }
    }

    fn certificates(&self) -> MutexGuard<'_, BTreeMap<String, State>> {
        self.shared.certificates.lock()
    }

    /// Warnings for an operator. A warning does not make the gateway unready: a load balancer would withhold the authority's requests.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let certificates = self.certificates();
        let found = certificates.iter().filter_map(|(label, state)| {
            let effect = match state.is_installed {
                true => "the earlier one is in use",
                false => "handshakes for its names are refused",
            };
            match (&state.cause, state.is_installed) {
                (Some(cause), _) => Some(format!(
                    "the certificate `{label}` was not obtained, and {effect}: {cause}"
                )),
                (None, false) => Some(format!(
                    "the certificate `{label}` is being obtained for the first time, and {effect}"
                )),
                (None, true) => None,
            }
        });
        found.collect()
    }

    /// The metrics.
    pub(crate) fn metrics(&self) -> Source {
        let status = self.clone();
        Box::new(move |samples| {
            let certificates = status.certificates();
            if certificates.is_empty() {
                return;
            }
            samples.numbers(names::ACME_ORDERS, status.shared.results.values());
            let mut each = |metric: Metric, value: fn(&State) -> u32| {
                let values = certificates.iter();
                let values = values.map(|(label, state)| (label.as_str(), value(state)));
                samples.numbers(metric, values);
            };
            each(names::ACME_FAILURES, |state| state.failures);
            each(names::ACME_MISSING, |state| u32::from(!state.is_installed));
        })
    }
}
