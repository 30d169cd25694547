//! Allotments: the parts of an account's credit that the nodes of a cluster decide on.
//!
//! An account's shared balance is what no node has. A node takes credit from it before it places holds, and gives back what it does not need.
//! Each move changes the shared balance and is a record of the node's journal, in one commit, so that every journal is a ledger of its own and
//! all of them with the shared balances add up. Commits of this kind have one order across all nodes.
//!
//! When a take does not fit, the account's credit is recalled: the account gets a row with the number of a change, and each node that has an
//! allotment of it gives back what is not held and answers with that number. A take that does not fit after every node has answered is an account
//! without credit. Until the account has plenty again, each take is exactly what its hold needs.

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};

/// The shared balance has plenty again when it is so many times what a take needs.
pub(crate) const PLENTY: i64 = 64;

/// The answer of a node that has nothing, to every recall.
pub(crate) const LEFT: i64 = i64::MAX;

/// A move between an account's shared balance and this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllotmentPart {
    /// Takes credit. The receipt says how much ([`Taken`]).
    Take {
        /// An id of its own.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// The least that is of use; above zero.
        need: Micros,
        /// The most that is of use; taken from the half of what there is.
        target: Micros,
        /// When.
        at: Timestamp,
    },
    /// Gives credit back, and answers recalls.
    Return {
        /// An id of its own.
        operation: OperationId,
        /// The account.
        account: AccountId,
        /// How much; zero for an answer alone.
        amount: Micros,
        /// What this node has of the account from now on, but for what it gives back when a hold ends.
        answer: Answer,
        /// When.
        at: Timestamp,
    },
    /// The node has nothing of any account, but for what is held: the answer to every recall until its next take.
    Leave,
}

/// What a node says of its allotment with a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// Nothing.
    None,
    /// It has only what is held: the answer to the recall with this number.
    Held(i64),
    /// It has nothing.
    Nothing,
}

/// The result of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// The node has this much more.
    Amount {
        /// How much.
        amount: Micros,
        /// The number of the recall in force, 0 for none.
        recall: i64,
    },
    /// The shared balance is less than needed; nothing was taken.
    Short {
        /// What can be taken at most now, to the credit limit.
        spendable: Micros,
        /// The number of the recall in force.
        recall: i64,
        /// Whether a node has not answered it, so that there may be more.
        is_pending: bool,
    },
}

/// The shared balance of an account.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedBalance {
    pub(crate) available: i64,
    pub(crate) credit_limit: i64,
    /// The number of the recall in force, 0 for none.
    pub(crate) recall: i64,
}

impl SharedBalance {
    pub(crate) fn spendable(&self) -> i64 {
        self.available.saturating_add(self.credit_limit)
    }

    /// How much a take gets, if it fits.
    pub(crate) fn share(&self, need: i64, target: i64) -> Option<i64> {
        if need > self.spendable() {
            return None;
        }
        match self.recall {
            0 => Some(need.max(target.min(self.available / 2))),
            _ => Some(need),
        }
    }

    /// Whether a recall ends with a take of this amount.
    pub(crate) fn has_plenty(&self, need: i64) -> bool {
        self.available > need.saturating_mul(PLENTY)
    }
}

/// An allotment of this node, as of its last posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllotmentRow {
    /// The account.
    pub account: AccountId,
    /// What can be held.
    pub available: Micros,
    /// What is held.
    pub held: Micros,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_gets_up_to_half_of_what_there_is_and_in_a_recall_what_it_needs() {
        for (available, credit_limit, recall, need, target, gets) in [
            (100, 0, 0, 10, 30, Some(30)),
            (100, 0, 0, 10, 80, Some(50)),
            (100, 0, 0, 70, 80, Some(70)),
            (100, 0, 0, 100, 100, Some(100)),
            (100, 0, 0, 101, 101, None),
            (100, 5, 0, 105, 200, Some(105)),
            (100, 5, 0, 106, 200, None),
            (-3, 5, 0, 2, 9, Some(2)),
            (-3, 5, 0, 3, 9, None),
            (100, 0, 7, 10, 80, Some(10)),
            (100, 0, 7, 101, 101, None),
        ] {
            let shared = SharedBalance {
                available,
                credit_limit,
                recall,
            };
            assert_eq!(
                shared.share(need, target),
                gets,
                "{need} to {target} of {shared:?}"
            );
        }
    }
}
