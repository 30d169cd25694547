//! The start of a ledger: the accounts are loaded, and the holds of earlier runs released.

use tollgate_clock::Timestamp;
use tollgate_money::Micros;
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, CommitError, Failure, ReadError, SubmitError, UnitOfWork, commit_blocking,
};

use crate::account::Balance;
use crate::accounts::Inner;
use crate::charge::{StartError, Started};
use crate::spooled::{Late, Orphans};
use crate::units::{log_refusal, unit};

impl Inner {
    pub(crate) fn load(&self) -> Result<Started, ReadError> {
        let mut started = Started::default();
        self.store.accounts(&mut |row| {
            started.accounts += 1;
            let balance = Balance::of(&row);
            self.shard(row.id).accounts.insert(row.id, balance);
        })?;
        if self.has_allotments {
            self.load_allotments()?;
        }
        Ok(started)
    }

    /// Releases the holds of earlier runs of this node. Those of other nodes belong to them.
    /// What they have left in the spool is committed first; returns what has no credit any more.
    pub(crate) fn recover(
        &self,
        now: Timestamp,
        started: &mut Started,
    ) -> Result<Vec<Late>, StartError> {
        let mut orphans = Orphans::new();
        self.store
            .open_holds(&mut |hold| {
                if hold.node != self.store.node() {
                } else if hold.epoch < self.store.earliest_epoch() {
                    orphans.insert(hold.operation, hold);
                } else if hold.epoch < self.store.epoch() {
                    self.adopted()
                        .insert(hold.operation, hold.account, hold.amount);
                }
            })
            .map_err(StartError::Read)?;
        let stopped = |error| match error {
            SubmitError::Stopped(failure) => StartError::Store(failure),
            _ => StartError::Store(Failure::closed()),
        };
        let spooled = self.store.take_spooled();
        started.spooled = spooled.len();
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
        }
        // A charge that was refused with another part is queued again by the answer to the first.
        self.wait_for_queue()?;
        if started.spooled > 0 {
            self.wait_for_queue()?;
        }
        Ok(late)
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
