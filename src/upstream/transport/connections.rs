//! The connections of one worker: a pooled one, or a new one within the connect timeout.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;
use tollgate_clock::Clock;

use super::endpoint::{Endpoint, peer_address};
use super::fault;
use super::h1;
use super::link::Link;
use super::pool::Pool;
use super::request::{AttemptError, connect_error};
use crate::upstream::wait::within;

/// The connections of one worker to all providers.
pub(in crate::upstream) struct Connections {
    pub(super) pool: Pool,
    /// Only created when a provider needs it: it loads the system's roots.
    pub(super) connector: OnceLock<Connector>,
    pub(super) clock: Clock,
}

impl Connections {
    pub(in crate::upstream) fn new(clock: Clock) -> Connections {
        Connections {
            pool: Pool::default(),
            connector: OnceLock::new(),
            clock,
        }
    }

    /// The connector, created before the first call that needs it.
    pub(in crate::upstream) fn connector(&self) -> &Connector {
        self.connector
            .get_or_init(|| Connector::new(Some(ConnectorOptions::new(1024))))
    }

    /// A connection of our own, and whether it was reused; a new one if `fresh`.
    pub(super) async fn connect_plain(
        &self,
        endpoint: &Endpoint,
        peer: &HttpPeer,
        now: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), AttemptError> {
        let limit = endpoint.settings.timeouts.connect;
        let Some(address) = peer_address(peer) else {
            return Err(connect_error(fault::unreachable(
                "the provider has no IP address",
            )));
        };
        let key = (endpoint.index, address);
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

    /// A connection through Pingora's connector, and whether it was reused; a new one if `fresh`.
    pub(super) async fn connect_pooled(
        &self,
        peer: &Arc<HttpPeer>,
        limit: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), AttemptError> {
        let connector = self.connector();
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
