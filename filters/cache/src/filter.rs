//! The filter: looks up before the call, stores after it.

use std::any::Any;
use std::collections::HashSet;
use std::sync::Arc;

use tokio::sync::oneshot;
use tollgate_filter::{
    AnswerCopy, AnswerProgress, AnswerUsage, Body, CacheEntryId, CacheStatus, Clamped, Clock,
    Contract, Ending, Entropy, Exchange, FailureMode, Filter, FilterError, Forward, Outcome, Phase,
    Principal, Reply, ReplyBody, Step, Tail, Tokens,
};
use tollgate_openai::{CompletionRequest, Endpoint, Fold, KeepError, Stamp};

use crate::CacheSettings;
use crate::counters::{Counters, Flight, Lookup, Storing};
use crate::entry::{Answer, Entry};
use crate::error::CacheError;
use crate::flight::{Flights, Joined, Leader, Turn};
use crate::key::{Key, Keys, scope};
use crate::store::{EntryStore, Purge};

/// Gives equal requests one answer. One of it serves every route that names it.
pub struct Cache {
    settings: CacheSettings,
    keys: Keys,
    store: EntryStore,
    flights: Arc<Flights>,
    counters: Arc<Counters>,
    /// The name of the metadata object.
    metadata: Box<str>,
    /// Models whose answers are never stored.
    uncached: HashSet<Arc<str>>,
    clock: Clock,
    entropy: Entropy,
}

/// What a cache is made of.
pub struct Parts<'a> {
    /// The settings.
    pub settings: CacheSettings,
    /// The service's own word, `svc` in `x_svc`.
    pub service: &'a str,
    /// The store's 32 random bytes, from which the secret of the keys is derived.
    pub root: &'a [u8; 32],
    /// Models whose answers are never stored.
    pub uncached: HashSet<Arc<str>>,
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub entropy: Entropy,
}

/// How full a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Stored answers.
    pub entries: u64,
    /// Bytes of memory they count for.
    pub bytes: u64,
    /// Bytes they may have.
    pub bytes_max: u64,
    /// Requests that wait for the answer to an equal one.
    pub waiting: u64,
}

/// A request that found nothing and whose answer may be stored. Dropped with the exchange it passes the lead on.
struct Pending {
    key: Key,
    /// None for a request that has waited in vain and goes by itself.
    leader: Option<Leader>,
}

/// What a look at the cache gives.
enum Looked {
    /// Go on.
    Nothing,
    Found(Key, Arc<Entry>),
    Wait(Key, oneshot::Receiver<Turn>),
}

/// A stream as it passes.
#[derive(Debug)]
struct Copy(Fold);

impl AnswerCopy for Copy {
    fn event(&mut self, data: &[u8]) {
        self.0.event(data);
    }
}

impl Cache {
    /// An empty cache.
    pub fn new(parts: Parts<'_>) -> Cache {
        let Parts {
            settings,
            service,
            root,
            uncached,
            clock,
            entropy,
        } = parts;
        let counters = Arc::new(Counters::default());
        Cache {
            keys: Keys::new(root),
            store: EntryStore::new(
                settings.bytes_max,
                settings.entry_bytes_max,
                counters.clone(),
            ),
            flights: Arc::default(),
            counters,
            metadata: format!("x_{service}").into(),
            uncached,
            settings,
            clock,
            entropy,
        }
    }

    /// What it counts, for the metrics.
    pub fn counters(&self) -> Arc<Counters> {
        self.counters.clone()
    }

    /// How full it is.
    pub fn totals(&self) -> Totals {
        Totals {
            entries: self.store.len() as u64,
            bytes: self.store.weight(),
            bytes_max: self.settings.bytes_max as u64,
            waiting: self.flights.waiting() as u64,
        }
    }

    /// Removes entries, and says how many there were. Replies under way have theirs still.
    pub fn purge(&self, what: &Purge) -> u64 {
        self.store.purge(what)
    }

    /// Removes entries that are out of date, and says how many. To be called now and then: nobody may ever ask for them again.
    pub fn sweep(&self) -> u64 {
        self.store.sweep(self.clock.elapsed())
    }

    fn look_up(&self, exchange: &mut Exchange) -> Result<Looked, FilterError> {
        let request: &CompletionRequest = exchange
            .get::<CompletionRequest>()
            .ok_or(CacheError::Missing { what: "request" })?;
        let forward = exchange
            .get::<Forward>()
            .ok_or(CacheError::Missing { what: "forward" })?;
        let principal = exchange
            .get::<Principal>()
            .ok_or(CacheError::Missing { what: "principal" })?;
        let scope = scope(
            principal.sharing,
            &self.settings.partition,
            principal.account,
            &principal.class,
        );
        let pass = |exchange: &mut Exchange, status| {
            exchange.record.cache = Some(status);
            self.counters.lookup(Lookup::Bypass);
            Ok(Looked::Nothing)
        };
        let Some(scope) = scope.filter(|_| request.cache && self.settings.enabled) else {
            return pass(exchange, CacheStatus::Bypass);
        };
        // What a plugin brings may be another thing every time.
        if request.plugins || self.uncached.contains(&forward.model.id) {
            return pass(exchange, CacheStatus::Uncacheable);
        }
        let body = &exchange.request.body;
        let Ok(key) = self.keys.key(scope, &forward.model, request, body) else {
            // It cannot be told from others.
            return pass(exchange, CacheStatus::Uncacheable);
        };
        let brought = self.flights.brought(&key);
        if let Some(entry) = self.store.get(&key, || self.clock.elapsed()) {
            return Ok(Looked::Found(key, entry));
        }
        match self.flights.join(key) {
            Joined::Leads(leader) if self.flights.brought(&key) == brought => {
                self.miss(exchange, key, Some(leader));
                Ok(Looked::Nothing)
            }
            // An answer has come since it was looked for, to this key or another.
            Joined::Leads(leader) => Ok(self.lead(exchange, key, leader)),
            Joined::Follows(turn) => Ok(Looked::Wait(key, turn)),
        }
    }

    /// Goes on as the one request of its key, unless the answer has come in the meantime.
    fn lead(&self, exchange: &mut Exchange, key: Key, leader: Leader) -> Looked {
        if let Some(entry) = self.store.get(&key, || self.clock.elapsed()) {
            leader.complete(&entry);
            return Looked::Found(key, entry);
        }
        self.miss(exchange, key, Some(leader));
        Looked::Nothing
    }

    fn miss(&self, exchange: &mut Exchange, key: Key, leader: Option<Leader>) {
        self.counters.lookup(Lookup::Miss);
        // Until it is stored.
        exchange.record.cache = Some(CacheStatus::Uncacheable);
        exchange.put(Pending { key, leader });
    }

    /// Waits for what the leader brings.
    async fn follow(
        &self,
        exchange: &mut Exchange,
        key: Key,
        turn: oneshot::Receiver<Turn>,
    ) -> Result<Outcome, FilterError> {
        let looked = match tokio::time::timeout(self.settings.wait, turn).await {
            Ok(Ok(Turn::Answer(entry))) => {
                self.counters.flight(Flight::Followed);
                Looked::Found(key, entry)
            }
            Ok(Ok(Turn::Lead(leader))) => {
                self.counters.flight(Flight::TookOver);
                self.lead(exchange, key, leader)
            }
            // Too long, and it goes by itself: the others wait on.
            Ok(Err(_)) | Err(_) => {
                self.counters.flight(Flight::GaveUp);
                self.miss(exchange, key, None);
                Looked::Nothing
            }
        };
        match looked {
            Looked::Found(key, entry) => self.reply(exchange, key, &entry),
            Looked::Nothing | Looked::Wait(..) => Ok(Outcome::Continue),
        }
    }

    /// Answers with an entry.
    fn reply(
        &self,
        exchange: &mut Exchange,
        key: Key,
        entry: &Arc<Entry>,
    ) -> Result<Outcome, FilterError> {
        let request = exchange
            .get::<CompletionRequest>()
            .ok_or(CacheError::Missing { what: "request" })?;
        let mut id = [0; 41];
        let stamp = Stamp {
            id: reply_id(entry.endpoint, exchange.request.id.as_bytes(), &mut id),
            created: u64::try_from(self.clock.unix_micros() / 1_000_000).unwrap_or(0),
        };
        let kept = entry.kept(&self.metadata).map_err(CacheError::Entry)?;
        if let Some(settled) = entry.settled() {
            self.store.replace(key, Arc::new(settled));
        }
        let reply = if request.stream {
            let events = match entry.stream(request.include_usage) {
                Some(events) => events.write(stamp),
                None => {
                    let made = entry.with_stream(kept, request.include_usage);
                    let (more, events) = made.map_err(CacheError::Entry)?;
                    let more = more.settled().unwrap_or(more);
                    self.store.replace(key, Arc::new(more));
                    events.write(stamp)
                }
            };
            let mut reply = Reply::json(bytes::Bytes::new());
            reply.body = ReplyBody::Events(events);
            reply
        } else {
            Reply::json(Entry::whole(kept, stamp))
        };
        self.counters.lookup(Lookup::Hit);
        exchange.record.cache = Some(CacheStatus::Hit);
        exchange.record.cache_entry = Some(entry.id);
        if let Some(usage) = exchange.get_mut::<AnswerUsage>() {
            usage.reported = entry.tokens;
            if entry.tokens.is_none() {
                kept.append_text(&mut usage.text);
            }
        }
        Ok(Outcome::reply(reply))
    }

    /// Stores an answer that is whole, and gives it to those who wait for it.
    fn store(&self, exchange: &mut Exchange, tail: &mut Tail, pending: Pending) {
        let usage = exchange.get_mut::<AnswerUsage>();
        let (tokens, copy) =
            usage.map_or((None, None), |usage| (usage.reported, usage.copy.take()));
        let finished = exchange
            .get::<AnswerProgress>()
            .is_some_and(|progress| progress.finished && progress.fault.is_none());
        // Another model has answered in this one's stead; the next time this one may work again.
        let own = exchange.record.served_by.is_none();
        let whole = finished
            && own
            && match tail.ending() {
                Ending::Complete => true,
                // The rest was heard to its end, or the tokens would not have come.
                Ending::GoneDuring | Ending::GoneBefore => tokens.is_some(),
                _ => false,
            };
        if !whole {
            // What follows the pending request is told when it is dropped.
            self.counters.storing(Storing::Uncacheable);
            return;
        }
        let made = self.entry_of(exchange, tail, copy, tokens);
        let (status, storing) = match &made {
            Ok(_) => (CacheStatus::Stored, Storing::Stored),
            Err(KeepError::TooLarge { .. }) => (CacheStatus::TooLarge, Storing::TooLarge),
            Err(_) => (CacheStatus::Error, Storing::Error),
        };
        self.counters.storing(storing);
        exchange.record.cache = Some(status);
        let Ok(entry) = made else {
            return;
        };
        let entry = Arc::new(entry);
        exchange.record.cache_entry = Some(entry.id);
        self.store.insert(pending.key, entry.clone());
        if let Some(leader) = pending.leader {
            leader.complete(&entry);
        }
    }

    /// The entry that an answer makes.
    fn entry_of(
        &self,
        exchange: &mut Exchange,
        tail: &mut Tail,
        copy: Option<Box<dyn AnswerCopy>>,
        tokens: Option<Tokens>,
    ) -> Result<Entry, KeepError> {
        let expires = exchange
            .elapsed(&self.clock)
            .saturating_add(self.settings.ttl);
        let (Some(request), Some(forward)) = (
            exchange.get::<CompletionRequest>(),
            exchange.get::<Forward>(),
        ) else {
            return Err(KeepError::NoChoices);
        };
        let model = &forward.model.id;
        let bytes_max = self.settings.entry_bytes_max;
        // Nothing at all is no count: a hit is counted by us, as the answer itself was.
        let tokens = tokens.filter(|&tokens| tokens != Tokens::default());
        let (answer, tokens) = if request.stream {
            let copy: Option<Box<dyn Any>> = copy.map(|copy| copy as Box<dyn Any>);
            let copy = copy.and_then(|copy| copy.downcast::<Copy>().ok());
            let kept = copy.ok_or(KeepError::NoChoices)?.0.finish(model)?;
            let tokens = tokens.filter(|_| kept.has_usage());
            (Answer::from(kept), tokens)
        } else {
            let last = tail.last_data().ok_or(KeepError::NoChoices)?;
            if last.data.len() > bytes_max {
                return Err(KeepError::TooLarge { bytes_max });
            }
            (Answer::came(&last.data), tokens)
        };
        Ok(Entry {
            id: CacheEntryId(self.entropy.bytes()),
            model: model.clone(),
            tokens,
            expires,
            endpoint: request.endpoint,
            answer,
            events: [None, None],
        })
    }
}

/// The id of one reply, made of the request's own: unique, and nothing is drawn for it.
fn reply_id<'b>(endpoint: Endpoint, request: &[u8; 16], buffer: &'b mut [u8; 41]) -> &'b str {
    const HEX: &[u8; 16] = b"0123456789abcdef";
    let prefix: &[u8] = match endpoint {
        Endpoint::Chat => b"chatcmpl-",
        Endpoint::Text => b"cmpl-",
    };
    buffer[..prefix.len()].copy_from_slice(prefix);
    let mut at = prefix.len();
    for byte in request {
        buffer[at] = HEX[usize::from(byte >> 4)];
        buffer[at + 1] = HEX[usize::from(byte & 15)];
        at += 2;
    }
    std::str::from_utf8(&buffer[..at]).unwrap_or_default()
}

impl Filter for Cache {
    fn name(&self) -> &'static str {
        "cache"
    }

    fn contract(&self) -> Contract {
        Contract {
            phases: Phase::Request | Phase::Forward | Phase::Tail | Phase::End,
            body: Body::Unread,
            on_failure: FailureMode::Allow,
        }
    }

    fn on_request<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        match self.look_up(exchange) {
            Ok(Looked::Nothing) => Step::now(Outcome::Continue),
            Ok(Looked::Found(key, entry)) => Step::Now(self.reply(exchange, key, &entry)),
            Ok(Looked::Wait(key, turn)) => Step::later(self.follow(exchange, key, turn)),
            Err(error) => Step::failed(error),
        }
    }

    fn on_forward<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        if exchange.get::<Pending>().is_none() {
            return Step::now(Outcome::Continue);
        }
        if exchange.get::<Clamped>().is_some() {
            // Shorter than what others asked for: the next one leads.
            drop(exchange.take::<Pending>());
            return Step::now(Outcome::Continue);
        }
        if exchange.record.stream
            && let Some(request) = exchange.get::<CompletionRequest>()
        {
            let fold = Fold::new(
                request.endpoint,
                &self.metadata,
                self.settings.entry_bytes_max,
            );
            if let Some(usage) = exchange.get_mut::<AnswerUsage>() {
                usage.copy = Some(Box::new(Copy(fold)));
            }
        }
        Step::now(Outcome::Continue)
    }

    fn before_tail<'a>(
        &'a self,
        exchange: &'a mut Exchange,
        tail: &'a mut Tail,
    ) -> Step<'a, Outcome> {
        if let Some(pending) = exchange.take::<Pending>() {
            self.store(exchange, tail, pending);
        }
        Step::now(Outcome::Continue)
    }

    fn on_end(&self, exchange: &mut Exchange, _: Ending) {
        // It brought nothing: refused, failed, or left alone.
        drop(exchange.take::<Pending>());
    }
}
