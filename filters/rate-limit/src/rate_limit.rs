//! The filter `rate-limit`: request, token and concurrency quotas per owner.

use std::num::NonZeroU32;
use std::sync::Arc;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{
    Body, Contract, Ending, Exchange, FailureMode, Filter, Forward, Outcome, Phase, Phases,
    Principal, Prompts, Step, Tail,
};

use crate::concurrency::{ConcurrencyLimit, Permit};
use crate::config::{ANONYMOUS, FREE};
use crate::counters::Counters;
use crate::fields::{PolicyFields, PolicyState};
use crate::lease::Lookup;
use crate::partitions::{Owner, Partition, Partitions};
use crate::prepared::{Counted, PreparedLimits};
use crate::quota::{Decision, Quota};
use crate::refusal::{CONCURRENCY_WAIT_SECS, spread, too_many, too_many_at_once, too_many_tokens};
use crate::shared_limits::{SharedLimits, SharedPartition, SharedReservation};
use crate::shared_permits::{Acquired, SharedPermit};
use crate::tokens::{TokenDecision, TokenQuota, TokenReservation};

/// Counts every request, and the tokens that the request may use, against the quotas of the request's class. Refuses requests beyond the
/// quotas.
pub struct RateLimit {
    limits: Arc<PreparedLimits>,
    anonymous: usize,
    free: usize,
    /// The class of every request, where the route has a fixed class.
    fixed: Option<Fixed>,
    counters: Arc<Counters>,
    clock: Clock,
    entropy: Entropy,
    /// Counts shared by every node, where the settings name a server for the counts.
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
        limits: Arc<PreparedLimits>,
        fixed: Option<&str>,
        counters: Arc<Counters>,
        clock: Clock,
        entropy: Entropy,
    ) -> Result<RateLimit, UnknownClass> {
        let place = |name: &str| limits.classes.iter().position(|class| *class.name == *name);
        let fixed = match fixed {
            None => None,
            Some(name) => Some(Fixed {
                class: place(name).ok_or_else(|| UnknownClass::new(name, &limits))?,
                lane: counters.lane(name),
            }),
        };
        let built_in = |name| place(name).expect("checked limits have the built-in classes");
        Ok(RateLimit {
            anonymous: built_in(ANONYMOUS),
            free: built_in(FREE),
            fixed,
            limits,
            counters,
            clock,
            entropy,
            shared: None,
        })
    }

    pub(crate) fn sharing(self, shared: Option<Arc<SharedLimits>>) -> RateLimit {
        RateLimit { shared, ..self }
    }

    /// The counted partition and its class. `None` for a request without a principal from a trusted proxy that reported no client: every
    /// client behind the proxy would share the counter.
    fn counted_as(&self, exchange: &Exchange) -> Option<(Partition, usize)> {
        let (owner, own_class) = match exchange.get::<Principal>() {
            Some(principal) => (Owner::Account(principal.account), self.class_of(principal)),
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

    fn class_of(&self, principal: &Principal) -> usize {
        // A handful of short names: comparison is faster than hashing.
        self.limits
            .classes
            .iter()
            .position(|class| class.name == principal.class)
            .unwrap_or(self.free)
    }
}

impl RateLimit {
    /// Counts a request, and refuses the request when the quota is exhausted.
    fn count(&self, exchange: &mut Exchange) -> Outcome {
        let Some((partition, class)) = self.counted_as(exchange) else {
            return Outcome::Continue;
        };
        let class = &self.limits.classes[class];
        exchange.record.class = Some(class.name.clone());
        let mut permit = None;
        if let Some(concurrent) = &class.concurrent {
            let (max, fields) = &**concurrent;
            permit = ConcurrencyLimit::acquire(&self.counters, partition, *max);
            if permit.is_none() {
                return refuse_permit(exchange, fields, *max);
            }
        }
        let now = self.now(exchange);
        let decision = self.table(partition).take(partition, &class.quota, now);
        match permit {
            None => self.conclude(exchange, &class.fields, decision),
            Some(permit) => self.conclude_with(exchange, &class.fields, decision, permit),
        }
    }

    /// Counts a request in the state shared by every node. Leases and spare permits decide immediately. Otherwise calls to the server
    /// decide, or this node's share where the server does not answer.
    fn count_shared<'a>(
        &'a self,
        shared: &'a SharedLimits,
        exchange: &'a mut Exchange,
    ) -> Step<'a, Outcome> {
        let Some((partition, class)) = self.counted_as(exchange) else {
            return Step::now(Outcome::Continue);
        };
        let class = &self.limits.classes[class];
        exchange.record.class = Some(class.name.clone());
        let request = SharedRequest {
            partition: self.shared_partition(partition, class),
            quota: class.quota,
            fields: class.fields.clone(),
        };
        let Some(concurrent) = &class.concurrent else {
            return match self.count_now(shared, exchange, &request) {
                Ok(decision) => Step::now(self.conclude(exchange, &request.fields, decision)),
                Err(calls) => Step::later(async move {
                    let decision = calls.decision(self, shared, &request).await;
                    Ok(self.conclude(exchange, &request.fields, decision))
                }),
            };
        };
        let (max, permit_fields) = (concurrent.0, concurrent.1.clone());
        let acquired = shared.permits.acquire_now(&request.partition, max);
        let permit = match acquired {
            Acquired::Permit(permit) => permit,
            Acquired::Refused => return Step::now(refuse_permit(exchange, &permit_fields, max)),
            Acquired::Ask => {
                return Step::later(async move {
                    let permit = shared.permits.acquire(&request.partition, max).await;
                    exchange.invalidate_now();
                    let Some(permit) = permit else {
                        return Ok(refuse_permit(exchange, &permit_fields, max));
                    };
                    let decision = match self.count_now(shared, exchange, &request) {
                        Ok(decision) => decision,
                        Err(calls) => calls.decision(self, shared, &request).await,
                    };
                    Ok(self.conclude_with(exchange, &request.fields, decision, permit))
                });
            }
        };
        match self.count_now(shared, exchange, &request) {
            Ok(decision) => {
                Step::now(self.conclude_with(exchange, &request.fields, decision, permit))
            }
            Err(calls) => Step::later(async move {
                let decision = calls.decision(self, shared, &request).await;
                Ok(self.conclude_with(exchange, &request.fields, decision, permit))
            }),
        }
    }

    /// The decision without a call, or the needed call.
    fn count_now(
        &self,
        shared: &SharedLimits,
        exchange: &mut Exchange,
        request: &SharedRequest,
    ) -> Result<Decision, Call> {
        let (partition, quota) = (request.partition.partition, &request.quota);
        let now = self.now(exchange);
        // Also counted in the share, so that this node does not begin a whole share when the server becomes unreachable.
        let by_share = self
            .table(partition)
            .take(partition, &shared.share(quota), now);
        match shared.lookup(partition, quota, now) {
            None => Ok(by_share),
            Some(Lookup::Decided(decision)) => Ok(decision),
            Some(Lookup::Ask(cells)) => Err(Call { cells, by_share }),
        }
    }

    fn shared_partition(&self, partition: Partition, class: &Counted) -> SharedPartition {
        let lane = self.fixed.map(|_| class.name.clone());
        SharedPartition { partition, lane }
    }

    fn table(&self, partition: Partition) -> &Partitions {
        match partition.owner {
            Owner::Account(_) => &self.counters.accounts,
            Owner::Address(_) => &self.counters.addresses,
        }
    }

    /// Sets the fields of a decision, and refuses the request if the decision says so.
    fn conclude(
        &self,
        exchange: &mut Exchange,
        fields: &Arc<PolicyFields>,
        decision: Decision,
    ) -> Outcome {
        let decision = spread(decision, &self.entropy);
        let (remaining, reset_secs) = (decision.remaining.into(), decision.reset_secs);
        exchange.defer_headers(PolicyState::of(fields, remaining, reset_secs));
        match decision.admitted {
            true => Outcome::Continue,
            false => Outcome::refuse(too_many("requests", &decision)),
        }
    }

    /// Concludes a request with a permit. An admitted request keeps the permit.
    fn conclude_with<P: Send + Sync + 'static>(
        &self,
        exchange: &mut Exchange,
        fields: &Arc<PolicyFields>,
        decision: Decision,
        permit: P,
    ) -> Outcome {
        let outcome = self.conclude(exchange, fields, decision);
        if decision.admitted {
            exchange.put(permit);
        }
        outcome
    }

    /// Acquires the permits of a request's prompts beyond the first prompt, or refuses the request. A request with more prompts than the
    /// limit needs every permit.
    async fn count_prompts(&self, exchange: &mut Exchange, prompts: u64) -> Outcome {
        let Some((partition, class)) = self.counted_as(exchange) else {
            return Outcome::Continue;
        };
        let class = &self.limits.classes[class];
        let Some(concurrent) = &class.concurrent else {
            return Outcome::Continue;
        };
        let (max, fields) = (concurrent.0, concurrent.1.clone());
        let more = prompts.min(u64::from(max.get())) - 1;
        let is_complete = match &self.shared {
            None => {
                let acquire = |_| ConcurrencyLimit::acquire(&self.counters, partition, max);
                let permits: Option<Vec<_>> = (0..more).map(acquire).collect();
                keep_permits(exchange, permits)
            }
            Some(shared) => {
                let partition = self.shared_partition(partition, class);
                let mut permits = Vec::new();
                while (permits.len() as u64) < more {
                    match shared.permits.acquire(&partition, max).await {
                        Some(permit) => permits.push(permit),
                        None => break,
                    }
                }
                exchange.invalidate_now();
                keep_permits(exchange, (permits.len() as u64 == more).then_some(permits))
            }
        };
        match is_complete {
            true => Outcome::Continue,
            false => refuse_permit(exchange, &fields, max),
        }
    }

    /// Reserves the tokens that a request may use, or refuses the request.
    fn reserve<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        let Some((partition, class)) = self.counted_as(exchange) else {
            return Step::now(Outcome::Continue);
        };
        let class = &self.limits.classes[class];
        let Some(tokens) = &class.tokens else {
            return Step::now(Outcome::Continue);
        };
        let (quota, fields) = &**tokens;
        let wanted = exchange
            .get::<Forward>()
            .map_or(0, |forward| forward.tokens_max);
        if wanted == 0 {
            // No estimate exists: the route is not metered.
            return Step::now(Outcome::Continue);
        }
        let Some(shared) = &self.shared else {
            return Step::now(self.reserve_here(exchange, partition, (quota, fields), wanted));
        };
        let (quota, fields) = (*quota, fields.clone());
        let partition = self.shared_partition(partition, class);
        Step::later(async move {
            let asked = shared.reserve(&partition, &quota, wanted, &self.clock);
            let Some((decision, reservation)) = asked.await else {
                exchange.invalidate_now();
                let share = shared.token_share(&quota);
                let limit = (&share, &fields);
                return Ok(self.reserve_here(exchange, partition.partition, limit, wanted));
            };
            Ok(match reservation {
                None => self.refuse_tokens(exchange, (&quota, &fields), wanted, &decision),
                Some(reservation) => {
                    keep_tokens(exchange, &fields, &decision, reservation);
                    Outcome::Continue
                }
            })
        })
    }

    /// Reserves tokens in the counts of this node.
    fn reserve_here(
        &self,
        exchange: &mut Exchange,
        partition: Partition,
        (quota, fields): (&TokenQuota, &Arc<PolicyFields>),
        wanted: u64,
    ) -> Outcome {
        let counts = &self.counters.tokens;
        let decision = counts.reserve(partition, quota, wanted, self.now(exchange));
        let Some(tokens) = decision.reserved else {
            return self.refuse_tokens(exchange, (quota, fields), wanted, &decision);
        };
        let reservation = TokenReservation {
            counters: Arc::clone(&self.counters),
            partition,
            quota: *quota,
            tokens,
        };
        keep_tokens(exchange, fields, &decision, reservation);
        Outcome::Continue
    }

    fn refuse_tokens(
        &self,
        exchange: &mut Exchange,
        (quota, fields): (&TokenQuota, &Arc<PolicyFields>),
        wanted: u64,
        decision: &TokenDecision,
    ) -> Outcome {
        let (error, wait) = too_many_tokens(wanted, decision, quota, &self.entropy);
        exchange.defer_headers(PolicyState::of(fields, decision.remaining, wait));
        Outcome::refuse(error)
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
        let tokens = self.limits.any_tokens();
        if tokens || self.limits.any_concurrent() {
            phases = phases | Phase::Forward | Phase::Tail | Phase::End;
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
        let Some(Prompts(prompts)) = exchange.get::<Prompts>().copied() else {
            return self.reserve(exchange);
        };
        Step::later(async move {
            match self.count_prompts(exchange, prompts).await {
                Outcome::Continue => match self.reserve(exchange) {
                    Step::Now(decided) => decided,
                    Step::Later(later) => later.await,
                },
                refused => Ok(refused),
            }
        })
    }

    /// The answer is complete except for its last bytes. After the last bytes, the client can send the next request immediately. The permit
    /// and the tokens are therefore released here.
    fn before_tail<'a>(&'a self, exchange: &'a mut Exchange, _: &'a mut Tail) -> Step<'a, Outcome> {
        let record = &exchange.record;
        let used = record
            .prompt_tokens
            .saturating_add(record.completion_tokens);
        if let Some(reservation) = exchange.take::<TokenReservation>() {
            reservation.settle(used, self.now(exchange));
        }
        if let Some(reservation) = exchange.take::<SharedReservation>() {
            reservation.settle(used);
        }
        release_permits(exchange);
        Step::now(Outcome::Continue)
    }

    /// Without an answer the request used no tokens: permit and tokens are released before the refusal is sent.
    fn on_end(&self, exchange: &mut Exchange, _: Ending) {
        drop(exchange.take::<TokenReservation>());
        drop(exchange.take::<SharedReservation>());
        release_permits(exchange);
    }
}

/// A request whose count every node shares.
struct SharedRequest {
    partition: SharedPartition,
    quota: Quota,
    fields: Arc<PolicyFields>,
}

/// A call for cells, and the decision for a call without an answer.
struct Call {
    cells: u32,
    by_share: Decision,
}

impl Call {
    async fn decision(
        self,
        filter: &RateLimit,
        shared: &SharedLimits,
        request: &SharedRequest,
    ) -> Decision {
        let (partition, quota) = (&request.partition, &request.quota);
        let asked = shared.ask(partition, quota, self.cells, &filter.clock);
        asked.await.unwrap_or(self.by_share)
    }
}

/// The permits of a request's prompts beyond the first prompt.
struct MorePermits<P> {
    _held: Vec<P>,
}

/// Keeps the further permits of a request, if the request got the permits.
fn keep_permits<P: Send + Sync + 'static>(exchange: &mut Exchange, all: Option<Vec<P>>) -> bool {
    let kept = all.map(|held| exchange.put(MorePermits { _held: held }));
    kept.is_some()
}

fn release_permits(exchange: &mut Exchange) {
    drop(exchange.take::<Permit>());
    drop(exchange.take::<SharedPermit>());
    if exchange.get::<Prompts>().is_some() {
        drop(exchange.take::<MorePermits<Permit>>());
        drop(exchange.take::<MorePermits<SharedPermit>>());
    }
}

/// Refuses a request for which no permit is left. The concurrency limit is checked before the request is counted: waiting for a permit does
/// not use the quota.
fn refuse_permit(exchange: &mut Exchange, fields: &Arc<PolicyFields>, max: NonZeroU32) -> Outcome {
    exchange.defer_headers(PolicyState::of(fields, 0, CONCURRENCY_WAIT_SECS));
    Outcome::refuse(too_many_at_once(max))
}

/// Puts a reservation on the exchange, and its fields beside the fields of the requests.
fn keep_tokens<R: Send + Sync + 'static>(
    exchange: &mut Exchange,
    fields: &Arc<PolicyFields>,
    decision: &TokenDecision,
    reservation: R,
) {
    let state = PolicyState::of(fields, decision.remaining, decision.reset_secs);
    exchange.defer_headers(state.beside());
    exchange.put(reservation);
}

impl UnknownClass {
    fn new(name: &str, limits: &PreparedLimits) -> UnknownClass {
        let known: Vec<&str> = limits.classes.iter().map(|class| &*class.name).collect();
        UnknownClass {
            name: name.to_owned(),
            known: known.join(", "),
        }
    }
}
