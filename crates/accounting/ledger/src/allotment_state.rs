//! State of a node for one shared budget: takes, recalls, the last refusal.

use std::time::Duration;

use tokio::sync::oneshot;
use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::LoadedAccount;

use crate::account::Balance;

/// Lifetime of a cached refusal. The node does not ask the database again within this time.
const REFUSAL_KEPT: Duration = Duration::from_millis(100);

/// Maximum number of followers of one leader.
const FOLLOWERS_MAX: usize = 256;

/// Factor between a take and the need of its hold. The first take of an account uses [`FACTOR_MIN`]. A take within [`BUSY`] of the previous
/// take doubles the factor.
const FACTOR_MIN: i64 = 8;
const FACTOR_MAX: i64 = 1 << 20;
const BUSY: Duration = Duration::from_secs(1);

/// A node's allotment of a key's cap.
#[derive(Debug, Default)]
pub(crate) struct CapState {
    pub(crate) balance: Balance,
    pub(crate) allotment: Allotment,
    /// The part of `held` granted for requests of the predecessor.
    pub(crate) adopted: Micros,
}

/// State of a node for one budget shared between nodes.
#[derive(Debug, Default)]
pub(crate) struct Allotment {
    /// The number of the recall in force, 0 without a recall.
    pub(crate) recall: i64,
    /// The number of the last change, from which `recall` was read.
    number: i64,
    /// The last answered recall.
    pub(crate) answered: i64,
    /// Takes under way with a target above the need of their hold.
    pub(crate) surplus_takes: usize,
    /// Takes under way, with and without a surplus.
    pub(crate) takes: usize,
    /// Credit whose return is under way.
    pub(crate) returning: Micros,
    /// Factor of the last take ([`FACTOR_MIN`]), and its time.
    factor: i64,
    taken_at: Timestamp,
    /// The last refusal. `None` once the budget may have more credit than at the refusal.
    refused: Option<Refused>,
    /// The followers of the request which asks the database after a refusal (the leader). `None` without a leader.
    followers: Option<Vec<oneshot::Sender<Unavailable>>>,
    /// The credit limit of the account. A take can lower the shared balance down to this limit.
    pub(crate) credit_limit: Micros,
    /// Credit of the account outside this node, as far as this node knows.
    pub(crate) elsewhere: Micros,
    /// The balance at the last `Ledger::return_idle`.
    pub(crate) seen: Option<Balance>,
}

/// A refusal, cached for [`REFUSAL_KEPT`].
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// Spendable amount of the budget at the refusal. A take of at most this amount would have succeeded.
    spendable: Micros,
    at: Timestamp,
}

impl Refused {
    fn is_repeated(&self, at: Timestamp) -> bool {
        at < self.at + REFUSAL_KEPT && self.at < at + REFUSAL_KEPT
    }
}

/// The request is undecided: another node has not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unavailable;

/// The action of a request when this node has too little of a budget.
pub(crate) enum Shortage {
    /// The request takes credit.
    Take,
    /// The request takes credit as leader, because the last result was a refusal. Later requests follow the leader until
    /// [`Allotment::end_flight`].
    Lead,
    /// The request waits for the leader. The sender is dropped when the leader has its result.
    Follow(oneshot::Receiver<Unavailable>),
    /// The leader has too many followers.
    Unavailable,
    /// The cached refusal stands. The budget has only this amount.
    Refused(Micros),
}

impl Allotment {
    /// Applies the store's row of an account that was not in memory.
    pub(crate) fn loaded(&mut self, loaded: &LoadedAccount) {
        self.elsewhere = loaded.elsewhere;
        self.credit_limit = loaded.credit_limit;
        // The feed may have brought a later recall during the load.
        self.recalled(loaded.recall, loaded.recall);
    }

    /// Whether the state can be dropped: no take, return or flight is under way, and the recall in force is answered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.takes == 0
            && self.returning == Micros::ZERO
            && self.followers.is_none()
            && self.answered >= self.recall
    }

    /// The amount requested by a take.
    pub(crate) fn target(&mut self, need: Micros, at: Timestamp) -> Micros {
        // Only one take with a surplus at a time. Simultaneous requests would otherwise take the whole budget.
        if self.recall != 0 || self.surplus_takes > 0 {
            return need;
        }
        let is_busy = at < self.taken_at + BUSY;
        self.factor = match is_busy {
            true => (self.factor * 2).clamp(FACTOR_MIN, FACTOR_MAX),
            false => FACTOR_MIN,
        };
        self.taken_at = at;
        Micros::new(need.get().saturating_mul(self.factor))
    }

    /// Applies the recall state of the change `number`. A change older than the last known change is ignored.
    pub(crate) fn recalled(&mut self, recall: i64, number: i64) {
        if number > self.number {
            self.number = number;
            self.recall = recall;
        }
    }

    /// The action of a request whose need exceeds this node's credit. `leads`: the request is the leader. `here`: this node's credit of the
    /// budget. The node had no credit at the refusal, so `here` comes from holds ended since the refusal.
    ///
    /// Single flight: after a refusal, only one request at a time asks the database for more than the budget had. An account without credit
    /// causes at most one take per [`REFUSAL_KEPT`], for any number of requests. Takes share the commits with other accounts.
    pub(crate) fn shortage(
        &mut self,
        amount: Micros,
        here: Micros,
        at: Timestamp,
        leads: bool,
    ) -> Shortage {
        let is_more = |it: &Refused| amount > it.spendable + here;
        let Some(refused) = self.refused.filter(is_more) else {
            return Shortage::Take;
        };
        if refused.is_repeated(at) {
            return Shortage::Refused(refused.spendable + here);
        }
        if leads {
            return Shortage::Take;
        }
        let Some(followers) = &mut self.followers else {
            self.followers = Some(Vec::new());
            return Shortage::Lead;
        };
        if followers.len() >= FOLLOWERS_MAX {
            followers.retain(|sender| !sender.is_closed());
        }
        if followers.len() >= FOLLOWERS_MAX {
            return Shortage::Unavailable;
        }
        let (sender, ended) = oneshot::channel();
        followers.push(sender);
        Shortage::Follow(ended)
    }

    /// Whether a cached refusal found an empty budget, and no credit has arrived since the refusal.
    pub(crate) fn is_empty(&self, here: Micros, at: Timestamp) -> bool {
        self.refused
            .is_some_and(|it| !(it.spendable + here).is_positive() && it.is_repeated(at))
    }

    /// This node has returned `amount` to the shared balance.
    pub(crate) fn returned(&mut self, amount: Micros) {
        self.elsewhere += amount;
        if let Some(refused) = &mut self.refused {
            refused.spendable += amount;
        }
    }

    /// Ends the flight: the leader has its result, or was dropped. Returns the senders of the followers. Dropping the senders makes the
    /// followers decide again.
    pub(crate) fn end_flight(&mut self) -> Vec<oneshot::Sender<Unavailable>> {
        self.followers.take().unwrap_or_default()
    }

    /// The budget has too little for a take, and no node will return credit.
    pub(crate) fn refuse(&mut self, spendable: Micros, at: Timestamp) {
        self.elsewhere = spendable - self.credit_limit;
        self.refused = Some(Refused { spendable, at });
    }

    /// A take has brought `amount`. A cached refusal stands only if the budget had at least `amount` at the refusal.
    pub(crate) fn took(&mut self, amount: Micros) {
        self.refused = self.refused.filter(|it| amount <= it.spendable);
    }

    /// The budget may have more credit than at the last refusal.
    pub(crate) fn forget_refusal(&mut self) {
        self.refused = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_stands_for_what_is_more_than_the_budget_had_and_this_node_has_got_since() {
        let now = Timestamp::from_secs(1);
        //   spendable, returned since, here, asked for, refused from memory
        for (spendable, returned, here, amount, is_refused) in [
            (14, 0, 0, 15, true),
            (14, 0, 0, 14, false),
            (14, 71, 0, 86, true),
            (14, 71, 0, 85, false),
            (14, 0, 71, 86, true),
            (14, 0, 71, 85, false),
            (0, 0, 0, 1, true),
        ] {
            let mut allotment = Allotment::default();
            allotment.refuse(Micros::new(spendable), now);
            allotment.returned(Micros::new(returned));
            let (amount, here) = (Micros::new(amount), Micros::new(here));
            let refused = match allotment.shortage(amount, here, now, false) {
                Shortage::Refused(spendable) => Some(spendable.get()),
                _ => None,
            };
            let has = spendable + returned + here.get();
            assert_eq!(refused, is_refused.then_some(has), "{amount:?} of {has}");
            assert_eq!(allotment.is_empty(here, now), has == 0, "{has}");
        }
    }
}
