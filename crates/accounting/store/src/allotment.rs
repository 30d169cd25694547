//! Allotments: the parts of a budget that the nodes of a cluster decide on. A budget is an account's credit, or the spending cap of a key in one
//! period.
//!
//! An account's shared balance is what no node has. A node takes credit from it before it places holds, and gives back what it does not need.
//! Each move changes the shared balance and is a record of the node's journal, in one commit, so that every journal is a ledger of its own and
//! all of them with the shared balances add up. Commits of this kind have one order across all nodes.
//!
//! When a take does not fit, the budget is recalled: it gets a row with the number of a change, and each node that has an allotment of it gives
//! back what is not held and answers with that number. A take that does not fit after every node has answered is an account without credit, or a
//! cap that is reached. Until the budget has plenty again, also for the takes that did not fit a moment ago, each take is exactly what its hold needs.
//!
//! The shared part of a cap is not stored: it is the cap less what its nodes were granted. What a node was granted only changes with a take, a
//! return, or a charge that no take has covered; what it has spent of that is counted as its journal is posted. So a changed cap is in force with
//! the next take, and no record of a move is needed.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId};

/// The shared balance has plenty again when it is so many times what a take needs, this one or one that was short within [`SHORT_KEPT`].
pub(crate) const PLENTY: i64 = 64;

/// For how long a take for which there was too little keeps a recall in force: small takes that fit do not end it before other nodes have answered.
const SHORT_KEPT: Duration = Duration::from_secs(10);

/// How often the time of an equal one is written.
const SHORT_WRITTEN: Duration = Duration::from_secs(1);

/// The answer of a node that has nothing, to every recall.
pub(crate) const LEFT: i64 = i64::MAX;

/// What nodes have allotments of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Budget {
    /// An account's credit.
    Account(AccountId),
    /// The spending cap of a key in one period.
    Cap(KeyCap),
}

/// The spending cap of a key in one period. A request counts in the month in which it began, whenever it is charged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct KeyCap {
    /// The key.
    pub credential: CredentialId,
    /// The month; `None` for all time.
    pub month: Option<Month>,
}

impl KeyCap {
    /// The cap that a request counts against.
    pub fn of(credential: CredentialId, period: CapPeriod, operation: OperationId) -> KeyCap {
        KeyCap::at(credential, period, operation.began_at())
    }

    /// The cap of the requests that begin at a time.
    pub fn at(credential: CredentialId, period: CapPeriod, at: Timestamp) -> KeyCap {
        let month = match period {
            CapPeriod::Total => None,
            CapPeriod::Month => Some(Month::of(at)),
        };
        KeyCap { credential, month }
    }

    /// The number of its month, 0 for all time.
    pub(crate) fn month_number(&self) -> i64 {
        self.month.map_or(0, Month::number)
    }

    pub(crate) fn from_numbers(credential: CredentialId, month: i64) -> KeyCap {
        let month = (month != 0).then(|| Month::from_number(month));
        KeyCap { credential, month }
    }

    /// Whether a request of its key counts that began in a month.
    pub(crate) fn counts(&self, began_in: Month) -> bool {
        self.month.is_none_or(|month| month == began_in)
    }
}

/// A move between what nodes share of a budget and this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllotmentPart {
    /// Takes credit. The receipt says how much ([`Taken`]).
    Take {
        /// An id of its own.
        operation: OperationId,
        /// The budget.
        budget: Budget,
        /// The least that is of use; above zero.
        need: Micros,
        /// The amount wanted ahead: the node gets up to half of the shared balance, but not less than `need`, and only that during a recall.
        target: Micros,
        /// Whether it takes back what returned payments owe: no other take gets credit that is owed.
        is_owed: bool,
        /// When.
        at: Timestamp,
    },
    /// Gives credit back, and answers recalls.
    Return {
        /// An id of its own.
        operation: OperationId,
        /// The budget.
        budget: Budget,
        /// How much; zero for an answer alone.
        amount: Micros,
        /// What this node has of the budget from now on, but for what it gives back when a hold ends.
        answer: Answer,
        /// When.
        at: Timestamp,
    },
    /// Charges of a key that no take has covered: they count against its cap even where that is reached.
    Overspent {
        /// The cap.
        cap: KeyCap,
        /// How much. Without a row of its own the node counts all that the key has spent, also with zero.
        amount: Micros,
        /// When.
        at: Timestamp,
    },
    /// The node has nothing of any budget, but for what is held: the answer to every recall until its next take.
    Leave,
}

/// What keys were charged, by the month in which the requests began.
pub(crate) type KeySpending = BTreeMap<(CredentialId, Month), i64>;

/// The number of the row of a cap that has what was spent without a row of its own. No node of several has it.
pub(crate) const SPENT_BEFORE: i64 = 0;

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
pub enum TakeResult {
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

/// A recall of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recall {
    /// The number of the change that announced it, 0 for none in force.
    pub(crate) number: i64,
    /// The most that a take has needed for which there was too little, and when.
    pub(crate) need: i64,
    pub(crate) short_at: Timestamp,
}

impl Recall {
    fn need_at(&self, at: Timestamp) -> i64 {
        match at < self.short_at + SHORT_KEPT && self.short_at < at + SHORT_KEPT {
            true => self.need,
            false => 0,
        }
    }

    /// The recall after a take for which there was too little, where that changes it.
    pub(crate) fn after_short(&self, need: i64, at: Timestamp) -> Option<Recall> {
        let known = self.need_at(at);
        let is_changed = need > known || (need == known && at >= self.short_at + SHORT_WRITTEN);
        is_changed.then_some(Recall {
            need,
            short_at: at,
            ..*self
        })
    }
}

/// What nodes share of a budget: an account's balance, or what a cap leaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedBalance {
    pub(crate) available: i64,
    pub(crate) credit_limit: i64,
    /// Credits that returned payments of the account owe. The account is recalled as long as they do.
    pub(crate) owed: i64,
    pub(crate) recall: Recall,
}

impl SharedBalance {
    pub(crate) fn spendable(&self) -> i64 {
        let available = self.available.saturating_add(self.credit_limit);
        available.saturating_sub(self.owed)
    }

    /// How much a take gets, if it fits. One of owed credit (`is_owed`) also gets what is not spendable.
    pub(crate) fn share(&self, need: i64, target: i64, is_owed: bool) -> Option<i64> {
        let reserved = if is_owed { self.owed } else { 0 };
        if need > self.spendable().saturating_add(reserved) {
            return None;
        }
        match self.recall.number {
            0 => Some(need.max(target.min(self.available / 2))),
            _ => Some(need),
        }
    }

    /// Whether a recall ends with a take of this amount.
    pub(crate) fn has_plenty(&self, need: i64, at: Timestamp) -> bool {
        let most = need.max(self.recall.need_at(at));
        self.owed == 0 && self.available > most.saturating_mul(PLENTY)
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

/// What this node has of a key's cap, as of its last posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapAllotmentRow {
    /// The cap.
    pub cap: KeyCap,
    /// What it was granted and has not spent: below zero after charges that no take has covered.
    pub left: Micros,
}

/// A node's row of a key's cap, in micro-credits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CapRow {
    pub(crate) node: i64,
    pub(crate) granted: i64,
    /// As of the node's last posting.
    pub(crate) spent: i64,
}

/// The parts of a key's cap, in one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapShares {
    /// The cap.
    pub cap: KeyCap,
    /// The account of its key.
    pub account: AccountId,
    /// What may be spent; `None` for a cap that is not in force any more.
    pub max: Option<Micros>,
    /// Whether it is recalled.
    pub is_recalled: bool,
    /// What counts as spent without a row of a node.
    pub before: Micros,
    /// Charges that are posted.
    pub posted: Micros,
    /// Charges that are not, by nodes without a row.
    pub since_elsewhere: Micros,
    /// The rows of nodes.
    pub nodes: Vec<NodeCap>,
}

/// A node's part of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCap {
    /// The node.
    pub node: i64,
    /// What it was granted.
    pub granted: Micros,
    /// What it has spent of that, as of its last posting.
    pub spent: Micros,
    /// What it has spent since.
    pub since: Micros,
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
                owed: 0,
                recall: Recall {
                    number: recall,
                    ..Recall::default()
                },
            };
            assert_eq!(
                shared.share(need, target, false),
                gets,
                "{need} to {target} of {shared:?}"
            );
        }
    }

    #[test]
    fn owed_credit_goes_to_the_take_that_collects_it_alone_and_keeps_the_recall() {
        for (available, credit_limit, owed, spendable, collectable) in [
            (100, 0, 30, 70, 100),
            (100, 0, 100, 0, 100),
            (100, 0, 130, -30, 100),
            (0, 50, 30, 20, 50),
        ] {
            let shared = SharedBalance {
                available,
                credit_limit,
                owed,
                recall: Recall {
                    number: 7,
                    ..Recall::default()
                },
            };
            assert_eq!(shared.spendable(), spendable);
            for (most, is_owed) in [(spendable.max(0), false), (collectable, true)] {
                let share = |need| shared.share(need, need, is_owed);
                let case = format!("{most} of {shared:?}");
                assert_eq!(
                    share(most),
                    (spendable >= 0 || is_owed).then_some(most),
                    "{case}"
                );
                assert_eq!(share(most + 1), None, "more than {case}");
            }
            assert!(
                !shared.has_plenty(0, Timestamp::from_secs(90)),
                "{shared:?}"
            );
        }
    }

    #[test]
    fn a_recall_ends_when_there_is_plenty_for_every_take_that_was_short_within_ten_seconds() {
        let at = Timestamp::from_secs;
        let begun = Recall {
            number: 7,
            need: 100,
            short_at: at(20),
        };
        //   short, at, most that was short then
        for (short, since, most) in [
            (99, 20, 100),
            (101, 20, 101),
            (100, 29, 100),
            (1, 29, 100),
            (1, 30, 1),
            (1, 9, 1),
        ] {
            let recall = begun.after_short(short, at(since)).unwrap_or(begun);
            assert_eq!(recall.number, 7);
            for (available, is_plenty) in [(64 * most, false), (64 * most + 1, true)] {
                let shared = SharedBalance {
                    available,
                    credit_limit: 0,
                    owed: 0,
                    recall,
                };
                let case = format!("{short} at {since}: {available} of {recall:?}");
                assert_eq!(shared.has_plenty(1, at(since)), is_plenty, "{case}");
            }
        }
        assert_eq!(begun.after_short(100, at(20)), None, "it is not written");
        let later = begun
            .after_short(100, at(21))
            .expect("it is kept for longer");
        assert_eq!(later.short_at, at(21));
    }
}
