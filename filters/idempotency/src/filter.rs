//! The idempotency filter: claims a key before any work, stores the answer in the commit of the answer's charge, and replays the answer for
//! a repeat.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use tollgate_clock::{Clock, Deadline, Reading};
use tollgate_counters::Counters;
use tollgate_filter::{
    BeforeCharge, Body, CacheStatus, Charge, Contract, Ending, Estimated, Event, Exchange,
    FailureMode, Filter, FilterError, Outcome, Phase, Principal, Reply, ReplyBody, Step, Tail,
    Tokens, Unpaid,
};
use tollgate_ledger::AttachedPart;
use tollgate_module::Snapshot;
use tollgate_money::Micros;
use tollgate_openai::{CompletionRequest, Family};
use tollgate_store::{
    Admission, CommitError, Endpoint, IdempotencyKey, IdempotencyPart, IdempotencyRow, KeptAnswer,
    KeyUse, Part, Refusal, Store, UnitOfWork, commit, commit_unless_cut_off, first_token, reading,
};

use crate::IdempotencySettings;
use crate::claim::{Claim, OpenClaims};
use crate::counters::KeyEvent;
use crate::error::{
    KeyError, bad_key, cut_off, not_kept, other_request, overloaded, too_many_keys, under_way,
};
use crate::key::{FIELD, key};
use crate::recording::{self, Metadata};

/// Marks replayed answers.
const REPLAYED: HeaderName = HeaderName::from_static("idempotent-replayed");

/// How much longer than a hold a claim lives: a request whose claim was taken over can no longer be charged.
const AFTER_HOLD: Duration = Duration::from_secs(120);

/// The most expired keys deleted by a commit. A larger commit would delay other commits.
const FORGET_MAX: u32 = 500;

/// The scope of keys in the store, for each family.
const ENDPOINTS: [Endpoint; Family::ALL.len()] = Endpoint::table(Family::STORED);

/// The charge on a route without `meter`.
const FREE: Charge = Charge {
    used: Micros::ZERO,
    remaining: Micros::ZERO,
    tokens: Tokens {
        prompt: 0,
        completion: 0,
    },
    estimated: false,
};

/// Answers a completion with a repeated `Idempotency-Key` from the record.
pub struct Idempotency {
    settings: Snapshot<IdempotencySettings>,
    /// Lifetime of a claim.
    claim: Duration,
    store: Arc<dyn Store>,
    clock: Clock,
    claims: OpenClaims,
    counters: Arc<Counters<KeyEvent>>,
}

impl Idempotency {
    /// A filter over a store. Frees the keys that an earlier run left claimed. `hold` is the longest lifetime of a hold.
    pub fn new(
        settings: impl Into<Snapshot<IdempotencySettings>>,
        hold: Duration,
        store: Arc<dyn Store>,
        clock: Clock,
    ) -> Idempotency {
        let token = first_token(store.node(), store.earliest_epoch());
        let filter = Idempotency {
            settings: settings.into(),
            claim: hold.saturating_add(AFTER_HOLD),
            claims: OpenClaims::new(first_token(store.node(), store.epoch())),
            store,
            clock,
            counters: Arc::default(),
        };
        // Queued before any claim of this run.
        filter.send(part(IdempotencyPart::FreeBefore { token }));
        filter
    }

    /// The filter's counters, for the metrics.
    pub fn counters(&self) -> Arc<Counters<KeyEvent>> {
        Arc::clone(&self.counters)
    }

    /// Deletes expired keys, and lets claims lapse whose requests have outlived their holds. Called by a timer.
    pub fn forget(&self) {
        for lapse in self.claims.take_expired(self.clock.elapsed()) {
            tracing::warn!("idempotency claim lapsed: its request outlived its hold");
            self.send(lapse);
        }
        self.send(part(IdempotencyPart::Forget {
            now: self.clock.now(),
            limit: FORGET_MAX,
        }));
    }

    /// Queues a part without waiting for its commit.
    fn send(&self, part: Part) {
        let done = Box::new(|result| {
            if let Err(CommitError::Refused(refusal)) = result {
                tracing::error!(%refusal, "updating idempotency key failed: refused by the store");
            }
        });
        // A failed store ends the process. The next start, or the node's recovery by another node, frees the claimed keys.
        let _ = self
            .store
            .submit(UnitOfWork::of(part, Admission::Always), done);
    }

    /// Claims the key of a request, or replays the recorded answer.
    async fn claim(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let Ok(key) = key(&exchange.request.headers) else {
            return Ok(Outcome::refuse(bad_key()));
        };
        let account = exchange
            .get::<Principal>()
            .ok_or(KeyError::Missing { what: "principal" })?
            .account;
        let family = exchange
            .get::<CompletionRequest>()
            .ok_or(KeyError::Missing { what: "request" })?
            .family;
        let key = IdempotencyKey {
            account,
            endpoint: ENDPOINTS[family.place()],
            key,
        };
        let request_hash = *blake3::hash(&exchange.request.body).as_bytes();
        if let Some(unpaid) = exchange.take::<Unpaid>() {
            return self
                .replay_unpaid(exchange, key, request_hash, unpaid)
                .await;
        }
        let Reading { elapsed, now } = self.clock.reading();
        let deadline = Deadline::after(elapsed, self.claim);
        let token = self.claims.enter(key.clone(), deadline);
        let settings: IdempotencySettings = **self.settings.load();
        let claim = part(IdempotencyPart::Claim {
            key: key.clone(),
            request_hash,
            token,
            at: now,
            expires_at: now + settings.keep,
            limits: Some(settings.limits),
        });
        // Before the wait: a request cancelled during the wait still frees the key at its end.
        let bytes_max = settings.answer_bytes_max;
        exchange.put(Claim::new(key.clone(), token, bytes_max));
        exchange.put(BeforeCharge::new(keep_beside));
        let claim = UnitOfWork::of(claim, Admission::Normal);
        let claimed = commit_unless_cut_off(&*self.store, claim).await;
        let error = match claimed {
            Ok(_) => {
                self.counters.inc(KeyEvent::Claimed);
                return Ok(Outcome::Continue);
            }
            Err(error) => error,
        };
        if matches!(error, CommitError::CutOff) {
            // The claim may be in the queue: its end frees the key.
            exchange.take::<BeforeCharge>();
            return Ok(Outcome::refuse(cut_off()));
        }
        // Another request has claimed the key.
        self.claims.remove(token);
        exchange.take::<Claim>();
        exchange.take::<BeforeCharge>();
        match error {
            CommitError::Refused(Refusal::KeyInUse(KeyUse::Answered)) => {
                self.replay(exchange, key).await
            }
            CommitError::Refused(Refusal::KeyInUse(KeyUse::OtherRequest)) => {
                self.counters.inc(KeyEvent::Conflict);
                Ok(Outcome::refuse(other_request()))
            }
            CommitError::Refused(Refusal::KeyInUse(_)) => Ok(self.busy()),
            CommitError::Refused(Refusal::KeyQuota(quota)) => {
                self.counters.inc(KeyEvent::Limited);
                Ok(Outcome::refuse(too_many_keys(quota, &settings)))
            }
            CommitError::Overloaded { .. } => Ok(Outcome::refuse(overloaded())),
            error => Err(KeyError::Claim(error).into()),
        }
    }

    /// Answers an unpaid request from its record, and claims no key. Any other unpaid request is refused.
    async fn replay_unpaid(
        &self,
        exchange: &mut Exchange,
        key: IdempotencyKey,
        request_hash: [u8; 32],
        unpaid: Unpaid,
    ) -> Result<Outcome, FilterError> {
        match self.read(&key).await? {
            Some(row) if row.request_hash == request_hash && row.answer.is_some() => {
                self.replay(exchange, key).await
            }
            _ => Ok(Outcome::refuse(unpaid.0)),
        }
    }

    async fn read(&self, key: &IdempotencyKey) -> Result<Option<IdempotencyRow>, KeyError> {
        let key = key.clone();
        let read = reading(&self.store, move |store| store.idempotency(&key)).await;
        read.map_err(KeyError::Read)
    }

    fn busy(&self) -> Outcome {
        self.counters.inc(KeyEvent::UnderWay);
        Outcome::refuse(under_way())
    }

    /// Replays the answer of an earlier request.
    async fn replay(
        &self,
        exchange: &mut Exchange,
        key: IdempotencyKey,
    ) -> Result<Outcome, FilterError> {
        let row = self.read(&key).await?;
        let Some(KeptAnswer { headers, body, .. }) = row.and_then(|row| row.answer) else {
            // The record expired between the two reads; the next attempt claims the key.
            return Ok(self.busy());
        };
        let Some(body) = body else {
            self.counters.inc(KeyEvent::Conflict);
            return Ok(Outcome::refuse(not_kept()));
        };
        let metadata = Metadata::read(&headers).ok_or(KeyError::Unreadable)?;
        let body = metadata.body(&body).ok_or(KeyError::Unreadable)?;
        let mut reply = Reply::json(Bytes::new());
        reply.body = match body {
            recording::Body::Whole(body) => ReplyBody::Whole(body),
            recording::Body::Events(events) => ReplyBody::Events(events),
        };
        // The metadata comes from the first answer. The record for metrics and log has no charge.
        exchange.put(metadata.charge());
        exchange.record.cache = metadata.cache();
        exchange.record.cache_entry = metadata.cache_entry();
        exchange
            .reply_headers
            .insert(REPLAYED, HeaderValue::from_static("true"));
        self.counters.inc(KeyEvent::Replayed);
        Ok(Outcome::Reply(Box::new(reply)))
    }

    /// Stores the answer of a request that was not charged.
    async fn keep(&self, exchange: &mut Exchange) -> Result<Outcome, FilterError> {
        let charge = exchange.get::<Charge>().copied().unwrap_or(FREE);
        let metadata = Metadata::new(&exchange.record, &charge);
        let Some(claim) = exchange.get::<Claim>() else {
            return Ok(Outcome::Continue);
        };
        let part = claim.keep(metadata);
        let unit = UnitOfWork::of(part, Admission::Always);
        match commit(&*self.store, unit).await {
            Ok(_) => Ok(Outcome::Continue),
            Err(error) => Err(KeyError::Keep(error).into()),
        }
    }
}

/// Attaches the part that stores the answer to the commit of the answer's charge.
fn keep_beside(exchange: &mut Exchange, tokens: Tokens, estimated: Estimated) {
    let Some(claim) = exchange.get::<Claim>() else {
        return;
    };
    let claim = claim.clone();
    let record = Metadata::new(&exchange.record, &FREE);
    exchange.put(AttachedPart::new(move |settled| {
        let metadata = record.charged(&Charge {
            used: settled.charged,
            remaining: settled.available,
            tokens,
            estimated: estimated.0,
        });
        claim.keep(metadata)
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
        let Some(claim) = exchange.get::<Claim>().cloned() else {
            return;
        };
        let hit = match exchange.record.cache {
            Some(CacheStatus::Hit) => exchange.record.cache_entry,
            _ => None,
        };
        let mut recording = claim.recording();
        let bytes = event.data().len();
        if recording.fits(bytes) && exchange.memory.grow(bytes).is_ok() {
            recording.take(event.kind(), event.data(), hit);
        } else {
            exchange.memory.shrink(recording.give_up());
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
            self.counters.inc(KeyEvent::TooLarge);
        }
        let whole = matches!(tail.ending(), Ending::Complete | Ending::Answered);
        if claim.recording().kept || !whole {
            return Step::now(Outcome::Continue);
        }
        Step::later(self.keep(exchange))
    }

    fn on_end(&self, exchange: &mut Exchange, ending: Ending) {
        let Some(claim) = exchange.take::<Claim>() else {
            return;
        };
        self.claims.remove(claim.token());
        if !is_kept(claim.recording().kept, ending) {
            self.send(claim.free());
        }
    }
}

/// Whether a submitted answer is known to be stored. For any other answer the key is freed. The free has no effect if the answer was stored
/// after all.
fn is_kept(submitted: bool, ending: Ending) -> bool {
    submitted && matches!(ending, Ending::Complete | Ending::Answered)
}

fn part(part: IdempotencyPart) -> Part {
    Part::Idempotency(Box::new(part))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_stays_claimed_only_when_its_answer_was_stored() {
        for (submitted, ending, kept) in [
            (true, Ending::Complete, true),
            (true, Ending::Answered, true),
            // The disk was full: neither charge nor answer was stored.
            (true, Ending::Unsettled, false),
            (true, Ending::GoneDuring, false),
            (false, Ending::Complete, false),
            (false, Ending::Refused, false),
        ] {
            assert_eq!(is_kept(submitted, ending), kept, "{submitted} {ending:?}");
        }
    }
}
