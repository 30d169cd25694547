//! Generations: routes and providers, which a reload of the settings replaces as one value. A request keeps the generation that it began
//! with, so that its chain, its models and its providers are always of the same settings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::{ArcSwap, Guard};
use tollgate_filter::RelayUpstreams;

use super::routes::Routes;
use super::state::Proxy;
use crate::upstream::{Caller, Providers, Relays, TextViaChat};

/// What one version of the settings says of requests.
pub(crate) struct Generation {
    /// The version of the settings, from 1.
    pub(crate) version: u64,
    pub(crate) routes: Routes,
    pub(crate) providers: Arc<Providers>,
    /// The servers of relayed requests.
    pub(crate) relayed_to: RelayUpstreams,
}

/// A generation as one thread uses it: with the thread's connections to the providers.
pub(super) struct ThreadGeneration {
    pub(super) generation: Arc<Generation>,
    pub(super) calls: TextViaChat<Caller>,
}

/// The current generation of one thread. Each thread has its own, so that requests of different threads do not write to the same counter
/// of references.
pub(super) struct CurrentGeneration(ArcSwap<ThreadGeneration>);

impl CurrentGeneration {
    /// The current generation, with new connections.
    pub(super) fn new(proxy: &Proxy) -> CurrentGeneration {
        let generation = proxy.generation.load_full();
        let relays = Relays::new(
            &generation.relayed_to.0,
            generation.providers.addresses.clone(),
            proxy.clock.clone(),
            proxy.telemetry.clone(),
            proxy.state.draining.subscribe(),
        );
        let caller = Caller::new(
            generation.providers.clone(),
            proxy.clock.clone(),
            proxy.entropy.clone(),
            proxy.telemetry.clone(),
            relays,
        );
        let calls = TextViaChat::new(caller, proxy.answer_limits.clone());
        CurrentGeneration(ArcSwap::from_pointee(ThreadGeneration {
            generation,
            calls,
        }))
    }

    /// The current generation, for a request that begins.
    pub(super) fn get(&self, proxy: &Proxy) -> Arc<ThreadGeneration> {
        let current = self.0.load();
        if current.generation.version == proxy.version.load(Ordering::Acquire) {
            return Guard::into_inner(current);
        }
        self.renew(&current, proxy)
    }

    #[cold]
    fn renew(&self, current: &ThreadGeneration, proxy: &Proxy) -> Arc<ThreadGeneration> {
        let generation = proxy.generation.load_full();
        let providers = generation.providers.clone();
        let calls = &current.calls;
        let calls = calls.map(|caller| caller.with(providers, &generation.relayed_to.0));
        let renewed = Arc::new(ThreadGeneration { generation, calls });
        self.0.store(renewed.clone());
        renewed
    }
}

impl Proxy {
    /// The current generation.
    pub(crate) fn generation(&self) -> Arc<Generation> {
        self.generation.load_full()
    }

    /// Makes a generation the current one: requests that begin from now on use it.
    pub(crate) fn replace_generation(&self, generation: Generation) {
        let version = generation.version;
        self.generation.store(Arc::new(generation));
        // After the generation: a thread that reads this version finds it, or a later one.
        self.version.store(version, Ordering::Release);
    }
}
