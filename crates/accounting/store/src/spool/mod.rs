//! The spool: charges of a node without its database, on a local disk.
//!
//! ```text
//!                    commit                                    committed
//!  submitted ─────────────────▶ durable, caller notified  ◀──────────────────┐
//!      │                                                                     │
//!      │ commit takes longer than `OutageTimes::spool_after`                 │ database back in this run
//!      ▼                                                                     │
//!  written to the file, synced ──▶ caller notified: the answer ends ─────────┤
//!                                                                            │ this run has ended
//!                                                                            ▼
//!                           the next run reads the file and compares each charge with the journal
//!        ┌──────────────────────────┬──────────────────────────┬─────────────────────────────┐
//!   in the journal           hold still open            hold released by a          no hold, credit left,
//!        │                          │                   recovery, or no credit      no idempotency key
//!        ▼                          ▼                          ▼                             ▼
//!     dropped               settled as decided         late charge: booked          charged as decided
//!                                                      down to the floor, rest
//!                                                      written off; all of it
//!                                                      where a repeat under the
//!                                                      idempotency key was charged
//! ```
//!
//! Only units that end an operation are spooled. A spooled unit keeps its place in the queue, so this run's writer commits the unit once
//! the database is back; only a later run reads the file. The file is emptied when every charge in the file is durable.
//!
//! The ledger decides on the remainder of a hold as soon as the caller is notified. So if the store refuses another part of a spooled
//! unit, the charge alone is committed (`Acceptance`).

mod file;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use parking_lot::{Mutex, MutexGuard};

pub(crate) use self::file::{Frame, Owner, SpoolFile, fuzz, unfit};
use crate::error::{CommitError, SubmitError};
use crate::gauges::Gauges;
use crate::handover::is_forwarded;
use crate::idempotency::IdempotencyPart;
use crate::outage::Outage;
use crate::queue::Queue;
use crate::unit::{Done, Part, Receipt, UnitOfWork};

/// Approximate bytes of one frame: each frame is synced separately.
const FRAME_BYTES: usize = 4 << 20;

/// A unit left in the spool by an earlier run and missing in the journal.
#[derive(Clone, Debug)]
pub struct SpooledUnit {
    /// The unit.
    pub unit: UnitOfWork,
    /// Whether the node was recovered meanwhile, with a release of the operation's hold.
    pub is_released: bool,
}

/// The spool of a run.
pub(crate) struct Spool {
    queue: Arc<Queue>,
    outage: Arc<Outage>,
    gauges: Arc<Gauges>,
    bytes_max: u64,
    /// `None` once the run has left the file.
    file: Mutex<Option<SpoolFile>>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Units that are not durable in the database, in the order of the queue.
    pending: BTreeMap<u64, Pending>,
    next: u64,
    /// Number of pending units in the file.
    written: usize,
    /// Units left by an earlier run, until the ledger takes the units.
    earlier: Vec<SpooledUnit>,
    /// The file has units of an earlier run that may not be durable in the database.
    has_earlier: bool,
    /// Writing has failed, and the log has the error.
    is_failing: bool,
    /// Another process takes the database over, and commits the forwarded units.
    is_handed_over: bool,
}

struct Pending {
    unit: UnitOfWork,
    /// `None` once the caller was notified.
    done: Option<Done>,
    is_written: bool,
}

impl Spool {
    /// The spool in a file with the units left by an earlier run.
    pub(crate) fn new(
        (file, earlier): (SpoolFile, Vec<SpooledUnit>),
        bytes_max: u64,
        queue: Arc<Queue>,
        outage: Arc<Outage>,
        gauges: Arc<Gauges>,
    ) -> Spool {
        let state = State {
            has_earlier: file.bytes() > 0,
            earlier,
            ..State::default()
        };
        let spool = Spool {
            queue,
            outage,
            gauges,
            bytes_max,
            file: Mutex::new(Some(file)),
            state: Mutex::new(state),
        };
        spool.report(spool.file().as_ref(), &spool.state());
        spool
    }

    /// Queues a unit. A unit that ends an operation is also kept in `pending` until the unit is durable.
    pub(crate) fn submit(
        self: &Arc<Self>,
        mut unit: UnitOfWork,
        done: Done,
    ) -> Result<(), SubmitError> {
        if unit.parts().is_empty() || !is_forwarded(&unit) {
            return self.queue.push(unit, done);
        }
        if unit.parts().len() > 1 {
            unit.acceptance.get_or_insert_default();
        }
        let mut state = self.state();
        let number = state.next;
        let spool = Arc::clone(self);
        let ended: Done = Box::new(move |result| spool.ended(number, result));
        // Under the lock, so that `write` cannot write a unit that the queue refuses.
        self.queue.push(unit.clone(), ended)?;
        state.next += 1;
        let pending = Pending {
            unit,
            done: Some(done),
            is_written: false,
        };
        state.pending.insert(number, pending);
        Ok(())
    }

    /// The writer has committed or refused a unit, or the store has stopped.
    fn ended(&self, number: u64, result: Result<Receipt, CommitError>) {
        let mut state = self.state();
        let Some(pending) = state.pending.remove(&number) else {
            return;
        };
        let is_acknowledged = pending.done.is_none();
        // After a stop the file is the only record of the unit.
        let is_kept = is_acknowledged && matches!(result, Err(CommitError::Stopped(_)));
        if pending.is_written && !is_kept {
            state.written -= 1;
        } else if is_kept {
            state.has_earlier = true;
        }
        drop(state);
        match (pending.done, result) {
            (Some(done), result) => done(result),
            (None, Err(CommitError::Refused(refusal))) => {
                tracing::error!(%refusal, "store refused a spooled unit; run `tollgate audit`");
            }
            (None, _) => {}
        }
    }

    /// If a commit takes too long, writes the waiting units and notifies their callers, while answers may end. A cut answer is not
    /// charged by the next run. Called periodically on one thread.
    pub(crate) fn write(&self) {
        if self.outage.is_stalled() && self.outage.may_end_answers() {
            while self.write_frame() {}
            self.acknowledge();
        }
        let mut file = self.file();
        if let Some(file) = file.as_mut().filter(|file| file.bytes() > 0) {
            let state = self.state();
            if state.written == 0
                && !state.has_earlier
                && let Err(error) = file.clear()
            {
                tracing::warn!(%error, spool = %file.path().display(), "clearing the spool failed, retrying");
            }
        }
        self.report(file.as_ref(), &self.state());
    }

    /// Writes one frame; `false` when no unit is left or the write failed.
    fn write_frame(&self) -> bool {
        let mut file = self.file();
        let Some(file) = file.as_mut() else {
            return false;
        };
        let (numbers, bytes) = {
            let state = self.state();
            if state.is_handed_over {
                return false;
            }
            let mut numbers = Vec::new();
            let mut units = Vec::new();
            let mut size = 0;
            for (number, pending) in &state.pending {
                if pending.is_written || pending.done.is_none() {
                    continue;
                }
                if size > FRAME_BYTES {
                    break;
                }
                // The caller of a refused unit is notified after the unit's commit.
                let acceptance = pending.unit.acceptance.as_ref();
                if acceptance.is_some_and(|acceptance| !acceptance.accept()) {
                    continue;
                }
                numbers.push(*number);
                size += size_of::<UnitOfWork>() + recorded_bytes(&pending.unit);
                units.push(&pending.unit);
            }
            (numbers, file::encode(units.into_iter()))
        };
        if numbers.is_empty() {
            return false;
        }
        let is_full = file.bytes() + bytes.len() as u64 > self.bytes_max;
        let written = match is_full {
            true => Err(format!("it has reached {} bytes", self.bytes_max)),
            false => file
                .append(self.outage.last_row(), &bytes)
                .map_err(|error| error.to_string()),
        };
        let mut state = self.state();
        if let Err(error) = written {
            self.gauges.is_spool_failing.store(true, Relaxed);
            if !std::mem::replace(&mut state.is_failing, true) {
                tracing::error!(
                    error,
                    spool = %file.path().display(),
                    "writing the spool failed: answers wait for the database, and are cut if it stays away; free space for the spool"
                );
            }
            return false;
        }
        self.gauges.is_spool_failing.store(false, Relaxed);
        state.is_failing = false;
        for number in numbers {
            if let Some(pending) = state.pending.get_mut(&number) {
                pending.is_written = true;
                state.written += 1;
            }
        }
        true
    }

    /// Notifies the callers of units in the file, unless another node may soon recover this node: the disk may have taken long.
    fn acknowledge(&self) {
        if !self.outage.may_end_answers() {
            return;
        }
        let mut dones = Vec::new();
        for pending in self.state().pending.values_mut() {
            if pending.is_written {
                dones.extend(pending.done.take());
            }
        }
        for done in dones {
            done(Ok(Receipt::default()));
        }
    }

    /// Whether the run has not left the file yet.
    pub(crate) fn is_in_use(&self) -> bool {
        self.file().is_some()
    }

    /// Whether every unit that ends an operation is durable or in the file. A refused unit does not count: a refused unit is never
    /// written, and its caller has no answer yet.
    pub(crate) fn has_all(&self) -> bool {
        let state = self.state();
        let mut pending = state.pending.values();
        pending.all(|pending| pending.is_written || pending.unit.is_refused())
    }

    /// Ends the writes: uncommitted units are forwarded to the process that takes over, and this process acknowledges the units.
    pub(crate) fn hand_over(&self) {
        self.state().is_handed_over = true;
    }

    /// The number of units in the file that are not known to be durable in the database, and the file's path.
    pub(crate) fn left(&self) -> (usize, String) {
        let path = self
            .file()
            .as_ref()
            .map(|file| file.path().display().to_string());
        (self.state().written, path.unwrap_or_default())
    }

    /// Ends the use of the file, for another process.
    pub(crate) fn leave(&self) {
        let mut file = self.file();
        if let Some(file) = file.as_mut() {
            let state = self.state();
            if state.written == 0 && !state.has_earlier {
                // The next run finds the units in the journal.
                let _ = file.clear();
            }
        }
        *file = None;
    }

    pub(crate) fn take_earlier(&self) -> Vec<SpooledUnit> {
        std::mem::take(&mut self.state().earlier)
    }

    /// The units left by an earlier run are durable.
    pub(crate) fn earlier_is_durable(&self) {
        self.state().has_earlier = false;
    }

    /// A disk that does not answer, until the guard is dropped.
    #[cfg(test)]
    pub(crate) fn stall_disk(&self) -> impl Drop {
        self.file()
    }

    fn report(&self, file: Option<&SpoolFile>, state: &State) {
        let bytes = file.map_or(0, SpoolFile::bytes);
        self.gauges.spool_bytes.store(bytes, Relaxed);
        let units = state.written + state.earlier.len();
        self.gauges.spool_units.store(units as u64, Relaxed);
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    fn file(&self) -> MutexGuard<'_, Option<SpoolFile>> {
        self.file.lock()
    }
}

/// Bytes of a unit's recorded response.
fn recorded_bytes(unit: &UnitOfWork) -> usize {
    let body = |part: &Part| match part {
        Part::Idempotency(part) => match &**part {
            IdempotencyPart::Keep { answer, .. } => {
                answer.body.as_ref().map_or(0, |body| body.len())
            }
            _ => 0,
        },
        _ => 0,
    };
    unit.parts().iter().map(body).sum()
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    use tempfile::TempDir;
    use tollgate_clock::{Clock, Timestamp};
    use tollgate_money::{AccountId, Micros, OperationId};

    use super::*;
    use crate::entries::LedgerPart;
    use crate::outage::OutageTimes;
    use crate::unit::Admission;

    const NOW: Timestamp = Timestamp::from_secs(1);

    /// The spool of a node whose commit takes two seconds, after the submission of a unit of two parts.
    fn stalled() -> (TempDir, Arc<Spool>) {
        let folder = tempfile::tempdir().expect("a folder");
        let (file, _) = SpoolFile::open(folder.path()).expect("a file");
        let (clock, hand) = Clock::manual(NOW);
        let outage = Outage::new(OutageTimes::default(), clock.clone(), clock.since_boot());
        outage.commit_began();
        hand.advance(Duration::from_secs(2));
        let gauges = Arc::new(Gauges::default());
        let queue = Arc::new(Queue::new(10, gauges.clone()));
        let spool = Spool::new((file, Vec::new()), 1 << 20, queue, Arc::new(outage), gauges);
        let spool = Arc::new(spool);
        let release = |number| {
            Part::Ledger(LedgerPart::Release {
                operation: OperationId::from_parts(number, [0; 10]),
                account: AccountId::from_bytes([1; 16]),
                held: Micros::new(1),
                at: NOW,
            })
        };
        let unit = UnitOfWork::of_all([1, 2].map(release), Admission::Always);
        spool.submit(unit, Box::new(|_| {})).expect("it is queued");
        (folder, spool)
    }

    #[test]
    fn a_refused_unit_is_not_written_and_a_stop_does_not_wait_for_it() {
        let (_folder, spool) = stalled();
        assert!(!spool.has_all());
        let mut taken = Vec::new();
        assert!(spool.queue.take(1, 0, &mut taken));
        let acceptance = taken[0].unit.acceptance.as_ref();
        assert!(acceptance.expect("it has several parts").refuse());
        spool.write();
        assert_eq!(spool.left().0, 0);
        assert!(spool.has_all());
    }

    /// A unit could be written between its entry in `pending` and its refusal. The request ended with an error, and the next start
    /// charged the unit.
    #[test]
    fn what_the_queue_refuses_is_never_written() {
        let (_folder, spool) = stalled();
        spool.write();
        assert_eq!(spool.left().0, 1);
        spool.queue.set_cut_off(true);
        let is_over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while !is_over.load(Relaxed) {
                    spool.write();
                }
            });
            for number in 0..60_000 {
                let release = Part::Ledger(LedgerPart::Release {
                    operation: OperationId::from_parts(number, [1; 10]),
                    account: AccountId::from_bytes([1; 16]),
                    held: Micros::new(1),
                    at: NOW,
                });
                let unit = UnitOfWork::of(release, Admission::Normal);
                let refused = spool.submit(unit, Box::new(|_| unreachable!("it was refused")));
                assert!(matches!(refused, Err(SubmitError::CutOff)), "{refused:?}");
            }
            is_over.store(true, Relaxed);
        });
        assert_eq!(spool.left().0, 1);
    }

    /// The process that takes over decides on the forwarded units without this process's acceptances.
    #[test]
    fn nothing_is_accepted_once_the_database_is_handed_over() {
        let (_folder, spool) = stalled();
        spool.hand_over();
        assert!(!spool.write_frame());
        assert_eq!(spool.left().0, 0);
        assert!(!spool.has_all());
        let (_folder, spool) = stalled();
        spool.write();
        assert_eq!(spool.left().0, 1);
    }
}
