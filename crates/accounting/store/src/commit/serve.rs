//! The writer's loop: takes units from the queue, commits the units, and notifies their callers.
//!
//! An engine with a server pipelines its commits: the writer sends a commit before the result of the preceding commit arrives. Each
//! commit names the hash of the preceding commit, so the server makes the commits durable in order or not at all. Callers are notified in
//! commit order. A commit that reads, or that writes more than its journal row, waits for the earlier commits. Postings, last uses and
//! refused requests do not wait: each is a separate commit.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use super::batch::{Answers, Batch, are_shared, is_write_only};
use super::writer::Shared;
use crate::engine::{Committed, Engine, EngineError, Fault, RowError, Session, WriteError};
use crate::error::{CommitError, Failure, FailureKind, Refusal};
use crate::gauges::Gauges;
use crate::queue::Item;
use crate::reads::rebuild_days;
use crate::tables;
use crate::unit::{Effect, Part};

/// A batch of this size means that requests arrive faster than commits finish.
const LOADED_BATCH: usize = 8;

/// Number of waits for another program's lock before the writer gives up: a minute with SQLite. Each wait lasts for the engine's
/// time-out.
const BUSY_TRIES: usize = 120;

/// Like [`BUSY_TRIES`], where no caller waits for the result: at the start, and at the close.
const POST_TRIES: usize = 10;

/// Pause between two commits while earlier commits are not durable. A server that is near makes a commit durable within this pause. A
/// commit costs about as much processor time as twenty of its units.
const SEND_INTERVAL_US: u64 = 2_000;

/// Maximum number of commits on their way to the server.
const SENT_MAX: usize = 16;

/// Commits until the queue stops.
pub(super) fn serve<E: Engine>(
    shared: &Shared,
    engine: &E,
    batch: &mut Batch,
    batch_max: usize,
    monotonic_us: &dyn Fn() -> u64,
) -> Result<(), Failure> {
    let mut committer = Committer {
        shared,
        engine,
        session: engine.session()?,
        batch,
        monotonic_us,
        write_only: Vec::new(),
        sent: VecDeque::new(),
        send_at_us: 0,
        acknowledged: 0,
    };
    let mut items = Vec::with_capacity(batch_max);
    let mut serve = || {
        while committer.take(batch_max, &mut items)? {
            committer.commit(&mut items)?;
        }
        Ok::<_, Failure>(())
    };
    if let Err(failure) = serve() {
        // The commits before the failed commit.
        let _ = committer.acknowledge_sent();
        // The queue stops before any caller is notified: a notified caller finds the queue stopped.
        shared.queue.stop(failure.clone());
        let sent = committer.sent.drain(..).flat_map(|sent| sent.items);
        for item in sent.chain(items).chain(committer.write_only) {
            (item.done)(Err(CommitError::Stopped(failure.clone())));
        }
        return Err(failure);
    }
    let Committer {
        mut session, batch, ..
    } = committer;
    // After the disk has failed in another operation, the writer does not touch the disk.
    let is_closing = |failure: Failure| failure.kind == FailureKind::Closed;
    shared.wait_begins();
    if shared.queue.failure().is_none_or(is_closing)
        && let Err(error) = post(&mut session, batch, &shared.gauges)
    {
        // The journal already has every record.
        tracing::warn!(
            "posting balances failed, the next start posts them: {}",
            failure_of(engine, error)
        );
    }
    Ok(())
}

/// The session of a running writer, and the commits sent to the server.
struct Committer<'c, E: Engine> {
    shared: &'c Shared,
    engine: &'c E,
    session: E::Session<'c>,
    batch: &'c mut Batch,
    monotonic_us: &'c dyn Fn() -> u64,
    /// Units whose result is not needed; committed apart from the rest of the batch.
    write_only: Vec<Item>,
    /// Commits that are not known to be durable, oldest first.
    sent: VecDeque<SentCommit>,
    /// Earliest time of the next send, in microseconds.
    send_at_us: u64,
    /// Number of callers notified a moment ago.
    acknowledged: usize,
}

/// A commit or a posting that is not known to be durable.
struct SentCommit {
    kind: SentKind,
    items: Vec<Item>,
    answers: Answers,
    began_us: u64,
    sent_us: u64,
}

#[derive(Clone, Copy)]
enum SentKind {
    Units,
    WriteOnly,
    Posting,
}

impl<E: Engine> Committer<'_, E> {
    /// Takes the units of the next commit. Meanwhile, notifies the callers of earlier commits. `false` when the queue has stopped.
    fn take(&mut self, batch_max: usize, items: &mut Vec<Item>) -> Result<bool, Failure> {
        while !self.sent.is_empty() {
            let now = (self.monotonic_us)();
            let pause = Duration::from_micros(self.send_at_us.saturating_sub(now));
            let is_full = self.sent.len() >= SENT_MAX;
            if self.acknowledge_oldest((!is_full).then_some(pause))? {
                continue;
            }
            if self.shared.queue.take_waiting(batch_max, items) {
                return Ok(true);
            }
            self.send_at_us = (self.monotonic_us)() + SEND_INTERVAL_US;
        }
        let acknowledged = std::mem::take(&mut self.acknowledged);
        Ok((self.shared.queue).take(batch_max, acknowledged, items))
    }

    /// Commits the units, or sends their commit.
    fn commit(&mut self, items: &mut Vec<Item>) -> Result<(), Failure> {
        let (shared, monotonic_us) = (self.shared, self.monotonic_us);
        if <E::Session<'_> as Session>::SENDS && items.iter().any(is_write_only) {
            (self.write_only, *items) = items.drain(..).partition(is_write_only);
        }
        // First, so that a row removed by another unit stays removed.
        if !self.write_only.is_empty() {
            self.commit_write_only()?;
        }
        if !items.is_empty() {
            self.commit_units(items)?;
        }
        if self.session.needs_maintenance() {
            let began = monotonic_us();
            if self.session.maintain()? {
                let us = monotonic_us().saturating_sub(began);
                shared.gauges.checkpoint_us.record(us);
            }
        }
        if <E::Session<'_> as Session>::SENDS && self.batch.is_due(monotonic_us()) {
            self.post()?;
        }
        Ok(())
    }

    fn commit_units(&mut self, items: &mut Vec<Item>) -> Result<(), Failure> {
        if are_shared(items) {
            // The callers of the sent commits do not wait for this commit too.
            self.acknowledge_sent()?;
        }
        match self.try_commit(items) {
            Err(error) if error.fault() == Some(Fault::Value) => self.commit_apart(items),
            committed => committed.map_err(|error| self.stopped_by(error)),
        }
    }

    /// Commits each unit alone after a commit with a value that the engine does not store. Refuses the unit with this value.
    fn commit_apart(&mut self, items: &mut Vec<Item>) -> Result<(), Failure> {
        let mut rest = std::mem::take(items).into_iter();
        let mut is_undone = true;
        while let Some(item) = rest.next() {
            items.push(item);
            let reloaded = match std::mem::take(&mut is_undone) {
                true => repeat_conflicts(|_| self.batch.reload(self.session.sql())),
                false => Ok(()),
            };
            let Err(error) = reloaded.and_then(|()| self.try_commit(items)) else {
                continue;
            };
            if error.fault() != Some(Fault::Value) || !may_be_refused(&items[0]) {
                items.extend(rest);
                return Err(self.stopped_by(error));
            }
            is_undone = true;
            tracing::warn!(
                error = %failure_of(self.engine, error),
                "store refused a unit: the database does not store a value of it"
            );
            self.wait_ended();
            let refusal = Refusal::Invalid("the database does not store a value of it");
            for item in items.drain(..) {
                (item.done)(Err(CommitError::Refused(refusal.clone())));
            }
        }
        match is_undone {
            true => repeat_conflicts(|_| self.batch.reload(self.session.sql()))
                .map_err(|error| self.stopped_by(error)),
            false => Ok(()),
        }
    }

    fn try_commit(&mut self, items: &mut Vec<Item>) -> Result<(), WriteError> {
        let (shared, monotonic_us) = (self.shared, self.monotonic_us);
        let began_us = monotonic_us();
        self.wait_begins(began_us);
        let committed = retry_conflicts(&mut self.session, self.batch, |session, batch| {
            commit(shared, session, batch, monotonic_us, items)
        });
        let (answers, committed) = committed?;
        let gauges = &shared.gauges;
        gauges.batch_size.record(items.len() as u64);
        gauges.coalesced.fetch_add(self.batch.coalesced, Relaxed);
        gauges.entries.fetch_add(self.batch.entries, Relaxed);
        if committed == Committed::Sent {
            self.keep_sent(SentKind::Units, std::mem::take(items), answers, began_us);
        } else {
            self.acknowledge_sent().map_err(WriteError::Stopped)?;
            self.wait_ended();
            let us = monotonic_us().saturating_sub(began_us);
            self.acknowledge(us, items, answers);
        }
        Ok(())
    }

    /// Commits units whose result is not needed. Such units use no state shared by the nodes, so the commit takes no shared lock.
    fn commit_write_only(&mut self) -> Result<(), Failure> {
        let began_us = (self.monotonic_us)();
        self.wait_begins(began_us);
        let items = &self.write_only;
        let committed = retry_conflicts(&mut self.session, self.batch, |session, batch| {
            session.begin_write_only()?;
            let write = |session: &mut E::Session<'_>| batch.write(session, items);
            finish(session, write, Session::send_commit)
        });
        let (answers, committed) = committed.map_err(|error| self.stopped_by(error))?;
        if committed == Committed::Sent {
            let items = std::mem::take(&mut self.write_only);
            self.keep_sent(SentKind::WriteOnly, items, answers, began_us);
        } else {
            self.acknowledge_sent()?;
            self.wait_ended();
            acknowledge(self.shared, &mut self.write_only, answers);
        }
        Ok(())
    }

    fn keep_sent(&mut self, kind: SentKind, items: Vec<Item>, answers: Answers, began_us: u64) {
        let sent_us = (self.monotonic_us)();
        self.sent.push_back(SentCommit {
            kind,
            items,
            answers,
            began_us,
            sent_us,
        });
        self.send_at_us = sent_us + SEND_INTERVAL_US;
    }

    /// Posts the journal's tail after the commits in the tail, without a wait for these commits.
    fn post(&mut self) -> Result<(), Failure> {
        let began_us = (self.monotonic_us)();
        self.wait_begins(began_us);
        let begin = <E::Session<'_> as Session>::begin_write_only;
        let commit = <E::Session<'_> as Session>::send_commit;
        let posted = posting(&mut self.session, self.batch, begin, commit);
        match posted.map_err(|error| self.stopped_by(error))? {
            Some(Committed::Sent) => {
                self.keep_sent(SentKind::Posting, Vec::new(), Answers::new(), began_us);
            }
            Some(Committed::Durable) => {
                self.acknowledge_sent()?;
                self.wait_ended();
                let us = (self.monotonic_us)().saturating_sub(began_us);
                posting_took(self.shared, self.batch, us);
            }
            None => self.wait_ended(),
        }
        Ok(())
    }

    /// Waits for all sent commits, and notifies their callers.
    fn acknowledge_sent(&mut self) -> Result<(), Failure> {
        while !self.sent.is_empty() {
            self.acknowledge_oldest(None)?;
        }
        Ok(())
    }

    /// Waits for the oldest sent commit, at most for `within`, and notifies its callers; `false` when the commit is not yet known to be
    /// durable.
    fn acknowledge_oldest(&mut self, within: Option<Duration>) -> Result<bool, Failure> {
        let is_durable = self.session.wait_for_sent(within);
        if !is_durable.map_err(|error| self.stopped_by(WriteError::Engine(error)))? {
            return Ok(false);
        }
        if let Some(mut sent) = self.sent.pop_front() {
            self.wait_ended();
            let now = (self.monotonic_us)();
            let us = now.saturating_sub(sent.began_us);
            match sent.kind {
                SentKind::Units => {
                    let sync_us = now.saturating_sub(sent.sent_us);
                    self.shared.gauges.sync_us.record(sync_us);
                    self.acknowledge(us, &mut sent.items, sent.answers);
                }
                SentKind::WriteOnly => acknowledge(self.shared, &mut sent.items, sent.answers),
                SentKind::Posting => posting_took(self.shared, self.batch, us),
            }
        }
        Ok(true)
    }

    fn acknowledge(&mut self, us: u64, items: &mut Vec<Item>, answers: Answers) {
        self.shared.gauges.commit_us.record(us);
        // Under load, an additional commit costs more than the wait for a larger batch. A single unit is written at once.
        let is_loaded = items.len() >= LOADED_BATCH;
        self.acknowledged = if is_loaded { items.len() } else { 0 };
        acknowledge(self.shared, items, answers);
    }

    /// A commit begins. Its age reveals an outage of the database, unless an earlier commit is under way.
    fn wait_begins(&self, began_us: u64) {
        if self.sent.is_empty() {
            self.shared.wait_begins();
            (self.shared.gauges.commit_began_us).store(began_us.max(1), Relaxed);
        }
    }

    /// The oldest commit under way has ended.
    fn wait_ended(&self) {
        let shared = self.shared;
        match self.sent.front() {
            // The database has answered a moment ago.
            Some(sent) => {
                shared.wait_begins();
                (shared.gauges.commit_began_us).store(sent.began_us.max(1), Relaxed);
            }
            None => {
                shared.gauges.commit_began_us.store(0, Relaxed);
                shared.wait_ended();
            }
        }
    }

    fn stopped_by(&self, error: WriteError) -> Failure {
        stopped_by(self.engine, &self.session, error)
    }
}

/// Runs a transaction. After a conflict with another node's transaction, reloads the durable state and runs the transaction again.
fn retry_conflicts<S: Session, T>(
    session: &mut S,
    batch: &mut Batch,
    mut act: impl FnMut(&mut S, &mut Batch) -> Result<T, WriteError>,
) -> Result<T, WriteError> {
    repeat_conflicts(|is_repeated| {
        if is_repeated {
            repeat_conflicts(|_| batch.reload(session.sql()))?;
        }
        act(session, batch)
    })
}

/// Retries `act` after each conflict; the argument of `act` says whether the run is a retry. An engine with conflicts limits the retries.
fn repeat_conflicts<T, E: Into<WriteError>>(
    mut act: impl FnMut(bool) -> Result<T, E>,
) -> Result<T, WriteError> {
    let mut is_repeated = false;
    loop {
        match act(is_repeated).map_err(Into::into) {
            Err(error) if error.fault() == Some(Fault::Conflict) => is_repeated = true,
            other => return other,
        }
    }
}

/// Whether a unit that cannot be committed may be refused. The unit must have more than a row of the journal, and no answer may have
/// ended because of the unit.
fn may_be_refused(item: &Item) -> bool {
    let acceptance = item.unit.acceptance.as_ref();
    are_shared(std::slice::from_ref(item)) && acceptance.is_none_or(|it| it.refuse())
}

fn commit<S: Session>(
    shared: &Shared,
    session: &mut S,
    batch: &mut Batch,
    monotonic_us: &dyn Fn() -> u64,
    items: &[Item],
) -> Result<(Answers, Committed), WriteError> {
    begin(session, &shared.gauges, BUSY_TRIES)?;
    let write = |session: &mut S| {
        if are_shared(items) {
            batch.prefetch_own(session.sql(), items)?;
            session.lock_shared()?;
        }
        let answers = batch.write(session, items)?;
        let began = monotonic_us();
        // Saves one transaction.
        let posts = !S::SENDS && batch.is_due(began);
        if posts {
            batch.post(session.sql())?;
        }
        Ok((answers, posts.then_some(began)))
    };
    let ((answers, posting_began), committed) = finish(session, write, |session| {
        let began = monotonic_us();
        let committed = session.send_commit()?;
        if committed == Committed::Durable {
            let us = monotonic_us().saturating_sub(began);
            shared.gauges.sync_us.record(us);
        }
        Ok(committed)
    })?;
    if let Some(began) = posting_began {
        posting_took(shared, batch, monotonic_us().saturating_sub(began));
    }
    Ok((answers, committed))
}

/// A posting has ended, with its commit.
fn posting_took(shared: &Shared, batch: &mut Batch, us: u64) {
    shared.gauges.posting_us.record(us);
    batch.posting_took(us);
}

/// Derives the usage totals again if the totals are behind the postings: after an upgrade, or after a run of a release without usage
/// totals.
pub(super) fn derive_days<S: Session>(session: &mut S, gauges: &Gauges) -> Result<(), WriteError> {
    if tables::marks::are_days_posted(session.sql())? {
        return Ok(());
    }
    repeat_conflicts(|_| {
        begin(session, gauges, POST_TRIES)?;
        let write = |session: &mut S| {
            session.lock_shared()?;
            rebuild_days(session.sql())
        };
        finish(session, write, S::commit)
    })?;
    Ok(())
}

/// Posts the journal's tail in a separate transaction. The lock of the shared state is taken last: a node with this lock sees a posting
/// whole or not at all. No node waits while the rows of thousands of accounts are written.
pub(super) fn post<S: Session>(
    session: &mut S,
    batch: &mut Batch,
    gauges: &Gauges,
) -> Result<(), WriteError> {
    let begin = |session: &mut S| begin(session, gauges, POST_TRIES);
    posting(session, batch, begin, S::commit).map(|_| ())
}

fn posting<S: Session, C>(
    session: &mut S,
    batch: &mut Batch,
    mut begin: impl FnMut(&mut S) -> Result<(), WriteError>,
    mut commit: impl FnMut(&mut S) -> Result<C, EngineError>,
) -> Result<Option<C>, WriteError> {
    retry_conflicts(session, batch, |session, batch| {
        if !batch.has_unposted() {
            return Ok(None);
        }
        begin(session)?;
        let write = |session: &mut S| {
            batch.post(session.sql())?;
            session.lock_shared()
        };
        let ((), committed) = finish(session, write, &mut commit)?;
        Ok(Some(committed))
    })
}

/// Begins the transaction of a commit. The transaction has written no row yet, so the writer can wait for another program's lock.
fn begin(session: &mut impl Session, gauges: &Gauges, tries: usize) -> Result<(), WriteError> {
    for _ in 1..tries {
        match session.begin() {
            Err(WriteError::Engine(error)) if error.fault == Fault::Busy => {
                if !gauges.is_locked.swap(true, Relaxed) {
                    tracing::warn!(
                        "waiting for the database lock: another program holds it, and nothing is written until it is released"
                    );
                }
            }
            begun => {
                gauges.is_locked.store(false, Relaxed);
                return begun;
            }
        }
    }
    session.begin()
}

/// Runs `write` in the open transaction and commits by `commit`; an error rolls back.
fn finish<S: Session, T, C>(
    session: &mut S,
    write: impl FnOnce(&mut S) -> Result<T, WriteError>,
    commit: impl FnOnce(&mut S) -> Result<C, EngineError>,
) -> Result<(T, C), WriteError> {
    match write(session) {
        Ok(written) => Ok((written, commit(session)?)),
        Err(error) => {
            session.rollback();
            Err(error)
        }
    }
}

/// The reason why the writer stops. Where the database contradicts the writer's decisions, a later run of the node, if any, has written
/// the contradicting rows.
fn stopped_by(engine: &impl Engine, session: &impl Session, error: WriteError) -> Failure {
    let fenced = match error {
        WriteError::Inconsistent(_) => session.check_fence().err(),
        _ => None,
    };
    failure_of(engine, fenced.map_or(error, WriteError::Engine))
}

fn failure_of(engine: &impl Engine, error: WriteError) -> Failure {
    let problem = match error {
        WriteError::Engine(error) | WriteError::Row(RowError::Engine(error)) => {
            return engine.failure(error);
        }
        WriteError::Stopped(failure) => return failure,
        WriteError::Refused(refusal) => refusal.to_string(),
        WriteError::Inconsistent(problem) | WriteError::Row(RowError::Damaged(problem)) => problem,
        WriteError::Row(RowError::Unknown { what, value }) => format!("{what} is `{value}`"),
    };
    Failure {
        kind: FailureKind::Inconsistent,
        message: Arc::from(format!(
            "the ledger in `{}` contradicts the decisions in memory: {problem}; start again and run `tollgate audit`",
            engine.name()
        )),
    }
}

/// Notifies the observers, then the waiting callers.
pub(super) fn acknowledge(shared: &Shared, items: &mut Vec<Item>, answers: Answers) {
    let observers = shared.observers();
    for (item, answer) in items.iter().zip(&answers) {
        let Ok(receipt) = answer else { continue };
        let effect = match receipt.repeated {
            None => Effect::Applied,
            Some(operation) => Effect::Repeated { operation },
        };
        for part in item.unit.parts() {
            let effect = match part {
                Part::Ledger(part) if !part.is_credit() => continue,
                Part::Ledger(_) => effect,
                _ => Effect::Applied,
            };
            for observer in &observers {
                observer.committed(part, effect);
            }
        }
    }
    for (item, answer) in items.drain(..).zip(answers) {
        (item.done)(answer.map_err(CommitError::Refused));
    }
}

#[cfg(test)]
mod tests;
