//! Shared balances within a batch: those that its takes need are read together, changed in memory, and written together before anything else
//! reads or writes them. A node that returns the idle credit of a thousand accounts at once keeps the lock of what nodes share for a few statements.

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
    /// With the moves of this batch.
    known: HashMap<AccountId, SharedBalance, BuildHasherDefault<IdHasher>>,
    /// What is to be added to them in the database.
    moved: BTreeMap<AccountId, i64>,
    /// Allotments of this node to be opened, each with the recall that it knows of.
    opened: BTreeMap<AccountId, i64>,
    /// Accounts for which credit is booked in this batch, numbered in that order.
    booked: BTreeMap<AccountId, usize>,
    /// Answers to recalls, each up to a number.
    answered: BTreeMap<AccountId, i64>,
}

impl SharedBalances {
    /// Begins a batch.
    pub(super) fn clear(&mut self) {
        self.undo(0);
    }

    /// Number of accounts for which credit is booked so far.
    pub(super) fn booked(&self) -> usize {
        self.booked.len()
    }

    /// Forgets what was read, and what a unit that is refused has not written; of the credit that is booked, the first `booked` accounts stay.
    pub(super) fn undo(&mut self, booked: usize) {
        self.known.clear();
        self.moved.clear();
        self.opened.clear();
        self.booked.retain(|_, number| *number < booked);
        self.answered.clear();
    }

    /// Reads what the takes of a batch need.
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

    /// The shared balance of an account, if there is such an account.
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

    /// A recall has begun, has changed or ended; it is written.
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
        // It opens what the answer before it has closed.
        if self.answered.contains_key(&account) {
            self.flush(sql, node)?;
        }
        let opened = self.opened.entry(account).or_insert(recall);
        *opened = recall.min(*opened);
        Ok(())
    }

    /// Opens the allotment for credit that is booked here. This node has it until it returns it, and answers recalls anew: also one whose answer
    /// is in this batch, from a time before the credit.
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

    /// Writes the changes that are only here.
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

    /// Flushes, and forgets what was read: something else changes these rows now.
    pub(super) fn invalidate(&mut self, sql: &dyn Sql, node: i64) -> Result<(), RowError> {
        self.known.clear();
        self.flush(sql, node)
    }
}
