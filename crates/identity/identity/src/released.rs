//! Accounts whose credentials have left memory while requests under way still have a reference: a stream outlasts a key that is revoked, a token
//! that expires, and a key without another use. Changes of the account have to reach these requests.

use std::collections::HashMap;
use std::sync::{Arc, Weak};

use tollgate_money::AccountId;

use crate::credentials::Account;
use crate::digest::BuildRandomAlready;

/// Entries below which no search for dead ones is worth its time.
const UNSEARCHED: usize = 256;

/// Accounts without a credential in memory, for as long as a request has a reference.
#[derive(Default)]
pub(crate) struct ReleasedAccounts {
    accounts: HashMap<AccountId, Weak<Account>, BuildRandomAlready>,
    /// Entries left by the last removal of dead ones.
    lived: usize,
}

impl ReleasedAccounts {
    /// Called before the last credential goes, so also for accounts without a request. Entries that are dead are removed when there are as many
    /// again as were alive the last time: a constant time for each call, and at most twice the accounts of requests under way in memory.
    pub(crate) fn add(&mut self, account: &Arc<Account>) {
        if self.accounts.len() >= UNSEARCHED + 2 * self.lived {
            self.accounts.retain(|_, entry| entry.strong_count() > 0);
            self.lived = self.accounts.len();
        }
        self.accounts.insert(account.id(), Arc::downgrade(account));
    }

    pub(crate) fn find(&self, id: AccountId) -> Option<Arc<Account>> {
        self.accounts.get(&id)?.upgrade()
    }

    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.accounts.len()
    }

    /// Of an account that has a credential in memory again.
    pub(crate) fn take(&mut self, id: AccountId) -> Option<Arc<Account>> {
        self.accounts.remove(&id)?.upgrade()
    }
}
