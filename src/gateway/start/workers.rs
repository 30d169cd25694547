//! The proxy and its workers.

use std::io;
use std::sync::Arc;
use std::thread::JoinHandle;

use tollgate_chain::Limits;
use tollgate_memory::{MemoryBudget, Owner};
use tollgate_meter::MeterSettings;

use super::inputs::Inputs;
use super::modules::Modules;
use crate::config::{ListenAddress, Settings};
use crate::gateway::address::Address;
use crate::gateway::{StartError, routes};
use crate::proxy::{Generation, ListenSocket, Liveness, Proxy, ProxyDeps, spawn_workers};
use crate::upstream::{Providers, Resolver};

/// Maximum size of a provider's whole answer in bytes.
const ANSWER_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The proxy with workers that accept connections.
pub(super) struct Workers {
    pub(super) proxy: Arc<Proxy>,
    threads: Vec<JoinHandle<()>>,
    pub(super) liveness: Liveness,
    pub(super) addresses: Vec<Address>,
    /// Of the listeners, with their addresses in the settings.
    pub(super) sockets: Vec<(ListenAddress, ListenSocket)>,
}

impl Workers {
    /// Builds the chains of all routes and starts the workers.
    pub(super) fn start(
        inputs: &Inputs,
        modules: &mut Modules,
        resolver: Resolver,
    ) -> Result<Workers, StartError> {
        let settings = &inputs.settings;
        let proxy = Arc::new(proxy(inputs, modules, resolver)?);
        let (bound, relayed) = modules.storage.sockets.take();
        let addresses = bound.iter().map(|bound| Address {
            address: bound.address(),
            tls: bound.is_tls(),
        });
        let addresses = addresses.collect();
        let listeners = settings.listeners.iter().zip(&bound);
        let sockets = listeners
            .map(|(listener, bound)| Ok((listener.address.clone(), bound.socket()?)))
            .collect::<io::Result<_>>()
            .map_err(StartError::Threads)?;
        let bound = bound.into_iter().chain(relayed).collect();
        let (threads, liveness) = spawn_workers(&proxy, bound).map_err(StartError::Threads)?;
        Ok(Workers {
            proxy,
            threads,
            liveness,
            addresses,
            sockets,
        })
    }

    /// Stops the workers of a gateway whose start failed after theirs.
    pub(super) fn abort(self) {
        self.proxy.stop();
        for thread in self.threads {
            // A panicked worker has ended too, as intended here.
            let _ = thread.join();
        }
    }

    pub(super) fn take_threads(&mut self) -> Vec<JoinHandle<()>> {
        std::mem::take(&mut self.threads)
    }
}

fn proxy(inputs: &Inputs, modules: &Modules, resolver: Resolver) -> Result<Proxy, StartError> {
    let (settings, built, pages) = (&inputs.settings, &modules.built, &modules.pages);
    let filters = (&*built.filters, &built.services);
    let generation = Generation {
        version: 1,
        routes: routes::routes(settings, filters, pages, &inputs.telemetry)?,
        providers: Arc::new(Providers::new(settings, inputs.clock.clone(), resolver)),
        relayed_to: settings.sections.find().unwrap_or_default(),
    };
    let meter: MeterSettings = settings.sections.find().unwrap_or_default();
    Ok(Proxy::new(ProxyDeps {
        generation,
        challenges: modules.storage.sockets.challenges().clone(),
        pages: pages.clone(),
        telemetry: inputs.telemetry.clone(),
        clock: inputs.clock.clone(),
        entropy: inputs.entropy.clone(),
        limits: settings.server.limits,
        answer_limits: Limits {
            memory: memory_budget(settings),
            answer_bytes_max: ANSWER_BYTES_MAX,
            event_bytes_max: settings.server.event_bytes_max,
            drain: meter.drain,
            after_leaving: meter.after_leaving,
            keep_alive: settings.server.comment,
        },
        workers: settings.server.workers,
    }))
}

/// The memory for bodies and buffers of all requests.
fn memory_budget(settings: &Settings) -> MemoryBudget {
    let memory = settings.server.memory;
    let budget = MemoryBudget::new(memory.budget());
    tracing::info!(
        limit_bytes = memory.bytes_max,
        source = memory.source,
        budget_bytes = budget.bytes_max(),
        account_bytes_max = budget.share_max(Owner::Account([0; 16])),
        "sized memory budget of bodies and buffers"
    );
    budget
}
