//! Tasks of purchases, tracked so that a graceful shutdown waits for their end.
//!
//! A purchase runs in a separate task, independent of the buyer's request, and may be between the provider call that moves money and the
//! commit of the record. After a crash at this point, reconciliation in the next run recovers the purchase. A graceful shutdown waits for
//! the tracked tasks within the grace period.

use std::future::Future;

use tokio::runtime::Handle;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

/// Spawns and tracks the tasks of purchases. Cheap to clone; shared by the processors.
#[derive(Clone, Debug)]
pub struct PurchaseTasks {
    runtime: Handle,
    tracker: TaskTracker,
}

impl PurchaseTasks {
    /// A tracker without tasks on this runtime.
    pub fn new(runtime: Handle) -> PurchaseTasks {
        PurchaseTasks {
            runtime,
            tracker: TaskTracker::new(),
        }
    }

    /// Spawns a task for a buyer, even after [`PurchaseTasks::close`]. Tracked until the end of the task, including a panic or an abort.
    pub fn spawn<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.tracker.spawn_on(work, &self.runtime)
    }

    /// Admits a round of background work, such as reconciliation of due rows; tracked until the token is dropped. `None` after
    /// [`PurchaseTasks::close`]: the next run does the work.
    pub fn background(&self) -> Option<TaskTrackerToken> {
        // The token before the check: a concurrent close waits for the token.
        let token = self.tracker.token();
        (!self.tracker.is_closed()).then_some(token)
    }

    /// Admits no more background work.
    pub fn close(&self) {
        self.tracker.close();
    }

    /// Closes, and waits until no task is running.
    pub async fn wait(&self) {
        self.tracker.close();
        self.tracker.wait().await;
    }

    /// Number of running tasks and rounds.
    pub fn running(&self) -> usize {
        self.tracker.len()
    }
}

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;

    #[tokio::test]
    async fn a_shutdown_waits_for_buyers_tasks_and_admits_no_background_work() {
        let tasks = PurchaseTasks::new(Handle::current());
        let (release, released) = oneshot::channel::<()>();
        let task = tasks.spawn(async move { released.await.expect("the test releases it") });
        let round = tasks.background().expect("not closed");
        assert_eq!(tasks.running(), 2);
        tasks.close();
        assert!(tasks.background().is_none(), "closed");
        assert_eq!(tasks.running(), 2, "a refused round is not tracked");
        let late = tasks.spawn(async { 7 });
        assert_eq!(late.await.expect("a buyer's task still runs"), 7);
        drop(round);
        let ended = tasks.wait();
        tokio::pin!(ended);
        tokio::select! {
            biased;
            () = &mut ended => panic!("a task is running"),
            () = tokio::task::yield_now() => {}
        }
        release.send(()).expect("the task waits");
        ended.await;
        task.await.expect("it has ended");
        assert_eq!(tasks.running(), 0);
    }

    #[tokio::test]
    async fn a_task_that_panics_or_is_aborted_is_no_longer_tracked() {
        let tasks = PurchaseTasks::new(Handle::current());
        let panicked = tasks.spawn(async { panic!("a bug") });
        let aborted = tasks.spawn(std::future::pending::<()>());
        aborted.abort();
        tasks.wait().await;
        assert!(panicked.await.is_err());
    }
}
