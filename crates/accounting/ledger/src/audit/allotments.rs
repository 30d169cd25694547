//! Allotments of accounts and spending caps on the nodes of a cluster.
//!
//! Each node's journal is an independent ledger: the records of moves are entries in the journal. So a node's allotment of an account is
//! the sum of the node's entries. The unallotted credit follows from the allotments and the account's total.

use std::collections::{BTreeMap, HashMap};

use tollgate_money::AccountId;
use tollgate_store::entries::{Body, Entry};
use tollgate_store::{AllotmentRow, BatchRows, CapShares, OpeningSum, has_allotments};

/// Available and held.
type Balance = (i128, i128);

/// The entries of nodes, by account and node: the posted entries, and the sum with unposted entries.
#[derive(Default)]
pub(super) struct Allotments {
    /// The last posted commit of each node, by epoch and number.
    marks: BTreeMap<i64, (i64, i64)>,
    sums: HashMap<(AccountId, i64), (Balance, Balance)>,
}

impl Allotments {
    /// Adds a node, before the commits. Returns the node if the node has allotments.
    pub(super) fn posted(&mut self, node: i64, last: Option<(i64, i64)>) -> Option<i64> {
        let node = Some(node).filter(|node| has_allotments(*node))?;
        self.marks
            .insert(node, last.unwrap_or((i64::MIN, i64::MIN)));
        Some(node)
    }

    /// Adds the opening sum of a node's removed commits, before the following commits. Removed commits were posted.
    pub(super) fn carried(&mut self, sum: &OpeningSum) {
        if self.marks.contains_key(&sum.node) {
            let available = i128::from(sum.allotted.get()) - i128::from(sum.charged.get());
            let (posted, all) = self.sums.entry((sum.account, sum.node)).or_default();
            add(posted, available, 0);
            add(all, available, 0);
        }
    }

    /// Adds one commit. The check of the seal reports unreadable data.
    pub(super) fn batch(&mut self, rows: &BatchRows) {
        let seal = &rows.seal;
        let Some(mark) = self.marks.get(&seal.node) else {
            return;
        };
        let is_posted = (seal.epoch, seal.number) <= *mark;
        let Ok(body) = Body::read(&rows.body) else {
            return;
        };
        let parts = body.records().map_while(|record| record.ok()?.part().ok());
        for entry in parts.filter_map(|part| Entry::of(&part)) {
            self.entry(seal.node, &entry, is_posted);
        }
    }

    /// Adds one entry of a node. Entries carried from removed commits come before the following commits.
    pub(super) fn entry(&mut self, node: i64, entry: &Entry, is_posted: bool) {
        if !self.marks.contains_key(&node) {
            return;
        }
        let (available, held) = (entry.d_available.get(), entry.d_held.get());
        let (posted, all) = self.sums.entry((entry.account, node)).or_default();
        if is_posted {
            add(posted, available.into(), held.into());
        }
        add(all, available.into(), held.into());
    }

    /// Checks a node's stored allotment of an account, after the last commit. Returns the violation.
    pub(super) fn row(&mut self, node: i64, row: &AllotmentRow) -> Option<String> {
        let sums = self.sums.remove(&(row.account, node)).unwrap_or_default();
        check_row(
            node,
            (row.available.get().into(), row.held.get().into()),
            sums,
        )
    }

    /// Checks the accounts without a stored allotment, after the last row. Returns the violations.
    pub(super) fn rest(&mut self) -> Vec<(AccountId, String)> {
        let mut found: Vec<_> = std::mem::take(&mut self.sums)
            .into_iter()
            .filter_map(|((account, node), sums)| Some((account, check_row(node, (0, 0), sums)?)))
            .collect();
        found.sort();
        found
    }
}

fn add(balance: &mut Balance, available: i128, held: i128) {
    balance.0 += available;
    balance.1 += held;
}

fn check_row(node: i64, stored: Balance, (posted, all): (Balance, Balance)) -> Option<String> {
    if stored != posted {
        return Some(format!(
            "{} available and {} held are stored for node {node}, its entries add up to {} and {}",
            stored.0, stored.1, posted.0, posted.1
        ));
    }
    (all.0 < 0 || all.1 < 0).then(|| {
        format!(
            "node {node} has {} available and {} held, which is more than it was given",
            all.0, all.1
        )
    })
}

/// The violation of a cap's parts, if there is one.
pub(super) fn cap(shares: &CapShares) -> Option<String> {
    let wide = |amount: tollgate_money::Micros| i128::from(amount.get());
    let name = match shares.cap.month {
        None => format!("the cap of key `{}`", shares.cap.credential),
        Some(month) => format!(
            "the cap of key `{}` in the month from {}",
            shares.cap.credential,
            &month.start().rfc3339()[..10]
        ),
    };
    let spent: i128 = shares.nodes.iter().map(|node| wide(node.spent)).sum();
    let counted = wide(shares.before) + spent;
    let (posted, elsewhere) = (wide(shares.posted), wide(shares.since_elsewhere));
    // Only for a cap in force does every node count its charges. For another cap the charges are summed when the cap is set again.
    let is_in_force = shares.max.is_some();
    if counted > posted + elsewhere || (is_in_force && counted < posted) {
        let charged = posted + elsewhere;
        return Some(format!(
            "{name} counts {counted} as spent, and {charged} were charged"
        ));
    }
    for node in &shares.nodes {
        let left = wide(node.granted) - wide(node.spent) - wide(node.since);
        if left < 0 {
            let number = node.node;
            return Some(format!("node {number} has {left} left of {name}"));
        }
    }
    let granted: i128 = shares.nodes.iter().map(|node| wide(node.granted)).sum();
    let granted = wide(shares.before) + granted;
    let max = shares.max.map(wide)?;
    (granted > max && !shares.is_recalled)
        .then(|| format!("{name} is {max}, and nodes were given {granted} of it"))
}

#[cfg(test)]
mod tests {
    use tollgate_money::{CredentialId, Micros};
    use tollgate_store::{KeyCap, NodeCap};

    use super::*;

    #[test]
    fn a_cap_whose_parts_do_not_add_up_is_a_violation() {
        let good = CapShares {
            cap: KeyCap {
                credential: CredentialId::from_bytes([1; 16]),
                month: None,
            },
            account: AccountId::from_bytes([1; 16]),
            max: Some(Micros::new(100)),
            is_recalled: false,
            before: Micros::new(10),
            posted: Micros::new(40),
            since_elsewhere: Micros::ZERO,
            nodes: vec![NodeCap {
                node: 16,
                granted: Micros::new(60),
                spent: Micros::new(30),
                since: Micros::new(20),
            }],
        };
        assert_eq!(cap(&good), None);
        let is_wrong = |change: fn(&mut CapShares)| {
            let mut shares = good.clone();
            change(&mut shares);
            cap(&shares).is_some()
        };
        assert!(is_wrong(|it| it.before = Micros::new(11)), "counted twice");
        assert!(is_wrong(|it| it.posted = Micros::new(41)), "not counted");
        assert!(
            !is_wrong(|it| (it.max, it.posted) = (None, Micros::new(41))),
            "not counted while it is not in force"
        );
        assert!(!is_wrong(|it| {
            it.before = Micros::new(15);
            it.since_elsewhere = Micros::new(5);
        }));
        assert!(
            is_wrong(|it| it.nodes[0].since = Micros::new(31)),
            "more than it has"
        );
        assert!(
            is_wrong(|it| it.max = Some(Micros::new(69))),
            "more than there is"
        );
        assert!(!is_wrong(|it| {
            it.max = Some(Micros::new(69));
            it.is_recalled = true;
        }));
        assert!(!is_wrong(|it| it.max = None), "not in force");
    }
}
