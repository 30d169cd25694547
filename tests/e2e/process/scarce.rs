//! How often the tests of scarce credit are repeated, and what else takes the processors meanwhile.
//!
//! `TOLLGATE_SCARCE_ROUNDS` is the number of rounds, 1 if it is not set. Where it is set, one more runs beside threads that take nine tenths of
//! the processors.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::thread;

use tollgate_testing::Answer;

use super::chaos::{number, print_line, setting};

const ROUNDS: &str = "TOLLGATE_SCARCE_ROUNDS";

/// Threads for each processor, so that one more has a tenth of it.
const THREADS: usize = 9;

/// The rounds of a test, each by its number and with what runs beside it.
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

/// Asserts that a request was refused until other nodes have answered, or the database has: on a busy machine a node may not have read for two
/// seconds what the others have changed.
pub(super) fn assert_may_be_repeated(answer: &Answer) {
    let code = answer.json()["error"]["code"].clone();
    let may = ["credit_unavailable", "store_unavailable"];
    assert!(may.iter().any(|may| code == *may), "{}", answer.text());
}

/// Takes the processors until it is dropped.
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
