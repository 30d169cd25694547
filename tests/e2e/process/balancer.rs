//! A load balancer: a connection goes to the next of several gateways.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use super::installation::Serving;

/// A balancer on a port of 127.0.0.1. Test clients over HTTP/1.1 open a connection per request, so a request goes to the next gateway. A
/// drop stops the balancer.
pub(super) struct Balancer {
    pub(super) url: String,
    accepting: JoinHandle<()>,
}

impl Balancer {
    /// A balancer in front of the plain listeners of `nodes`.
    pub(super) async fn start(nodes: &[Serving]) -> Balancer {
        let address = |node: &Serving| -> SocketAddr {
            let address = node.url.strip_prefix("http://").expect("a plain listener");
            address.parse().expect("an address")
        };
        let nodes: Vec<SocketAddr> = nodes.iter().map(address).collect();
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
        let url = format!("http://{}", listener.local_addr().expect("a bound port"));
        let next = Arc::new(AtomicUsize::new(0));
        let accepting = tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let node = nodes[next.fetch_add(1, Ordering::Relaxed) % nodes.len()];
                tokio::spawn(async move {
                    // For a missing gateway, the client's connection ends.
                    if let Ok(mut gateway) = TcpStream::connect(node).await {
                        let _ = copy_bidirectional(&mut client, &mut gateway).await;
                    }
                });
            }
        });
        Balancer { url, accepting }
    }
}

impl Drop for Balancer {
    fn drop(&mut self) {
        self.accepting.abort();
    }
}
