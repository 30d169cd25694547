//! The model providers: the candidates of each model, and the catalog's record of the available models.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use tollgate_clock::Clock;
use tollgate_filter::{Catalog, Model};

use super::budget::Budget;
use super::candidate::{Candidate, HealthChange};
use super::circuit::State;
use super::provider::Provider;
use super::selection::{Candidates, Tier};
use crate::config;
use crate::upstream::transport::fault;

/// All model providers.
pub(crate) struct Providers {
    pub(super) list: Vec<Arc<Provider>>,
    /// The candidates by the id of the model.
    candidates: HashMap<Arc<str>, Candidates>,
    /// Every candidate, in the order of the catalog.
    pub(super) all: Vec<Arc<Candidate>>,
    catalog: Arc<Catalog>,
    pub(in crate::upstream) settings: config::Upstream,
    pub(super) clock: Clock,
}

impl Providers {
    pub(crate) fn new(
        list: &[Arc<config::Provider>],
        settings: config::Upstream,
        catalog: Arc<Catalog>,
        clock: Clock,
    ) -> Providers {
        let list: Vec<Arc<Provider>> = list
            .iter()
            .enumerate()
            .map(|(index, settings)| Arc::new(Provider::new(index, settings.clone())))
            .collect();
        let own = |model: &Model| -> Vec<Arc<Candidate>> {
            let set = model.providers.iter().filter_map(|at| {
                let provider = list.iter().find(|one| one.settings.name == at.provider)?;
                let candidate = Candidate::new(model.id.clone(), at.clone(), provider.clone());
                Some(Arc::new(candidate))
            });
            set.collect()
        };
        let by_model: HashMap<Arc<str>, Vec<Arc<Candidate>>> = catalog
            .models()
            .iter()
            .map(|model| (model.id.clone(), own(model)))
            .collect();
        let candidates = catalog.models().iter().map(|model| {
            let fallback = model.routing.fallback.iter();
            let fallback = fallback.filter_map(|id| catalog.get(id));
            let mut list: Vec<Arc<Candidate>> = Vec::new();
            let mut tiers = Vec::new();
            for one in std::iter::once(model).chain(fallback) {
                let first = list.len();
                list.extend(by_model.get(&one.id).into_iter().flatten().cloned());
                let set = (first..list.len()).fold(0, |set, at| set | (1 << at));
                tiers.push(Tier {
                    members: set,
                    choice: one.routing.choice,
                });
            }
            let candidates = Candidates::new(list, tiers, Budget::new(settings.budget));
            (model.id.clone(), candidates)
        });
        let candidates = candidates.collect();
        let models = catalog.models().iter();
        let all = models.filter_map(|model| by_model.get(&model.id));
        Providers {
            all: all.flatten().cloned().collect(),
            list,
            candidates,
            catalog,
            settings,
            clock,
        }
    }

    /// The candidates for this model.
    pub(in crate::upstream) fn candidates(&self, model: &str) -> Option<&Candidates> {
        self.candidates.get(model)
    }

    /// Whether any provider needs Pingora's connector, which loads the system's roots.
    pub(in crate::upstream) fn any_needs_connector(&self) -> bool {
        self.list
            .iter()
            .any(|provider| provider.endpoint.needs_connector())
    }

    /// Updates the catalog with the available models.
    pub(super) fn update_catalog(&self) {
        let now = self.clock.elapsed().as_micros() as u64;
        for model in self.catalog.models() {
            let candidates = self.candidates.get(&model.id);
            let available = candidates.is_some_and(|candidates| candidates.any_available(now));
            model.working.store(available, Ordering::Relaxed);
        }
    }

    /// Publishes a change of health.
    pub(in crate::upstream) fn publish(&self, candidate: &Candidate, change: HealthChange) {
        candidate.log(change);
        if matches!(change, HealthChange::Closed | HealthChange::Opened) {
            self.update_catalog();
        }
    }

    /// A provider's message, with the gateway's key redacted.
    pub(crate) fn redact(&self, provider: Option<&str>, message: String) -> String {
        let named = |one: &&Arc<Provider>| provider == Some(&*one.settings.name);
        let key = self.list.iter().find(named);
        match key.and_then(|one| one.settings.api_key.as_ref()) {
            Some(key) => fault::redact(&message, key),
            None => message,
        }
    }

    /// A sentence for each provider and candidate that is unhealthy.
    pub(crate) fn failing(&self) -> Vec<String> {
        let now = self.clock.elapsed().as_micros() as u64;
        let is_healthy = |one: &Provider| one.circuit.state(now) == State::Closed;
        let unhealthy = self.list.iter().filter(|one| !is_healthy(one));
        let unhealthy = unhealthy.map(|one| {
            format!(
                "provider `{}` is unhealthy: its circuit is not closed",
                one.settings.name
            )
        });
        let candidates = self.all.iter();
        let candidates = candidates
            .filter(|one| is_healthy(&one.provider) && one.health.state(now) != State::Closed);
        let candidates = candidates.map(|one| {
            let provider = &one.provider.settings.name;
            format!(
                "model `{}` at provider `{provider}` is unhealthy: its circuit is not closed",
                one.model
            )
        });
        unhealthy.chain(candidates).collect()
    }
}
