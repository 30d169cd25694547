//! Health of the facilitator by periodic checks and failed calls. An offer without a chance of settlement is not shown.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use parking_lot::Mutex;
use tokio::sync::Notify;
use tollgate_clock::Clock;

use super::facilitator::{CallError, Facilitator, Operation, Response, supports};

/// How long a good result counts.
const FRESH: Duration = Duration::from_secs(30);

/// Interval of the health check: twice within the time for which a good result counts.
const CHECK_INTERVAL: Duration = Duration::from_secs(12);

/// The facilitator and its health.
pub(super) struct WatchedFacilitator {
    facilitator: Arc<dyn Facilitator>,
    network: String,
    health: Health,
    /// Notified when a failed call of a buyer has suspended offers: the health check runs at once.
    check_now: Notify,
}

impl WatchedFacilitator {
    pub(super) fn new(
        facilitator: Arc<dyn Facilitator>,
        clock: Clock,
        network: &str,
    ) -> WatchedFacilitator {
        WatchedFacilitator {
            facilitator,
            network: network.to_owned(),
            health: Health::new(clock),
            check_now: Notify::new(),
        }
    }

    /// Whether offers may be shown: a recent health check lists our scheme and network.
    pub(super) fn is_healthy(&self) -> bool {
        self.health.is_healthy()
    }

    /// Makes a call. A failure suspends offers until a health check, run at once, succeeds.
    pub(super) async fn call(
        &self,
        operation: Operation,
        body: Bytes,
    ) -> Result<Response, CallError> {
        let response = self.facilitator.call(operation, body).await;
        match &response {
            Err(error) => {
                // Health checks run every few seconds: an outage is logged once.
                if operation != Operation::Supported || self.health.last_result() != Some(false) {
                    tracing::warn!(operation = operation.word(), %error, "facilitator call failed");
                }
            }
            Ok(response) if response.status >= 500 && operation == Operation::Verify => {}
            Ok(_) => return response,
        }
        self.health.record(false);
        if operation != Operation::Supported {
            self.check_now.notify_one();
        }
        response
    }

    /// Runs health checks until the future is dropped.
    pub(super) async fn run_checks(&self) {
        loop {
            self.check().await;
            let pause = tokio::time::sleep(match self.health.is_healthy() {
                true => CHECK_INTERVAL,
                false => CHECK_INTERVAL / 6,
            });
            // One buyer's payment can cause an error at the facilitator. The error suspends offers for all accounts, but only until the
            // next health check.
            tokio::select! {
                () = self.check_now.notified() => {}
                () = pause => {}
            }
        }
    }

    async fn check(&self) {
        let network = &self.network;
        if let Ok(response) = self.call(Operation::Supported, Bytes::new()).await {
            let good = supports(&response, network);
            if !good && self.health.last_result() != Some(false) {
                tracing::warn!(status = response.status, %network, "suspending offers: the facilitator does not support the scheme on this network");
            }
            self.health.record(good);
        }
    }
}

/// The results of health checks.
#[derive(Debug)]
struct Health {
    clock: Clock,
    /// The time of the last good result, as long as no call has failed since.
    good: Mutex<Option<Duration>>,
    /// The last result, if any.
    last: Mutex<Option<bool>>,
}

impl Health {
    /// Without a result.
    fn new(clock: Clock) -> Health {
        Health {
            clock,
            good: Mutex::default(),
            last: Mutex::default(),
        }
    }

    /// Records a result: `good`, or a failed call.
    fn record(&self, good: bool) {
        *self.lock() = good.then(|| self.clock.elapsed());
        *self.last.lock() = Some(good);
    }

    /// The last result; `None` before the first.
    fn last_result(&self) -> Option<bool> {
        *self.last.lock()
    }

    /// Whether offers may be shown.
    fn is_healthy(&self) -> bool {
        let now = self.clock.elapsed();
        self.lock()
            .is_some_and(|at| now.saturating_sub(at) <= FRESH)
    }

    fn lock(&self) -> parking_lot::MutexGuard<'_, Option<Duration>> {
        self.good.lock()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollgate_clock::Timestamp;

    #[test]
    fn a_good_answer_counts_for_thirty_seconds_and_until_a_call_fails() {
        let (clock, manual) = Clock::manual(Timestamp::UNIX_EPOCH);
        let health = Health::new(clock);
        assert!(!health.is_healthy(), "nothing is known yet");
        health.record(true);
        manual.advance(Duration::from_secs(30));
        assert!(health.is_healthy());
        manual.advance(Duration::from_secs(1));
        assert!(!health.is_healthy());
        health.record(true);
        health.record(false);
        assert!(!health.is_healthy());
    }
}
