//! Credits that returned payments owe: what the account has goes to them before it can be spent.
//!
//! A node that is alone reserves them in the balance in memory. Several nodes leave that to the shared balance, in the database, and have the account
//! recalled as long as it owes any: no node then has credit that it does not hold.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{Budget, Debt};

use crate::accounts::{BALANCE_MAX, Ledger, Shard};
use crate::charge::StartError;
use crate::hold::Hold;
use crate::hold_request::{HoldError, HoldRequest};

/// The most payments that are read at the start: all there are.
const READ_MAX: usize = i32::MAX as usize;

impl Ledger {
    /// Reads what payments owe, for the start.
    pub(crate) fn read_debts(&self) -> Result<(), StartError> {
        if self.has_allotments {
            return Ok(());
        }
        let top_ups = self.store.top_ups_owing(READ_MAX);
        for row in top_ups.map_err(StartError::Read)? {
            self.set_debt(&row.debt());
        }
        // A payment that owes credits has a time for the next attempt to take them back.
        let payments = self.store.payments_due(Timestamp::MAX, READ_MAX);
        for row in payments.map_err(StartError::Read)? {
            self.set_debt(&row.debt());
        }
        Ok(())
    }

    /// A payment owes so many credits from now on.
    pub(crate) fn set_debt(&self, debt: &Debt) {
        if self.has_allotments {
            return;
        }
        let account = debt.account;
        let mut shard = self.shard(account);
        let debts = shard.debts.entry(account).or_default();
        match debt.credits.is_positive() {
            true => debts.insert(debt.key, debt.credits),
            false => debts.remove(&debt.key),
        };
        if debts.is_empty() {
            shard.debts.remove(&account);
        }
        let owed = shard.owed(account);
        if let Some(balance) = shard.accounts.get_mut(&account) {
            balance.owed = owed;
        }
    }

    /// Places a hold in memory on credit that returned payments owe, which no other hold can have.
    pub(crate) async fn acquire_owed(&self, request: HoldRequest) -> Result<Hold, HoldError> {
        let budget = Budget::Account(request.account);
        self.acquire_from(budget, request, Ledger::place_all, |_| None, true)
            .await
    }

    /// On one of several nodes: has all of them return what they do not hold of an account, now and when a hold ends, before credits of a returned
    /// payment become owed. Does nothing on a node that is alone.
    ///
    /// # Errors
    ///
    /// A node has not answered, or the database.
    pub async fn recall(&self, account: AccountId, at: Timestamp) -> Result<(), HoldError> {
        if !self.has_allotments {
            return Ok(());
        }
        // No account has so much.
        let request = HoldRequest::brief(self.next_move(at), account, BALANCE_MAX, at);
        match self.acquire(request, |_| None).await {
            Ok(_) | Err(HoldError::InsufficientCredit { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Shard {
    /// What the payments of an account owe; nothing on one of several nodes.
    pub(crate) fn owed(&self, account: AccountId) -> Micros {
        let debts = self.debts.get(&account).into_iter().flatten();
        debts.map(|(_, credits)| *credits).sum()
    }
}
