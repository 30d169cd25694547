//! Checks at the end of a run.

use std::collections::HashMap;

use tollgate_clock::Timestamp;
use tollgate_ledger::audit::audit;
use tollgate_money::{AccountId, CredentialId, Micros, SpendingCap};
use tollgate_store::{CredentialRow, KeyCap};

use super::book::{Operation, State};
use super::client::Completion;
use super::cluster::{Cluster, Node};
use super::keys::KeyUse;
use crate::support::operation_at;

impl Cluster {
    /// Waits until the queue of each node is durable. A node that has just started counts its charges above its allotment of a cap.
    pub(crate) fn flush(&mut self) {
        for index in 0..self.nodes.len() {
            if let Some(client) = self.client(index) {
                self.ask_at(index, client.flush());
            }
        }
        self.until("what is queued is durable", |it| {
            let up = it.nodes.iter().filter_map(|node| node.up.as_ref());
            up.map(|up| up.run.open()).all(|open| open == 0)
        });
    }

    /// Checks the feed: each node has read the changes since its start, in order.
    pub(crate) fn follow(&mut self) {
        let last = self
            .sim
            .committed("SELECT number FROM cluster WHERE id = 1");
        // A node may make further changes while following the feed.
        self.until("each node has read the last change", |it| {
            let has_read = |node: &Node| match node.up.as_ref().and_then(|up| up.running.as_ref()) {
                Some(running) => running.changes.has_seen(last),
                None => true,
            };
            it.nodes.iter().all(has_read)
        });
        for node in &self.nodes {
            let Some(running) = node.up.as_ref().and_then(|up| up.running.as_ref()) else {
                continue;
            };
            let seen = running.changes.seen();
            let after = running.changes.after;
            let of_since: Vec<i64> = seen
                .iter()
                .copied()
                .filter(|it| (after + 1..=last).contains(it))
                .collect();
            if of_since != (after + 1..=last).collect::<Vec<i64>>() {
                self.violation(format!(
                    "{} was passed the changes {seen:?} of {after} to {last}",
                    node.name
                ));
            }
        }
    }

    /// Checks the remaining credit: the whole credit of each account can be held at any node. The whole remainder of each cap can be
    /// reserved at any node.
    pub(crate) fn use_all(&mut self) {
        for account in self.accounts.clone() {
            let Some(row) = self.reader.account(account).ok().flatten() else {
                continue;
            };
            let amount = row.available.get() + row.credit_limit.get();
            if amount > 0 {
                self.use_all_of((account, None), amount);
            }
            if let Some(key) = self.key_of(account) {
                self.use_all_of_cap(account, key);
            }
        }
    }

    fn use_all_of_cap(&mut self, account: AccountId, credential: CredentialId) {
        let Some(CredentialRow { made, .. }) = self.reader.credential(credential).ok().flatten()
        else {
            return;
        };
        let Some(set) = made.spending_cap else { return };
        let cap = KeyCap::at(credential, set.period, self.wall(0));
        let charges = self.charges(&mut Vec::new());
        let charged = self.charged(&charges, |key| key.counts(cap));
        let left = (set.max.get() - charged).max(0);
        self.use_all_of((account, Some((credential, Some(set)))), left);
    }

    fn use_all_of(
        &mut self,
        (account, key): (AccountId, Option<(CredentialId, Option<SpendingCap>)>),
        amount: i64,
    ) {
        let up: Vec<usize> = (0..self.nodes.len()).filter(|it| self.is_up(*it)).collect();
        if up.is_empty() {
            return;
        }
        let index = up[self.sim.below(up.len() as u64) as usize];
        let number = self.number();
        let all = Completion {
            number,
            id: operation_at(self.wall(0), number),
            account,
            key,
            amount,
            kind: 0,
        };
        let client = self.client(index).expect("it is up");
        self.ask_at(index, client.use_all(all));
        self.until("all of an account is held", |it| {
            let up = it.nodes[index].up.as_ref();
            up.is_none_or(|up| up.run.open() == 0)
        });
    }

    /// Checks the books: the ledger balances, and has each acknowledged operation once.
    pub(crate) fn compare(&self) {
        let sql = "SELECT COUNT(*) FROM allotments WHERE available <> 0 OR held <> 0";
        if self.sim.committed(sql) != 0 {
            self.violation("a node has credit after it has ended");
        }
        let sql = "SELECT COUNT(*) FROM cap_allotments WHERE node_id > 0 AND granted <> spent";
        if self.sim.committed(sql) != 0 {
            self.violation("a node has a part of a cap of a key after it has ended");
        }
        match audit(&self.reader) {
            Ok(report) => {
                for violation in &report.violations {
                    self.violation(format!("audit: {violation}"));
                }
                if report.sums.total() != Micros::ZERO {
                    self.violation(format!("audit: the sums are {:?}", report.sums));
                }
            }
            Err(error) => self.violation(format!("audit: {error}")),
        }
        let mut wrong = Vec::new();
        let charges = self.charges(&mut wrong);
        wrong.into_iter().for_each(|text| self.violation(text));
        let keys: Vec<(CredentialId, AccountId)> = {
            let book = self.book();
            let all = book.keys.iter();
            all.map(|(id, key)| (*id, key.account)).collect()
        };
        for (key, account) in keys {
            let charged = self.charged(&charges, |it| it.credential == key);
            let spent = (self.reader).credential_spent(account, key, Timestamp::MIN);
            if spent.as_ref().ok() != Some(&Micros::new(charged)) {
                self.violation(format!(
                    "key {key} has spent {spent:?}, and its requests were charged {charged}"
                ));
            }
        }
        let operations = self.book().operations.clone();
        for (number, operation) in &operations {
            let found = charges.get(number).copied().unwrap_or(0);
            if !self.is_right(operation, found) {
                self.violation(format!(
                    "operation {number} is {operation:?}, and the journal has {found}"
                ));
            }
        }
    }

    fn is_right(&self, operation: &Operation, found: i64) -> bool {
        if let Some(charged) = operation.acknowledged {
            // After a recovery, spooled charges are booked under another name, up to the credit of the account.
            let may_be_late = !operation.is_late && self.book().recovered.contains(&operation.run);
            return found == charged || may_be_late;
        }
        match operation.state {
            State::Free => found == 0,
            State::Lost => true,
            State::Asked | State::Held | State::Charged(_) => false,
        }
    }

    /// The charges of requests with a key.
    fn charged(&self, charges: &HashMap<u64, i64>, is_of: impl Fn(&KeyUse) -> bool) -> i64 {
        let book = self.book();
        let of_key = charges.iter().filter(|(number, _)| {
            let key = book.operations[*number].key;
            key.is_some_and(|key| is_of(&key))
        });
        of_key.map(|(_, charged)| *charged).sum()
    }

    /// The charges of each operation in the journals. Adds violations to `wrong`.
    fn charges(&self, wrong: &mut Vec<String>) -> HashMap<u64, i64> {
        let mut charges = HashMap::new();
        let ids = self.book().ids.clone();
        let snapshot = self.reader.snapshot().expect("a snapshot");
        let read = snapshot.operations(&mut |rows| {
            let Some(number) = ids.get(&rows.id).copied() else {
                return;
            };
            if rows.is_duplicate {
                wrong.push(format!("operation {number} is there twice"));
            }
            if rows.hold.is_some() {
                wrong.push(format!("operation {number} is still held"));
            }
            let entries = rows.entries.iter();
            let charged: i64 = entries
                .map(|entry| -entry.d_available.get() - entry.d_held.get())
                .sum();
            charges.insert(number, charged);
        });
        read.expect("the operations are read");
        charges
    }
}
