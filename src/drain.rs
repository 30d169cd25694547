//! The end of what is under way: exchanges first, since they may begin a purchase, and then purchases, whoever waits for them.

use std::time::Duration;

use tollgate_purchase::PurchaseTasks;

use crate::proxy::Proxy;

/// How long the last bytes of answers may take to leave, once nothing is under way any more or nothing can go on.
pub(crate) const LAST_WORDS: Duration = Duration::from_secs(1);

/// Waits until nothing is under way that could still come into the books.
pub(crate) async fn landed(proxy: &Proxy, under_way: &PurchaseTasks) {
    loop {
        proxy.drained().await;
        // A head that is half here, or a stream opened before its client heard of the end, may still become a request.
        let _ = tokio::time::timeout(LAST_WORDS, proxy.closed()).await;
        if proxy.open_exchanges() == 0 {
            break;
        }
    }
    // A buyer who has left still gets what was begun, and the store closes after this.
    let purchases = under_way.running();
    if purchases > 0 {
        tracing::info!(purchases, "purchases are under way; they may finish");
    }
    under_way.wait().await;
}
