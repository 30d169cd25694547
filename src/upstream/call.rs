//! A call in progress: reads the answer with its time limits, and returns the connection to the pool.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use pingora_core::protocols::http::client::HttpSession;
use pingora_core::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;
use tollgate_chain::{UpstreamCall, UpstreamError};
use tollgate_clock::Clock;

use super::attempt::Connections;
use super::fault;
use super::h1;
use super::http_exchange::{plain_error, pooled_error};
use super::providers::Provider;
use crate::wait::within;

/// A connection that carries a call.
pub(super) enum Link {
    /// HTTP/1.1 on a socket of our own.
    Plain(h1::Connection<TcpStream>, SocketAddr),
    /// Through Pingora's connector: TLS, HTTP/2, or both.
    Pooled(Box<HttpSession>, Arc<HttpPeer>),
}

impl Link {
    pub(super) async fn read_body(&mut self) -> Result<Option<Bytes>, UpstreamError> {
        match self {
            Link::Plain(connection, _) => {
                let piece = connection.read().await;
                piece.map_err(|error| plain_error(&error))
            }
            Link::Pooled(session, _) => {
                let piece = session.read_response_body().await;
                piece.map_err(|error| pooled_error(&error))
            }
        }
    }
}

/// A successful answer in progress.
pub(crate) struct Call {
    pub(super) link: Link,
    pub(super) provider: Arc<Provider>,
    pub(super) connections: Arc<Connections>,
    pub(super) clock: Clock,
    pub(super) is_stream: bool,
    /// Clock reading at which the whole call times out.
    pub(super) deadline: Duration,
    /// Clock reading at which the wait for the next chunk started. A read that is dropped and restarted continues the same wait: a client
    /// that receives keep-alive comments, or disconnects, gives a silent provider no more time.
    pub(super) waiting_since: Option<Duration>,
    /// Clock reading at the last read.
    pub(super) read_at: Duration,
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
        let silence_max = self.provider.settings.timeouts.between_bytes;
        let waited = now.saturating_sub(*self.waiting_since.get_or_insert(now));
        let limit = silence_max.saturating_sub(waited).min(left);
        let read = within(limit, pin!(self.link.read_body())).await;
        self.waiting_since = None;
        match read {
            Ok(piece) => piece,
            Err(_) => Err(fault::timeout(
                "the next piece of the answer",
                silence_max.min(waited + limit),
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
            provider,
            connections,
            read_at,
            ..
        } = self;
        match link {
            Link::Plain(connection, address) => {
                if let Some(connection) = connection.keep() {
                    let idle_max = provider.settings.connections_idle_max;
                    let key = (provider.index, address);
                    connections.pool.put(key, connection, read_at, idle_max);
                }
            }
            Link::Pooled(session, peer) => {
                if let Some(connector) = &connections.connector {
                    let idle = peer.options.idle_timeout;
                    Box::pin(connector.release_http_session(*session, &*peer, idle)).await;
                }
            }
        }
    }
}
