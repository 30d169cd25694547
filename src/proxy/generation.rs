//! Generations: routes and providers, replaced as one value by a reload of the settings. A request keeps the generation of its start, so
//! its chain, models and providers always belong to one version of the settings.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use arc_swap::{ArcSwap, Guard};
use tollgate_filter::RelayUpstreams;

use super::routes::Routes;
use super::state::Proxy;
use crate::upstream::{Caller, Providers, Relays, TextViaChat};

/// Routes and providers of one version of the settings.
pub(crate) struct Generation {
    /// The version of the settings, from 1.
    pub(crate) version: u64,
    pub(crate) routes: Routes,
    pub(crate) providers: Arc<Providers>,
    /// The servers of relayed requests.
    pub(crate) relayed_to: RelayUpstreams,
}

/// A generation in one thread's use: with the thread's connections to the providers.
pub(super) struct ThreadGeneration {
    pub(super) generation: Arc<Generation>,
    pub(super) calls: TextViaChat<Caller>,
}

/// The current generation of one thread. A generation per thread keeps requests of different threads from writing to a shared counter of
/// references.
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

    /// Makes a generation current: requests from now on use the new generation.
    pub(crate) fn replace_generation(&self, generation: Generation) {
        let version = generation.version;
        self.generation.store(Arc::new(generation));
        // Stored after the generation: a thread that reads this version finds this generation or a later one.
        self.version.store(version, Ordering::Release);
    }
}
