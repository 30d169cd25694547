//! Provider status: circuits, queues and counters of the providers, for operators and the metrics.

use std::sync::atomic::Ordering::Relaxed;

use serde::{Deserialize, Serialize};

use super::circuit::State;
use super::providers::Providers;

/// The state of one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ProviderView {
    /// The name in the settings.
    pub(crate) name: String,
    /// The circuit: `working` (closed), `half_open` (trial requests are admitted) or `resting` (open).
    pub(crate) state: String,
    /// Milliseconds until an open circuit is half-open.
    #[serde(rename = "rests_ms")]
    pub(crate) open_ms: u64,
    /// Whether the last probe failed.
    #[serde(default)]
    pub(crate) probe_failed: bool,
    /// Calls under way.
    pub(crate) calls: u32,
    /// Requests that wait for a permit.
    pub(crate) waiting: u32,
    /// Requests that waited and received a permit.
    pub(crate) waited: u64,
    /// Their total wait in microseconds.
    pub(crate) waited_us: u64,
    /// Requests rejected by a full queue or timed out in the queue.
    #[serde(rename = "turned_away")]
    pub(crate) rejected: u64,
    /// Failures followed by another attempt.
    pub(crate) followed: u64,
    /// Failures without another attempt, because of the budget.
    pub(crate) not_followed: u64,
    /// Hedged requests answered first by this provider.
    pub(crate) hedges_won: u64,
    /// Hedged requests answered first by another provider.
    pub(crate) hedges_lost: u64,
    /// The served models.
    pub(crate) models: Vec<CandidateView>,
}

/// The state of one model at one provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CandidateView {
    /// The name for clients.
    pub(crate) model: String,
    /// The name at the provider.
    pub(crate) provider_model: String,
    /// The share of the calls.
    pub(crate) weight: u32,
    /// The circuit for all accounts: `working`, `half_open` or `resting`, without the circuit of the provider as a whole.
    pub(crate) state: String,
    /// Milliseconds until an open circuit is half-open.
    #[serde(rename = "rests_ms")]
    pub(crate) open_ms: u64,
    /// Number of accounts with an open circuit for the account alone.
    #[serde(default)]
    pub(crate) accounts_open: usize,
    /// Milliseconds left of the provider's `Retry-After` or rate limit.
    #[serde(rename = "closed_ms")]
    pub(crate) deferred_ms: u64,
}

/// The name of a state, and the milliseconds until an open circuit is half-open.
fn describe(state: State, now: u64) -> (String, u64) {
    let open_ms = match state {
        State::Open(until) => (until - now).div_ceil(1000),
        State::Closed | State::HalfOpen => 0,
    };
    (state.name().to_owned(), open_ms)
}

impl Providers {
    /// The state of all providers, in the order of the settings.
    pub(crate) fn view(&self) -> Vec<ProviderView> {
        let now = self.clock.elapsed().as_micros() as u64;
        let models = |index| {
            let candidates = self.all.iter();
            let candidates =
                candidates.filter(|candidate| candidate.provider.endpoint.index == index);
            let view = candidates.map(|candidate| {
                let (state, open_ms) = describe(candidate.health.state(now), now);
                let deferred = candidate.deferred_until(now);
                CandidateView {
                    model: candidate.model.to_string(),
                    provider_model: candidate.target.model.to_string(),
                    weight: candidate.target.weight,
                    state,
                    open_ms,
                    accounts_open: candidate.health.accounts_open(now),
                    deferred_ms: deferred.map_or(0, |until| (until - now).div_ceil(1000)),
                }
            });
            view.collect()
        };
        let view = self.list.iter().map(|provider| {
            let (state, open_ms) = describe(provider.circuit.state(now), now);
            let (queue, counts) = (provider.concurrency.queue_counts(), &provider.counts);
            ProviderView {
                name: provider.settings.name.to_string(),
                state,
                open_ms,
                probe_failed: provider.probe_failed.load(Relaxed),
                calls: provider.concurrency.calls(),
                waiting: queue.waiting,
                waited: queue.waited,
                waited_us: queue.waited_micros,
                rejected: queue.rejected,
                followed: counts.followed.load(Relaxed),
                not_followed: counts.refused.load(Relaxed),
                hedges_won: counts.hedges_won.load(Relaxed),
                hedges_lost: counts.hedges_lost.load(Relaxed),
                models: models(provider.endpoint.index),
            }
        });
        view.collect()
    }
}
