//! One attempt of a call at one provider: a connection, the request on it, the head of the answer.

use std::net::IpAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http::StatusCode;
use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;
use tollgate_chain::UpstreamError;
use tollgate_clock::Clock;

use super::call::{Call, Link};
use super::fault;
use super::h1;
use super::http_exchange::{read_error, send_request};
use super::pool::Pool;
use super::providers::{Provider, peer_address};
use crate::wait::within;

/// A stale pooled connection reports the provider's close within this time after a request was written to it.
const STALE_DETECTED_WITHIN: Duration = Duration::from_secs(1);

/// The request to a provider.
pub(super) struct ProviderRequest {
    /// The path below its base address.
    pub(super) path: &'static str,
    /// Whether the answer is to be an event stream.
    pub(super) stream: bool,
    /// The body as rendered for this provider.
    pub(super) body: Bytes,
    /// The client's address, for a provider that receives it.
    pub(super) client: Option<IpAddr>,
    /// Clock reading at the start of the attempt.
    pub(super) started: Duration,
    /// Clock reading at which the whole call times out.
    pub(super) deadline: Duration,
}

/// The connections of one worker to all providers.
pub(super) struct Connections {
    pub(super) pool: Pool,
    /// Only created when a provider needs it: it loads the system's roots.
    pub(super) connector: Option<Connector>,
    clock: Clock,
}

/// Why an attempt failed, and whether the request was delivered.
pub(super) struct AttemptError {
    pub(super) error: UpstreamError,
    pub(super) delivery: Delivery,
    /// The status of its answer, if it gave one.
    pub(super) status: Option<u16>,
    /// Its `Retry-After`.
    pub(super) retry_after: Option<Duration>,
}

/// Whether a request that failed was delivered to the provider.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Delivery {
    /// The provider may be processing it.
    Unknown,
    /// It was not sent: there was no connection.
    NotSent,
    /// It was not processed: the connection was closed already, or the stream was refused (RFC 9113 section 8.7). A new connection may
    /// succeed.
    Refused,
}

impl From<UpstreamError> for AttemptError {
    fn from(error: UpstreamError) -> AttemptError {
        AttemptError {
            error,
            delivery: Delivery::Unknown,
            status: None,
            retry_after: None,
        }
    }
}

/// A failure to obtain a connection at all.
fn connect_error(error: UpstreamError) -> AttemptError {
    AttemptError {
        delivery: Delivery::NotSent,
        ..error.into()
    }
}

impl Connections {
    pub(super) fn new(with_connector: bool, clock: Clock) -> Connections {
        Connections {
            pool: Pool::default(),
            connector: with_connector.then(|| Connector::new(Some(ConnectorOptions::new(1024)))),
            clock,
        }
    }

    /// Calls a provider, a second time on a new connection if a pooled one turns out to be closed. Adds to `calls` the number of tries.
    pub(super) async fn attempt(
        self: &Arc<Self>,
        provider: &Arc<Provider>,
        request: &ProviderRequest,
        calls: &mut u32,
    ) -> Result<Call, AttemptError> {
        let mut fresh = false;
        loop {
            *calls += 1;
            let mut failed = match self.try_once(provider, request, fresh).await {
                Ok(call) => return Ok(call),
                Err(failed) => failed,
            };
            if failed.delivery == Delivery::Refused {
                if self.clock.elapsed().saturating_sub(request.started) >= STALE_DETECTED_WITHIN {
                    // A connection that breaks so late was not stale: the provider may be processing the request.
                    failed.delivery = Delivery::Unknown;
                } else if !fresh {
                    fresh = true;
                    continue;
                }
            }
            return Err(failed);
        }
    }

    /// Calls once on one connection; a new one if `fresh`.
    async fn try_once(
        self: &Arc<Self>,
        provider: &Arc<Provider>,
        request: &ProviderRequest,
        fresh: bool,
    ) -> Result<Call, AttemptError> {
        let timeouts = &provider.settings.timeouts;
        let peer = match within(timeouts.connect, pin!(provider.peer())).await {
            Ok(Ok(peer)) => peer,
            Ok(Err(error)) => return Err(connect_error(fault::unreachable(error))),
            Err(_) => {
                return Err(connect_error(fault::timeout(
                    "the provider's address",
                    timeouts.connect,
                )));
            }
        };
        let first_byte = if request.stream {
            timeouts.first_byte
        } else {
            timeouts.first_byte_whole
        }
        .min(request.deadline.saturating_sub(request.started));
        let (mut link, reused) = if provider.needs_connector() {
            Box::pin(self.connect_pooled(&peer, timeouts.connect, fresh)).await?
        } else {
            self.connect_plain(provider, &peer, request.started, fresh)
                .await?
        };
        let answered = within(
            first_byte,
            pin!(send_request(&mut link, provider, request, reused)),
        )
        .await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(failed)) => return Err(failed),
            Err(_) => return Err(fault::timeout("the first byte", first_byte).into()),
        };
        if answer.status != StatusCode::OK {
            let body = Box::pin(read_error(&mut link)).await;
            let wait = answer
                .retry_after
                .map(|wait| wait.wait_from(self.clock.now()));
            let wait = wait.map(|wait| wait.min(provider.settings.health.retry_after_max));
            let key = provider.settings.api_key.as_ref();
            return Err(AttemptError {
                status: Some(answer.status.as_u16()),
                retry_after: wait,
                ..fault::of_status(answer.status, wait, &body, key).into()
            });
        }
        if answer.is_encoded {
            return Err(fault::invalid("the answer is compressed, which was not requested").into());
        }
        Ok(Call {
            link,
            provider: provider.clone(),
            connections: self.clone(),
            clock: self.clock.clone(),
            is_stream: answer.is_stream,
            deadline: request.deadline,
            waiting_since: None,
            read_at: request.started,
        })
    }

    async fn connect_plain(
        &self,
        provider: &Provider,
        peer: &HttpPeer,
        now: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), AttemptError> {
        let limit = provider.settings.timeouts.connect;
        let Some(address) = peer_address(peer) else {
            return Err(connect_error(fault::unreachable(
                "the provider has no IP address",
            )));
        };
        let key = (provider.index, address);
        if !fresh && let Some(connection) = self.pool.take(key, now) {
            return Ok((Link::Plain(connection, address), true));
        }
        let socket = match Box::pin(within(limit, TcpStream::connect(address))).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return Err(connect_error(fault::unreachable(error))),
            Err(_) => return Err(connect_error(fault::timeout("a connection", limit))),
        };
        // Head and body are joined before they are written; delaying the write gains nothing.
        let _ = socket.set_nodelay(true);
        Ok((Link::Plain(h1::Connection::new(socket), address), false))
    }

    async fn connect_pooled(
        &self,
        peer: &Arc<HttpPeer>,
        limit: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), AttemptError> {
        let Some(connector) = &self.connector else {
            return Err(connect_error(fault::unreachable(
                "no connector for TLS or HTTP/2 was created",
            )));
        };
        let mut peer = peer.clone();
        if fresh {
            // The connector has no field for it, but it never mixes connections of different groups.
            Arc::make_mut(&mut peer).group_key = self.clock.elapsed().as_nanos() as u64;
        }
        match within(limit, connector.get_http_session(&*peer)).await {
            Ok(Ok((session, reused))) => Ok((Link::Pooled(Box::new(session), peer), reused)),
            Ok(Err(error)) => Err(connect_error(fault::unreachable(error))),
            Err(_) => Err(connect_error(fault::timeout("a connection", limit))),
        }
    }
}
