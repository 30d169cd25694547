//! The admin interface: health, metrics and the admin API over HTTP, operations over the control socket.
//!
//! HTTP and the control socket run on the admin thread. The admin thread answers while the threads for clients are busy or stuck, and
//! reports stuck threads: `/live` probes every thread for clients.

mod access;
mod api;
mod audit;
mod changes;
pub mod control;
mod http;
pub(crate) mod operations;
mod origin;
mod running;
mod service;
pub(crate) mod upkeep;
pub(crate) mod views;

use std::net::{SocketAddr, TcpListener};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use tokio::sync::watch;

use crate::proxy::set_accept_queue;
use crate::telemetry::Telemetry;
pub use access::Access;
use api::Api;
pub use api::ApiDeps;
pub(crate) use api::openapi;
pub(crate) use audit::{record_of, record_of_accepted_loss};
pub use changes::{Actor, Caller, ChangeError, ChangeErrorKind};
use control::SocketError;
pub use operations::operation::{Applied, ApplyFuture, Changes, Operation, Recorded, Request, Run};
pub use running::{
    JsonSource, Liveness, LivenessCheck, Readiness, Ready, ReloadedSettings, RunningSettings,
    Upgrade, Upgraded, Workers,
};
pub use service::AdminService;

/// Length of the system's accept queue of the admin address. The thread accepts at once, unless every place has a request under way.
const ACCEPT_QUEUE: u32 = 1024;

/// The inputs of the admin thread.
pub struct Options {
    /// The address of health, metrics and the admin API; port 0 selects a free port.
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
    /// The service for changes.
    pub service: Arc<dyn Changes>,
    /// Who may use the address.
    pub access: Arc<Access>,
    /// The inputs of the admin API; `None` for no admin API.
    pub api: Option<ApiDeps>,
    /// The sockets of the predecessor: the address in the settings with the HTTP socket, and the control socket.
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
    /// The thread could not be started.
    #[error("could not start the admin thread")]
    Thread(#[source] std::io::Error),
}

/// Opens the address of health, metrics and the admin API.
///
/// # Errors
///
/// When another program listens at the address, or the user lacks the permission.
pub fn listen(address: SocketAddr) -> Result<TcpListener, AdminError> {
    TcpListener::bind(address).map_err(|source| AdminError::Listen { address, source })
}

/// The running admin thread. A drop ends the thread and removes the control socket.
pub struct Admin {
    address: SocketAddr,
    sockets: Option<AdminSockets>,
    stop: watch::Sender<bool>,
    thread: Option<JoinHandle<()>>,
}

impl Admin {
    /// Binds the HTTP socket and the control socket, and starts the thread.
    ///
    /// # Errors
    ///
    /// When a socket cannot be bound, or the thread cannot be started.
    pub fn start(options: Options) -> Result<Admin, AdminError> {
        let Options {
            address,
            socket,
            telemetry,
            liveness,
            readiness,
            providers,
            service,
            access,
            api,
            adopted,
        } = options;
        let failed = |source| AdminError::Listen { address, source };
        let configured = address;
        let (http, control) = adopted.unzip();
        let listener = match http.filter(|(of, _)| *of == address) {
            Some((_, listener)) => listener,
            None => listen(address)?,
        };
        listener.set_nonblocking(true).map_err(failed)?;
        set_accept_queue(&listener, ACCEPT_QUEUE).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let control = match control {
            Some(control) => control::Socket::adopt(control, &socket)?,
            None => control::Socket::bind(&socket)?,
        };
        let (release, released) = watch::channel(false);
        let sockets = AdminSockets {
            address: configured,
            http: listener.try_clone().map_err(failed)?,
            control: control.share().map_err(failed)?,
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
                    let api = api.map(|deps| Api::new(deps, service.clone(), access.clone()));
                    let endpoints = http::Endpoints {
                        access,
                        api,
                        telemetry,
                        liveness,
                        readiness,
                        providers,
                        service: service.clone(),
                        answers_within: control::ANSWERS_TIMEOUT,
                    };
                    tokio::join!(
                        http::serve(listener, endpoints, stopped.clone(), released.clone()),
                        control::serve(control, operations::read, service, stopped, released),
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

    /// The sockets; `None` after the first call.
    pub fn take_sockets(&mut self) -> Option<AdminSockets> {
        self.sockets.take()
    }

    /// The address, with the port assigned by the system.
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
