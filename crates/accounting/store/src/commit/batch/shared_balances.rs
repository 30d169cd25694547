//! Shared balances within a batch. The balances needed by the takes of a batch are read together and changed in memory. The balances are
//! written together, before any other statement reads or writes these rows. A node that returns the idle credit of a thousand accounts at
//! once has the lock of the shared state for a few statements only.

use std::collections::{BTreeMap, HashMap};
use std::hash::BuildHasherDefault;

use tollgate_money::{AccountId, IdHasher};

use crate::allotment::{AllotmentPart, Budget, Recall, SharedBalance};
use crate::engine::{RowError, Sql};
use crate::queue::Item;
use crate::tables;
use crate::unit::Part;

#[derive(Default)]
pub(super) struct SharedBalances {
    /// Includes the moves of this batch.
    known: HashMap<AccountId, SharedBalance, BuildHasherDefault<IdHasher>>,
    /// Unwritten changes of the shared balances.
    moved: BTreeMap<AccountId, i64>,
    /// Allotments of this node to be opened, each with the recall known to the node.
    opened: BTreeMap<AccountId, i64>,
    /// Accounts with credit booked in this batch, numbered in order of booking.
    booked: BTreeMap<AccountId, usize>,
    /// Answers to recalls, each up to a recall number.
    answered: BTreeMap<AccountId, i64>,
}

impl SharedBalances {
    /// Begins a batch.
    pub(super) fn clear(&mut self) {
        self.undo(0);
    }

    /// Number of accounts with credit booked so far.
    pub(super) fn booked(&self) -> usize {
        self.booked.len()
    }

    /// Forgets the balances read, and the unwritten changes of a refused unit. Of the accounts with booked credit, the first `booked`
    /// accounts stay.
    pub(super) fn undo(&mut self, booked: usize) {
        self.known.clear();
        self.moved.clear();
        self.opened.clear();
        self.booked.retain(|_, number| *number < booked);
        self.answered.clear();
    }

    /// Reads the shared balances that the takes of a batch need.
    pub(super) fn read(&mut self, sql: &dyn Sql, items: &[Item]) -> Result<(), RowError> {
        let parts = items.iter().flat_map(|item| item.unit.parts());
        let taken = parts.filter_map(|part| match part {
            Part::Allotment(AllotmentPart::Take {
                budget: Budget::Account(account),
                ..
            }) => Some(*account),
            _ => None,
        });
        let mut accounts: Vec<AccountId> = taken.collect();
        accounts.sort_unstable();
        accounts.dedup();
        tables::allotment::shared_balances(sql, &accounts, &mut |account, shared| {
            self.known.insert(account, shared);
        })
    }

    /// The shared balance of an account; `None` without the account.
    pub(super) fn of(
        &mut self,
        sql: &dyn Sql,
        account: AccountId,
    ) -> Result<Option<SharedBalance>, RowError> {
        if !self.known.contains_key(&account) {
            let unwritten = self.moved.get(&account).copied().unwrap_or_default();
            tables::allotment::shared_balances(sql, &[account], &mut |account, mut shared| {
                shared.available += unwritten;
                self.known.insert(account, shared);
            })?;
        }
        Ok(self.known.get(&account).copied())
    }

    pub(super) fn add(&mut self, account: AccountId, by: i64) {
        *self.moved.entry(account).or_default() += by;
        if let Some(shared) = self.known.get_mut(&account) {
            shared.available += by;
        }
    }

    /// A recall has begun, changed or ended; the recall is already written.
    pub(super) fn recalled(&mut self, account: AccountId, recall: Recall) {
        if let Some(shared) = self.known.get_mut(&account) {
            shared.recall = recall;
        }
    }

    pub(super) fn open(
        &mut self,
        sql: &dyn Sql,
        node: i64,
        account: AccountId,
        recall: i64,
    ) -> Result<(), RowError> {
        // The opening reverses the closing by the earlier answer.
        if self.answered.contains_key(&account) {
            self.flush(sql, node)?;
        }
        let opened = self.opened.entry(account).or_insert(recall);
        *opened = recall.min(*opened);
        Ok(())
    }

    /// Opens the allotment for credit that is booked here. This node has the allotment until its return, and answers recalls anew. The
    /// node's answer in this batch, from before the credit, no longer counts.
    pub(super) fn book(
        &mut self,
        sql: &dyn Sql,
        node: i64,
        account: AccountId,
    ) -> Result<(), RowError> {
        let number = self.booked.len();
        self.booked.entry(account).or_insert(number);
        self.open(sql, node, account, 0)
    }

    pub(super) fn answer(
        &mut self,
        sql: &dyn Sql,
        node: i64,
        account: AccountId,
        number: i64,
    ) -> Result<(), RowError> {
        if self.booked.contains_key(&account) {
            return Ok(());
        }
        if self.opened.contains_key(&account) {
            self.flush(sql, node)?;
        }
        let answered = self.answered.entry(account).or_insert(number);
        *answered = number.max(*answered);
        Ok(())
    }

    /// Writes the unwritten changes.
    pub(super) fn flush(&mut self, sql: &dyn Sql, node: i64) -> Result<(), RowError> {
        if !self.opened.is_empty() {
            tables::allotment::open_allotments(sql, node, &self.opened)?;
            self.opened.clear();
        }
        if !self.moved.is_empty() {
            tables::allotment::move_shared(sql, &self.moved)?;
            self.moved.clear();
        }
        if !self.answered.is_empty() {
            tables::allotment::answer_recalls(sql, node, &self.answered)?;
            self.answered.clear();
        }
        Ok(())
    }

    /// Flushes, and forgets the balances read: another statement changes these rows now.
    pub(super) fn invalidate(&mut self, sql: &dyn Sql, node: i64) -> Result<(), RowError> {
        self.known.clear();
        self.flush(sql, node)
    }
}
