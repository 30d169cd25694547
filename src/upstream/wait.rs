//! Timeouts at no cost for a future that is ready at once.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;
use std::time::Duration;

/// The time limit has expired.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Elapsed;

/// Awaits `future` for at most `limit`. The future is polled once before a timer is set, since most reads and writes are ready at once.
///
/// On the path of a completion the caller pins the future. A future passed by value takes its size twice in this future, once more in each
/// function on the way, and is copied each time.
pub(crate) async fn within<F: Future>(limit: Duration, future: F) -> Result<F::Output, Elapsed> {
    let mut future = pin!(future);
    let first = poll_fn(|cx| Poll::Ready(future.as_mut().poll(cx))).await;
    match first {
        Poll::Ready(output) => Ok(output),
        Poll::Pending => tokio::time::timeout(limit, future)
            .await
            .map_err(|_| Elapsed),
    }
}
