//! Checks that run concurrently, each with a time limit.

use std::future::Future;
use std::time::Duration;

use tollgate_clock::Clock;

use super::finding::Finding;

/// Time limit of a check. The longest check, a call to the facilitator, has a limit of five seconds itself.
const LIMIT: Duration = Duration::from_secs(10);

/// The checks under way, in the order in which their findings are printed.
pub(super) struct Checks {
    pub(super) clock: Clock,
    running: Vec<Running>,
}

enum Running {
    Known(Finding),
    Task(String, tokio::task::JoinHandle<Finding>),
}

impl Checks {
    pub(super) fn new(clock: &Clock) -> Checks {
        Checks {
            clock: clock.clone(),
            running: Vec::new(),
        }
    }

    /// Adds a finding that is known already.
    pub(super) fn known(&mut self, finding: Finding) {
        self.running.push(Running::Known(finding));
    }

    /// Starts a check that waits for another party.
    pub(super) fn start(
        &mut self,
        name: impl Into<String>,
        check: impl Future<Output = Finding> + Send + 'static,
    ) {
        let (name, clock) = (name.into(), self.clock.clone());
        let late = name.clone();
        let began = clock.elapsed();
        let task = tokio::spawn(async move {
            let ended = tokio::time::timeout(LIMIT, check).await;
            let mut finding = ended.unwrap_or_else(|_| {
                let text = format!("no result within {} seconds", LIMIT.as_secs());
                Finding::failed(late, text).remedy(
                    "see whether the other side, the network or the disk is overloaded or blocked by a firewall",
                )
            });
            finding.duration_ms = (clock.elapsed() - began).as_millis() as u64;
            finding
        });
        self.running.push(Running::Task(name, task));
    }

    /// Starts a check that blocks its thread.
    pub(super) fn start_blocking(
        &mut self,
        name: impl Into<String>,
        check: impl FnOnce() -> Finding + Send + 'static,
    ) {
        let name = name.into();
        let of = name.clone();
        self.start(name, async move {
            let ended = tokio::task::spawn_blocking(check).await;
            ended.unwrap_or_else(|error| Finding::failed(of, error.to_string()))
        });
    }

    /// Waits for every check.
    pub(super) async fn end(self) -> Vec<Finding> {
        let mut found = Vec::new();
        for one in self.running {
            found.push(match one {
                Running::Known(finding) => finding,
                Running::Task(name, task) => {
                    let ended = task.await;
                    ended.unwrap_or_else(|error| Finding::failed(name, error.to_string()))
                }
            });
        }
        found
    }
}

/// A duration in milliseconds, to a hundredth below ten.
pub(super) fn milliseconds(duration: Duration) -> String {
    let micros = duration.as_micros();
    match micros {
        0..10_000 => format!("{}.{:02} ms", micros / 1000, micros % 1000 / 10),
        micros => format!("{} ms", micros / 1000),
    }
}

/// Bytes in the unit that is usual for disks.
pub(super) fn gigabytes(bytes: u64) -> String {
    format!("{}.{} GB", bytes / 1_000_000_000, bytes / 100_000_000 % 10)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::doctor::finding::Status;

    #[test]
    fn durations_and_sizes_are_short() {
        for (micros, wanted) in [(0, "0.00 ms"), (1_239, "1.23 ms"), (12_345, "12 ms")] {
            assert_eq!(milliseconds(Duration::from_micros(micros)), wanted);
        }
        assert_eq!(gigabytes(79_123_456_789), "79.1 GB");
    }

    #[test]
    fn a_check_that_does_not_end_fails_at_its_limit_and_the_others_are_kept() {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .expect("a runtime");
        let found = runtime.block_on(async {
            let (clock, _) = Clock::manual(tollgate_clock::Timestamp::UNIX_EPOCH);
            let mut checks = Checks::new(&clock);
            checks.start("one", std::future::pending());
            checks.start("two", async { Finding::ok("two", "fine") });
            checks.start("three", async { panic!("of the test") });
            checks.end().await
        });
        let statuses: Vec<Status> = found.iter().map(|one| one.status).collect();
        assert_eq!(statuses, [Status::Failed, Status::Ok, Status::Failed]);
        assert_eq!(found[0].measured, "no result within 10 seconds");
    }
}
