//! The filter: a key claimed before anything is done, an answer kept with its charge, and told again.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tollgate_filter::{
    BeforeCharge, Body, Charge, Clock, Contract, Ending, Estimated, Event, Exchange, FailureMode,
    Filter, FilterError, Outcome, Phase, Principal, Reply, ReplyBody, Step, Tail, Tokens,
};
use tollgate_ledger::Beside;
use tollgate_money::Micros;
use tollgate_openai::{CompletionRequest, Endpoint};
use tollgate_store::{
    Admission, CommitError, IdempotencyKey, IdempotencyPart, KeptAnswer, KeyUse, Part, Refusal,
    Store, UnitOfWork, commit,
};

use crate::IdempotencySettings;
use crate::claim::{Claim, Moments};
use crate::counters::Counters;
use crate::error::{KeyError, bad_key, not_kept, other_request, overloaded, under_way};
use crate::key::{FIELD, key};
use crate::recording::{self, About};

/// On answers that are told again.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// How much longer than a hold a claim lives: whoever has lost the one can no longer be charged when the other is taken over.
const AFTER_HOLD: Duration = Duration::from_secs(120);

/// The most keys that are forgotten at once, so that nobody waits long behind it.
const FORGET_MAX: u32 = 500;

/// What is charged where no filter charges.
const FREE: Charge = Charge {
    used: Micros::ZERO,
    remaining: Micros::ZERO,
    tokens: Tokens {
        prompt: 0,
        completion: 0,
    },
    estimated: false,
};

/// Answers a completion that repeats its `Idempotency-Key` from the record.
pub struct Idempotency {
    settings: IdempotencySettings,
    /// How long a claim lives.
    claim: Duration,
    store: Arc<dyn Store>,
    clock: Clock,
    moments: Moments,
    counters: Arc<Counters>,
}

impl Idempotency {
    /// A filter over one store, whose keys of an earlier run it frees. `hold` is how long credit is held for one request at most.
    pub fn new(
        settings: IdempotencySettings,
        hold: Duration,
        store: Arc<dyn Store>,
        clock: Clock,
    ) -> Idempotency {
        let filter = Idempotency {
            settings,
            claim: hold.saturating_add(AFTER_HOLD),
            store,
            clock,
            moments: Moments::default(),
            counters: Arc::default(),
        };
        // Queued before any claim of this run can be.
        filter.send(part(IdempotencyPart::FreeAll));
        filter
    }

    /// What this filter counts, for the metrics.
    pub fn counters(&self) -> Arc<Counters> {
        Arc::clone(&self.counters)
    }

    /// Forgets keys that have expired. To be called now and then.
    pub fn forget(&self) {
        self.send(part(IdempotencyPart::Forget {
            now: self.clock.unix_micros(),
            limit: FORGET_MAX,
        }));
    }

    /// Queues a part that nobody waits for.
    fn send(&self, part: Part) {
        let done = Box::new(|result| {
            if let Err(CommitError::Refused(refusal)) = result {
                tracing::error!(%refusal, "a change of an idempotency key was refused");
            }
        });
        // A store that has stopped ends the process, and the next start frees what is claimed.
        let _ = self
            .store
            .submit(UnitOfWork::of(part, Admission::Ends), done);
    }

    /// Claims the key of a request, or answers it.
    async fn claim(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let Ok(key) = key(&exchange.request.headers) else {
            return Ok(Outcome::refuse(bad_key()));
        };
        let account = exchange
            .get::<Principal>()
            .ok_or(KeyError::Missing { what: "principal" })?
            .account;
        let endpoint = exchange
            .get::<CompletionRequest>()
            .ok_or(KeyError::Missing { what: "request" })?
            .endpoint;
        let key = IdempotencyKey {
            account,
            endpoint: match endpoint {
                Endpoint::Chat => tollgate_store::Endpoint::Chat,
                Endpoint::Text => tollgate_store::Endpoint::Completions,
            },
            key,
        };
        // By the clock that nobody sets: a jump of the other must not end the claim of an answer under way.
        let now = self.clock.steady_micros();
        let at = self.clock.unix_micros();
        let locked_until = self.moments.unique(after(now, self.claim));
        let claim = part(IdempotencyPart::Claim {
            key: key.clone(),
            request_hash: *blake3::hash(&exchange.request.body).as_bytes(),
            now,
            locked_until,
            at,
            expires_at: after(at, self.settings.keep),
        });
        // Before the wait: whoever is cut off in it still frees the key at its end.
        let bytes_max = self.settings.answer_bytes_max;
        exchange.put(Claim::new(key.clone(), locked_until, bytes_max));
        exchange.put(BeforeCharge::new(keep_beside));
        let claimed = commit(&*self.store, UnitOfWork::of(claim, Admission::Begins)).await;
        let error = match claimed {
            Ok(_) => {
                self.counters.claimed();
                return Ok(Outcome::Continue);
            }
            Err(error) => error,
        };
        // It is somebody else's.
        exchange.take::<Claim>();
        exchange.take::<BeforeCharge>();
        match error {
            CommitError::Refused(Refusal::KeyInUse(KeyUse::Answered)) => {
                self.replay(exchange, key).await
            }
            CommitError::Refused(Refusal::KeyInUse(KeyUse::OtherRequest)) => {
                self.counters.conflict();
                Ok(Outcome::refuse(other_request()))
            }
            CommitError::Refused(Refusal::KeyInUse(_)) => Ok(self.busy()),
            CommitError::Overloaded { .. } => Ok(Outcome::refuse(overloaded())),
            error => Err(KeyError::Claim(error).into()),
        }
    }

    fn busy(&self) -> Outcome {
        self.counters.under_way();
        Outcome::refuse(under_way())
    }

    /// Tells the answer of an earlier request again.
    async fn replay(
        &self,
        exchange: &mut Exchange,
        key: IdempotencyKey,
    ) -> Result<Outcome, FilterError> {
        let store = Arc::clone(&self.store);
        let read = tokio::task::spawn_blocking(move || store.idempotency(&key)).await;
        let row = read.map_err(KeyError::Ended)?.map_err(KeyError::Read)?;
        let Some(KeptAnswer { headers, body, .. }) = row.and_then(|row| row.answer) else {
            // It has expired between the two looks; the next attempt is the first again.
            return Ok(self.busy());
        };
        let Some(body) = body else {
            self.counters.conflict();
            return Ok(Outcome::refuse(not_kept()));
        };
        let about = About::read(&headers).ok_or(KeyError::Unreadable)?;
        let body = about.body(&body).ok_or(KeyError::Unreadable)?;
        let mut reply = Reply::json(Bytes::new());
        reply.body = match body {
            recording::Body::Whole(body) => ReplyBody::Whole(body),
            recording::Body::Events(events) => ReplyBody::Events(events),
        };
        // What the client is told is what it was told then. The record that is counted and logged stays at nothing.
        exchange.put(about.charge());
        exchange.record.cache = about.cache();
        exchange.record.cache_entry = about.cache_entry();
        exchange
            .reply_headers
            .insert(REPLAYED, HeaderValue::from_static("true"));
        self.counters.replayed();
        Ok(Outcome::Reply(Box::new(reply)))
    }

    /// Keeps the answer of a request that nobody has charged for.
    async fn keep(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let charge = exchange.get::<Charge>().copied().unwrap_or(FREE);
        let about = About::new(&exchange.record, &charge);
        let Some(claim) = exchange.get::<Claim>() else {
            return Ok(Outcome::Continue);
        };
        let part = claim.keep(about);
        let unit = UnitOfWork::of(part, Admission::Ends);
        match commit(&*self.store, unit).await {
            Ok(_) => Ok(Outcome::Continue),
            Err(error) => Err(KeyError::Keep(error).into()),
        }
    }
}

/// Puts the part that keeps the answer beside its charge.
fn keep_beside(exchange: &mut Exchange, tokens: Tokens, estimated: Estimated) {
    let Some(claim) = exchange.get::<Claim>() else {
        return;
    };
    let claim = claim.clone();
    let record = About::new(&exchange.record, &FREE);
    exchange.put(Beside::new(move |settled| {
        let about = record.charged(&Charge {
            used: settled.charged,
            remaining: settled.available,
            tokens,
            estimated: estimated.0,
        });
        claim.keep(about)
    }));
}

impl Filter for Idempotency {
    fn name(&self) -> &'static str {
        "idempotency"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::Event | Phase::Tail | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Deny,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        if !exchange.request.headers.contains_key(FIELD) {
            return Step::now(Outcome::Continue);
        }
        Step::later(self.claim(exchange))
    }

    fn on_event(&self, exchange: &mut Exchange, event: &mut Event<'_>) {
        if let Some(claim) = exchange.get::<Claim>() {
            claim.recording().take(event.kind(), event.data());
        }
    }

    fn before_tail<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        tail: &'a mut Tail,
    ) -> Step<'a, Outcome> {
        let Some(claim) = exchange.get::<Claim>() else {
            return Step::now(Outcome::Continue);
        };
        if claim.recording().too_large() {
            self.counters.too_large();
        }
        let whole = matches!(tail.ending(), Ending::Complete | Ending::Answered);
        if claim.recording().kept || !whole {
            return Step::now(Outcome::Continue);
        }
        Step::later(self.keep(exchange))
    }

    fn on_end(&self, exchange: &mut Exchange, ending: Ending) {
        if let Some(claim) = exchange.take::<Claim>()
            && !is_kept(claim.recording().kept, ending)
        {
            self.send(claim.free());
        }
    }
}

/// Whether an answer that was handed over for keeping is known to be kept. Of any other the key is freed, which does nothing where
/// the answer is there after all.
fn is_kept(handed_over: bool, ending: Ending) -> bool {
    handed_over && matches!(ending, Ending::Complete | Ending::Answered)
}

fn part(part: IdempotencyPart) -> Part {
    Part::Idempotency(Box::new(part))
}

fn after(moment: i64, time: Duration) -> i64 {
    moment.saturating_add(i64::try_from(time.as_micros()).unwrap_or(i64::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_taken_only_when_its_answer_has_been_kept() {
        for (handed_over, ending, kept) in [
            (true, Ending::Complete, true),
            (true, Ending::Answered, true),
            // The store had no room for the charge, and the answer was lost with it.
            (true, Ending::Unsettled, false),
            (true, Ending::GoneDuring, false),
            (false, Ending::Complete, false),
            (false, Ending::Refused, false),
        ] {
            assert_eq!(
                is_kept(handed_over, ending),
                kept,
                "{handed_over} {ending:?}"
            );
        }
    }
}
