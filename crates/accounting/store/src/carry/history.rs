//! The carried rows of removed commits, accumulated in memory.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use super::{OpeningNode, OpeningRow, OpeningSum, RecordDigest, RowDigest};
use crate::commit_id;
use crate::engine::{RowError, Sql, damaged_commit};
use crate::entries::{Body, LedgerPart, Seal};
use crate::journal::Packer;
use crate::reads::DayTotals;
use crate::store::BatchRows;

/// Consecutive commits of each node.
#[derive(Default)]
pub(crate) struct History {
    pub(crate) nodes: BTreeMap<i64, OpeningNode>,
    /// Credits, and open holds: the id of the commit, and the record as a body.
    pub(crate) records: BTreeMap<OperationId, (i64, Vec<u8>)>,
    /// Holds that began in an earlier commit and have ended in this history.
    pub(crate) ended: Vec<OperationId>,
    pub(crate) sums: BTreeMap<(AccountId, i64), OpeningSum>,
    pub(crate) days: DayTotals,
    /// Digests of the records that owners see, without credits.
    pub(crate) visible: HashMap<AccountId, RecordDigest>,
    /// The accounts of the records that owners see.
    pub(crate) owners: BTreeSet<AccountId>,
    packer: Packer,
}

impl History {
    /// A history that follows the removed commits of a node.
    pub(crate) fn after(node: Option<OpeningNode>) -> History {
        History {
            nodes: node.into_iter().map(|node| (node.node, node)).collect(),
            ..History::default()
        }
    }

    /// Adds the next commit of its node.
    ///
    /// # Errors
    ///
    /// The commit does not follow the preceding commit, or differs from its seal; or a price could not be read.
    pub(crate) fn add(&mut self, sql: &dyn Sql, commit: &BatchRows) -> Result<(), RowError> {
        let seal = &commit.seal;
        let id = commit_id::id(seal.node, seal.epoch, seal.number);
        self.follow(id, seal, &commit.body)?;
        let damaged = damaged_commit(id);
        let body = Body::read(&commit.body).map_err(&damaged)?;
        for record in body.records() {
            let record = record.map_err(&damaged)?;
            let part = record.part().map_err(&damaged)?;
            if record.is_owner_visible() {
                self.owners.insert(record.account());
                if !part.is_credit() {
                    let digest = self.visible.entry(record.account()).or_default();
                    let added = digest.add_record(&mut self.packer, &record, 1);
                    added.map_err(&damaged)?;
                }
            }
            if let Some(used) = part.usage() {
                self.days.add(sql, &used)?;
            }
            self.part(id, seal.node, &part);
        }
        Ok(())
    }

    fn follow(&mut self, id: i64, seal: &Seal, body: &[u8]) -> Result<(), RowError> {
        let node = self.nodes.entry(seal.node).or_insert(OpeningNode {
            node: seal.node,
            id: commit_id::range(seal.node).0,
            hash: [0; 32],
            commits: 0,
            at: Timestamp::MIN,
        });
        if seal.previous != node.hash || id <= node.id || seal.reseal(body).as_ref() != Ok(seal) {
            return Err(RowError::Damaged(format!(
                "commit {} of node {}, run {} does not follow the one before it, or differs from its seal",
                seal.number, seal.node, seal.epoch
            )));
        }
        node.id = id;
        node.hash = seal.hash;
        node.commits += 1;
        node.at = node.at.max(seal.at);
        Ok(())
    }

    fn part(&mut self, id: i64, node: i64, part: &LedgerPart) {
        match part {
            LedgerPart::Hold { operation, .. } | LedgerPart::Credit { operation, .. } => {
                self.packer.push(part);
                let body = self.packer.finish();
                self.records.insert(*operation, (id, body));
            }
            LedgerPart::Settle {
                operation,
                charged,
                written_off,
                ..
            } => {
                self.end(*operation);
                self.charge(part.account(), node, *charged, *written_off);
            }
            LedgerPart::Charge {
                charged,
                written_off,
                ..
            } => self.charge(part.account(), node, *charged, *written_off),
            LedgerPart::Release { operation, .. } => self.end(*operation),
            LedgerPart::Allot {
                account, amount, ..
            } => {
                let sum = self.sum(*account, node);
                sum.allotted = wrapping(sum.allotted, *amount);
            }
            LedgerPart::Carry { .. } => {}
        }
    }

    fn end(&mut self, operation: OperationId) {
        if self.records.remove(&operation).is_none() {
            self.ended.push(operation);
        }
    }

    fn charge(&mut self, account: AccountId, node: i64, charged: Micros, written_off: Micros) {
        if (charged, written_off) != (Micros::ZERO, Micros::ZERO) {
            let sum = self.sum(account, node);
            sum.charged = wrapping(sum.charged, charged);
            sum.written_off = wrapping(sum.written_off, written_off);
        }
    }

    fn sum(&mut self, account: AccountId, node: i64) -> &mut OpeningSum {
        let sum = self.sums.entry((account, node));
        sum.or_insert(OpeningSum {
            account,
            node,
            charged: Micros::ZERO,
            written_off: Micros::ZERO,
            allotted: Micros::ZERO,
        })
    }

    /// The digest of the carried rows of a history that begins with the first commit of each node.
    pub(crate) fn digest(&self) -> RowDigest {
        let mut digest = RowDigest::default();
        let nodes = self.nodes.values().copied().map(OpeningRow::Node);
        let records = self.records.iter().map(|(operation, (id, body))| {
            let (operation, id, body) = (*operation, *id, body.clone());
            OpeningRow::Record {
                operation,
                id,
                body,
            }
        });
        let sums = self.sums.values().copied().map(OpeningRow::Sum);
        let days = (self.days.each()).map(|(account, day)| OpeningRow::Day(account, day.clone()));
        for row in nodes.chain(records).chain(sums).chain(days) {
            digest.add(&row);
        }
        digest
    }
}

/// Sums of damaged rows may have any value; the audit compares the sums and does not rely on them.
pub(super) fn wrapping(sum: Micros, more: Micros) -> Micros {
    Micros::new(sum.get().wrapping_add(more.get()))
}
