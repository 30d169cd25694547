//! Balances read by callers, and changed by other nodes.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{AccountRow, Budget, ReadError, reading};

use crate::account::Balance;
use crate::accounts::Ledger;
use crate::allotment_counters::AllotmentCounters;
use crate::resident::BalanceError;

impl Ledger {
    /// The balance of an account, available and held; `None` when the account is not in memory.
    pub fn balance(&self, account: AccountId) -> Option<Balance> {
        let mut shard = self.shard(account);
        let mut balance = shard.accounts.get_mut(&account)?.used();
        balance.assert_held();
        if let Some(allotment) = shard.allotments.get(&account) {
            balance.available += allotment.elsewhere;
            balance.credit_limit = allotment.credit_limit;
        }
        Some(balance)
    }

    /// The available balance of an account; `None` when the account is not in memory.
    pub fn available(&self, account: AccountId) -> Option<Micros> {
        self.balance(account).map(|balance| balance.available)
    }

    /// The available balance of an account; zero without an account. One of several nodes reads the store, with the allotment and the
    /// unposted commits of each node. An amount to take back must not depend on this node's last view of other nodes.
    pub async fn total_available(&self, account: AccountId) -> Result<Micros, BalanceError> {
        let available = if self.has_allotments {
            let row = reading(&self.store, move |store| store.account(account)).await?;
            row.map(|row| row.available)
        } else {
            self.load(account).await?;
            self.available(account)
        };
        Ok(available.unwrap_or_default())
    }

    /// Whether an account in memory has unheld credit.
    pub fn has_free_credit(&self, account: AccountId) -> bool {
        let balance = self.balance(account);
        balance.is_some_and(|balance| balance.available.is_positive())
    }

    /// Whether this node knows the whole balance of an account in memory. Always on a node that is alone. On one of several nodes, only
    /// after a refusal of the database for an empty balance, at most a tenth of a second ago.
    pub fn knows_balance(&self, account: AccountId, at: Timestamp) -> bool {
        if !self.has_allotments {
            return true;
        }
        let mut shard = self.shard(account);
        let here = shard.available(Budget::Account(account));
        let allotment = shard.allotments.get(&account);
        allotment.is_some_and(|allotment| allotment.is_empty(here, at))
    }

    /// Whether an account, changed or given credit by another node, is in memory and has to be read again. A load under way is repeated.
    /// Any other account is read at its next use.
    pub(crate) fn is_read_again(&self, account: AccountId) -> bool {
        let mut shard = self.shard(account);
        if let Some(loading) = shard.loading.get_mut(&account) {
            loading.is_changed = true;
            return false;
        }
        shard.accounts.contains_key(&account)
    }

    /// Reads accounts in memory again.
    pub(crate) fn read_again(&self, accounts: &[AccountId]) -> Result<(), ReadError> {
        let mut found = Vec::new();
        self.store
            .accounts_of(accounts, &mut |row| found.push(row))?;
        found.iter().for_each(|row| self.put_account(row));
        Ok(())
    }

    fn put_account(&self, row: &AccountRow) {
        let account = row.id;
        let mut shard = self.shard(account);
        let Some(balance) = shard.accounts.get_mut(&account) else {
            return;
        };
        balance.has_paid = row.has_paid;
        let here = balance.total();
        let allotment = shard.allotments.entry(account).or_default();
        allotment.elsewhere = row.available + row.held - here;
        allotment.credit_limit = row.credit_limit;
        allotment.forget_refusal();
    }

    /// Counters of this node's allotments.
    pub fn allotment_counters(&self) -> &AllotmentCounters {
        &self.counters
    }
}
