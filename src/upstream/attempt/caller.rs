//! Failover: selects a provider for a call, and another provider after a failure before the first byte of the answer.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate_chain::{BodyLength, Opening, Upstream, UpstreamError};
use tollgate_clock::{Backoff, Clock, Entropy, Jitter};
use tollgate_filter::{Exchange, Forward, RelayUpstream, UpstreamFault};

use super::call_state::{AttemptOutcome, CallState, RetryTarget};
use super::failure_policy::{FailureAction, classify};
use super::tracked_call::TrackedCall;
use crate::telemetry::{AttemptFailure, AttemptSpan, Telemetry};
use crate::trace_context::TraceContext;
use crate::upstream::route::{
    CallGuard, Candidates, CircuitUse, Providers, Selection, Unavailable, account_of,
};
use crate::upstream::transport::{
    AttemptError, Call, Connections, ProviderRequest, Relays, RequestIds, fault,
};

/// Before a retry at the same provider: up to as much again at random.
const BACKOFF: Backoff = Backoff {
    base: Duration::from_millis(50),
    max: Duration::from_millis(50 << 6),
    jitter: Jitter::Longer(1),
};

/// Makes the calls of one worker.
pub(crate) struct Caller {
    pub(super) providers: Arc<Providers>,
    pub(super) clock: Clock,
    entropy: Entropy,
    telemetry: Telemetry,
    connections: Arc<Connections>,
    relays: Arc<Relays>,
}

impl Caller {
    pub(crate) fn new(
        providers: Arc<Providers>,
        clock: Clock,
        entropy: Entropy,
        telemetry: Telemetry,
        relays: Relays,
    ) -> Caller {
        let caller = Caller {
            connections: Arc::new(Connections::new(clock.clone())),
            relays: Arc::new(relays),
            providers,
            clock,
            entropy,
            telemetry,
        };
        caller.prepare()
    }

    /// Calls to other providers and servers by this worker, over its connections.
    pub(crate) fn with(
        &self,
        providers: Arc<Providers>,
        relayed_to: &[Arc<RelayUpstream>],
    ) -> Caller {
        let caller = Caller {
            providers,
            clock: self.clock.clone(),
            entropy: self.entropy.clone(),
            telemetry: self.telemetry.clone(),
            connections: self.connections.clone(),
            relays: Arc::new(self.relays.successor(relayed_to)),
        };
        caller.prepare()
    }

    fn prepare(self) -> Caller {
        if self.providers.any_needs_connector() {
            self.connections.connector();
        }
        self
    }

    /// The request to one of the providers for an exchange.
    pub(super) fn provider_request(
        &self,
        exchange: &Exchange,
        guard: &CallGuard,
        state: &CallState,
    ) -> Result<ProviderRequest, UpstreamError> {
        let Some(forward) = exchange.get::<Forward>() else {
            return Err(fault::invalid("the exchange has no request to forward"));
        };
        let candidate = &*guard.candidate;
        let settings = &candidate.provider.settings;
        let span = self
            .telemetry
            .attempt_span(exchange, settings, &candidate.target.model);
        Ok(ProviderRequest {
            path: forward.api.path(),
            stream: forward.stream,
            body: forward.body.render(exchange, &candidate.target),
            client: exchange
                .request
                .client
                .limited()
                .filter(|_| settings.forward_client_address),
            ids: settings.forward_request_ids.then(|| RequestIds {
                request: exchange.request.id,
                trace: match &span {
                    Some(span) => span.context(),
                    None => TraceContext::of(&exchange.request.headers),
                },
            }),
            span,
            started: state.now,
            deadline: state.started + settings.timeouts.total,
        })
    }

    /// Calls one provider once.
    pub(super) async fn attempt(
        &self,
        guard: &CallGuard,
        request: &ProviderRequest,
        calls: &mut u32,
    ) -> Result<Call, AttemptError> {
        let provider = &guard.candidate.provider;
        let endpoint = &provider.endpoint;
        let result = self.connections.attempt(endpoint, request, calls).await;
        let fault = result.as_ref().map(|_| ());
        self.telemetry.upstream_call(
            &provider.settings.name,
            fault.map_err(|failed| failed.error.fault),
        );
        result
    }

    pub(super) fn select(&self, candidates: &Candidates, state: &CallState) -> Selection {
        candidates.select(state.tried, &state.selection_input(), || {
            u64::from_le_bytes(self.entropy.bytes())
        })
    }

    /// Records that an answer has started; a guard tracks the answer to the end.
    fn track(
        &self,
        call: Call,
        mut guard: CallGuard,
        (body, mut span): (Bytes, Option<Box<AttemptSpan>>),
    ) -> TrackedCall {
        let change = guard.answer_started(call.read_at.as_micros() as u64);
        self.providers.publish(&guard.candidate, change);
        if let Some(span) = &mut span {
            span.answered();
        }
        TrackedCall {
            call,
            guard,
            body,
            span,
        }
    }

    /// Records a failure: what counts as failed, and the error for the client if no candidate answers.
    #[cold]
    pub(super) fn record_failure(
        &self,
        candidates: &Candidates,
        state: &mut CallState,
        (at, mut guard, body, span): (usize, CallGuard, &[u8], Option<Box<AttemptSpan>>),
        failed: AttemptError,
    ) -> FailureAction {
        if let Some(mut span) = span {
            span.fail(&AttemptFailure {
                fault: failed.error.fault,
                status: failed.status,
            });
        }
        let candidate = &candidates.list[at];
        let action = classify(&failed);
        state.now = self.clock.elapsed();
        state.tried |= 1 << at;
        let now = state.now.as_micros() as u64;
        let change = guard.call_failed(action.scope, body, now);
        drop(guard);
        let limited = failed.error.fault == UpstreamFault::RateLimited;
        match failed.retry_after {
            wait if limited => candidate.record_rate_limit(now, wait),
            Some(wait) => candidate.record_retry_after(state.account, now, wait),
            None => {}
        }
        self.providers.publish(candidate, change);

        let retried = state.retried.filter(|retried| retried.at == at);
        let retries = retried.map_or(0, |retried| retried.retries);
        let retry = action.retry
            && failed.retry_after.is_none()
            && retries < candidate.provider.settings.retries;
        state.retry = retry.then_some(RetryTarget { at, retries });
        // Only a rate limit names a time to retry, and the soonest of several is reported; but an invalid request is invalid at every
        // provider.
        let keep = state.error.as_ref().is_some_and(|before| {
            let sooner = before.answer.retry_after <= failed.error.answer.retry_after;
            before.fault == UpstreamFault::RateLimited && action.failover && (!limited || sooner)
        });
        if !keep {
            state.error = Some(failed.error);
        }
        state.drop_late(candidates);
        action
    }

    /// Whether another attempt may follow a failure.
    #[cold]
    fn allows_another_attempt(
        &self,
        candidates: &Candidates,
        state: &CallState,
        at: usize,
        action: FailureAction,
    ) -> bool {
        let candidate = &candidates.list[at];
        let in_time = !state
            .time_left(candidate.provider.settings.timeouts.total)
            .is_zero();
        let more = state.retry.is_some() || state.tried.count_ones() < candidates.list.len() as u32;
        let now = state.now.as_micros() as u64;
        let allowed = action.failover
            && more
            && in_time
            && state.attempts < self.providers.settings.attempts_max
            && candidate
                .provider
                .counts
                .record_further_attempt(candidates.budget.take(now));
        if allowed && let Some(error) = &state.error {
            let (provider, model) = (&*candidate.provider.settings.name, &*candidate.model);
            let (fault, detail) = (error.fault.word(), &error.detail);
            // A retry at this provider succeeds, or fails with a separate log line.
            if state.tried.count_ones() < candidates.list.len() as u32 {
                tracing::warn!(provider, model, fault, %detail, "retrying request at another provider: attempt failed");
            } else {
                tracing::debug!(provider, model, fault, %detail, "retrying request at the same provider: attempt failed");
            }
        }
        allowed
    }

    /// Waits for a permit of a provider. `None` without an available permit.
    async fn acquire_queued(
        &self,
        candidates: &Candidates,
        state: &mut CallState,
        at: usize,
        circuit_use: CircuitUse,
    ) -> Option<CallGuard> {
        let candidate = &candidates.list[at];
        let concurrency = &candidate.provider.concurrency;
        let left = state.time_left(candidate.provider.settings.timeouts.total);
        let permit = concurrency
            .acquire_queued(concurrency.queue_wait_max().min(left))
            .await;
        let waited = self.clock.elapsed().saturating_sub(state.now);
        state.now += waited;
        let Some(permit) = permit else {
            state.tried |= 1 << at;
            let detail = format!(
                "no permit of `{}` became free in time",
                candidate.provider.settings.name
            );
            let error = fault::overloaded(detail, concurrency.queue_wait_max());
            state.error.get_or_insert(error);
            return None;
        };
        concurrency.record_wait(waited);
        let input = state.selection_input();
        // Failures of other requests may have opened the circuit meanwhile.
        let admitted =
            circuit_use == CircuitUse::LastResort || candidate.is_ready(input.account, input.now);
        let guard = admitted
            .then(|| CallGuard::start(candidate, permit, &input, circuit_use))
            .flatten();
        if guard.is_none() {
            // As a last resort the candidate may be selected once more.
            if state.turned_away & (1 << at) != 0 {
                state.tried |= 1 << at;
                let detail = "its circuit opened while the request waited for a permit";
                let error = fault::overloaded(detail, Duration::ZERO);
                state.error.get_or_insert(error);
            }
            state.turned_away |= 1 << at;
        }
        guard
    }

    /// The error for the client when no candidate is left.
    #[cold]
    fn unavailable_error(&self, state: CallState, reason: Unavailable) -> UpstreamError {
        let now = state.now.as_micros() as u64;
        let left = |until: u64| Duration::from_micros(until.saturating_sub(now));
        if let Some(error) = state.error {
            return error;
        }
        match reason {
            Unavailable::AllTried => fault::unreachable("the model has no provider"),
            Unavailable::AtCapacity(wait) => {
                fault::overloaded("all providers are at their concurrency limit", wait)
            }
            Unavailable::CircuitsOpen(until) => fault::overloaded(
                "all providers are unhealthy: their circuits are open",
                left(until),
            ),
            Unavailable::RateLimited(until) => {
                fault::limited("all providers rate-limit the gateway", left(until))
            }
        }
    }

    /// Backs off before the retry allowed by the last failure, if the call has the time; the candidate then counts as not called.
    async fn back_off(&self, candidates: &Candidates, state: &mut CallState) -> bool {
        let Some(RetryTarget { at, retries }) = state.retry.take() else {
            return false;
        };
        let backoff = BACKOFF.random(retries, &self.entropy);
        let total = candidates.list[at].provider.settings.timeouts.total;
        if backoff >= state.time_left(total) {
            return false;
        }
        tokio::time::sleep(backoff).await;
        state.now = self.clock.elapsed();
        state.tried &= !(1 << at);
        state.retried = Some(RetryTarget {
            at,
            retries: retries + 1,
        });
        true
    }

    /// The next candidate: at once, from a queue, or after a backoff. The loop is bounded: each candidate is enqueued at most twice, and at
    /// most one backoff follows a failure.
    pub(super) async fn acquire_candidate(
        &self,
        candidates: &Candidates,
        state: &mut CallState,
    ) -> Result<(usize, CallGuard), Unavailable> {
        loop {
            match self.select(candidates, state) {
                Selection::Start(at, guard) => return Ok((at, guard)),
                Selection::Enqueue(at, circuit_use) => {
                    let guard =
                        Box::pin(self.acquire_queued(candidates, state, at, circuit_use)).await;
                    if let Some(guard) = guard {
                        return Ok((at, guard));
                    }
                    state.drop_late(candidates);
                }
                Selection::None(reason) => {
                    if !Box::pin(self.back_off(candidates, state)).await {
                        return Err(reason);
                    }
                    state.drop_late(candidates);
                }
            }
        }
    }
}

impl Upstream for Caller {
    type Call = TrackedCall;

    async fn call(&self, exchange: &mut Exchange) -> Result<TrackedCall, UpstreamError> {
        let Some(forward) = exchange.get::<Forward>() else {
            return Err(fault::invalid("the exchange has no request to forward"));
        };
        let Some(candidates) = self.providers.candidates(&forward.model.id) else {
            return Err(fault::unreachable("the model has no provider"));
        };
        // The driver has just read the clock.
        let started = exchange.record.upstream_started;
        let started = started.unwrap_or_else(|| self.clock.elapsed());
        let mut state = CallState {
            account: account_of(exchange),
            started,
            now: started,
            tried: candidates.lacking(forward.api),
            attempts: 0,
            retry: None,
            retried: None,
            turned_away: 0,
            error: None,
        };
        candidates.budget.record_request();
        loop {
            let (at, guard) = match self.acquire_candidate(candidates, &mut state).await {
                Ok(next) => next,
                Err(reason) => return Err(self.unavailable_error(state, reason)),
            };
            state.attempts += 1;
            let candidate = &guard.candidate;
            exchange.record.provider = Some(candidate.provider.settings.name.clone());
            exchange.record.served_by = candidates.is_fallback(at).then(|| candidate.model.clone());
            let hedge = self.providers.settings.hedge_after;
            let ended = match hedge.filter(|_| candidates.has_others()) {
                None => {
                    let request = self.provider_request(exchange, &guard, &state)?;
                    let calls = &mut exchange.record.upstream_calls;
                    let result = self.attempt(&guard, &request, calls).await;
                    AttemptOutcome {
                        at,
                        guard,
                        body: request.body,
                        span: request.span,
                        result,
                    }
                }
                Some(after) => {
                    let first = (at, guard);
                    Box::pin(self.call_hedged(exchange, candidates, &mut state, first, after))
                        .await?
                }
            };
            let AttemptOutcome {
                at,
                guard,
                body,
                span,
                result,
            } = ended;
            let failed = match result {
                Ok(call) => return Ok(self.track(call, guard, (body, span))),
                Err(failed) => failed,
            };
            let attempt = (at, guard, &*body, span);
            let action = self.record_failure(candidates, &mut state, attempt, failed);
            if !self.allows_another_attempt(candidates, &state, at, action) {
                return Err(self.unavailable_error(state, Unavailable::AllTried));
            }
        }
    }

    fn open<'a>(&'a self, exchange: &'a mut Exchange, body: BodyLength) -> Opening<'a> {
        Box::pin(self.relays.open(exchange, body))
    }
}
