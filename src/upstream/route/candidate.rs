//! A candidate, a model at one provider: the circuits, the limits set by the provider, and the effects of a failure or a success.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;
use tollgate_filter::ProviderModel;

use super::circuit::State;
use super::evidence::{Account, Failure};
use super::health::{CandidateHealth, Opened, Trials};
use super::provider::Provider;

/// Time of avoidance after a rate limit without `Retry-After`: the provider is called only when no other can serve.
const AVOIDED_FOR: Duration = Duration::from_secs(1);

/// A candidate: a model at one provider.
pub(in crate::upstream) struct Candidate {
    pub(in crate::upstream) provider: Arc<Provider>,
    pub(in crate::upstream) target: ProviderModel,
    /// The model's name for clients.
    pub(in crate::upstream) model: Arc<str>,
    pub(super) health: Arc<CandidateHealth>,
    /// The end of `Retry-After` with which the provider rate-limits the gateway.
    limited_until: AtomicU64,
    /// End of the avoidance after a rate limit without `Retry-After`, or a failure with `Retry-After`: until then the candidate is called
    /// only when no other can serve.
    avoided_until: AtomicU64,
}

/// Circuits that count a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum FailureScope {
    /// No circuit: the request is invalid, or the provider is overloaded, without evidence about the model.
    NotCounted,
    /// The circuits of the model at this provider. A request can cause the failure, so the failure counts for the account first, and for
    /// all accounts only with more evidence.
    Candidate,
    /// The circuit of the provider, for all models and accounts: no request can cause the failure.
    Provider,
    /// [`Provider`](Self::Provider), opened by one failure: a repetition gives an equal result.
    ProviderImmediate,
    /// [`ProviderImmediate`](Self::ProviderImmediate) for want of money in the account at the provider. Probes are free, so a successful
    /// probe does not close the circuit.
    ProviderUnpaid,
}

/// A change of health for the operators' log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum HealthChange {
    None,
    /// A circuit closed for all accounts.
    Closed,
    /// The circuit of this account opened.
    OpenedForAccount(Account),
    /// A circuit opened for all accounts.
    Opened,
    /// The circuit of the provider is open for want of money in the account there.
    Unpaid,
}

impl Candidate {
    pub(super) fn new(
        model: Arc<str>,
        target: ProviderModel,
        provider: Arc<Provider>,
        known: Option<&Arc<Candidate>>,
    ) -> Candidate {
        let until = |time: fn(&Candidate) -> &AtomicU64| {
            AtomicU64::new(known.map_or(0, |known| time(known).load(Relaxed)))
        };
        Candidate {
            provider,
            target,
            model,
            health: known.map_or_else(Arc::default, |known| known.health.clone()),
            limited_until: until(|known| &known.limited_until),
            avoided_until: until(|known| &known.avoided_until),
        }
    }

    /// Whether the health of this candidate continues for `target` at a provider of new settings.
    pub(super) fn continues_as(&self, target: &ProviderModel, provider: &Provider) -> bool {
        self.target.model == target.model && Arc::ptr_eq(&self.provider.circuit, &provider.circuit)
    }

    /// Whether the candidate may be called: its provider does not rate-limit the gateway.
    pub(super) fn is_callable(&self, now: u64) -> bool {
        self.limited_until.load(Relaxed) <= now
    }

    /// Whether the candidate is preferred for this account: no circuit, limit or `Retry-After` prevents a call.
    pub(in crate::upstream) fn is_ready(&self, account: Account, now: u64) -> bool {
        let settings = &self.provider.circuit_settings;
        self.is_callable(now)
            && self.avoided_until.load(Relaxed) <= now
            && self.health.admits(account, now, settings)
            && self.provider.circuit.admits(now, settings)
    }

    /// Whether the model is reported to clients as available here. The candidate's circuits do not matter: circuits never remove the last
    /// candidate.
    pub(super) fn is_available(&self, now: u64) -> bool {
        !matches!(self.provider.circuit.state(now), State::Open(_))
    }

    /// Records a rate limit of the provider on the gateway; `wait` is the `Retry-After`.
    pub(in crate::upstream) fn record_rate_limit(&self, now: u64, wait: Option<Duration>) {
        let end = |wait: Duration| now.saturating_add(wait.as_micros() as u64);
        match wait {
            Some(wait) => self.limited_until.fetch_max(end(wait), Relaxed),
            None => self.avoided_until.fetch_max(end(AVOIDED_FOR), Relaxed),
        };
    }

    /// Records `Retry-After` with a failure for a request of this account. A request can cause the answer, so the answer affects only the
    /// choice among candidates, and, like other failures, the account first.
    pub(in crate::upstream) fn record_retry_after(
        &self,
        account: Account,
        now: u64,
        wait: Duration,
    ) {
        let (provider, settings) = (&self.provider, &self.provider.circuit_settings);
        let probe_failed = provider.probe_failed.load(Relaxed);
        if self
            .health
            .record_retry_after(account, now, wait, probe_failed, settings)
        {
            let until = now.saturating_add(wait.as_micros() as u64);
            self.avoided_until.fetch_max(until, Relaxed);
        }
    }

    /// The end of the rate limit set by the provider.
    pub(super) fn limited_until(&self) -> u64 {
        self.limited_until.load(Relaxed)
    }

    /// End of the time without calls, or with calls only when no other can serve; for operators.
    pub(super) fn deferred_until(&self, now: u64) -> Option<u64> {
        let limited = self.limited_until.load(Relaxed);
        let until = limited.max(self.avoided_until.load(Relaxed));
        (until > now).then_some(until)
    }

    /// Logs a change for the operator.
    pub(in crate::upstream) fn log(&self, change: HealthChange) {
        let (provider, model) = (&*self.provider.settings.name, &*self.model);
        match change {
            HealthChange::None => {}
            HealthChange::Closed => {
                tracing::warn!(provider, model, "closed circuit: a request succeeded");
            }
            HealthChange::OpenedForAccount(account) => tracing::warn!(
                provider,
                model,
                account = account.map(tracing::field::display),
                "opened circuit for one account: its requests failed"
            ),
            HealthChange::Opened => tracing::error!(
                provider,
                model,
                "opened circuit for all accounts: calls failed"
            ),
            HealthChange::Unpaid => tracing::error!(
                provider,
                "opened circuit for all accounts: the account at the provider has no money; add credit there"
            ),
        }
    }

    /// Records the failure of a call in the circuits of its scope.
    pub(super) fn record_failure(
        &self,
        scope: FailureScope,
        failure: Failure,
        trials: &Trials,
        is_provider_trial: bool,
    ) -> HealthChange {
        let (provider, settings) = (&self.provider, &self.provider.circuit_settings);
        let opened = match scope {
            // The provider is reachable and accepts the key; whether it can serve a valid request is still unknown.
            FailureScope::NotCounted if provider.record_success() => {
                return HealthChange::Closed;
            }
            FailureScope::NotCounted => false,
            FailureScope::Candidate => {
                let probe_failed = provider.probe_failed.load(Relaxed);
                let opened = self
                    .health
                    .record_failure(failure, trials, probe_failed, settings);
                match opened {
                    Opened::None => false,
                    Opened::Account => return HealthChange::OpenedForAccount(failure.account),
                    Opened::All => true,
                }
            }
            FailureScope::Provider => {
                provider
                    .circuit
                    .record_failure(failure.at, is_provider_trial, settings)
            }
            FailureScope::ProviderImmediate => provider.circuit.open(failure.at, settings),
            FailureScope::ProviderUnpaid => {
                // Before the circuit opens, which a success of another call may close at any time.
                let is_known = provider.is_unpaid.swap(true, Relaxed);
                if provider.circuit.open(failure.at, settings) || !is_known {
                    return HealthChange::Unpaid;
                }
                false
            }
        };
        if opened {
            HealthChange::Opened
        } else {
            HealthChange::None
        }
    }

    /// Records a success in the circuits.
    pub(super) fn record_success(&self, account: Account, now: u64) -> HealthChange {
        let provider = self.provider.record_success();
        if self.health.record_success(account, now) || provider {
            HealthChange::Closed
        } else {
            HealthChange::None
        }
    }
}
