//! Allotments (escrow, a bounded counter): each of several nodes grants holds in memory, only from its own part of a budget. A budget is an
//! account's credit, or the spending cap of a key in one period (`caps.rs`).
//!
//! A hold within the allotment is placed as on a node that is alone. For a larger hold the node takes credit first
//! ([`Ledger::acquire_from`]). The shared balance in the database decides refusals, shorter answers, and every booking of outgoing credit.
//! During a recall of a budget the node keeps only held credit. Credit freed by the end of a hold is returned under the lock that freed the
//! credit.

use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{
    Admission, AllotmentPart, Budget, CommitError, Done, Failure, Part, Refusal, TakeResult,
    UnitOfWork,
};

use crate::account::Balance;
use crate::accounts::{Ledger, Shard};
use crate::allotment_state::{Allotment, Shortage, Unavailable};
use crate::decision::Decision;
use crate::hold::Hold;
use crate::hold_request::{HoldError, HoldRequest};
use crate::units::log_refusal;

/// Takes for one hold while other nodes have not answered a recall, and the pause between two takes. In total a quarter of a second, and
/// the time of the commits.
const RECALL_TAKES: usize = 12;
const RECALL_PAUSE: Duration = Duration::from_millis(20);

/// The result of one take for a hold.
enum Attempt<T> {
    Placed(Result<T, HoldError>),
    Short { spendable: Micros, is_pending: bool },
}

/// Single flight: the leader asks the database for its followers too. The followers wait for the leader's budget until the leader is
/// dropped. Not a flight of `tollgate-flight`: the followers are part of the budget. They change under the lock of the budget's shard,
/// together with the refusal which decides whether a request leads.
struct Leader {
    ledger: Ledger,
    budget: Budget,
}

impl Leader {
    /// Other nodes have not answered: the followers fail with the leader, and do not ask in turn.
    fn fail_followers(self) {
        for follower in self.end() {
            // A dropped follower needs no answer.
            let _ = follower.send(Unavailable);
        }
    }

    fn end(&self) -> Vec<oneshot::Sender<Unavailable>> {
        let mut shard = self.ledger.shard_of(self.budget);
        let allotment = shard.known_allotment(self.budget);
        allotment.map(Allotment::end_flight).unwrap_or_default()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end();
    }
}

impl Ledger {
    /// Places a hold, and takes the credit missing on this node. `fallback` is asked for a smaller amount at most once. `fallback` gets the
    /// credit of the account after every node has returned its unneeded credit.
    pub(crate) async fn acquire(
        &self,
        request: HoldRequest,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Hold, HoldError> {
        let budget = Budget::Account(request.account);
        self.acquire_from(budget, request, Ledger::place_all, fallback, false)
            .await
    }

    /// Places a hold of the full amount in memory.
    pub(crate) fn place_all(
        &self,
        shard: &mut Shard,
        request: HoldRequest,
    ) -> Result<Hold, HoldError> {
        self.place(shard, request, |_| None)
    }

    /// Places a hold at once with the credit of this node, or takes the missing credit later ([`Ledger::acquire_from`]).
    pub(crate) fn place_or_take<'l, T: Send + 'static>(
        &'l self,
        budget: Budget,
        request: HoldRequest,
        place: impl Fn(&Ledger, &mut Shard, HoldRequest) -> Result<T, HoldError> + Copy + Send + 'static,
        fallback: impl FnOnce(Micros) -> Option<Micros> + Send + 'l,
    ) -> Decision<'l, Result<T, HoldError>> {
        let placed = place(self, &mut self.shard_of(budget), request);
        match placed {
            Err(HoldError::InsufficientCredit { .. }) => {
                Decision::later(self.acquire_from(budget, request, place, fallback, false))
            }
            decided => Decision::Now(decided),
        }
    }

    /// Like [`Ledger::acquire`], for any budget. `place` decides in memory, under the lock of the budget's shard. `is_owed`: the hold takes
    /// back owed credit.
    pub(crate) async fn acquire_from<T: Send + 'static>(
        &self,
        budget: Budget,
        request: HoldRequest,
        place: impl Fn(&Ledger, &mut Shard, HoldRequest) -> Result<T, HoldError> + Copy + Send + 'static,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
        is_owed: bool,
    ) -> Result<T, HoldError> {
        let mut recalled = None;
        let acquired = self
            .acquire_recalling((budget, is_owed), request, place, fallback, &mut recalled)
            .await;
        if let Some(began) = recalled {
            let waited = self.clock.elapsed().saturating_sub(began);
            let waited = u64::try_from(waited.as_micros()).unwrap_or(u64::MAX);
            self.counters.recall_us.record(waited);
        }
        if let Err(HoldError::CreditUnavailable { .. }) = acquired {
            self.counters.unavailable.fetch_add(1, Relaxed);
        }
        acquired
    }

    /// [`Ledger::acquire_from`] without counters. `recalled`: the start of the wait for other nodes.
    async fn acquire_recalling<T: Send + 'static>(
        &self,
        (budget, is_owed): (Budget, bool),
        mut request: HoldRequest,
        place: impl Fn(&Ledger, &mut Shard, HoldRequest) -> Result<T, HoldError> + Copy + Send + 'static,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
        recalled: &mut Option<Duration>,
    ) -> Result<T, HoldError> {
        let account = request.account;
        let mut takes = 0;
        let mut fallback = Some(fallback);
        let mut leader: Option<Leader> = None;
        loop {
            let shortage = {
                let mut shard = self.shard_of(budget);
                match place(self, &mut shard, request) {
                    Err(HoldError::InsufficientCredit { .. }) => {}
                    other => return other,
                }
                let here = shard.available(budget);
                let allotment = shard.allotment(budget);
                match is_owed {
                    // A refusal does not cover owed credit.
                    true => Shortage::Take,
                    false => allotment.shortage(request.amount, here, request.at, leader.is_some()),
                }
            };
            let attempt = match shortage {
                Shortage::Follow(ended) => {
                    let _waiting = self.counters.wait();
                    match self.unless_cut_off(ended).await? {
                        Ok(Unavailable) => return Err(HoldError::CreditUnavailable { account }),
                        Err(_) => continue,
                    }
                }
                Shortage::Unavailable => return Err(HoldError::CreditUnavailable { account }),
                Shortage::Refused(spendable) => Attempt::Short {
                    spendable,
                    is_pending: false,
                },
                Shortage::Take => self.take((budget, is_owed), request, place).await?,
                Shortage::Lead => {
                    leader = Some(Leader {
                        ledger: self.clone(),
                        budget,
                    });
                    self.take((budget, is_owed), request, place).await?
                }
            };
            let spendable = match attempt {
                Attempt::Placed(placed) => return placed,
                Attempt::Short {
                    spendable,
                    is_pending: false,
                } => spendable,
                Attempt::Short { .. } => {
                    recalled.get_or_insert_with(|| self.clock.elapsed());
                    takes += 1;
                    if takes >= RECALL_TAKES {
                        leader.into_iter().for_each(Leader::fail_followers);
                        return Err(HoldError::CreditUnavailable { account });
                    }
                    tokio::time::sleep(RECALL_PAUSE).await;
                    continue;
                }
            };
            let smaller = fallback.take().and_then(|fallback| fallback(spendable));
            match smaller.filter(|amount| *amount < request.amount) {
                Some(amount) => request.amount = amount,
                None => {
                    return Err(HoldError::InsufficientCredit {
                        account,
                        available: spendable,
                        requested: request.amount,
                    });
                }
            }
        }
    }

    /// Takes credit for a hold. The callback of the durable take places the hold, before another hold can use the credit.
    async fn take<T: Send + 'static>(
        &self,
        (budget, is_owed): (Budget, bool),
        request: HoldRequest,
        place: impl Fn(&Ledger, &mut Shard, HoldRequest) -> Result<T, HoldError> + Send + 'static,
    ) -> Result<Attempt<T>, HoldError> {
        let HoldRequest {
            operation,
            amount: need,
            at,
            ..
        } = request;
        let (sender, wait) = oneshot::channel();
        let this = self.clone();
        let _waiting = self.counters.wait();
        {
            let mut shard = self.shard_of(budget);
            let allotment = shard.allotment(budget);
            let target = match is_owed {
                true => need,
                false => allotment.target(need, at),
            };
            let has_surplus = target > need;
            let done: Done = Box::new(move |result| {
                // The hold releases itself when its request has ended: after the lock is free.
                let attempt = this.taken(budget, request, place, has_surplus, result);
                let _ = sender.send(attempt);
            });
            let take = AllotmentPart::Take {
                operation: self.next_move(at),
                budget,
                need,
                target,
                is_owed,
                at,
            };
            let unit = UnitOfWork::of(Part::Allotment(take), Admission::Normal);
            self.store
                .submit(unit, done)
                .map_err(|error| HoldError::from_commit(operation, error.into()))?;
            allotment.surplus_takes += usize::from(has_surplus);
            allotment.takes += 1;
        }
        // In an outage the node keeps the taken credit, and a hold placed by the take is released.
        let attempt = self.unless_cut_off(wait).await?;
        attempt.unwrap_or_else(|_| {
            Err(HoldError::Store {
                operation,
                source: Failure::closed(),
            })
        })
    }

    /// The result of `wait`; an error when the node is cut off from its database first.
    async fn unless_cut_off<T>(&self, wait: impl Future<Output = T>) -> Result<T, HoldError> {
        match self.store.outage() {
            None => Ok(wait.await),
            Some(outage) => tokio::select! {
                biased;
                result = wait => Ok(result),
                () = outage.began() => Err(HoldError::CutOff),
            },
        }
    }

    fn taken<T>(
        &self,
        budget: Budget,
        request: HoldRequest,
        place: impl Fn(&Ledger, &mut Shard, HoldRequest) -> Result<T, HoldError>,
        has_surplus: bool,
        result: Result<tollgate_store::Receipt, CommitError>,
    ) -> Result<Attempt<T>, HoldError> {
        let mut shard = self.shard_of(budget);
        let allotment = shard.allotment(budget);
        allotment.surplus_takes -= usize::from(has_surplus);
        allotment.takes -= 1;
        let taken = match result {
            Ok(receipt) => receipt.taken,
            Err(CommitError::Refused(Refusal::NoAccount(account))) => {
                return Err(HoldError::NoAccount { account });
            }
            Err(error) => {
                log_refusal(Err(error.clone()));
                return Err(HoldError::from_commit(request.operation, error));
            }
        };
        let attempt = match taken {
            Some(TakeResult::Amount { amount, recall }) => {
                self.counters.took(amount);
                // The feed may have brought the recall before this node knew the cap of a new month.
                if recall != 0 {
                    allotment.recalled(recall, recall);
                }
                allotment.elsewhere -= amount;
                allotment.took(request.amount);
                if let Some(balance) = shard.balance(budget) {
                    balance.available += amount;
                }
                Attempt::Placed(place(self, &mut shard, request))
            }
            Some(TakeResult::Short {
                spendable,
                recall,
                is_pending,
            }) => {
                allotment.recalled(recall, recall);
                let has_surplus = allotment.surplus_takes > 0;
                // Adds credit returned by this node since the decision of the take.
                let shared = spendable + allotment.returning;
                let spendable = shared + shard.available(budget);
                let is_pending = is_pending || has_surplus || spendable >= request.amount;
                if !is_pending {
                    shard.allotment(budget).refuse(shared, request.at);
                }
                Attempt::Short {
                    spendable,
                    is_pending,
                }
            }
            None => {
                return Err(HoldError::Store {
                    operation: request.operation,
                    source: Failure::closed(),
                });
            }
        };
        self.give_back(&mut shard, budget, request.at);
        Ok(attempt)
    }

    pub(crate) fn shard_of(&self, budget: Budget) -> MutexGuard<'_, Shard> {
        match budget {
            Budget::Account(account) => self.shard(account),
            Budget::Cap(cap) => self.shard_of_caps(cap.credential),
        }
    }

    /// An id for a move of credit: unique by node, run and a counter.
    pub(crate) fn next_move(&self, at: Timestamp) -> OperationId {
        let count = self.moves.fetch_add(1, Relaxed);
        move_id(self.store.node(), self.store.epoch(), count, at)
    }
}

/// The version and the variant of an id (RFC 9562) overwrite bits of the bytes 0 and 2, so the two bytes stay unused.
fn move_id(node: i64, epoch: i64, count: u64, at: Timestamp) -> OperationId {
    let mut unique = [0; 10];
    unique[1] = node as u8;
    unique[3..6].copy_from_slice(&epoch.to_be_bytes()[5..]);
    unique[6..].copy_from_slice(&count.to_be_bytes()[4..]);
    OperationId::from_parts(at.as_micros() as u64 / 1000, unique)
}

impl Shard {
    /// The allotment of a budget.
    pub(crate) fn allotment(&mut self, budget: Budget) -> &mut Allotment {
        match budget {
            Budget::Account(account) => self.allotments.entry(account).or_default(),
            Budget::Cap(cap) => &mut self.caps.entry(cap).or_default().allotment,
        }
    }

    pub(crate) fn known_allotment(&mut self, budget: Budget) -> Option<&mut Allotment> {
        match budget {
            Budget::Account(account) => self.allotments.get_mut(&account),
            Budget::Cap(cap) => self.caps.get_mut(&cap).map(|state| &mut state.allotment),
        }
    }

    /// This node's balance of a budget.
    pub(crate) fn balance(&mut self, budget: Budget) -> Option<&mut Balance> {
        match budget {
            Budget::Account(account) => self.accounts.get_mut(&account).map(|it| &mut **it),
            Budget::Cap(cap) => self.caps.get_mut(&cap).map(|state| &mut state.balance),
        }
    }

    /// This node's credit of a budget, without held credit.
    pub(crate) fn available(&mut self, budget: Budget) -> Micros {
        self.balance(budget)
            .map_or(Micros::ZERO, |balance| balance.available.max(Micros::ZERO))
    }

    /// Credit of an account outside this node, as far as this node knows. Zero on a node that is alone.
    pub(crate) fn elsewhere(&self, account: AccountId) -> Micros {
        let allotment = self.allotments.get(&account);
        allotment.map_or(Micros::ZERO, |allotment| allotment.elsewhere)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn moves_of_one_moment_have_ids_of_their_own_at_each_node_and_in_each_run() {
        let mut seen = HashSet::new();
        for node in 16..=78 {
            for epoch in [1, 2, 255, 256, 65_536, (1 << 22) - 1] {
                for count in [0, 1, 255, 256, 1 << 31] {
                    let id = move_id(node, epoch, count, Timestamp::from_secs(1));
                    assert!(seen.insert(id), "node {node}, run {epoch}, move {count}");
                }
            }
        }
    }
}
