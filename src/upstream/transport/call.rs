//! A call in progress: reads the answer with its time limits, and returns the connection to the pool.

use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tollgate_chain::{UpstreamCall, UpstreamError};
use tollgate_clock::Clock;

use super::connections::Connections;
use super::fault;
use super::link::Link;
use crate::upstream::wait::within;

/// A successful answer in progress.
pub(crate) struct Call {
    pub(super) link: Link,
    pub(super) connections: Arc<Connections>,
    /// The index of its provider, for the pool.
    pub(super) pool_index: usize,
    /// The most idle connections to keep at its address.
    pub(super) idle_max: usize,
    /// Time limit for the next chunk.
    pub(super) silence_max: Duration,
    pub(in crate::upstream) clock: Clock,
    pub(super) is_stream: bool,
    /// Clock reading at which the whole call times out.
    pub(super) deadline: Duration,
    /// Clock reading at which the wait for the next chunk started. A read that is dropped and restarted continues the same wait: a client
    /// that receives keep-alive comments, or disconnects, gives a silent provider no more time.
    pub(super) waiting_since: Option<Duration>,
    /// Clock reading at the last read.
    pub(in crate::upstream) read_at: Duration,
}

impl UpstreamCall for Call {
    fn is_stream(&self) -> bool {
        self.is_stream
    }

    async fn read(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        let now = self.clock.elapsed();
        self.read_at = now;
        let left = self.deadline.saturating_sub(now);
        if left.is_zero() {
            // Data that is already buffered would be taken without a check of the time.
            return Err(fault::timeout("the end of the answer", left));
        }
        let waited = now.saturating_sub(*self.waiting_since.get_or_insert(now));
        let limit = self.silence_max.saturating_sub(waited).min(left);
        let read = within(limit, pin!(self.link.read_body())).await;
        self.waiting_since = None;
        match read {
            Ok(piece) => piece,
            Err(_) => Err(fault::timeout(
                "the next piece of the answer",
                self.silence_max.min(waited + limit),
            )),
        }
    }

    fn read_ready(&mut self) -> Option<Result<Option<Bytes>, UpstreamError>> {
        use std::future::Future;
        use std::task::{Context, Poll, Waker};
        // No task waits on this waker: the next `read` registers the right one.
        let mut cx = Context::from_waker(Waker::noop());
        let read = tokio::task::coop::unconstrained(self.link.read_body());
        match pin!(read).poll(&mut cx) {
            Poll::Pending => None,
            Poll::Ready(piece) => Some(piece),
        }
    }

    async fn finish(self) {
        let Call {
            link,
            connections,
            pool_index,
            idle_max,
            read_at,
            ..
        } = self;
        match link {
            Link::Plain(connection, address) => {
                if let Some(connection) = connection.keep() {
                    let key = (pool_index, address);
                    connections.pool.put(key, connection, read_at, idle_max);
                }
            }
            Link::Pooled(session, peer) => {
                if let Some(connector) = connections.connector.get() {
                    let idle = peer.options.idle_timeout;
                    Box::pin(connector.release_http_session(*session, &*peer, idle)).await;
                }
            }
        }
    }
}
