//! The time limit that turns a hanging test into a failing one.

use std::future::Future;
use std::time::Duration;

/// The maximum duration of any step in a test.
///
/// Far above what a busy machine needs, and longer than each lease and backoff that a test may have to outlast (an order of a certificate that a
/// stop has cut: 300 s). It is not a performance measurement, and no test waits for it to elapse.
pub(crate) const HANG: Duration = Duration::from_secs(400);

/// Waits for `work`, and panics with `what` when it takes longer than six minutes.
///
/// # Panics
///
/// When `work` times out; the message names what was awaited.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(HANG, work).await {
        Ok(done) => done,
        Err(_) => panic!("waited {} s in vain for {what}", HANG.as_secs()),
    }
}
