//! The second level of the cache: answers of every node at the shared server, read within a budget and written behind.
//!
//! The names of entries contain a number, the epoch. A purge on any node raises the epoch, so that earlier entries are not looked up any
//! more: immediately on the purging node, and on other nodes at their next read of the epoch. The epoch never decreases. A server with an
//! earlier state, from a backup or a replica, gets the highest epoch of the nodes again. The nodes' first levels do not follow the epoch:
//! nodes that share entries share a store, and the store's feed names purges (`purge.rs`).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::Relaxed};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tollgate_clock::{Clock, Timestamp};
use tollgate_shared::{Script, Shared};

use crate::counters::{CacheCounters, SharedResult};
use crate::entry::Entry;
use crate::key::Key;
use crate::record::{Expected, Seal, VERSION};

/// Answers in the write queue. Further answers are dropped: they are in the first level.
const QUEUE: usize = 256;

/// Not the key of releases whose epochs were random numbers.
const EPOCH_KEY: &str = "tollgate:cache:epoch_micros";

/// Raises the epoch at the server. Returns the epoch, and 1 where the server's epoch is ignored. A new epoch begins with the time, which is
/// later than every epoch that the server has lost. An epoch more than a day ahead was written by another program, or by the wrong clock of
/// a node: from this epoch a purge would not lead to a later epoch, above 2^53.
///
/// Arguments: the epoch of the node, 1 where a purge of the node is to be announced and else 0. Every number is below 2^53.
const RAISE: &str = "
local own, purges = tonumber(ARGV[1]), tonumber(ARGV[2])
local stored = tonumber(redis.call('GET', KEYS[1]))
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local latest = now + 86400000000
if own > latest then
  own = 0
end
local ignored = 0
if stored and not (stored <= latest) then
  stored, ignored = nil, 1
end
local epoch
if stored then
  epoch = math.max(own, stored + purges)
else
  epoch = math.max(own, now)
end
if epoch ~= stored then
  redis.call('SET', KEYS[1], string.format('%.0f', epoch))
end
return {epoch, ignored}
";

/// How often each node reads and raises the epoch.
const EPOCH_EVERY: Duration = Duration::from_secs(1);

/// An answer in the write queue.
pub(crate) struct Write {
    key: Key,
    /// The epoch when the answer was queued: a later purge applies to the answer.
    epoch: i64,
    entry: Arc<Entry>,
    expires: Timestamp,
}

/// The receiving end of the queue.
pub(crate) type Writes = mpsc::Receiver<Write>;

/// The entries at the shared server.
pub(crate) struct SharedEntries {
    shared: Shared,
    seal: Seal,
    queue: mpsc::Sender<Write>,
    raise: Script,
    /// The highest epoch that this node knows of.
    epoch: AtomicI64,
    /// The epoch is the server's epoch: entries may be used.
    is_known: AtomicBool,
    /// A purge has to be announced.
    is_purged: AtomicBool,
    purged: Notify,
    counters: Arc<CacheCounters>,
}

impl SharedEntries {
    pub(crate) fn new(
        shared: Shared,
        root: &[u8; 32],
        counters: Arc<CacheCounters>,
    ) -> (SharedEntries, Writes) {
        let (queue, writes) = mpsc::channel(QUEUE);
        let entries = SharedEntries {
            shared,
            seal: Seal::new(root),
            queue,
            raise: Script::new(RAISE),
            epoch: AtomicI64::new(0),
            is_known: AtomicBool::new(false),
            is_purged: AtomicBool::new(false),
            purged: Notify::new(),
            counters,
        };
        (entries, writes)
    }

    /// Whether a lookup has a chance.
    pub(crate) fn is_ready(&self) -> bool {
        self.is_known.load(Relaxed) && self.shared.is_reachable()
    }

    /// The epoch of the entries in reach now.
    pub(crate) fn epoch(&self) -> i64 {
        self.epoch.load(Relaxed)
    }

    /// The entry of a key in an epoch, if any.
    pub(crate) async fn get(
        &self,
        (epoch, key): (i64, &Key),
        model: Arc<str>,
        (bytes_max, ttl): (usize, Duration),
        clock: &Clock,
    ) -> Option<Entry> {
        let count = |result| self.counters.shared.inc(result);
        let record = match self.shared.get(&name(epoch, key)).await {
            Ok(Some(record)) => record,
            Ok(None) => {
                count(SharedResult::Miss);
                return None;
            }
            Err(_) => {
                count(SharedResult::Failed);
                return None;
            }
        };
        let expected = Expected {
            name: (epoch, key),
            model,
            bytes_max,
            ttl,
            now: clock.now(),
            elapsed: clock.elapsed(),
        };
        let entry = self.seal.read(&record, expected);
        count(match entry {
            Some(_) => SharedResult::Hit,
            None => SharedResult::Failed,
        });
        entry
    }

    /// Queues an entry to be written.
    pub(crate) fn put(&self, key: Key, entry: &Arc<Entry>, expires: Timestamp) {
        let entry = entry.clone();
        let write = Write {
            key,
            epoch: self.epoch(),
            entry,
            expires,
        };
        let is_queued = self.is_ready() && self.queue.try_send(write).is_ok();
        if !is_queued {
            self.counters.shared.inc(SharedResult::Dropped);
        }
    }

    /// Raises the epoch: no earlier entry is looked up any more.
    pub(crate) fn purge(&self, now: Timestamp) {
        let later = |epoch: i64| Some(now.as_micros().max(epoch + 1));
        let _ = self.epoch.fetch_update(Relaxed, Relaxed, later);
        self.is_purged.store(true, Relaxed);
        self.purged.notify_one();
    }

    /// Writes the queued answers, and follows the epoch.
    pub(crate) async fn run(&self, mut writes: Writes, metadata: &str, clock: &Clock) {
        let mut often = tokio::time::interval(EPOCH_EVERY);
        loop {
            tokio::select! {
                _ = often.tick() => self.follow_epoch().await,
                () = self.purged.notified() => self.follow_epoch().await,
                Some(write) = writes.recv() => self.write(write, metadata, clock).await,
            }
        }
    }

    async fn follow_epoch(&self) {
        let is_purged = self.is_purged.swap(false, Relaxed);
        let own = self.epoch.load(Relaxed);
        let arguments = [own, i64::from(is_purged)];
        let answer = self.shared.invoke(&self.raise, EPOCH_KEY, &arguments);
        let answer = answer.await.ok();
        let Some(&[raised, ignored]) = answer.as_deref().and_then(|it| it.first_chunk()) else {
            // Again with the next tick.
            self.is_purged.fetch_or(is_purged, Relaxed);
            return;
        };
        if ignored != 0 {
            tracing::warn!(
                key = EPOCH_KEY,
                "ignored the epoch of the cache at the shared server: it is in the future, which another program or a wrong clock has written"
            );
        }
        // A purge on this node meanwhile counts.
        let _ = self.epoch.compare_exchange(own, raised, Relaxed, Relaxed);
        self.is_known.store(true, Relaxed);
    }

    async fn write(&self, write: Write, metadata: &str, clock: &Clock) {
        let left = write.expires.as_micros() - clock.now().as_micros();
        let life = u64::try_from(left).ok().filter(|left| *left > 0);
        let is_purged = write.epoch != self.epoch();
        let (Some(life), Ok(text), false) = (life, write.entry.text(metadata), is_purged) else {
            return self.counters.shared.inc(SharedResult::Dropped);
        };
        let name = name(write.epoch, &write.key);
        let record = self.seal.write(
            (write.epoch, &write.key),
            &write.entry,
            &text,
            write.expires,
        );
        let life = Some(Duration::from_micros(life));
        let stored = self.shared.set(&name, &record, life).await;
        self.counters.shared.inc(match stored {
            Ok(()) => SharedResult::Stored,
            Err(_) => SharedResult::Dropped,
        });
    }
}

fn name(epoch: i64, key: &Key) -> String {
    let key = base16ct::lower::encode_string(&key.0);
    format!("tollgate:cache:{VERSION}:{epoch:x}:{key}")
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Waker};

    use tollgate_clock::Entropy;
    use tollgate_filter::CacheEntryId;
    use tollgate_module::{Services, check_text};
    use tollgate_openai::Family;
    use tollgate_shared::RawShared;
    use tollgate_testing::{Redis, within};

    use super::*;
    use crate::entry::Answer;
    use crate::purge::tests::follow;
    use crate::{Cache, CacheDeps, CacheSettings, Purge};

    const KEY: Key = Key([3; 32]);

    /// A node of a cluster: its cache, whose second level is ready.
    async fn node(redis: &Redis, root: u8) -> Arc<Cache> {
        let text = format!("url = '{}'", redis.url());
        let settings = check_text::<RawShared>(&text, &Services::default());
        let mut settings = settings.expect("a good URL").expect("a server");
        settings.call_limit = Duration::from_secs(60);
        let shared = Shared::new(settings, Entropy::system()).expect("a name");
        tokio::spawn(shared.clone().run());
        let root = [root; 32];
        let mut cache = Cache::new(CacheDeps {
            settings: CacheSettings::default(),
            bytes_max: 1 << 20,
            service: "svc",
            root: &root,
            clock: Clock::system(),
            entropy: Entropy::system(),
        });
        let writes = cache.share(shared, &root);
        let cache = Arc::new(cache);
        tokio::spawn(cache.clone().write_behind(writes));
        until("a node that is ready", || second(&cache).is_ready()).await;
        cache
    }

    fn second(cache: &Cache) -> &SharedEntries {
        cache.second_level().expect("it has a second level")
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let polled = async {
            let mut often = tokio::time::interval(Duration::from_millis(2));
            while !is_so() {
                often.tick().await;
            }
        };
        within(what, polled).await;
    }

    /// Purges at the first of these nodes. The two nodes read the purge in the feed, not simultaneously, and have equal epochs in the end.
    async fn purge(nodes: [&Arc<Cache>; 2], purge: &Purge) {
        let clock = Clock::system();
        nodes[0].purge(purge);
        for node in nodes {
            follow(node, purge);
            let read = clock.now();
            while clock.now() == read {}
        }
        until("one epoch", || {
            let [one, other] = nodes.map(|node| second(node).epoch());
            one == other
        })
        .await;
    }

    fn entry(text: &str) -> Arc<Entry> {
        entry_of(7, text)
    }

    fn entry_of(id: u8, text: &str) -> Arc<Entry> {
        Arc::new(Entry {
            id: CacheEntryId([id; 16]),
            model: "m".into(),
            tokens: None,
            expires: Duration::MAX,
            family: Family::CHAT,
            answer: Answer::as_sent(text.as_bytes()),
            events: [None, None],
        })
    }

    /// Stores an answer on a node, in both levels.
    async fn store(cache: &Cache, text: &str) {
        let entry = entry(text);
        cache.first_level().insert(KEY, entry.clone());
        let counters = cache.counters();
        let stored = counters.shared.get(SharedResult::Stored);
        let expires = Clock::system().now() + Duration::from_secs(60);
        second(cache).put(KEY, &entry, expires);
        until("the write", || {
            counters.shared.get(SharedResult::Stored) > stored
        })
        .await;
    }

    async fn read(cache: &Cache) -> Option<String> {
        let limits = (1 << 20, Duration::from_secs(60));
        let clock = Clock::system();
        let name = (second(cache).epoch(), &KEY);
        let entry = second(cache).get(name, "m".into(), limits, &clock).await?;
        let text = entry.text("x_svc").expect("a text");
        Some(String::from_utf8_lossy(&text).into_owned())
    }

    #[tokio::test]
    async fn nodes_with_one_secret_read_each_others_answers_and_others_do_not() {
        let redis = Redis::start();
        let (one, other, stranger) = (
            node(&redis, 1).await,
            node(&redis, 1).await,
            node(&redis, 2).await,
        );
        assert_eq!(read(&other).await, None);
        let text = "an answer ".repeat(1_000);
        store(&one, &text).await;
        assert_eq!(read(&other).await.as_deref(), Some(text.as_str()));
        assert_eq!(read(&stranger).await, None);
        let results: Vec<_> = other.counters().shared.values().collect();
        assert_eq!(results[..3], [("hit", 1), ("miss", 1), ("failed", 0)]);
        assert_eq!(stranger.counters().shared.get(SharedResult::Failed), 1);
    }

    #[tokio::test]
    async fn a_purge_on_one_node_reaches_the_second_level_and_the_other_nodes() {
        let mut redis = Redis::start();
        let (one, other) = (node(&redis, 1).await, node(&redis, 1).await);
        for round in 0..2 {
            store(&one, "first").await;
            store(&other, "first").await;
            purge([&one, &other], &Purge::All).await;
            for node in [&one, &other] {
                assert_eq!(read(node).await, None);
            }
            store(&one, "second").await;
            assert_eq!(read(&other).await.as_deref(), Some("second"));
            assert_eq!(other.totals().entries, 0);
            if round == 0 {
                // Without its data, the epoch of the nodes is written again, and no entry is removed from the nodes.
                redis.restart();
                until("the loss of the server", || !second(&one).is_ready()).await;
                until("its return", || {
                    second(&one).is_ready() && second(&other).is_ready()
                })
                .await;
                assert_eq!(one.totals().entries, 1);
            }
        }
    }

    /// Each node emptied its first level whenever another node had raised the epoch, and every node raised the epoch for each purge.
    #[tokio::test]
    async fn a_purge_of_one_answer_leaves_the_others_on_every_node() {
        let redis = Redis::start();
        let nodes = [node(&redis, 1).await, node(&redis, 1).await];
        let [one, other] = &nodes;
        for node in &nodes {
            for id in [1, 2] {
                let entry = entry_of(id, "an answer");
                node.first_level().insert(Key([id; 32]), entry);
            }
        }
        purge([one, other], &Purge::Entry(CacheEntryId([1; 16]))).await;
        for node in &nodes {
            assert_eq!(node.totals().entries, 1);
        }
    }

    /// The server was restored from a backup, or replaced by a replica that lagged behind. Every node took the earlier epoch, and read the
    /// purged answers.
    #[tokio::test]
    async fn a_purge_lasts_when_the_server_comes_back_with_an_earlier_state() {
        let redis = Redis::start();
        let (one, other) = (node(&redis, 1).await, node(&redis, 1).await);
        let server = &second(&one).shared;
        let at_server = async || server.get(EPOCH_KEY).await.expect("an answer");
        let purge = async || {
            one.purge(&Purge::All);
            until("the purge of the other node", || {
                second(&other).epoch() == second(&one).epoch()
            })
            .await;
        };
        purge().await;
        store(&one, "purged").await;
        let before = at_server().await.expect("an epoch");
        purge().await;
        let restored = server.set(EPOCH_KEY, &before, None).await;
        restored.expect("the server takes it");
        let raised = async {
            while at_server().await.as_ref() == Some(&before) {
                for node in [&one, &other] {
                    assert_eq!(read(node).await, None);
                }
            }
        };
        within("the epoch of the nodes at the server", raised).await;
        assert_eq!(read(&one).await, None);
    }

    /// A program with write access to the server could give the entry the name of a current answer.
    #[tokio::test]
    async fn a_purged_answer_that_is_renamed_at_the_server_is_not_read() {
        let redis = Redis::start();
        let cache = node(&redis, 1).await;
        let server = &second(&cache).shared;
        store(&cache, "purged").await;
        let before = name(second(&cache).epoch(), &KEY);
        let record = server.get(&before).await.expect("an answer");
        cache.purge(&Purge::All);
        let after = name(second(&cache).epoch(), &KEY);
        assert_ne!(before, after);
        let renamed = server.set(&after, &record.expect("a record"), None).await;
        renamed.expect("the server takes it");
        assert_eq!(read(&cache).await, None);
        assert_eq!(cache.counters().shared.get(SharedResult::Failed), 1);
    }

    /// The nodes took the epoch, and a purge could not raise the epoch: numbers of the server's scripts are exact up to 2^53.
    #[tokio::test]
    async fn an_epoch_of_the_future_is_ignored_and_purges_stay_in_force() {
        let redis = Redis::start();
        let (one, other) = (node(&redis, 1).await, node(&redis, 1).await);
        let server = &second(&one).shared;
        for huge in ["9007199254740992", "1e300", "inf", "nan"] {
            let set = server.set(EPOCH_KEY, huge.as_bytes(), None).await;
            set.expect("the server takes it");
            let followed = async {
                loop {
                    let stored = server.get(EPOCH_KEY).await.expect("an answer");
                    let is_stored = |node: &Arc<Cache>| {
                        let epoch = second(node).epoch().to_string();
                        stored.as_deref() == Some(epoch.as_bytes())
                    };
                    if is_stored(&one) && is_stored(&other) {
                        return;
                    }
                }
            };
            within("one epoch", followed).await;
            store(&one, "purged").await;
            purge([&one, &other], &Purge::All).await;
            for node in [&one, &other] {
                assert_eq!(read(node).await, None, "{huge}");
            }
        }
        // A node whose clock was wrong when it was asked for a purge.
        second(&one).purge(Timestamp::from_secs(9_000_000_000));
        let day = Clock::system().now() + Duration::from_hours(25);
        until("an epoch of now", || second(&one).epoch() < day.as_micros()).await;
    }

    /// The purging node had no connection to the server, and ended before its next connection.
    #[tokio::test]
    async fn a_purge_of_the_feed_is_announced_by_the_nodes_that_have_read_it() {
        let redis = Redis::start();
        let cache = node(&redis, 1).await;
        store(&cache, "purged").await;
        follow(&cache, &Purge::Model("other".into()));
        assert_eq!(read(&cache).await, None, "at once");
        let later = node(&redis, 1).await;
        let announced = async { while read(&later).await.is_some() {} };
        within("the purge of another node", announced).await;
    }

    /// The answer was written under the name of entries after the purge, and every node read the answer.
    #[tokio::test]
    async fn an_answer_that_waits_to_be_written_is_purged_too() {
        let redis = Redis::start();
        let cache = node(&redis, 1).await;
        let expires = Clock::system().now() + Duration::from_secs(60);
        second(&cache).put(KEY, &entry("purged"), expires);
        cache.purge(&Purge::All);
        let counters = cache.counters();
        let count = |result| counters.shared.get(result);
        until("the write", || {
            count(SharedResult::Stored) + count(SharedResult::Dropped) > 0
        })
        .await;
        assert_eq!(read(&cache).await, None);
        store(&cache, "after the purge").await;
        assert_eq!(read(&cache).await.as_deref(), Some("after the purge"));
    }

    /// The answer was stored in the first level after the purge, for as long as the first level keeps an answer.
    #[tokio::test]
    async fn an_answer_that_is_read_during_a_purge_is_not_kept() {
        let redis = Redis::start();
        let (cache, other) = (node(&redis, 1).await, node(&redis, 1).await);
        store(&other, "purged").await;
        let limits = (1 << 20, Duration::from_secs(60));
        let found = cache.read_second_level(KEY, "m".into(), limits).await;
        assert!(found.is_some());
        cache.first_level().purge_where(|_| true);
        let mut fetched = pin!(cache.read_second_level(KEY, "m".into(), limits));
        let mut context = Context::from_waker(Waker::noop());
        assert!(fetched.as_mut().poll(&mut context).is_pending());
        cache.purge(&Purge::All);
        assert!(within("the answer", fetched).await.is_none());
        assert_eq!(cache.totals().entries, 0);
    }

    #[tokio::test]
    async fn without_the_server_nothing_waits() {
        let mut redis = Redis::start();
        let cache = node(&redis, 1).await;
        redis.kill();
        until("the loss of the server", || !second(&cache).is_ready()).await;
        assert_eq!(read(&cache).await, None);
        let entry = entry("{}");
        for _ in 0..2 * QUEUE {
            second(&cache).put(KEY, &entry, Clock::system().now());
        }
        let dropped = cache.counters().shared.get(SharedResult::Dropped);
        assert_eq!(dropped, 2 * QUEUE as u64);
    }
}
