//! Faults injected at the seams of the simulation: statements on their way to the server, and units on their way to the store.

use std::collections::HashMap;
use std::sync::Arc;

use parking_lot::Mutex;
use tollgate_simulation::{SimulatedProcess, Simulation, Statement};
use tollgate_store::entries::LedgerPart;
use tollgate_store::postgres::Submitter;
use tollgate_store::{
    AllotmentPart, Budget, CommitError, Done, Part, Store, TakeResult, UnitOfWork,
};

/// A fault of the protocol.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// The fence of a commit is a separate statement before the insert. A missing row is no error.
    SeparateFence,
    /// Takes and returns, run as transactions, have no fence.
    ReturnWithoutFence,
    /// A transaction with a lost `COMMIT` is repeated although the `COMMIT` has taken effect.
    RepeatedReturn,
    /// A take whose commit has an unknown outcome counts as failed.
    CreditGivenBackOnUnknownCommit,
    /// A node whose lease has ended is fenced, although no other process has the lease.
    LeaseInFence,
    /// The cursor of the feed is a time.
    FeedByTime,
    /// The feed begins at its first read, not at the load.
    LoadWithoutCursor,
    /// Takes are decided as without a recall of the budget.
    TakingAheadWhileScarce,
    /// A take without an answer of other nodes in time is refused like a take without credit.
    RefusalAtTimeout,
    /// A recovery writes releases and returns into the journal of the recovering node.
    RecoveryInOwnJournal,
    /// The node's credit decides a shorter answer.
    ShorteningByLocalRoom,
    /// Credit is taken back at a node without credit of the account.
    RefundWithoutAllotment,
    /// The clock of an outage stands while the machine is suspended.
    SpoolWithoutBoottime,
}

/// The fence in the statements.
const FENCE: &str = "id = ?1 AND epoch = ?2 FOR SHARE";

/// Wait of a take for other nodes before a refusal.
const TIMEOUT_US: u64 = 150_000;

impl Fault {
    /// Each fault, with the seed of a run that finds the fault early.
    pub(crate) const ALL: [(Fault, u64); 13] = [
        (Fault::SeparateFence, 88),
        (Fault::ReturnWithoutFence, 1),
        (Fault::RepeatedReturn, 1),
        (Fault::CreditGivenBackOnUnknownCommit, 14),
        (Fault::LeaseInFence, 3),
        (Fault::FeedByTime, 1),
        (Fault::LoadWithoutCursor, 0),
        (Fault::TakingAheadWhileScarce, 1),
        (Fault::RefusalAtTimeout, 35),
        (Fault::RecoveryInOwnJournal, 16),
        (Fault::ShorteningByLocalRoom, 0),
        (Fault::RefundWithoutAllotment, 0),
        (Fault::SpoolWithoutBoottime, 15),
    ];

    /// Faults of allotments, each with the seed of a run with scarce caps only, in which the fault strikes a cap.
    pub(crate) const OF_CAPS: [(Fault, u64); 4] = [
        (Fault::ReturnWithoutFence, 66),
        (Fault::RepeatedReturn, 30),
        (Fault::CreditGivenBackOnUnknownCommit, 66),
        (Fault::TakingAheadWhileScarce, 0),
    ];

    /// Like `OF_CAPS`, with runs of any kind.
    pub(crate) const OF_CAPS_BESIDE_ACCOUNTS: [(Fault, u64); 1] = [(Fault::RefusalAtTimeout, 35)];

    /// Changes statements.
    pub(crate) fn tamper(self, sim: &Simulation) {
        let mut first_reads = HashMap::new();
        let change = move |statement: Statement<'_>| self.change(&mut first_reads, statement);
        sim.tamper(Box::new(change));
    }

    fn change(
        self,
        first_reads: &mut HashMap<String, i64>,
        statement: Statement<'_>,
    ) -> Option<String> {
        let Statement {
            process,
            sql,
            is_in_transaction,
            change,
        } = statement;
        let replace = |from: &str, to: &str| sql.contains(from).then(|| sql.replace(from, to));
        match self {
            Fault::SeparateFence if !is_in_transaction => {
                replace(FENCE, "id = ?1 AND ?2 IS NOT NULL")
            }
            Fault::ReturnWithoutFence if is_in_transaction => {
                replace(FENCE, "id = ?1 AND ?2 IS NOT NULL")
            }
            Fault::RepeatedReturn => replace("SELECT commits FROM", "SELECT commits - 1 FROM"),
            Fault::LeaseInFence => replace(
                FENCE,
                "id = ?1 AND epoch = ?2 AND EXISTS (SELECT 1 FROM leases l WHERE l.node = ?1 AND l.held_until >
                    CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)) FOR SHARE",
            ),
            Fault::FeedByTime => replace(
                "FROM changes WHERE number > ?1 ORDER BY number",
                "FROM changes WHERE at > COALESCE((SELECT c.at FROM changes c WHERE c.number = ?1), 0) ORDER BY at",
            ),
            Fault::LoadWithoutCursor if sql.contains("FROM changes WHERE number > ?1") => {
                let first = first_reads.entry(process.to_owned()).or_insert(change);
                Some(sql.replace("number > ?1", &format!("number > max(?1, {first})")))
            }
            Fault::TakingAheadWhileScarce if is_in_transaction => replace(
                "a.credit_limit, COALESCE(r.number, 0)",
                "a.credit_limit, 0",
            )
            .or_else(|| replace("SELECT number, need, short_at FROM cap_recalls", "SELECT 0, need, short_at FROM cap_recalls")),
            _ => None,
        }
    }

    /// Changes the units of a node and their answers.
    pub(crate) fn submitter(self, process: &SimulatedProcess) -> Option<Submitter> {
        let process = process.clone();
        match self {
            Fault::CreditGivenBackOnUnknownCommit => Some(Arc::new(move |store, unit, done| {
                let is_take = take(&unit).is_some();
                let done = match is_take {
                    true => failing_when_lost(&process, done),
                    false => done,
                };
                store.submit(unit, done)
            })),
            Fault::RefusalAtTimeout => {
                let waiting = Arc::<Mutex<HashMap<String, u64>>>::default();
                Some(Arc::new(move |store, unit, done| {
                    let done = match take(&unit) {
                        Some(budget) => refusing_late(&process, &waiting, budget, done),
                        None => done,
                    };
                    store.submit(unit, done)
                }))
            }
            _ => None,
        }
    }

    /// The submitter of a process that recovers a node while another node is up.
    pub(crate) fn recovery_submitter(self, other: Option<Arc<dyn Store>>) -> Option<Submitter> {
        let other = other.filter(|_| self == Fault::RecoveryInOwnJournal)?;
        Some(Arc::new(move |store, unit, done| {
            let is_moved = unit.parts().iter().any(|part| {
                matches!(
                    part,
                    Part::Ledger(LedgerPart::Release { .. })
                        | Part::Allotment(AllotmentPart::Return { .. })
                )
            });
            match is_moved {
                true => other.submit(unit, done),
                false => store.submit(unit, done),
            }
        }))
    }
}

fn take(unit: &UnitOfWork) -> Option<Budget> {
    unit.parts().iter().find_map(|part| match part {
        Part::Allotment(AllotmentPart::Take { budget, .. }) => Some(*budget),
        _ => None,
    })
}

/// A callback that reports a failed take when the connection is lost during the commit.
fn failing_when_lost(process: &SimulatedProcess, done: Done) -> Done {
    let first = Arc::new(Mutex::new(Some(done)));
    // A unit that is not queued has no callback.
    let lost = Arc::downgrade(&first);
    let take_done = |place: &Mutex<Option<Done>>| {
        let mut place = place.lock();
        place.take()
    };
    process.on_lost_commit(move || {
        let lost = lost.upgrade();
        if let Some(done) = lost.and_then(|lost| take_done(&lost)) {
            done(Err(CommitError::CutOff));
        }
    });
    Box::new(move |result| {
        if let Some(done) = take_done(&first) {
            done(result);
        }
    })
}

/// A callback that reports, after a time, that no node's answer is pending.
fn refusing_late(
    process: &SimulatedProcess,
    waiting: &Arc<Mutex<HashMap<String, u64>>>,
    budget: Budget,
    done: Done,
) -> Done {
    let (clock, waiting) = (process.clock().clone(), Arc::clone(waiting));
    Box::new(move |mut result| {
        let now_us = clock.elapsed().as_micros() as u64;
        let mut waiting = waiting.lock();
        let key = format!("{budget:?}");
        match result.as_mut().map(|receipt| &mut receipt.taken) {
            Ok(Some(TakeResult::Short { is_pending, .. })) if *is_pending => {
                let since_us = *waiting.entry(key).or_insert(now_us);
                *is_pending = now_us < since_us + TIMEOUT_US;
            }
            _ => _ = waiting.remove(&key),
        }
        drop(waiting);
        done(result);
    })
}
