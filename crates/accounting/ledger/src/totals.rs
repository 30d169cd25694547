//! Sums over the accounts in memory.

use tollgate_money::Micros;

use crate::accounts::{Ledger, lock};

/// The open holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Number of open holds.
    pub open_holds: u64,
    /// Sum of the open holds.
    pub held: Micros,
}

impl Ledger {
    /// Number and sum of the open holds.
    pub fn totals(&self) -> Totals {
        let mut totals = Totals::default();
        let mut held = 0i64;
        for shard in &self.shards {
            let shard = lock(shard);
            totals.open_holds += shard.open.len() as u64;
            held = held.wrapping_add(shard.held);
        }
        totals.held = Micros::new(held);
        totals
    }

    /// Credit of accounts on this node, available and held; zero on a node that is alone. Visits the accounts in memory.
    pub fn allotted(&self) -> Micros {
        let mut allotted = 0i64;
        if self.has_allotments {
            for shard in &self.shards {
                let shard = lock(shard);
                let here = shard.accounts.values();
                let here = here.map(|balance| balance.total().get().max(0));
                allotted = here.fold(allotted, i64::saturating_add);
            }
        }
        Micros::new(allotted)
    }
}
