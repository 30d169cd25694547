//! Free and unused addresses on loopback.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

/// A port of 127.0.0.1 that was free a moment ago, for programs that cannot choose a free port themselves.
///
/// # Errors
///
/// When the system has no free port.
pub fn free_port() -> io::Result<u16> {
    Ok(TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?
        .local_addr()?
        .port())
}

/// An address at which connections are refused: no process listens there.
///
/// # Errors
///
/// As [`free_port`].
pub fn refusing_address() -> io::Result<SocketAddr> {
    Ok((Ipv4Addr::LOCALHOST, free_port()?).into())
}
