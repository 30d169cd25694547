//! The admin interface: health and metrics over HTTP on loopback, changes to accounts over the control socket.
//!
//! Both run on one thread of their own, so they answer when the threads that serve clients are busy or stuck, and report it: `/live` probes
//! each of them.

mod audit;
mod changes;
pub mod control;
mod http;
mod service;
pub(crate) mod views;

use std::future::Future;
use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::config::{Difference, Settings};
use crate::telemetry::Telemetry;
pub use changes::{Actor, ApplyFuture, Caller, ChangeError, ChangeErrorKind, Changes};
use control::SocketError;
pub use service::AdminService;

/// Readiness: whether clients should be routed here, evaluated on each request.
pub type Readiness = Box<dyn Fn() -> Ready + Send + Sync>;

/// Liveness: which workers are stuck, evaluated on each request.
pub type Liveness = Box<dyn Fn() -> LivenessCheck + Send + Sync>;

/// A liveness check in progress.
pub type LivenessCheck = Pin<Box<dyn Future<Output = Workers> + Send>>;

/// The result of a liveness check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Workers {
    /// The number of workers.
    pub all: usize,
    /// The indices of those that did not answer in time.
    pub unresponsive: Vec<usize>,
}

/// A value shown as JSON, evaluated on each request.
pub type JsonSource = Arc<dyn Fn() -> serde_json::Value + Send + Sync>;

/// The settings of a running gateway.
pub trait RunningSettings: Send + Sync {
    /// Reads the settings file again and puts it in force, all or nothing; the error is for the operator. Blocks.
    fn reload(&self) -> Result<ReloadedSettings, String>;

    /// What a reload would change; the error is for the operator. Blocks.
    fn differences(&self) -> Result<Vec<Difference>, String>;

    /// The settings in force.
    fn settings(&self) -> Arc<Settings>;
}

/// A gateway that can be replaced by a new process.
pub trait Upgrade: Send + Sync {
    /// Starts a program, by default that of this process, which takes over; the error is for the operator. Blocks.
    fn upgrade(&self, program: Option<&Path>) -> Result<Upgraded, String>;
}

/// The result of an upgrade.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Upgraded {
    /// The process that serves now.
    pub process: u32,
    /// The requests that the earlier process still serves.
    pub open: usize,
}

/// The settings after a reload.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct ReloadedSettings {
    /// Their version: 1 at the start, and one more with each reload.
    pub version: u64,
    /// The first digits of a hash over the file and the variables that override it.
    pub digest: String,
    /// What has changed.
    pub changes: Vec<Difference>,
}

/// The content of `/ready`.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Ready {
    /// Reasons why no client should be routed here; empty when ready.
    pub reasons: Vec<String>,
    /// Warnings for the operator that do not affect readiness.
    pub warnings: Vec<String>,
}

/// The inputs of the admin thread.
pub struct Options {
    /// The address of `/live`, `/ready`, `/metrics` and `/providers`; port 0 selects a free one.
    pub address: SocketAddr,
    /// The path of the control socket: beside the database.
    pub socket: PathBuf,
    /// The metrics.
    pub telemetry: Telemetry,
    /// The liveness check.
    pub liveness: Liveness,
    /// The readiness check.
    pub readiness: Readiness,
    /// The health of the model providers.
    pub providers: JsonSource,
    /// The service that makes the changes.
    pub service: Arc<dyn Changes>,
    /// The sockets of the predecessor: the address as it is in the settings, and the control socket.
    pub adopted: Option<((SocketAddr, TcpListener), UnixListener)>,
}

/// The sockets of the admin thread, for a successor.
pub struct AdminSockets {
    /// The address in the settings.
    pub address: SocketAddr,
    /// Health and metrics.
    pub http: TcpListener,
    /// The control socket.
    pub control: UnixListener,
    released: watch::Sender<bool>,
    is_released: Arc<AtomicBool>,
}

impl AdminSockets {
    /// Leaves new connections to the successor.
    pub fn release(&self) {
        self.is_released.store(true, Ordering::Relaxed);
        self.released.send_replace(true);
    }
}

/// Why the admin thread did not start.
#[derive(Debug, thiserror::Error)]
pub enum AdminError {
    /// The address is in use, or not permitted.
    #[error("could not listen on `{address}` for health and metrics; change `admin.address`")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        #[source]
        source: std::io::Error,
    },
    /// The control socket could not be created.
    #[error(transparent)]
    Socket(#[from] SocketError),
    /// No thread.
    #[error("could not start the admin thread")]
    Thread(#[source] std::io::Error),
}

/// The running admin thread; on drop it ends and its socket is removed.
pub struct Admin {
    address: SocketAddr,
    sockets: Option<AdminSockets>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Binds both sockets and starts the thread.
    ///
    /// # Errors
    ///
    /// When one of the sockets cannot be bound.
    pub fn start(options: Options) -> Result<Admin, AdminError> {
        let Options {
            address,
            socket,
            telemetry,
            liveness,
            readiness,
            providers,
            service,
            adopted,
        } = options;
        let listen = |source| AdminError::Listen { address, source };
        let configured = address;
        let (http, control) = adopted.unzip();
        let listener = match http.filter(|(of, _)| *of == address) {
            Some((_, listener)) => listener,
            None => TcpListener::bind(address).map_err(listen)?,
        };
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let control = match control {
            Some(control) => control::Socket::adopt(control, &socket)?,
            None => control::Socket::bind(&socket)?,
        };
        let (release, released) = watch::channel(false);
        let sockets = AdminSockets {
            address: configured,
            http: listener.try_clone().map_err(listen)?,
            control: control.share().map_err(listen)?,
            released: release,
            is_released: control.is_released(),
        };
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(AdminError::Thread)?;
        let (stop, stopped) = watch::channel(false);
        let thread = std::thread::Builder::new()
            .name("admin".to_owned())
            .spawn(move || {
                runtime.block_on(async move {
                    let endpoints = http::Endpoints {
                        telemetry,
                        liveness,
                        readiness,
                        providers,
                        service: service.clone(),
                    };
                    tokio::join!(
                        http::serve(listener, endpoints, stopped.clone(), released.clone()),
                        control::serve(control, service, stopped, released),
                    );
                });
            })
            .map_err(AdminError::Thread)?;
        Ok(Admin {
            address,
            sockets: Some(sockets),
            stop,
            thread: Some(thread),
        })
    }

    /// Its sockets, once.
    pub fn take_sockets(&mut self) -> Option<AdminSockets> {
        self.sockets.take()
    }

    /// Its address, with the port as assigned by the system.
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
            tracing::error!("admin thread panicked");
        }
    }
}

#[cfg(test)]
mod tests;
