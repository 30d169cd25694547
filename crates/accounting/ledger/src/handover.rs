//! Handover of the ledger between two processes. The predecessor stops its decisions. The successor ends the open holds of the predecessor.
//!
//! The predecessor decides the charge within each hold. The successor checks the end of a hold against the adopted hold, changes the
//! balance, and queues the end for the disk. So one process decides on every balance. Holds still open when the predecessor exits are
//! orphans.

use std::io;
use std::sync::mpsc::sync_channel;

use tollgate_clock::{Clock, Timestamp};
use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Admission, Answers, Budget, CommitError, Done, Part, Receipt, Refusal, UnitOfWork,
};

use crate::accounts::{Ledger, lock};
use crate::adopted::AdoptedHold;
use crate::units::{charge_of_key, log_refusal, unit};

/// A hold ended by the predecessor.
#[derive(Clone, Copy, Debug)]
struct Ended {
    operation: OperationId,
    account: AccountId,
    held: Micros,
    charged: Micros,
    at: Timestamp,
}

impl Ended {
    /// The hold ended by a part; `None` for a usage record without cost.
    fn of(part: &LedgerPart) -> Result<Option<Ended>, Refusal> {
        Ok(Some(match *part {
            LedgerPart::Settle {
                operation,
                account,
                held,
                charged,
                at,
                ..
            } => Ended {
                operation,
                account,
                held,
                charged,
                at,
            },
            LedgerPart::Release {
                operation,
                account,
                held,
                at,
            } => Ended {
                operation,
                account,
                held,
                charged: Micros::ZERO,
                at,
            },
            LedgerPart::Charge { charged, .. } if charged == Micros::ZERO => return Ok(None),
            _ => return Err(Refusal::Invalid("it is not the end of a hold")),
        }))
    }
}

impl Ledger {
    /// Ends the decisions of this process before the handover of its store. Open holds are queued for the disk. New holds are refused like
    /// holds of an overloaded store. A settlement charges only its hold.
    pub fn hand_over(&self) {
        for shard in &self.shards {
            let mut shard = lock(shard);
            self.return_caps(&mut shard, self.latest());
            shard.is_handed_over = true;
            let unwritten = shard.open.values().filter(|open| !open.written);
            let unwritten: Vec<_> = unwritten.map(|open| open.request).collect();
            for request in unwritten {
                // A stopped store ends the process.
                let _ = self.queue_hold(&mut shard, &request, Admission::Always);
            }
        }
    }

    /// The number of the predecessor's open holds.
    pub fn adopted_holds(&self) -> usize {
        self.adopted().len()
    }

    /// Commits the units of a predecessor until the predecessor closes the connection, or `goes_on` returns `false` between two messages. A
    /// unit has the end of an adopted hold, or the usage of a request without cost, and the parts attached to the unit.
    ///
    /// # Errors
    ///
    /// When the connection broke.
    pub fn serve_predecessor<S: std::io::Read + std::io::Write>(
        &self,
        stream: &mut S,
        goes_on: impl FnMut(&S) -> std::io::Result<bool>,
    ) -> std::io::Result<()> {
        tollgate_store::serve_predecessor(stream, goes_on, |units| {
            self.commit_of_predecessor(units)
        })
    }

    fn commit_of_predecessor(&self, units: Vec<UnitOfWork>) -> io::Result<Answers> {
        let waits: Vec<_> = units
            .into_iter()
            .map(|unit| {
                let (sender, wait) = sync_channel(1);
                let done: Done = Box::new(move |result| {
                    let _ = sender.send(result);
                });
                self.submit_of_predecessor(unit, done);
                wait
            })
            .collect();
        let answers = waits.into_iter().map(|wait| match wait.recv() {
            Ok(Ok(receipt)) => Ok(Ok(receipt)),
            Ok(Err(CommitError::Refused(refusal))) => Ok(Err(refusal)),
            _ => Err(io::Error::other("the store has stopped")),
        });
        answers.collect()
    }

    fn submit_of_predecessor(&self, unit: UnitOfWork, done: Done) {
        let ended = unit
            .parts()
            .iter()
            .try_fold(None, |ended, part| match (part, ended) {
                (Part::Ledger(part), None) => Ended::of(part),
                (Part::Ledger(_), Some(_)) => Err(Refusal::Invalid("it ends two holds")),
                _ => Ok(ended),
            });
        let ended = match ended {
            Ok(Some(ended)) => ended,
            Ok(None) => {
                // A stopped store drops the callback, and the connection ends.
                let _ = self.store.submit(unit, done);
                return;
            }
            Err(refusal) => return done(Err(CommitError::Refused(refusal))),
        };
        let hold = match self.apply(&ended) {
            Ok(hold) => hold,
            Err(refusal) => return done(Err(CommitError::Refused(refusal))),
        };
        let charge = unit.parts().iter().find_map(|part| match part {
            Part::Ledger(part) => charge_of_key(part),
            _ => None,
        });
        let this = self.clone();
        let committed: Done = Box::new(move |result| {
            if result.is_err() {
                log_refusal(result.clone());
            }
            this.end_committed(&ended, hold, &result);
            if let (Ok(_), Some((credential, charged, of))) = (&result, charge) {
                this.count_charge_of_predecessor(credential, charged, of);
                this.spending.count(credential, charged, of.1);
            }
            done(result);
        });
        let _ = self.store.submit(unit, committed);
    }

    /// Ends an adopted hold and takes the charge from the hold. The rest stays reserved until the commit is known (`settling.rs`), because
    /// the store may refuse another part of the unit.
    fn apply(&self, ended: &Ended) -> Result<AdoptedHold, Refusal> {
        let Ended {
            operation,
            account,
            held,
            charged,
            ..
        } = *ended;
        if charged < Micros::ZERO || charged > held {
            return Err(Refusal::Invalid("it charges more than its hold"));
        }
        let hold = self.adopted().end(operation, account, held);
        let hold = hold.ok_or(Refusal::NoHold(operation))?;
        if let Some(balance) = self.shard(account).accounts.get_mut(&account) {
            balance.held -= charged;
        }
        Ok(hold)
    }

    /// Frees the rest of an ended hold. If the store refused the unit because of another part, the hold is open again, and the predecessor
    /// releases the hold.
    fn end_committed(
        &self,
        ended: &Ended,
        hold: AdoptedHold,
        result: &Result<Receipt, CommitError>,
    ) {
        let Ended {
            operation,
            account,
            held,
            charged,
            at,
        } = *ended;
        let rest = held - charged;
        let mut shard = self.shard(account);
        match result {
            Ok(_) => self.free_rest(&mut shard, account, rest, Micros::ZERO, at),
            Err(CommitError::Refused(Refusal::NoHold(_))) => {
                self.free_rest(&mut shard, account, rest, charged, at);
            }
            Err(_) => {
                if let Some(balance) = shard.accounts.get_mut(&account) {
                    balance.held += charged;
                }
                drop(shard);
                self.adopted().insert(operation, hold);
            }
        }
    }

    /// Releases the open holds of the ended run `of`. `None` releases the holds of all earlier runs, when no earlier run serves requests
    /// any more. Returns the number of released holds. Caps have one sum for all runs, and `None` releases the sum.
    pub fn release_adopted(&self, of: Option<i64>, clock: &Clock) -> usize {
        let now = clock.now();
        self.note(now);
        if of.is_none() {
            self.release_adopted_caps(now);
        }
        let orphans = self.adopted().take(of);
        let count = orphans.len();
        for (operation, hold) in orphans {
            let AdoptedHold {
                account,
                amount: held,
                ..
            } = hold;
            let mut shard = self.shard(account);
            if let Some(balance) = shard.accounts.get_mut(&account) {
                balance.release(held);
            }
            let part = LedgerPart::Release {
                operation,
                account,
                held,
                at: now,
            };
            // After a stop of the store the hold stays open, and the next start releases the hold.
            let _ = self
                .store
                .submit(unit(part, Admission::Always), Box::new(log_refusal));
            self.give_back(&mut shard, Budget::Account(account), now);
        }
        count
    }
}
