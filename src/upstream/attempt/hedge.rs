//! Hedged requests: a second attempt beside a slow attempt. The first answer is used, the other attempt is cancelled.

use std::pin::pin;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tollgate_chain::UpstreamError;
use tollgate_filter::Exchange;

use super::call_state::{AttemptOutcome, CallState};
use super::caller::Caller;
use crate::upstream::route::{CallGuard, Candidates, Selection};
use crate::upstream::transport::ProviderRequest;

impl Caller {
    /// Calls one provider, and after `after` another provider too.
    pub(super) async fn call_hedged(
        &self,
        exchange: &mut Exchange,
        candidates: &Candidates,
        state: &mut CallState,
        (at, guard): (usize, CallGuard),
        after: Duration,
    ) -> Result<AttemptOutcome, UpstreamError> {
        let request = self.provider_request(exchange, &guard, state)?;
        let (mut first_calls, mut second_calls) = (0, 0);
        let mut second = None;
        let (first_result, second_result) = {
            let mut first = pin!(self.attempt(&guard, &request, &mut first_calls));
            match tokio::time::timeout(after, first.as_mut()).await {
                Ok(result) => (Some(result), None),
                Err(_) => {
                    state.tried |= 1 << at;
                    second = self.start_hedge(exchange, candidates, state, &guard)?;
                    match &second {
                        None => (Some(first.await), None),
                        Some((_, guard, request)) => {
                            let second = pin!(self.attempt(guard, request, &mut second_calls));
                            race(first, second).await
                        }
                    }
                }
            }
        };
        exchange.record.upstream_calls += first_calls + second_calls;
        let (body, span) = (request.body, request.span);
        let Some((second_at, second, second_request)) = second else {
            let result = first_result.expect("one attempt was made and has ended");
            return Ok(AttemptOutcome {
                at,
                guard,
                body,
                span,
                result,
            });
        };
        state.attempts += 1;
        let counts = &second.candidate.provider.counts;
        if let Some(Ok(call)) = first_result {
            counts.hedges_lost.fetch_add(1, Relaxed);
            return Ok(AttemptOutcome {
                at,
                guard,
                body,
                span,
                result: Ok(call),
            });
        }
        let result = match second_result {
            Some(result) => result,
            None => unreachable!("a race ends with an answer or two failures"),
        };
        match &result {
            Ok(_) => counts.hedges_won.fetch_add(1, Relaxed),
            Err(_) => counts.hedges_lost.fetch_add(1, Relaxed),
        };
        if let Some(Err(failed)) = first_result {
            self.record_failure(candidates, state, (at, guard, &body, span), failed);
        }
        let winner = &second.candidate;
        exchange.record.provider = Some(winner.provider.settings.name.clone());
        exchange.record.served_by = candidates
            .is_fallback(second_at)
            .then(|| winner.model.clone());
        Ok(AttemptOutcome {
            at: second_at,
            guard: second,
            body: second_request.body,
            span: second_request.span,
            result,
        })
    }

    /// Another candidate, healthy and with capacity, and its request. A hedge is never a trial request and never waits in a queue.
    fn start_hedge(
        &self,
        exchange: &Exchange,
        candidates: &Candidates,
        state: &mut CallState,
        first: &CallGuard,
    ) -> Result<Option<(usize, CallGuard, ProviderRequest)>, UpstreamError> {
        state.now = self.clock.elapsed();
        state.drop_late(candidates);
        if state.attempts >= self.providers.settings.attempts_max {
            return Ok(None);
        }
        let now = state.now.as_micros() as u64;
        let Selection::Start(at, guard) = self.select(candidates, state) else {
            return Ok(None);
        };
        if !guard.is_ordinary() {
            return Ok(None);
        }
        if !candidates.budget.take(now) {
            first
                .candidate
                .provider
                .counts
                .refused
                .fetch_add(1, Relaxed);
            return Ok(None);
        }
        let request = self.provider_request(exchange, &guard, state)?;
        Ok(Some((at, guard, request)))
    }
}

/// Waits for the first answer, or for two failures.
async fn race<T, E>(
    mut first: impl Future<Output = Result<T, E>> + Unpin,
    mut second: impl Future<Output = Result<T, E>> + Unpin,
) -> (Option<Result<T, E>>, Option<Result<T, E>>) {
    let (mut first_result, mut second_result) = (None, None);
    while first_result.is_none() || second_result.is_none() {
        let answered = tokio::select! {
            biased;
            result = &mut first, if first_result.is_none() => first_result.insert(result).is_ok(),
            result = &mut second, if second_result.is_none() => second_result.insert(result).is_ok(),
        };
        if answered {
            break;
        }
    }
    (first_result, second_result)
}
