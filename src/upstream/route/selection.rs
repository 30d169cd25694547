//! Candidate selection: the candidates for each model in tiers, and the choice of the next candidate to call.

use std::sync::Arc;
use std::time::Duration;

use tollgate_filter::{Api, Choice};

use super::budget::Budget;
use super::call_guard::{CallGuard, CircuitUse, SelectionInput};
use super::candidate::Candidate;
use super::circuit::State;
use super::load_balancing::{CandidateSet, least_busy, members, weighted};

/// The candidates for one model.
pub(in crate::upstream) struct Candidates {
    /// First the model's candidates, then the candidates of its fallback models.
    pub(in crate::upstream) list: Box<[Arc<Candidate>]>,
    tiers: Box<[Tier]>,
    /// For each operation, the candidates without it.
    lacking: [CandidateSet; Api::ALL.len()],
    pub(in crate::upstream) budget: Arc<Budget>,
}

/// Candidates of equal preference: the model's, or those of one fallback model.
pub(in crate::upstream) struct Tier {
    pub(in crate::upstream) members: CandidateSet,
    pub(in crate::upstream) choice: Choice,
}

/// The result of selecting a candidate.
pub(in crate::upstream) enum Selection {
    /// This candidate; the call is already counted.
    Start(usize, CallGuard),
    /// This candidate, once a permit is available: the request waits in the queue.
    Enqueue(usize, CircuitUse),
    /// No candidate is available.
    None(Unavailable),
}

/// Why no candidate is available.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::upstream) enum Unavailable {
    /// Every candidate has been called.
    AllTried,
    /// Capacity and queues are full; a permit may take this long.
    AtCapacity(Duration),
    /// The circuits are open until this time.
    CircuitsOpen(u64),
    /// The gateway is rate-limited until this time.
    RateLimited(u64),
}

impl Candidates {
    pub(in crate::upstream) fn new(
        list: Vec<Arc<Candidate>>,
        tiers: Vec<Tier>,
        budget: Arc<Budget>,
    ) -> Candidates {
        let lacking = |api| {
            let all = list.iter().enumerate();
            let all = all.filter(|(_, candidate)| !candidate.target.apis.has(api));
            all.fold(0, |set, (at, _)| set | (1 << at))
        };
        Candidates {
            lacking: Api::ALL.map(lacking),
            list: list.into(),
            tiers: tiers.into(),
            budget,
        }
    }

    /// The candidates that lack an operation.
    pub(in crate::upstream) fn lacking(&self, api: Api) -> CandidateSet {
        self.lacking[api as usize]
    }

    /// Whether there is any candidate besides the first.
    pub(in crate::upstream) fn has_others(&self) -> bool {
        self.list.len() > 1
    }

    /// Whether any candidate is available, fallback models included.
    pub(in crate::upstream) fn any_available(&self, now: u64) -> bool {
        self.list
            .iter()
            .any(|candidate| candidate.is_available(now))
    }

    /// Whether the candidate belongs to a fallback model.
    pub(in crate::upstream) fn is_fallback(&self, at: usize) -> bool {
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

    /// Starts a call at a candidate of `set` with a free permit.
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

    /// Chooses the queue of a candidate of `set`.
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

    /// Selects the next untried candidate; `draw` gives random words.
    ///
    /// Order of preference:
    ///
    /// 1. the model's candidates admitted by the circuits, at once or from the queue;
    /// 2. the candidates of its fallback models;
    /// 3. candidates to avoid;
    /// 4. candidates with open circuits;
    /// 5. a few requests at a time, candidates of a provider with an open circuit.
    ///
    /// Never a candidate under a rate limit with a pending `Retry-After`.
    pub(in crate::upstream) fn select(
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

    /// Why no candidate is available: the reason with the earliest end.
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
                let limited = candidate.limited_until();
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
