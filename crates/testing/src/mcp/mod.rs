//! A stand-in MCP server: Streamable HTTP over real sockets, with scriptable misbehaviour.
//!
//! [`McpServer::start`] listens on a free port of 127.0.0.1 and speaks HTTP/1.1. By default it is a small server with sessions and a few
//! tools ([`protocol`]). A test can script the connection of the next request step by step ([`McpServer::play`]). Received requests are in
//! [`McpServer::calls`], piece by piece and unchanged.

pub mod protocol;
mod serve;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread::JoinHandle;

use bytes::Bytes;
use http::HeaderMap;
use tokio::sync::{oneshot, watch};

use crate::certificate::Certificate;
use crate::gate::Gate;
use crate::guard::within;
use protocol::Sessions;

/// One step of a [`McpServer::play`].
#[derive(Clone, Debug)]
pub enum Act {
    /// Sends these bytes.
    Send(Bytes),
    /// Sends these bytes as one chunk.
    Chunk(Bytes),
    /// Stops at the gate of this name until the test releases it, or the peer disconnects.
    Stop(&'static str),
    /// Reads the next piece of the request's body.
    ReadPiece,
    /// Reads the request's body to its end.
    ReadBody,
    /// Closes the connection here; with a reset if set.
    Cut {
        /// Whether with a reset.
        reset: bool,
    },
    /// Waits until the peer has disconnected.
    Wait,
}

impl Act {
    /// Sends a text unchanged.
    pub fn send(text: &str) -> Act {
        Act::Send(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// Sends a text as one chunk.
    pub fn chunk(text: &str) -> Act {
        Act::Chunk(Bytes::copy_from_slice(text.as_bytes()))
    }

    /// The last chunk.
    pub fn last_chunk() -> Act {
        Act::send("0\r\n\r\n")
    }

    /// The head of a stream of events.
    pub fn event_stream() -> Act {
        Act::send(
            "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n",
        )
    }
}

/// A received request, as far as it has arrived.
#[derive(Clone, Debug)]
pub struct McpCall {
    /// The method.
    pub method: String,
    /// Path and query.
    pub target: String,
    /// Field lines by name.
    pub headers: HeaderMap,
    /// The body so far.
    pub body: Vec<u8>,
    /// Whether the body is complete.
    pub is_whole: bool,
    /// Whether the other side closed the connection before the response was complete.
    pub was_left: bool,
    /// The number of its connection, from 0.
    pub connection: usize,
}

/// A running stand-in. It stops, and drops its connections, when this is dropped.
pub struct McpServer {
    shared: Arc<Shared>,
    address: SocketAddr,
    tls: bool,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

/// State shared by the handle and all connections.
pub(super) struct Shared {
    plays: Mutex<VecDeque<Vec<Act>>>,
    gates: Mutex<HashMap<&'static str, Gate>>,
    calls: Mutex<Vec<McpCall>>,
    /// Changes whenever a call does.
    news: watch::Sender<()>,
    sessions: Mutex<Sessions>,
    tls: Option<Certificate>,
}

impl Shared {
    fn gate(&self, name: &'static str) -> Gate {
        let mut gates = self.gates.lock().expect("no panic under the lock");
        gates.entry(name).or_default().clone()
    }

    fn calls(&self) -> MutexGuard<'_, Vec<McpCall>> {
        self.calls.lock().expect("no panic under the lock")
    }

    fn change(&self, number: usize, change: impl FnOnce(&mut McpCall)) {
        change(&mut self.calls()[number]);
        self.news.send_replace(());
    }
}

impl McpServer {
    /// Starts a stand-in in the caller's tokio runtime.
    ///
    /// # Panics
    ///
    /// When no port is available.
    pub async fn start() -> McpServer {
        McpServer::start_with(None).await
    }

    /// The same with TLS, using this certificate, if there is one.
    ///
    /// # Panics
    ///
    /// When no port is available.
    pub async fn start_with(tls: Option<Certificate>) -> McpServer {
        let (server, work) = McpServer::make(tls).await.expect("a free port on loopback");
        tokio::spawn(work);
        server
    }

    /// Starts a stand-in on its own thread and runtime, for callers that have none.
    ///
    /// # Errors
    ///
    /// When no port or no thread is available.
    pub fn start_own_thread() -> io::Result<McpServer> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (mut server, work) = runtime.block_on(McpServer::make(None))?;
        let thread = std::thread::Builder::new()
            .name("MCP stand-in".to_owned())
            .spawn(move || runtime.block_on(work))?;
        server.thread = Some(thread);
        Ok(server)
    }

    async fn make(
        tls: Option<Certificate>,
    ) -> io::Result<(McpServer, impl Future<Output = ()> + Send + 'static)> {
        let listener = tokio::net::TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await?;
        let address = listener.local_addr()?;
        let (stop, stopped) = oneshot::channel();
        let has_tls = tls.is_some();
        let shared = Arc::new(Shared {
            plays: Mutex::default(),
            gates: Mutex::default(),
            calls: Mutex::default(),
            news: watch::Sender::new(()),
            sessions: Mutex::default(),
            tls,
        });
        let work = serve::accept(listener, shared.clone(), stopped);
        let server = McpServer {
            shared,
            address,
            tls: has_tls,
            stop: Some(stop),
            thread: None,
        };
        Ok((server, work))
    }

    /// The address of its endpoint.
    pub fn url(&self) -> String {
        match self.tls {
            true => format!("https://localhost:{}/mcp", self.address.port()),
            false => format!("http://{}/mcp", self.address),
        }
    }

    /// Scripts the connection of the next request; several scripts are played in the order given.
    pub fn play(&self, acts: impl Into<Vec<Act>>) {
        let plays = self.shared.plays.lock();
        let mut plays = plays.expect("no panic under the lock");
        plays.push_back(acts.into());
    }

    /// The gate of this name.
    pub fn gate(&self, name: &'static str) -> Gate {
        self.shared.gate(name)
    }

    /// Every request so far, in order of arrival.
    pub fn calls(&self) -> Vec<McpCall> {
        self.shared.calls().clone()
    }

    /// Waits until the calls satisfy `are_so`, and returns them.
    ///
    /// # Panics
    ///
    /// When they do not within a minute.
    pub async fn when(&self, what: &str, are_so: impl Fn(&[McpCall]) -> bool) -> Vec<McpCall> {
        let mut news = self.shared.news.subscribe();
        let wait = news.wait_for(|()| are_so(&self.shared.calls()));
        // The sender lives in `self`, so the wait ends only by the condition.
        let _ = within(what, wait).await;
        self.calls()
    }
}

impl Drop for McpServer {
    fn drop(&mut self) {
        if let Some(stop) = self.stop.take() {
            // It may have ended by itself.
            let _ = stop.send(());
        }
        if let Some(thread) = self.thread.take() {
            // A panic of the stand-in has been printed.
            let _ = thread.join();
        }
    }
}
