//! The model providers: their addresses, kept fresh, and whether they work.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use arc_swap::ArcSwap;
use pingora_core::protocols::ALPN;
use pingora_core::upstreams::peer::HttpPeer;
use pingora_core::utils::tls::{WrappedX509, parse_x509};
use tollgate_filter::Catalog;

use crate::config;

/// How often names are looked up again and silent providers are knocked at.
const REFRESH: Duration = Duration::from_secs(10);

/// A look-up that takes longer has failed.
const LOOKUP_MAX: Duration = Duration::from_secs(5);

/// Failed calls in a row after which a provider counts as not working.
const FAILURES_MAX: u32 = 3;

/// All model providers.
pub(crate) struct Providers {
    list: Vec<Arc<Provider>>,
    by_name: HashMap<Arc<str>, usize>,
    catalog: Arc<Catalog>,
}

/// One model provider.
pub(crate) struct Provider {
    pub(super) index: usize,
    pub(super) settings: Arc<config::Provider>,
    /// The value of `Authorization`, ready to be sent.
    pub(super) authorization: Option<http::HeaderValue>,
    peers: ArcSwap<Vec<Arc<HttpPeer>>>,
    next: AtomicU32,
    failures: AtomicU32,
}

impl Providers {
    pub(crate) fn new(list: &[Arc<config::Provider>], catalog: Arc<Catalog>) -> Providers {
        let list: Vec<Arc<Provider>> = list
            .iter()
            .enumerate()
            .map(|(index, settings)| Arc::new(Provider::new(index, settings.clone())))
            .collect();
        let by_name = list
            .iter()
            .map(|provider| (provider.settings.name.clone(), provider.index))
            .collect();
        Providers {
            list,
            by_name,
            catalog,
        }
    }

    pub(super) fn named(&self, name: &str) -> Option<&Arc<Provider>> {
        self.by_name.get(name).map(|&index| &self.list[index])
    }

    /// Whether any provider needs Pingora's connector, which loads the system's roots.
    pub(super) fn any_needs_connector(&self) -> bool {
        self.list.iter().any(|provider| provider.needs_connector())
    }

    /// Looks names up again and tries the providers that do not work, until dropped.
    pub(crate) async fn keep_fresh(&self) {
        loop {
            for provider in &self.list {
                if let Err(error) = provider.resolve().await {
                    let provider = &*provider.settings.name;
                    tracing::warn!(provider, %error, "cannot look up the provider's address");
                }
                if !provider.is_working() && provider.answers_knock().await {
                    provider.succeeded();
                }
            }
            self.mark_models();
            tokio::time::sleep(REFRESH).await;
        }
    }

    /// Tells the catalog which models can be had.
    pub(super) fn mark_models(&self) {
        for model in self.catalog.models() {
            let working = model
                .providers
                .iter()
                .filter_map(|one| self.named(&one.provider))
                .any(|provider| provider.is_working());
            model.working.store(working, Ordering::Relaxed);
        }
    }

    /// The names of the providers that do not work.
    pub(crate) fn failing(&self) -> Vec<Arc<str>> {
        let failing = self.list.iter().filter(|provider| !provider.is_working());
        failing
            .map(|provider| provider.settings.name.clone())
            .collect()
    }
}

impl Provider {
    fn new(index: usize, settings: Arc<config::Provider>) -> Provider {
        let authorization = settings.api_key.as_ref().map(|key| {
            let mut value = http::HeaderValue::try_from(format!("Bearer {}", key.expose()))
                .expect("a provider key is checked to be visible ASCII");
            value.set_sensitive(true);
            value
        });
        Provider {
            index,
            settings,
            authorization,
            peers: ArcSwap::default(),
            next: AtomicU32::new(0),
            failures: AtomicU32::new(0),
        }
    }

    /// Whether it is reached through Pingora's connector rather than a plain socket.
    pub(super) fn needs_connector(&self) -> bool {
        self.settings.base_url.tls || self.settings.http2
    }

    /// An address to call, in turn; looked up if none is known yet.
    pub(super) async fn peer(&self) -> std::io::Result<Arc<HttpPeer>> {
        if let Some(peer) = self.next_peer() {
            return Ok(peer);
        }
        Box::pin(self.resolve()).await?;
        self.next_peer()
            .ok_or_else(|| std::io::Error::other("the name has no address"))
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

    /// Looks the name up without blocking a thread that serves; keeps what was known when the look-up fails.
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

    /// Whether a connection can be opened.
    async fn answers_knock(&self) -> bool {
        let Some(address) = self.next_peer().as_deref().and_then(peer_address) else {
            return false;
        };
        let connect = tokio::net::TcpStream::connect(address);
        let limit = self.settings.timeouts.connect;
        matches!(tokio::time::timeout(limit, connect).await, Ok(Ok(_)))
    }

    pub(super) fn is_working(&self) -> bool {
        self.failures.load(Ordering::Relaxed) < FAILURES_MAX
    }

    /// Notes a call that was answered. `true` when that is news.
    pub(super) fn succeeded(&self) -> bool {
        // Reading first keeps the line of the counter shared between the workers.
        self.failures.load(Ordering::Relaxed) != 0
            && self.failures.swap(0, Ordering::Relaxed) >= FAILURES_MAX
    }

    /// Notes a call that was not answered. `true` when the provider counts as not working from now on.
    pub(super) fn failed(&self) -> bool {
        self.failures.fetch_add(1, Ordering::Relaxed) + 1 == FAILURES_MAX
    }
}

/// The internet address of a peer; every peer here has one.
pub(super) fn peer_address(peer: &HttpPeer) -> Option<SocketAddr> {
    use pingora_core::upstreams::peer::Peer;
    peer.address().as_inet().copied()
}
