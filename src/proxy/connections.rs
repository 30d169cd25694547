//! Connection table: the open client connections, with a share for each address prefix. Without a free place, the connection idle for the
//! longest is closed (LRU eviction).
//!
//! A connection is idle from the accept to the first complete head, and between requests. A request under way is never cut. The state of a
//! connection is one atomic: idle to busy, or idle to closing, and only one of the two transitions succeeds.

use std::collections::HashMap;
use std::pin::pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};
use tokio::task::AbortHandle;
use tollgate_clock::Clock;
use tollgate_filter::AddressPrefix;

use super::idle_order::{Activity, IdleOrder};
use crate::telemetry::{ClosedConnection, ConnectionSide, Telemetry};

/// The state of a connection with a request under way. Any other value is the start of the idle time, in microseconds of the monotonic
/// clock.
const BUSY: u64 = 0;

/// The state of a connection that is being closed.
const CLOSING: u64 = u64::MAX;

/// Interval of the search for an idle connection while all are busy.
const EVICTION_INTERVAL: Duration = Duration::from_secs(1);

/// How many connections may be open at once.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Places {
    /// In all.
    pub(crate) max: usize,
    /// Of one address prefix.
    pub(crate) per_address_max: usize,
    /// For how long a connection counts as busy after its request has ended: the last bytes may be on their way.
    pub(crate) rest: Duration,
}

/// All open connections: of clients to all workers, or of operators to the admin address.
pub(crate) struct Connections {
    limits: Places,
    places: Arc<Semaphore>,
    table: Mutex<Table>,
    clock: Clock,
    telemetry: Telemetry,
    side: ConnectionSide,
}

#[derive(Default)]
struct Table {
    next: u64,
    open: HashMap<u64, Arc<Entry>>,
    order: IdleOrder,
    prefixes: HashMap<AddressPrefix, OfPrefix>,
}

/// The connections of an address prefix.
#[derive(Default)]
struct OfPrefix {
    /// Counted connections, including connections that wait for a place and are not in the order.
    count: usize,
    order: IdleOrder,
}

struct Entry {
    prefix: OnceLock<AddressPrefix>,
    state: AtomicU64,
    /// Aborts the connection's task.
    task: OnceLock<AbortHandle>,
}

/// An accepted connection, from its count for an address prefix to its end.
pub(crate) struct Connection {
    entry: Arc<Entry>,
    connections: Arc<Connections>,
    /// The number in the table, and the place.
    place: Option<(u64, OwnedSemaphorePermit)>,
}

impl Connections {
    pub(crate) fn new(
        limits: Places,
        clock: Clock,
        telemetry: Telemetry,
        side: ConnectionSide,
    ) -> Arc<Connections> {
        Arc::new(Connections {
            limits,
            places: Arc::new(Semaphore::new(limits.max)),
            table: Mutex::default(),
            clock,
            telemetry,
            side,
        })
    }

    /// Waits until no connection has a place.
    pub(crate) async fn all_ended(&self) {
        let all = u32::try_from(self.limits.max).unwrap_or(u32::MAX);
        let _ = self.places.acquire_many(all).await;
    }

    /// An accepted connection of a client with this prefix, counted if the prefix is known. `None` when the prefix has its share and no
    /// idle connection: the new connection has to be closed.
    pub(crate) fn accept(self: &Arc<Self>, prefix: Option<AddressPrefix>) -> Option<Connection> {
        let connection = Connection {
            entry: Arc::new(Entry {
                prefix: OnceLock::new(),
                state: AtomicU64::new(self.now()),
                task: OnceLock::new(),
            }),
            connections: self.clone(),
            place: None,
        };
        let is_admitted = prefix.is_none_or(|prefix| connection.count_for(prefix));
        is_admitted.then_some(connection)
    }

    /// Closes the connection idle for the longest, of `prefix` if given. `false` without an idle connection.
    fn evict(&self, prefix: Option<AddressPrefix>, reason: ClosedConnection) -> bool {
        let now = self.now();
        let mut table = self.lock();
        let table = &mut *table;
        loop {
            let order = match prefix {
                None => Some(&mut table.order),
                Some(prefix) => table.prefixes.get_mut(&prefix).map(|of| &mut of.order),
            };
            let open = &table.open;
            let Some(number) = order.and_then(|order| {
                order.longest_idle(now, |number| {
                    match open[&number].state.load(Ordering::Acquire) {
                        BUSY => Activity::Busy,
                        since => Activity::Idle(since),
                    }
                })
            }) else {
                return false;
            };
            let entry = table.open[&number].clone();
            let busy = |state| (state != BUSY).then_some(CLOSING);
            let (set, check) = (Ordering::AcqRel, Ordering::Acquire);
            // Otherwise a request has begun on the connection meanwhile, and another connection may be idle.
            if entry.state.fetch_update(set, check, busy).is_ok() {
                table.remove(Some(number), &entry);
                self.telemetry.connection_closed(self.side, reason);
                entry.abort();
                return true;
            }
        }
    }

    /// Now, as a state.
    fn now(&self) -> u64 {
        let micros = self.clock.elapsed().as_micros() as u64;
        micros.max(BUSY + 1)
    }

    fn lock(&self) -> MutexGuard<'_, Table> {
        self.table.lock()
    }
}

impl Table {
    /// Adds a connection with a place.
    fn open(&mut self, entry: &Arc<Entry>) -> u64 {
        let number = self.next;
        self.next += 1;
        self.open.insert(number, entry.clone());
        // The time of the accept, since no request has begun on the connection.
        let since = entry.state.load(Ordering::Acquire);
        self.order.insert(number, since);
        if let Some(of_prefix) = entry
            .prefix
            .get()
            .and_then(|prefix| self.prefixes.get_mut(prefix))
        {
            of_prefix.order.insert(number, since);
        }
        number
    }

    fn remove(&mut self, number: Option<u64>, entry: &Entry) {
        if let Some(number) = number {
            self.open.remove(&number);
            self.order.remove(number);
        }
        if let Some(prefix) = entry.prefix.get()
            && let Some(of_prefix) = self.prefixes.get_mut(prefix)
        {
            of_prefix.count -= 1;
            if let Some(number) = number {
                of_prefix.order.remove(number);
            }
            if of_prefix.count == 0 {
                self.prefixes.remove(prefix);
            }
        }
    }
}

impl Entry {
    /// Ends the connection's task if already known; otherwise [`TaskSlot::set`] ends the task.
    fn abort(&self) {
        if let Some(task) = self.task.get() {
            task.abort();
        }
    }
}

/// The task of a connection, known from its start.
pub(crate) struct TaskSlot(Arc<Entry>);

impl TaskSlot {
    /// Sets the task, and ends it where the connection is being closed already.
    pub(crate) fn set(self, task: AbortHandle) {
        // Set once, here.
        let _ = self.0.task.set(task);
        if self.0.state.load(Ordering::Acquire) == CLOSING {
            self.0.abort();
        }
    }
}

impl Connection {
    /// Waits for a place, and closes idle connections of other clients for a place.
    pub(crate) async fn take_place(&mut self) {
        let connections = self.connections.clone();
        let permit = match connections.places.clone().try_acquire_owned() {
            Ok(permit) => permit,
            Err(_) => {
                if connections.side == ConnectionSide::Client {
                    connections.telemetry.connection_waited();
                }
                let mut place = pin!(connections.places.clone().acquire_owned());
                loop {
                    connections.evict(None, ClosedConnection::Full);
                    // Without an idle connection now, wait for a later one.
                    match tokio::time::timeout(EVICTION_INTERVAL, place.as_mut()).await {
                        Ok(permit) => break permit.expect("places are never closed"),
                        Err(_) => continue,
                    }
                }
            }
        };
        let mut table = connections.lock();
        let number = table.open(&self.entry);
        self.place = Some((number, permit));
    }

    /// Where the task that serves the connection is to be set.
    pub(crate) fn task_slot(&self) -> TaskSlot {
        TaskSlot(self.entry.clone())
    }

    /// Counts the connection for its client's prefix, once. When the prefix has its share, the prefix's connection idle for the longest is
    /// closed; `false` without an idle connection.
    pub(super) fn count_for(&self, prefix: AddressPrefix) -> bool {
        let connections = &*self.connections;
        let is_counted = self.is_counted(prefix)
            || connections.evict(Some(prefix), ClosedConnection::Share) && self.is_counted(prefix);
        if !is_counted {
            connections
                .telemetry
                .connection_closed(connections.side, ClosedConnection::Refused);
        }
        is_counted
    }

    /// Counts the connection if the prefix is below its share.
    fn is_counted(&self, prefix: AddressPrefix) -> bool {
        let mut table = self.connections.lock();
        // An eviction sets the state under this lock, after removing the connection.
        let state = self.entry.state.load(Ordering::Acquire);
        if state == CLOSING {
            return false;
        }
        let of_prefix = table.prefixes.entry(prefix).or_default();
        let fits = of_prefix.count < self.connections.limits.per_address_max;
        if fits {
            of_prefix.count += 1;
            // Set once, here.
            let _ = self.entry.prefix.set(prefix);
            if let Some((number, _)) = &self.place {
                of_prefix.order.insert(*number, state);
            }
        }
        fits
    }

    /// A request begins. `false` when the connection is being closed.
    pub(crate) fn begin(&self) -> bool {
        let busy = |state| (state != CLOSING).then_some(BUSY);
        let (set, check) = (Ordering::AcqRel, Ordering::Acquire);
        self.entry.state.fetch_update(set, check, busy).is_ok()
    }

    /// No request is under way any more.
    pub(crate) fn end(&self) {
        let since = self.connections.now() + self.connections.limits.rest.as_micros() as u64;
        self.entry.state.store(since, Ordering::Release);
    }
}

impl Drop for Connection {
    fn drop(&mut self) {
        let mut table = self.connections.lock();
        // An evicted connection has left the table.
        if self.entry.state.load(Ordering::Acquire) != CLOSING {
            let number = self.place.as_ref().map(|(number, _)| *number);
            table.remove(number, &self.entry);
        }
    }
}
