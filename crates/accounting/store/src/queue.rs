//! The bounded queue in front of the writer: admission control, load shedding, and the batches of group commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::{Acquire, Relaxed, Release};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};

use crate::error::{CommitError, Failure, SubmitError};
use crate::gauges::Gauges;
use crate::threads::Condvar;
use crate::unit::{Admission, Done, UnitOfWork};

/// A waiting unit with its completion callback.
pub(crate) struct Item {
    pub(crate) unit: UnitOfWork,
    pub(crate) done: Done,
}

/// Units in the order of queueing.
///
/// Units of [`Admission::Normal`] are refused from three quarters of the bound. Units of [`Admission::Always`] are never refused: an
/// `Always` unit belongs to a started operation, and a refusal would lose money to save memory.
pub(crate) struct Queue {
    state: Mutex<State>,
    waiting: Condvar,
    /// Whether [`State::stopped`] or [`State::is_cut_off`] is set; written under the lock.
    is_refusing: AtomicBool,
    admit_max: usize,
    gauges: Arc<Gauges>,
}

/// How long best-effort units wait for further units. A commit then has a hundred best-effort units instead of a few. A crash loses no
/// units beyond this wait.
const BEST_EFFORT_WAIT: Duration = Duration::from_millis(10);

/// How long a batch is held open for the callers of the previous commit to return. Requests come in bursts: callers whose units were
/// committed together continue together. Long enough for some hundred callers, and short compared with a model's response time.
const LINGER: Duration = Duration::from_millis(2);

fn is_best_effort(item: &Item) -> bool {
    item.unit.admission == Admission::BestEffort
}

#[derive(Default)]
struct State {
    items: VecDeque<Item>,
    writer_idle: bool,
    /// The queue has only best-effort units; the writer waits for further best-effort units or for a unit with a waiting caller.
    writer_gathers: bool,
    /// The batch size that the writer waits for, unless a caller waits for a first byte; zero when the writer does not wait.
    writer_target: usize,
    stopped: Option<Failure>,
    failed: bool,
    /// The database does not answer: units that start an operation are refused.
    is_cut_off: bool,
    /// The writer should end when the queue is empty. Units are still accepted, for another writer.
    changes_writer: bool,
}

impl Queue {
    pub(crate) fn new(queue_max: usize, gauges: Arc<Gauges>) -> Queue {
        let admit_max = queue_max / 4 * 3;
        gauges.queue_admits.store(admit_max as u64, Relaxed);
        Queue {
            state: Mutex::default(),
            waiting: Condvar::default(),
            is_refusing: AtomicBool::new(false),
            admit_max,
            gauges,
        }
    }

    pub(crate) fn push(&self, unit: UnitOfWork, done: Done) -> Result<(), SubmitError> {
        let mut state = self.lock();
        match (&state.stopped, unit.admission) {
            (_, Admission::Normal) => self.admits(&state)?,
            // A best-effort unit carries no promise.
            (_, Admission::BestEffort) => self.has_room(&state)?,
            (Some(failure), _) => return Err(SubmitError::Stopped(failure.clone())),
            (None, _) => {}
        }
        let admission = unit.admission;
        state.items.push_back(Item { unit, done });
        let waiting = state.items.len();
        self.gauges.queue_depth.store(waiting as u64, Relaxed);
        if state.wakes_for(admission) {
            drop(state);
            self.waiting.notify_one();
        }
        Ok(())
    }

    /// Whether a unit of [`Admission::Normal`] would be accepted now.
    ///
    /// Called for every request. Answered from a value published under the lock, without taking the contended lock of the writer and all
    /// workers. Only a refusal is verified under the lock.
    pub(crate) fn admit(&self) -> Result<(), SubmitError> {
        let waiting = self.gauges.queue_depth.load(Relaxed);
        let is_disk_low = self.gauges.is_disk_low.load(Relaxed);
        if waiting < self.admit_max as u64 && !is_disk_low && !self.is_refusing.load(Acquire) {
            return Ok(());
        }
        self.admits(&self.lock())
    }

    fn admits(&self, state: &State) -> Result<(), SubmitError> {
        self.has_room(state)?;
        match state.is_cut_off {
            true => Err(SubmitError::CutOff),
            false => Ok(()),
        }
    }

    fn has_room(&self, state: &State) -> Result<(), SubmitError> {
        if let Some(failure) = &state.stopped {
            return Err(SubmitError::Stopped(failure.clone()));
        }
        let waiting = state.items.len();
        if waiting >= self.admit_max || self.gauges.is_disk_low.load(Relaxed) {
            self.gauges.overloads.fetch_add(1, Relaxed);
            return Err(SubmitError::Overloaded { waiting });
        }
        Ok(())
    }

    /// Waits for units and moves at most `max` units into `batch`. `acknowledged` is the number of callers notified a moment ago: the batch
    /// waits for as many further units, for a short time, and not while a caller waits for the first byte of a response. `false` when the
    /// queue has stopped: after a failure at once, after [`Queue::stop`] once the queue is empty.
    pub(crate) fn take(&self, max: usize, acknowledged: usize, batch: &mut Vec<Item>) -> bool {
        let mut state = self.lock();
        let is_normal = |item: &Item| item.unit.admission == Admission::Normal;
        let target = (state.items.len() + acknowledged).min(max);
        if state.items.len() < target && !state.items.iter().any(is_normal) {
            state.writer_target = target;
            // One wait, ended by the unit that completes the batch: every additional wake-up would cost as much processor time as a unit.
            state = (self.waiting).wait_within(&self.state, state, LINGER, |state| {
                state.writer_target > 0 && state.stopped.is_none() && !state.changes_writer
            });
            state.writer_target = 0;
        }
        while state.items.is_empty() {
            if state.stopped.is_some() || state.changes_writer {
                return false;
            }
            state.writer_idle = true;
            state = self.waiting.wait_while(&self.state, state, |state| {
                state.writer_idle && state.stopped.is_none() && !state.changes_writer
            });
        }
        if state.stopped.is_none()
            && state.items.len() < max
            && state.items.iter().all(is_best_effort)
        {
            state.writer_gathers = true;
            state = (self.waiting).wait_within(&self.state, state, BEST_EFFORT_WAIT, |state| {
                state.writer_gathers && state.stopped.is_none() && !state.changes_writer
            });
            state.writer_gathers = false;
            if state.items.is_empty() {
                return false;
            }
        }
        self.move_to(batch, max, &mut state);
        true
    }

    /// Moves at most `max` of the waiting units into `batch`; `false` without units. Best-effort units alone are left to wait for further
    /// units.
    pub(crate) fn take_waiting(&self, max: usize, batch: &mut Vec<Item>) -> bool {
        let mut state = self.lock();
        if state.items.len() < max && state.items.iter().all(is_best_effort) {
            return false;
        }
        self.move_to(batch, max, &mut state);
        true
    }

    fn move_to(&self, batch: &mut Vec<Item>, max: usize, state: &mut State) {
        let count = state.items.len().min(max);
        batch.extend(state.items.drain(..count));
        let waiting = state.items.len();
        self.gauges.queue_depth.store(waiting as u64, Relaxed);
    }

    /// Ends the writer when the queue is empty; `false` when the writer ends anyway.
    pub(crate) fn change_writer(&self) -> bool {
        let mut state = self.lock();
        if state.stopped.is_some() {
            return false;
        }
        state.changes_writer = true;
        drop(state);
        self.waiting.notify_one();
        true
    }

    /// The database does not answer, or answers again.
    pub(crate) fn set_cut_off(&self, is_cut_off: bool) {
        let mut state = self.lock();
        state.is_cut_off = is_cut_off;
        let is_refusing = is_cut_off || state.stopped.is_some();
        self.is_refusing.store(is_refusing, Release);
    }

    /// Another writer takes from the queue.
    pub(crate) fn writer_changed(&self) {
        self.lock().changes_writer = false;
    }

    /// Accepts no more units. Queued units are still handed out. The first reason is kept.
    pub(crate) fn stop(&self, failure: Failure) {
        let mut state = self.lock();
        state.stopped.get_or_insert(failure);
        self.is_refusing.store(true, Release);
        drop(state);
        self.waiting.notify_one();
    }

    /// Accepts no more units, and notifies every queued caller that its unit is lost. `true` for the first call.
    pub(crate) fn fail(&self, failure: Failure) -> bool {
        let mut state = self.lock();
        let first = !std::mem::replace(&mut state.failed, true);
        // A failure overrides a mere close: the units queued at the close of the store are lost after all.
        if state.stopped.is_none() || first {
            state.stopped = Some(failure.clone());
        }
        self.is_refusing.store(true, Release);
        let lost = std::mem::take(&mut state.items);
        self.gauges.queue_depth.store(0, Relaxed);
        drop(state);
        self.waiting.notify_one();
        for item in lost {
            (item.done)(Err(CommitError::Stopped(failure.clone())));
        }
        first
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        self.lock().stopped.clone()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // No operation under the lock can leave the state half changed.
        self.state.lock()
    }
}

impl State {
    /// Whether the writer waits for the unit that was just queued; the writer is woken once.
    fn wakes_for(&mut self, admission: Admission) -> bool {
        let is_complete = match admission {
            // A caller waits for the first byte.
            Admission::Normal => true,
            _ => self.items.len() >= self.writer_target,
        };
        let wakes = self.writer_idle
            || (self.writer_gathers && admission != Admission::BestEffort)
            || (self.writer_target > 0 && is_complete);
        if wakes {
            (self.writer_idle, self.writer_gathers, self.writer_target) = (false, false, 0);
        }
        wakes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::FailureKind;

    #[test]
    fn normal_units_are_refused_at_three_quarters_and_units_always_admitted_never() {
        let queue = Queue::new(8, Arc::default());
        for admitted in 0..6 {
            assert!(queue.admit().is_ok(), "{admitted} of 8 are in use");
            assert!(
                push(&queue, Admission::Normal).is_ok(),
                "{admitted} of 8 are in use"
            );
        }
        assert!(
            matches!(queue.admit(), Err(SubmitError::Overloaded { waiting: 6 })),
            "`admit` and `push` agree"
        );
        assert!(
            matches!(
                push(&queue, Admission::Normal),
                Err(SubmitError::Overloaded { waiting: 6 })
            ),
            "the last quarter is for units that are always admitted"
        );
        for _ in 0..10 {
            assert!(
                push(&queue, Admission::Always).is_ok(),
                "such a unit is never refused"
            );
        }
        let mut batch = Vec::new();
        assert!(queue.take(11, 0, &mut batch));
        assert_eq!(batch.len(), 11, "a batch has its maximum size");
        assert!(queue.admit().is_ok(), "the queue has capacity again");
        assert!(
            push(&queue, Admission::Normal).is_ok(),
            "the queue has capacity again"
        );
    }

    #[test]
    fn a_queue_that_is_cut_off_admits_nothing_new_and_what_ends_an_operation() {
        use Admission::{Always, BestEffort, Normal};
        let queue = Queue::new(8, Arc::default());
        queue.set_cut_off(true);
        for refused in [push(&queue, Normal), queue.admit()] {
            assert!(matches!(refused, Err(SubmitError::CutOff)), "{refused:?}");
        }
        assert!(push(&queue, Always).is_ok() && push(&queue, BestEffort).is_ok());
        queue.set_cut_off(false);
        assert!(queue.admit().is_ok() && push(&queue, Normal).is_ok());
        queue.stop(failure());
        queue.set_cut_off(false);
        assert!(matches!(queue.admit(), Err(SubmitError::Stopped(_))));
    }

    #[test]
    fn a_stopped_queue_drains_and_accepts_nothing() {
        let queue = Queue::new(8, Arc::default());
        push(&queue, Admission::Always).expect("an open queue");
        queue.stop(failure());
        for refused in [push(&queue, Admission::Always), queue.admit()] {
            assert!(matches!(refused, Err(SubmitError::Stopped(_))));
        }
        let mut batch = Vec::new();
        assert!(queue.take(8, 0, &mut batch), "queued units are handed out");
        assert!(!queue.take(8, 0, &mut batch), "then the queue is empty");
    }

    #[test]
    fn best_effort_units_wait_for_more_and_never_delay_a_waiting_caller() {
        let queue = Arc::new(Queue::new(64, Arc::default()));
        for _ in 0..2 {
            push(&queue, Admission::BestEffort).expect("an open queue");
        }
        let writer = Arc::clone(&queue);
        let taken = std::thread::spawn(move || {
            let mut batch = Vec::new();
            assert!(writer.take(64, 0, &mut batch));
            batch.len()
        });
        // Either the writer waits and the push wakes the writer, or the writer has not checked the queue yet. In both cases the units are
        // one batch, or the wait is over.
        push(&queue, Admission::Always).expect("an open queue");
        let first = taken.join().expect("no panic");
        assert!(first == 3 || first == 2, "{first}");
        for _ in 0..48 {
            let _ = push(&queue, Admission::BestEffort);
        }
        assert!(
            matches!(
                push(&queue, Admission::BestEffort),
                Err(SubmitError::Overloaded { .. })
            ),
            "best-effort units are refused like normal ones"
        );
        queue.stop(failure());
        let mut batch = Vec::new();
        assert!(queue.take(64, 0, &mut batch), "a stop ends the wait");
    }

    #[test]
    fn what_waits_is_taken_without_a_wait_unless_it_may_gather() {
        use Admission::{Always, BestEffort, Normal};
        for (waiting, max, taken) in [
            (&[][..], 4, 0),
            (&[BestEffort, BestEffort], 4, 0),
            (&[BestEffort, BestEffort], 2, 2),
            (&[BestEffort, Always], 4, 2),
            (&[Normal, Always, Normal], 2, 2),
        ] {
            let queue = Queue::new(64, Arc::default());
            for admission in waiting {
                push(&queue, *admission).expect("an open queue");
            }
            let mut batch = Vec::new();
            assert_eq!(queue.take_waiting(max, &mut batch), taken > 0);
            assert_eq!(batch.len(), taken, "{waiting:?}");
            assert_eq!(queue.lock().items.len(), waiting.len() - taken);
        }
    }

    #[test]
    fn the_batch_waits_briefly_for_acknowledged_callers() {
        let queue = Queue::new(64, Arc::default());
        let mut batch = Vec::new();
        for units in 1..3 {
            push(&queue, Admission::Always).expect("an open queue");
            batch.clear();
            assert!(
                queue.take(64, 50, &mut batch),
                "no further unit arrives, {units}"
            );
            assert_eq!(batch.len(), 1);
            assert_eq!(queue.lock().writer_target, 0, "the wait is over");
        }
    }

    #[test]
    fn the_writer_is_woken_once_and_only_for_what_it_waits_for() {
        use Admission::{Always, BestEffort, Normal};
        #[derive(Debug)]
        enum Waiting {
            Not,
            Idle,
            Gathers,
            For(usize),
        }
        //   state of the writer, admission of the new unit, queue length then, whether the writer is woken
        for (waiting, admission, there, wakes) in [
            (Waiting::Not, Normal, 1, false),
            (Waiting::Idle, BestEffort, 1, true),
            (Waiting::Gathers, BestEffort, 2, false),
            (Waiting::Gathers, Always, 2, true),
            (Waiting::Gathers, Normal, 2, true),
            (Waiting::For(3), Always, 2, false),
            (Waiting::For(3), Always, 3, true),
            (Waiting::For(3), BestEffort, 3, true),
            (Waiting::For(3), Normal, 1, true),
        ] {
            let mut state = State::default();
            match waiting {
                Waiting::Not => {}
                Waiting::Idle => state.writer_idle = true,
                Waiting::Gathers => state.writer_gathers = true,
                Waiting::For(count) => state.writer_target = count,
            }
            let item = |_| Item {
                unit: UnitOfWork::of_all([], admission),
                done: Box::new(|_| {}),
            };
            state.items.extend((0..there).map(item));
            let what = format!("{waiting:?}, {admission:?} is queued");
            assert_eq!(state.wakes_for(admission), wakes, "{what}");
            assert!(!wakes || !state.wakes_for(Normal), "{what}: once");
        }
    }

    #[test]
    fn a_failed_queue_notifies_every_waiting_caller() {
        let queue = Queue::new(8, Arc::default());
        let (sender, receiver) = std::sync::mpsc::channel();
        let done: Done = Box::new(move |result| sender.send(result).expect("the test waits"));
        queue
            .push(UnitOfWork::of_all([], Admission::Always), done)
            .expect("an open queue");
        queue.fail(failure());
        assert!(matches!(
            receiver.try_recv(),
            Ok(Err(CommitError::Stopped(failure))) if failure.kind == FailureKind::Io
        ));
        assert!(matches!(queue.admit(), Err(SubmitError::Stopped(_))));
    }

    fn push(queue: &Queue, admission: Admission) -> Result<(), SubmitError> {
        queue.push(UnitOfWork::of_all([], admission), Box::new(|_| {}))
    }

    fn failure() -> Failure {
        Failure {
            kind: FailureKind::Io,
            message: Arc::from("the disk has failed"),
        }
    }
}
