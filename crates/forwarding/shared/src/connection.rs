//! One connection to the server: TCP or TLS, then the handshake of the protocol.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use arc_swap::ArcSwap;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, RedisConnectionInfo};
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::ServerName;
use secrecy::ExposeSecret;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::config::SharedSettings;

/// The limit of a whole attempt to connect.
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Queued calls. Further calls wait for the queue, within their own limit.
const CALLS_QUEUED_MAX: usize = 1024;

/// Why the connection is missing.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    #[error("cannot connect: {0}")]
    Tcp(io::Error),
    #[error("TLS handshake failed: {0}")]
    Tls(io::Error),
    #[error("the server refused the session: {0}")]
    Session(redis::RedisError),
    #[error("no connection within {} seconds", CONNECT_LIMIT.as_secs())]
    Slow,
}

/// The work of a connection, until it ends.
pub(crate) type Driver = Pin<Box<dyn Future<Output = ()> + Send>>;

trait Stream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<T: AsyncRead + AsyncWrite + Unpin + Send> Stream for T {}

/// Makes connections with equal settings.
pub(crate) struct Connector {
    settings: SharedSettings,
    tls: Option<(TlsConnector, ServerName<'static>)>,
    /// Of connections from now on.
    login: ArcSwap<RedisConnectionInfo>,
}

impl Connector {
    /// # Errors
    ///
    /// The host cannot be the name of a TLS server.
    pub(crate) fn new(
        settings: SharedSettings,
    ) -> Result<Connector, rustls_pki_types::InvalidDnsNameError> {
        let tls = match settings.tls {
            false => None,
            true => {
                let name = ServerName::try_from(settings.host.clone())?;
                Some((tls_connector(&settings), name))
            }
        };
        Ok(Connector {
            login: ArcSwap::from_pointee(login(&settings)),
            settings,
            tls,
        })
    }

    /// Logs in with the user and the password of these settings from now on. An open connection stays.
    pub(crate) fn replace_login(&self, settings: &SharedSettings) {
        self.login.store(Arc::new(login(settings)));
    }

    /// The user and the password for the next connection.
    pub(crate) fn login(&self) -> Arc<RedisConnectionInfo> {
        self.login.load_full()
    }

    /// A connection with this login, and the future with the connection's work.
    pub(crate) async fn connect(
        &self,
        login: Arc<RedisConnectionInfo>,
    ) -> Result<(MultiplexedConnection, Driver), ConnectError> {
        let attempt = async {
            let stream = self.stream().await?;
            let config = AsyncConnectionConfig::new()
                .set_response_timeout(None)
                .set_pipeline_buffer_size(CALLS_QUEUED_MAX);
            let made = MultiplexedConnection::new_with_config(&login, stream, config).await;
            let (connection, driver) = made.map_err(ConnectError::Session)?;
            // Not polled yet: the connection may already be closed; the caller's first poll reports the close.
            Ok((connection, Box::pin(driver) as Driver))
        };
        let made = tokio::time::timeout(CONNECT_LIMIT, attempt).await;
        made.unwrap_or(Err(ConnectError::Slow))
    }

    async fn stream(&self) -> Result<Box<dyn Stream>, ConnectError> {
        let address = (self.settings.host.as_str(), self.settings.port);
        let stream = TcpStream::connect(address).await;
        let stream = stream.map_err(ConnectError::Tcp)?;
        // Calls are small and waited for.
        stream.set_nodelay(true).map_err(ConnectError::Tcp)?;
        Ok(match &self.tls {
            None => Box::new(stream),
            Some((connector, name)) => {
                let stream = connector.connect(name.clone(), stream).await;
                Box::new(stream.map_err(ConnectError::Tls)?)
            }
        })
    }
}

fn login(settings: &SharedSettings) -> RedisConnectionInfo {
    let mut login = RedisConnectionInfo::default().set_db(settings.database);
    if let Some(user) = &settings.user {
        login = login.set_username(user);
    }
    if let Some(password) = &settings.password {
        login = login.set_password(password.expose_secret());
    }
    login
}

fn tls_connector(settings: &SharedSettings) -> TlsConnector {
    let mut roots = RootCertStore::empty();
    // Unreadable roots of the system are missing, and the handshake reports the absence.
    let system = rustls_native_certs::load_native_certs().certs;
    roots.add_parsable_certificates(system.into_iter().chain(settings.roots.iter().cloned()));
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions")
        .with_root_certificates(roots)
        .with_no_client_auth();
    TlsConnector::from(Arc::new(config))
}
