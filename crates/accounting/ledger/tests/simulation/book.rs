//! Knowledge of the clients of a run: the answers to each operation, and the possible states of an account according to the answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tollgate_money::{AccountId, CredentialId, OperationId};
use tollgate_store::{Budget, Reader};

use super::keys::{Key, KeyUse};

/// Longer than a refusal is cached.
pub(crate) const REPEATED_US: u64 = 300_000;

/// State of an operation as known to its client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No answer yet.
    Asked,
    /// A hold at a live run.
    Held,
    /// Released, or refused.
    Free,
    /// Charged, and acknowledged.
    Charged(i64),
    /// Without an answer for good: the run has ended, or returned an unknown outcome.
    Lost,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) account: AccountId,
    /// Maximum cost of the operation.
    pub(crate) amount: i64,
    /// The run with the operation.
    pub(crate) run: usize,
    pub(crate) state: State,
    /// The charge received by the client.
    pub(crate) acknowledged: Option<i64>,
    /// Whether a later run of the node had begun at the acknowledgement.
    pub(crate) is_late: bool,
    /// The key of the request.
    pub(crate) key: Option<KeyUse>,
}

/// Owner of freed credit: an account, or the caps of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Owner {
    Account(AccountId),
    Key(CredentialId),
}

impl From<Budget> for Owner {
    fn from(budget: Budget) -> Owner {
        match budget {
            Budget::Account(account) => Owner::Account(account),
            Budget::Cap(cap) => Owner::Key(cap.credential),
        }
    }
}

/// Credit being freed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Freeing {
    /// The last time at which freed credit was known to be durable.
    freed_us: u64,
    /// Number of requests by run whose freed credit may not be durable. For an ended run, the whole credit of the run.
    by_run: BTreeMap<usize, usize>,
}

/// Credit of an account as known to its clients.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit {
    /// Booked or possibly booked.
    pub(crate) at_most: i64,
    /// Taken back, and acknowledged.
    pub(crate) taken: i64,
    pub(crate) limit: i64,
}

#[derive(Default)]
pub(crate) struct Book {
    pub(crate) operations: BTreeMap<u64, Operation>,
    pub(crate) ids: HashMap<OperationId, u64>,
    pub(crate) accounts: BTreeMap<AccountId, Credit>,
    pub(crate) keys: BTreeMap<CredentialId, Key>,
    pub(crate) freeing: BTreeMap<Owner, Freeing>,
    /// The last refusal of each account and key at each run.
    pub(crate) refused: HashMap<(usize, Owner), u64>,
    /// Runs whose processes have ended.
    pub(crate) dead: BTreeSet<usize>,
    /// Runs recovered by a process other than the node itself.
    pub(crate) recovered: BTreeSet<usize>,
    pub(crate) has_spools: bool,
    pub(crate) violations: Vec<String>,
}

impl Book {
    pub(crate) fn violation(&mut self, text: impl Into<String>) {
        self.violations.push(text.into());
    }

    pub(crate) fn set(&mut self, number: u64, state: State) {
        let operation = self.operations.get_mut(&number).expect("it was asked");
        // An ended run sends no answer.
        if operation.state != State::Lost {
            operation.state = state;
            let account = operation.account;
            self.check_spent(account);
        }
    }

    /// From now on a request may free credit of `owner`.
    pub(crate) fn frees(&mut self, owner: Owner, run: usize) {
        let freeing = self.freeing.entry(owner).or_default();
        *freeing.by_run.entry(run).or_default() += 1;
    }

    /// The credit freed by a request is durable.
    pub(crate) fn freed(&mut self, owner: Owner, run: usize, now_us: u64) {
        let freeing = self.freeing.entry(owner).or_default();
        freeing.freed_us = now_us;
        if let Some(count) = freeing.by_run.get_mut(&run) {
            *count -= 1;
            if *count == 0 {
                freeing.by_run.remove(&run);
            }
        }
    }

    /// A run has ended: its answers will not come, and its credit is free only after a recovery of the node.
    pub(crate) fn lose(&mut self, run: usize) {
        for operation in self.operations.values_mut().filter(|it| it.run == run) {
            if matches!(operation.state, State::Asked | State::Held) {
                operation.state = State::Lost;
            }
        }
        let accounts = self.accounts.keys().map(|it| Owner::Account(*it));
        let keys = self.keys.keys().map(|it| Owner::Key(*it));
        for owner in accounts.chain(keys) {
            let freeing = self.freeing.entry(owner).or_default();
            *freeing.by_run.entry(run).or_default() += 1_000_000;
        }
    }

    /// The credit of the runs is free.
    pub(crate) fn recovered(&mut self, runs: &[usize], now_us: u64) {
        for freeing in self.freeing.values_mut() {
            freeing.freed_us = now_us;
            freeing.by_run.retain(|run, _| !runs.contains(run));
        }
    }

    /// Checks that held and spent credit never exceed the booked credit.
    fn check_spent(&mut self, account: AccountId) {
        let credit = &self.accounts[&account];
        let of_account = self.operations.values().filter(|it| it.account == account);
        let spent: i64 = of_account
            .map(|operation| match operation.state {
                State::Held => operation.amount,
                State::Charged(_) if self.may_be_late(operation) => 0,
                State::Charged(amount) => amount,
                State::Asked | State::Free | State::Lost => 0,
            })
            .sum();
        let spent = spent + credit.taken;
        let (at_most, limit) = (credit.at_most, credit.limit);
        if spent > at_most + limit {
            self.violation(format!(
                "account {account} has {spent} held and spent of {at_most} and a limit of {limit}"
            ));
        }
    }

    /// Whether a charge may have been only in the spool, and is booked late.
    pub(crate) fn may_be_late(&self, operation: &Operation) -> bool {
        self.has_spools && self.recovered.contains(&operation.run)
    }

    pub(crate) fn took(&mut self, account: AccountId, amount: i64) {
        if let Some(credit) = self.accounts.get_mut(&account) {
            credit.taken += amount;
        }
        self.check_spent(account);
    }

    /// Minimum credit of a budget: the credit in the database, less open requests and holds in memory. `None` when the database cannot be
    /// read.
    pub(crate) fn free_at_least(&self, reader: &Reader, budget: Budget, but: u64) -> Option<i64> {
        let (free, open) = match budget {
            Budget::Account(account) => {
                let row = reader.account(account).ok().flatten()?;
                let free = row.available.get() + row.credit_limit.get();
                let open = self.open(but).filter(|it| it.account == account);
                (free, open.map(|it| it.amount).sum::<i64>())
            }
            Budget::Cap(cap) => {
                let keyed = self.open(but).filter_map(|it| Some((it.key?, it.amount)));
                let open = keyed.filter(|(key, _)| key.counts(cap));
                let open = open.map(|(key, amount)| key.has(amount)).sum::<i64>();
                (self.left_of(reader, cap)?, open)
            }
        };
        Some(free.saturating_sub(open))
    }

    /// Operations without an answer, or with a hold.
    fn open(&self, but: u64) -> impl Iterator<Item = &Operation> {
        let is_open = |it: &&Operation| matches!(it.state, State::Asked | State::Held);
        let others = self.operations.iter().filter(move |it| *it.0 != but);
        others.map(|(_, it)| it).filter(is_open)
    }

    /// Whether no credit has been in the course of being freed since a time.
    pub(crate) fn is_settled(&self, owner: Owner, since_us: u64) -> bool {
        let is_changing = match owner {
            Owner::Account(_) => false,
            Owner::Key(key) => self.keys[&key].is_changing(),
        };
        let is_free = |it: &Freeing| it.by_run.is_empty() && it.freed_us < since_us;
        !is_changing && self.freeing.get(&owner).is_none_or(is_free)
    }

    /// Notes a refusal. Returns whether the refusal may repeat an earlier refusal.
    pub(crate) fn is_repeated(
        &mut self,
        (run, owner): (usize, Owner),
        started_us: u64,
        now_us: u64,
    ) -> bool {
        let last = self.refused.insert((run, owner), now_us);
        last.is_some_and(|last| last + REPEATED_US >= started_us)
    }
}
