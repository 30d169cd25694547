//! A stand-in model provider: the documented OpenAI protocol over real sockets, with scriptable misbehaviour.
//!
//! [`Provider::start`] listens on a free port of 127.0.0.1 and speaks HTTP/1.1 and HTTP/2, with or without TLS.
//!
//! | Path (any prefix before it) | Answer |
//! |---|---|
//! | `POST .../chat/completions`, `POST .../completions` | a completion, plain or streamed, see [`answer`] |
//! | `GET .../models` | the models of [`Settings::models`] |
//! | `/_control/...` | the stand-in's control endpoints, see [`control`] |
//!
//! Misbehaviour is defined by a [`Script`], for the next requests ([`Provider::script`], `POST /_control/script`) or for one request only,
//! in its body's member `stand_in`. Received requests are in [`Provider::calls`].

pub mod answer;
mod calls;
pub mod case_insensitive;
mod compose;
pub mod control;
mod dispatch;
mod http1;
mod http2;
mod plan;
mod play;
mod request;
mod script;
mod serve;
pub mod standard;
mod state;

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::gate::Gate;
use crate::guard::within;
pub use calls::{Call, Ended};
pub use plan::{Plan, Step};
pub use request::Request;
pub use script::{Cut, Failure, Framing, Hold, Leave, LineEnd, Script, UsageReport};
use serve::Listening;
use state::Shared;
pub use state::{Custom, Settings};

/// A running stand-in. It stops, and drops its connections, when this is dropped.
pub struct Provider {
    shared: Arc<Shared>,
    address: SocketAddr,
    wanted: watch::Sender<Listening>,
    actual: watch::Receiver<Listening>,
    thread: Option<JoinHandle<()>>,
}

impl Provider {
    /// Starts a stand-in with the default settings in the caller's tokio runtime.
    ///
    /// # Panics
    ///
    /// When no port is available.
    pub async fn start() -> Self {
        Self::start_with(Settings::default())
            .await
            .expect("a free port on loopback")
    }

    /// Starts a stand-in in the caller's tokio runtime.
    ///
    /// # Errors
    ///
    /// When [`Settings::address`] cannot be bound.
    pub async fn start_with(settings: Settings) -> io::Result<Self> {
        let (provider, server) = Self::make(settings).await?;
        tokio::spawn(server);
        Ok(provider)
    }

    /// Starts a stand-in on its own thread and runtime, for callers that have none.
    ///
    /// # Errors
    ///
    /// When [`Settings::address`] cannot be bound, or no thread is available.
    pub fn start_own_thread(settings: Settings) -> io::Result<Self> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        let (mut provider, server) = runtime.block_on(Self::make(settings))?;
        let thread = std::thread::Builder::new()
            .name("provider stand-in".to_owned())
            .spawn(move || runtime.block_on(server))?;
        provider.thread = Some(thread);
        Ok(provider)
    }

    async fn make(
        settings: Settings,
    ) -> io::Result<(Self, impl Future<Output = ()> + Send + 'static)> {
        let listener = serve::listen(settings.address)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::new(settings));
        let (wanted, wanted_by_all) = watch::channel(Listening::Yes);
        let (actually, actual) = watch::channel(Listening::Yes);
        let server = serve::accept(listener, address, shared.clone(), wanted_by_all, actually);
        let provider = Self {
            shared,
            address,
            wanted,
            actual,
            thread: None,
        };
        Ok((provider, server))
    }

    /// Its listening address.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Its address as a URL without a path: `http://127.0.0.1:PORT`, or `https://localhost:PORT` with TLS.
    pub fn url(&self) -> String {
        match self.shared.settings.tls {
            Some(_) => format!("https://localhost:{}", self.address.port()),
            None => format!("http://{}", self.address),
        }
    }

    /// The base URL of its OpenAI-compatible interface: [`Provider::url`] and `/v1`.
    pub fn base_url(&self) -> String {
        format!("{}/v1", self.url())
    }

    /// Adds a script after the existing ones. The first one that matches a request applies to it.
    pub fn script(&self, script: Script) {
        self.shared.scripts().push_back(script);
    }

    /// Removes all scripts: requests get valid responses again.
    pub fn clear_scripts(&self) {
        self.shared.scripts().clear();
    }

    /// The gate named `name` in scripts.
    pub fn gate(&self, name: &str) -> Gate {
        self.shared.gate(name)
    }

    /// The calls so far, oldest first, as many of them as [`Settings::calls_kept`]; control requests are not among them.
    pub fn calls(&self) -> Vec<Call> {
        self.shared.calls.list()
    }

    /// Received data that is not valid HTTP/1.1: must be empty at the end of every test.
    pub fn malformed(&self) -> Vec<String> {
        self.shared.calls.malformed()
    }

    /// Number of calls so far.
    pub fn call_count(&self) -> u64 {
        self.shared.calls.count()
    }

    /// The latest call.
    ///
    /// # Panics
    ///
    /// When there has been none.
    pub fn last_call(&self) -> Call {
        self.calls()
            .pop()
            .expect("no call has come to the provider")
    }

    /// Deletes the calls so far and counts from zero.
    pub fn forget_calls(&self) {
        self.shared.calls.forget();
    }

    /// Waits until the calls satisfy `condition`, and returns them; `what` names the condition for the message.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub async fn calls_when(&self, what: &str, condition: impl Fn(&[Call]) -> bool) -> Vec<Call> {
        let mut changes = self.shared.calls.changes();
        within(what, async {
            loop {
                changes.borrow_and_update();
                let calls = self.calls();
                if condition(&calls) {
                    return calls;
                }
                // The sender lives in `self.shared`.
                let _ = changes.changed().await;
            }
        })
        .await
    }

    /// Waits until every call so far has ended in any way, and returns the calls.
    ///
    /// # Panics
    ///
    /// When that takes longer than a minute.
    pub async fn calls_when_ended(&self) -> Vec<Call> {
        let ended = |calls: &[Call]| calls.iter().all(|call| call.ended.is_some());
        self.calls_when("the end of all calls to the provider", ended)
            .await
    }

    /// Resets the next `connections` connections as soon as they are accepted.
    pub fn reset_connections(&self, connections: u32) {
        self.shared
            .to_reset
            .store(connections, std::sync::atomic::Ordering::Relaxed);
    }

    /// Closes the HTTP/1.1 connections that wait for a request: a provider's idle time-out.
    pub fn hang_up_idle(&self) {
        self.shared.hang_ups.send_modify(|count| *count += 1);
    }

    /// Closes the listening socket, so that new connections are refused; open ones remain.
    pub async fn stop_listening(&self) {
        self.listen(Listening::No).await;
    }

    /// Listens again at the same address after [`Provider::stop_listening`].
    ///
    /// # Panics
    ///
    /// When the port was taken in the meantime.
    pub async fn listen_again(&self) {
        self.listen(Listening::Yes).await;
    }

    async fn listen(&self, wanted: Listening) {
        self.wanted.send_replace(wanted);
        let mut actual = self.actual.clone();
        let reached = within(
            "the listener of the provider",
            actual.wait_for(|now| *now == wanted),
        )
        .await;
        assert!(
            reached.is_ok(),
            "the provider cannot listen at {} again",
            self.address
        );
    }
}

impl Drop for Provider {
    fn drop(&mut self) {
        self.wanted.send_replace(Listening::Over);
        if let Some(thread) = self.thread.take() {
            // A panic of that thread has been printed by it.
            let _ = thread.join();
        }
    }
}
