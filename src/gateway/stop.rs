//! Graceful shutdown. Load balancers notice the stop first, where the settings give them time. The exchanges drain next, because an
//! exchange may start a purchase. Purchases follow, even without a waiting client. Work of modules follows, such as the sending of a
//! message. At the end every thread ends and the queued writes are committed.

use std::convert::Infallible;
use std::future::{Future, pending};
use std::pin::pin;
use std::time::Duration;

use tokio::sync::watch;
use tollgate_module::LastWork;
use tollgate_purchase::PurchaseTasks;
use tollgate_store::Failure;

use super::{End, Gateway, service_manager};
use crate::proxy::Proxy;

/// Time for which a stopping gateway leaves connections open for their next request, after the gateway accepts no new connection.
const LAST_REQUESTS: Duration = Duration::from_secs(5);

/// Time limit for the last bytes of answers, once no work is under way or no work can continue.
const FINAL_RESPONSES: Duration = Duration::from_secs(1);

impl Gateway {
    /// Drains open exchanges unless the store has failed, then ends every thread. `stop` completes at the first request for a stop,
    /// and `at_once` ends the delay before the drain.
    pub(super) fn shut_down(
        mut self,
        requested: End,
        stop: impl Future<Output = ()>,
        at_once: impl Future<Output = ()>,
    ) -> Result<(), Failure> {
        let end = match requested {
            End::Stop if self.upgrader.request_stop() => End::HandedOver,
            end => end,
        };
        // The workers hold duplicates; connections are refused only when every copy is closed.
        self.upgrader.close_listeners();
        // A stop requested during the drain is forwarded to the successor.
        let upgrader = self.upgrader.clone();
        let (forwarded, is_forwarded) = watch::channel(false);
        let mut forward_stop = pin!(async move {
            stop.await;
            upgrader.request_stop();
            forwarded.send_replace(true);
            pending().await
        });
        if matches!(end, End::Stop) {
            service_manager::stopping(self.proxy.open_exchanges());
            // The predecessor's idle connections may stay for their whole time limit, and this process waits for the predecessor's end.
            self.upgrader.stop_predecessors();
            self.announce(at_once);
        }
        let mut grace = self.settings.server.grace;
        if matches!(end, End::HandedOver) {
            let clock = self.proxy.clock.clone();
            let began = clock.elapsed();
            self.wait_for_last_requests(grace, forward_stop.as_mut(), is_forwarded);
            let waited = clock.elapsed().saturating_sub(began);
            grace = grace.saturating_sub(waited).max(LAST_REQUESTS);
        } else {
            self.upgrader.remove_files();
        }
        self.proxy.drain();
        self.purchase_tasks.close();
        let failed = match end {
            End::Failed(failure) => Some(failure),
            End::Stop | End::HandedOver => self.finish(grace, forward_stop),
        };
        // After a failed store the only remaining work is the error responses. This call is their time limit.
        self.runtime.block_on(async {
            // A client that does not read its response in time is disconnected.
            let _ = tokio::time::timeout(FINAL_RESPONSES, self.proxy.closed()).await;
        });
        self.proxy.stop();
        for worker in self.workers {
            if worker.join().is_err() {
                tracing::error!("worker thread panicked");
            }
        }
        drop(self.admin);
        // The last releases and settlements are in the queue by now.
        self.ledger.return_all();
        self.store.close();
        self.runtime.shutdown_background();
        self.telemetry.close();
        match failed {
            None => {
                tracing::info!("stopped");
                Ok(())
            }
            Some(failure) => {
                tracing::error!("stopped with exit code 1: the store failed");
                Err(failure)
            }
        }
    }

    /// Continues to serve for a time in which load balancers and clients notice the end of this process.
    fn announce(&mut self, at_once: impl Future<Output = ()>) {
        let delay = self.settings.server.drain_delay;
        if delay.is_zero() {
            return;
        }
        tracing::info!(
            ?delay,
            "draining later: `/ready` is 503, requests are served on"
        );
        self.proxy.announce_end();
        self.runtime.block_on(async {
            let failed = self.failure.wait_for(Option::is_some);
            let served = async {
                tokio::time::sleep(delay).await;
                self.proxy.stop_accepting();
                last_requests(&self.proxy, LAST_REQUESTS).await;
            };
            tokio::select! {
                () = served => {}
                () = at_once => {}
                _ = failed => {}
            }
        });
    }

    /// Leaves connections open after an upgrade: requests on the connections are relayed to the new process. Ends early after a forwarded
    /// request for a stop, or a failure of the store.
    fn wait_for_last_requests(
        &mut self,
        limit: Duration,
        forward_stop: impl Future<Output = Infallible>,
        mut is_forwarded: watch::Receiver<bool>,
    ) {
        self.runtime.block_on(async {
            let failed = self.failure.wait_for(Option::is_some);
            tokio::select! {
                // Each connection carries one more request, or ends after the idle time of the settings. A client with an open
                // connection cannot see an upgrade: closing the connection earlier may lose a request on its way.
                () = last_requests(&self.proxy, limit) => {}
                _ = failed => {}
                never = forward_stop => match never {},
                _ = is_forwarded.wait_for(|is_forwarded| *is_forwarded) => {}
            }
        });
    }

    /// Waits for open exchanges, for the grace period at most; returns the failure of the store meanwhile.
    fn finish(
        &mut self,
        grace: Duration,
        forward_stop: impl Future<Output = Infallible>,
    ) -> Option<Failure> {
        let open = self.proxy.open_exchanges();
        tracing::info!(
            open,
            ?grace,
            "draining: refusing new connections, waiting for open requests"
        );
        let ended = self.runtime.block_on(async {
            let failed = self.failure.wait_for(Option::is_some);
            let drained = drained(&self.proxy, &self.purchase_tasks, &self.last_work);
            tokio::select! {
                drained = tokio::time::timeout(grace, drained) => Ok(drained.is_ok()),
                failed = failed => Err(failed.ok().and_then(|failed| failed.clone())),
                never = forward_stop => match never {},
            }
        });
        match ended {
            Ok(true) => None,
            Ok(false) => {
                let (open, purchases) =
                    (self.proxy.open_exchanges(), self.purchase_tasks.running());
                tracing::warn!(
                    open,
                    purchases,
                    "grace period expired, aborting open requests"
                );
                None
            }
            Err(failure) => failure,
        }
    }
}

/// Leaves connections open for at most `limit`. A request may be on its way, and this process or the new process answers the request.
async fn last_requests(proxy: &Proxy, limit: Duration) {
    let _ = tokio::time::timeout(limit, proxy.closed()).await;
}

/// Waits until no work is under way that could still change the books.
async fn drained(proxy: &Proxy, purchase_tasks: &PurchaseTasks, last_work: &[LastWork]) {
    loop {
        proxy.drained().await;
        // A partially received head, or a stream opened before its client received the GOAWAY, may still become a request.
        let _ = tokio::time::timeout(FINAL_RESPONSES, proxy.closed()).await;
        if proxy.open_exchanges() == 0 {
            break;
        }
    }
    proxy.without_predecessor().await;
    // A purchase whose buyer has disconnected still completes. The store closes after the purchase.
    let purchases = purchase_tasks.running();
    if purchases > 0 {
        tracing::info!(purchases, "waiting for purchases to finish");
    }
    purchase_tasks.wait().await;
    for work in last_work {
        work().await;
    }
}
