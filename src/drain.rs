//! Graceful shutdown: exchanges drain first, since they may start a purchase, and then purchases, even without a waiting client.

use std::time::Duration;

use tollgate_purchase::PurchaseTasks;

use crate::proxy::Proxy;

/// Time limit for the last bytes of answers, once no work is under way or none can continue.
pub(crate) const FINAL_RESPONSES: Duration = Duration::from_secs(1);

/// Waits until no work is under way that could still change the books.
pub(crate) async fn drained(proxy: &Proxy, purchase_tasks: &PurchaseTasks) {
    loop {
        proxy.drained().await;
        // A partially received head, or a stream opened before its client received the GOAWAY, may still become a request.
        let _ = tokio::time::timeout(FINAL_RESPONSES, proxy.closed()).await;
        if proxy.open_exchanges() == 0 {
            break;
        }
    }
    // A purchase whose buyer has disconnected still completes, and the store closes after this.
    let purchases = purchase_tasks.running();
    if purchases > 0 {
        tracing::info!(purchases, "waiting for purchases to finish");
    }
    purchase_tasks.wait().await;
}
