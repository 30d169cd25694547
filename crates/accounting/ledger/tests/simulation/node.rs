//! A node of a run: the process from the start to the end of its store, and its requests.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::Timestamp;
use tollgate_ledger::Ledger;
use tollgate_simulation::{SimulatedProcess, Simulation, URL, take_turns, wait_at};
use tollgate_store::postgres::{
    self, DatabaseUrl, NodeRole, Options, SpoolOptions, Submitter, open_intercepted,
};
use tollgate_store::{
    ChangeRow, Effect, Failure, Observer, OpenError, OutageTimes, Part, ReadError, RootSecret,
    Store,
};

/// Interval between returns of the credit of idle accounts.
const IDLE_US: u64 = 5_000_000;

/// The times of an outage, shorter than in the service: a run has many events.
fn times() -> OutageTimes {
    OutageTimes {
        lease: Duration::from_secs(2),
        admits_for: Duration::from_millis(1_400),
        spool_after: Duration::from_millis(200),
        grace: Duration::from_secs(6),
        margin: Duration::from_secs(3),
    }
}

pub(crate) type Request = Pin<Box<dyn Future<Output = ()> + Send>>;

/// An open store and its ledger.
#[derive(Clone)]
pub(crate) struct Running {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) ledger: Ledger,
    pub(crate) changes: Arc<Changes>,
}

/// The numbers of the changes passed to a node.
pub(crate) struct Changes {
    /// The last change before the node read its accounts.
    pub(crate) after: i64,
    seen: Mutex<Vec<i64>>,
}

impl Changes {
    /// Whether the node was passed this change or a later change.
    pub(crate) fn has_seen(&self, number: i64) -> bool {
        self.after >= number || self.seen().iter().any(|seen| *seen >= number)
    }

    /// The last change passed to the node, or present before.
    pub(crate) fn last(&self) -> i64 {
        let last = self.seen().iter().copied().max();
        last.unwrap_or(self.after).max(self.after)
    }

    pub(crate) fn seen(&self) -> MutexGuard<'_, Vec<i64>> {
        lock(&self.seen)
    }
}

impl Observer for Changes {
    fn committed(&self, _: &Part, _: Effect) {}

    fn changed(&self, change: &ChangeRow) -> Result<(), ReadError> {
        self.seen().push(change.number);
        Ok(())
    }
}

/// The progress of a run.
#[derive(Clone, Default)]
pub(crate) enum Life {
    #[default]
    Starting,
    Up(Running),
    Ended(String),
}

/// State shared by a run and its driver.
#[derive(Default)]
pub(crate) struct Run {
    pub(crate) life: Mutex<Life>,
    pub(crate) failure: Mutex<Option<Failure>>,
    requests: Mutex<Vec<Request>>,
    /// The number of open requests.
    pub(crate) open: Mutex<usize>,
    pub(crate) is_ending: AtomicBool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock()
}

impl Run {
    pub(crate) fn life(&self) -> Life {
        lock(&self.life).clone()
    }

    pub(crate) fn ask(&self, sim: &Simulation, request: Request) {
        *lock(&self.open) += 1;
        lock(&self.requests).push(request);
        sim.notify(self.place());
    }

    /// Makes the node end at its next poll.
    pub(crate) fn end(&self, sim: &Simulation) {
        self.is_ending.store(true, Relaxed);
        sim.notify(self.place());
    }

    /// The wait place of the main thread.
    fn place(&self) -> usize {
        std::ptr::from_ref(self).addr()
    }

    pub(crate) fn open(&self) -> usize {
        *lock(&self.open)
    }

    pub(crate) fn failure(&self) -> Option<Failure> {
        lock(&self.failure).clone()
    }
}

/// Parameters of a process.
#[derive(Clone)]
pub(crate) struct Start {
    pub(crate) sim: Simulation,
    pub(crate) process: SimulatedProcess,
    pub(crate) name: &'static str,
    pub(crate) role: NodeRole,
    pub(crate) spool: Option<SpoolOptions>,
    pub(crate) submitter: Option<Submitter>,
}

impl Start {
    fn now(&self) -> Timestamp {
        self.process.clock().now()
    }

    pub(crate) fn open(&self, run: &Arc<Run>) -> Result<Arc<dyn Store>, OpenError> {
        let url = DatabaseUrl::parse(URL).expect("an address");
        let monotonic = self.process.clock().clone();
        let noting = Arc::clone(run);
        let options = Options {
            node_name: String::from(self.name),
            role: self.role,
            post_records: 7,
            monotonic_us: Arc::new(move || monotonic.elapsed().as_micros() as u64),
            outage: times(),
            clock: self.process.clock().clone(),
            spool: self.spool.clone(),
            on_failure: Box::new(move |failure| {
                lock(&noting.failure).get_or_insert(failure.clone());
            }),
            ..Options::new(url, self.now(), RootSecret([7; 32]))
        };
        match &self.submitter {
            None => postgres::open(options),
            Some(submitter) => open_intercepted(options, Arc::clone(submitter)),
        }
    }

    fn start(&self, run: &Arc<Run>) -> Result<Running, String> {
        let store = self.open(run).map_err(|error| error.to_string())?;
        let after = self
            .sim
            .committed("SELECT number FROM cluster WHERE id = 1");
        let (ledger, _) =
            Ledger::start(Arc::clone(&store), self.now()).map_err(|error| error.to_string())?;
        let changes = Arc::new(Changes {
            after,
            seen: Mutex::default(),
        });
        store.observe(Arc::clone(&changes) as Arc<dyn Observer>);
        store.follow_changes();
        Ok(Running {
            store,
            ledger,
            changes,
        })
    }

    /// The main thread of a node.
    pub(crate) fn run(&self, run: &Arc<Run>) {
        let running = match self.start(run) {
            Ok(running) => running,
            Err(error) => {
                *lock(&run.life) = Life::Ended(error);
                return;
            }
        };
        self.sim.note(&format!("{} is up", self.name));
        *lock(&run.life) = Life::Up(running.clone());
        self.serve(run, &running);
        running.ledger.return_all();
        running.store.close();
        *lock(&run.life) = Life::Ended(String::from("closed"));
    }

    /// Polls the requests until the node ends.
    fn serve(&self, run: &Run, running: &Running) {
        let mut requests: Vec<(Request, Arc<Ready>)> = Vec::new();
        let mut idle_us = self.sim.now_us() + IDLE_US;
        let place = run.place();
        while !run.is_ending.load(Relaxed) {
            for request in std::mem::take(&mut *lock(&run.requests)) {
                let ready = Ready {
                    is: AtomicBool::new(true),
                    sim: self.sim.clone(),
                    place,
                };
                requests.push((request, Arc::new(ready)));
            }
            let ready: Vec<usize> = (0..requests.len())
                .filter(|index| requests[*index].1.is.load(Relaxed))
                .collect();
            if ready.is_empty() {
                wait_at(place, idle_us);
            } else {
                let chosen = ready[self.sim.below(ready.len() as u64) as usize];
                let (request, flag) = &mut requests[chosen];
                flag.is.store(false, Relaxed);
                let waker = Waker::from(Arc::clone(flag));
                if let Poll::Ready(()) = request.as_mut().poll(&mut Context::from_waker(&waker)) {
                    drop(requests.swap_remove(chosen));
                    *lock(&run.open) -= 1;
                }
                take_turns();
            }
            if self.sim.now_us() >= idle_us {
                idle_us = self.sim.now_us() + IDLE_US;
                for part in 0..Ledger::PARTS {
                    running.ledger.return_idle(part, self.now());
                }
                running.ledger.evict_idle();
            }
        }
        // No client waits for an answer of an ended process.
        lock(&run.requests).clear();
    }

    /// The main thread of a process that recovers a node.
    pub(crate) fn recover(&self, run: &Arc<Run>) {
        let opened = self.open(run).map_err(|error| error.to_string());
        let recovered = opened.and_then(|store| {
            Ledger::recover_node(store, self.now(), None).map_err(|error| error.to_string())
        });
        *lock(&run.life) = Life::Ended(match recovered {
            Ok(_) => String::new(),
            Err(error) => error,
        });
    }
}

/// Whether a request can go on.
struct Ready {
    is: AtomicBool,
    sim: Simulation,
    place: usize,
}

impl Wake for Ready {
    fn wake(self: Arc<Self>) {
        self.is.store(true, Relaxed);
        self.sim.notify(self.place);
    }
}
