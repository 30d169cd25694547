//! Group commit: the single writer thread, which owns the writing connection.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, PoisonError, RwLock};

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, Statement};

use super::batch::{Answers, Batch};
use super::checkpoint::{Checkpointer, checkpoint};
use super::failure::failure;
use super::fence::Fence;
use super::lock::Lock;
use super::statements::Statements;
use crate::engine::{RowError, WriteError};
use crate::error::{CommitError, Failure, FailureKind};
use crate::gauges::Gauges;
use crate::queue::{Item, Queue};
use crate::store::Observer;
use crate::unit::{Effect, Part};

/// A batch of this size means that requests arrive faster than commits finish.
const LOADED_BATCH: usize = 8;

/// The writer's state shared with other threads.
pub(crate) struct Shared {
    pub(crate) path: PathBuf,
    pub(crate) queue: Queue,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) observers: RwLock<Vec<Arc<dyn Observer>>>,
    /// The log should be restarted.
    pub(crate) log_is_long: AtomicBool,
    on_failure: Box<dyn Fn(&Failure) + Send + Sync>,
}

impl Shared {
    pub(crate) fn new(
        path: PathBuf,
        queue_max: usize,
        on_failure: Box<dyn Fn(&Failure) + Send + Sync>,
    ) -> Shared {
        let gauges = Arc::<Gauges>::default();
        Shared {
            path,
            queue: Queue::new(queue_max, Arc::clone(&gauges)),
            gauges,
            observers: RwLock::default(),
            log_is_long: AtomicBool::new(false),
            on_failure,
        }
    }

    /// Stops the store for good. Only the first failure is reported.
    pub(crate) fn fail(&self, failure: Failure) {
        if self.queue.fail(failure.clone()) {
            tracing::error!(failure = %failure, "store stopped");
            (self.on_failure)(&failure);
        }
    }
}

/// State of the writer thread alone.
pub(crate) struct Writer {
    pub(crate) shared: Arc<Shared>,
    pub(crate) connection: Connection,
    pub(crate) batch: Batch,
    pub(crate) batch_max: usize,
    pub(crate) monotonic_us: Box<dyn Fn() -> u64 + Send>,
    pub(crate) checkpointer: Checkpointer,
    pub(crate) fence: Arc<Fence>,
    /// Released last, when nothing in this process accesses the file any more.
    pub(crate) lock: Lock,
}

/// Number of waits for another program's lock, each for the busy time-out, before the writer gives up.
const BUSY_TRIES: usize = 12;

impl Writer {
    /// Commits until the queue stops, then cleans up.
    pub(crate) fn run(self) {
        let Writer {
            shared,
            connection,
            mut batch,
            batch_max,
            monotonic_us,
            checkpointer,
            fence,
            lock,
        } = self;
        // A panic here would block all callers permanently.
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let run = Run {
                shared: &shared,
                connection: &connection,
                fence: &fence,
                monotonic_us: &*monotonic_us,
            };
            serve(&run, &mut batch, batch_max)
        }));
        match ran {
            Ok(Ok(())) => {}
            Ok(Err(failure)) => shared.fail(failure),
            Err(_) => shared.fail(Failure {
                kind: FailureKind::Inconsistent,
                message: Arc::from(
                    "the writer violated an invariant; start again and run `tollgate audit`",
                ),
            }),
        }
        checkpointer.stop();
        if is_lost(&shared, &connection, &fence)
            && let Err(error) =
                connection.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
        {
            tracing::warn!(%error, "disabling the checkpoint at close failed");
        }
        if let Err((_, error)) = connection.close() {
            tracing::warn!(%error, "closing the database failed; the next start recovers it");
        }
        drop(lock);
    }
}

/// Whether the file is, or may be, no longer this process's to write. A clean close looks once more: it may have had nothing to commit.
fn is_lost(shared: &Shared, connection: &Connection, fence: &Fence) -> bool {
    let lost =
        |failure: Failure| matches!(failure.kind, FailureKind::Fenced | FailureKind::Replaced);
    let checked = fence
        .prepare(connection)
        .map_err(|error| failure(&shared.path, error))
        .and_then(|mut epoch| fence.check(&mut epoch));
    let is_refused = checked.as_ref().is_err_and(|failure| {
        tracing::warn!(%failure, "closing the database without a checkpoint");
        true
    });
    is_refused || shared.queue.failure().is_some_and(lost)
}

/// What a run of the writer commits with.
#[derive(Clone, Copy)]
struct Run<'r> {
    shared: &'r Shared,
    connection: &'r Connection,
    fence: &'r Fence,
    monotonic_us: &'r dyn Fn() -> u64,
}

fn serve(run: &Run<'_>, batch: &mut Batch, batch_max: usize) -> Result<(), Failure> {
    let Run {
        shared,
        connection,
        fence,
        monotonic_us,
    } = *run;
    let stopped = |error| failure(&shared.path, error);
    let mut statements = Statements::prepare(connection, fence).map_err(stopped)?;
    let mut items = Vec::with_capacity(batch_max);
    let mut acknowledged = 0;
    while shared.queue.take(batch_max, acknowledged, &mut items) {
        // Under load every additional commit costs more than the wait for a larger batch; a single unit is written at once.
        acknowledged = if items.len() >= LOADED_BATCH {
            items.len()
        } else {
            0
        };
        let began = monotonic_us();
        match commit(run, batch, &mut statements, &items) {
            Ok(answers) => {
                let gauges = &shared.gauges;
                gauges
                    .commit_us
                    .record(monotonic_us().saturating_sub(began));
                gauges.batch_size.record(items.len() as u64);
                gauges.folded.fetch_add(batch.coalesced, Relaxed);
                gauges.entries.fetch_add(batch.entries, Relaxed);
                acknowledge(shared, &mut items, answers);
                if shared.log_is_long.swap(false, Relaxed) {
                    let began = monotonic_us();
                    fence.check(&mut statements.epoch)?;
                    if checkpoint(connection).map_err(stopped)?.is_some() {
                        let us = monotonic_us().saturating_sub(began);
                        shared.gauges.checkpoint_us.record(us);
                    }
                }
            }
            Err(failure) => {
                // The queue stops before any caller of this batch is notified: a notified caller finds it stopped.
                shared.queue.stop(failure.clone());
                for item in items.drain(..) {
                    (item.done)(Err(CommitError::Stopped(failure.clone())));
                }
                return Err(failure);
            }
        }
    }
    drop(statements);
    // A disk that has failed in another operation is not touched.
    let is_closing = |failure: Failure| failure.kind == FailureKind::Closed;
    if shared.queue.failure().is_some_and(is_closing)
        && let Err(error) = post(connection, batch, fence)
    {
        // Everything is in the journal already.
        tracing::warn!(
            "posting balances failed, the next start posts them: {}",
            failure_of(shared, error)
        );
    }
    Ok(())
}

fn commit(
    run: &Run<'_>,
    batch: &mut Batch,
    statements: &mut Statements<'_>,
    items: &[Item],
) -> Result<Answers, Failure> {
    let Run {
        shared,
        connection,
        fence,
        monotonic_us,
    } = *run;
    let stopped = |error| failure(&shared.path, error);
    begin(shared, &mut statements.begin)?;
    // From here on no other writer of this log can increment the epoch before the commit.
    let fenced = fence.check(&mut statements.epoch);
    let answers = fenced
        .map_err(WriteError::Stopped)
        .and_then(|()| batch.write(connection, statements, items))
        .and_then(|answers| {
            let began = monotonic_us();
            if batch.is_due(began) {
                batch.post(connection)?;
                let us = monotonic_us().saturating_sub(began);
                shared.gauges.posting_us.record(us);
            }
            Ok(answers)
        })
        .map_err(|error| {
            // The engine may have rolled back already.
            let _ = connection.execute_batch("ROLLBACK");
            failure_of(shared, error)
        })?;
    statements.commit.execute([]).map_err(stopped)?;
    Ok(answers)
}

fn failure_of(shared: &Shared, error: WriteError) -> Failure {
    match error {
        WriteError::Engine(error) | WriteError::Row(RowError::Engine(error)) => {
            failure(&shared.path, error)
        }
        WriteError::Row(RowError::Damaged(problem)) => inconsistent(shared, &problem),
        WriteError::Row(RowError::Unknown { what, value }) => {
            inconsistent(shared, &format!("{what} is `{value}`"))
        }
        WriteError::Refused(refusal) => inconsistent(shared, &refusal.to_string()),
        WriteError::Inconsistent(problem) => inconsistent(shared, &problem),
        WriteError::Stopped(failure) => failure,
    }
}

/// Posts the unposted records, in a separate transaction.
pub(crate) fn post(
    connection: &Connection,
    batch: &mut Batch,
    fence: &Fence,
) -> Result<(), WriteError> {
    if !batch.has_unposted() {
        return Ok(());
    }
    let mut epoch = fence.prepare(connection)?;
    connection.execute_batch("BEGIN IMMEDIATE")?;
    fence
        .check(&mut epoch)
        .map_err(WriteError::Stopped)
        .and_then(|()| batch.post(connection))
        .and_then(|()| Ok(connection.execute_batch("COMMIT")?))
        .inspect_err(|_| {
            let _ = connection.execute_batch("ROLLBACK");
        })
}

/// Starts a transaction. Nothing has been written yet, so another program's lock can be waited for.
fn begin(shared: &Shared, begin: &mut Statement<'_>) -> Result<(), Failure> {
    let mut tries = 0;
    loop {
        match begin.execute([]) {
            Ok(_) => return Ok(()),
            Err(error) => {
                tries += 1;
                let busy = error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy);
                if !busy || tries == BUSY_TRIES {
                    return Err(failure(&shared.path, error));
                }
                tracing::warn!(
                    "waiting for the database lock: another program holds it, and nothing is written until it is released"
                );
            }
        }
    }
}

/// Notifies the observers, then the waiting callers.
fn acknowledge(shared: &Shared, items: &mut Vec<Item>, answers: Answers) {
    let observers = shared
        .observers
        .read()
        .unwrap_or_else(PoisonError::into_inner)
        .clone();
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

fn inconsistent(shared: &Shared, problem: &str) -> Failure {
    Failure {
        kind: FailureKind::Inconsistent,
        message: Arc::from(format!(
            "the ledger in `{}` contradicts the decisions in memory: {problem}; start again and run `tollgate audit`",
            shared.path.display()
        )),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicU64;

    use tollgate_clock::Timestamp;
    use tollgate_money::{AccountId, Micros, OperationId};

    use super::*;
    use crate::entries::LedgerPart;
    use crate::gauges::Histogram;
    use crate::sqlite::{Options, file};
    use crate::unit::{Admission, UnitOfWork};
    use crate::{CacheScope, EntryKind, NewAccount, RootSecret};

    const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);

    fn new_account() -> Part {
        Part::CreateAccount(Box::new(NewAccount {
            id: ACCOUNT,
            class: Arc::from("free"),
            cache_scope: CacheScope::Shared,
            credit_limit: Micros::ZERO,
            created_at: Timestamp::from_micros(1),
        }))
    }

    fn grant(number: u8) -> Part {
        Part::Ledger(LedgerPart::Credit {
            operation: OperationId::from_bytes([number; 16]),
            account: ACCOUNT,
            kind: EntryKind::Grant,
            amount: Micros::new(1),
            reference: Arc::from(number.to_string()),
            at: Timestamp::from_micros(1),
        })
    }

    /// No unit is committed meanwhile, so both are measured.
    #[test]
    fn a_posting_and_the_writers_own_checkpoint_are_timed() {
        /// The step of the clock at every reading.
        const STEP_US: u64 = 1000;
        let timed = |histogram: &Histogram| (histogram.count(), histogram.sum());
        //   records, worth posting, whether the log is long, postings, checkpoints
        for (records, post_records, log_is_long, postings, checkpoints) in [
            (0, 1, false, 0, 0),
            (1, 1, false, 1, 0),
            (1, 1, true, 1, 1),
            (1, 2, true, 0, 1),
            (2, 2, false, 1, 0),
        ] {
            let folder = tempfile::tempdir().expect("a folder");
            let path = folder.path().join("t.db");
            let options = Options::new(Timestamp::from_micros(1), RootSecret([7; 32]));
            file::create_if_missing(&path, &options).expect("a new file");
            let fence = Fence::new(&path, options.node).expect("it is there");
            let connection = file::connect(&path, &options).expect("it opens");
            let raised = file::raise_epoch(&connection, &path, &options).expect("the first run");
            let fence = fence.with_epoch(raised, true);
            let mut batch = Batch::load(&connection, options.node, raised.epoch, post_records)
                .expect("an empty ledger");
            let shared = Shared::new(path, 8, Box::new(|_| {}));
            let parts = std::iter::once(new_account()).chain((1..=records).map(grant));
            shared
                .queue
                .push(
                    UnitOfWork::of_all(parts, Admission::Always),
                    Box::new(|answer| assert!(answer.is_ok(), "{answer:?}")),
                )
                .expect("an open queue");
            shared.queue.stop(Failure {
                kind: FailureKind::Closed,
                message: Arc::from("no more units"),
            });
            shared.log_is_long.store(log_is_long, Relaxed);
            let now_us = AtomicU64::new(0);
            let clock = || now_us.fetch_add(STEP_US, Relaxed);
            let run = Run {
                shared: &shared,
                connection: &connection,
                fence: &fence,
                monotonic_us: &clock,
            };
            serve(&run, &mut batch, 8).expect("it is written");
            let case = format!("{records} of {post_records}, {log_is_long}");
            let gauges = &shared.gauges;
            let posted = timed(&gauges.posting_us);
            assert_eq!(posted, (postings, postings * STEP_US), "{case}");
            let moved = timed(&gauges.checkpoint_us);
            assert_eq!(moved, (checkpoints, checkpoints * STEP_US), "{case}");
            // From the first clock reading to the last one, including those of a posting between them.
            let committed = timed(&gauges.commit_us);
            assert_eq!(committed, (1, (2 + postings) * STEP_US), "{case}");
        }
    }
}
