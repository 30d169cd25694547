//! The limit that turns a test that would hang into one that fails.

use std::future::Future;
use std::time::Duration;

/// How long anything in a test may take before it counts as hanging.
///
/// Far above what a busy machine needs: it is not a measure of speed, and nothing waits for it to pass.
pub(crate) const HANG: Duration = Duration::from_secs(60);

/// Waits for `work`, and panics with `what` when it takes longer than a minute.
///
/// # Panics
///
/// When `work` is not done in time; the message names what was awaited.
pub async fn within<T>(what: &str, work: impl Future<Output = T>) -> T {
    match tokio::time::timeout(HANG, work).await {
        Ok(done) => done,
        Err(_) => panic!("waited {} s in vain for {what}", HANG.as_secs()),
    }
}
