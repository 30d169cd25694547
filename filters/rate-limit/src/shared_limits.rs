//! Request quotas that all nodes share: GCRA at the shared server, behind leases and a cache of refusals.

use tollgate_clock::Clock;
use tollgate_shared::{Script, Shared};

use crate::lease::{Leases, Lookup};
use crate::partitions::Partition;
use crate::quota::{Decision, Quota};

const NANOS_PER_MICRO: u64 = 1_000;

/// Counts as many cells as are admitted, up to those wanted, and returns their number and how far the arrival time is ahead of now, in
/// microseconds. The state is the arrival time in microseconds of the server's clock, and expires when it has passed.
///
/// Arguments: nanoseconds of a cell, capacity in nanoseconds, cells wanted. All numbers are below 2^53.
const TAKE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cell, capacity, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local arrival = tonumber(redis.call('GET', KEYS[1]) or 0)
local ahead = math.min(math.max(arrival - now, 0), math.ceil(capacity / 1000))
local cells = math.min(wanted, math.floor((capacity - ahead * 1000) / cell))
if cells < 1 then
  return {0, ahead}
end
ahead = ahead + math.ceil(cells * cell / 1000)
redis.call('SET', KEYS[1], string.format('%.0f', now + ahead), 'PX', math.ceil(ahead / 1000))
return {cells, ahead}
";

/// The limits that all nodes share. Those of one process are shared by its filters.
pub(crate) struct SharedLimits {
    shared: Shared,
    take: Script,
    leases: Leases,
}

impl SharedLimits {
    pub(crate) fn new(shared: Shared) -> SharedLimits {
        SharedLimits {
            shared,
            take: Script::new(TAKE),
            leases: Leases::default(),
        }
    }

    /// The part of a quota that this node uses by itself.
    pub(crate) fn share(&self, quota: &Quota) -> Quota {
        quota.share(self.shared.nodes())
    }

    /// What leases and remembered refusals say of a request; `None` while the server is unreachable.
    pub(crate) fn lookup(&self, partition: Partition, quota: &Quota, now: u64) -> Option<Lookup> {
        if !self.shared.is_reachable() {
            return None;
        }
        let nodes = self.shared.nodes();
        Some(
            self.leases
                .lookup(partition, &quota.in_micros(), nodes, now),
        )
    }

    /// Asks the server for so many cells, of which the request takes one; `None` where it does not answer in time. `lane` is the class of a
    /// route that is counted separately.
    pub(crate) async fn ask(
        &self,
        partition: Partition,
        lane: Option<&str>,
        quota: &Quota,
        cells: u32,
        clock: &Clock,
    ) -> Option<Decision> {
        let quota = quota.in_micros();
        let (interval, capacity) = quota.interval_and_capacity();
        let arguments = [signed(interval), signed(capacity), i64::from(cells)];
        let key = format!(
            "tollgate:requests:{}:{}",
            lane.unwrap_or_default(),
            partition.owner
        );
        let answer = self
            .shared
            .invoke(&self.take, &key, &arguments)
            .await
            .ok()?;
        let [cells, ahead] = answer[..] else {
            return None;
        };
        let ahead = ahead.unsigned_abs() * NANOS_PER_MICRO;
        let now = clock.elapsed().as_nanos() as u64;
        Some(match u32::try_from(cells) {
            Ok(cells @ 1..) => self.leases.grant(partition, &quota, (cells, ahead), now),
            _ => self.leases.refuse(partition, &quota, ahead, now),
        })
    }
}

/// Intervals and capacities are at most a day.
fn signed(nanos: u64) -> i64 {
    i64::try_from(nanos).unwrap_or(i64::MAX)
}
