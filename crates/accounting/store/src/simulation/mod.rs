//! A deterministic simulation of several nodes on one database: the store of this crate, with clock, network and server replaced, and threads
//! that take turns by a seed.
//!
//! What runs is the store itself, from the start of a node to the messages of the protocol on its connections. Replaced is what is below: the
//! socket (`network`), the server (`server` speaks its side of the protocol; `database` is a model of what PostgreSQL does), the clocks of each
//! process, and the scheduling of threads (`crate::threads` asks for the [`Actor`] of the thread; `scheduler`). See "Simulation" in the README.
//! For tests: a feature of the crate, which no program has.

mod actor;
mod database;
mod network;
mod process;
mod scheduler;
mod server;
mod sql;
mod value;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use tollgate_clock::{Clock, Timestamp};

pub(crate) use self::actor::Actor;
pub use self::actor::Driving;
pub(crate) use self::network::connect;
use self::process::{Process, World};
pub use self::process::{Statement, Tamper};
use self::scheduler::Wait;

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
    /// A run with an empty database. The timers of futures are those of a runtime whose clock the caller advances together with that of the run.
    pub fn new(seed: u64, timers: tokio::runtime::Handle) -> Simulation {
        let world = Arc::new(World::new(seed, timers));
        Simulation { world }
    }

    /// A new process, with its wall clock at `now`.
    pub fn process(&self, name: &str, now: Timestamp) -> SimulatedProcess {
        let mut processes = self.world.processes();
        let process = Process::new(&self.world, processes.len(), name, now);
        processes.push(Arc::clone(&process));
        SimulatedProcess { process }
    }

    /// Makes this thread the driver, as a process whose network is never cut. To be called once.
    pub fn drive(&self, now: Timestamp) -> Driving {
        let driver = self.process("driver", now).process;
        *self.world.driver() = Some(Arc::clone(&driver));
        Actor::drive(&driver)
    }

    /// Makes a thread of a process the driver for a moment: what it reads takes no part in the run.
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

    /// `true` so many times of a thousand.
    pub fn chance(&self, permille: u64) -> bool {
        self.world.scheduler.chance(permille)
    }

    /// Runs threads for so many turns, or until none can run; whether one did.
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

    /// The server crashes and is there again.
    pub fn crash_database(&self) {
        self.note("the database crashes");
        let mut server = self.world.server();
        server.crash();
        self.world.report(&mut server);
    }

    /// The server runs nothing for a while.
    pub fn stall_database(&self, us: u64) {
        self.note(&format!("the database stands still for {us} us"));
        let until_us = self.now_us() + us;
        self.world.server().stalled_until_us = until_us;
    }

    /// Whether the server still runs what a lost client has sent.
    pub fn has_late_statements(&self) -> bool {
        self.world.server().has_orphans()
    }

    /// A number in the database as it is committed.
    pub fn committed(&self, sql: &str) -> i64 {
        self.world.server().database.committed(sql)
    }

    /// Whether something has happened in the database that must never happen.
    pub fn has_violations(&self) -> bool {
        !self.world.server().database.violations.is_empty()
    }

    /// What must never happen in the database, and did.
    pub fn violations(&self) -> Vec<String> {
        self.world.server().database.violations.clone()
    }

    /// Lets those run that wait at a place.
    pub fn notify(&self, place: usize) {
        self.world.scheduler.notify(place);
    }

    /// Adds a line to the trace.
    pub fn note(&self, line: &str) {
        self.world.scheduler.note(line);
    }

    /// The last lines of the trace, and a digest of all of them.
    pub fn trace(&self) -> (Vec<String>, u64) {
        self.world.scheduler.trace()
    }

    /// The names of actors that have not ended.
    pub fn waiting(&self) -> Vec<String> {
        self.world.scheduler.waiting()
    }

    /// Ends the run: joins the threads, all of which have ended.
    pub fn join(&self) {
        self.world.scheduler.join();
        // They have the run, and the run has them.
        self.world.processes().clear();
        *self.world.driver() = None;
    }
}

impl SimulatedProcess {
    /// Starts a thread of this process.
    pub fn spawn(&self, what: &str, body: impl FnOnce() + Send + 'static) {
        let started = self.process.start_actor(what, body);
        started.expect("a thread of the simulation");
    }

    /// Its clock.
    pub fn clock(&self) -> &Clock {
        &self.process.clock
    }

    /// Sets its wall clock.
    pub fn set_wall_clock(&self, now: Timestamp) {
        self.process.hand.jump_to(now);
    }

    /// Stops the process (SIGSTOP), or continues it.
    pub fn pause(&self, is_paused: bool) {
        let scheduler = &self.process.world.scheduler;
        scheduler.pause(self.process.number, is_paused);
    }

    /// Stops its monotonic clock, which is to count the time of a suspension, or continues it.
    pub fn stop_clock(&self, is_stopped: bool) {
        self.process.has_stopped_clock.store(is_stopped, Relaxed);
    }

    /// Cuts its network for a while.
    pub fn cut_off(&self, us: u64) {
        let until_us = self.process.world.scheduler.now_us() + us;
        self.process.cut_off_until_us.store(until_us, Relaxed);
    }

    /// Calls `callback` once when the process loses a connection with a commit under way.
    pub fn on_lost_commit(&self, callback: impl FnOnce() + Send + 'static) {
        self.process.on_lost_commit.lock().push(Box::new(callback));
    }

    /// Ends the process (SIGKILL). Its threads run on, and get an error from everything.
    pub fn kill(&self) {
        self.process.is_dead.store(true, Relaxed);
        self.process.has_stopped_clock.store(false, Relaxed);
        self.pause(false);
        self.process.world.scheduler.wake(self.process.number);
    }

    /// Whether all its threads have ended.
    pub fn has_ended(&self) -> bool {
        let scheduler = &self.process.world.scheduler;
        scheduler.has_ended(self.process.number)
    }
}

/// Lets other threads run, on one of a simulated process.
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
