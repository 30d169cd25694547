//! Loading of accounts: an account is read at its first use, and removed from memory when idle.
//!
//! A load is a unit in the queue of the store ([`Part::Load`]). The writer's thread answers the load. Before the answer, the observers were
//! notified of the committed units, and the callbacks of earlier units have run. So a load contains every decision queued before the load,
//! also from units in one commit with the load. A load contains no later decision. No decision is made on the account while the load is
//! under way. A refused unit is not part of the load, and its callback found no balance to correct.
//!
//! An account is removed when no hold is open, and no decision was made since a unit that is durable by now ([`Ledger::evict_idle`]). Units
//! queued in response to a refusal are in the queue by then, so a later load waits for the units.

use std::collections::HashSet;
use std::collections::hash_map::Entry;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};

use tokio::sync::oneshot;
use tollgate_money::{AccountId, Micros};
use tollgate_store::{
    Admission, Answer, Budget, CommitError, Done, Failure, LoadedAccount, Part, Receipt, UnitOfWork,
};

use crate::account::Balance;
use crate::accounts::{Ledger, Shard, lock};
use crate::allotment_state::Allotment;
use crate::resident::{LoadError, Loading, Resident};

/// Maximum number of loads under way for requests; further loads are refused. The loads ahead take some milliseconds, and delay the commits
/// beside the loads.
const UNDER_WAY_MAX: usize = 1024;

/// A shard shrinks its table when the capacity exceeds this multiple of its accounts.
const SPARSE: usize = 4;

impl Ledger {
    /// Loads an account, and waits only if the account is not in memory. The account stays in memory at least until the second call of
    /// [`Ledger::evict_idle`] from now. An account that does not exist is not in memory afterwards either.
    ///
    /// # Errors
    ///
    /// The store does not accept new work, or has stopped.
    pub async fn load(&self, account: AccountId) -> Result<(), LoadError> {
        let Some(wait) = self.begin_load(account)? else {
            return Ok(());
        };
        let loaded = match self.store.outage() {
            None => wait.await,
            // The load continues without its caller.
            Some(outage) => tokio::select! {
                biased;
                loaded = wait => loaded,
                () = outage.began() => return Err(LoadError::CutOff),
            },
        };
        loaded.unwrap_or_else(|_| Err(LoadError::Store(Failure::closed())))
    }

    /// Queues a load, or joins the load under way; `None` when the account is in memory.
    fn begin_load(
        &self,
        account: AccountId,
    ) -> Result<Option<oneshot::Receiver<Result<(), LoadError>>>, LoadError> {
        let mut shard = self.shard(account);
        if let Some(resident) = shard.accounts.get_mut(&account) {
            resident.used();
            return Ok(None);
        }
        if shard.is_handed_over {
            return Err(LoadError::Overloaded { waiting: 0 });
        }
        let (sender, wait) = oneshot::channel();
        if let Some(loading) = shard.loading.get_mut(&account) {
            loading.waiting.push(sender);
            return Ok(Some(wait));
        }
        let waiting = self.loads.under_way.load(Relaxed);
        if waiting >= UNDER_WAY_MAX {
            return Err(LoadError::Overloaded { waiting });
        }
        let loading = Loading {
            waiting: vec![sender],
            ..Loading::default()
        };
        self.queue_first(&mut shard, account, loading, Admission::Normal)?;
        Ok(Some(wait))
    }

    /// Queues loads of accounts for the start. The accounts are in memory when the queue is empty.
    pub(crate) fn load_for_start(
        &self,
        accounts: impl IntoIterator<Item = AccountId>,
    ) -> Result<(), LoadError> {
        for account in accounts {
            let mut shard = self.shard(account);
            let is_of_start = true;
            let loading = Loading {
                is_of_start,
                ..Loading::default()
            };
            self.queue_first(&mut shard, account, loading, Admission::Always)?;
        }
        Ok(())
    }

    fn queue_first(
        &self,
        shard: &mut Shard,
        account: AccountId,
        loading: Loading,
        admission: Admission,
    ) -> Result<(), LoadError> {
        self.queue_load(account, admission)?;
        // Under the shard's lock; the answer needs the lock.
        shard.loading.insert(account, loading);
        self.loads.under_way.fetch_add(1, Relaxed);
        Ok(())
    }

    fn queue_load(&self, account: AccountId, admission: Admission) -> Result<(), LoadError> {
        let this = self.clone();
        let done: Done = Box::new(move |result| this.loaded(account, result));
        let unit = UnitOfWork::of(Part::Load(account), admission);
        let queued = self.store.submit(unit, done);
        queued.map_err(|error| LoadError::from_commit(error.into()))
    }

    /// Runs on the writer's thread, in the order of the queue.
    fn loaded(&self, account: AccountId, result: Result<Receipt, CommitError>) {
        let mut shard = self.shard(account);
        let Entry::Occupied(mut loading) = shard.loading.entry(account) else {
            return;
        };
        let mut result = result.map_err(LoadError::from_commit);
        if result.is_ok() && std::mem::take(&mut loading.get_mut().is_changed) {
            match self.queue_load(account, Admission::Always) {
                Ok(()) => return,
                Err(error) => result = Err(error),
            }
        }
        let loading = loading.remove();
        self.loads.under_way.fetch_sub(1, Relaxed);
        let ended = result.map(|receipt| match &receipt.loaded {
            Some(loaded) => {
                self.loads.found.fetch_add(1, Relaxed);
                self.keep(&mut shard, account, loaded, &loading);
            }
            None => {
                self.loads.unknown.fetch_add(1, Relaxed);
            }
        });
        if !shard.accounts.contains_key(&account) {
            // Removes the state created by the feed during the load.
            shard.allotments.remove(&account);
        }
        drop(shard);
        for waiting in loading.waiting {
            // The caller may have stopped waiting.
            let _ = waiting.send(ended.clone());
        }
    }

    fn keep(
        &self,
        shard: &mut Shard,
        account: AccountId,
        loaded: &LoadedAccount,
        loading: &Loading,
    ) {
        let owed = shard.owed(account);
        // The account may have been created during the load. The observer has added the new account with all later changes.
        let Entry::Vacant(place) = shard.accounts.entry(account) else {
            return;
        };
        place.insert(Resident::from(Balance {
            available: loaded.available,
            held: loaded.held,
            credit_limit: match self.has_allotments {
                // The shared balance has the credit limit.
                true => Micros::ZERO,
                false => loaded.credit_limit,
            },
            owed,
            has_paid: loaded.has_paid,
        }));
        if !self.has_allotments {
            return;
        }
        let allotment = shard.allotments.entry(account).or_default();
        allotment.loaded(loaded);
        if loading.is_of_start {
            return;
        }
        let at = self.latest();
        let budget = Budget::Account(account);
        if loading.is_shared && loaded.available.is_positive() {
            self.give(shard, budget, loaded.available, Answer::None, at);
        }
        self.give_back(shard, budget, at);
    }

    /// Removes idle accounts from memory: accounts without use since the last call, and without an open hold or allotment on this node.
    /// Returns the number of removed accounts. Call every few minutes: the interval must exceed the wait of a request before its hold.
    ///
    /// The decisions on an idle account were made before the last call. The unit queued by the last call is durable, so the decisions are
    /// durable or refused.
    pub fn evict_idle(&self) -> usize {
        let last = self.loads.calls.load(Relaxed);
        let is_flushed = self.loads.flushed.load(Acquire) == last;
        let mut evicted = 0;
        for shard in &self.shards {
            let shard = &mut *lock(shard);
            if shard.is_handed_over {
                return evicted;
            }
            // A hold may have the amount zero.
            let open = shard.open.values().map(|open| open.request.account);
            let open: HashSet<AccountId> = open.collect();
            let (allotments, has_allotments) = (&mut shard.allotments, self.has_allotments);
            let before = shard.accounts.len();
            shard.accounts.retain(|account, resident| {
                let Resident { balance, is_idle } = *resident;
                resident.is_idle = true;
                let is_here = balance.held != Micros::ZERO || open.contains(account);
                if !is_idle || !is_flushed || is_here {
                    return true;
                }
                if has_allotments {
                    // `return_idle` returns this node's credit of the account first.
                    let is_quiet = allotments.get(account).is_none_or(Allotment::is_quiet);
                    if balance.available != Micros::ZERO || !is_quiet {
                        return true;
                    }
                    allotments.remove(account);
                }
                false
            });
            evicted += before - shard.accounts.len();
            let len = shard.accounts.len();
            if shard.accounts.capacity() / SPARSE > len {
                shard.accounts.shrink_to(2 * len);
                shard.allotments.shrink_to(2 * len);
            }
        }
        self.flush_for_evictions(last + 1);
        evicted
    }

    /// Queues an empty unit. When the unit is durable, every decision before this call is durable or refused.
    fn flush_for_evictions(&self, call: u64) {
        self.loads.calls.store(call, Relaxed);
        let this = self.clone();
        let done: Done = Box::new(move |result| {
            if result.is_ok() {
                this.loads.flushed.store(call, Release);
            }
        });
        // A stopped store evicts no account.
        let _ = self
            .store
            .submit(UnitOfWork::of_all([], Admission::Always), done);
    }

    pub fn resident_accounts(&self) -> usize {
        let shards = self.shards.iter();
        shards.map(|shard| lock(shard).accounts.len()).sum()
    }

    /// Number of account loads so far: accounts found, accounts not found.
    pub fn account_loads(&self) -> (u64, u64) {
        let loads = &self.loads;
        (loads.found.load(Relaxed), loads.unknown.load(Relaxed))
    }
}
