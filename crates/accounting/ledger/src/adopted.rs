//! Adopted holds: holds of requests still running in earlier runs of this node.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher, Micros, OperationId};

/// The hold of a request in an earlier run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AdoptedHold {
    pub(crate) account: AccountId,
    pub(crate) amount: Micros,
    /// The run that placed the hold.
    pub(crate) epoch: i64,
}

/// The adopted holds by operation.
#[derive(Debug, Default)]
pub(crate) struct AdoptedHolds(HashMap<OperationId, AdoptedHold, BuildHasherDefault<IdHasher>>);

impl AdoptedHolds {
    pub(crate) fn insert(&mut self, operation: OperationId, hold: AdoptedHold) {
        self.0.insert(operation, hold);
    }

    /// Removes an open hold of this account and amount; `None` without such a hold.
    pub(crate) fn end(
        &mut self,
        operation: OperationId,
        account: AccountId,
        amount: Micros,
    ) -> Option<AdoptedHold> {
        let hold = *self.0.get(&operation)?;
        (hold.account == account && hold.amount == amount).then(|| self.0.remove(&operation))?
    }

    /// The accounts of the holds.
    pub(crate) fn accounts(&self) -> impl Iterator<Item = AccountId> {
        self.0.values().map(|hold| hold.account)
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Removes the holds of the run `of`; `None` removes every hold.
    pub(crate) fn take(&mut self, of: Option<i64>) -> Vec<(OperationId, AdoptedHold)> {
        let is_taken = |hold: &AdoptedHold| of.is_none_or(|epoch| hold.epoch == epoch);
        self.0.extract_if(|_, hold| is_taken(hold)).collect()
    }
}
