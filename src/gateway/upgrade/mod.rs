//! Upgrade: a new process takes over sockets and store while this process ends its open requests.
//!
//! The first three steps can fail without an effect:
//!
//! 1. This process starts the program with a connection as the standard input, and sends the listening sockets.
//! 2. The new process reads its settings, opens sockets that this process does not have, and reports that the new process is ready.
//! 3. New requests wait. Requests not forwarded yet end within a short time, or are refused with 503 when they need credit. The whole queue
//!    is committed.
//! 4. The remaining holds are made durable, the store is closed, and the locks of the store are sent.
//! 5. The new process opens the store, accepts connections, and reports that the new process serves.
//! 6. Waiting requests, and the next request on each connection open here, are relayed to the new process (`crate::proxy`). The ends of
//!    open requests are sent to the new process as units of work (`tollgate_store::Successor`). When no request is open any more, this
//!    process ends.
//!
//! A new process that fails after step 4 leaves this process without a store. This process ends with an error, and its supervisor starts
//! the gateway again.

mod followed;
mod link;
mod predecessor;

use std::ffi::OsString;
use std::io;
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::BoxFuture;
use parking_lot::{Mutex, MutexGuard};
use rustix::process::{Pid, Signal, kill_process};
use tokio::runtime::Handle;
use tokio::sync::watch;
use tokio::task::AbortHandle;
use tollgate_clock::Entropy;
use tollgate_ledger::Ledger;
use tollgate_money::AccountId;
use tollgate_purchase::PurchaseTasks;
use tollgate_store::{Failure, Handover, Outage, Store, SuccessorLink, flush, reading};

use self::followed::wait_for_end;
pub(super) use self::followed::{Earlier, Followed};
pub(super) use self::link::Sockets;
use self::link::{EarlierRun, Link, Message, STEP_TIMEOUT, VARIABLE};
pub(super) use self::predecessor::AdoptedAdmin;
pub use self::predecessor::PredecessorError;
pub(crate) use self::predecessor::{Predecessor, is_started_by_predecessor};
use super::service_manager;
use crate::admin::{AdminSockets, Upgrade, Upgraded};
use crate::config::ListenAddress;
use crate::proxy::{ListenSocket, Proxy, SocketFile, TOKEN_BYTES, Target};
use crate::telemetry;

/// How long the gate is closed for purchases, and for requests undecided by the filters, until the upgrade is given up.
const DECISIONS: Duration = Duration::from_secs(2);

/// For how long purchases under way are waited for before the gate is closed.
const PURCHASES: Duration = Duration::from_secs(20);

/// Time limit for commits before the gate is closed. Most of the commits are periodic records since the last interval.
const RECORDS: Duration = Duration::from_secs(10);

/// Time limit for commits while the gate is closed.
const COMMITS: Duration = Duration::from_secs(2);

/// Time limits for the database, after which the database counts as not answering: for a read, and for the next renewal of the lease.
const READ: Duration = Duration::from_secs(2);
const RENEWAL: Duration = Duration::from_secs(5);

/// Interval at which a wait checks its condition.
const POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Why no upgrade took place.
#[derive(Debug, thiserror::Error)]
pub(crate) enum UpgradeError {
    #[error("an upgrade is under way or done")]
    Busy,
    #[error(
        "the gateway is process 1 of its container, which stops with it; start a container with the new program"
    )]
    FirstProcess,
    #[error("could not start `{program}`; name the program with `--program`", program = program.display())]
    Start {
        program: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the new process ended: {0}")]
    Failed(String),
    #[error("the new process did not answer; its log shows the cause")]
    Link(#[source] io::Error),
    #[error("a stop was requested")]
    Stopped,
    #[error("a purchase is under way; try again when it is complete")]
    Purchase,
    #[error("the database does not answer; try again when it does")]
    Database,
    #[error("could not share a listening socket")]
    Sockets(#[source] io::Error),
    #[error("the store has stopped")]
    Store(#[source] Failure),
    #[error(
        "the new process failed after the store was closed: {0}; this process ends, start the gateway again"
    )]
    Lost(String),
}

/// Writes the periodic records.
pub(super) type Record = Box<dyn Fn() -> BoxFuture<'static, ()> + Send + Sync>;

/// Whether a stop was requested, and the connection to a new process that a stop still ends.
#[derive(Default)]
pub(super) struct StopRequest {
    is_made: bool,
    link: Option<UnixStream>,
}

/// The process id in place of an ended successor's id: no process has this id, so that no signal is sent.
const ENDED: u32 = 0;

/// The process number of the first process of a container, or of a machine.
const FIRST_PROCESS: u32 = 1;

/// Whether an upgrade is under way or done.
#[derive(Clone, Default)]
pub(super) struct UpgradeState {
    /// Locked while an upgrade is under way; set when the upgrade is done.
    is_done: Arc<Mutex<bool>>,
}

impl UpgradeState {
    /// Whether an upgrade is under way, or done: the new process has read the settings, or soon will.
    pub(super) fn has_begun(&self) -> bool {
        self.is_done.try_lock().is_none_or(|is_done| *is_done)
    }
}

/// A new process that can take over.
struct Prepared {
    /// The address at which the new process accepts relayed requests.
    address: SocketAddr,
    /// Whether the new process can serve the processes before this process.
    serves_earlier: bool,
}

/// The parts of this process that an upgrade changes.
pub(super) struct Upgrader {
    pub(super) proxy: Arc<Proxy>,
    pub(super) store: Arc<dyn Store>,
    /// The database. The successor must name an equal database.
    pub(super) database: String,
    /// The node, which the successor must name too; empty without several nodes.
    pub(super) node: String,
    pub(super) ledger: Ledger,
    pub(super) purchase_tasks: PurchaseTasks,
    pub(super) runtime: Handle,
    pub(super) entropy: Entropy,
    /// The sockets of the listeners, with their addresses in the settings. The system accepts connections as long as any of the sockets is
    /// open.
    pub(super) listeners: Mutex<Vec<(ListenAddress, ListenSocket)>>,
    /// The files of Unix sockets among the listeners.
    pub(super) files: Vec<SocketFile>,
    /// Set when the admin interface has started.
    pub(super) admin: Mutex<Option<AdminSockets>>,
    /// Tasks that write to the store.
    pub(super) tasks: Mutex<Vec<AbortHandle>>,
    pub(super) record: Record,
    /// The new process, once it serves.
    pub(super) successor: watch::Sender<Option<u32>>,
    pub(super) state: UpgradeState,
    pub(super) stop: Mutex<StopRequest>,
    /// The program of this process at its start.
    pub(super) program: io::Result<PathBuf>,
    /// The processes whose requests end through this process.
    pub(super) followed: Arc<Followed>,
}

impl Upgrader {
    fn run(&self, program: Option<&Path>) -> Result<Upgraded, UpgradeError> {
        if std::process::id() == FIRST_PROCESS {
            return Err(UpgradeError::FirstProcess);
        }
        let Some(mut is_done) = self.state.is_done.try_lock() else {
            return Err(UpgradeError::Busy);
        };
        if *is_done {
            return Err(UpgradeError::Busy);
        }
        let mut token = [0; TOKEN_BYTES];
        token.copy_from_slice(&self.entropy.bytes::<TOKEN_BYTES>());
        // The new process would wait for the database, and report another cause.
        self.read_database()?;
        let began = self.store.outage().map(Outage::now);
        let (mut child, link) = self.start(program)?;
        let prepared = match self.make_ready(&link, &token, began) {
            Ok(prepared) => prepared,
            Err(error) => {
                end(&mut child);
                return Err(match self.is_stop_requested() {
                    true => UpgradeError::Stopped,
                    false => error,
                });
            }
        };
        // The point of no return. Until here an error has no effect. From here on only the new process can write, and an error ends this
        // process.
        *is_done = true;
        tracing::info!("handing the store over to the new process");
        // Before the store is closed: messages of the earlier processes are committed here.
        let earlier = match prepared.serves_earlier {
            true => self.followed.pass_on(),
            false => Vec::new(),
        };
        let handed = self
            .hand_over()
            .and_then(|handover| self.complete(&link, &handover, &earlier).map(|()| handover));
        let handover = match handed {
            Ok(handover) => handover,
            Err(error) => {
                end(&mut child);
                // Waiting requests are answered with an error before this process ends.
                self.proxy.open_gate();
                return Err(error);
            }
        };
        // Without the watched connection the end of the new process is still seen, but the end of a later process is not.
        let watched = link.0.try_clone();
        handover.forward(Box::new(SuccessorLink(link.0)));
        let address = prepared.address;
        self.proxy.relay_to(Target { address, token });
        service_manager::main_process(child.id());
        if let Some(admin) = &*self.admin() {
            admin.release();
        }
        let (process, open) = (child.id(), self.proxy.open_exchanges());
        self.successor.send_replace(Some(process));
        self.watch_successor(child, watched.ok());
        Ok(Upgraded { process, open })
    }

    /// Ends this process when the new process ends first: no process accepts connections after its end. A new process that has handed over
    /// in turn has passed the connection on. This process waits for the end of the passed connection.
    fn watch_successor(&self, mut child: Child, link: Option<UnixStream>) {
        let (store, runtime) = (self.store.clone(), self.runtime.clone());
        let successor = self.successor.clone();
        let watch = move || {
            let ended = child.wait();
            // The system may give the process id to any other process.
            successor.send_replace(Some(ENDED));
            tracing::warn!(?ended, "the new process has ended");
            if let Some(link) = link {
                wait_for_end(&link);
            }
            // This empty commit cannot reach any process, and the failed commit stops the store.
            let _ = runtime.block_on(flush(&*store));
        };
        let thread = std::thread::Builder::new().name(String::from("successor"));
        if let Err(error) = thread.spawn(watch) {
            tracing::warn!(%error, "not watching the new process");
        }
    }

    /// Everything before the point of no return. `began` is when the upgrade has begun, by
    /// the clock of the lease.
    fn make_ready(
        &self,
        link: &Link,
        token: &[u8],
        began: Option<Duration>,
    ) -> Result<Prepared, UpgradeError> {
        self.stop().link = Some(link.0.try_clone().map_err(UpgradeError::Link)?);
        if self.is_stop_requested() {
            return Err(UpgradeError::Stopped);
        }
        let prepared = self.prepare(link, token)?;
        self.wait_for_purchases()?;
        self.commit_all(RECORDS)?;
        if let Some(began) = began {
            self.wait_for_renewal(began)?;
        }
        self.proxy.close_gate();
        let settled = self.settle().and_then(|()| {
            let mut stop = self.stop();
            match stop.is_made {
                true => Err(UpgradeError::Stopped),
                false => {
                    stop.link = None;
                    Ok(())
                }
            }
        });
        settled.inspect_err(|_| self.proxy.open_gate())?;
        Ok(prepared)
    }

    /// Ends an upgrade that has not handed over yet, and permits no further upgrade. An upgrade in its hand-over is completed, and the new
    /// process is requested to stop too. Returns whether the new process serves.
    pub(super) fn request_stop(&self) -> bool {
        {
            let mut stop = self.stop();
            stop.is_made = true;
            if let Some(link) = stop.link.take() {
                // The new process may have ended by itself.
                let _ = link.shutdown(Shutdown::Both);
            }
        }
        // Held until the upgrade has ended.
        drop(self.state.is_done.lock());
        let successor = *self.successor.borrow();
        if let Some(process) = successor.and_then(|process| Pid::from_raw(process.cast_signed())) {
            tracing::info!(process = %process, "requesting a stop of the new process");
            if let Err(error) = kill_process(process, Signal::TERM) {
                tracing::warn!(%error, "requesting a stop of the new process failed");
            }
        }
        successor.is_some()
    }

    /// Requests a stop of the earlier processes that still have connections. The earlier processes close their idle connections.
    pub(super) fn stop_predecessors(&self) {
        for process in self.followed.processes() {
            if let Err(error) = kill_process(process, Signal::TERM) {
                tracing::warn!(%process, %error, "requesting a stop of the predecessor failed");
            }
        }
    }

    fn stop(&self) -> MutexGuard<'_, StopRequest> {
        self.stop.lock()
    }

    fn is_stop_requested(&self) -> bool {
        self.stop().is_made
    }

    pub(super) fn set_admin(&self, sockets: Option<AdminSockets>) {
        *self.admin() = sockets;
    }

    /// Closes the listening sockets kept for a successor.
    pub(super) fn close_listeners(&self) {
        self.listeners().clear();
    }

    /// Removes the files of Unix sockets, unless a successor uses the files.
    pub(super) fn remove_files(&self) {
        self.files.iter().for_each(SocketFile::remove);
    }

    fn listeners(&self) -> MutexGuard<'_, Vec<(ListenAddress, ListenSocket)>> {
        self.listeners.lock()
    }

    fn tasks(&self) -> MutexGuard<'_, Vec<AbortHandle>> {
        self.tasks.lock()
    }

    /// Adds a task that writes to the store.
    pub(super) fn add_task(&self, task: AbortHandle) {
        self.tasks().push(task);
    }

    fn admin(&self) -> MutexGuard<'_, Option<AdminSockets>> {
        self.admin.lock()
    }

    /// Starts the program as this process was started.
    fn start(&self, program: Option<&Path>) -> Result<(Child, Link), UpgradeError> {
        let own = self.program.as_ref();
        let program = match (program, own) {
            (Some(program), _) => program.to_owned(),
            (None, Ok(own)) => own.clone(),
            (None, Err(error)) => {
                return Err(UpgradeError::Start {
                    program: PathBuf::from("/proc/self/exe"),
                    source: io::Error::new(error.kind(), error.to_string()),
                });
            }
        };
        let failed = |source| UpgradeError::Start {
            program: program.clone(),
            source,
        };
        let (link, theirs) = UnixStream::pair().map_err(failed)?;
        let arguments: Vec<OsString> = std::env::args_os().skip(1).collect();
        let child = Command::new(&program)
            .args(arguments)
            .env(VARIABLE, "1")
            // The watchdog expects messages of the main process, whatever its number is.
            .env_remove("WATCHDOG_PID")
            .stdin(Stdio::from(OwnedFd::from(theirs)))
            .spawn()
            .map_err(failed)?;
        tracing::info!(program = %program.display(), process = child.id(), "started the new process of an upgrade");
        Ok((child, Link(link)))
    }

    /// Sends the sockets, and waits until the new process is ready for the store.
    fn prepare(&self, link: &Link, token: &[u8]) -> Result<Prepared, UpgradeError> {
        let sockets = self.sockets().map_err(UpgradeError::Sockets)?;
        let address = sockets.relay.local_addr().map_err(UpgradeError::Sockets)?;
        let message = Message::Sockets {
            listeners: sockets
                .listeners
                .iter()
                .map(|(address, _)| address.clone())
                .collect(),
            admin: sockets.admin.0,
            token: base16ct::lower::encode_string(token),
            store: self.database.clone(),
            node: Some(self.node.clone()),
        };
        link.0
            .set_read_timeout(Some(STEP_TIMEOUT))
            .and_then(|()| link.send(&message, &sockets.files()))
            .map_err(UpgradeError::Link)?;
        let Message::Prepared { serves_earlier } = answer(link)? else {
            return Err(unexpected());
        };
        tracing::info!("the new process is ready to take over");
        Ok(Prepared {
            address,
            serves_earlier,
        })
    }

    fn sockets(&self) -> io::Result<Sockets> {
        let share = |(address, socket): &(ListenAddress, ListenSocket)| {
            Ok((address.clone(), socket.try_clone()?))
        };
        let admin = self.admin();
        let admin = admin
            .as_ref()
            .ok_or_else(|| io::Error::other("the gateway has not started yet"))?;
        Ok(Sockets {
            listeners: self
                .listeners()
                .iter()
                .map(share)
                .collect::<io::Result<_>>()?,
            relay: TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?,
            admin: (admin.address, admin.http.try_clone()?),
            control: admin.control.try_clone()?,
        })
    }

    fn wait_for_purchases(&self) -> Result<(), UpgradeError> {
        let idle = || self.purchase_tasks.running() == 0;
        if !idle() {
            tracing::info!(
                purchases = self.purchase_tasks.running(),
                limit = ?PURCHASES,
                "waiting for purchases under way before the upgrade"
            );
        }
        match self.wait_until(PURCHASES, idle) {
            true => Ok(()),
            false => Err(UpgradeError::Purchase),
        }
    }

    /// Waits, with the gate closed, until work under way writes only the ends of holds, and every other write is durable.
    fn settle(&self) -> Result<(), UpgradeError> {
        let undecided = || self.proxy.undecided_exchanges();
        if !self.wait_until(DECISIONS, || undecided() == 0) && !self.is_stop_requested() {
            tracing::warn!(
                requests = undecided(),
                "upgrading while requests are received or answered here: those that need credit are refused with 503"
            );
        }
        if !self.wait_until(DECISIONS, || self.purchase_tasks.running() == 0) {
            return Err(UpgradeError::Purchase);
        }
        self.commit_all(COMMITS)?;
        // The queue may have been empty; this read checks the database.
        self.read_database()
    }

    /// Reads something from the database.
    fn read_database(&self) -> Result<(), UpgradeError> {
        let any = AccountId::from_bytes([0; 16]);
        let read = reading(&self.store, move |store| store.account(any));
        let read = self
            .runtime
            .block_on(async { tokio::time::timeout(READ, read).await });
        match read {
            Ok(Ok(_)) => Ok(()),
            _ => Err(UpgradeError::Database),
        }
    }

    /// Waits until the database has renewed the lease since the begin of the upgrade. A full database answers, but writes nothing.
    fn wait_for_renewal(&self, began: Duration) -> Result<(), UpgradeError> {
        let outage = self.store.outage();
        let is_renewed = || outage.is_none_or(|outage| outage.has_renewed_since(began));
        match self.wait_until(RENEWAL, is_renewed) {
            true => Ok(()),
            false => Err(UpgradeError::Database),
        }
    }

    /// Commits the periodic records and the whole queue. The hand-over of the store has no time limit. The upgrade therefore does not begin
    /// the hand-over with a database that does not answer.
    fn commit_all(&self, limit: Duration) -> Result<(), UpgradeError> {
        let commits = async {
            (self.record)().await;
            flush(&*self.store).await
        };
        let committed = self
            .runtime
            .block_on(async { tokio::time::timeout(limit, commits).await });
        if let Some(failure) = self.store.failure() {
            return Err(UpgradeError::Store(failure));
        }
        let is_cut_off = self.store.outage().is_some_and(Outage::is_cut_off);
        match committed {
            Ok(Ok(())) if !is_cut_off => Ok(()),
            _ => Err(UpgradeError::Database),
        }
    }

    /// `false` when the condition was not reached in time, or a stop was requested before.
    fn wait_until(&self, limit: Duration, is_reached: impl Fn() -> bool) -> bool {
        let reached = async {
            while !is_reached() {
                if self.is_stop_requested() {
                    return false;
                }
                tokio::time::sleep(POLL_INTERVAL).await;
            }
            true
        };
        self.runtime
            .block_on(async { tokio::time::timeout(limit, reached).await == Ok(true) })
    }

    /// Sends the locks of the store and the connections of earlier processes, and waits until the new process serves.
    fn complete(
        &self,
        link: &Link,
        handover: &Handover,
        earlier: &[Earlier],
    ) -> Result<(), UpgradeError> {
        let message = Message::Store {
            epoch: self.store.earliest_epoch(),
            run: Some(self.store.epoch()),
            earlier: earlier.iter().map(EarlierRun::from).collect(),
        };
        let locks = handover.files.iter().map(AsFd::as_fd);
        let connections = earlier.iter().flat_map(Earlier::files);
        let files: Vec<_> = locks.chain(connections).collect();
        let served = link
            .send(&message, &files)
            .map_err(UpgradeError::Link)
            .and_then(|()| match answer(link)? {
                Message::Serving => Ok(()),
                _ => Err(unexpected()),
            })
            .and_then(|()| link.0.set_read_timeout(None).map_err(UpgradeError::Link));
        served.map_err(|error| UpgradeError::Lost(telemetry::chain(&error)))
    }

    fn hand_over(&self) -> Result<Handover, UpgradeError> {
        self.purchase_tasks.close();
        for task in self.tasks().drain(..) {
            task.abort();
        }
        self.ledger.hand_over();
        self.store.hand_over().map_err(UpgradeError::Store)
    }
}

impl Upgrade for Upgrader {
    fn upgrade(&self, program: Option<&Path>) -> Result<Upgraded, String> {
        let upgraded = self.run(program);
        match &upgraded {
            Ok(upgraded) => tracing::info!(
                process = upgraded.process,
                open = upgraded.open,
                "the new process serves, ending the open requests"
            ),
            Err(error) => {
                tracing::error!(cause = %telemetry::chain(error), "upgrade failed");
            }
        }
        upgraded.map_err(|error| telemetry::chain(&error))
    }
}

/// The next message of the new process.
fn answer(link: &Link) -> Result<Message, UpgradeError> {
    match link.receive().map_err(UpgradeError::Link)? {
        (Message::Failed { problem }, _) => Err(UpgradeError::Failed(problem)),
        (message, _) => Ok(message),
    }
}

fn unexpected() -> UpgradeError {
    UpgradeError::Failed(String::from("it sent an unexpected message"))
}

/// Ends a new process that does not take over.
fn end(child: &mut Child) {
    // The process may have ended by itself.
    let _ = child.kill();
    let _ = child.wait();
}
