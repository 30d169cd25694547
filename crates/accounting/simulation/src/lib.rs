//! A deterministic simulation of several nodes on one database, for tests. Threads take turns by a seed.
//!
//! The store itself runs, from the start of a node to the messages of the protocol on its connections. The layers below the store are
//! replaced: the socket (`network`), the server (`server` speaks the protocol; `database` is a model of PostgreSQL's behaviour), the clocks
//! of every process, and the scheduling of threads (the store's `threads.rs` asks for the [`Actor`] of the thread; `scheduler`). No program
//! has the crate: the store names it by a feature for tests.

mod actor;
mod database;
mod network;
mod process;
mod scheduler;
mod schema;
mod server;
mod sql;
mod value;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tollgate_clock::{Clock, Timestamp};

pub use self::actor::{Actor, Driving};
pub use self::network::connect;
use self::process::{Process, World};
pub use self::process::{Statement, Tamper};
use self::scheduler::Wait;
pub use self::schema::Schema;

/// The address of the simulated server.
pub const URL: &str = "postgres://tollgate@simulated/tollgate?sslmode=disable";

/// A run of the simulation. Cheap to clone.
#[derive(Clone)]
pub struct Simulation {
    world: Arc<World>,
}

/// A process of a run. Cheap to clone.
#[derive(Clone)]
pub struct SimulatedProcess {
    process: Arc<Process>,
}

impl Simulation {
    /// A run with an empty database. The timers of futures are the timers of a runtime. The caller advances the runtime's clock together
    /// with the run's clock.
    pub fn new(seed: u64, timers: tokio::runtime::Handle, schema: &Schema) -> Simulation {
        let world = Arc::new(World::new(seed, timers, schema));
        Simulation { world }
    }

    /// A new process, with its wall clock at `now`.
    pub fn process(&self, name: &str, now: Timestamp) -> SimulatedProcess {
        let mut processes = self.world.processes();
        let process = Process::new(&self.world, processes.len(), name, now);
        processes.push(Arc::clone(&process));
        SimulatedProcess { process }
    }

    /// Makes the current thread the driver, as a process whose network is never cut. To be called once.
    pub fn drive(&self, now: Timestamp) -> Driving {
        let driver = self.process("driver", now).process;
        *self.world.driver() = Some(Arc::clone(&driver));
        Actor::drive(&driver)
    }

    /// Makes a thread of a process the driver for a moment: the thread's reads take no part in the run.
    pub fn observe(&self) -> Driving {
        let driver = self.world.driver().clone();
        Actor::drive(&driver.expect("there is a driver"))
    }

    /// The time since the boot of every machine, in microseconds.
    pub fn now_us(&self) -> u64 {
        self.world.scheduler.now_us()
    }

    /// A random number below `end`.
    pub fn below(&self, end: u64) -> u64 {
        self.world.scheduler.below(end)
    }

    /// `true` with a probability of `permille` in a thousand.
    pub fn chance(&self, permille: u64) -> bool {
        self.world.scheduler.chance(permille)
    }

    /// Runs threads for `turns` turns, or until no thread can run; returns whether a thread ran.
    pub fn run(&self, turns: usize) -> bool {
        self.world.scheduler.run(turns)
    }

    /// Lets time pass.
    pub fn advance(&self, us: u64) {
        self.world.scheduler.advance(us);
        for process in &*self.world.processes() {
            if !process.has_stopped_clock.load(Relaxed) {
                process.hand.advance(Duration::from_micros(us));
            }
        }
        let now_us = self.now_us();
        let mut server = self.world.server();
        server.pass_time(now_us);
        self.world.report(&mut server);
    }

    /// The next time that an actor waits for.
    pub fn next_wake_us(&self) -> Option<u64> {
        self.world.scheduler.next_wake()
    }

    /// Sets how many of a thousand exchanges lose their connection.
    pub fn cut(&self, permille: u64) {
        self.world.cuts.store(permille, Relaxed);
    }

    /// Has `tamper` change statements on their way to the server.
    pub fn tamper(&self, tamper: Tamper) {
        self.world.server().tamper = Some(tamper);
    }

    /// Crashes and restarts the server.
    pub fn crash_database(&self) {
        self.note("the database crashes");
        let mut server = self.world.server();
        server.crash();
        self.world.report(&mut server);
    }

    /// Stalls the server for a while.
    pub fn stall_database(&self, us: u64) {
        self.note(&format!("the database stands still for {us} us"));
        let until_us = self.now_us() + us;
        self.world.server().stalled_until_us = until_us;
    }

    /// Whether the server still runs statements of a lost client.
    pub fn has_late_statements(&self) -> bool {
        self.world.server().has_orphans()
    }

    /// A committed number in the database.
    pub fn committed(&self, sql: &str) -> i64 {
        self.world.server().database.committed(sql)
    }

    /// Whether the database has violated an invariant.
    pub fn has_violations(&self) -> bool {
        !self.world.server().database.violations.is_empty()
    }

    /// The violated invariants of the database.
    pub fn violations(&self) -> Vec<String> {
        self.world.server().database.violations.clone()
    }

    /// Wakes the actors that wait at a place.
    pub fn notify(&self, place: usize) {
        self.world.scheduler.notify(place);
    }

    /// Adds a line to the trace.
    pub fn note(&self, line: &str) {
        self.world.scheduler.note(line);
    }

    /// The last lines of the trace, and a digest of the whole trace.
    pub fn trace(&self) -> (Vec<String>, u64) {
        self.world.scheduler.trace()
    }

    /// The names of actors that have not ended.
    pub fn waiting(&self) -> Vec<String> {
        self.world.scheduler.waiting()
    }

    /// Ends the run: joins the threads, which must have ended.
    pub fn join(&self) {
        self.world.scheduler.join();
        // Breaks the reference cycle of processes and run.
        self.world.processes().clear();
        *self.world.driver() = None;
    }
}

impl SimulatedProcess {
    /// Starts a thread of the process.
    pub fn spawn(&self, what: &str, body: impl FnOnce() + Send + 'static) {
        let started = self.process.start_actor(what, body);
        started.expect("a thread of the simulation");
    }

    /// The process's clock.
    pub fn clock(&self) -> &Clock {
        &self.process.clock
    }

    /// Sets the process's wall clock.
    pub fn set_wall_clock(&self, now: Timestamp) {
        self.process.hand.jump_to(now);
    }

    /// Stops the process (SIGSTOP), or continues the process.
    pub fn pause(&self, is_paused: bool) {
        let scheduler = &self.process.world.scheduler;
        scheduler.pause(self.process.number, is_paused);
    }

    /// Stops the process's monotonic clock, which should count the time of a suspension, or continues the clock.
    pub fn stop_clock(&self, is_stopped: bool) {
        self.process.has_stopped_clock.store(is_stopped, Relaxed);
    }

    /// Cuts the process's network for a while.
    pub fn cut_off(&self, us: u64) {
        let until_us = self.process.world.scheduler.now_us() + us;
        self.process.cut_off_until_us.store(until_us, Relaxed);
    }

    /// Calls `callback` once when the process loses a connection with a commit under way.
    pub fn on_lost_commit(&self, callback: impl FnOnce() + Send + 'static) {
        self.process.on_lost_commit.lock().push(Box::new(callback));
    }

    /// Ends the process (SIGKILL). The process's threads run on, and get an error from every call.
    pub fn kill(&self) {
        self.process.is_dead.store(true, Relaxed);
        self.process.has_stopped_clock.store(false, Relaxed);
        self.pause(false);
        self.process.world.scheduler.wake(self.process.number);
    }

    /// Whether every thread of the process has ended.
    pub fn has_ended(&self) -> bool {
        let scheduler = &self.process.world.scheduler;
        scheduler.has_ended(self.process.number)
    }
}

/// Lets other threads run, on a thread of a simulated process.
pub fn take_turns() {
    if let Some(actor) = Actor::current() {
        actor.wait(Wait::Turn);
    }
}

/// Waits on a thread of a simulated process for a notification at a place, at most until a time.
pub fn wait_at(place: usize, until_us: u64) {
    if let Some(actor) = Actor::current() {
        actor.wait(Wait::Notified(place, until_us));
    }
}
