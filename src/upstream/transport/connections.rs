//! The connections of one worker: from the pool, or new within the connect timeout.

use std::net::SocketAddr;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use pingora_core::connectors::ConnectorOptions;
use pingora_core::connectors::http::Connector;
use pingora_core::upstreams::peer::HttpPeer;
use tokio::net::TcpStream;
use tollgate_chain::UpstreamError;
use tollgate_clock::Clock;

use super::endpoint::{Endpoint, Target};
use super::fault;
use super::h1;
use super::link::Link;
use super::pool::Pool;

/// The connections of one worker to all providers.
pub(in crate::upstream) struct Connections {
    pub(super) pool: Pool,
    /// Created on a provider's first need: the connector loads the system's roots.
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

    /// The connector, created before the first call through the connector.
    pub(in crate::upstream) fn connector(&self) -> &Connector {
        self.connector
            .get_or_init(|| Connector::new(Some(ConnectorOptions::new(1024))))
    }

    /// A connection to a provider, and whether the connection was reused; with `fresh`, a new connection.
    pub(super) async fn link(
        &self,
        endpoint: &Endpoint,
        now: Duration,
        fresh: bool,
    ) -> Result<(Link, bool), UpstreamError> {
        let target = endpoint.target().await.map_err(fault::unreachable)?;
        let opened = if endpoint.needs_connector() {
            Box::pin(self.connect_pooled(endpoint, &target, fresh)).await
        } else {
            let key = (endpoint.index, target.first());
            if !fresh && let Some(connection) = self.pool.take(key, now) {
                return Ok((Link::Plain(connection, key.1), true));
            }
            Box::pin(endpoint.open(&target, |address, _| connect_plain(address))).await
        };
        opened.map_err(fault::unreachable)
    }

    /// A connection through Pingora's connector, which has a separate pool.
    async fn connect_pooled(
        &self,
        endpoint: &Endpoint,
        target: &Target,
        fresh: bool,
    ) -> Result<(Link, bool), String> {
        let connector = self.connector();
        // The connector has no option for a fresh connection, but never mixes connections of different groups.
        let group = fresh.then(|| self.clock.elapsed().as_nanos() as u64);
        let open = |_, mut peer: Arc<HttpPeer>| async move {
            if let Some(group) = group {
                Arc::make_mut(&mut peer).group_key = group;
            }
            match connector.get_http_session(&*peer).await {
                Ok((session, reused)) => Ok((Link::Pooled(Box::new(session), peer), reused)),
                Err(error) => Err(error.to_string()),
            }
        };
        endpoint.open(target, open).await
    }
}

/// A new connection of our own.
async fn connect_plain(address: SocketAddr) -> Result<(Link, bool), String> {
    let socket = TcpStream::connect(address).await;
    let socket = socket.map_err(|error| error.to_string())?;
    // Head and body are joined before the write; delaying the write gains no time.
    let _ = socket.set_nodelay(true);
    Ok((Link::Plain(h1::Connection::new(socket), address), false))
}
