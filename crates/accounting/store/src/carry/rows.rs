//! The carried state: its rows, and the part that changes it.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

use crate::commit_id;
use crate::entries::Entry;
use crate::usage::UsageDay;

/// The schema of the first release that knows removed commits: an earlier release must not open a PostgreSQL database with removed
/// commits.
pub(crate) const KNOWN_FROM: i64 = 18;

/// Removes the commits of a node up to the commit `last`. The caller has verified the export of these commits.
///
/// Refused as invalid when the commit is not posted, is the last of its node, or is not in the journal with this hash.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CarryPart {
    /// A separate id, for the record of the removal.
    pub operation: OperationId,
    /// Node, epoch and number of the last commit to remove.
    pub last: (i64, i64, i64),
    /// The hash of the last commit to remove.
    pub hash: [u8; 32],
    /// The time of the removal.
    pub at: Timestamp,
}

/// The removed part of a node's journal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpeningNode {
    /// The node.
    pub node: i64,
    /// The id of the last removed commit.
    pub(crate) id: i64,
    /// The hash of the last removed commit.
    pub hash: [u8; 32],
    /// Number of removed commits.
    pub commits: u64,
    /// The latest time in the removed commits.
    pub at: Timestamp,
}

impl OpeningNode {
    /// Epoch and number of the last removed commit.
    pub fn last(&self) -> (i64, i64) {
        let (_, epoch, number) = commit_id::numbers(self.id);
        (epoch, number)
    }
}

/// Sums over the removed records of an account in the journal of a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OpeningSum {
    /// The account.
    pub account: AccountId,
    /// The node.
    pub node: i64,
    /// Costs charged.
    pub charged: Micros,
    /// Costs beyond what could be charged.
    pub written_off: Micros,
    /// Credit moved from the shared balance to the node.
    pub allotted: Micros,
}

/// A row of the carried state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum OpeningRow {
    Node(OpeningNode),
    Record {
        operation: OperationId,
        /// The id of the record's removed commit.
        id: i64,
        /// Packed as a separate body.
        body: Vec<u8>,
    },
    Sum(OpeningSum),
    Day(AccountId, UsageDay),
}

/// The carried state, for the audit.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpeningBalances {
    /// The number of the last removal, 0 before the first.
    pub number: i64,
    /// The nodes whose journal has removed commits.
    pub nodes: Vec<OpeningNode>,
    /// The sums.
    pub sums: Vec<OpeningSum>,
    /// The entries of credits, and of open holds, by node; of nodes with allotments only.
    pub entries: Vec<(i64, Entry)>,
    /// A defect of the carried state, as a sentence.
    pub problem: Option<&'static str>,
}
