//! The start of a ledger: the holds of earlier runs are released. Only their accounts are loaded, and those of which one of several nodes has
//! credit.

use std::collections::BTreeSet;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, Micros};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, CommitError, Failure, Part, SpooledUnit, SubmitError, UnitOfWork, commit_blocking,
};

use crate::accounts::Inner;
use crate::adopted::AdoptedHold;
use crate::charge::{StartError, Started};
use crate::resident::LoadError;
use crate::spooled::{Late, Orphans};
use crate::units::{log_refusal, unit};

impl Inner {
    /// Releases the holds of earlier runs of this node. Those of other nodes belong to them.
    /// What they have left in the spool is committed first; returns what has no credit any more.
    pub(crate) fn recover(
        self: &Arc<Self>,
        now: Timestamp,
        started: &mut Started,
    ) -> Result<Vec<Late>, StartError> {
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

    /// Loads the accounts on which earlier runs have left something.
    fn load_earlier(
        self: &Arc<Self>,
        orphans: &Orphans,
        spooled: &[SpooledUnit],
    ) -> Result<(), StartError> {
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
