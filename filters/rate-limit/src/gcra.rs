//! GCRA at the shared server: scripts over an arrival time, in microseconds of the server's clock.

use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use tollgate_clock::Clock;
use tollgate_shared::{Script, Shared, Unavailable};

use crate::corrections::{Correction, Corrections};

const NANOS_PER_MICRO: u64 = 1_000;

/// How often corrections that the server has not executed are sent again.
const RESEND_EVERY: Duration = Duration::from_secs(1);

/// Concurrent calls while corrections are sent again.
const RESENT_AT_ONCE: usize = 64;

/// Counts the admitted cells, up to the wanted cells. Returns their number and how far the arrival time is ahead of now. The key expires
/// when the arrival time has passed. An arrival time beyond the capacity, from a longer window or from a clock that was ahead, is shortened
/// to the capacity for good.
///
/// Arguments: nanoseconds of a cell, capacity in nanoseconds, cells wanted. Every number is below 2^53.
const TAKE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local cell, capacity, wanted = tonumber(ARGV[1]), tonumber(ARGV[2]), tonumber(ARGV[3])
local arrival = tonumber(redis.call('GET', KEYS[1]) or 0)
local ahead = math.min(math.max(arrival - now, 0), math.ceil(capacity / 1000))
local cells = math.max(math.min(wanted, math.floor((capacity - ahead * 1000) / cell)), 0)
ahead = ahead + math.ceil(cells * cell / 1000)
if cells > 0 or arrival > now + ahead then
  redis.call('SET', KEYS[1], string.format('%.0f', now + ahead), 'PX', math.ceil(ahead / 1000))
end
return {cells, ahead}
";

/// Moves the arrival time, within now and the capacity.
///
/// Arguments: microseconds of the move, capacity in microseconds.
const MOVE: &str = "
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local arrival = math.max(tonumber(redis.call('GET', KEYS[1]) or 0), now)
local ahead = math.min(arrival - now + tonumber(ARGV[1]), tonumber(ARGV[2]))
if ahead > 0 then
  redis.call('SET', KEYS[1], string.format('%.0f', now + ahead), 'PX', math.ceil(ahead / 1000))
else
  redis.call('DEL', KEYS[1])
end
return {ahead}
";

/// The counts at the shared server.
#[derive(Clone)]
pub(crate) struct SharedGcra {
    shared: Shared,
    clock: Clock,
    scripts: Arc<(Script, Script)>,
    unsent: Arc<Corrections>,
}

/// The answer to a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Arrival {
    /// The counted cells; zero where the quota is used up.
    pub(crate) cells: u32,
    /// Nanoseconds by which the arrival time is ahead of now.
    pub(crate) ahead: u64,
}

impl SharedGcra {
    pub(crate) fn new(shared: Shared, clock: Clock) -> SharedGcra {
        SharedGcra {
            shared,
            clock,
            scripts: Arc::new((Script::new(TAKE), Script::new(MOVE))),
            unsent: Arc::default(),
        }
    }

    /// Counts up to `wanted` cells of this interval, within a capacity, in nanoseconds. `None` where the server does not answer in time.
    pub(crate) async fn take(
        &self,
        key: &str,
        (interval, capacity): (u64, u64),
        wanted: u32,
    ) -> Option<Arrival> {
        // A day at most.
        let arguments = [interval as i64, capacity as i64, i64::from(wanted)];
        let answer = self.shared.invoke(&self.scripts.0, key, &arguments).await;
        Arrival::read(answer.ok()?)
    }

    /// Counts a single cell. The cell is given back when no request waits for the answer any more: the result of `read` is dropped.
    pub(crate) async fn take_guarded<T: Send + 'static>(
        &self,
        key: &str,
        (cell, capacity): (u64, u64),
        read: impl FnOnce(Arrival) -> T + Send + 'static,
    ) -> Option<T> {
        let arguments = [cell as i64, capacity as i64, 1];
        let read = |numbers| Arrival::read(numbers).map(read);
        let call = self
            .shared
            .invoke_guarded(&self.scripts.0, key, &arguments, read);
        call.await.ok()?
    }

    /// How often the server has lost its data.
    pub(crate) fn data_losses(&self) -> u64 {
        self.shared.data_losses()
    }

    /// Corrects a count, without waiting for the answer.
    pub(crate) fn correct(&self, key: Arc<str>, correction: Correction) {
        let this = self.clone();
        self.shared
            .spawn(async move { this.send(key, correction).await });
    }

    async fn send(&self, key: Arc<str>, correction: Correction) {
        let correction = correction.with_losses(self.data_losses());
        if correction.nanos == 0 {
            return;
        }
        let micros = correction.nanos.div_euclid(NANOS_PER_MICRO as i64);
        let arguments = [micros, (correction.capacity / NANOS_PER_MICRO) as i64];
        let answer = self.shared.invoke(&self.scripts.1, &key, &arguments).await;
        // Without an answer, the server may have executed the correction. A second execution would give back cells used by other requests.
        // Without any execution, the larger count drains.
        if answer == Err(Unavailable::NotExecuted) {
            self.unsent.keep(key, correction, self.now());
        }
    }

    /// Sends corrections that the server has not executed, for as long as the gateway runs.
    pub(crate) async fn resend(self) {
        let mut often = tokio::time::interval(RESEND_EVERY);
        loop {
            often.tick().await;
            if self.shared.is_reachable() {
                for some in self.unsent.take(self.now()).chunks(RESENT_AT_ONCE) {
                    let sent = some.iter().map(|(key, one)| self.send(key.clone(), *one));
                    join_all(sent).await;
                }
            }
        }
    }

    fn now(&self) -> u64 {
        self.clock.elapsed().as_nanos() as u64
    }
}

impl Arrival {
    fn read(numbers: Vec<i64>) -> Option<Arrival> {
        let [cells, ahead] = numbers[..] else {
            return None;
        };
        Some(Arrival {
            cells: u32::try_from(cells).ok()?,
            ahead: ahead.unsigned_abs() * NANOS_PER_MICRO,
        })
    }
}
