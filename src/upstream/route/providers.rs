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
use crate::upstream::transport::{Addresses, Resolver, fault};

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
    /// The addresses of all called names, including relayed requests.
    pub(crate) addresses: Arc<Addresses>,
    /// The index of the next new provider: the key of connections in pools, so no index is given twice.
    next_index: usize,
}

impl Providers {
    pub(crate) fn new(settings: &config::Settings, clock: Clock, resolver: Resolver) -> Providers {
        let addresses = Arc::new(Addresses::new(resolver, clock.clone()));
        Providers::build(settings, clock, addresses, None)
    }

    /// The providers of new settings. Connections, circuits, permits, retry budgets and counters continue where their settings are
    /// unchanged. The memory of failed addresses continues too.
    pub(crate) fn successor(&self, settings: &config::Settings) -> Providers {
        let (clock, addresses) = (self.clock.clone(), self.addresses.clone());
        Providers::build(settings, clock, addresses, Some(self))
    }

    fn build(
        config: &config::Settings,
        clock: Clock,
        addresses: Arc<Addresses>,
        previous: Option<&Providers>,
    ) -> Providers {
        let (catalog, settings) = (config.catalog.clone(), config.upstream);
        let mut next_index = previous.map_or(0, |previous| previous.next_index);
        let mut make = |settings: &Arc<config::Provider>| {
            let known = previous.into_iter().flat_map(|previous| &previous.list);
            let known = known
                .into_iter()
                .find(|one| one.settings.name == settings.name);
            if let Some(same) = known.filter(|one| one.settings.is_same(settings)) {
                return same.clone();
            }
            next_index += 1;
            let known = known.map(|known| &**known);
            let (index, addresses) = (next_index - 1, addresses.clone());
            Arc::new(Provider::new(index, settings.clone(), known, addresses))
        };
        let list: Vec<Arc<Provider>> = config.providers.iter().map(&mut make).collect();
        let own = |model: &Model| -> Vec<Arc<Candidate>> {
            let set = model.providers.iter().filter_map(|at| {
                let provider = list.iter().find(|one| one.settings.name == at.provider)?;
                let known = previous.into_iter().flat_map(|previous| &previous.all);
                let mut known = known.filter(|one| one.model == model.id);
                let known = known.find(|one| one.continues_as(at, provider));
                let candidate =
                    Candidate::new(model.id.clone(), at.clone(), provider.clone(), known);
                Some(Arc::new(candidate))
            });
            set.collect()
        };
        let budget = |model: &Model| {
            let known = previous.filter(|previous| previous.settings.budget == settings.budget);
            let known = known.and_then(|previous| previous.candidates(&model.id));
            known.map_or_else(
                || Arc::new(Budget::new(settings.budget)),
                |known| known.budget.clone(),
            )
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
            let candidates = Candidates::new(list, tiers, budget(model));
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
            addresses,
            next_index,
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
        let of_all = [
            HealthChange::Closed,
            HealthChange::Opened,
            HealthChange::Unpaid,
        ];
        if of_all.contains(&change) {
            self.update_catalog();
        }
    }

    /// A provider's message, without the gateway's key and without ids of its account at the provider.
    pub(crate) fn redact(&self, provider: Option<&str>, message: String) -> String {
        let named = |one: &&Arc<Provider>| provider == Some(&*one.settings.name);
        let key = self.list.iter().find(named);
        fault::redact(&message, key.and_then(|one| one.settings.api_key.as_ref()))
    }

    /// A sentence for each unhealthy provider and candidate.
    pub(crate) fn failing(&self) -> Vec<String> {
        let now = self.clock.elapsed().as_micros() as u64;
        let is_healthy = |one: &Provider| one.circuit.state(now) == State::Closed;
        let unhealthy = self.list.iter().filter(|one| !is_healthy(one));
        let unhealthy = unhealthy.map(|one| {
            let name = &one.settings.name;
            match one.is_unpaid.load(Ordering::Relaxed) {
                true => format!(
                    "provider `{name}` refuses requests: the account there has no money; add credit there"
                ),
                false => format!("provider `{name}` is unhealthy: its circuit is not closed"),
            }
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
