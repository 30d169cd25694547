//! Candidate selection: the candidates for each model in tiers, and the choice of the next one to call.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use Ordering::Relaxed;
use tollgate_filter::{Api, Choice, ProviderModel};

use super::admission::Permit;
use super::budget::Budget;
use super::circuit::State;
use super::evidence::{Account, Failure};
use super::failure_policy::FailureScope;
use super::health::{CandidateHealth, Opened, Trials};
use super::load_balancing::{CandidateSet, least_busy, members, weighted};
use super::providers::Provider;

/// How long a provider that rate-limits the gateway without `Retry-After` is called only when no other can serve.
const AVOIDED_FOR: Duration = Duration::from_secs(1);

/// A candidate: a model at one provider.
pub(super) struct Candidate {
    pub(super) provider: Arc<Provider>,
    pub(super) target: ProviderModel,
    /// The model's name for clients.
    pub(super) model: Arc<str>,
    pub(super) health: CandidateHealth,
    /// The end of `Retry-After` with which the provider rate-limits the gateway.
    limited_until: AtomicU64,
    /// Until then it is called only when no other candidate can serve: it rate-limited the gateway without `Retry-After`, or failed with
    /// it.
    avoided_until: AtomicU64,
}

/// The candidates for one model.
pub(super) struct Candidates {
    /// First the model's own, then those of its fallback models.
    pub(super) list: Box<[Arc<Candidate>]>,
    tiers: Box<[Tier]>,
    /// Candidates without chat, and candidates without text completions.
    no_chat: CandidateSet,
    no_text: CandidateSet,
    pub(super) budget: Budget,
}

/// Candidates of equal preference: the model's own, or those of one fallback model.
pub(super) struct Tier {
    pub(super) members: CandidateSet,
    pub(super) choice: Choice,
}

/// The result of selecting a candidate.
pub(super) enum Selection {
    /// This one; the call is already counted.
    Start(usize, CallGuard),
    /// This one, when a permit is available: the request waits in its queue.
    Enqueue(usize, CircuitUse),
    /// No candidate is available.
    None(Unavailable),
}

/// Why no candidate is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Unavailable {
    /// All have been called.
    AllTried,
    /// Capacity and queues are full; a permit may take this long.
    AtCapacity(Duration),
    /// Their circuits are open until then.
    CircuitsOpen(u64),
    /// They rate-limit the gateway until then.
    RateLimited(u64),
}

/// Which circuits of a candidate apply to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CircuitUse {
    /// All of them; a half-open one admits it as a trial request.
    All,
    /// No other candidate is left: only the circuit of the provider applies, which no request can open.
    LastResort,
}

/// A change of health that operators see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HealthChange {
    None,
    /// A circuit closed for all accounts.
    Closed,
    /// The circuit of this account opened.
    OpenedForAccount(Account),
    /// A circuit opened for all accounts.
    Opened,
}

/// The guard of a call under way: its permit and its trial requests, released on drop.
pub(super) struct CallGuard {
    pub(super) candidate: Arc<Candidate>,
    account: Account,
    _permit: Permit,
    circuit_use: CircuitUse,
    /// Whether it is a trial request for the circuit of the provider.
    is_provider_trial: bool,
    trials: Trials,
}

impl Candidate {
    pub(super) fn new(
        model: Arc<str>,
        target: ProviderModel,
        provider: Arc<Provider>,
    ) -> Candidate {
        Candidate {
            provider,
            target,
            model,
            health: CandidateHealth::default(),
            limited_until: AtomicU64::new(0),
            avoided_until: AtomicU64::new(0),
        }
    }

    /// Whether it may be called at all: it does not rate-limit the gateway.
    fn is_callable(&self, now: u64) -> bool {
        self.limited_until.load(Relaxed) <= now
    }

    /// Whether it is preferred for this account: no circuit, limit or `Retry-After` is against it.
    pub(super) fn is_ready(&self, account: Account, now: u64) -> bool {
        let settings = &self.provider.circuit_settings;
        self.is_callable(now)
            && self.avoided_until.load(Relaxed) <= now
            && self.health.admits(account, now, settings)
            && self.provider.circuit.admits(now, settings)
    }

    /// Whether the model is reported to clients as available here. Its own circuits do not matter: they never remove the last candidate.
    pub(super) fn is_available(&self, now: u64) -> bool {
        !matches!(self.provider.circuit.state(now), State::Open(_))
    }

    /// Records that the provider rate-limits the gateway; `wait` is its `Retry-After`.
    pub(super) fn record_rate_limit(&self, now: u64, wait: Option<Duration>) {
        let end = |wait: Duration| now.saturating_add(wait.as_micros() as u64);
        match wait {
            Some(wait) => self.limited_until.fetch_max(end(wait), Relaxed),
            None => self.avoided_until.fetch_max(end(AVOIDED_FOR), Relaxed),
        };
    }

    /// Records `Retry-After` with a failure for a request of this account. A request can cause it, so it affects only the choice among
    /// candidates, and like its other failures the account first.
    pub(super) fn record_retry_after(&self, account: Account, now: u64, wait: Duration) {
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

    /// The time before which it is not called, or only when no other can serve; for operators.
    pub(super) fn deferred_until(&self, now: u64) -> Option<u64> {
        let limited = self.limited_until.load(Relaxed);
        let until = limited.max(self.avoided_until.load(Relaxed));
        (until > now).then_some(until)
    }

    /// Logs a change for the operator.
    pub(super) fn log(&self, change: HealthChange) {
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
        }
    }

    /// Records the failure of a call in the circuits of its scope.
    fn record_failure(
        &self,
        scope: FailureScope,
        failure: Failure,
        guard: &CallGuard,
    ) -> HealthChange {
        let (provider, settings) = (&self.provider, &self.provider.circuit_settings);
        let opened = match scope {
            // The provider is reachable and accepts the key; whether it can serve a valid request is still unknown.
            FailureScope::NotCounted if provider.circuit.record_success() => {
                return HealthChange::Closed;
            }
            FailureScope::NotCounted => false,
            FailureScope::Candidate => {
                let probe_failed = provider.probe_failed.load(Relaxed);
                let opened =
                    self.health
                        .record_failure(failure, &guard.trials, probe_failed, settings);
                match opened {
                    Opened::None => false,
                    Opened::Account => return HealthChange::OpenedForAccount(failure.account),
                    Opened::All => true,
                }
            }
            FailureScope::Provider => {
                let is_trial = guard.is_provider_trial;
                provider
                    .circuit
                    .record_failure(failure.at, is_trial, settings)
            }
            FailureScope::ProviderImmediate => provider.circuit.open(failure.at, settings),
        };
        if opened {
            HealthChange::Opened
        } else {
            HealthChange::None
        }
    }

    /// Records a success in its circuits.
    fn record_success(&self, account: Account, now: u64) -> HealthChange {
        let provider = self.provider.circuit.record_success();
        if self.health.record_success(account, now) || provider {
            HealthChange::Closed
        } else {
            HealthChange::None
        }
    }
}

impl Candidates {
    pub(super) fn new(list: Vec<Arc<Candidate>>, tiers: Vec<Tier>, budget: Budget) -> Candidates {
        let lacking = |api| {
            let all = list.iter().enumerate();
            let all = all.filter(|(_, candidate)| !candidate.target.apis.has(api));
            all.fold(0, |set, (at, _)| set | (1 << at))
        };
        Candidates {
            no_chat: lacking(Api::Chat),
            no_text: lacking(Api::Text),
            list: list.into(),
            tiers: tiers.into(),
            budget,
        }
    }

    /// The candidates that lack an operation.
    pub(super) fn lacking(&self, api: Api) -> CandidateSet {
        match api {
            Api::Chat => self.no_chat,
            Api::Text => self.no_text,
        }
    }

    /// Whether there is any candidate besides the first.
    pub(super) fn has_others(&self) -> bool {
        self.list.len() > 1
    }

    /// Whether any candidate is available, fallback models included.
    pub(super) fn any_available(&self, now: u64) -> bool {
        self.list
            .iter()
            .any(|candidate| candidate.is_available(now))
    }

    /// Whether it is a candidate of a fallback model.
    pub(super) fn is_fallback(&self, at: usize) -> bool {
        self.tiers
            .first()
            .is_some_and(|own| own.members >> at & 1 == 0)
    }

    fn filter(&self, set: CandidateSet, predicate: impl Fn(&Candidate) -> bool) -> CandidateSet {
        members(set).fold(0, |found, at| {
            found | (u64::from(predicate(&self.list[at])) << at)
        })
    }

    fn choose(&self, set: CandidateSet, choice: Choice, draw: &impl Fn() -> u64) -> Option<usize> {
        if set.is_power_of_two() {
            return Some(set.trailing_zeros() as usize);
        }
        let weight = |at: usize| self.list[at].target.weight;
        match choice {
            Choice::Weighted => weighted(set, weight, draw()),
            Choice::LeastBusy => {
                let busy = |at: usize| self.list[at].provider.concurrency.calls();
                least_busy(set, weight, busy, draw())
            }
        }
    }

    /// Starts a call at one of these that has a free permit.
    fn try_start(
        &self,
        mut set: CandidateSet,
        choice: Choice,
        input: &SelectionInput,
        circuit_use: CircuitUse,
        draw: &impl Fn() -> u64,
    ) -> Option<Selection> {
        set = self.filter(set, |candidate| candidate.provider.concurrency.has_permit());
        while let Some(at) = self.choose(set, choice, draw) {
            let candidate = &self.list[at];
            if let Some(permit) = candidate.provider.concurrency.try_acquire()
                && let Some(guard) = CallGuard::start(candidate, permit, input, circuit_use)
            {
                return Some(Selection::Start(at, guard));
            }
            // Another request took the permit first.
            set &= !(1 << at);
        }
        None
    }

    /// Chooses the queue of one of these.
    fn enqueue(
        &self,
        set: CandidateSet,
        choice: Choice,
        circuit_use: CircuitUse,
        draw: &impl Fn() -> u64,
    ) -> Option<Selection> {
        let queues = self.filter(set, |candidate| {
            candidate.provider.concurrency.has_queue_space()
        });
        let at = self.choose(queues, choice, draw)?;
        Some(Selection::Enqueue(at, circuit_use))
    }

    /// Selects the next candidate among those that have not been tried; `draw` gives random words.
    ///
    /// The model's own that the circuits admit, at once or from the queue; those of its fallback models; then candidates to avoid; then
    /// those with open circuits of their own; then, a few requests at a time, those of a provider with an open circuit. Never one that
    /// rate-limits the gateway and whose `Retry-After` has not passed.
    pub(super) fn select(
        &self,
        tried: CandidateSet,
        input: &SelectionInput,
        draw: impl Fn() -> u64,
    ) -> Selection {
        for tier in &self.tiers {
            let ready = |candidate: &Candidate| candidate.is_ready(input.account, input.now);
            let ready = self.filter(tier.members & !tried, ready);
            let selection = self.try_start(ready, tier.choice, input, CircuitUse::All, &draw);
            let selection =
                selection.or_else(|| self.enqueue(ready, tier.choice, CircuitUse::All, &draw));
            if let Some(selection) = selection {
                return selection;
            }
        }
        self.last_resort(tried, input, &draw)
    }

    #[cold]
    fn last_resort(
        &self,
        tried: CandidateSet,
        input: &SelectionInput,
        draw: &impl Fn() -> u64,
    ) -> Selection {
        let SelectionInput { account, now } = *input;
        let callable = |tier: &Tier| {
            self.filter(tier.members & !tried, |candidate| {
                candidate.is_callable(now)
            })
        };
        for tier in &self.tiers {
            let admits = |candidate: &Candidate| {
                let settings = &candidate.provider.circuit_settings;
                candidate.health.admits(account, now, settings)
                    && candidate.provider.circuit.admits(now, settings)
            };
            let admitted = self.filter(callable(tier), admits);
            let selection = self.try_start(admitted, tier.choice, input, CircuitUse::All, draw);
            if let Some(selection) = selection {
                return selection;
            }
        }
        let last = CircuitUse::LastResort;
        for tier in &self.tiers {
            let admits = |candidate: &Candidate| {
                candidate
                    .provider
                    .circuit
                    .admits(now, &candidate.provider.circuit_settings)
            };
            let admitted = self.filter(callable(tier), admits);
            let selection = self.try_start(admitted, tier.choice, input, last, draw);
            let selection = selection.or_else(|| self.enqueue(admitted, tier.choice, last, draw));
            if let Some(selection) = selection {
                return selection;
            }
        }
        for tier in &self.tiers {
            if let Some(selection) = self.try_start(callable(tier), tier.choice, input, last, draw)
            {
                return selection;
            }
        }
        Selection::None(self.reason(tried, now))
    }

    /// Why no candidate is available: the reason that ends soonest.
    fn reason(&self, tried: CandidateSet, now: u64) -> Unavailable {
        let all = self.list.iter().enumerate();
        let untried = all.filter(|(at, _)| tried >> at & 1 == 0);
        let end = |reason: &Unavailable| match *reason {
            Unavailable::AllTried => u64::MAX,
            Unavailable::AtCapacity(wait) => now.saturating_add(wait.as_micros() as u64),
            Unavailable::CircuitsOpen(until) | Unavailable::RateLimited(until) => until,
        };
        untried
            .map(|(_, candidate)| {
                let limited = candidate.limited_until.load(Relaxed);
                let concurrency = &candidate.provider.concurrency;
                match candidate.provider.circuit.state(now) {
                    _ if limited > now => Unavailable::RateLimited(limited),
                    State::Open(until) => Unavailable::CircuitsOpen(until),
                    State::Closed | State::HalfOpen if !concurrency.has_permit() => {
                        concurrency.record_rejection();
                        Unavailable::AtCapacity(concurrency.queue_wait_max())
                    }
                    State::Closed | State::HalfOpen => Unavailable::CircuitsOpen(now),
                }
            })
            .min_by_key(end)
            .unwrap_or(Unavailable::AllTried)
    }
}

/// The properties of a request that select a candidate.
#[derive(Clone, Copy, Debug)]
pub(super) struct SelectionInput {
    pub(super) account: Account,
    pub(super) now: u64,
}

impl CallGuard {
    /// Starts a call, unless circuits do not admit it: one that is not closed admits a bounded number of trial requests.
    pub(super) fn start(
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

    /// Whether the call was an ordinary one when it started: neither a trial request nor a last resort.
    pub(super) fn is_ordinary(&self) -> bool {
        self.circuit_use == CircuitUse::All && !self.is_trial()
    }

    fn is_trial(&self) -> bool {
        self.is_provider_trial || self.trials.is_any()
    }

    /// The provider has started to answer. A trial request has its result; whether the answer is complete is another question.
    pub(super) fn answer_started(&mut self, now: u64) -> HealthChange {
        let change = if self.is_trial() {
            self.candidate.record_success(self.account, now)
        } else {
            HealthChange::None
        };
        self.end_trials();
        change
    }

    /// The answer is complete.
    pub(super) fn answer_ended(&mut self, now: u64) {
        self.candidate.health.note_activity(self.account, now);
        let change = self.candidate.record_success(self.account, now);
        self.candidate.log(change);
    }

    /// The call has failed; `body` is what was sent to the provider.
    pub(super) fn call_failed(
        &mut self,
        scope: FailureScope,
        body: &[u8],
        now: u64,
    ) -> HealthChange {
        let failure = Failure::new(self.account, body, now);
        let change = self.candidate.record_failure(scope, failure, self);
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
