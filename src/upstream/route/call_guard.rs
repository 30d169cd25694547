//! The guard of a call under way: the permit and the trial requests, with the record of the call's end.

use std::sync::Arc;

use super::admission::Permit;
use super::candidate::{Candidate, FailureScope, HealthChange};
use super::evidence::{Account, Failure};
use super::health::Trials;

/// The properties of a request that select a candidate.
#[derive(Clone, Copy, Debug)]
pub(in crate::upstream) struct SelectionInput {
    pub(in crate::upstream) account: Account,
    pub(in crate::upstream) now: u64,
}

/// Circuits of a candidate for a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum CircuitUse {
    /// Every circuit; a half-open circuit admits the request as a trial request.
    All,
    /// No other candidate is left: only the provider's circuit applies, which no request can open.
    LastResort,
}

/// The guard of a call under way: the permit and the trial requests, released on drop.
pub(in crate::upstream) struct CallGuard {
    pub(in crate::upstream) candidate: Arc<Candidate>,
    account: Account,
    _permit: Permit,
    circuit_use: CircuitUse,
    /// Whether the call is a trial request for the circuit of the provider.
    is_provider_trial: bool,
    trials: Trials,
}

impl CallGuard {
    /// Starts a call, if the circuits admit the call. A circuit other than closed admits a bounded number of trial requests.
    pub(in crate::upstream) fn start(
        candidate: &Arc<Candidate>,
        permit: Permit,
        input: &SelectionInput,
        circuit_use: CircuitUse,
    ) -> Option<CallGuard> {
        let SelectionInput { account, now } = *input;
        let settings = &candidate.provider.circuit_settings;
        let is_provider_trial = candidate.provider.circuit.start_call(settings)?;
        let trials = match circuit_use {
            CircuitUse::All => candidate.health.start_call(account, now, settings),
            CircuitUse::LastResort => Some(Trials::default()),
        };
        let Some(trials) = trials else {
            if is_provider_trial {
                candidate.provider.circuit.end_trial();
            }
            return None;
        };
        candidate.provider.concurrency.call_started();
        candidate.health.note_activity(account, now);
        Some(CallGuard {
            candidate: candidate.clone(),
            account,
            _permit: permit,
            circuit_use,
            is_provider_trial,
            trials,
        })
    }

    /// Whether the call started as an ordinary call: neither a trial request nor a last resort.
    pub(in crate::upstream) fn is_ordinary(&self) -> bool {
        self.circuit_use == CircuitUse::All && !self.is_trial()
    }

    fn is_trial(&self) -> bool {
        self.is_provider_trial || self.trials.is_any()
    }

    /// The provider has started to answer. A trial request has its result; whether the answer is complete is another question.
    pub(in crate::upstream) fn answer_started(&mut self, now: u64) -> HealthChange {
        let change = if self.is_trial() {
            self.candidate.record_success(self.account, now)
        } else {
            HealthChange::None
        };
        self.end_trials();
        change
    }

    /// The answer is complete.
    pub(in crate::upstream) fn answer_ended(&mut self, now: u64) {
        self.candidate.health.note_activity(self.account, now);
        let change = self.candidate.record_success(self.account, now);
        self.candidate.log(change);
    }

    /// The call has failed; `body` was sent to the provider.
    pub(in crate::upstream) fn call_failed(
        &mut self,
        scope: FailureScope,
        body: &[u8],
        now: u64,
    ) -> HealthChange {
        let failure = Failure::new(self.account, body, now);
        let change =
            self.candidate
                .record_failure(scope, failure, &self.trials, self.is_provider_trial);
        self.end_trials();
        change
    }

    fn end_trials(&mut self) {
        if std::mem::take(&mut self.is_provider_trial) {
            self.candidate.provider.circuit.end_trial();
        }
        self.candidate.health.end_trials(&mut self.trials);
    }
}

impl Drop for CallGuard {
    fn drop(&mut self) {
        self.end_trials();
        self.candidate.provider.concurrency.call_ended();
    }
}
