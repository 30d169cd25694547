#![doc = include_str!("../README.md")]
#![warn(missing_docs)]

mod address;

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use address::OpenRequests;
pub use address::{AddressMemory, CONNECTION_BYTES, REQUEST_BYTES, RequestMemory};
use parking_lot::{Mutex, MutexGuard};

/// Bytes that a request may hold without being counted.
pub const FREE_BYTES: usize = 16 * 1024;

/// Bytes are taken in steps of this size: a growing request rarely takes the lock.
const STEP_BYTES: usize = 64 * 1024;

/// The open requests' memory, as a part of the budget and in addition to the budget.
const OPEN_REQUESTS_DIVISOR: usize = 2;

/// Four times the bytes of an owner must fit into the free rest.
const FREE_PER_OWNER: usize = 4;

/// The part of the budget for requests of a kind without a paying account.
const UNPAID_DIVISOR: usize = 16;

/// Copies of a body or a whole answer that exist at once.
pub const COPIES: usize = 2;

/// The owner of counted bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Owner {
    /// All requests without an account.
    #[default]
    Unknown,
    /// All requests of accounts without credit.
    Uncredited,
    /// An account, by the bytes of its id.
    Account([u8; 16]),
}

/// The bytes do not fit into the budget, or into the share of their owner.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OverBudget;

/// A budget shared by all requests.
#[derive(Clone, Debug)]
pub struct MemoryBudget(Arc<Budget>);

#[derive(Debug)]
struct Budget {
    bytes_max: usize,
    taken: Mutex<Usage>,
    open_requests: OpenRequests,
    refused: AtomicU64,
}

#[derive(Debug, Default)]
struct Usage {
    bytes: usize,
    /// Owners without any are removed.
    owners: HashMap<Owner, usize>,
}

impl MemoryBudget {
    /// A budget of `bytes_max` bytes for bodies and buffers, and of half as many in addition for open requests.
    pub fn new(bytes_max: usize) -> MemoryBudget {
        MemoryBudget(Arc::new(Budget {
            bytes_max,
            taken: Mutex::default(),
            open_requests: OpenRequests::new(bytes_max / OPEN_REQUESTS_DIVISOR),
            refused: AtomicU64::new(0),
        }))
    }

    /// Bytes for bodies and buffers.
    pub fn bytes_max(&self) -> usize {
        self.0.bytes_max
    }

    /// Bytes for bodies, buffers and open requests.
    pub fn bytes_in_all(&self) -> usize {
        self.0
            .bytes_max
            .saturating_add(self.0.bytes_max / OPEN_REQUESTS_DIVISOR)
    }

    /// Bytes taken, by bodies, buffers and open requests.
    pub fn bytes_taken(&self) -> usize {
        self.taken().bytes + self.0.open_requests.bytes()
    }

    /// How often bytes were refused.
    pub fn refused(&self) -> u64 {
        self.0.refused.load(Relaxed)
    }

    /// The maximum of an owner's bytes when no other owner has bytes.
    pub fn share_max(&self, owner: Owner) -> usize {
        let share = self.0.bytes_max / (FREE_PER_OWNER + 1);
        match owner {
            Owner::Account(_) => share,
            Owner::Unknown | Owner::Uncredited => self.0.bytes_max / UNPAID_DIVISOR,
        }
    }

    fn open_requests(&self) -> &OpenRequests {
        &self.0.open_requests
    }

    fn count_refusal(&self) {
        self.0.refused.fetch_add(1, Relaxed);
    }

    fn take(&self, owner: Owner, bytes: usize) -> Result<(), OverBudget> {
        let mut taken = self.taken();
        let all = taken.bytes.saturating_add(bytes);
        let own = taken.owners.get(&owner).copied().unwrap_or(0);
        let own = own.saturating_add(bytes);
        let free = self.0.bytes_max.saturating_sub(all);
        let fits = own.saturating_mul(FREE_PER_OWNER) <= free && own <= self.share_max(owner);
        if !fits {
            return Err(OverBudget);
        }
        taken.bytes = all;
        taken.owners.insert(owner, own);
        Ok(())
    }

    fn give_back(&self, owner: Owner, bytes: usize) {
        let mut taken = self.taken();
        taken.bytes -= bytes;
        if let Some(own) = taken.owners.get_mut(&owner) {
            *own -= bytes;
            if *own == 0 {
                taken.owners.remove(&owner);
            }
        }
    }

    fn taken(&self) -> MutexGuard<'_, Usage> {
        // Both fields are changed together, without a panic between.
        self.0.taken.lock()
    }
}

/// The bytes of a request. Dropping the value returns the bytes.
#[derive(Debug, Default)]
pub struct MemoryUse {
    /// `None`: nothing is limited.
    budget: Option<MemoryBudget>,
    owner: Owner,
    bytes: usize,
    /// The bytes taken from the budget.
    taken: usize,
}

impl MemoryUse {
    /// A request that holds no bytes yet.
    pub fn within(budget: &MemoryBudget) -> MemoryUse {
        MemoryUse {
            budget: Some(budget.clone()),
            ..MemoryUse::default()
        }
    }

    /// Another use for the owner: for buffers that outlive a call with the request, and are counted by another holder.
    #[must_use]
    pub fn another(&self) -> MemoryUse {
        MemoryUse {
            budget: self.budget.clone(),
            owner: self.owner,
            ..MemoryUse::default()
        }
    }

    /// Whether `bytes` fit into the owner's share when nothing else is held.
    pub fn can_ever_hold(&self, bytes: usize) -> bool {
        self.share_max().is_none_or(|share| bytes <= share)
    }

    fn share_max(&self) -> Option<usize> {
        let budget = self.budget.as_ref()?;
        Some(budget.share_max(self.owner).saturating_add(FREE_BYTES))
    }

    /// Counts for the owner from now on. Only before bytes are taken.
    pub fn set_owner(&mut self, owner: Owner) {
        debug_assert_eq!(self.taken, 0, "the owner of taken bytes is final");
        self.owner = owner;
    }

    /// The longest body whose copies fit into the owner's share.
    pub fn body_bytes_max(&self) -> usize {
        self.share_max().map_or(usize::MAX, |share| share / COPIES)
    }

    /// Adds bytes.
    ///
    /// # Errors
    ///
    /// The bytes do not fit; nothing was added.
    #[inline]
    pub fn grow(&mut self, bytes: usize) -> Result<(), OverBudget> {
        let all = self.bytes.saturating_add(bytes);
        if all > self.taken + FREE_BYTES {
            self.take(all)?;
        }
        self.bytes = all;
        Ok(())
    }

    /// Removes freed bytes.
    pub fn shrink(&mut self, bytes: usize) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let needed = steps(self.bytes);
        if needed < self.taken {
            let unused = self.taken - needed;
            self.taken = needed;
            if let Some(budget) = &self.budget {
                budget.give_back(self.owner, unused);
            }
        }
    }

    #[cold]
    fn take(&mut self, all: usize) -> Result<(), OverBudget> {
        let Some(budget) = &self.budget else {
            return Ok(());
        };
        let needed = steps(all);
        // The largest body of a small share is no multiple of a step.
        let exact = all - FREE_BYTES;
        let more = match budget.take(self.owner, needed - self.taken) {
            Ok(()) => needed - self.taken,
            Err(OverBudget) => {
                let taken = budget.take(self.owner, exact - self.taken);
                taken.inspect_err(|_| budget.count_refusal())?;
                exact - self.taken
            }
        };
        self.taken += more;
        Ok(())
    }
}

impl Drop for MemoryUse {
    fn drop(&mut self) {
        if self.taken > 0
            && let Some(budget) = &self.budget
        {
            budget.give_back(self.owner, self.taken);
        }
    }
}

/// The bytes taken for a request that holds `bytes`.
fn steps(bytes: usize) -> usize {
    bytes
        .saturating_sub(FREE_BYTES)
        .next_multiple_of(STEP_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: usize = 1 << 20;

    fn holder(budget: &MemoryBudget, owner: Owner) -> MemoryUse {
        let mut memory = MemoryUse::within(budget);
        memory.set_owner(owner);
        memory
    }

    /// An owner's maximum, in steps.
    fn greedy(budget: &MemoryBudget, owner: Owner) -> Vec<MemoryUse> {
        let mut all = Vec::new();
        loop {
            let mut memory = holder(budget, owner);
            if memory.grow(256 * 1024).is_err() {
                return all;
            }
            all.push(memory);
        }
    }

    #[test]
    fn ten_accounts_that_take_all_they_can_leave_a_tenth() {
        let budget = MemoryBudget::new(100 * MIB);
        let first = greedy(&budget, Owner::Account([0; 16]));
        let alone = budget.bytes_taken();
        assert!((19 * MIB..=20 * MIB).contains(&alone), "{alone}");
        let others: Vec<_> = (1..10)
            .map(|number| greedy(&budget, Owner::Account([number; 16])))
            .collect();
        let free = 100 * MIB - budget.bytes_taken();
        assert!(free >= 10 * MIB, "{free}");
        let mut eleventh = holder(&budget, Owner::Account([10; 16]));
        assert_eq!(eleventh.grow(2 * MIB), Ok(()));
        drop((first, others, eleventh));
        assert_eq!(budget.bytes_taken(), 0);
        assert_eq!(budget.taken().owners.len(), 0);
    }

    #[test]
    fn small_requests_take_nothing_of_a_full_budget() {
        let budget = MemoryBudget::new(0);
        let mut memory = holder(&budget, Owner::Unknown);
        assert_eq!(memory.grow(FREE_BYTES), Ok(()));
        assert_eq!(memory.grow(1), Err(OverBudget));
        assert_eq!(budget.refused(), 1);
        memory.shrink(FREE_BYTES);
        assert_eq!(memory.grow(10), Ok(()));
    }

    #[test]
    fn the_largest_body_of_a_share_fits_and_what_shrinks_is_returned() {
        let budget = MemoryBudget::new(10_000_000);
        for owner in [Owner::Account([1; 16]), Owner::Uncredited, Owner::Unknown] {
            let mut memory = holder(&budget, owner);
            let body = memory.body_bytes_max();
            assert_eq!(memory.grow(COPIES * body), Ok(()), "{owner:?}");
            assert_eq!(memory.grow(STEP_BYTES), Err(OverBudget), "{owner:?}");
            memory.shrink(COPIES * body - 1);
            assert_eq!(budget.bytes_taken(), 0, "{owner:?}");
        }
    }

    #[test]
    fn without_a_budget_nothing_is_refused() {
        let mut memory = MemoryUse::default();
        assert_eq!(memory.grow(usize::MAX), Ok(()));
        memory.shrink(usize::MAX);
        assert_eq!(memory.body_bytes_max(), usize::MAX);
    }
}
