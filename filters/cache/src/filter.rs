//! The filter `cache`: cache-aside, a lookup before the provider is called and a store after its answer.

use std::any::Any;
use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Clock, Entropy};
use tollgate_filter::{
    AnswerCopy, AnswerProgress, AnswerUsage, Body, CacheEntryId, CacheStatus, Clamped, Contract,
    Ending, Exchange, FailureMode, Filter, FilterError, Forward, Outcome, Phase, Principal, Reply,
    ReplyBody, Step, Tail, Tokens, Unfit,
};
use tollgate_flight::{Abandoned, Handover, Joined, Rules, SingleFlight, Waiter};
use tollgate_module::Snapshot;
use tollgate_openai::{Accumulator, CompletionRequest, Family, Stamp, StoredError};
use tollgate_shared::Shared;
use tollgate_store::Store;

use crate::CacheSettings;
use crate::counters::{CacheCounters, Following, Lookup, Storing};
use crate::entry::{Answer, Entry};
use crate::error::CacheError;
use crate::key::{Key, Keys, scope};
use crate::purge::{Follower, Purge};
use crate::shared_entries::{SharedEntries, Writes};
use crate::store::EntryStore;

/// A follower leads when the leader ends without an answer.
const FLIGHTS: Rules = Rules {
    shards: 16,
    abandoned: Abandoned::PassLead,
};

type AnswerFlight = SingleFlight<Key, Arc<Entry>>;
type Leader = tollgate_flight::Leader<Key, Arc<Entry>>;

/// The completion cache with single flight. A single instance serves every route that names the cache.
pub struct Cache {
    settings: Snapshot<CacheSettings>,
    keys: Keys,
    store: EntryStore,
    bytes_max: usize,
    flight: Arc<AnswerFlight>,
    /// The second level, where the settings name a server for the second level.
    shared: Option<SharedEntries>,
    counters: Arc<CacheCounters>,
    /// The name of the metadata object.
    metadata: Box<str>,
    clock: Clock,
    entropy: Entropy,
}

/// The dependencies of a cache.
pub struct CacheDeps<'a> {
    /// The settings.
    pub settings: CacheSettings,
    /// Bytes of memory for the entries together.
    pub bytes_max: usize,
    /// The service's own word, `svc` in `x_svc`.
    pub service: &'a str,
    /// The store's 32 random bytes, the source of the keys' secret.
    pub root: &'a [u8; 32],
    /// Time.
    pub clock: Clock,
    /// Randomness.
    pub entropy: Entropy,
}

/// Sizes of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Totals {
    /// Stored answers.
    pub entries: u64,
    /// Weight of the entries in bytes of memory.
    pub bytes: u64,
    /// Limit of the weight in bytes.
    pub bytes_max: u64,
    /// Followers waiting for the answer to an equal request.
    pub waiting: u64,
}

/// A miss whose answer may be stored. The drop at the end of the exchange passes the lead on.
struct Pending {
    key: Key,
    /// `None` for a follower that waited too long and calls the provider itself.
    leader: Option<Leader>,
}

/// The result of a lookup.
enum LookupResult {
    /// The provider has to be called.
    Forward,
    Hit(Key, Arc<Entry>),
    /// No other request leads, and the second level must be asked.
    Fetch(Key, Leader),
    Follow(Key, Waiter<Key, Arc<Entry>>),
}

/// Collects a stream's events as they are relayed.
#[derive(Debug)]
struct Copy(Accumulator);

impl AnswerCopy for Copy {
    fn event(&mut self, data: &[u8]) {
        self.0.event(data);
    }
}

impl Cache {
    /// An empty cache.
    pub fn new(deps: CacheDeps<'_>) -> Cache {
        let CacheDeps {
            settings,
            bytes_max,
            service,
            root,
            clock,
            entropy,
        } = deps;
        let counters = Arc::new(CacheCounters::default());
        Cache {
            keys: Keys::new(root),
            store: EntryStore::new(bytes_max, settings.entry_bytes_max, counters.clone()),
            bytes_max,
            flight: Arc::new(AnswerFlight::new(FLIGHTS)),
            shared: None,
            counters,
            metadata: format!("x_{service}").into(),
            settings: settings.into(),
            clock,
            entropy,
        }
    }

    /// Adds a second level, at a server shared by every node of the store. The result is the argument of [`Cache::write_behind`].
    pub(crate) fn share(&mut self, shared: Shared, root: &[u8; 32]) -> Writes {
        let (entries, writes) = SharedEntries::new(shared, root, self.counters.clone());
        self.shared = Some(entries);
        writes
    }

    #[cfg(test)]
    pub(crate) fn second_level(&self) -> Option<&SharedEntries> {
        self.shared.as_ref()
    }

    #[cfg(test)]
    pub(crate) fn first_level(&self) -> &EntryStore {
        &self.store
    }

    /// Writes answers to the second level, and follows its epoch, for as long as the gateway runs.
    pub(crate) async fn write_behind(self: Arc<Self>, writes: Writes) {
        let Some(shared) = &self.shared else {
            return;
        };
        shared.run(writes, &self.metadata, &self.clock).await;
    }

    /// The cache's settings in force. The sizes are the sizes of the start.
    pub fn settings(&self) -> &Snapshot<CacheSettings> {
        &self.settings
    }

    /// The cache's counters, for the metrics.
    pub fn counters(&self) -> Arc<CacheCounters> {
        self.counters.clone()
    }

    /// Entries, bytes and waiting followers.
    pub fn totals(&self) -> Totals {
        Totals {
            entries: self.store.len() as u64,
            bytes: self.store.weight(),
            bytes_max: self.bytes_max as u64,
            waiting: self.flight.waiting() as u64,
        }
    }

    /// Removes entries and returns the number of removed entries. Replies under way keep their entries.
    pub fn purge(&self, what: &Purge) -> u64 {
        self.purge_second_level();
        self.store.purge(what)
    }

    /// Removes entries for a purge of another node. The other node may be gone before the server knows of the purge.
    pub(crate) fn purge_where(&self, matches: impl Fn(&Entry) -> bool) -> u64 {
        self.purge_second_level();
        self.store.purge_where(matches)
    }

    fn purge_second_level(&self) {
        if let Some(shared) = &self.shared {
            shared.purge(self.clock.now());
        }
    }

    /// Follows the purges of the other nodes of a cluster. A single node follows no purges.
    pub(crate) fn follow_purges(self: &Arc<Self>, store: &dyn Store) {
        if store.has_allotments() {
            store.observe(Arc::new(Follower(Arc::downgrade(self))));
        }
    }

    /// Removes expired entries and returns the number of removed entries. Called by a timer, because an expired entry may never be
    /// requested again.
    pub fn sweep(&self) -> u64 {
        self.store.sweep(self.clock.elapsed())
    }

    fn look_up(&self, exchange: &mut Exchange) -> Result<LookupResult, FilterError> {
        let request: &CompletionRequest = exchange
            .get::<CompletionRequest>()
            .ok_or(CacheError::Missing { what: "request" })?;
        let forward = exchange
            .get::<Forward>()
            .ok_or(CacheError::Missing { what: "forward" })?;
        let principal = exchange
            .get::<Principal>()
            .ok_or(CacheError::Missing { what: "principal" })?;
        let settings = self.settings.load();
        let scope = scope(
            principal.sharing,
            &settings.partition,
            principal.account,
            &principal.class,
        );
        let pass = |exchange: &mut Exchange, status| {
            exchange.record.cache = Some(status);
            self.counters.lookups.inc(Lookup::Bypass);
            Ok(LookupResult::Forward)
        };
        let Some(scope) = scope.filter(|_| request.cache && settings.enabled) else {
            return pass(exchange, CacheStatus::Bypass);
        };
        if request.external {
            return pass(exchange, CacheStatus::External);
        }
        // A plugin's result may differ between requests.
        if !request.family.cacheable
            || request.plugins
            || settings.uncached.0.contains(&forward.model.id)
        {
            return pass(exchange, CacheStatus::Uncacheable);
        }
        let body = &exchange.request.body;
        let key = self.keys.key(scope, &forward.model, request, body);
        let generation = self.flight.generation(&key);
        if let Some(entry) = self.store.get(&key, || self.clock.elapsed()) {
            return Ok(LookupResult::Hit(key, entry));
        }
        match self.flight.join(key, ()) {
            Joined::Leads(leader) if self.flight.generation(&key) == generation => {
                Ok(self.without_entry(exchange, key, leader))
            }
            // An answer was completed since the lookup, for this key or another key of the shard.
            Joined::Leads(leader) => Ok(self.lead(exchange, key, leader)),
            Joined::Follows(message, ()) => Ok(LookupResult::Follow(key, message)),
        }
    }

    /// Leads, unless the answer was stored in the meantime.
    fn lead(&self, exchange: &mut Exchange, key: Key, leader: Leader) -> LookupResult {
        if let Some(entry) = self.store.get(&key, || self.clock.elapsed()) {
            leader.complete(entry.clone());
            return LookupResult::Hit(key, entry);
        }
        self.without_entry(exchange, key, leader)
    }

    /// The next source is the second level, if any, or else the provider.
    fn without_entry(&self, exchange: &mut Exchange, key: Key, leader: Leader) -> LookupResult {
        if self.shared.as_ref().is_some_and(SharedEntries::is_ready) {
            return LookupResult::Fetch(key, leader);
        }
        self.miss(exchange, key, Some(leader));
        LookupResult::Forward
    }

    /// Asks the second level. The answer of the second level is stored here and sent to the followers, like a provider's answer.
    async fn fetch(
        &self,
        exchange: &mut Exchange,
        key: Key,
        leader: Leader,
    ) -> Result<Outcome, FilterError> {
        let settings = self.settings.load_full();
        let model = exchange
            .get::<Forward>()
            .map(|forward| forward.model.id.clone());
        let entry = match model {
            Some(model) => {
                let limits = (settings.entry_bytes_max, settings.ttl);
                self.read_second_level(key, model, limits).await
            }
            None => None,
        };
        exchange.invalidate_now();
        let Some(entry) = entry else {
            self.miss(exchange, key, Some(leader));
            return Ok(Outcome::Continue);
        };
        leader.complete(entry.clone());
        self.reply(exchange, key, &entry)
    }

    /// The second level's entry of a key. The entry is stored in the first level, unless the entry was purged meanwhile.
    pub(crate) async fn read_second_level(
        &self,
        key: Key,
        model: Arc<str>,
        limits: (usize, Duration),
    ) -> Option<Arc<Entry>> {
        let shared = self.shared.as_ref()?;
        let epoch = shared.epoch();
        let found = shared.get((epoch, &key), model, limits, &self.clock);
        let entry = Arc::new(found.await?);
        self.store.insert(key, entry.clone());
        // Compared after the insertion: a purge that begins now removes the entry.
        if shared.epoch() != epoch {
            self.store.purge_where(|stored| stored.id == entry.id);
            return None;
        }
        Some(entry)
    }

    fn miss(&self, exchange: &mut Exchange, key: Key, leader: Option<Leader>) {
        self.counters.lookups.inc(Lookup::Miss);
        // Overwritten when the answer is stored.
        exchange.record.cache = Some(CacheStatus::Uncacheable);
        exchange.put(Pending { key, leader });
    }

    /// Waits for the leader's answer.
    async fn follow(
        &self,
        exchange: &mut Exchange,
        key: Key,
        message: Waiter<Key, Arc<Entry>>,
    ) -> Result<Outcome, FilterError> {
        let wait = self.settings.load().wait;
        let result = match tokio::time::timeout(wait, message).await {
            Ok(Ok(Handover::Value(entry))) => {
                self.counters.followers.inc(Following::Followed);
                LookupResult::Hit(key, entry)
            }
            Ok(Ok(Handover::Lead(leader))) => {
                self.counters.followers.inc(Following::TookOver);
                self.lead(exchange, key, leader)
            }
            // Waited too long: this follower calls the provider itself, and the other followers keep waiting.
            Ok(Err(_)) | Err(_) => {
                self.counters.followers.inc(Following::GaveUp);
                self.miss(exchange, key, None);
                LookupResult::Forward
            }
        };
        match result {
            LookupResult::Hit(key, entry) => self.reply(exchange, key, &entry),
            LookupResult::Fetch(key, leader) => self.fetch(exchange, key, leader).await,
            LookupResult::Forward | LookupResult::Follow(..) => Ok(Outcome::Continue),
        }
    }

    /// Replays an entry.
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
            id: reply_id(entry.family, exchange.request.id.as_bytes(), &mut id),
            created: u64::try_from(self.clock.now().as_secs()).unwrap_or(0),
        };
        let stored = entry.stored(&self.metadata).map_err(CacheError::Entry)?;
        if let Some(smaller) = entry.without_original() {
            self.store.replace(key, Arc::new(smaller));
        }
        let reply = if request.stream {
            let events = match entry.stream(request.include_usage) {
                Some(events) => events.write(stamp),
                None => {
                    let made = entry.with_stream(stored, request.include_usage);
                    let (more, events) = made.map_err(CacheError::Entry)?;
                    let more = more.without_original().unwrap_or(more);
                    self.store.replace(key, Arc::new(more));
                    events.write(stamp)
                }
            };
            let mut reply = Reply::json(bytes::Bytes::new());
            reply.body = ReplyBody::Events(events);
            reply
        } else {
            Reply::json(Entry::whole(stored, stamp))
        };
        self.counters.lookups.inc(Lookup::Hit);
        exchange.record.cache = Some(CacheStatus::Hit);
        exchange.record.cache_entry = Some(entry.id);
        if let Some(usage) = exchange.get_mut::<AnswerUsage>() {
            usage.reported = entry.tokens;
            if entry.tokens.is_none() {
                stored.append_text(&mut usage.text);
            }
        }
        Ok(Outcome::reply(reply))
    }

    /// Stores a complete answer and hands it to the followers.
    fn store(&self, exchange: &mut Exchange, tail: &mut Tail, pending: Pending) {
        let usage = exchange.get_mut::<AnswerUsage>();
        let (tokens, copy) =
            usage.map_or((None, None), |usage| (usage.reported, usage.copy.take()));
        // An answer cut at a limit lowered for this account is shorter than the answer for other accounts.
        let clamped = exchange.get::<Clamped>().is_some();
        let finished = exchange.get::<AnswerProgress>().is_some_and(|progress| {
            progress.finished
                && progress.fault.is_none()
                && !progress.unclosed
                && (progress.stopped || !clamped)
        });
        // A fallback model answered; at the next request the requested model may work again.
        let own = exchange.record.served_by.is_none();
        let whole = finished
            && own
            && match tail.ending() {
                Ending::Complete => true,
                // The provider's stream was read to the end: otherwise the usage would be missing.
                Ending::GoneDuring | Ending::GoneBefore => tokens.is_some(),
                _ => false,
            };
        if !whole {
            // The followers are notified when `pending` is dropped.
            self.counters.stores.inc(Storing::Uncacheable);
            return;
        }
        if let Some(unfit) = exchange
            .get::<AnswerProgress>()
            .and_then(|progress| progress.unfit)
        {
            self.counters.stores.inc(Storing::Uncacheable);
            exchange.record.cache = Some(match unfit {
                Unfit::Incomplete => CacheStatus::Incomplete,
                Unfit::Empty => CacheStatus::Empty,
                Unfit::Ambiguous => CacheStatus::Uncacheable,
            });
            return;
        }
        let made = self.entry_of(exchange, tail, copy, tokens);
        let (status, storing) = match &made {
            Ok(_) => (CacheStatus::Stored, Storing::Stored),
            Err(StoredError::NotJoinable) => (CacheStatus::Uncacheable, Storing::Uncacheable),
            Err(StoredError::TooLarge { .. }) => (CacheStatus::TooLarge, Storing::TooLarge),
            Err(_) => (CacheStatus::Error, Storing::Error),
        };
        self.counters.stores.inc(storing);
        exchange.record.cache = Some(status);
        let Ok(entry) = made else {
            return;
        };
        let entry = Arc::new(entry);
        exchange.record.cache_entry = Some(entry.id);
        self.store.insert(pending.key, entry.clone());
        if let Some(shared) = &self.shared {
            let expires = exchange.now(&self.clock) + self.settings.load().ttl;
            shared.put(pending.key, &entry, expires);
        }
        if let Some(leader) = pending.leader {
            leader.complete(entry.clone());
        }
    }

    /// The entry for an answer.
    fn entry_of(
        &self,
        exchange: &mut Exchange,
        tail: &mut Tail,
        copy: Option<Box<dyn AnswerCopy>>,
        tokens: Option<Tokens>,
    ) -> Result<Entry, StoredError> {
        let expires = exchange
            .elapsed(&self.clock)
            .saturating_add(self.settings.load().ttl);
        let (Some(request), Some(forward)) = (
            exchange.get::<CompletionRequest>(),
            exchange.get::<Forward>(),
        ) else {
            return Err(StoredError::NoChoices);
        };
        let model = &forward.model.id;
        let bytes_max = self.settings.load().entry_bytes_max;
        let (answer, tokens) = if request.stream {
            let copy: Option<Box<dyn Any>> = copy.map(|copy| copy as Box<dyn Any>);
            let copy = copy.and_then(|copy| copy.downcast::<Copy>().ok());
            let stored = copy.ok_or(StoredError::NoChoices)?.0.finish(model)?;
            let tokens = tokens.filter(|_| stored.has_usage());
            (Answer::from(stored), tokens)
        } else {
            let last = tail.last_data().ok_or(StoredError::NoChoices)?;
            if last.data.len() > bytes_max {
                return Err(StoredError::TooLarge { bytes_max });
            }
            (Answer::as_sent(&last.data), tokens)
        };
        Ok(Entry {
            id: CacheEntryId(self.entropy.bytes()),
            model: model.clone(),
            tokens,
            expires,
            family: request.family,
            answer,
            events: [None, None],
        })
    }
}

/// The id of a reply, made of the request's id: unique without another random number.
fn reply_id<'b>(family: &Family, request: &[u8; 16], buffer: &'b mut [u8; 41]) -> &'b str {
    let prefix = family.answer.id_prefix.as_bytes();
    buffer[..prefix.len()].copy_from_slice(prefix);
    let end = prefix.len() + 32;
    base16ct::lower::encode(request, &mut buffer[prefix.len()..end])
        .expect("two digits for each byte");
    std::str::from_utf8(&buffer[..end]).unwrap_or_default()
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
            Ok(LookupResult::Forward) => Step::now(Outcome::Continue),
            Ok(LookupResult::Hit(key, entry)) => Step::Now(self.reply(exchange, key, &entry)),
            Ok(LookupResult::Fetch(key, leader)) => Step::later(self.fetch(exchange, key, leader)),
            Ok(LookupResult::Follow(key, message)) => {
                Step::later(self.follow(exchange, key, message))
            }
            Err(error) => Step::failed(error),
        }
    }

    fn on_forward<'a>(&'a self, exchange: &'a mut Exchange) -> Step<'a, Outcome> {
        if exchange.get::<Pending>().is_none() {
            return Step::now(Outcome::Continue);
        }
        if exchange.record.stream
            && let Some(request) = exchange.get::<CompletionRequest>()
        {
            let accumulator = Accumulator::new(
                request.family,
                &self.metadata,
                self.settings.load().entry_bytes_max,
            );
            if let Some(usage) = exchange.get_mut::<AnswerUsage>() {
                usage.copy = Some(Box::new(Copy(accumulator)));
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
        // Ended without an answer: refused, failed, or cancelled.
        drop(exchange.take::<Pending>());
    }
}
