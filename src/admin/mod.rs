//! What operators talk to: health and metrics over HTTP on loopback, changes to accounts over the control socket.
//!
//! Both live on one thread of their own, so they answer when the threads that serve clients are busy or stuck, and say so: `/live` asks
//! each of them.

mod clerk;
pub mod control;
mod http;

use std::future::Future;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::telemetry::Telemetry;
pub use clerk::Clerk;
use control::{Changes, SocketError};

/// Whether clients should be sent here, asked each time somebody wants to know.
pub type Readiness = Box<dyn Fn() -> Ready + Send + Sync>;

/// Which workers are stuck, asked each time somebody wants to know.
pub type Liveness = Box<dyn Fn() -> Asking + Send + Sync>;

/// The workers while they are asked.
pub type Asking = Pin<Box<dyn Future<Output = Workers> + Send>>;

/// What became of asking the workers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// How many there are.
    pub all: usize,
    /// The numbers of those that did not answer in time.
    pub unresponsive: Vec<usize>,
}

/// Something to be shown as JSON, asked each time somebody wants to see it.
pub type Look = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// The answer to `/ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Ready {
    /// Why no client should be sent here; empty when all is well.
    pub reasons: Vec<String>,
    /// What an operator should know although clients may come.
    pub warnings: Vec<String>,
}

/// What the admin thread needs.
pub struct Options {
    /// Where `/live`, `/ready`, `/metrics` and `/providers` are; port 0 takes a free one.
    pub address: SocketAddr,
    /// Where the control socket is: beside the database.
    pub socket: PathBuf,
    /// The metrics.
    pub telemetry: Telemetry,
    /// Which workers are stuck.
    pub liveness: Liveness,
    /// Whether clients should be sent here.
    pub readiness: Readiness,
    /// How the model providers are.
    pub providers: Look,
    /// What changes are made to.
    pub books: Arc<dyn Changes>,
}

/// Why the admin thread did not start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is taken, or not ours to use.
    #[error("could not listen on `{address}` for health and metrics; change `admin.address`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The control socket could not be made.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// No thread.
    #[error("could not start the admin thread")]
    Thread(#[source] std::io::Error),
}

/// The running admin thread; dropped, it ends and takes its socket with it.
pub struct Admin {
    address: SocketAddr,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Binds both sockets and starts the thread.
    ///
    /// # Errors
    ///
    /// When one of the sockets cannot be had.
    pub fn start(options: Options) -> Result<Admin, AdminError> {
        let Options {
            address,
            socket,
            telemetry,
            liveness,
            readiness,
            providers,
            books,
        } = options;
        let listen = |source| AdminError::Listen { address, source };
        let listener = std::net::TcpListener::bind(address).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let control = control::Socket::bind(&socket)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(AdminError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    let pages = http::Pages {
                        telemetry,
                        liveness,
                        readiness,
                        providers,
                        books: books.clone(),
                    };
                    tokio::join!(
                        http::serve(listener, pages, stopped.clone()),
                        control::serve(control, books, stopped),
                    );
                });
            })
            .map_err(AdminError::Thread)?;
        Ok(Admin {
            address,
            stop,
            thread: Some(thread),
        })
    }

    /// Where it listens, with the port as the system gave it.
    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

impl Drop for Admin {
    fn drop(&mut self) {
        self.stop.send_replace(true);
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
        {
            tracing::error!("the admin thread had panicked");
        }
    }
}

#[cfg(test)]
mod tests;
