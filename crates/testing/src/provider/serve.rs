//! The HTTP server: accepts connections and detects the protocol of each.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;

use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio_rustls::TlsAcceptor;

use super::state::Shared;
use super::{http1, http2};
use crate::wire::{Io, Wire};

/// The start of an HTTP/2 connection (RFC 9113 section 3.4), as far as needed to distinguish it from HTTP/1.1.
const PREFACE_START: &[u8] = b"PRI * HTTP/2.0\r\n";

/// Whether the stand-in listens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Listening {
    Yes,
    No,
    /// Stopped, and its connections are dropped.
    Over,
}

/// Connections that wait to be accepted: a gateway that starts under load opens hundreds at once, and the system drops what does not fit, to be
/// sent again by the client after a second.
const ACCEPT_QUEUE: u32 = 4096;

pub(super) fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = match address {
        SocketAddr::V4(_) => TcpSocket::new_v4(),
        SocketAddr::V6(_) => TcpSocket::new_v6(),
    }?;
    socket.set_reuseaddr(true)?;
    socket.bind(address)?;
    socket.listen(ACCEPT_QUEUE)
}

/// Accepts connections while `wanted` is set.
pub(super) async fn accept(
    listener: TcpListener,
    address: SocketAddr,
    shared: Arc<Shared>,
    mut wanted: watch::Receiver<Listening>,
    actual: watch::Sender<Listening>,
) {
    let tls = shared.settings.tls.as_ref();
    let tls =
        tls.map(|certificate| TlsAcceptor::from(certificate.server_config(&["h2", "http/1.1"])));
    let mut listener = Some(listener);
    let mut connections = JoinSet::new();
    loop {
        tokio::select! {
            changed = wanted.changed() => {
                let now = *wanted.borrow_and_update();
                if changed.is_err() || now == Listening::Over {
                    return;
                }
                listener = match (now, listener.take()) {
                    (Listening::Yes, None) => match listen(address) {
                        Ok(listener) => Some(listener),
                        // Returning drops `actual`, which notifies its waiters.
                        Err(_) => return,
                    },
                    (Listening::Yes, listener) => listener,
                    _ => None,
                };
                actual.send_replace(now);
            }
            Some(socket) = accepted(listener.as_ref()) => {
                let to_reset = shared.to_reset.fetch_update(Relaxed, Relaxed, |left| left.checked_sub(1));
                if to_reset.is_ok() {
                    socket.reset_on_close();
                } else {
                    connections.spawn(connection(socket, tls.clone(), shared.clone()));
                }
            }
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn accepted(listener: Option<&TcpListener>) -> Option<TcpStream> {
    match listener {
        // A failed accept is caused by the peer or by a lack of descriptors; in both cases there is no connection.
        Some(listener) => listener.accept().await.ok().map(|(socket, _)| socket),
        None => std::future::pending().await,
    }
}

async fn connection(socket: TcpStream, tls: Option<TlsAcceptor>, shared: Arc<Shared>) {
    let number = shared.connections.fetch_add(1, Relaxed) + 1;
    // Small pieces have to be sent one by one; this is their purpose.
    let _ = socket.set_nodelay(true);
    let Some(tls) = tls else {
        let mut wire = Wire::new(Box::new(socket));
        if starts_http2(&mut wire).await {
            return http2::serve(wire, shared, number).await;
        }
        return http1::serve(wire, shared, number).await;
    };
    let Ok(stream) = tls.accept(socket).await else {
        return;
    };
    let is_http2 = stream.get_ref().1.alpn_protocol() == Some(b"h2");
    let wire = Wire::new(Box::new(stream));
    if is_http2 {
        http2::serve(wire, shared, number).await;
    } else {
        http1::serve(wire, shared, number).await;
    }
}

async fn starts_http2(wire: &mut Wire) -> bool {
    loop {
        let have = wire.inbox.len().min(PREFACE_START.len());
        if wire.inbox[..have] != PREFACE_START[..have] {
            return false;
        }
        if have == PREFACE_START.len() {
            return true;
        }
        if !matches!(wire.fill().await, Ok(1..)) {
            return false;
        }
    }
}
