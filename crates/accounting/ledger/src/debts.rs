//! Credits owed by returned payments. The account's credit pays the debt before any other use.
//!
//! A node that is alone reserves owed credits in the balance in memory. Several nodes leave the reservation to the shared balance in the
//! database. The account stays recalled while the account owes credits, so that no node has unheld credit of the account.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{Budget, Debt};

use crate::accounts::{BALANCE_MAX, Ledger, Shard};
use crate::charge::StartError;
use crate::hold::Hold;
use crate::hold_request::{HoldError, HoldRequest};

/// Limit of payments read at the start: no limit.
const READ_MAX: usize = i32::MAX as usize;

impl Ledger {
    /// Reads the debts of payments, for the start.
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

    /// Sets the credits owed by a payment.
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

    /// Places a hold in memory on credits owed by returned payments. No other hold can use the credits.
    pub(crate) async fn acquire_owed(&self, request: HoldRequest) -> Result<Hold, HoldError> {
        let budget = Budget::Account(request.account);
        self.acquire_from(budget, request, Ledger::place_all, |_| None, true)
            .await
    }

    /// Makes every node return its unheld credit of an account, now and at the end of each hold. Called before credits of a returned
    /// payment become owed. No effect on a node that is alone.
    ///
    /// # Errors
    ///
    /// A node or the database has not answered.
    pub async fn recall(&self, account: AccountId, at: Timestamp) -> Result<(), HoldError> {
        if !self.has_allotments {
            return Ok(());
        }
        // Larger than the balance of any account.
        let request = HoldRequest::brief(self.next_move(at), account, BALANCE_MAX, at);
        match self.acquire(request, |_| None).await {
            Ok(_) | Err(HoldError::InsufficientCredit { .. }) => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl Shard {
    /// The debts of an account; zero on one of several nodes.
    pub(crate) fn owed(&self, account: AccountId) -> Micros {
        let debts = self.debts.get(&account).into_iter().flatten();
        debts.map(|(_, credits)| *credits).sum()
    }
}
