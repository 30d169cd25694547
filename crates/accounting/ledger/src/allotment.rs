//! Allotments (escrow, a bounded counter): each of several nodes grants holds from its own part of a purse in memory, and from nothing else.
//! A purse is an account's credit, or the spending cap of a key in one period (`caps.rs`).
//!
//! ```text
//!               take: one commit, ordered among all nodes
//!   shared  ──────────────────────────────────────────────▶  available here ──── hold ────▶ held here
//!  balance                                                     │        ▲                     │
//!     ▲  ▲                                                     │        └─ unused remainder ──┤
//!     │  └───────────── return: idle, or recalled ─────────────┘                              │ charge
//!     └──────────────── return, while the purse is recalled ──────────────── remainder ───────┤
//!                                                                                             ▼
//!                                                                                           spent
//!   take does not fit ──▶ recall of the purse ──▶ every node returns its available part and answers
//!                              ──▶ take again: it fits, or the account has no credit (402), or a node did not answer (503)
//! ```
//!
//! The database decides every take, and everything that removes credit from an account. During a recall a freed remainder is returned under the
//! lock that freed it.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::MutexGuard;
use tokio::sync::oneshot;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::{
    AccountRow, Admission, AllotmentPart, Answer, CommitError, Done, Failure, Part, Purse,
    ReadError, Refusal, Taken, UnitOfWork,
};

use crate::account::Balance;
use crate::accounts::{Inner, SHARDS, Shard, lock};
use crate::allotment_state::{Allotment, Shortage, Unavailable};
use crate::hold::Hold;
use crate::hold_request::{HoldError, HoldRequest};
use crate::units::log_refusal;

/// Takes for one hold while other nodes have not answered a recall, and the pause between two: a quarter of a second in total, and the time of
/// the commits.
const RECALL_TAKES: usize = 12;
const RECALL_PAUSE: Duration = Duration::from_millis(20);

/// The result of one take for a hold.
enum Attempt<T> {
    Placed(Result<T, HoldError>),
    Short { spendable: Micros, is_pending: bool },
}

/// Single flight: a request asks the database for its followers too, which wait for the same purse, until this is dropped.
struct Leader {
    ledger: Arc<Inner>,
    purse: Purse,
}

impl Leader {
    /// Other nodes have not answered: the followers fail with it, and do not ask one after the other.
    fn fail_followers(self) {
        for follower in self.end() {
            // One that has gone away needs no answer.
            let _ = follower.send(Unavailable);
        }
    }

    fn end(&self) -> Vec<oneshot::Sender<Unavailable>> {
        let mut shard = self.ledger.shard_of(self.purse);
        let allotment = shard.known_allotment(self.purse);
        allotment.map(Allotment::end_flight).unwrap_or_default()
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        self.end();
    }
}

impl Inner {
    /// The accounts of which this node has credit.
    pub(crate) fn allotted_accounts(&self) -> Result<Vec<AccountId>, ReadError> {
        let mut accounts = Vec::new();
        let node = self.store.node();
        self.store
            .allotments(node, &mut |row| accounts.push(row.account))?;
        Ok(accounts)
    }

    /// Answers the recalls in force, once the holds of earlier runs are released: what was held is returned too.
    pub(crate) fn answer_recalls(&self) -> Result<(), ReadError> {
        let at = self.latest();
        for shard in &self.shards {
            let mut shard = lock(shard);
            let accounts: Vec<AccountId> = shard.accounts.keys().copied().collect();
            for account in accounts {
                self.give_back(&mut shard, Purse::Account(account), at);
            }
        }
        let mut recalls = Vec::new();
        let node = self.store.node();
        self.store
            .recalls(node, &mut |purse, number| recalls.push((purse, number)))?;
        for (purse, number) in recalls {
            self.set_recall(purse, number, number);
        }
        Ok(())
    }

    /// The balance of an account as far as this node knows it: what it has, and what it has last seen elsewhere.
    pub(crate) fn known_balance(&self, account: AccountId) -> Option<Balance> {
        let mut shard = self.shard(account);
        let mut balance = shard.accounts.get_mut(&account)?.used();
        if let Some(allotment) = shard.allotments.get(&account) {
            balance.available += allotment.elsewhere;
            balance.credit_limit = allotment.credit_limit;
        }
        Some(balance)
    }

    /// Whether the database has just refused a hold because the account had nothing.
    pub(crate) fn is_refused(&self, account: AccountId, at: Timestamp) -> bool {
        let mut shard = self.shard(account);
        let here = shard.available(Purse::Account(account));
        let allotment = shard.allotments.get(&account);
        allotment.is_some_and(|allotment| allotment.is_empty(here, at))
    }

    /// Places a hold, and takes credit for it where this node has less. `fallback` is asked for a smaller amount at most once, with what the
    /// account has after every node has returned what it did not need.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        request: HoldRequest,
        is_written: bool,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
    ) -> Result<Hold, HoldError> {
        let place = move |inner: &Arc<Inner>, shard: &mut Shard, request| {
            inner.hold_in(shard, request, is_written)
        };
        let purse = Purse::Account(request.account);
        self.acquire_from(purse, request, place, fallback, false)
            .await
    }

    /// The same for any purse. `place` decides in memory, under the lock of the purse's shard. `is_owed`: it takes back what is owed.
    pub(crate) async fn acquire_from<T: Send + 'static>(
        self: &Arc<Self>,
        purse: Purse,
        request: HoldRequest,
        place: impl Fn(&Arc<Inner>, &mut Shard, HoldRequest) -> Result<T, HoldError>
        + Copy
        + Send
        + 'static,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
        is_owed: bool,
    ) -> Result<T, HoldError> {
        let mut recalled = None;
        let acquired = self
            .acquire_recalling((purse, is_owed), request, place, fallback, &mut recalled)
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

    /// The same; `recalled` is when it began to wait for other nodes.
    async fn acquire_recalling<T: Send + 'static>(
        self: &Arc<Self>,
        (purse, is_owed): (Purse, bool),
        mut request: HoldRequest,
        place: impl Fn(&Arc<Inner>, &mut Shard, HoldRequest) -> Result<T, HoldError>
        + Copy
        + Send
        + 'static,
        fallback: impl FnOnce(Micros) -> Option<Micros>,
        recalled: &mut Option<Duration>,
    ) -> Result<T, HoldError> {
        let account = request.account;
        let mut takes = 0;
        let mut fallback = Some(fallback);
        let mut leader: Option<Leader> = None;
        loop {
            let shortage = {
                let mut shard = self.shard_of(purse);
                match place(self, &mut shard, request) {
                    Err(HoldError::InsufficientCredit { .. }) => {}
                    other => return other,
                }
                let here = shard.available(purse);
                let allotment = shard.allotment(purse);
                match is_owed {
                    // A refusal says nothing of what is owed.
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
                Shortage::Take => self.take((purse, is_owed), request, place).await?,
                Shortage::Lead => {
                    leader = Some(Leader {
                        ledger: Arc::clone(self),
                        purse,
                    });
                    self.take((purse, is_owed), request, place).await?
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

    /// Takes credit for a hold and places it when that is durable, before any other hold can have it.
    async fn take<T: Send + 'static>(
        self: &Arc<Self>,
        (purse, is_owed): (Purse, bool),
        request: HoldRequest,
        place: impl Fn(&Arc<Inner>, &mut Shard, HoldRequest) -> Result<T, HoldError> + Send + 'static,
    ) -> Result<Attempt<T>, HoldError> {
        let HoldRequest {
            operation,
            amount: need,
            at,
            ..
        } = request;
        let (sender, wait) = oneshot::channel();
        let this = Arc::clone(self);
        let _waiting = self.counters.wait();
        {
            let mut shard = self.shard_of(purse);
            let allotment = shard.allotment(purse);
            let target = match is_owed {
                true => need,
                false => allotment.target(need, at),
            };
            let has_surplus = target > need;
            let done: Done = Box::new(move |result| {
                // The hold releases itself when its request has ended: after the lock is free.
                let attempt = this.taken(purse, request, place, has_surplus, result);
                let _ = sender.send(attempt);
            });
            let take = AllotmentPart::Take {
                operation: self.next_move(at),
                purse,
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
        // In an outage, what it takes is this node's all the same, and a hold that it places is released.
        let attempt = self.unless_cut_off(wait).await?;
        attempt.unwrap_or_else(|_| {
            Err(HoldError::Store {
                operation,
                source: Failure::closed(),
            })
        })
    }

    /// The result of `wait`, unless the node is cut off from its database before.
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
        self: &Arc<Self>,
        purse: Purse,
        request: HoldRequest,
        place: impl Fn(&Arc<Inner>, &mut Shard, HoldRequest) -> Result<T, HoldError>,
        has_surplus: bool,
        result: Result<tollgate_store::Receipt, CommitError>,
    ) -> Result<Attempt<T>, HoldError> {
        let mut shard = self.shard_of(purse);
        let allotment = shard.allotment(purse);
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
            Some(Taken::Amount { amount, recall }) => {
                self.counters.took(amount);
                // The feed may have had it before this node knew the cap of a month that has begun.
                if recall != 0 {
                    allotment.recalled(recall, recall);
                }
                allotment.elsewhere -= amount;
                allotment.took(request.amount);
                if let Some(balance) = shard.balance(purse) {
                    balance.available += amount;
                }
                Attempt::Placed(place(self, &mut shard, request))
            }
            Some(Taken::Short {
                spendable,
                recall,
                is_pending,
            }) => {
                allotment.recalled(recall, recall);
                let has_surplus = allotment.surplus_takes > 0;
                // With what this node has returned since the take was decided.
                let shared = spendable + allotment.returning;
                let spendable = shared + shard.available(purse);
                let is_pending = is_pending || has_surplus || spendable >= request.amount;
                if !is_pending {
                    shard.allotment(purse).refuse(shared, request.at);
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
        self.give_back(&mut shard, purse, request.at);
        Ok(attempt)
    }

    /// While the purse is recalled: returns what is not held, and answers the recall once nothing more can arrive.
    pub(crate) fn give_back(&self, shard: &mut Shard, purse: Purse, at: Timestamp) {
        if !self.has_allotments || shard.is_handed_over {
            return;
        }
        let Some(allotment) = shard.known_allotment(purse) else {
            return;
        };
        if allotment.recall == 0 {
            return;
        }
        let answer = match allotment.surplus_takes == 0 && allotment.answered < allotment.recall {
            true => Answer::Held(allotment.recall),
            false => Answer::None,
        };
        // What it has of an account that is not in memory is returned, and the recall answered, when the account is loaded.
        let Some(balance) = shard.balance(purse) else {
            return;
        };
        let amount = balance.available.max(Micros::ZERO);
        if amount == Micros::ZERO && answer == Answer::None {
            return;
        }
        if let Answer::Held(recall) = answer {
            shard.allotment(purse).answered = recall;
        }
        self.give(shard, purse, amount, answer, at);
    }

    /// Returns credit that is not held to what the nodes share.
    pub(crate) fn give(
        &self,
        shard: &mut Shard,
        purse: Purse,
        amount: Micros,
        answer: Answer,
        at: Timestamp,
    ) {
        let part = AllotmentPart::Return {
            operation: self.next_move(at),
            purse,
            amount,
            answer,
            at,
        };
        let is_counted = amount.is_positive() && shard.known_allotment(purse).is_some();
        let this = Weak::clone(&self.this);
        let done: Done = Box::new(move |result| {
            log_refusal(result);
            if is_counted && let Some(inner) = this.upgrade() {
                inner.returned(purse, amount);
            }
        });
        let unit = UnitOfWork::of(Part::Allotment(part), Admission::Always);
        // A stopped store keeps the credit of this node, and its recovery returns it.
        if self.store.submit(unit, done).is_ok() {
            self.counters.returned(amount);
            if let Some(balance) = shard.balance(purse) {
                balance.available -= amount;
            }
            if let Some(allotment) = shard.known_allotment(purse) {
                allotment.returned(amount);
                allotment.returning += amount;
            }
        }
    }

    /// A return of credit is durable, before the results of the takes after it are known.
    fn returned(&self, purse: Purse, amount: Micros) {
        if let Some(allotment) = self.shard_of(purse).known_allotment(purse) {
            allotment.returning = (allotment.returning - amount).max(Micros::ZERO);
        }
    }

    /// Credit that was booked here goes to the shared balance.
    pub(crate) fn share_credit(&self, account: AccountId, amount: Micros) {
        if !self.has_allotments {
            return;
        }
        let at = self.latest();
        let purse = Purse::Account(account);
        let mut shard = self.shard(account);
        if let Some(loading) = shard.loading.get_mut(&account) {
            loading.is_shared = true;
            return;
        }
        let Some(here) = shard.accounts.get(&account).map(|it| it.available) else {
            // It is all that this node has of an account that is not in memory.
            return self.give(&mut shard, purse, amount, Answer::Nothing, at);
        };
        let allotment = shard.allotments.entry(account).or_default();
        allotment.forget_refusal();
        let amount = amount.min(here);
        if amount.is_positive() {
            self.give(&mut shard, purse, amount, Answer::None, at);
        }
    }

    /// Recalls of accounts have begun or ended, here or elsewhere; each with the number of the last change that says so.
    pub(crate) fn recalls_changed(
        &self,
        changes: &BTreeMap<AccountId, i64>,
    ) -> Result<(), ReadError> {
        let accounts: Vec<AccountId> = changes.keys().copied().collect();
        let mut recalls = Vec::with_capacity(accounts.len());
        self.store.recalls_of(&accounts, &mut |account, recall| {
            recalls.push((account, recall))
        })?;
        for (account, recall) in recalls {
            self.set_recall(Purse::Account(account), recall, changes[&account]);
        }
        Ok(())
    }

    pub(crate) fn set_recall(&self, purse: Purse, recall: i64, number: i64) {
        let at = self.latest();
        let mut shard = self.shard_of(purse);
        if let Purse::Account(account) = purse
            && !shard.accounts.contains_key(&account)
            && !shard.loading.contains_key(&account)
        {
            // This node has nothing of it. One that is being loaded may have been read before the recall began.
            if recall != 0 && !shard.is_handed_over {
                self.give(&mut shard, purse, Micros::ZERO, Answer::Nothing, at);
            }
            return;
        }
        shard.allotment(purse).recalled(recall, number);
        self.give_back(&mut shard, purse, at);
    }

    /// Whether an account is in memory, which another node has changed or given credit: it is to be read again. One that is being loaded is loaded
    /// again, and one that is not there is read when it is used.
    pub(crate) fn is_read_again(&self, account: AccountId) -> bool {
        let mut shard = self.shard(account);
        if let Some(loading) = shard.loading.get_mut(&account) {
            loading.is_changed = true;
            return false;
        }
        shard.accounts.contains_key(&account)
    }

    /// Reads accounts in memory again.
    pub(crate) fn read_again(&self, accounts: &[AccountId]) -> Result<(), ReadError> {
        let mut found = Vec::new();
        self.store
            .accounts_of(accounts, &mut |row| found.push(row))?;
        found.iter().for_each(|row| self.put_account(row));
        Ok(())
    }

    fn put_account(&self, row: &AccountRow) {
        let account = row.id;
        let mut shard = self.shard(account);
        let Some(balance) = shard.accounts.get_mut(&account) else {
            return;
        };
        balance.has_paid = row.has_paid;
        let here = balance.total();
        let allotment = shard.allotments.entry(account).or_default();
        allotment.elsewhere = row.available + row.held - here;
        allotment.credit_limit = row.credit_limit;
        allotment.forget_refusal();
    }

    /// Returns the credit of those purses of one part that have not changed since the last call for it.
    pub(crate) fn return_idle(&self, part: usize, now: Timestamp) {
        let shard = &mut *lock(&self.shards[part % SHARDS]);
        self.return_where(shard, now, |allotment, balance| {
            let is_idle = allotment.seen == Some(*balance);
            allotment.seen = Some(*balance);
            is_idle
        });
        if shard.is_handed_over {
            return;
        }
        for cap in shard.forget_caps(now) {
            // Others wait for no answer of this node.
            let (purse, nothing) = (Purse::Cap(cap), Answer::Nothing);
            self.give(shard, purse, Micros::ZERO, nothing, now);
        }
    }

    /// Returns all credit that is not held, before the store is closed; other nodes wait for no answer of this one from then on.
    pub(crate) fn return_all(&self, now: Timestamp) {
        let is_handed_over = self.shards.iter().any(|shard| lock(shard).is_handed_over);
        if self.has_allotments && !is_handed_over {
            for shard in &self.shards {
                self.return_where(&mut lock(shard), now, |_, _| true);
            }
            if let Err(error) = self.announce_unread_caps() {
                tracing::warn!(%error, "reading changed spending caps failed; what this node has charged may be counted at the next start");
            }
            let leave = Part::Allotment(AllotmentPart::Leave);
            let unit = UnitOfWork::of(leave, Admission::Always);
            // A store that has stopped leaves it to the recovery.
            let _ = self.store.submit(unit, Box::new(log_refusal));
        }
    }

    fn return_where(
        &self,
        shard: &mut Shard,
        now: Timestamp,
        mut is_returned: impl FnMut(&mut Allotment, &Balance) -> bool,
    ) {
        if shard.is_handed_over {
            return;
        }
        let Shard {
            accounts,
            allotments,
            caps,
            ..
        } = &mut *shard;
        let of_accounts = allotments.iter_mut().filter_map(|(account, allotment)| {
            let balance: Balance = **accounts.get(account)?;
            Some((Purse::Account(*account), allotment, balance))
        });
        let of_caps = caps
            .iter_mut()
            .map(|(cap, state)| (Purse::Cap(*cap), &mut state.allotment, state.balance));
        let mut found = Vec::new();
        for (purse, allotment, balance) in of_accounts.chain(of_caps) {
            if balance.available.is_positive()
                && allotment.surplus_takes == 0
                && is_returned(allotment, &balance)
            {
                found.push((purse, balance));
            }
        }
        for (purse, balance) in found {
            let answer = match balance.held == Micros::ZERO {
                true => Answer::Nothing,
                false => Answer::None,
            };
            self.give(shard, purse, balance.available, answer, now);
        }
    }

    pub(crate) fn shard_of(&self, purse: Purse) -> MutexGuard<'_, Shard> {
        match purse {
            Purse::Account(account) => self.shard(account),
            Purse::Cap(cap) => self.shard_of_caps(cap.credential),
        }
    }

    /// An id for a move of credit: unique by node, run and a counter.
    pub(crate) fn next_move(&self, at: Timestamp) -> OperationId {
        let count = self.moves.fetch_add(1, Relaxed);
        move_id(self.store.node(), self.store.epoch(), count, at)
    }
}

/// The version and the variant of an id (RFC 9562) overwrite bits of the bytes 0 and 2, which are left out.
fn move_id(node: i64, epoch: i64, count: u64, at: Timestamp) -> OperationId {
    let mut unique = [0; 10];
    unique[1] = node as u8;
    unique[3..6].copy_from_slice(&epoch.to_be_bytes()[5..]);
    unique[6..].copy_from_slice(&count.to_be_bytes()[4..]);
    OperationId::from_parts(at.as_micros() as u64 / 1000, unique)
}

impl Shard {
    /// The allotment of a purse.
    fn allotment(&mut self, purse: Purse) -> &mut Allotment {
        match purse {
            Purse::Account(account) => self.allotments.entry(account).or_default(),
            Purse::Cap(cap) => &mut self.caps.entry(cap).or_default().allotment,
        }
    }

    fn known_allotment(&mut self, purse: Purse) -> Option<&mut Allotment> {
        match purse {
            Purse::Account(account) => self.allotments.get_mut(&account),
            Purse::Cap(cap) => self.caps.get_mut(&cap).map(|state| &mut state.allotment),
        }
    }

    /// What this node has of a purse.
    fn balance(&mut self, purse: Purse) -> Option<&mut Balance> {
        match purse {
            Purse::Account(account) => self.accounts.get_mut(&account).map(|it| &mut **it),
            Purse::Cap(cap) => self.caps.get_mut(&cap).map(|state| &mut state.balance),
        }
    }

    /// What this node has of a purse and does not hold.
    fn available(&mut self, purse: Purse) -> Micros {
        self.balance(purse)
            .map_or(Micros::ZERO, |balance| balance.available.max(Micros::ZERO))
    }

    /// What an account has beyond this node, as far as it is known; nothing on a node that is alone.
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
