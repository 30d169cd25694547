//! One model provider: endpoint, circuit, capacity and counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::admission::ConcurrencyLimit;
use super::circuit::{Circuit, CircuitSettings};
use crate::config;
use crate::upstream::transport::{Addresses, Endpoint};

/// One model provider.
pub(in crate::upstream) struct Provider {
    pub(in crate::upstream) endpoint: Endpoint,
    pub(in crate::upstream) settings: Arc<config::Provider>,
    /// Opens on failures that no request can cause: no connection, no TLS, a rejected key, no money, a failed probe.
    pub(super) circuit: Arc<Circuit>,
    /// Whether the last probe failed.
    pub(super) probe_failed: Arc<AtomicBool>,
    /// Whether the circuit is open because the gateway's account there has no money.
    pub(super) is_unpaid: Arc<AtomicBool>,
    pub(super) circuit_settings: CircuitSettings,
    pub(in crate::upstream) concurrency: Arc<ConcurrencyLimit>,
    pub(in crate::upstream) counts: Arc<Counts>,
}

/// Counters of a provider besides the counts of calls.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Counts {
    /// Failures followed by another attempt.
    pub(in crate::upstream) followed: AtomicU64,
    /// Failures without another attempt, because of the budget.
    pub(in crate::upstream) refused: AtomicU64,
    /// Hedged requests answered first by this provider, and the rest.
    pub(in crate::upstream) hedges_won: AtomicU64,
    pub(in crate::upstream) hedges_lost: AtomicU64,
}

impl Counts {
    /// Counts a failure by whether another attempt follows.
    pub(in crate::upstream) fn record_further_attempt(&self, follows: bool) -> bool {
        let counter = if follows {
            &self.followed
        } else {
            &self.refused
        };
        counter.fetch_add(1, Ordering::Relaxed);
        follows
    }
}

impl Provider {
    /// Records a successful call, or a call that proves the provider would succeed. `true` when the circuit was not closed.
    pub(super) fn record_success(&self) -> bool {
        let closed = self.circuit.record_success();
        if closed {
            self.is_unpaid.store(false, Ordering::Relaxed);
        }
        closed
    }

    /// A provider. `known`: the provider of this name in the earlier settings. Its counters continue always, its permits under an equal
    /// limit, and its circuit at an equal address with an equal key.
    pub(super) fn new(
        index: usize,
        settings: Arc<config::Provider>,
        known: Option<&Provider>,
        addresses: Arc<Addresses>,
    ) -> Provider {
        let health = &settings.health;
        let circuit_settings = CircuitSettings {
            failures: health.failures,
            window: health.window,
            cooldown: health.cooldown,
            trial_requests: health.trial_requests,
        };
        let place = known.filter(|known| known.settings.has_place_of(&settings));
        Provider {
            concurrency: known
                .filter(|known| known.settings.concurrency == settings.concurrency)
                .map_or_else(
                    || Arc::new(ConcurrencyLimit::new(settings.concurrency)),
                    |known| known.concurrency.clone(),
                ),
            circuit: place.map_or_else(Arc::default, |known| known.circuit.clone()),
            probe_failed: place.map_or_else(Arc::default, |known| known.probe_failed.clone()),
            is_unpaid: place.map_or_else(Arc::default, |known| known.is_unpaid.clone()),
            counts: known.map_or_else(Arc::default, |known| known.counts.clone()),
            endpoint: Endpoint::new(index, settings.clone(), addresses),
            settings,
            circuit_settings,
        }
    }
}
