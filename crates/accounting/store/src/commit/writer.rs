//! Group commit: the single writer thread, which owns the writing connection.

use std::fs::File;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicI64};
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard, RwLock};

use super::batch::Batch;
use super::serve::{acknowledge, derive_days, post, serve};
use crate::engine::{Engine, RowError, Session as _, WriteError};
use crate::error::{CommitError, Failure, FailureKind, SubmitError};
use crate::gauges::Gauges;
use crate::handover::{Handover, Successor, is_forwarded};
use crate::node_settings::{NodeSettings, OtherSettings};
use crate::outage::Outage;
use crate::queue::Queue;
use crate::reader::OpenedStore;
use crate::rows::RootSecret;
use crate::spool::{Spool, SpooledUnit};
use crate::store::{Observer, Store, Submit};
use crate::threads;
use crate::unit::{Done, UnitOfWork};

/// Interval at which a close checks whether the writer still waits for the database.
const CLOSE_INTERVAL: Duration = Duration::from_millis(50);

/// The writer's state shared with other threads.
pub(crate) struct Shared {
    pub(crate) queue: Arc<Queue>,
    pub(crate) gauges: Arc<Gauges>,
    pub(crate) observers: RwLock<Vec<Arc<dyn Observer>>>,
    /// Whether other nodes' changes are passed to the observers.
    pub(crate) is_followed: AtomicBool,
    /// The number of the last change passed to the observers; 0 before the store is open.
    pub(crate) feed_number: AtomicI64,
    /// `Some` for a database that may not answer.
    pub(crate) outage: Option<Arc<Outage>>,
    pub(crate) spool: Option<Arc<Spool>>,
    pub(crate) node_settings: NodeSettings,
    handover: Mutex<Option<HandoverRequest>>,
    on_failure: Box<dyn Fn(&Failure) + Send + Sync>,
}

impl Shared {
    pub(crate) fn new(queue_max: usize, on_failure: Box<dyn Fn(&Failure) + Send + Sync>) -> Shared {
        let gauges = Arc::<Gauges>::default();
        Shared {
            queue: Arc::new(Queue::new(queue_max, Arc::clone(&gauges))),
            gauges,
            observers: RwLock::default(),
            is_followed: AtomicBool::new(false),
            feed_number: AtomicI64::new(0),
            outage: None,
            spool: None,
            node_settings: NodeSettings::default(),
            handover: Mutex::default(),
            on_failure,
        }
    }

    pub(crate) fn observers(&self) -> Vec<Arc<dyn Observer>> {
        self.observers.read().clone()
    }

    /// The writer waits for its database from now on.
    pub(super) fn wait_begins(&self) {
        if let Some(outage) = &self.outage {
            outage.commit_began();
        }
    }

    pub(super) fn wait_ended(&self) {
        if let Some(outage) = &self.outage {
            outage.commit_ended();
        }
    }

    fn handover(&self) -> MutexGuard<'_, Option<HandoverRequest>> {
        self.handover.lock()
    }

    /// Stops the store for good. Only the first failure is reported.
    pub(crate) fn fail(&self, failure: Failure) {
        if self.queue.fail(failure.clone()) {
            (self.on_failure)(&failure);
        }
    }
}

/// A request to close the database for a successor.
struct HandoverRequest {
    /// Receives the files whose locks the successor takes over.
    closed: SyncSender<Vec<File>>,
    successor: Receiver<Box<dyn Successor>>,
}

/// Settings of the writer.
pub(crate) struct Settings {
    pub(crate) node: i64,
    pub(crate) epoch: i64,
    /// The epoch of the run that has handed the store over and still serves requests, if any.
    pub(crate) predecessor: Option<i64>,
    /// Maximum number of units in one commit.
    pub(crate) batch_max: usize,
    /// Number of records from which on a posting is due, for any number of accounts.
    pub(crate) post_records: usize,
    pub(crate) monotonic_us: Box<dyn Fn() -> u64 + Send>,
    pub(crate) root_secret: RootSecret,
}

/// The handle of the writer.
pub(crate) struct Writing {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
    /// Disconnected when the thread has ended.
    ended: Mutex<Receiver<()>>,
    node: i64,
    epoch: i64,
    predecessor: Option<i64>,
    root_secret: RootSecret,
}

/// Why the writer was not started.
pub(crate) enum StartError {
    Row(RowError),
    Write(WriteError),
    Failure(Failure),
    Thread(std::io::Error),
}

/// Loads the state of the previous run, posts its unposted rows once, so that readers need not, and starts the writer's thread.
pub(crate) fn start<E: Engine>(
    engine: E,
    shared: Arc<Shared>,
    settings: Settings,
) -> Result<Writing, StartError> {
    let Settings {
        node,
        epoch,
        predecessor,
        batch_max,
        post_records,
        monotonic_us,
        root_secret,
    } = settings;
    let mut session = engine.session().map_err(StartError::Failure)?;
    let mut batch =
        Batch::load(session.sql(), node, epoch, post_records).map_err(StartError::Row)?;
    derive_days(&mut session, &shared.gauges).map_err(StartError::Write)?;
    post(&mut session, &mut batch, &shared.gauges).map_err(StartError::Write)?;
    drop(session);
    let writer = Arc::clone(&shared);
    let (running, ended) = sync_channel(0);
    let thread = threads::spawn("store", move || {
        let _running: SyncSender<()> = running;
        run(&writer, engine, batch, batch_max.max(1), &*monotonic_us);
    })
    .map_err(StartError::Thread)?;
    Ok(Writing {
        shared,
        thread: Mutex::new(Some(thread)),
        ended: Mutex::new(ended),
        node,
        epoch,
        predecessor,
        root_secret,
    })
}

impl Writing {
    fn hand_over(&self) -> Result<Handover, Failure> {
        let (closed, files) = sync_channel(1);
        let (to, successor) = sync_channel(1);
        let request = HandoverRequest { closed, successor };
        if let Some(spool) = &self.shared.spool {
            spool.hand_over();
        }
        *self.shared.handover() = Some(request);
        let stopped = || self.shared.queue.failure().unwrap_or_else(Failure::closed);
        if !self.shared.queue.change_writer() {
            return Err(stopped());
        }
        let files = files.recv().map_err(|_| stopped())?;
        Ok(Handover { files, to })
    }

    fn close(&self) {
        self.shared.queue.stop(Failure {
            kind: FailureKind::Closed,
            message: Arc::from("the store was closed"),
        });
        let thread = self.thread.lock().take();
        // The last owner may be a callback on the writer's own thread; the thread then ends without a join.
        let elsewhere = thread.filter(|thread| thread.thread().id() != std::thread::current().id());
        let Some(thread) = elsewhere else { return };
        if !self.wait_for_end() {
            return;
        }
        if threads::join(thread).is_err() {
            tracing::error!("store writer thread panicked");
        }
    }

    /// Waits until the writer has ended. `false` when the writer waits for a database that does not answer, and the spool has all of the
    /// writer's units.
    fn wait_for_end(&self) -> bool {
        let (Some(outage), Some(spool)) = (&self.shared.outage, &self.shared.spool) else {
            return true;
        };
        let ended = self.ended.lock();
        while let Err(RecvTimeoutError::Timeout) = threads::receive_within(&ended, CLOSE_INTERVAL) {
            if spool.is_in_use() && outage.is_unrenewed() && spool.has_all() {
                let (units, path) = spool.left();
                spool.leave();
                tracing::warn!(
                    units,
                    spool = path,
                    "stopped without the database: the next start of this node commits what is in its spool"
                );
                return false;
            }
        }
        true
    }
}

impl Drop for Writing {
    fn drop(&mut self) {
        self.close();
    }
}

impl Submit for OpenedStore<Writing> {
    fn submit(&self, unit: UnitOfWork, done: Done) -> Result<(), SubmitError> {
        let shared = &self.writing.shared;
        match &shared.spool {
            None => shared.queue.push(unit, done),
            Some(spool) => spool.submit(unit, done),
        }
    }
}

impl Store for OpenedStore<Writing> {
    fn admit(&self) -> Result<(), SubmitError> {
        self.writing.shared.queue.admit()
    }

    fn observe(&self, observer: Arc<dyn Observer>) {
        self.writing.shared.observers.write().push(observer);
    }

    fn follow_changes(&self) {
        self.writing.shared.is_followed.store(true, Relaxed);
    }

    fn is_leader(&self) -> bool {
        let outage = self.writing.shared.outage.as_deref();
        !self.has_allotments() || outage.is_some_and(Outage::is_leader)
    }

    fn node(&self) -> i64 {
        self.writing.node
    }

    fn epoch(&self) -> i64 {
        self.writing.epoch
    }

    fn earliest_epoch(&self) -> i64 {
        self.writing.predecessor.unwrap_or(self.writing.epoch)
    }

    fn root_secret(&self) -> RootSecret {
        self.writing.root_secret.clone()
    }

    fn gauges(&self) -> &Gauges {
        &self.writing.shared.gauges
    }

    fn replace_password(&self, password: Option<&[u8]>) {
        self.reader.connections.replace_password(password);
    }

    fn outage(&self) -> Option<&Outage> {
        self.writing.shared.outage.as_deref()
    }

    fn take_spooled(&self) -> Vec<SpooledUnit> {
        let spool = self.writing.shared.spool.as_ref();
        spool.map(|spool| spool.take_earlier()).unwrap_or_default()
    }

    fn spooled_is_durable(&self) {
        if let Some(spool) = &self.writing.shared.spool {
            spool.earlier_is_durable();
        }
    }

    fn record_settings(&self, digest: &str) {
        self.writing.shared.node_settings.record(digest);
    }

    fn other_settings(&self) -> Vec<OtherSettings> {
        self.writing.shared.node_settings.others()
    }

    fn failure(&self) -> Option<Failure> {
        self.writing.shared.queue.failure()
    }

    fn hand_over(&self) -> Result<Handover, Failure> {
        self.writing.hand_over()
    }

    fn close(&self) {
        self.writing.close();
    }
}

/// Commits until the queue stops, then closes the engine.
fn run<E: Engine>(
    shared: &Shared,
    engine: E,
    mut batch: Batch,
    batch_max: usize,
    monotonic_us: &dyn Fn() -> u64,
) {
    // A panic here would block all callers permanently.
    let ran = catch_unwind(AssertUnwindSafe(|| {
        serve(shared, &engine, &mut batch, batch_max, monotonic_us)
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
    let request = shared.handover().take();
    let stopped = shared.queue.failure();
    let request = request.filter(|_| stopped.is_none());
    shared.wait_begins();
    let files = engine.close(stopped.as_ref(), request.is_some());
    if let Some(request) = request {
        forward(shared, request, files, batch_max);
    }
}

/// Sends units to the successor until the queue stops. Without a successor, or when the successor no longer answers, the store has
/// failed. The process that has the database then decides about the open requests.
fn forward(shared: &Shared, request: HandoverRequest, files: Vec<File>, batch_max: usize) {
    let HandoverRequest { closed, successor } = request;
    // Without a receiver, no successor comes either.
    let _ = closed.send(files);
    let Ok(mut successor) = successor.recv() else {
        return shared.fail(Failure {
            kind: FailureKind::Closed,
            message: Arc::from("the database was closed for a process that did not take it over"),
        });
    };
    shared.queue.writer_changed();
    let mut items = Vec::with_capacity(batch_max);
    while shared.queue.take(batch_max, 0, &mut items) {
        let (mut sent, refused): (Vec<_>, Vec<_>) =
            items.drain(..).partition(|item| is_forwarded(&item.unit));
        for item in refused {
            (item.done)(Err(CommitError::Overloaded { waiting: 0 }));
        }
        let units: Vec<_> = sent.iter().map(|item| &item.unit).collect();
        match successor.commit(&units) {
            Ok(answers) => acknowledge(shared, &mut sent, answers),
            Err(failure) => {
                shared.queue.stop(failure.clone());
                for item in sent {
                    (item.done)(Err(CommitError::Stopped(failure.clone())));
                }
                return shared.fail(failure);
            }
        }
    }
}
