//! The filter `rate-limit`: request, token and concurrency quotas per owner.

use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{
    Body, Contract, Exchange, FailureMode, Filter, Forward, Outcome, Phase, Phases, Principal,
    Step, Tail,
};
use tollgate_module::Snapshot;

use crate::concurrency::{ConcurrencyLimit, Permit};
use crate::config::{ANONYMOUS, FREE, Limits};
use crate::counters::Counters;
use crate::fields::{PolicyFields, PolicyState};
use crate::in_force::{Counted, InForce};
use crate::lease::Lookup;
use crate::partitions::{Owner, Partition, Partitions};
use crate::quota::Decision;
use crate::refusal::{CONCURRENCY_WAIT_SECS, spread, too_many, too_many_at_once, too_many_tokens};
use crate::shared_limits::SharedLimits;
use crate::tokens::TokenReservation;

/// Counts every request, and the tokens it may use, against the quotas of its class, and refuses requests beyond them.
pub struct RateLimit {
    in_force: Snapshot<InForce>,
    anonymous: usize,
    free: usize,
    /// The class of every request, where the route has a fixed one.
    fixed: Option<Fixed>,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
    /// Counts that all nodes share, where the settings name a server for them.
    shared: Option<Arc<SharedLimits>>,
}

#[derive(Clone, Copy)]
struct Fixed {
    class: usize,
    lane: u16,
}

/// A route names a class that the settings do not define.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("there is no rate class `{name}`; add `[limits.classes.{name}]` or name one of: {known}")]
pub struct UnknownClass {
    name: String,
    known: String,
}

impl RateLimit {
    pub(crate) fn new(
        limits: &Limits,
        in_force: Snapshot<InForce>,
        fixed: Option<&str>,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> Result<RateLimit, UnknownClass> {
        let place = |name: &str| limits.classes.iter().position(|class| *class.name == *name);
        let fixed = match fixed {
            None => None,
            Some(name) => Some(Fixed {
                class: place(name).ok_or_else(|| UnknownClass::new(name, limits))?,
                lane: counters.lane(name),
            }),
        };
        let built_in = |name| place(name).expect("checked limits have the built-in classes");
        Ok(RateLimit {
            anonymous: built_in(ANONYMOUS),
            free: built_in(FREE),
            fixed,
            in_force,
            counters,
            clock,
            entropy,
            shared: None,
        })
    }

    pub(crate) fn sharing(self, shared: Option<Arc<SharedLimits>>) -> RateLimit {
        RateLimit { shared, ..self }
    }

    /// The counted partition and its class. `None` for a request without a principal from a trusted proxy that reported no client: its
    /// counter would be shared by every client behind the proxy.
    fn counted_as(&self, in_force: &InForce, exchange: &Exchange) -> Option<(Partition, usize)> {
        let (owner, own_class) = match exchange.get::<Principal>() {
            Some(principal) => (
                Owner::Account(principal.account),
                self.class_of(in_force, principal),
            ),
            None => (
                Owner::Address(exchange.request.client.limited_prefix()?),
                self.anonymous,
            ),
        };
        Some(match self.fixed {
            None => (Partition { owner, lane: 0 }, own_class),
            Some(Fixed { class, lane }) => (Partition { owner, lane }, class),
        })
    }

    fn class_of(&self, in_force: &InForce, principal: &Principal) -> usize {
        // A handful of short names: comparison is faster than hashing.
        in_force
            .classes
            .iter()
            .position(|class| class.name == principal.class)
            .unwrap_or(self.free)
    }
}

impl RateLimit {
    /// Counts one request, and refuses it when the quota is exhausted.
    fn count(&self, exchange: &mut Exchange) -> Outcome {
        let in_force = self.in_force.load();
        let Some((partition, class)) = self.counted_as(&in_force, exchange) else {
            return Outcome::Continue;
        };
        let class = &in_force.classes[class];
        exchange.record.class = Some(class.name.clone());
        let permit = match self.permit(exchange, partition, class) {
            Ok(permit) => permit,
            Err(refusal) => return refusal,
        };
        let now = self.now(exchange);
        let decision = self.table(partition).take(partition, &class.quota, now);
        self.conclude(exchange, &class.fields, decision, permit)
    }

    /// The same in the state that all nodes share: at once where a lease or a known refusal decides, else by one call to the server, and by
    /// this node's share where it does not answer.
    fn count_shared<'a>(
        &'a self,
        shared: &'a SharedLimits,
        exchange: &'a mut Exchange,
    ) -> Step<'a, Outcome> {
        let in_force = self.in_force.load();
        let Some((partition, class)) = self.counted_as(&in_force, exchange) else {
            return Step::now(Outcome::Continue);
        };
        let class = &in_force.classes[class];
        exchange.record.class = Some(class.name.clone());
        let permit = match self.permit(exchange, partition, class) {
            Ok(permit) => permit,
            Err(refusal) => return Step::now(refusal),
        };
        let now = self.now(exchange);
        // Also counted in the share, so that this node does not begin a whole share when the server becomes unreachable.
        let share = shared.share(&class.quota);
        let by_share = self.table(partition).take(partition, &share, now);
        let cells = match shared.lookup(partition, &class.quota, now) {
            None => return Step::now(self.conclude(exchange, &class.fields, by_share, permit)),
            Some(Lookup::Decided(decision)) => {
                return Step::now(self.conclude(exchange, &class.fields, decision, permit));
            }
            Some(Lookup::Ask(cells)) => cells,
        };
        let (quota, fields) = (class.quota, class.fields.clone());
        let lane = self.fixed.map(|_| class.name.clone());
        Step::later(async move {
            let asked = shared.ask(partition, lane.as_deref(), &quota, cells, &self.clock);
            let decision = asked.await.unwrap_or(by_share);
            Ok(self.conclude(exchange, &fields, decision, permit))
        })
    }

    /// The permit of a request whose class limits concurrent ones; the refusal where none is left. The concurrency limit is checked before
    /// the request is counted: waiting for a permit does not use the quota.
    fn permit(
        &self,
        exchange: &mut Exchange,
        partition: Partition,
        class: &Counted,
    ) -> Result<Option<Permit>, Outcome> {
        let Some(concurrent) = &class.concurrent else {
            return Ok(None);
        };
        let (max, fields) = &**concurrent;
        let permit = ConcurrencyLimit::acquire(&self.counters, partition, *max);
        if permit.is_none() {
            exchange.defer_headers(PolicyState::of(fields, 0, CONCURRENCY_WAIT_SECS));
            return Err(Outcome::refuse(too_many_at_once(*max)));
        }
        Ok(permit)
    }

    fn table(&self, partition: Partition) -> &Partitions {
        match partition.owner {
            Owner::Account(_) => &self.counters.accounts,
            Owner::Address(_) => &self.counters.addresses,
        }
    }

    /// Sets the fields of a decision, and refuses the request or keeps its permit.
    fn conclude(
        &self,
        exchange: &mut Exchange,
        fields: &Arc<PolicyFields>,
        decision: Decision,
        permit: Option<Permit>,
    ) -> Outcome {
        let decision = spread(decision, &self.entropy);
        let (remaining, reset_secs) = (decision.remaining.into(), decision.reset_secs);
        exchange.defer_headers(PolicyState::of(fields, remaining, reset_secs));
        if !decision.admitted {
            return Outcome::refuse(too_many("requests", &decision));
        }
        if let Some(permit) = permit {
            exchange.put(permit);
        }
        Outcome::Continue
    }

    /// Reserves the tokens that a request may use, or refuses it.
    fn reserve(&self, exchange: &mut Exchange) -> Outcome {
        let in_force = self.in_force.load();
        let Some((partition, class)) = self.counted_as(&in_force, exchange) else {
            return Outcome::Continue;
        };
        let Some(tokens) = &in_force.classes[class].tokens else {
            return Outcome::Continue;
        };
        let (quota, fields) = &**tokens;
        let wanted = exchange
            .get::<Forward>()
            .map_or(0, |forward| forward.tokens_max);
        if wanted == 0 {
            // No estimate exists: the route is not metered.
            return Outcome::Continue;
        }
        let counts = &self.counters.tokens;
        let decision = counts.reserve(partition, quota, wanted, self.now(exchange));
        let Some(tokens) = decision.reserved else {
            let (error, wait) = too_many_tokens(wanted, &decision, quota, &self.entropy);
            exchange.defer_headers(PolicyState::of(fields, decision.remaining, wait));
            return Outcome::refuse(error);
        };
        let state = PolicyState::of(fields, decision.remaining, decision.reset_secs);
        exchange.defer_headers(state.beside());
        exchange.put(TokenReservation {
            counters: Arc::clone(&self.counters),
            partition,
            quota: *quota,
            tokens,
        });
        Outcome::Continue
    }

    fn now(&self, exchange: &mut Exchange) -> u64 {
        exchange.elapsed(&self.clock).as_nanos() as u64
    }
}

impl Filter for RateLimit {
    fn name(&self) -> &'static str {
        "rate-limit"
    }

    fn contract(&self) -> Contract {
        let mut phases: Phases = Phase::Request.into();
        let in_force = self.in_force.load();
        let tokens = in_force.any_tokens();
        if tokens {
            phases = phases | Phase::Forward;
        }
        if tokens || in_force.any_concurrent() {
            phases = phases | Phase::Tail;
        }
        Contract {
            phases,
            body: Body::Unread,
            on_failure: FailureMode::Allow,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        match &self.shared {
            None => Step::now(self.count(exchange)),
            Some(shared) => self.count_shared(shared, exchange),
        }
    }

    fn on_forward<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        Step::now(self.reserve(exchange))
    }

    /// The answer is complete except for its last bytes. A client with those can send the next request at once, and its permit and tokens
    /// are released. An exchange that ends otherwise drops its permit and reservation.
    fn before_tail<'a>(&'a self, exchange: &'a mut Exchange, _: &'a mut Tail) -> Step<'a, Outcome> {
        if let Some(reservation) = exchange.take::<TokenReservation>() {
            let record = &exchange.record;
            let used = record
                .prompt_tokens
                .saturating_add(record.completion_tokens);
            reservation.settle(used, self.now(exchange));
        }
        drop(exchange.take::<Permit>());
        Step::now(Outcome::Continue)
    }
}

impl UnknownClass {
    fn new(name: &str, limits: &Limits) -> UnknownClass {
        let known: Vec<&str> = limits.classes.iter().map(|class| &*class.name).collect();
        UnknownClass {
            name: name.to_owned(),
            known: known.join(", "),
        }
    }
}
