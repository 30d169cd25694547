//! The start of a ledger: the holds of earlier runs are released. Loads only the accounts of these holds, and the accounts with an
//! allotment on one of several nodes.

use std::collections::BTreeSet;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, CommitError, Failure, FailureKind, IdempotencyPart, Part, SpooledUnit, Store,
    SubmitError, UnitOfWork, commit_blocking, first_token,
};

use crate::accounts::{Accounts, Ledger};
use crate::adopted::AdoptedHold;
use crate::charge::{StartError, Started};
use crate::observer::CommitObserver;
use crate::resident::LoadError;
use crate::spooled::{LateCharge, Orphans};
use crate::units::{log_refusal, unit};

impl Ledger {
    /// Releases the unresolved holds of earlier runs of this node; blocks until the releases are durable. Call once per store, before any
    /// write to the store. Other accounts are loaded at their first use ([`Ledger::load`]).
    pub fn start(store: Arc<dyn Store>, now: Timestamp) -> Result<(Ledger, Started), StartError> {
        let ledger = Ledger(Arc::new(Accounts::new(store, now)));
        ledger.read_debts()?;
        let mut started = Started::default();
        let late = ledger.recover(now, &mut started)?;
        ledger.store.observe(Arc::new(CommitObserver::new(&ledger)));
        ledger.store.observe(ledger.spending.clone());
        ledger.book_late(late, now, &mut started);
        Ok((ledger, started))
    }

    /// Recovers a node whose process has ended; the caller opens the store of the node for the recovery. Releases the holds of the node,
    /// and returns its credit to the shared balances. Lets other requests take over the idempotency keys claimed by the node's requests.
    /// Writes `record` together with the lapse of the keys, and closes the store. Blocks.
    ///
    /// # Errors
    ///
    /// When the store fails meanwhile. The next recovery finds the rest.
    pub fn recover_node(
        store: Arc<dyn Store>,
        now: Timestamp,
        record: Option<Part>,
    ) -> Result<Started, StartError> {
        let (ledger, started) = Ledger::start(store.clone(), now)?;
        let token = first_token(store.node(), store.epoch());
        // The keys are not freed: an answer in the spool of the node is stored with its late charge, unless a client has repeated the
        // request meanwhile.
        let lapse = Part::Idempotency(Box::new(IdempotencyPart::LapseBefore { token }));
        // A stopped store reports its failure below.
        let _ = store.submit(
            UnitOfWork::of_all(std::iter::once(lapse).chain(record), Admission::Always),
            Box::new(log_refusal),
        );
        ledger.return_all();
        store.close();
        match store.failure() {
            Some(failure) if failure.kind != FailureKind::Closed => Err(StartError::Store(failure)),
            _ => Ok(started),
        }
    }

    /// Releases the holds of earlier runs of this node, after a commit of the spooled units. Holds of other nodes stay open. Returns the
    /// late charges: spooled charges whose credit is gone.
    fn recover(
        &self,
        now: Timestamp,
        started: &mut Started,
    ) -> Result<Vec<LateCharge>, StartError> {
        let mut orphans = Orphans::new();
        self.store
            .open_holds(&mut |hold| {
                if hold.node != self.store.node() {
                    return;
                }
                if hold.epoch < self.store.earliest_epoch() {
                    orphans.insert(hold.operation, hold);
                } else if hold.epoch < self.store.epoch() {
                    let adopted = AdoptedHold {
                        account: hold.account,
                        amount: hold.amount,
                        epoch: hold.epoch,
                    };
                    self.adopted().insert(hold.operation, adopted);
                }
            })
            .map_err(StartError::Read)?;
        let stopped = |error| match error {
            SubmitError::Stopped(failure) => StartError::Store(failure),
            _ => StartError::Store(Failure::closed()),
        };
        let spooled = self.store.take_spooled();
        started.spooled = spooled.len();
        self.load_earlier(&orphans, &spooled)?;
        let late = self.replay(spooled, &mut orphans);
        for hold in orphans.into_values() {
            started.orphans += 1;
            started.orphans_amount += hold.amount;
            let mut shard = self.shard(hold.account);
            match shard.accounts.get_mut(&hold.account) {
                Some(balance) if balance.held >= hold.amount => balance.release(hold.amount),
                other => {
                    return Err(StartError::Inconsistent {
                        account: hold.account,
                        held: other.map_or(Micros::ZERO, |balance| balance.held),
                        amount: hold.amount,
                    });
                }
            }
            let release = LedgerPart::Release {
                operation: hold.operation,
                account: hold.account,
                held: hold.amount,
                at: now,
            };
            self.store
                .submit(unit(release, Admission::Always), Box::new(log_refusal))
                .map_err(stopped)?;
        }
        if self.has_allotments {
            self.answer_recalls().map_err(StartError::Read)?;
            self.announce_unread_caps().map_err(StartError::Read)?;
        }
        self.wait_for_queue()?;
        Ok(late)
    }

    /// Loads the accounts with holds, spooled charges or credit of earlier runs.
    fn load_earlier(&self, orphans: &Orphans, spooled: &[SpooledUnit]) -> Result<(), StartError> {
        let mut accounts: BTreeSet<AccountId> = orphans.values().map(|hold| hold.account).collect();
        accounts.extend(self.adopted().accounts());
        let parts = spooled.iter().flat_map(|unit| unit.unit.parts());
        accounts.extend(parts.filter_map(|part| match part {
            Part::Ledger(part) => Some(part.account()),
            _ => None,
        }));
        if self.has_allotments {
            accounts.extend(self.allotted_accounts().map_err(StartError::Read)?);
        }
        if !accounts.is_empty() {
            let queued = self.load_for_start(accounts);
            queued.map_err(|error| match error {
                LoadError::Store(failure) => StartError::Store(failure),
                _ => StartError::Store(Failure::closed()),
            })?;
            self.wait_for_queue()?;
        }
        match self.has_allotments {
            true => self.load_caps().map_err(StartError::Read),
            false => Ok(()),
        }
    }

    fn wait_for_queue(&self) -> Result<(), StartError> {
        let all = UnitOfWork::of_all([], Admission::Always);
        match commit_blocking(&*self.store, all) {
            Ok(_) => Ok(()),
            Err(CommitError::Stopped(failure)) => Err(StartError::Store(failure)),
            Err(_) => Err(StartError::Store(Failure::closed())),
        }
    }
}
