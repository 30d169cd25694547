//! What the clients of a run know: what each operation was answered, and what may be true of an account by these answers.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tollgate_money::{AccountId, OperationId};
use tollgate_store::Read;

/// Time in which a refusal is repeated, and more.
pub(crate) const REPEATED_US: u64 = 300_000;

/// What a client knows of its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// No answer yet.
    Asked,
    /// A hold, at a run that lives.
    Held,
    /// It was released, or refused.
    Free,
    /// Charged, and acknowledged.
    Charged(i64),
    /// Without an answer, and none will come: its run has ended, or could not say.
    Lost,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Operation {
    pub(crate) account: AccountId,
    /// The most that it can cost.
    pub(crate) amount: i64,
    /// The run of a node that has it.
    pub(crate) run: usize,
    pub(crate) state: State,
    /// The charge that its client has received.
    pub(crate) acknowledged: Option<i64>,
    /// A later run of its node had begun then.
    pub(crate) is_late: bool,
}

/// Credit of an account as its clients know it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Credit {
    /// Booked or perhaps booked.
    pub(crate) at_most: i64,
    /// Taken back, and acknowledged.
    pub(crate) taken: i64,
    pub(crate) limit: i64,
    /// When some of it was last known to be durably free.
    pub(crate) freed_us: u64,
    /// What is freed and may not be durable: by requests of a run, or all of a run that has ended.
    pub(crate) freeing: BTreeMap<usize, usize>,
}

#[derive(Default)]
pub(crate) struct Book {
    pub(crate) operations: BTreeMap<u64, Operation>,
    pub(crate) ids: HashMap<OperationId, u64>,
    pub(crate) accounts: BTreeMap<AccountId, Credit>,
    /// The last refusal of each account at each run.
    pub(crate) refused: HashMap<(usize, AccountId), u64>,
    /// Runs whose processes have ended.
    pub(crate) dead: BTreeSet<usize>,
    /// Runs that were recovered by another process than the node itself.
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
        // A run that has ended sends no answer.
        if operation.state != State::Lost {
            operation.state = state;
            let account = operation.account;
            self.check_spent(account);
        }
    }

    /// A request may free credit of an account from now on.
    pub(crate) fn frees(&mut self, account: AccountId, run: usize) {
        if let Some(credit) = self.accounts.get_mut(&account) {
            *credit.freeing.entry(run).or_default() += 1;
        }
    }

    /// All that it has freed is durable.
    pub(crate) fn freed(&mut self, account: AccountId, run: usize, now_us: u64) {
        if let Some(credit) = self.accounts.get_mut(&account) {
            credit.freed_us = now_us;
            if let Some(count) = credit.freeing.get_mut(&run) {
                *count -= 1;
                if *count == 0 {
                    credit.freeing.remove(&run);
                }
            }
        }
    }

    /// A run has ended: its answers will not come, and what it has is free only when its node is recovered.
    pub(crate) fn lose(&mut self, run: usize) {
        for operation in self.operations.values_mut().filter(|it| it.run == run) {
            if matches!(operation.state, State::Asked | State::Held) {
                operation.state = State::Lost;
            }
        }
        for credit in self.accounts.values_mut() {
            *credit.freeing.entry(run).or_default() += 1_000_000;
        }
    }

    /// Nothing is left of runs.
    pub(crate) fn recovered(&mut self, runs: &[usize], now_us: u64) {
        for credit in self.accounts.values_mut() {
            credit.freed_us = now_us;
            credit.freeing.retain(|run, _| !runs.contains(run));
        }
    }

    /// Never more held and spent than there was.
    fn check_spent(&mut self, account: AccountId) {
        let credit = &self.accounts[&account];
        let of_account = self.operations.values().filter(|it| it.account == account);
        let spent: i64 = of_account
            .map(|operation| match operation.state {
                State::Held => operation.amount,
                // It may have been in the spool alone, and is a late charge then.
                State::Charged(_) if self.has_spools && self.recovered.contains(&operation.run) => {
                    0
                }
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

    pub(crate) fn took(&mut self, account: AccountId, amount: i64) {
        if let Some(credit) = self.accounts.get_mut(&account) {
            credit.taken += amount;
        }
        self.check_spent(account);
    }

    /// What an account has at least: in the database, without what is asked for, or held in memory. `None` when it cannot be read.
    pub(crate) fn free_at_least(
        &self,
        reader: &dyn Read,
        account: AccountId,
        but: u64,
    ) -> Option<i64> {
        let row = reader.account(account).ok().flatten()?;
        let open = self.operations.iter().filter(|(number, operation)| {
            **number != but
                && operation.account == account
                && matches!(operation.state, State::Asked | State::Held)
        });
        let open: i64 = open.map(|(_, operation)| operation.amount).sum();
        Some(row.available.get() + row.credit_limit.get() - open)
    }

    /// Whether nothing of an account was on its way to be free since a moment.
    pub(crate) fn is_settled(&self, account: AccountId, since_us: u64) -> bool {
        let credit = &self.accounts[&account];
        credit.freeing.is_empty() && credit.freed_us < since_us
    }

    /// Notes a refusal; whether there was an earlier one that it may repeat.
    pub(crate) fn is_repeated(
        &mut self,
        (run, account): (usize, AccountId),
        started_us: u64,
        now_us: u64,
    ) -> bool {
        let last = self.refused.insert((run, account), now_us);
        last.is_some_and(|last| last + REPEATED_US >= started_us)
    }
}
