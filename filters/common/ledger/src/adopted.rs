//! Adopted holds: those of requests that the predecessor still serves.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher, Micros, OperationId};

/// The adopted holds by operation: account and amount.
#[derive(Debug, Default)]
pub(crate) struct AdoptedHolds(
    HashMap<OperationId, (AccountId, Micros), BuildHasherDefault<IdHasher>>,
);

impl AdoptedHolds {
    pub(crate) fn insert(&mut self, operation: OperationId, account: AccountId, held: Micros) {
        self.0.insert(operation, (account, held));
    }

    /// Removes a hold that is open with these values; `false` when there is none.
    pub(crate) fn end(&mut self, operation: OperationId, account: AccountId, held: Micros) -> bool {
        let is_open = self.0.get(&operation) == Some(&(account, held));
        if is_open {
            self.0.remove(&operation);
        }
        is_open
    }

    /// Their accounts.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = AccountId> {
        self.0.values().map(|(account, _)| *account)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes all: operation, account and amount.
    pub(crate) fn take(&mut self) -> Vec<(OperationId, AccountId, Micros)> {
        let all = self.0.drain();
        all.map(|(operation, (account, held))| (operation, account, held))
            .collect()
    }
}
