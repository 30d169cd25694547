//! Allotments: parts of a budget, each held by one node of a cluster. A node decides on its allotment alone. A budget is an account's
//! credit, or the spending cap of a key in one period.
//!
//! An account's shared balance is the credit that no node has. A node takes credit from the shared balance before a hold, and gives back
//! surplus credit. Each move changes the shared balance and adds a record to the node's journal, in one commit. So every journal is a
//! separate ledger, and the journals and the shared balances add up. Commits with a move have one order across all nodes.
//!
//! If a take does not fit, the budget is recalled. The recall is a row with the number of a change. Each node with an allotment of the
//! budget gives back the part that is not held, and answers with the recall's number. If a take does not fit after every node has
//! answered, the account has no credit, or the cap is reached. Until the budget has plenty again, also for the recent takes that did not
//! fit, each take gets exactly the need of its hold.
//!
//! The shared part of a cap is not stored: the shared part is the cap less the grants of its nodes. A node's grant changes only with a
//! take, a return, or a charge that no take has covered. A node's spending is counted when its journal is posted. So a changed cap is in
//! force with the next take, and a move needs no record.

use std::collections::BTreeMap;
use std::time::Duration;

use tollgate_clock::{Month, Timestamp};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId};

/// The shared balance has plenty again when the balance exceeds this multiple of a take's need. The need is the largest of the current
/// take and the takes that were short within [`SHORT_KEPT`].
pub(crate) const PLENTY: i64 = 64;

/// For how long a take that did not fit keeps a recall in force. Small takes that fit do not end the recall before other nodes have
/// answered.
const SHORT_KEPT: Duration = Duration::from_secs(10);

/// How often the time of a short take with an unchanged need is written.
const SHORT_WRITTEN: Duration = Duration::from_secs(1);

/// The answer to every recall, by a node without any credit.
pub(crate) const LEFT: i64 = i64::MAX;

/// A budget divided into allotments.
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
    /// The cap that counts a request.
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

    /// The number of the month, 0 for all time.
    pub(crate) fn month_number(&self) -> i64 {
        self.month.map_or(0, Month::number)
    }

    pub(crate) fn from_numbers(credential: CredentialId, month: i64) -> KeyCap {
        let month = (month != 0).then(|| Month::from_number(month));
        KeyCap { credential, month }
    }

    /// Whether the cap counts a request of its key that began in a month.
    pub(crate) fn counts(&self, began_in: Month) -> bool {
        self.month.is_none_or(|month| month == began_in)
    }
}

/// A move between the shared part of a budget and this node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllotmentPart {
    /// Takes credit. The receipt has the amount ([`TakeResult`]).
    Take {
        /// A separate id for the move.
        operation: OperationId,
        /// The budget.
        budget: Budget,
        /// The least useful amount; above zero.
        need: Micros,
        /// The amount wanted ahead. The node gets up to half of the shared balance, but not less than `need`; during a recall the node
        /// gets `need`.
        target: Micros,
        /// Whether the take collects the credit owed by returned payments: no other take gets owed credit.
        is_owed: bool,
        /// The time of the move.
        at: Timestamp,
    },
    /// Gives credit back, and answers recalls.
    Return {
        /// A separate id for the move.
        operation: OperationId,
        /// The budget.
        budget: Budget,
        /// The amount; zero for an answer alone.
        amount: Micros,
        /// The node's remaining part of the budget from now on. Credit given back at the end of a hold is not included.
        answer: Answer,
        /// The time of the move.
        at: Timestamp,
    },
    /// Charges of a key that no take has covered: the charges count against the key's cap even if the cap is reached.
    Overspent {
        /// The cap.
        cap: KeyCap,
        /// The amount. A node without a row of the cap counts the key's whole spending, also with zero.
        amount: Micros,
        /// The time of the charge.
        at: Timestamp,
    },
    /// The node has no credit of any budget, except for held credit: the answer to every recall until the node's next take.
    Leave,
}

/// Charges of keys, by the month in which the requests began.
pub(crate) type KeySpending = BTreeMap<(CredentialId, Month), i64>;

/// The number of a cap's row for spending without a node's row. No node of a cluster has this number.
pub(crate) const SPENT_BEFORE: i64 = 0;

/// A node's statement about its allotment, with a return.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// No answer.
    None,
    /// The node has only held credit: the answer to the recall with this number.
    Held(i64),
    /// The node has no credit.
    Nothing,
}

/// The result of a take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TakeResult {
    /// The node has this amount more.
    Amount {
        /// The amount.
        amount: Micros,
        /// The number of the recall in force, 0 for none.
        recall: i64,
    },
    /// The shared balance is less than the need; the take got no credit.
    Short {
        /// The amount that a take can get at most now, down to the credit limit.
        spendable: Micros,
        /// The number of the recall in force.
        recall: i64,
        /// Whether a node has not answered the recall yet, so that more credit may come.
        is_pending: bool,
    },
}

/// A recall of a budget.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Recall {
    /// The number of the change that announced the recall, 0 without a recall.
    pub(crate) number: i64,
    /// The largest need of a take that did not fit; `short_at` is the time of that take.
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

    /// The recall after a take that did not fit; `None` if the recall does not change.
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

/// The shared part of a budget: an account's shared balance, or the rest of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SharedBalance {
    pub(crate) available: i64,
    pub(crate) credit_limit: i64,
    /// Credits that returned payments of the account owe. The account is recalled while the account owes credits.
    pub(crate) owed: i64,
    pub(crate) recall: Recall,
}

impl SharedBalance {
    pub(crate) fn spendable(&self) -> i64 {
        let available = self.available.saturating_add(self.credit_limit);
        available.saturating_sub(self.owed)
    }

    /// The amount for a take; `None` if the take does not fit. A take of owed credit (`is_owed`) also gets the credit that is not
    /// spendable.
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

/// An allotment of this node, as of the node's last posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AllotmentRow {
    /// The account.
    pub account: AccountId,
    /// Credit available for holds.
    pub available: Micros,
    /// Held credit.
    pub held: Micros,
}

/// This node's part of a key's cap, as of the node's last posting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CapAllotmentRow {
    /// The cap.
    pub cap: KeyCap,
    /// The grant less the spending: below zero after charges that no take has covered.
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

/// The parts of a key's cap, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CapShares {
    /// The cap.
    pub cap: KeyCap,
    /// The account of the key.
    pub account: AccountId,
    /// The spending limit; `None` for a cap that is no longer in force.
    pub max: Option<Micros>,
    /// Whether the cap is recalled.
    pub is_recalled: bool,
    /// Spending that counts without a row of a node.
    pub before: Micros,
    /// Posted charges.
    pub posted: Micros,
    /// Unposted charges of nodes without a row.
    pub since_elsewhere: Micros,
    /// The rows of nodes.
    pub nodes: Vec<NodeCap>,
}

/// A node's part of a cap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NodeCap {
    /// The node.
    pub node: i64,
    /// The node's grant.
    pub granted: Micros,
    /// The node's spending of the grant, as of the node's last posting.
    pub spent: Micros,
    /// The node's spending since.
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
