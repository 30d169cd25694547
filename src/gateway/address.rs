//! The bound address of a listener.

use crate::config::ListenAddress;

/// The bound address of a listener.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Address and port, the port as assigned by the system, or the path of a Unix socket.
    pub address: ListenAddress,
    /// Whether it uses TLS.
    pub tls: bool,
}
