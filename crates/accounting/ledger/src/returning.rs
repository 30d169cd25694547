//! Returns of credit to the shared balance: of a recalled budget, of an idle budget, and at the end of the node.

use std::collections::BTreeMap;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{Admission, AllotmentPart, Answer, Budget, Done, Part, ReadError, UnitOfWork};

use crate::account::Balance;
use crate::accounts::{Ledger, SHARDS, Shard, lock};
use crate::allotment_state::Allotment;
use crate::units::log_refusal;

impl Ledger {
    /// Parts of the accounts for [`Ledger::return_idle`].
    pub const PARTS: usize = SHARDS;

    /// The accounts with an allotment on this node.
    pub(crate) fn allotted_accounts(&self) -> Result<Vec<AccountId>, ReadError> {
        let mut accounts = Vec::new();
        let node = self.store.node();
        self.store
            .allotments(node, &mut |row| accounts.push(row.account))?;
        Ok(accounts)
    }

    /// Answers the recalls in force after the release of earlier runs' holds: the released credit is returned too.
    pub(crate) fn answer_recalls(&self) -> Result<(), ReadError> {
        let at = self.latest();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let accounts: Vec<AccountId> = shard.accounts.keys().copied().collect();
            for account in accounts {
                self.give_back(&mut shard, Budget::Account(account), at);
            }
        }
        let mut recalls = Vec::new();
        let node = self.store.node();
        self.store
            .recalls(node, &mut |budget, number| recalls.push((budget, number)))?;
        for (budget, number) in recalls {
            self.set_recall(budget, number, number);
        }
        Ok(())
    }

    /// During a recall of the budget: returns the available part, and answers the recall once no more credit can arrive.
    pub(crate) fn give_back(&self, shard: &mut Shard, budget: Budget, at: Timestamp) {
        if !self.has_allotments || shard.is_handed_over {
            return;
        }
        let Some(allotment) = shard.known_allotment(budget) else {
            return;
        };
        if allotment.recall == 0 {
            return;
        }
        let answer = match allotment.surplus_takes == 0 && allotment.answered < allotment.recall {
            true => Answer::Held(allotment.recall),
            false => Answer::None,
        };
        // An account that is not in memory returns its credit and answers the recall with its load.
        let Some(balance) = shard.balance(budget) else {
            return;
        };
        let amount = balance.available.max(Micros::ZERO);
        if amount == Micros::ZERO && answer == Answer::None {
            return;
        }
        if let Answer::Held(recall) = answer {
            shard.allotment(budget).answered = recall;
        }
        self.give(shard, budget, amount, answer, at);
    }

    /// Returns available credit to the shared balance.
    pub(crate) fn give(
        &self,
        shard: &mut Shard,
        budget: Budget,
        amount: Micros,
        answer: Answer,
        at: Timestamp,
    ) {
        let part = AllotmentPart::Return {
            operation: self.next_move(at),
            budget,
            amount,
            answer,
            at,
        };
        let is_counted = amount.is_positive() && shard.known_allotment(budget).is_some();
        let this = Arc::downgrade(&self.0);
        let done: Done = Box::new(move |result| {
            log_refusal(result);
            if is_counted && let Some(ledger) = this.upgrade().map(Ledger) {
                ledger.returned(budget, amount);
            }
        });
        let unit = UnitOfWork::of(Part::Allotment(part), Admission::Always);
        // A stopped store keeps the credit of this node, and its recovery returns it.
        if self.store.submit(unit, done).is_ok() {
            self.counters.returned(amount);
            if let Some(balance) = shard.balance(budget) {
                balance.available -= amount;
            }
            if let Some(allotment) = shard.known_allotment(budget) {
                allotment.returned(amount);
                allotment.returning += amount;
            }
        }
    }

    /// A return of credit is durable. The results of later takes are not known yet.
    fn returned(&self, budget: Budget, amount: Micros) {
        if let Some(allotment) = self.shard_of(budget).known_allotment(budget) {
            allotment.returning = (allotment.returning - amount).max(Micros::ZERO);
        }
    }

    /// Credit booked on this node goes to the shared balance.
    pub(crate) fn share_credit(&self, account: AccountId, amount: Micros) {
        if !self.has_allotments {
            return;
        }
        let at = self.latest();
        let budget = Budget::Account(account);
        let mut shard = self.shard(account);
        if let Some(loading) = shard.loading.get_mut(&account) {
            loading.is_shared = true;
            return;
        }
        let Some(here) = shard.accounts.get(&account).map(|it| it.available) else {
            // The account is not in memory: the node has no other credit of the account.
            return self.give(&mut shard, budget, amount, Answer::Nothing, at);
        };
        let allotment = shard.allotments.entry(account).or_default();
        allotment.forget_refusal();
        let amount = amount.min(here);
        if amount.is_positive() {
            self.give(&mut shard, budget, amount, Answer::None, at);
        }
    }

    /// Recalls of accounts have begun or ended, on this node or another node. `changes` has the number of the last change by account.
    pub(crate) fn recalls_changed(
        &self,
        changes: &BTreeMap<AccountId, i64>,
    ) -> Result<(), ReadError> {
        let accounts: Vec<AccountId> = changes.keys().copied().collect();
        let mut recalls = Vec::with_capacity(accounts.len());
        self.store.recalls_of(&accounts, &mut |account, recall| {
            recalls.push((account, recall))
        })?;
        for (account, recall) in recalls {
            self.set_recall(Budget::Account(account), recall, changes[&account]);
        }
        Ok(())
    }

    pub(crate) fn set_recall(&self, budget: Budget, recall: i64, number: i64) {
        let at = self.latest();
        let mut shard = self.shard_of(budget);
        if let Budget::Account(account) = budget
            && !shard.accounts.contains_key(&account)
            && !shard.loading.contains_key(&account)
        {
            // This node has no credit of the account. An account whose load is under way may have been read before the recall began.
            if recall != 0 && !shard.is_handed_over {
                self.give(&mut shard, budget, Micros::ZERO, Answer::Nothing, at);
            }
            return;
        }
        shard.allotment(budget).recalled(recall, number);
        self.give_back(&mut shard, budget, at);
    }

    /// Returns the idle credit of one of [`Ledger::PARTS`] to the shared balances: the credit of accounts and caps whose balance is
    /// unchanged since the last call for the part. Call for each part every half a minute, one after the other with pauses: requests wait
    /// for the commits of the returns. No effect on a node that is alone.
    pub fn return_idle(&self, part: usize, now: Timestamp) {
        let shard = &mut *lock(&self.shards[part % SHARDS]);
        self.return_where(shard, now, |allotment, balance| {
            let is_idle = allotment.seen == Some(*balance);
            allotment.seen = Some(*balance);
            is_idle
        });
        if shard.is_handed_over {
            return;
        }
        for cap in shard.forget_caps(now) {
            // Other nodes wait for no answer of this node.
            let (budget, nothing) = (Budget::Cap(cap), Answer::Nothing);
            self.give(shard, budget, Micros::ZERO, nothing, now);
        }
    }

    /// Returns unheld credit to the shared balances before the store is closed. From then on, other nodes wait for no answer of this node.
    pub fn return_all(&self) {
        let now = self.latest();
        let is_handed_over = self.shards.iter().any(|shard| lock(shard).is_handed_over);
        if self.has_allotments && !is_handed_over {
            for shard in &self.shards {
                self.return_where(&mut lock(shard), now, |_, _| true);
            }
            if let Err(error) = self.announce_unread_caps() {
                tracing::warn!(%error, "reading changed spending caps failed; what this node has charged may be counted at the next start");
            }
            let leave = Part::Allotment(AllotmentPart::Leave);
            let unit = UnitOfWork::of(leave, Admission::Always);
            // After a stop of the store the recovery makes the returns.
            let _ = self.store.submit(unit, Box::new(log_refusal));
        }
    }

    fn return_where(
        &self,
        shard: &mut Shard,
        now: Timestamp,
        mut is_returned: impl FnMut(&mut Allotment, &Balance) -> bool,
    ) {
        if shard.is_handed_over {
            return;
        }
        let Shard {
            accounts,
            allotments,
            caps,
            ..
        } = &mut *shard;
        let of_accounts = allotments.iter_mut().filter_map(|(account, allotment)| {
            let balance: Balance = **accounts.get(account)?;
            Some((Budget::Account(*account), allotment, balance))
        });
        let of_caps = caps
            .iter_mut()
            .map(|(cap, state)| (Budget::Cap(*cap), &mut state.allotment, state.balance));
        let mut found = Vec::new();
        for (budget, allotment, balance) in of_accounts.chain(of_caps) {
            if balance.available.is_positive()
                && allotment.surplus_takes == 0
                && is_returned(allotment, &balance)
            {
                found.push((budget, balance));
            }
        }
        for (budget, balance) in found {
            let answer = match balance.held == Micros::ZERO {
                true => Answer::Nothing,
                false => Answer::None,
            };
            self.give(shard, budget, balance.available, answer, now);
        }
    }
}
