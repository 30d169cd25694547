//! Balances as of the last posting, so that an account used again is not read again.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher};

use crate::engine::Balance;

/// Number of balances after which the older balances are forgotten.
const BALANCES_MAX: usize = 65_536;

type Balances = HashMap<AccountId, Balance, BuildHasherDefault<IdHasher>>;

/// Balances, as of the last posting, of accounts without changes in the journal's tail.
#[derive(Default)]
pub(super) struct PostedBalances {
    /// The newer generation of balances; `older` is the generation before.
    newer: Balances,
    older: Balances,
}

impl PostedBalances {
    /// Removes the balance of an account that changes from now on.
    pub(super) fn take(&mut self, account: AccountId) -> Option<Balance> {
        let newer = self.newer.remove(&account);
        // The newer generation wins where both generations have the account.
        let older = self.older.remove(&account);
        newer.or(older)
    }

    pub(super) fn contains(&self, account: AccountId) -> bool {
        self.newer.contains_key(&account) || self.older.contains_key(&account)
    }

    /// Adds posted balances.
    pub(super) fn put(&mut self, balances: Vec<(AccountId, Balance)>) {
        if self.newer.len() >= BALANCES_MAX {
            self.older = std::mem::take(&mut self.newer);
        }
        self.newer.extend(balances);
    }
}

#[cfg(test)]
mod tests {
    use tollgate_clock::Timestamp;

    use super::*;

    #[test]
    fn the_newer_of_two_posted_balances_is_the_one_that_counts() {
        let account = |number: usize| AccountId::from_bytes((number as u128).to_be_bytes());
        let balance = |available| Balance {
            available,
            held: 0,
            credit_limit: 0,
            at: Timestamp::MIN,
        };
        let mut posted = PostedBalances::default();
        posted.put(
            (0..BALANCES_MAX)
                .map(|it| (account(it), balance(1)))
                .collect(),
        );
        posted.put(vec![(account(0), balance(2))]);
        let mut available = |number| posted.take(account(number)).map(|it| it.available);
        assert_eq!(available(0), Some(2));
        assert_eq!(available(0), None, "it is changed from now on");
        assert_eq!(available(1), Some(1), "the generation before");
        posted.put(
            (1..=BALANCES_MAX)
                .map(|it| (account(it), balance(3)))
                .collect(),
        );
        posted.put(Vec::new());
        posted.put(
            (1..=BALANCES_MAX)
                .map(|it| (account(it), balance(4)))
                .collect(),
        );
        posted.put(Vec::new());
        let mut available = |number| posted.take(account(number)).map(|it| it.available);
        assert_eq!(available(2), Some(4));
        assert_eq!(available(2), None);
    }
}
