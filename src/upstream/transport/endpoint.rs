//! The endpoint of a provider: the base address, resolved periodically, the credential, and the prepared heads of calls.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora_core::protocols::ALPN;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use secrecy::ExposeSecret;

use super::addresses::{ATTEMPT_DELAY, Addresses};
use super::h1::Heads;
use crate::config;

/// How often names are resolved again.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);

/// Address and credential of a provider's calls.
pub(in crate::upstream) struct Endpoint {
    /// A number unique among providers, before and after a reload.
    pub(in crate::upstream) index: usize,
    pub(super) settings: Arc<config::Provider>,
    /// The value of `Authorization`, ready to be sent.
    pub(in crate::upstream) authorization: Option<http::HeaderValue>,
    /// The heads of calls on plain connections.
    pub(super) heads: Heads,
    addresses: Arc<Addresses>,
    peers: ArcSwap<Peers>,
    next: AtomicU32,
}

/// The known addresses of a provider, each with a peer for Pingora's connector.
#[derive(Default)]
struct Peers {
    addresses: Vec<SocketAddr>,
    peers: Vec<Arc<HttpPeer>>,
}

/// The first address of a call, and the others.
pub(in crate::upstream) struct Target {
    peers: Arc<Peers>,
    first: usize,
}

impl Target {
    /// The address that is tried first.
    pub(super) fn first(&self) -> SocketAddr {
        self.peers.addresses[self.first]
    }
}

impl Endpoint {
    pub(in crate::upstream) fn new(
        index: usize,
        settings: Arc<config::Provider>,
        addresses: Arc<Addresses>,
    ) -> Endpoint {
        let authorization = settings.api_key.as_ref().map(|key| {
            let mut value = http::HeaderValue::try_from(format!("Bearer {}", key.expose_secret()))
                .expect("a provider key is checked to be visible ASCII");
            value.set_sensitive(true);
            value
        });
        let url = &settings.base_url;
        Endpoint {
            index,
            heads: Heads::new(&url.path, &url.authority, authorization.as_ref()),
            settings,
            authorization,
            addresses,
            peers: ArcSwap::default(),
            next: AtomicU32::new(0),
        }
    }

    /// Resolves the name periodically, until dropped.
    pub(in crate::upstream) async fn refresh_addresses(&self) {
        loop {
            if let Err(error) = self.resolve().await {
                let provider = &*self.settings.name;
                tracing::warn!(provider, %error, "resolving provider name failed");
            }
            tokio::time::sleep(RESOLVE_INTERVAL).await;
        }
    }

    /// Whether the provider is reached through Pingora's connector rather than a plain socket.
    pub(in crate::upstream) fn needs_connector(&self) -> bool {
        self.settings.base_url.tls || self.settings.http2
    }

    /// The address of the next call, round robin among addresses without a failure; resolved if no address is known.
    ///
    /// # Errors
    ///
    /// The name has no address, or cannot be resolved.
    pub(in crate::upstream) async fn target(&self) -> io::Result<Target> {
        if let Some(target) = self.next_target() {
            return Ok(target);
        }
        Box::pin(self.resolve()).await?;
        self.next_target()
            .ok_or_else(|| io::Error::other("the name has no address"))
    }

    fn next_target(&self) -> Option<Target> {
        let peers = self.peers.load_full();
        let first = match peers.addresses.len() {
            0 => return None,
            1 => 0,
            _ => {
                let turn = self.next.fetch_add(1, Ordering::Relaxed) as usize;
                self.addresses.choose(&peers.addresses, turn)
            }
        };
        Some(Target { peers, first })
    }

    /// Opens a connection by `open` at the first accepting address of a target.
    ///
    /// # Errors
    ///
    /// The failure of every address.
    pub(in crate::upstream) async fn open<T, F>(
        &self,
        target: &Target,
        open: impl Fn(SocketAddr, Arc<HttpPeer>) -> F,
    ) -> Result<T, String>
    where
        F: Future<Output = Result<T, String>>,
    {
        let Target { peers, first } = target;
        // A handshake of TLS takes another round trip or two.
        let delay = match self.settings.base_url.tls {
            true => 2 * ATTEMPT_DELAY,
            false => ATTEMPT_DELAY,
        };
        let open = |at: usize| open(peers.addresses[at], peers.peers[at].clone());
        let name = &self.settings.name;
        let order = (&peers.addresses[..], *first);
        self.addresses.open(name, order, delay, open).await
    }

    /// Resolves the name without blocking a worker thread; keeps the known addresses when the lookup fails.
    async fn resolve(&self) -> io::Result<()> {
        let url = &self.settings.base_url;
        let mut addresses = self.addresses.resolve(&url.host, url.port).await?;
        // A DNS server may change the order with each answer.
        addresses.sort_unstable();
        if !addresses.is_empty() && self.peers.load().addresses != addresses {
            let peers = addresses
                .iter()
                .map(|address| Arc::new(self.peer_at(*address)));
            let peers = peers.collect();
            self.peers.store(Arc::new(Peers { addresses, peers }));
        }
        Ok(())
    }

    fn peer_at(&self, address: SocketAddr) -> HttpPeer {
        let settings = &*self.settings;
        let url = &settings.base_url;
        let mut peer = HttpPeer::new(address, url.tls, url.host.clone());
        let options = &mut peer.options;
        options.connection_timeout = Some(settings.timeouts.connect);
        options.total_connection_timeout = Some(settings.timeouts.connect);
        options.idle_timeout = Some(Duration::from_secs(60));
        options.alpn = match (settings.http2, url.tls) {
            (false, _) => ALPN::H1,
            (true, true) => ALPN::H2H1,
            (true, false) => ALPN::H2,
        };
        options.max_h2_streams = 100;
        if let Some(roots) = &settings.roots {
            let roots = roots
                .iter()
                .map(|root| WrappedX509::new(root.to_vec(), parse_x509));
            options.ca = Some(roots.collect());
        }
        peer
    }
}
