//! The memory of open requests, with a share per client address.
//!
//! A waiting request (for its client, for a provider, at the closed gate of an upgrade) holds its decoded head and its task, however few
//! bytes its client has sent. The memory is counted without a lock: two counters at the start of a request, and two at its end.

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, MutexGuard};
use tokio::sync::Notify;

use crate::{FREE_PER_OWNER, MemoryBudget, OverBudget};

/// Bytes of an open request without its head: task, session, stream.
pub const REQUEST_BYTES: usize = 24 * 1024;

/// Bytes of an HTTP/2 connection: task, buffers, tables of streams and fields.
pub const CONNECTION_BYTES: usize = 64 * 1024;

/// The reserve: the part of the open requests' memory for addresses with few open requests.
const RESERVE_DIVISOR: usize = 8;

/// An address with at most this many bytes may use the reserve.
const FEW_BYTES: usize = 4 * REQUEST_BYTES;

/// No prefix of an address has this number.
const NO_ADDRESS: u128 = u128::MAX;

/// While less than half is free, the addresses above their share are searched once per this number of requests.
const SEARCH_EVERY: usize = 16;

/// The memory of all open requests.
#[derive(Debug)]
pub(crate) struct OpenRequests {
    bytes_max: usize,
    bytes: AtomicUsize,
    /// Requests that were counted while less than half was free.
    taken_short: AtomicUsize,
    addresses: Mutex<HashMap<u128, Weak<AddressMemory>>>,
}

impl OpenRequests {
    pub(crate) fn new(bytes_max: usize) -> OpenRequests {
        OpenRequests {
            bytes_max,
            bytes: AtomicUsize::new(0),
            taken_short: AtomicUsize::new(0),
            addresses: Mutex::default(),
        }
    }

    /// Bytes of open requests.
    pub(crate) fn bytes(&self) -> usize {
        self.bytes.load(Relaxed)
    }

    /// Whether an address may have `own` bytes when all requests together have `all` bytes.
    fn fits(&self, own: usize, all: usize) -> bool {
        let free = self.bytes_max.saturating_sub(all);
        let reserve = match own {
            ..=FEW_BYTES => 0,
            _ => self.bytes_max / RESERVE_DIVISOR,
        };
        own.saturating_mul(FREE_PER_OWNER) <= free.saturating_sub(reserve)
    }

    /// Counts a request while less than half is free. Whether addresses above their share are to be searched.
    fn is_search_due(&self) -> bool {
        let taken = self.taken_short.fetch_add(1, Relaxed);
        taken.is_multiple_of(SEARCH_EVERY)
    }

    /// Ends a stalled write of every address above its share.
    #[cold]
    fn reclaim(&self) {
        // Collected, as dropping the last use of an address takes the lock.
        let all: Vec<_> = self
            .addresses()
            .values()
            .filter_map(Weak::upgrade)
            .collect();
        let short = all.iter().filter(|one| one.is_short());
        short.for_each(|one| one.stalled.notify_one());
    }

    fn addresses(&self) -> MutexGuard<'_, HashMap<u128, Weak<AddressMemory>>> {
        // A change is a single call of the map.
        self.addresses.lock()
    }
}

/// The memory of the open requests of a client address.
#[derive(Debug)]
pub struct AddressMemory {
    budget: MemoryBudget,
    address: u128,
    /// `false` for clients that are not limited by their address.
    has_share: bool,
    bytes: AtomicUsize,
    stalled: Notify,
}

impl MemoryBudget {
    /// The open requests of an address, by the number of its prefix; `None` for clients without a limit by address.
    pub fn address(&self, prefix: Option<u128>) -> Arc<AddressMemory> {
        let address = prefix.unwrap_or(NO_ADDRESS);
        let mut addresses = self.open_requests().addresses();
        if let Some(known) = addresses.get(&address).and_then(Weak::upgrade) {
            return known;
        }
        let memory = Arc::new(AddressMemory {
            budget: self.clone(),
            address,
            has_share: prefix.is_some(),
            bytes: AtomicUsize::new(0),
            stalled: Notify::new(),
        });
        addresses.insert(address, Arc::downgrade(&memory));
        memory
    }
}

impl AddressMemory {
    /// Counts an open request with `bytes` in addition to [`REQUEST_BYTES`].
    ///
    /// # Errors
    ///
    /// The bytes do not fit. A stalled write of the address ends, to make room for a later request.
    #[inline]
    pub fn open(self: &Arc<Self>, bytes: usize) -> Result<RequestMemory, OverBudget> {
        self.take(REQUEST_BYTES.saturating_add(bytes))
    }

    /// Counts bytes alone.
    ///
    /// # Errors
    ///
    /// The bytes do not fit. A stalled write of the address ends.
    pub fn take(self: &Arc<Self>, bytes: usize) -> Result<RequestMemory, OverBudget> {
        let requests = self.budget.open_requests();
        let own = self.bytes.fetch_add(bytes, Relaxed) + bytes;
        let all = requests.bytes.fetch_add(bytes, Relaxed) + bytes;
        // Returns the bytes when dropped.
        let memory = RequestMemory {
            address: Some(self.clone()),
            bytes,
        };
        if !self.fits(own, all) {
            drop(memory);
            self.refused(own, all);
            return Err(OverBudget);
        }
        if all > requests.bytes_max / 2 && requests.is_search_due() {
            requests.reclaim();
        }
        Ok(memory)
    }

    /// Counts the refusal of a request or a connection that did not fit.
    pub fn count_refusal(&self) {
        self.budget.count_refusal();
    }

    #[cold]
    fn refused(&self, own: usize, all: usize) {
        self.stalled.notify_one();
        let requests = self.budget.open_requests();
        // An address that is refused only for its own requests must not cause a search of all addresses.
        if own <= FEW_BYTES || all > requests.bytes_max / 2 && requests.is_search_due() {
            requests.reclaim();
        }
    }

    /// Whether another request of the address would not fit.
    fn is_short(&self) -> bool {
        let own = self.bytes.load(Relaxed) + REQUEST_BYTES;
        let all = self.budget.open_requests().bytes() + REQUEST_BYTES;
        !self.fits(own, all)
    }

    /// Whether the address may have `own` bytes when all requests together have `all` bytes.
    fn fits(&self, own: usize, all: usize) -> bool {
        let requests = self.budget.open_requests();
        match self.has_share {
            true => requests.fits(own, all),
            false => all <= requests.bytes_max,
        }
    }
}

impl Drop for AddressMemory {
    fn drop(&mut self) {
        let mut addresses = self.budget.open_requests().addresses();
        let known = addresses.get(&self.address);
        // A newer entry of the address may exist.
        if known.is_some_and(|one| one.strong_count() == 0) {
            addresses.remove(&self.address);
        }
    }
}

/// The counted bytes of an open request. Dropping the value returns the bytes.
#[derive(Debug, Default)]
pub struct RequestMemory {
    /// `None`: nothing is counted.
    address: Option<Arc<AddressMemory>>,
    bytes: usize,
}

impl RequestMemory {
    /// The counted bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Counts `bytes` instead: the present size of a request that is held in any case.
    pub fn set(&mut self, bytes: usize) {
        let Some(address) = &self.address else {
            return;
        };
        let counters = [&address.bytes, &address.budget.open_requests().bytes];
        for counter in counters {
            match bytes.checked_sub(self.bytes) {
                Some(more) => counter.fetch_add(more, Relaxed),
                None => counter.fetch_sub(self.bytes - bytes, Relaxed),
            };
        }
        self.bytes = bytes;
    }

    /// Waits until the memory of the address is short, for a request that makes no progress.
    pub async fn short(&self) {
        let Some(address) = &self.address else {
            return std::future::pending().await;
        };
        loop {
            address.stalled.notified().await;
            if address.is_short() {
                return;
            }
        }
    }
}

impl Drop for RequestMemory {
    #[inline]
    fn drop(&mut self) {
        if let Some(address) = &self.address {
            address.bytes.fetch_sub(self.bytes, Relaxed);
            let requests = address.budget.open_requests();
            requests.bytes.fetch_sub(self.bytes, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::task::{Context, Poll, Waker};

    use super::*;

    const MIB: usize = 1 << 20;

    /// As many requests as an address may have open.
    fn greedy(address: &Arc<AddressMemory>, head: usize) -> Vec<RequestMemory> {
        std::iter::from_fn(|| address.open(head).ok()).collect()
    }

    fn is_ready(future: &mut std::pin::Pin<&mut impl Future<Output = ()>>) -> bool {
        let mut context = Context::from_waker(Waker::noop());
        future.as_mut().poll(&mut context) == Poll::Ready(())
    }

    #[test]
    fn open_requests_of_fifty_addresses_leave_room_for_the_first_of_another() {
        let budget = MemoryBudget::new(120 * MIB);
        let held: Vec<_> = (0..50)
            .map(|number| greedy(&budget.address(Some(number)), 32 << 10))
            .collect();
        let first = held[0].len() * (REQUEST_BYTES + (32 << 10));
        assert!((9 * MIB..=12 * MIB).contains(&first), "{first}");
        assert!(budget.bytes_taken() < 60 * MIB);
        let other = budget.address(Some(50));
        let few: Vec<_> = (0..3).map(|_| other.open(1024)).collect();
        assert!(few.iter().all(Result::is_ok));
        drop((held, few, other));
        assert_eq!(budget.bytes_taken(), 0);
        assert!(budget.open_requests().addresses().is_empty());
    }

    #[test]
    fn a_refusal_ends_stalled_writes_until_another_request_fits() {
        let budget = MemoryBudget::new(120 * MIB);
        let address = budget.address(Some(1));
        let mut held = greedy(&address, 0);
        let last = held.pop().expect("some");
        // The refusal that ended the loop is kept for the first request that stalls.
        let mut first = Box::pin(last.short());
        assert!(is_ready(&mut pin!(&mut first)));
        drop(first);
        let mut waits = Box::pin(last.short());
        assert!(!is_ready(&mut pin!(&mut waits)));
        assert!(address.open(MIB).is_err(), "its head does not fit");
        assert!(is_ready(&mut pin!(&mut waits)), "above the share");
        drop(waits);
        held.truncate(10);
        let mut waits = Box::pin(last.short());
        assert!(address.open(100 * MIB).is_err());
        assert!(!is_ready(&mut pin!(&mut waits)), "a request fits");
    }

    #[test]
    fn what_a_request_holds_is_counted_until_it_is_dropped() {
        let budget = MemoryBudget::new(120 * MIB);
        let address = budget.address(None);
        let mut request = address.open(30_000).expect("it fits");
        assert_eq!(budget.bytes_taken(), REQUEST_BYTES + 30_000);
        request.set(REQUEST_BYTES);
        assert_eq!(budget.bytes_taken(), REQUEST_BYTES);
        request.set(90 * MIB);
        assert_eq!(budget.bytes_taken(), 90 * MIB);
        assert!(address.open(0).is_err());
        drop(request);
        assert_eq!(budget.bytes_taken(), 0);
    }
}
