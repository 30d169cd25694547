//! What a node remembers of each budget that it shares with others: takes, recalls, and the last refusal.

use std::time::Duration;

use tokio::sync::oneshot;
use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::LoadedAccount;

use crate::account::Balance;

/// For how long a refusal is repeated without asking the database again.
const REFUSAL_KEPT: Duration = Duration::from_millis(100);

/// Followers of one leader.
const FOLLOWERS_MAX: usize = 256;

/// The first take of an account asks for so many times what its hold needs; each that follows within [`BUSY`] for twice as much.
const FACTOR_MIN: i64 = 8;
const FACTOR_MAX: i64 = 1 << 20;
const BUSY: Duration = Duration::from_secs(1);

/// What a node has of a key's cap.
#[derive(Debug, Default)]
pub(crate) struct CapState {
    pub(crate) balance: Balance,
    pub(crate) allotment: Allotment,
    /// The part of `held` that was granted for requests of the predecessor.
    pub(crate) adopted: Micros,
}

/// What a node has to know of what the nodes share of a budget.
#[derive(Debug, Default)]
pub(crate) struct Allotment {
    /// The number of the recall in force, 0 for none.
    pub(crate) recall: i64,
    /// The number of the last change that `recall` is of.
    number: i64,
    /// The last recall that was answered.
    pub(crate) answered: i64,
    /// Takes under way that may bring more than their holds need.
    pub(crate) surplus_takes: usize,
    /// All takes under way.
    pub(crate) takes: usize,
    /// Credit whose return is under way.
    pub(crate) returning: Micros,
    /// How many times what a take needs the last one asked for, and when.
    factor: i64,
    taken_at: Timestamp,
    /// The last refusal, if the budget is not known to have had more since.
    refused: Option<Refused>,
    /// The followers of the request that asks the database after a refusal; `None` while none asks.
    followers: Option<Vec<oneshot::Sender<Unavailable>>>,
    /// The credit limit of the account, down to which its shared balance can be taken.
    pub(crate) credit_limit: Micros,
    /// What the account has beyond this node, as far as it is known.
    pub(crate) elsewhere: Micros,
    /// The balance at the last `Ledger::return_idle`.
    pub(crate) seen: Option<Balance>,
}

/// A refusal, which is repeated for a moment.
#[derive(Clone, Copy, Debug)]
struct Refused {
    /// What the budget had: anything up to that could have been taken.
    spendable: Micros,
    at: Timestamp,
}

impl Refused {
    fn is_repeated(&self, at: Timestamp) -> bool {
        at < self.at + REFUSAL_KEPT && self.at < at + REFUSAL_KEPT
    }
}

/// What a request waited for was not decided: another node has not answered.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unavailable;

/// What a request does for which this node has too little of a budget.
pub(crate) enum Shortage {
    /// It takes credit.
    Take,
    /// The same as leader, since the last result was a refusal: the requests that come meanwhile follow it until [`Allotment::end_flight`].
    Lead,
    /// It waits for the leader. The sender is dropped when that one has its result.
    Follow(oneshot::Receiver<Unavailable>),
    /// The leader has too many followers.
    Unavailable,
    /// The budget has just been found to have only this.
    Refused(Micros),
}

impl Allotment {
    /// What the store has of an account that was not in memory.
    pub(crate) fn loaded(&mut self, loaded: &LoadedAccount) {
        self.elsewhere = loaded.elsewhere;
        self.credit_limit = loaded.credit_limit;
        // The feed may have brought a later one meanwhile.
        self.recalled(loaded.recall, loaded.recall);
    }

    /// Whether nothing has to be remembered of it: no take and no return is under way, and a recall in force is answered.
    pub(crate) fn is_quiet(&self) -> bool {
        self.takes == 0
            && self.returning == Micros::ZERO
            && self.followers.is_none()
            && self.answered >= self.recall
    }

    /// How much a take asks for.
    pub(crate) fn target(&mut self, need: Micros, at: Timestamp) -> Micros {
        // One at a time, so that requests that arrive together do not take all there is.
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

    /// The state of the recall as of a change with a number: an earlier one than is known changes nothing.
    pub(crate) fn recalled(&mut self, recall: i64, number: i64) {
        if number > self.number {
            self.number = number;
            self.recall = recall;
        }
    }

    /// What a request does that needs more than this node has. `leads`: it is the leader.
    ///
    /// Single flight: of the requests that come after a refusal, for more than the budget had, one at a time asks, so that however many are sent to an account without credit, its share of
    /// the commits that all accounts need is one take in [`REFUSAL_KEPT`]. `here` is what this node has of the budget: holds that have ended since the
    /// refusal, since it had nothing then.
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

    /// Whether the budget has just been found to have nothing, and has had nothing since.
    pub(crate) fn is_empty(&self, here: Micros, at: Timestamp) -> bool {
        self.refused
            .is_some_and(|it| !(it.spendable + here).is_positive() && it.is_repeated(at))
    }

    /// This node has returned an amount to what the nodes share.
    pub(crate) fn returned(&mut self, amount: Micros) {
        self.elsewhere += amount;
        if let Some(refused) = &mut self.refused {
            refused.spendable += amount;
        }
    }

    /// The leader has its result, or has gone away. The followers decide again once their senders, which are returned, are dropped.
    pub(crate) fn end_flight(&mut self) -> Vec<oneshot::Sender<Unavailable>> {
        self.followers.take().unwrap_or_default()
    }

    /// The budget has too little for a take, and no node will return any.
    pub(crate) fn refuse(&mut self, spendable: Micros, at: Timestamp) {
        self.elsewhere = spendable - self.credit_limit;
        self.refused = Some(Refused { spendable, at });
    }

    /// A take for this amount has brought it. What the budget had at the last refusal says nothing of more, and stands if that was as much.
    pub(crate) fn took(&mut self, amount: Micros) {
        self.refused = self.refused.filter(|it| amount <= it.spendable);
    }

    /// The budget may have more than at the last refusal.
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
