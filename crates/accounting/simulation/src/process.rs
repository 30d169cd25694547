//! The members of a run: a scheduler, a server, and processes with separate clocks.

use std::io;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::{Clock, ManualClock, Timestamp};

use super::actor;
use super::scheduler::Scheduler;
use super::schema::Schema;
use super::server::{RELEASED, Server};

/// A statement on its way to the server.
#[derive(Clone, Copy, Debug)]
pub struct Statement<'s> {
    /// The process that has sent the statement.
    pub process: &'s str,
    /// The statement's text, with parameters as `?1`.
    pub sql: &'s str,
    /// Whether the statement belongs to a transaction of several statements.
    pub is_in_transaction: bool,
    /// The number of the last change of the cluster.
    pub change: i64,
}

/// Changes statements on their way to the server: fault injection by a test.
pub type Tamper = Box<dyn FnMut(Statement<'_>) -> Option<String> + Send>;

/// The state shared by the processes of a run.
pub(super) struct World {
    pub(super) scheduler: Arc<Scheduler>,
    server: Mutex<Server>,
    /// The timers of futures, on the clock of a runtime that the driver advances.
    pub(super) timers: tokio::runtime::Handle,
    /// How many of a thousand exchanges lose their connection.
    pub(super) cuts: AtomicU64,
    pub(super) processes: Mutex<Vec<Arc<Process>>>,
    driver: Mutex<Option<Arc<Process>>>,
}

impl World {
    pub(super) fn new(seed: u64, timers: tokio::runtime::Handle, schema: &Schema) -> World {
        World {
            scheduler: Arc::new(Scheduler::new(seed)),
            server: Mutex::new(Server::new(schema)),
            timers,
            cuts: AtomicU64::new(0),
            processes: Mutex::default(),
            driver: Mutex::default(),
        }
    }

    pub(super) fn server(&self) -> MutexGuard<'_, Server> {
        self.server.lock()
    }

    /// Passes on the lines and notifications of a server after a statement.
    pub(super) fn report(&self, server: &mut Server) {
        for line in server.lines.drain(..) {
            self.scheduler.note(&line);
        }
        if std::mem::take(&mut server.has_released) {
            self.scheduler.notify(RELEASED);
        }
    }

    pub(super) fn driver(&self) -> MutexGuard<'_, Option<Arc<Process>>> {
        self.driver.lock()
    }

    pub(super) fn processes(&self) -> MutexGuard<'_, Vec<Arc<Process>>> {
        self.processes.lock()
    }
}

/// A process.
pub(super) struct Process {
    pub(super) world: Arc<World>,
    pub(super) number: usize,
    pub(super) name: String,
    /// The process has ended: its threads get an error from every call.
    pub(super) is_dead: AtomicBool,
    pub(super) clock: Clock,
    pub(super) hand: ManualClock,
    /// The clock stands while the process does, as CLOCK_MONOTONIC does on a suspended machine.
    pub(super) has_stopped_clock: AtomicBool,
    /// The end of the network's cut.
    pub(super) cut_off_until_us: AtomicU64,
    /// Called when the process loses a connection with a commit under way.
    pub(super) on_lost_commit: Mutex<Vec<Box<dyn FnOnce() + Send>>>,
}

impl Process {
    pub(super) fn new(
        world: &Arc<World>,
        number: usize,
        name: &str,
        now: Timestamp,
    ) -> Arc<Process> {
        let (clock, hand) = Clock::manual(now);
        // Since the boot, which all processes share.
        let booted = world.scheduler.now_us();
        hand.advance(Duration::from_micros(booted));
        hand.jump_to(now);
        Arc::new(Process {
            world: Arc::clone(world),
            number,
            name: name.to_owned(),
            is_dead: AtomicBool::new(false),
            clock,
            hand,
            has_stopped_clock: AtomicBool::new(false),
            cut_off_until_us: AtomicU64::new(0),
            on_lost_commit: Mutex::default(),
        })
    }

    /// Starts a thread, which runs when its turn comes; returns the thread's number.
    pub(super) fn start_actor(
        self: &Arc<Self>,
        what: &str,
        body: impl FnOnce() + Send + 'static,
    ) -> io::Result<usize> {
        let name = format!("{} {what}", self.name);
        let process = Arc::clone(self);
        let start =
            |number| std::thread::Builder::new().spawn(move || actor::run(process, number, body));
        self.world.scheduler.add(name, self.number, start)
    }

    pub(super) fn note(&self, line: &str) {
        self.world.scheduler.note(&format!("{}: {line}", self.name));
    }

    /// When the network of the process and the server answer again; `None` when both answer now.
    pub(super) fn unreachable_until_us(&self) -> Option<u64> {
        let now_us = self.world.scheduler.now_us();
        let stalled_us = self.world.server().stalled_until_us;
        let until_us = stalled_us.max(self.cut_off_until_us.load(Relaxed));
        (until_us > now_us).then_some(until_us)
    }
}
