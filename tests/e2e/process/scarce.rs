//! The number of rounds for tests of scarce credit, and the additional load on the processors.
//!
//! `TOLLGATE_SCARCE_ROUNDS` is the number of rounds, by default 1. With the variable set, an additional round runs beside threads that take
//! nine tenths of the processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tollgate_testing::Answer;

use super::chaos::{number, print_line, setting};

const ROUNDS: &str = "TOLLGATE_SCARCE_ROUNDS";

/// Threads per processor: an additional thread has a tenth of the processor.
const THREADS: usize = 9;

/// The rounds of a test, by number, with the additional load.
pub(super) fn rounds() -> impl Iterator<Item = (u64, Option<BusyProcessors>)> {
    let idle = number(ROUNDS, 1);
    let busy = u64::from(setting(ROUNDS).is_some());
    (0..idle + busy).map(move |round| {
        let beside = (round >= idle).then(BusyProcessors::start);
        if let Some(beside) = &beside {
            print_line(format_args!(
                "round {round}, beside {} busy threads",
                beside.count
            ));
        }
        (round, beside)
    })
}

/// Asserts a refusal with a chance of success after answers of other nodes or of the database. On a busy machine a node may have no read of
/// other nodes' changes for two seconds.
pub(super) fn assert_may_be_repeated(answer: &Answer) {
    let code = answer.json()["error"]["code"].clone();
    let may = ["credit_unavailable", "store_unavailable"];
    assert!(may.iter().any(|may| code == *may), "{}", answer.text());
}

/// Takes the processors until the drop.
pub(super) struct BusyProcessors {
    stop: Arc<AtomicBool>,
    count: usize,
}

impl BusyProcessors {
    pub(super) fn start() -> BusyProcessors {
        let stop = Arc::new(AtomicBool::new(false));
        let processors = thread::available_parallelism().map_or(1, usize::from);
        let count = THREADS * processors;
        for _ in 0..count {
            let stop = Arc::clone(&stop);
            thread::spawn(move || {
                while !stop.load(Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        BusyProcessors { stop, count }
    }
}

impl Drop for BusyProcessors {
    fn drop(&mut self) {
        self.stop.store(true, Relaxed);
    }
}
