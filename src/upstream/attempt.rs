//! One attempt at one chosen provider: a connection, the request on it, the head of the answer.

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
use tollgate_filter::Clock;

use super::call::{Call, Link};
use super::fault;
use super::h1;
use super::pool::Pool;
use super::providers::{Provider, peer_address};
use super::talk::{converse, read_error};
use crate::wait::within;

/// A stale pooled connection reports the provider's close within this time after a request was written to it.
const STALE_SHOWS: Duration = Duration::from_secs(1);

/// The request to a provider.
pub(super) struct Ask {
    /// The path below its base address.
    pub(super) path: &'static str,
    /// Whether the answer is to be an event stream.
    pub(super) stream: bool,
    /// The body as rendered for this provider.
    pub(super) body: Bytes,
    /// The client's address, for a provider that receives it.
    pub(super) client: Option<IpAddr>,
    /// Clock reading at the start of the attempt.
    pub(super) began: Duration,
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

/// Why an attempt failed, and whether the provider has seen the request.
pub(super) struct Failed {
    pub(super) error: UpstreamError,
    pub(super) seen: Seen,
    /// The status of its answer, if it gave one.
    pub(super) status: Option<u16>,
    /// Its `Retry-After`.
    pub(super) wait: Option<Duration>,
}

/// Whether a provider has seen a request that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Seen {
    /// It may be processing it.
    Perhaps,
    /// It has not: there was no connection.
    Never,
    /// It has not: the connection was closed already, or the stream was refused (RFC 9113 section 8.7). A new connection may succeed.
    Refused,
}

impl From<UpstreamError> for Failed {
    fn from(error: UpstreamError) -> Failed {
        Failed {
            error,
            seen: Seen::Perhaps,
            status: None,
            wait: None,
        }
    }
}

/// A failure to obtain a connection at all.
fn unconnected(error: UpstreamError) -> Failed {
    Failed {
        seen: Seen::Never,
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
        ask: &Ask,
        calls: &mut u32,
    ) -> Result<Call, Failed> {
        let mut fresh = false;
        loop {
            *calls += 1;
            let mut failed = match self.ask(provider, ask, fresh).await {
                Ok(call) => return Ok(call),
                Err(failed) => failed,
            };
            if failed.seen == Seen::Refused {
                if self.clock.elapsed().saturating_sub(ask.began) >= STALE_SHOWS {
                    // A connection that breaks so late was not stale: the provider may be processing the request.
                    failed.seen = Seen::Perhaps;
                } else if !fresh {
                    fresh = true;
                    continue;
                }
            }
            return Err(failed);
        }
    }

    /// Calls once on one connection; a new one if `fresh`.
    async fn ask(
        self: &Arc<Self>,
        provider: &Arc<Provider>,
        ask: &Ask,
        fresh: bool,
    ) -> Result<Call, Failed> {
        let timeouts = &provider.settings.timeouts;
        let peer = match within(timeouts.connect, pin!(provider.peer())).await {
            Ok(Ok(peer)) => peer,
            Ok(Err(error)) => return Err(unconnected(fault::unreachable(error))),
            Err(_) => {
                return Err(unconnected(fault::timeout(
                    "the provider's address",
                    timeouts.connect,
                )));
            }
        };
        let first_byte = if ask.stream {
            timeouts.first_byte
        } else {
            timeouts.first_byte_whole
        }
        .min(ask.deadline.saturating_sub(ask.began));
        let (mut link, reused) = if provider.needs_connector() {
            Box::pin(self.link_pooled(&peer, timeouts.connect, fresh)).await?
        } else {
            self.link_plain(provider, &peer, ask.began, fresh).await?
        };
        let answered = within(first_byte, pin!(converse(&mut link, provider, ask, reused))).await;
        let answer = match answered {
            Ok(Ok(answer)) => answer,
            Ok(Err(failed)) => return Err(failed),
            Err(_) => return Err(fault::timeout("the first byte", first_byte).into()),
        };
        if answer.status != StatusCode::OK {
            let body = Box::pin(read_error(&mut link)).await;
            let wait = answer
                .retry_after
                .map(|wait| wait.wait_from(self.clock.unix_micros()));
            let wait = wait.map(|wait| wait.min(provider.settings.health.retry_after_max));
            let key = provider.settings.api_key.as_ref();
            return Err(Failed {
                status: Some(answer.status.as_u16()),
                wait,
                ..fault::of_status(answer.status, wait, &body, key).into()
            });
        }
        if answer.is_encoded {
            return Err(fault::invalid("the answer is compressed, which was not asked for").into());
        }
        Ok(Call {
            link,
            provider: provider.clone(),
            connections: self.clone(),
            clock: self.clock.clone(),
            is_stream: answer.is_stream,
            deadline: ask.deadline,
            waiting_since: None,
            read_at: ask.began,
        })
    }

    async fn link_plain(
        &self,
        provider: &Provider,
        peer: &HttpPeer,
        now: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), Failed> {
        let limit = provider.settings.timeouts.connect;
        let Some(address) = peer_address(peer) else {
            return Err(unconnected(fault::unreachable(
                "the provider has no internet address",
            )));
        };
        let key = (provider.index, address);
        if !fresh && let Some(connection) = self.pool.take(key, now) {
            return Ok((Link::Plain(connection, address), true));
        }
        let socket = match Box::pin(within(limit, TcpStream::connect(address))).await {
            Ok(Ok(socket)) => socket,
            Ok(Err(error)) => return Err(unconnected(fault::unreachable(error))),
            Err(_) => return Err(unconnected(fault::timeout("a connection", limit))),
        };
        // Head and body are joined before they are written; delaying the write gains nothing.
        let _ = socket.set_nodelay(true);
        Ok((Link::Plain(h1::Connection::new(socket), address), false))
    }

    async fn link_pooled(
        &self,
        peer: &Arc<HttpPeer>,
        limit: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), Failed> {
        let Some(connector) = &self.connector else {
            return Err(unconnected(fault::unreachable(
                "there is no connector for TLS",
            )));
        };
        let mut peer = peer.clone();
        if fresh {
            // The connector has no field for it, but it never mixes connections of different groups.
            Arc::make_mut(&mut peer).group_key = self.clock.elapsed().as_nanos() as u64;
        }
        match within(limit, connector.get_http_session(&*peer)).await {
            Ok(Ok((session, reused))) => Ok((Link::Pooled(Box::new(session), peer), reused)),
            Ok(Err(error)) => Err(unconnected(fault::unreachable(error))),
            Err(_) => Err(unconnected(fault::timeout("a connection", limit))),
        }
    }
}
