//! One model provider: its endpoint, its circuit, its capacity and its counters.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use super::admission::ConcurrencyLimit;
use super::circuit::{Circuit, CircuitSettings};
use crate::config;
use crate::upstream::transport::Endpoint;

/// One model provider.
pub(in crate::upstream) struct Provider {
    pub(in crate::upstream) endpoint: Endpoint,
    pub(in crate::upstream) settings: Arc<config::Provider>,
    /// Opens on failures that no request can cause: no connection, no TLS, a rejected key, a failed probe.
    pub(super) circuit: Circuit,
    /// Whether the last probe failed.
    pub(super) probe_failed: AtomicBool,
    pub(super) circuit_settings: CircuitSettings,
    pub(in crate::upstream) concurrency: ConcurrencyLimit,
    pub(in crate::upstream) counts: Counts,
}

/// Counters of a provider besides those of its calls.
#[derive(Debug, Default)]
pub(in crate::upstream) struct Counts {
    /// Failures that were followed by another attempt.
    pub(in crate::upstream) followed: AtomicU64,
    /// Failures that the budget kept from being followed by another attempt.
    pub(in crate::upstream) refused: AtomicU64,
    /// Hedged requests that this provider answered first, and those that it did not.
    pub(in crate::upstream) hedges_won: AtomicU64,
    pub(in crate::upstream) hedges_lost: AtomicU64,
}

impl Counts {
    /// Counts a failure by whether another attempt follows it.
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
    pub(super) fn new(index: usize, settings: Arc<config::Provider>) -> Provider {
        let health = &settings.health;
        let circuit_settings = CircuitSettings {
            failures: health.failures,
            window: health.window,
            cooldown: health.cooldown,
            trial_requests: health.trial_requests,
        };
        Provider {
            endpoint: Endpoint::new(index, settings.clone()),
            concurrency: ConcurrencyLimit::new(settings.concurrency),
            settings,
            circuit: Circuit::default(),
            probe_failed: AtomicBool::new(false),
            circuit_settings,
            counts: Counts::default(),
        }
    }
}
