//! The limits shared by every node: requests and tokens by GCRA at the shared server, and permits of concurrent requests.

use std::sync::Arc;

use tollgate_clock::Clock;
use tollgate_shared::Shared;

use crate::corrections::Correction;
use crate::gcra::{Arrival, SharedGcra};
use crate::lease::{Leases, Lookup};
use crate::outstanding::Reservations;
use crate::partitions::Partition;
use crate::quota::{Decision, Quota};
use crate::shared_permits::SharedPermits;
use crate::tokens::{TokenDecision, TokenQuota};

/// The limits shared by every node. The filters of a process share a single instance.
pub(crate) struct SharedLimits {
    shared: Shared,
    gcra: SharedGcra,
    leases: Leases,
    reservations: Arc<Reservations>,
    pub(crate) permits: Arc<SharedPermits>,
}

/// A partition, with the class of a route that is counted separately.
#[derive(Clone)]
pub(crate) struct SharedPartition {
    pub(crate) partition: Partition,
    pub(crate) lane: Option<Arc<str>>,
}

impl SharedPartition {
    /// The key of a count of the partition.
    pub(crate) fn key(&self, count: &str) -> Arc<str> {
        let lane = self.lane.as_deref().unwrap_or_default();
        format!("tollgate:{count}:{lane}:{}", self.partition.owner).into()
    }
}

impl SharedLimits {
    pub(crate) fn new(shared: Shared, clock: Clock) -> SharedLimits {
        SharedLimits {
            gcra: SharedGcra::new(shared.clone(), clock.clone()),
            permits: SharedPermits::new(shared.clone(), clock),
            leases: Leases::default(),
            reservations: Arc::default(),
            shared,
        }
    }

    /// The part of a quota that this node uses without the server.
    pub(crate) fn share(&self, quota: &Quota) -> Quota {
        quota.share(self.shared.nodes())
    }

    /// The part of a quota of tokens that this node uses without the server.
    pub(crate) fn token_share(&self, quota: &TokenQuota) -> TokenQuota {
        quota.share(self.shared.nodes())
    }

    /// The decision of leases and remembered refusals on a request; `None` while the server is unreachable.
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

    /// Asks the server for `cells` cells, of which the request takes a cell. `None` where the server does not answer in time.
    pub(crate) async fn ask(
        &self,
        partition: &SharedPartition,
        quota: &Quota,
        cells: u32,
        clock: &Clock,
    ) -> Option<Decision> {
        let (quota, key) = (quota.in_micros(), partition.key("requests"));
        let taken = self.gcra.take(&key, quota.interval_and_capacity(), cells);
        let taken = taken.await?;
        let now = clock.elapsed().as_nanos() as u64;
        Some(self.leases.answer(partition.partition, &quota, taken, now))
    }

    /// Counts the tokens that a request may use, or refuses the request; `None` where the server does not answer in time.
    pub(crate) async fn reserve(
        &self,
        partition: &SharedPartition,
        quota: &TokenQuota,
        tokens: u64,
        clock: &Clock,
    ) -> Option<(TokenDecision, Option<SharedReservation>)> {
        if !self.shared.is_reachable() {
            return None;
        }
        let key = partition.key("tokens");
        let begun = (self.shared.data_losses(), clock.elapsed().as_nanos() as u64);
        let tokens = tokens.min(quota.limit().get());
        let cost = quota.nanos(tokens);
        let guard = {
            let (gcra, key, quota, clock) = (self.gcra.clone(), key.clone(), *quota, clock.clone());
            let (reservations, partition) = (self.reservations.clone(), partition.partition);
            move |taken: Arrival| {
                let admitted = taken.cells > 0;
                let decision = quota.decision(admitted.then_some(tokens), cost, taken.ahead);
                let reservation = admitted.then(|| SharedReservation {
                    gcra,
                    clock,
                    quota,
                    key,
                    number: reservations.add(partition, cost, begun),
                    reservations,
                    partition,
                    is_over: false,
                });
                (decision, reservation)
            }
        };
        let taken = self.gcra.take_guarded(&key, (cost, quota.window()), guard);
        taken.await
    }

    /// The background work for as long as the gateway runs: the renewal of permits and the sending of corrections.
    pub(crate) async fn run(self: Arc<Self>) {
        let permits = self.permits.clone();
        futures_util::future::join(permits.renew(), self.gcra.clone().resend()).await;
    }
}

/// Tokens counted at the server for a request. The drop takes the tokens back: the request used no tokens.
pub(crate) struct SharedReservation {
    gcra: SharedGcra,
    clock: Clock,
    quota: TokenQuota,
    key: Arc<str>,
    reservations: Arc<Reservations>,
    partition: Partition,
    /// The number of the reservation, among the reservations of its partition.
    number: u64,
    /// Whether the reservation was settled.
    is_over: bool,
}

impl SharedReservation {
    /// Replaces the reserved tokens by the used tokens.
    ///
    /// A part of the reservation has drained since. At most the rest is taken back, so that no tokens used by other requests meanwhile are
    /// returned.
    pub(crate) fn settle(mut self, used: u64) {
        self.replace_by(used);
    }

    fn replace_by(&mut self, used: u64) {
        let (losses, now) = (
            self.gcra.data_losses(),
            self.clock.elapsed().as_nanos() as u64,
        );
        let capacity = self.quota.window();
        let used = self.quota.nanos(used).min(capacity);
        let reservation = (self.partition, self.number);
        let ended = (losses, now);
        let left = self
            .reservations
            .replace(reservation, used, capacity, ended);
        self.is_over = true;
        if used != left {
            let correction = Correction {
                nanos: used as i64 - left as i64,
                capacity,
                losses,
            };
            self.gcra.correct(self.key.clone(), correction);
        }
    }
}

impl Drop for SharedReservation {
    fn drop(&mut self) {
        if !self.is_over {
            self.replace_by(0);
        }
    }
}
