//! A port whose connections are forwarded to an address that is known later.

use std::net::{Ipv4Addr, SocketAddr};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::AbortHandle;

/// The port. It closes when this is dropped.
pub(super) struct Forward {
    port: u16,
    target: watch::Sender<Option<SocketAddr>>,
    task: AbortHandle,
}

impl Forward {
    /// Opens a free port.
    pub(super) async fn start() -> Forward {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await;
        let listener = listener.expect("a free port on loopback");
        let port = listener
            .local_addr()
            .expect("a bound socket has one")
            .port();
        let target = watch::Sender::new(None);
        let targets = target.subscribe();
        let accepting = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            while let Ok((mut here, _)) = listener.accept().await {
                let mut targets = targets.clone();
                connections.spawn(async move {
                    let target = targets.wait_for(Option::is_some).await;
                    let Some(target) = target.ok().and_then(|target| *target) else {
                        return;
                    };
                    if let Ok(mut there) = TcpStream::connect(target).await {
                        // A connection that breaks off does so on both sides.
                        let _ = tokio::io::copy_bidirectional(&mut here, &mut there).await;
                    }
                });
            }
        });
        Forward {
            port,
            target,
            task: accepting.abort_handle(),
        }
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    /// Forwards there from now on.
    pub(super) fn set(&self, target: SocketAddr) {
        self.target.send_replace(Some(target));
    }
}

impl Drop for Forward {
    fn drop(&mut self) {
        self.task.abort();
    }
}
