//! Listeners: sockets, the accept loop with its connection limit, and the worker threads.

use std::io;
use std::net::{IpAddr, SocketAddr, TcpListener};
use std::os::fd::AsFd;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use pingora_core::listeners::tls::Acceptor;

use super::acme::AcmeChallenges;
use super::connection;
use super::connections::{Connection, Connections, Places};
use super::handed_over::{Relayed, TOKEN_BYTES};
use super::listen_socket::ListenSocket;
use super::liveness::Liveness;
use super::memory;
use super::proxy_protocol;
use super::socket::ClientSocket;
use super::source::Source;
use super::state::{OpenConnection, Proxy};
use super::tls::ListenerTls;
use super::wake::{boxed, coalesce_wakes};
use super::worker::Worker;
use crate::config::{ListenAddress, Listener, TrustedProxies};
use crate::telemetry::{ConnectionSide, ProxyProtocolFault, accept_queue_max};
use crate::upstream::within;

/// Backoff when no connection can be accepted for lack of file descriptors or memory.
const ACCEPT_BACKOFF: Duration = Duration::from_millis(100);

/// Time of further accepts at the end of `server.drain_delay_secs`: closing a listener resets waiting connections.
const ACCEPT_GRACE: Duration = Duration::from_millis(100);

/// A connection is idle this long after the end of its request.
const REST: Duration = Duration::from_secs(1);

/// Shorter than any time limit of a request, and long enough to cost nothing.
const TIMER_INTERVAL: Duration = Duration::from_secs(1);

/// A listening socket and its protocol.
pub(crate) struct Bound {
    socket: ListenSocket,
    address: ListenAddress,
    tls: Option<Arc<ListenerTls>>,
    http2: bool,
    health: bool,
    proxies: Option<Arc<TrustedProxies>>,
    /// The predecessor relays the requests.
    relayed: Option<Arc<Relayed>>,
}

/// Why a listener could not be opened.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address}; is another program using it, or may the gateway not use it?")]
pub struct ListenError {
    address: ListenAddress,
    #[source]
    source: io::Error,
}

impl Bound {
    /// Opens the socket of a listener.
    ///
    /// `accept_queue`: the number of connections kept by the system until the accept. `challenges` are answered in handshakes. `adopted`:
    /// the predecessor's open socket.
    pub(crate) fn open(
        listener: &Listener,
        accept_queue: u32,
        challenges: &Arc<AcmeChallenges>,
        adopted: Option<ListenSocket>,
    ) -> Result<Bound, ListenError> {
        let failed = |source| ListenError {
            address: listener.address.clone(),
            source,
        };
        let socket = match adopted.filter(|socket| socket.is_reachable(&listener.address)) {
            Some(socket) => socket,
            None => ListenSocket::open(listener).map_err(failed)?,
        };
        socket.permit(listener).map_err(failed)?;
        socket.set_nonblocking().map_err(failed)?;
        set_accept_queue(&socket, accept_queue).map_err(failed)?;
        let address = socket.address(&listener.address).map_err(failed)?;
        Ok(Bound {
            socket,
            address,
            tls: ListenerTls::of(listener, challenges),
            http2: listener.http2,
            health: listener.health,
            proxies: listener.proxies.clone(),
            relayed: None,
        })
    }

    /// The socket for the predecessor's relayed requests: as many at once as clients.
    pub(crate) fn relayed(
        socket: TcpListener,
        accept_queue: u32,
        token: [u8; TOKEN_BYTES],
    ) -> io::Result<Bound> {
        socket.set_nonblocking(true)?;
        set_accept_queue(&socket, accept_queue)?;
        Ok(Bound {
            address: ListenAddress::Tcp(socket.local_addr()?),
            socket: ListenSocket::Tcp(socket),
            tls: None,
            http2: false,
            health: false,
            proxies: None,
            relayed: Some(Arc::new(Relayed::new(token))),
        })
    }

    /// The socket, for a successor.
    pub(crate) fn socket(&self) -> io::Result<ListenSocket> {
        self.socket.try_clone()
    }

    /// The address, with the port assigned by the system.
    pub(crate) fn address(&self) -> ListenAddress {
        self.address.clone()
    }

    /// Whether the listener uses TLS.
    pub(crate) fn is_tls(&self) -> bool {
        self.tls.is_some()
    }

    /// The listener's TLS, for the replacement of certificates and authorities; `None` without TLS.
    pub(crate) fn tls(&self) -> Option<Arc<ListenerTls>> {
        self.tls.clone()
    }

    /// The socket for another worker.
    pub(super) fn share(&self) -> io::Result<Bound> {
        Ok(Bound {
            socket: self.socket.try_clone()?,
            address: self.address.clone(),
            tls: self.tls.clone(),
            http2: self.http2,
            health: self.health,
            proxies: self.proxies.clone(),
            relayed: self.relayed.clone(),
        })
    }
}

/// Reports an accept queue above the system's limit: the system silently shortens the queue.
pub(crate) fn report_accept_queue(accept_queue: u32) {
    if let Some(allowed) = accept_queue_max()
        && allowed < accept_queue
    {
        tracing::warn!(
            accept_queue,
            allowed,
            "accept queue is shorter than configured: raise the system's limit (`sysctl net.core.somaxconn`), or lower `server.accept_queue`"
        );
    }
}

/// The settings of a listener for each connection.
struct ConnectionSettings {
    tls: Option<Arc<ListenerTls>>,
    http2: bool,
    health: bool,
    /// A connection begins with a PROXY protocol header.
    proxy_protocol: bool,
    /// The predecessor relays the requests.
    relayed: Option<Arc<Relayed>>,
}

/// A connection with a place, before the first read.
struct Accepted {
    tcp: ClientSocket,
    peer: SocketAddr,
    source: Source,
    connection: Connection,
}

/// Accepts until the gateway drains.
pub(super) async fn accept(worker: Arc<Worker>, bound: Bound, connections: Arc<Connections>) {
    let listener = match bound.socket.register() {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(address = %bound.address, %error, "registering listening socket failed");
            return;
        }
    };
    let proxies = bound.proxies;
    let settings = ConnectionSettings {
        tls: bound.tls,
        http2: bound.http2,
        health: bound.health,
        proxy_protocol: proxies.as_ref().is_some_and(|one| one.proxy_protocol),
        relayed: bound.relayed,
    };
    let is_relay = settings.relayed.is_some();
    // A predecessor with relayed requests is served until its end, even while this process drains: this process may have handed over too,
    // and have no other connection.
    let (mut accepts_none, mut ends) = match is_relay {
        true => (worker.stopped(), worker.stopped()),
        false => (worker.accepts_none(), worker.draining()),
    };
    let mut has_predecessor = worker.proxy().state.has_predecessor.subscribe();
    let mut closing = pin!(async {
        let _ = accepts_none.wait_for(|none| *none).await;
        if !worker.proxy().has_handed_over() {
            tokio::time::sleep(ACCEPT_GRACE).await;
        }
    });
    loop {
        let accepted = tokio::select! {
            biased;
            _ = ends.wait_for(|ends| *ends) => return,
            _ = has_predecessor.wait_for(|has| !*has), if is_relay => return,
            accepted = listener.accept() => accepted,
            // The accept queue is empty.
            () = &mut closing => return,
        };
        let (tcp, peer) = match accepted {
            Ok(accepted) => accepted,
            Err(error) => {
                if !is_connection_error(&error) {
                    tracing::error!(address = %bound.address, %error, "accepting connection failed");
                    tokio::time::sleep(ACCEPT_BACKOFF).await;
                }
                continue;
            }
        };
        let source = Source::of(peer.ip(), proxies.as_ref());
        if settings.proxy_protocol && !source.is_trusted() {
            refuse(&worker, peer, ProxyProtocolFault::Untrusted);
            continue;
        }
        // A PROXY protocol header names the client later.
        let is_client_known = !settings.proxy_protocol && !is_relay;
        let prefix = is_client_known.then(|| source.connection().limited_prefix());
        let Some(mut connection) = connections.accept(prefix.flatten()) else {
            continue;
        };
        // Without a place this connection waits unread, and later connections wait in the system's accept queue, at no cost. A place is not
        // taken earlier: an idle listener would withhold the place from other listeners. A connection accepted at the moment of an upgrade
        // is served here: the client has connected, and no other process can have the connection.
        tokio::select! {
            biased;
            () = connection.take_place() => {}
            _ = ends.wait_for(|ends| *ends) => return,
        }
        let accepted = Accepted {
            tcp,
            peer,
            source,
            connection,
        };
        spawn_connection(&worker, &settings, accepted);
    }
}

/// Serves a connection in a separate task of the worker, from the PROXY protocol header or the TLS handshake on.
fn spawn_connection(worker: &Arc<Worker>, settings: &ConnectionSettings, accepted: Accepted) {
    let Accepted {
        mut tcp,
        peer,
        source,
        connection,
    } = accepted;
    let (worker, tls) = (worker.clone(), settings.tls.clone());
    let (http2, health) = (settings.http2, settings.health);
    let proxy_protocol = settings.proxy_protocol;
    let relayed = settings.relayed.clone();
    let wake_queue = worker.wake_queue().clone();
    let task_slot = connection.task_slot();
    let served = boxed(move || async move {
        let connection = Arc::new(connection);
        let _connection = OpenConnection::enter(worker.proxy().clone());
        let _open = worker.proxy().telemetry.connection();
        let mut source = source;
        if let Some(relayed) = relayed {
            let budget = &worker.proxy().answer_limits.memory;
            let origin = relayed.origin(&mut tcp, budget);
            let origin = Box::pin(within(worker.limits().head, origin)).await;
            if let Ok(Some(origin)) = origin {
                Box::pin(connection::relayed(worker, tcp, origin, connection)).await;
            }
            return;
        }
        if proxy_protocol {
            // Boxed, as a rare case: a task is as large as its largest branch.
            match Box::pin(read_header(&worker, &mut tcp, peer)).await {
                Some(named) => source = source.with_proxy_header(named),
                None => return,
            }
            let prefix = source.connection().limited_prefix();
            if prefix.is_some_and(|prefix| !connection.count_for(prefix)) {
                return;
            }
        }
        let Some(tls) = tls else {
            return connection::plain(worker, tcp, source, connection, (http2, health)).await;
        };
        let acceptor = Acceptor::from_server_config(tls.config());
        let handshake = Box::pin(async move { acceptor.tls_handshake(tcp).await });
        match within(worker.limits().head, handshake).await {
            Ok(Ok(stream)) => {
                Box::pin(connection::tls(worker, stream, source, connection, health)).await
            }
            Ok(Err(error)) => tracing::debug!(%peer, %error, "TLS handshake failed"),
            Err(_) => tracing::debug!(%peer, "TLS handshake timed out"),
        }
    });
    let task = tokio::spawn(coalesce_wakes(wake_queue, served));
    task_slot.set(task.abort_handle());
}

/// Reads the PROXY protocol header of a connection, and the named client if any. `None`: the connection is to be closed.
async fn read_header(
    worker: &Worker,
    tcp: &mut ClientSocket,
    peer: SocketAddr,
) -> Option<Option<IpAddr>> {
    let fault = match within(worker.limits().head, proxy_protocol::read(tcp)).await {
        Ok(Ok(reported)) => return Some(reported),
        Ok(Err(proxy_protocol::ReadError::Unused)) => return None,
        Ok(Err(proxy_protocol::ReadError::Malformed)) => ProxyProtocolFault::Malformed,
        Ok(Err(proxy_protocol::ReadError::Incomplete)) | Err(_) => ProxyProtocolFault::Incomplete,
    };
    refuse(worker, peer, fault);
    None
}

/// Counts a connection closed before any exchange of data.
fn refuse(worker: &Worker, peer: SocketAddr, fault: ProxyProtocolFault) {
    worker.proxy().telemetry.proxy_protocol_refused(fault);
    tracing::debug!(%peer, reason = fault.word(), "refusing connection: PROXY protocol header is required");
}

/// Keeps a timer running with an earlier expiry than the timers of requests.
///
/// The runtime makes a separate system call for each timer that expires before all others. Where requests run in step, completed together
/// by a commit, nearly every timer was such a timer.
async fn keep_timer() {
    loop {
        tokio::time::sleep(TIMER_INTERVAL).await;
    }
}

/// The standard library listens with a queue of its choice; a second call changes the length (listen(2)).
pub(crate) fn set_accept_queue(socket: impl AsFd, length: u32) -> io::Result<()> {
    let backlog = i32::try_from(length).unwrap_or(i32::MAX);
    Ok(rustix::net::listen(socket, backlog)?)
}

/// Whether the error belongs to a connection closed while waiting for the accept (accept(2)).
fn is_connection_error(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted
            | io::ErrorKind::ConnectionReset
            | io::ErrorKind::Interrupted
            | io::ErrorKind::WouldBlock
    )
}

/// Runs the workers' threads until the gateway has drained, and returns the liveness checks of the workers. Each worker owns a runtime,
/// connections and a connection pool to the providers: the request path passes no data between threads.
pub(crate) fn spawn_workers(
    proxy: &Arc<Proxy>,
    bound: Vec<Bound>,
) -> io::Result<(Vec<std::thread::JoinHandle<()>>, Liveness)> {
    let (liveness, responders) = Liveness::new(proxy.workers.get());
    let places = Places {
        max: proxy.limits.connections_max,
        per_address_max: proxy.limits.connections_per_address_max,
        rest: REST,
    };
    let connections = Connections::new(
        places,
        proxy.clock.clone(),
        proxy.telemetry.clone(),
        ConnectionSide::Client,
    );
    let mut threads = Vec::new();
    for (number, responder) in responders.into_iter().enumerate() {
        let listeners = bound
            .iter()
            .map(Bound::share)
            .collect::<io::Result<Vec<_>>>()?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (proxy, connections) = (proxy.clone(), connections.clone());
        let thread = std::thread::Builder::new()
            .name(format!("worker-{number}"))
            .spawn(move || {
                runtime.block_on(async move {
                    let worker = Arc::new(Worker::new(proxy.clone()));
                    let wake_queue = worker.wake_queue().clone();
                    tokio::spawn(async move { wake_queue.deliver().await });
                    let mut memory_release = worker.memory_release();
                    tokio::spawn(async move {
                        while memory_release.changed().await.is_ok() {
                            memory::give_back();
                        }
                    });
                    tokio::spawn(keep_timer());
                    tokio::spawn(responder.respond());
                    for listener in listeners {
                        tokio::spawn(accept(worker.clone(), listener, connections.clone()));
                    }
                    proxy.stopped().await;
                });
                // Pending DNS lookups and token counts are abandoned: no task waits for them.
                runtime.shutdown_background();
            })?;
        threads.push(thread);
    }
    Ok((threads, liveness))
}
