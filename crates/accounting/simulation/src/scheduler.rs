//! The scheduler: one thread at a time runs, and the seed decides the next thread.

use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::{JoinHandle, ThreadId};

use parking_lot::{Condvar, Mutex, MutexGuard};

/// Maximum number of kept lines of the trace.
const TRACE_MAX: usize = 600;

/// Pseudo-random numbers that follow from a seed: SplitMix64.
#[derive(Clone, Debug)]
pub(super) struct Random(u64);

impl Random {
    pub(super) fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.next_u64() % end.max(1)
    }
}

/// The condition that a thread waits for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Wait {
    /// The thread's turn.
    Turn,
    /// A time.
    Until(u64),
    /// A notification at a place, or a time.
    Notified(usize, u64),
    /// The end of an actor.
    End(usize),
    Ended,
}

struct Waiting {
    name: String,
    process: usize,
    wait: Wait,
    turn: Arc<Condvar>,
    thread: Option<JoinHandle<()>>,
    id: Option<ThreadId>,
}

struct State {
    random: Random,
    now_us: u64,
    actors: Vec<Waiting>,
    /// The running actor; `None` while the driver runs.
    running: Option<usize>,
    /// Turns until the driver runs.
    turns: usize,
    /// Processes stopped by SIGSTOP.
    paused: Vec<usize>,
    trace: VecDeque<String>,
    /// Of all lines of the trace.
    digest: u64,
}

impl State {
    /// An actor that can run.
    fn pick(&mut self) -> Option<usize> {
        let is_ready = |actor: &Waiting| {
            !self.paused.contains(&actor.process)
                && match actor.wait {
                    Wait::Turn => true,
                    Wait::Until(at) | Wait::Notified(_, at) => at <= self.now_us,
                    Wait::End(_) | Wait::Ended => false,
                }
        };
        let numbers = || (0..self.actors.len()).filter(|it| is_ready(&self.actors[*it]));
        let count = numbers().count() as u64;
        if count == 0 {
            return None;
        }
        let mut random = self.random.clone();
        let chosen = numbers().nth(random.below(count) as usize);
        self.random = random;
        chosen
    }
}

/// Threads that take turns, their clock, and the trace of a run.
pub(super) struct Scheduler {
    state: Mutex<State>,
    driver: Condvar,
}

impl Scheduler {
    pub(super) fn new(seed: u64) -> Scheduler {
        Scheduler {
            state: Mutex::new(State {
                random: Random(seed),
                now_us: 1_000_000,
                actors: Vec::new(),
                running: None,
                turns: 0,
                paused: Vec::new(),
                trace: VecDeque::new(),
                digest: seed,
            }),
            driver: Condvar::new(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn now_us(&self) -> u64 {
        self.lock().now_us
    }

    pub(super) fn below(&self, end: u64) -> u64 {
        self.lock().random.below(end)
    }

    /// `true` with a probability of `permille` in a thousand.
    pub(super) fn chance(&self, permille: u64) -> bool {
        self.below(1000) < permille
    }

    pub(super) fn advance(&self, us: u64) {
        self.lock().now_us += us;
    }

    pub(super) fn note(&self, line: &str) {
        let mut state = self.lock();
        let line = format!("{:>12} {line}", state.now_us);
        for byte in line.bytes() {
            state.digest = (state.digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        }
        if state.trace.len() == TRACE_MAX {
            state.trace.pop_front();
        }
        state.trace.push_back(line);
    }

    pub(super) fn trace(&self) -> (Vec<String>, u64) {
        let state = self.lock();
        (state.trace.iter().cloned().collect(), state.digest)
    }

    pub(super) fn pause(&self, process: usize, is_paused: bool) {
        let mut state = self.lock();
        state.paused.retain(|paused| *paused != process);
        if is_paused {
            state.paused.push(process);
        }
    }

    /// Adds an actor; `start` starts the actor's thread with the actor's number.
    pub(super) fn add(
        &self,
        name: String,
        process: usize,
        start: impl FnOnce(usize) -> std::io::Result<JoinHandle<()>>,
    ) -> std::io::Result<usize> {
        let mut state = self.lock();
        let number = state.actors.len();
        state.actors.push(Waiting {
            name,
            process,
            wait: Wait::Turn,
            turn: Arc::default(),
            thread: None,
            id: None,
        });
        let thread = start(number)?;
        state.actors[number].id = Some(thread.thread().id());
        state.actors[number].thread = Some(thread);
        Ok(number)
    }

    /// Hands the thread of an actor to the caller that will join the thread.
    pub(super) fn take_thread(&self, actor: usize) -> Option<JoinHandle<()>> {
        self.lock().actors[actor].thread.take()
    }

    pub(super) fn actor_of(&self, thread: ThreadId) -> Option<usize> {
        self.lock()
            .actors
            .iter()
            .position(|actor| actor.id == Some(thread))
    }

    /// Blocks an actor's thread until the actor's turn.
    pub(super) fn until_turn(&self, actor: usize) {
        drop(self.turn(self.lock(), actor));
    }

    fn turn<'s>(&'s self, mut state: MutexGuard<'s, State>, actor: usize) -> MutexGuard<'s, State> {
        let turn = Arc::clone(&state.actors[actor].turn);
        turn.wait_while(&mut state, |state| state.running != Some(actor));
        state
    }

    /// Ends the turn of the running actor until the actor is chosen again.
    pub(super) fn wait(&self, actor: usize, wait: Wait) {
        let mut state = self.lock();
        state.actors[actor].wait = wait;
        self.next_turn(&mut state);
        drop(self.turn(state, actor));
    }

    /// Gives the turn to an actor that can run, or to the driver.
    fn next_turn(&self, state: &mut State) {
        state.running = None;
        if state.turns > 0 {
            state.turns -= 1;
            state.running = state.pick();
        }
        match state.running {
            Some(actor) => state.actors[actor].turn.notify_one(),
            None => self.driver.notify_one(),
        };
    }

    /// The last turn of an actor.
    pub(super) fn end(&self, actor: usize) {
        let mut state = self.lock();
        state.actors[actor].wait = Wait::Ended;
        for waiting in &mut state.actors {
            if waiting.wait == Wait::End(actor) {
                waiting.wait = Wait::Turn;
            }
        }
        self.next_turn(&mut state);
    }

    pub(super) fn has_actor_ended(&self, actor: usize) -> bool {
        self.lock().actors[actor].wait == Wait::Ended
    }

    /// Wakes the actors that wait for a notification at a place.
    pub(super) fn notify(&self, place: usize) {
        for waiting in &mut self.lock().actors {
            if matches!(waiting.wait, Wait::Notified(at, _) if at == place) {
                waiting.wait = Wait::Turn;
            }
        }
    }

    /// Lets all actors of a process check their conditions.
    pub(super) fn wake(&self, process: usize) {
        for waiting in &mut self.lock().actors {
            let is_waiting = !matches!(waiting.wait, Wait::Ended | Wait::End(_));
            if waiting.process == process && is_waiting {
                waiting.wait = Wait::Turn;
            }
        }
    }

    /// Runs actors for `turns` turns, or until no actor can run; returns whether an actor ran.
    pub(super) fn run(&self, turns: usize) -> bool {
        let mut state = self.lock();
        state.turns = turns;
        self.next_turn(&mut state);
        let has_run = state.running.is_some();
        self.driver
            .wait_while(&mut state, |state| state.running.is_some());
        has_run
    }

    /// The next time that an actor waits for.
    pub(super) fn next_wake(&self) -> Option<u64> {
        let state = self.lock();
        let at = |actor: &Waiting| match actor.wait {
            _ if state.paused.contains(&actor.process) => None,
            Wait::Until(at) | Wait::Notified(_, at) if at != u64::MAX => Some(at),
            _ => None,
        };
        state.actors.iter().filter_map(at).min()
    }

    /// The names of actors that have not ended.
    pub(super) fn waiting(&self) -> Vec<String> {
        let state = self.lock();
        let waits = |actor: &&Waiting| actor.wait != Wait::Ended;
        let names = state.actors.iter().filter(waits);
        names.map(|actor| actor.name.clone()).collect()
    }

    /// Whether all actors of a process have ended.
    pub(super) fn has_ended(&self, process: usize) -> bool {
        let state = self.lock();
        let mut of_process = state.actors.iter().filter(|it| it.process == process);
        of_process.all(|actor| actor.wait == Wait::Ended)
    }

    /// Waits for the threads of actors that have ended.
    pub(super) fn join(&self) {
        let threads: Vec<_> = {
            let mut state = self.lock();
            let ended = |actor: &&mut Waiting| actor.wait == Wait::Ended;
            let actors = state.actors.iter_mut().filter(ended);
            actors.filter_map(|actor| actor.thread.take()).collect()
        };
        for thread in threads {
            // The panicking thread has reported the panic.
            let _ = thread.join();
        }
    }
}
