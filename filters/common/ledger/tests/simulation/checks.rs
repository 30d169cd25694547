//! What has to be true at the end of a run.

use std::collections::HashMap;

use tollgate_ledger::audit::audit;
use tollgate_money::Micros;

use super::book::{Operation, State};
use super::cluster::{Cluster, Node};

impl Cluster {
    /// Each node was passed every change since its start, in order.
    pub(crate) fn follow(&mut self) {
        let last = self
            .sim
            .committed("SELECT number FROM cluster WHERE id = 1");
        // What a node does while it follows may make further changes.
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

    /// All that each account has can be held, at any node.
    pub(crate) fn use_all(&mut self) {
        for account in self.accounts.clone() {
            let up: Vec<usize> = (0..self.nodes.len()).filter(|it| self.is_up(*it)).collect();
            let row = self.reader.account(account).ok().flatten();
            let Some(row) = row.filter(|_| !up.is_empty()) else {
                continue;
            };
            let index = up[self.sim.below(up.len() as u64) as usize];
            let amount = row.available.get() + row.credit_limit.get();
            if amount <= 0 {
                continue;
            }
            let number = self.number();
            let client = self.client(index).expect("it is up");
            self.ask_at(index, client.use_all(number, account, amount));
            self.until("all of an account is held", |it| {
                let up = it.nodes[index].up.as_ref();
                up.is_none_or(|up| up.run.open() == 0)
            });
        }
    }

    /// The books balance, and have each acknowledged operation once.
    pub(crate) fn compare(&self) {
        let sql = "SELECT COUNT(*) FROM allotments WHERE available <> 0 OR held <> 0";
        if self.sim.committed(sql) != 0 {
            self.violation("a node has credit after it has ended");
        }
        match audit(&*self.reader) {
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
        let charges = self.charges();
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
            // After a recovery what the spool has is booked under another name, as far as the account has it.
            let may_be_late = !operation.is_late && self.book().recovered.contains(&operation.run);
            return found == charged || may_be_late;
        }
        match operation.state {
            State::Free => found == 0,
            State::Lost => true,
            State::Asked | State::Held | State::Charged(_) => false,
        }
    }

    /// What the journals have charged to each operation.
    fn charges(&self) -> HashMap<u64, i64> {
        let mut charges = HashMap::new();
        let mut wrong = Vec::new();
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
        wrong.into_iter().for_each(|text| self.violation(text));
        charges
    }
}
