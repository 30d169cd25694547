//! Free and unused addresses on loopback.

use std::io::{self, ErrorKind};
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::Range;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::net::TcpSocket;
use tollgate_clock::Entropy;

/// Below 32768, where Linux begins with the ports that it gives to port 0 and to outgoing connections: no socket of a test that runs beside
/// takes one of these before the program that it is meant for listens.
const PORTS: Range<u16> = 16_384..32_768;

/// A free port of 127.0.0.1, for programs that cannot choose one themselves; each call of a process returns another one.
///
/// # Errors
///
/// When none of them is free.
pub fn free_port() -> io::Result<u16> {
    static CALLS: AtomicU64 = AtomicU64::new(0);
    static START: OnceLock<u64> = OnceLock::new();
    let start = START.get_or_init(|| u64::from(u32::from_ne_bytes(Entropy::system().bytes())));
    PORTS
        .map(|_| {
            let call = CALLS.fetch_add(1, Ordering::Relaxed);
            let offset = (start + call) % PORTS.len() as u64;
            PORTS.start + u16::try_from(offset).expect("below the number of ports")
        })
        .find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok())
        .ok_or_else(|| ErrorKind::AddrInUse.into())
}

/// An address at which connections are refused until the process ends: its socket is bound, and does not listen.
///
/// # Errors
///
/// When the system has no free port.
pub fn refusing_address() -> io::Result<SocketAddr> {
    let socket = TcpSocket::new_v4()?;
    socket.bind((Ipv4Addr::LOCALHOST, 0).into())?;
    let address = socket.local_addr()?;
    std::mem::forget(socket);
    Ok(address)
}
