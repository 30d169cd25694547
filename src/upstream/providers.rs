//! The model providers: address resolution, the candidates of each model, and the catalog's record of the available models.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora_core::protocols::ALPN;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use secrecy::ExposeSecret;
use tokio::task::JoinSet;
use tollgate_clock::Clock;
use tollgate_filter::{Catalog, Model};

use super::admission::ConcurrencyLimit;
use super::budget::Budget;
use super::candidate::{Candidate, Candidates, HealthChange, Tier};
use super::circuit::{Circuit, CircuitSettings, State};
use super::fault;
use super::h1::Heads;
use super::probe;
use crate::config;

/// How often names are resolved again.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);

/// How often the catalog is updated with the available models.
const CATALOG_INTERVAL: Duration = Duration::from_secs(1);

/// A DNS lookup that takes longer has failed.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// All model providers.
pub(crate) struct Providers {
    pub(super) list: Vec<Arc<Provider>>,
    /// The candidates by the id of the model.
    candidates: HashMap<Arc<str>, Candidates>,
    /// Every candidate, in the order of the catalog.
    pub(super) all: Vec<Arc<Candidate>>,
    catalog: Arc<Catalog>,
    pub(super) settings: config::Upstream,
    pub(super) clock: Clock,
}

/// One model provider.
pub(crate) struct Provider {
    pub(super) index: usize,
    pub(super) settings: Arc<config::Provider>,
    /// The value of `Authorization`, ready to be sent.
    pub(super) authorization: Option<http::HeaderValue>,
    /// The heads of calls on plain connections.
    pub(super) heads: Heads,
    peers: ArcSwap<Vec<Arc<HttpPeer>>>,
    next: AtomicU32,
    /// Opens on failures that no request can cause: no connection, no TLS, a rejected key, a failed probe.
    pub(super) circuit: Circuit,
    /// Whether the last probe failed.
    pub(super) probe_failed: AtomicBool,
    pub(super) circuit_settings: CircuitSettings,
    pub(super) concurrency: ConcurrencyLimit,
    pub(super) counts: Counts,
}

/// Counters of a provider besides those of its calls.
#[derive(Debug, Default)]
pub(super) struct Counts {
    /// Failures that were followed by another attempt.
    pub(super) followed: AtomicU64,
    /// Failures that the budget kept from being followed by another attempt.
    pub(super) refused: AtomicU64,
    /// Hedged requests that this provider answered first, and those that it did not.
    pub(super) hedges_won: AtomicU64,
    pub(super) hedges_lost: AtomicU64,
}

impl Counts {
    /// Counts a failure by whether another attempt follows it.
    pub(super) fn record_further_attempt(&self, follows: bool) -> bool {
        let counter = if follows {
            &self.followed
        } else {
            &self.refused
        };
        counter.fetch_add(1, Ordering::Relaxed);
        follows
    }
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
    pub(super) fn candidates(&self, model: &str) -> Option<&Candidates> {
        self.candidates.get(model)
    }

    /// Whether any provider needs Pingora's connector, which loads the system's roots.
    pub(super) fn any_needs_connector(&self) -> bool {
        self.list.iter().any(|provider| provider.needs_connector())
    }

    /// Resolves names again, probes providers, and updates the catalog with the available models, until dropped.
    pub(crate) async fn run_maintenance(self: Arc<Self>) {
        let mut tasks = JoinSet::new();
        for provider in &self.list {
            tasks.spawn(refresh_addresses(provider.clone()));
            if let Some(probe) = &provider.settings.health.probe {
                let (all, provider) = (self.clone(), provider.clone());
                tasks.spawn(probe::run(all, provider, probe.clone()));
            }
        }
        loop {
            self.update_catalog();
            tokio::time::sleep(CATALOG_INTERVAL).await;
        }
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
    pub(super) fn publish(&self, candidate: &Candidate, change: HealthChange) {
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

/// Resolves a provider's name periodically, until dropped.
async fn refresh_addresses(provider: Arc<Provider>) {
    loop {
        if let Err(error) = provider.resolve().await {
            let provider = &*provider.settings.name;
            tracing::warn!(provider, %error, "resolving provider name failed");
        }
        tokio::time::sleep(RESOLVE_INTERVAL).await;
    }
}

impl Provider {
    fn new(index: usize, settings: Arc<config::Provider>) -> Provider {
        let authorization = settings.api_key.as_ref().map(|key| {
            let mut value = http::HeaderValue::try_from(format!("Bearer {}", key.expose_secret()))
                .expect("a provider key is checked to be visible ASCII");
            value.set_sensitive(true);
            value
        });
        let health = &settings.health;
        let circuit_settings = CircuitSettings {
            failures: health.failures,
            window: health.window,
            cooldown: health.cooldown,
            trial_requests: health.trial_requests,
        };
        let url = &settings.base_url;
        Provider {
            index,
            heads: Heads::new(&url.path, &url.authority, authorization.as_ref()),
            concurrency: ConcurrencyLimit::new(settings.concurrency),
            settings,
            authorization,
            peers: ArcSwap::default(),
            next: AtomicU32::new(0),
            circuit: Circuit::default(),
            probe_failed: AtomicBool::new(false),
            circuit_settings,
            counts: Counts::default(),
        }
    }

    /// Whether it is reached through Pingora's connector rather than a plain socket.
    pub(super) fn needs_connector(&self) -> bool {
        self.settings.base_url.tls || self.settings.http2
    }

    /// An address to call, round robin; resolved if none is known yet.
    pub(super) async fn peer(&self) -> std::io::Result<Arc<HttpPeer>> {
        if let Some(peer) = self.next_peer() {
            return Ok(peer);
        }
        Box::pin(self.resolve()).await?;
        self.next_peer()
            .ok_or_else(|| std::io::Error::other("the name has no address"))
    }

    /// The number of its known addresses.
    pub(super) fn addresses(&self) -> u32 {
        self.peers.load().len() as u32
    }

    fn next_peer(&self) -> Option<Arc<HttpPeer>> {
        let peers = self.peers.load();
        match peers.len() {
            0 => None,
            1 => Some(peers[0].clone()),
            many => {
                let turn = self.next.fetch_add(1, Ordering::Relaxed) as usize;
                Some(peers[turn % many].clone())
            }
        }
    }

    /// Resolves the name without blocking a worker thread; keeps the known addresses when the lookup fails.
    async fn resolve(&self) -> std::io::Result<()> {
        let url = &self.settings.base_url;
        let lookup = tokio::net::lookup_host((url.host.as_str(), url.port));
        let found = tokio::time::timeout(LOOKUP_MAX, lookup).await??;
        let mut addresses: Vec<SocketAddr> = found.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let known = self.peers.load();
        let same = known.len() == addresses.len()
            && known
                .iter()
                .zip(&addresses)
                .all(|(peer, address)| peer_address(peer) == Some(*address));
        if !addresses.is_empty() && !same {
            let peers = addresses
                .into_iter()
                .map(|address| Arc::new(self.peer_at(address)));
            self.peers.store(Arc::new(peers.collect()));
        }
        Ok(())
    }

    fn peer_at(&self, address: SocketAddr) -> HttpPeer {
        let settings = &*self.settings;
        let url = &settings.base_url;
        let mut peer = HttpPeer::new(address, url.tls, url.host.clone());
        let options = &mut peer.options;
        options.connection_timeout = Some(settings.timeouts.connect);
        options.total_connection_timeout = Some(settings.timeouts.connect);
        options.idle_timeout = Some(Duration::from_secs(60));
        options.alpn = match (settings.http2, url.tls) {
            (false, _) => ALPN::H1,
            (true, true) => ALPN::H2H1,
            (true, false) => ALPN::H2,
        };
        options.max_h2_streams = 100;
        if let Some(roots) = &settings.roots {
            let roots = roots
                .iter()
                .map(|root| WrappedX509::new(root.to_vec(), parse_x509));
            options.ca = Some(roots.collect());
        }
        peer
    }
}

/// The internet address of a peer; every peer here has one.
pub(super) fn peer_address(peer: &HttpPeer) -> Option<SocketAddr> {
    use pingora_core::upstreams::peer::Peer;
    peer.address().as_inet().copied()
}
