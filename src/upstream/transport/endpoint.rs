//! The endpoint of a provider: its base address, resolved periodically, its credential, and the prepared heads of calls to it.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora_core::protocols::ALPN;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use secrecy::ExposeSecret;

use super::h1::Heads;
use crate::config;

/// How often names are resolved again.
const RESOLVE_INTERVAL: Duration = Duration::from_secs(10);

/// A DNS lookup that takes longer has failed.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Where a provider is called, and with which credential.
pub(in crate::upstream) struct Endpoint {
    /// A number that no other provider has, before or after a reload.
    pub(in crate::upstream) index: usize,
    pub(super) settings: Arc<config::Provider>,
    /// The value of `Authorization`, ready to be sent.
    pub(in crate::upstream) authorization: Option<http::HeaderValue>,
    /// The heads of calls on plain connections.
    pub(super) heads: Heads,
    peers: ArcSwap<Vec<Arc<HttpPeer>>>,
    next: AtomicU32,
}

impl Endpoint {
    pub(in crate::upstream) fn new(index: usize, settings: Arc<config::Provider>) -> Endpoint {
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

    /// Whether it is reached through Pingora's connector rather than a plain socket.
    pub(in crate::upstream) fn needs_connector(&self) -> bool {
        self.settings.base_url.tls || self.settings.http2
    }

    /// An address to call, round robin; resolved if none is known yet.
    pub(in crate::upstream) async fn peer(&self) -> std::io::Result<Arc<HttpPeer>> {
        if let Some(peer) = self.next_peer() {
            return Ok(peer);
        }
        Box::pin(self.resolve()).await?;
        self.next_peer()
            .ok_or_else(|| std::io::Error::other("the name has no address"))
    }

    /// The number of its known addresses.
    pub(in crate::upstream) fn addresses(&self) -> u32 {
        self.peers.load().len() as u32
    }

    fn next_peer(&self) -> Option<Arc<HttpPeer>> {
        let peers = self.peers.load();
        match peers.len() {
            0 => None,
            1 => Some(peers[0].clone()),
            many => {
                let turn = self.next.fetch_add(1, Ordering::Relaxed) as usize;
                Some(peers[turn % many].clone())
            }
        }
    }

    /// Resolves the name without blocking a worker thread; keeps the known addresses when the lookup fails.
    async fn resolve(&self) -> std::io::Result<()> {
        let url = &self.settings.base_url;
        let lookup = tokio::net::lookup_host((url.host.as_str(), url.port));
        let found = tokio::time::timeout(LOOKUP_MAX, lookup).await??;
        let mut addresses: Vec<SocketAddr> = found.collect();
        addresses.sort_unstable();
        addresses.dedup();
        let known = self.peers.load();
        let same = known.len() == addresses.len()
            && known
                .iter()
                .zip(&addresses)
                .all(|(peer, address)| peer_address(peer) == Some(*address));
        if !addresses.is_empty() && !same {
            let peers = addresses
                .into_iter()
                .map(|address| Arc::new(self.peer_at(address)));
            self.peers.store(Arc::new(peers.collect()));
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

/// The internet address of a peer; every peer here has one.
pub(super) fn peer_address(peer: &HttpPeer) -> Option<SocketAddr> {
    use pingora_core::upstreams::peer::Peer;
    peer.address().as_inet().copied()
}
