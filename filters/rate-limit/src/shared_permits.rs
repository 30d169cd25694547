//! Concurrency limits shared by every node: permits held at the shared server by run, with a few spare permits on each node.
//!
//! For each run, the server stores the number of held permits, used or spare, and their expiry. A call states the whole number that a run
//! uses and wants. A repeated or lost answer therefore changes nothing, nor does a late call of an earlier connection. Permits of a killed
//! node expire, and so do spare permits of a partition without requests.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::Mutex;
use tollgate_clock::Clock;
use tollgate_shared::{Script, Shared};

use crate::partitions::{ByPartition, Partition};
use crate::shared_limits::SharedPartition;

/// After this time without renewal the permits of a run are free.
const LIFE: Duration = Duration::from_secs(6);

/// The lifetime where a run wants few permits: at most twice a node's spare permits, which for every node together is half of the limit.
/// Few permits are the number for an account with occasional requests; a call per request would cost more than the request.
const LIFE_OF_FEW: Duration = Duration::from_secs(30);

const RENEW_EVERY: Duration = Duration::from_secs(2);

/// Concurrent calls of a renewal: calls in sequence for ten thousand busy accounts would take longer than [`RENEW_EVERY`].
const RENEWALS_AT_ONCE: usize = 64;

/// Calls for a request. A second call is needed only where many requests of a partition begin at a moment.
const CALLS_MAX: u32 = 4;

/// Sets the number of permits of a run: the wanted number, as far as other runs leave permits, but never fewer than the used number.
/// Returns the number. A call over an earlier connection than the run's last connection changes nothing. To detect late calls after the
/// return of the last permit, the entry stays with 0 until the entry expires.
///
/// Arguments: permits in use, permits wanted, the limit, milliseconds of life, the number of the connection, the run.
const HOLD: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000 + math.floor(time[2] / 1000)
local used, wanted, limit, life = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3]), tonumber(ARGV[4])
local connection, run = tonumber(ARGV[5]), ARGV[6]
local others = 0
local runs = redis.call('HGETALL', KEYS[1])
for at = 1, #runs, 2 do
  local count, expires, last = string.match(runs[at + 1], '^(%d+):(%d+):(%d+)$')
  if not expires or tonumber(expires) <= now then
    redis.call('HDEL', KEYS[1], runs[at])
  elseif runs[at] ~= run then
    others = others + tonumber(count)
  elseif tonumber(last) > connection then
    return {tonumber(count)}
  end
end
local held = math.max(used, math.min(wanted, limit - others))
redis.call('HSET', KEYS[1], run, string.format('%d:%.0f:%d', held, now + life, connection))
if redis.call('PTTL', KEYS[1]) < life then
  redis.call('PEXPIRE', KEYS[1], ARGV[4])
end
return {held}
";

/// The permits of a partition on this node.
#[derive(Debug)]
struct NodePermits {
    /// Requests in progress.
    used: u32,
    /// Requests that wait for a permit.
    waiting: u32,
    /// Permits that the server counts for this run. Fewer than the used permits only after a loss of the server.
    granted: u32,
    limit: NonZeroU32,
    /// A permit was issued since the last renewal.
    active: bool,
    /// Until when, at least, the server counts the granted permits.
    until: Duration,
    /// The connection of the grant, and the number of the server's data losses.
    origin: (u64, u64),
    /// A task that returns spare permits is under way.
    returning: bool,
    key: Arc<str>,
    /// Held during a call: calls of a partition reach the server in order.
    turn: Arc<Mutex<()>>,
}

/// The permits of all partitions.
pub(crate) struct SharedPermits {
    shared: Shared,
    clock: Clock,
    hold: Script,
    held: ByPartition<NodePermits>,
}

/// The permit of a request in progress. The drop releases the permit.
pub(crate) struct SharedPermit {
    permits: Arc<SharedPermits>,
    partition: Partition,
}

/// A request that waits for a permit. The drop ends the wait.
struct Waiting<'p> {
    permits: &'p SharedPermits,
    partition: Partition,
}

/// The local part of a decision.
pub(crate) enum Acquired {
    /// A spare permit, or a permit of this node's share.
    Permit(SharedPermit),
    /// The server is unreachable, and this node's share is used.
    Refused,
    /// The server has to be asked.
    Ask,
}

impl SharedPermits {
    pub(crate) fn new(shared: Shared, clock: Clock) -> Arc<SharedPermits> {
        Arc::new(SharedPermits {
            shared,
            clock,
            hold: Script::new(HOLD),
            held: ByPartition::default(),
        })
    }

    /// Issues a spare permit, or while the server is unreachable a permit of this node's share.
    pub(crate) fn acquire_now(
        self: &Arc<Self>,
        partition: &SharedPartition,
        limit: NonZeroU32,
    ) -> Acquired {
        let is_reachable = self.shared.is_reachable();
        let issued = self.issue(partition, limit, |held| match is_reachable {
            true if !self.is_counted(held, RENEW_EVERY) => 0,
            true => held.granted.min(limit.get()),
            false => self.share(limit),
        });
        match issued {
            Some(permit) => Acquired::Permit(permit),
            None if is_reachable => Acquired::Ask,
            None => Acquired::Refused,
        }
    }

    /// Asks the server for a permit, for permits of the partition's other waiting requests, and for a few spare permits. `None` where the
    /// limit is reached. Without an answer this node's share decides.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        partition: &SharedPartition,
        limit: NonZeroU32,
    ) -> Option<SharedPermit> {
        let turn = self.with(partition, limit, |held| {
            held.waiting += 1;
            held.turn.clone()
        });
        let _waiting = Waiting {
            permits: self,
            partition: partition.partition,
        };
        let turn = tokio::time::timeout(self.shared.call_limit(), turn.lock_owned()).await;
        if turn.is_err() {
            return self.issue(partition, limit, |_| self.share(limit));
        }
        for _ in 0..CALLS_MAX {
            // Another call may have brought spare permits meanwhile.
            match self.acquire_now(partition, limit) {
                Acquired::Permit(permit) => return Some(permit),
                Acquired::Refused => return None,
                Acquired::Ask => {}
            }
            let wanted = |held: &NodePermits| held.used + held.waiting + self.spare(limit);
            match self.call(partition.partition, wanted).await {
                Some((used, granted)) if granted <= used => return None,
                // Requests that did not wait for their turn may take the permit granted for this request.
                Some(_) => {}
                None => return self.issue(partition, limit, |_| self.share(limit)),
            }
        }
        self.issue(partition, limit, |held| held.granted)
    }

    /// Renews used permits, and forgets unused permits, for as long as the gateway runs.
    pub(crate) async fn renew(self: Arc<Self>) {
        loop {
            tokio::time::sleep(RENEW_EVERY).await;
            for some in self.begin_round().chunks(RENEWALS_AT_ONCE) {
                join_all(some.iter().map(|partition| self.renew_one(*partition))).await;
            }
        }
    }

    /// The partitions with used permits that have to be stated at the server. Partitions with only spare permits are forgotten after a
    /// while.
    fn begin_round(&self) -> Vec<Partition> {
        let mut due = Vec::new();
        self.held.retain(|partition, held| {
            // More permits are used where this node's share has decided.
            let is_stated = held.used <= held.granted && self.is_counted(held, 2 * RENEW_EVERY);
            if held.used > 0 && !is_stated {
                due.push(*partition);
            }
            // Not during a call, which may bring permits.
            let is_called = held.waiting > 0 || held.turn.try_lock().is_err();
            held.used > 0 || self.is_counted(held, RENEW_EVERY) || is_called
        });
        due
    }

    /// Whether the server counts the granted permits for longer than `time`. The server may have lost its data before the last connection,
    /// and may lose data while the connection stays.
    fn is_counted(&self, held: &NodePermits, time: Duration) -> bool {
        held.origin == self.origin() && self.clock.elapsed() + time < held.until
    }

    fn origin(&self) -> (u64, u64) {
        (self.shared.connections(), self.shared.data_losses())
    }

    async fn renew_one(&self, partition: Partition) {
        let spare = |held: &mut NodePermits| match std::mem::take(&mut held.active) {
            true => u32::MAX,
            false => 0,
        };
        self.reduce(partition, spare).await;
    }

    /// Keeps `spare` spare permits, and states the held permits at the server.
    async fn reduce(&self, partition: Partition, spare: impl FnOnce(&mut NodePermits) -> u32) {
        let Some(turn) = self.held.get(&partition).map(|held| held.turn.clone()) else {
            return;
        };
        let _turn = turn.lock_owned().await;
        if let Some(mut held) = self.held.get_mut(&partition) {
            held.returning = false;
            let spare = spare(&mut held);
            let most = held.used.saturating_add(spare);
            // Before the call: no returned permit is issued meanwhile.
            held.granted = held.granted.min(most);
        }
        let wanted = |held: &NodePermits| held.granted.max(held.used);
        self.call(partition, wanted).await;
        let is_unused = |_: &Partition, held: &NodePermits| {
            held.used == 0 && held.granted == 0 && held.waiting == 0
        };
        self.held.remove_if(&partition, is_unused);
    }

    /// States the used and wanted permits of this run. Returns (permits in use at the call, permits granted). The caller has the turn of
    /// the partition.
    async fn call(
        &self,
        partition: Partition,
        wanted: impl FnOnce(&NodePermits) -> u32,
    ) -> Option<(u32, u32)> {
        let origin = self.origin();
        let (key, used, life, arguments) = {
            let held = self.held.get(&partition)?;
            let wanted = wanted(&held);
            let life = match wanted <= 2 * self.spare(held.limit) {
                true => LIFE_OF_FEW,
                false => LIFE,
            };
            let [used, wanted, limit] = [held.used, wanted, held.limit.get()].map(i64::from);
            let life_millis = life.as_millis() as i64;
            let arguments = [used, wanted, limit, life_millis, origin.0 as i64];
            (held.key.clone(), held.used, life, arguments)
        };
        let until = self.clock.elapsed() + life;
        let answer = self.shared.invoke(&self.hold, &key, &arguments).await;
        let answer = answer.ok();
        let granted = answer.and_then(|numbers| u32::try_from(*numbers.first()?).ok());
        let mut held = self.held.get_mut(&partition)?;
        let Some(granted) = granted else {
            // The server may have executed the call: in this case the server counts this run's permits for the call's lifetime only.
            held.until = held.until.min(until);
            return None;
        };
        (held.granted, held.until, held.origin) = (granted, until, origin);
        Some((used, granted))
    }

    /// Issues a permit where fewer than `most` are used.
    fn issue(
        self: &Arc<Self>,
        partition: &SharedPartition,
        limit: NonZeroU32,
        most: impl FnOnce(&NodePermits) -> u32,
    ) -> Option<SharedPermit> {
        let is_issued = self.with(partition, limit, |held| {
            let is_issued = held.used < most(held);
            held.used += u32::from(is_issued);
            held.active |= is_issued;
            is_issued
        });
        is_issued.then(|| SharedPermit {
            permits: self.clone(),
            partition: partition.partition,
        })
    }

    fn with<T>(
        &self,
        partition: &SharedPartition,
        limit: NonZeroU32,
        work: impl FnOnce(&mut NodePermits) -> T,
    ) -> T {
        let held = self.held.entry(partition.partition);
        let mut held = held.or_insert_with(|| NodePermits {
            used: 0,
            waiting: 0,
            granted: 0,
            limit,
            active: true,
            until: Duration::ZERO,
            origin: (0, 0),
            returning: false,
            key: partition.key("permits"),
            turn: Arc::default(),
        });
        // A reload may have changed the limit.
        held.limit = limit;
        work(&mut held)
    }

    /// The spare permits that a node keeps; the spare permits of every node are at most a quarter of the limit.
    fn spare(&self, limit: NonZeroU32) -> u32 {
        limit.get() / self.shared.nodes().saturating_mul(4)
    }

    fn share(&self, limit: NonZeroU32) -> u32 {
        (limit.get() / self.shared.nodes()).max(1)
    }

    /// Releases a permit. Spare permits beyond the node's number are returned immediately, for other nodes.
    fn release(self: &Arc<Self>, partition: Partition) {
        let Some(mut held) = self.held.get_mut(&partition) else {
            return;
        };
        held.used = held.used.saturating_sub(1);
        let spare = self.spare(held.limit);
        if held.granted > held.used.saturating_add(spare) && !held.returning {
            held.returning = true;
            drop(held);
            let permits = self.clone();
            let task = async move { permits.reduce(partition, |_| spare).await };
            self.shared.spawn(task);
        }
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if let Some(mut held) = self.permits.held.get_mut(&self.partition) {
            held.waiting = held.waiting.saturating_sub(1);
        }
    }
}

impl Drop for SharedPermit {
    fn drop(&mut self) {
        self.permits.release(self.partition);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_clock::{Entropy, ManualClock, Timestamp};
    use tollgate_module::{Services, check_text};
    use tollgate_money::AccountId;
    use tollgate_shared::RawShared;
    use tollgate_testing::{Redis, RedisLink, within};

    use super::*;
    use crate::partitions::Owner;

    /// The connection of a node.
    async fn connect(url: &str, call_limit: Duration) -> Shared {
        let text = format!("url = '{url}'");
        let settings = check_text::<RawShared>(&text, &Services::default());
        let mut settings = settings.expect("a good URL").expect("a server");
        settings.call_limit = call_limit;
        let shared = Shared::new(settings, Entropy::system()).expect("a name");
        tokio::spawn(shared.clone().run());
        until("the connection", || shared.is_reachable()).await;
        shared
    }

    async fn until(what: &str, is_so: impl Fn() -> bool) {
        let polled = async {
            while !is_so() {
                tokio::task::yield_now().await;
            }
        };
        within(what, polled).await;
    }

    fn partition() -> SharedPartition {
        SharedPartition {
            partition: Partition {
                owner: Owner::Account(AccountId::from_bytes([1; 16])),
                lane: 0,
            },
            lane: None,
        }
    }

    /// A single node, and a partition with a limit of forty: ten spare permits are kept.
    struct Node {
        permits: Arc<SharedPermits>,
        manual: ManualClock,
        partition: SharedPartition,
        limit: NonZeroU32,
        running: Vec<SharedPermit>,
    }

    impl Node {
        async fn start(redis: &Redis, call_limit: Duration) -> Node {
            let shared = connect(&redis.url(), call_limit).await;
            let (clock, manual) = Clock::manual(Timestamp::UNIX_EPOCH);
            Node {
                permits: SharedPermits::new(shared, clock),
                manual,
                partition: partition(),
                limit: NonZeroU32::new(40).expect("not zero"),
                running: Vec::new(),
            }
        }

        /// Begins requests until `requests` run, or a request is refused.
        async fn run(&mut self, requests: usize) {
            while self.running.len() < requests
                && let Some(permit) = self.permits.acquire(&self.partition, self.limit).await
            {
                self.running.push(permit);
            }
        }

        fn is_reachable(&self) -> bool {
            self.permits.shared.is_reachable()
        }

        /// The partitions that are due in the next round.
        fn next_round(&self) -> Vec<Partition> {
            self.manual.advance(RENEW_EVERY);
            self.permits.begin_round()
        }

        async fn renew(&self) {
            self.permits.renew_one(self.partition.partition).await;
        }
    }

    /// Each permit was asked for by a separate call, in sequence. Requests that had waited for the time of a call were decided by the
    /// node's share, and refused although the limit was free.
    #[tokio::test]
    async fn requests_at_once_are_asked_for_together() {
        let redis = Redis::start();
        let link = RedisLink::start(&redis);
        // Seven calls take longer than the time limit of a call, and two do not.
        let shared = connect(&link.url(), Duration::from_secs(2)).await;
        let _other = connect(&redis.url(), Duration::from_secs(60)).await;
        until("two live nodes", || shared.nodes() == 2).await;
        let (permits, partition) = (SharedPermits::new(shared, Clock::system()), partition());
        let limit = NonZeroU32::new(7).expect("not zero");
        // The server has the script from now on.
        drop(permits.acquire(&partition, limit).await);
        permits.reduce(partition.partition, |_| 0).await;
        link.delay(Duration::from_millis(350));
        let all = (0..7).map(|_| permits.acquire(&partition, limit));
        let issued = join_all(all).await;
        let issued = issued.iter().flatten().count();
        assert_eq!(issued, 7, "all that the limit allows");
    }

    /// The entries of every run are a single key. The key's life became the life of the run with the last call.
    #[tokio::test]
    async fn permits_outlive_the_shorter_ones_of_a_killed_node() {
        let redis = Redis::start();
        let nodes = (0..3).map(|_| Node::start(&redis, Duration::from_secs(60)));
        let mut nodes = join_all(nodes).await;
        until("three live nodes", || {
            nodes.iter().all(|node| node.permits.shared.nodes() == 3)
        })
        .await;
        let [few, killed, last] = &mut nodes[..] else {
            panic!("three nodes");
        };
        // A permit is used and three are spare.
        few.run(1).await;
        killed.run(40).await;
        assert_eq!(killed.running.len(), 36);
        let expired = async {
            while last.running.is_empty() {
                last.run(1).await;
            }
        };
        within("the end of their life", expired).await;
        last.run(40).await;
        assert_eq!(last.running.len(), 36);
    }

    /// The call was sent before the connection stalled, and executed after the calls over the next connection: the server counted five of
    /// forty.
    #[tokio::test]
    async fn a_late_call_of_an_earlier_connection_changes_nothing() {
        let redis = Redis::start();
        let node = Node::start(&redis, Duration::from_secs(60)).await;
        let steps = [
            ((5, 15, 1), 15),
            ((40, 50, 2), 50),
            ((5, 15, 1), 50),
            ((41, 45, 2), 45),
            ((3, 3, 3), 3),
            ((0, 0, 4), 0),
            ((3, 3, 3), 0),
        ];
        for ((used, wanted, connection), held) in steps {
            let arguments = [used, wanted, 100, 60_000, connection];
            let SharedPermits { shared, hold, .. } = &*node.permits;
            let answer = shared.invoke(hold, "tollgate:permits", &arguments).await;
            assert_eq!(answer, Ok(vec![held]), "{used} over {connection}");
        }
    }

    /// Permits with a life of thirty seconds were stated again up to 26 s later, and other nodes had the permits too.
    #[tokio::test]
    async fn permits_in_use_are_counted_again_when_the_server_has_lost_its_data() {
        let mut redis = Redis::start();
        let mut one = Node::start(&redis, Duration::from_secs(60)).await;
        let mut other = Node::start(&redis, Duration::from_secs(60)).await;
        one.run(3).await;
        redis.restart();
        until("its loss", || !one.is_reachable() && !other.is_reachable()).await;
        until("its return", || one.is_reachable() && other.is_reachable()).await;
        let spare = one.permits.acquire_now(&one.partition, one.limit);
        assert!(matches!(spare, Acquired::Ask), "no spare one is left");
        assert_eq!(one.next_round(), [one.partition.partition]);
        one.renew().await;
        other.run(40).await;
        one.run(40).await;
        assert_eq!(one.running.len() + other.running.len(), 40);
    }

    /// A `FLUSHALL`, or a failover behind an address that keeps connections: the permits were stated again up to 26 s later too.
    #[tokio::test]
    async fn permits_in_use_are_counted_again_when_the_data_is_lost_and_the_connection_is_not() {
        let redis = Redis::start();
        let mut one = Node::start(&redis, Duration::from_secs(60)).await;
        one.run(3).await;
        let _ = redis.command(&["FLUSHALL"]);
        until("the next heartbeat", || {
            one.permits.shared.data_losses() > 0
        })
        .await;
        assert_eq!(one.permits.shared.connections(), 1);
        let spare = one.permits.acquire_now(&one.partition, one.limit);
        assert!(matches!(spare, Acquired::Ask), "no spare one is left");
        assert_eq!(one.next_round(), [one.partition.partition]);
        one.renew().await;
        let mut other = Node::start(&redis, Duration::from_secs(60)).await;
        other.run(40).await;
        assert!(other.running.len() <= 37, "{}", other.running.len());
    }

    /// The call may have been executed, and states the shorter life of many permits. Permits in use were renewed too late, and other nodes
    /// had the permits too.
    #[tokio::test]
    async fn permits_are_renewed_soon_after_a_call_without_an_answer() {
        let mut redis = Redis::start();
        let mut node = Node::start(&redis, Duration::from_secs(1)).await;
        node.run(11).await;
        assert_eq!(node.next_round(), [], "they live for thirty seconds");
        redis.pause();
        node.run(12).await;
        assert_eq!(node.running.len(), 12, "by the share");
        redis.resume();
        assert_eq!(node.permits.begin_round(), [node.partition.partition]);
        node.running.pop();
        assert_eq!(node.permits.begin_round(), [], "as many as were granted");
        assert_eq!(node.next_round(), [node.partition.partition]);
    }

    #[tokio::test]
    async fn spare_permits_of_an_idle_account_are_forgotten_without_a_call() {
        let redis = Redis::start();
        let mut node = Node::start(&redis, Duration::from_secs(60)).await;
        let partition = node.partition.partition;
        let is_spare = |node: &Node| match node.permits.acquire_now(&node.partition, node.limit) {
            Acquired::Permit(permit) => drop(permit),
            Acquired::Refused | Acquired::Ask => panic!("no permit is spare"),
        };

        // A permit is used and ten are spare of the forty: the permits live for thirty seconds.
        node.run(1).await;
        for _ in 0..12 {
            assert_eq!(node.next_round(), []);
        }
        assert_eq!(node.next_round(), [partition], "26 s");
        node.renew().await;
        node.running.clear();
        is_spare(&node);
        for _ in 0..13 {
            assert_eq!(node.next_round(), []);
            is_spare(&node);
        }
        assert_eq!(node.next_round(), [], "28 s");
        assert!(node.permits.held.is_empty());
        // The server counts the permits for this run until they expire: the run has the permits again by a single call.
        node.run(1).await;
        is_spare(&node);
        // Beyond half of the limit the permits live for six seconds, and are renewed every two while in use.
        node.run(22).await;
        for _ in 0..3 {
            assert_eq!(node.next_round(), [partition]);
            node.renew().await;
        }
        // The next round is late: without a call, the permits would not be counted until the round.
        node.run(23).await;
        node.manual.advance(RENEW_EVERY);
        is_spare(&node);
        node.manual.advance(RENEW_EVERY);
        let late = node.permits.acquire_now(&node.partition, node.limit);
        assert!(matches!(late, Acquired::Ask), "two seconds before");
    }
}
