//! The socket to the server: TCP or a Unix socket, plain or with TLS, with a time limit for every wait.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{TcpStream, ToSocketAddrs};
use std::os::fd::AsFd as _;
use std::os::unix::net::UnixStream;
use std::time::Duration;

use bytes::BytesMut;
use postgres_protocol::message::frontend;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt;
use rustls::pki_types::ServerName;
use rustls::{ClientConnection, StreamOwned};

use crate::connection::Target;
use crate::profile::{Profile, Transport};
use crate::tls::TlsMode;
use crate::url::{DatabaseUrl, Host};

/// Time limit for a connection to be made.
pub const CONNECT: Duration = Duration::from_secs(5);

/// TCP keepalive of a quiet connection: the time before the first probe, and the time between probes.
const KEEPALIVE: Duration = Duration::from_secs(10);
const KEEPALIVE_EVERY: Duration = Duration::from_secs(5);

/// TCP user timeout: the time without an acknowledgement of probes or data before the connection counts as lost. Less than a wait for an
/// answer: a read of a connection whose other end is gone fails earlier.
const UNACKNOWLEDGED: Duration = Duration::from_secs(20);

pub(crate) enum Socket {
    Plain(RawSocket),
    Tls(Box<StreamOwned<ClientConnection, RawSocket>>),
}

pub(crate) enum RawSocket {
    Tcp(TcpStream),
    Unix(UnixStream),
    /// A connection of the program that uses this crate.
    Other(Box<dyn Transport>),
}

impl Socket {
    /// Connects, with TLS as the address says; `limit` is the limit of a wait for data.
    pub(crate) fn connect(target: &Target, limit: Duration) -> io::Result<Socket> {
        let url = &target.url;
        let mut raw = RawSocket::connect(url, target.profile)?;
        raw.limit(limit)?;
        let Some(config) = &target.tls else {
            return Ok(Socket::Plain(raw));
        };
        let mut request = BytesMut::new();
        frontend::ssl_request(&mut request);
        raw.write_all(&request)?;
        // Only one byte: the next bytes belong to TLS.
        let mut answer = [0];
        raw.read_exact(&mut answer)?;
        match (answer[0], url.tls) {
            (b'S', _) => {}
            (_, TlsMode::Prefer) => return Ok(Socket::Plain(raw)),
            _ => {
                return Err(io::Error::other(
                    "the server offers no TLS; turn it on there, or use `sslmode=disable` on a network that you trust",
                ));
            }
        }
        let name = match &url.host {
            Host::Name(name) => name.clone(),
            Host::Folder(_) => "localhost".to_owned(),
        };
        let name = ServerName::try_from(name).map_err(io::Error::other)?;
        let client = ClientConnection::new(config.clone(), name).map_err(io::Error::other)?;
        let mut stream = StreamOwned::new(client, raw);
        // The handshake: handshake errors are not reported as errors of a statement.
        while stream.conn.is_handshaking() {
            stream.conn.complete_io(&mut stream.sock)?;
        }
        Ok(Socket::Tls(Box::new(stream)))
    }

    /// Sets the time limit of a wait for data.
    pub(crate) fn limit(&self, limit: Duration) -> io::Result<()> {
        self.raw().limit(limit)
    }

    /// Waits for data to read, at most `time`. An error counts as data.
    pub(crate) fn is_readable_within(&mut self, time: Duration) -> bool {
        let raw = match self {
            Socket::Plain(raw) => raw,
            Socket::Tls(stream) => {
                // TLS may have read more bytes than were taken.
                let state = stream.conn.process_new_packets();
                if state.map_or(true, |state| state.plaintext_bytes_to_read() > 0) {
                    return true;
                }
                &stream.sock
            }
        };
        raw.is_readable_within(time)
    }

    /// Whether the server has closed the connection, or has sent unexpected data.
    pub(crate) fn is_stale(&self) -> bool {
        let raw = self.raw();
        if raw.set_nonblocking(true).is_err() {
            return true;
        }
        let peeked = raw.peek();
        let is_quiet = peeked.is_err_and(|error| error.kind() == ErrorKind::WouldBlock);
        raw.set_nonblocking(false).is_err() || !is_quiet
    }

    fn raw(&self) -> &RawSocket {
        match self {
            Socket::Plain(raw) => raw,
            Socket::Tls(stream) => &stream.sock,
        }
    }
}

/// Has the system notice a silent loss of the other end.
fn notice_loss(socket: &TcpStream) -> io::Result<()> {
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_EVERY)?;
    // With the user timeout the number of probes does not count.
    sockopt::set_tcp_user_timeout(socket, UNACKNOWLEDGED.as_millis() as u32)?;
    Ok(())
}

impl RawSocket {
    fn connect(url: &DatabaseUrl, profile: &Profile) -> io::Result<RawSocket> {
        if let Some(socket) = (profile.connect)(url) {
            return socket.map(RawSocket::Other);
        }
        let name = match &url.host {
            Host::Folder(folder) => {
                let path = folder.join(format!(".s.PGSQL.{}", url.port));
                return Ok(RawSocket::Unix(UnixStream::connect(path)?));
            }
            Host::Name(name) => name,
        };
        let mut last = io::Error::new(ErrorKind::NotFound, "the host has no address");
        for address in (name.as_str(), url.port).to_socket_addrs()? {
            match TcpStream::connect_timeout(&address, CONNECT) {
                Ok(socket) => {
                    socket.set_nodelay(true)?;
                    notice_loss(&socket)?;
                    return Ok(RawSocket::Tcp(socket));
                }
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    fn limit(&self, time: Duration) -> io::Result<()> {
        let limit = Some(time);
        match self {
            RawSocket::Tcp(socket) => socket
                .set_read_timeout(limit)
                .and_then(|()| socket.set_write_timeout(limit)),
            RawSocket::Unix(socket) => socket
                .set_read_timeout(limit)
                .and_then(|()| socket.set_write_timeout(limit)),
            RawSocket::Other(socket) => {
                socket.limit(time);
                Ok(())
            }
        }
    }

    fn set_nonblocking(&self, is_on: bool) -> io::Result<()> {
        match self {
            RawSocket::Tcp(socket) => socket.set_nonblocking(is_on),
            RawSocket::Unix(socket) => socket.set_nonblocking(is_on),
            RawSocket::Other(_) => Ok(()),
        }
    }

    fn is_readable_within(&self, time: Duration) -> bool {
        let socket = match self {
            RawSocket::Tcp(socket) => socket.as_fd(),
            RawSocket::Unix(socket) => socket.as_fd(),
            RawSocket::Other(socket) => return socket.is_readable_within(time),
        };
        // Not by a time limit of the socket, which is as long as a tick of the system's clock.
        let time = Timespec::try_from(time).ok();
        let mut polled = [PollFd::from_borrowed_fd(socket, PollFlags::IN)];
        match poll(&mut polled, time.as_ref()) {
            Ok(count) => count > 0,
            Err(error) => error != Errno::INTR,
        }
    }

    /// Looks for data, without taking the data.
    fn peek(&self) -> io::Result<usize> {
        let mut byte = [0];
        match self {
            RawSocket::Tcp(socket) => socket.peek(&mut byte),
            // A Unix socket cannot be peeked into with the standard library. Data read here means that the connection is unusable anyway.
            RawSocket::Unix(socket) => {
                let mut socket = socket;
                socket.read(&mut byte)
            }
            RawSocket::Other(socket) => match socket.is_stale() {
                true => Ok(0),
                false => Err(ErrorKind::WouldBlock.into()),
            },
        }
    }
}

impl Read for RawSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            RawSocket::Tcp(socket) => socket.read(buffer),
            RawSocket::Unix(socket) => socket.read(buffer),
            RawSocket::Other(socket) => socket.read(buffer),
        }
    }
}

impl Write for RawSocket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            RawSocket::Tcp(socket) => socket.write(bytes),
            RawSocket::Unix(socket) => socket.write(bytes),
            RawSocket::Other(socket) => socket.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Read for Socket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(raw) => raw.read(buffer),
            Socket::Tls(stream) => stream.read(buffer),
        }
    }
}

impl Write for Socket {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Socket::Plain(raw) => raw.write(bytes),
            Socket::Tls(stream) => stream.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Socket::Plain(_) => Ok(()),
            Socket::Tls(stream) => stream.flush(),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;
    use crate::profile::TESTS;

    #[test]
    fn the_system_notices_that_the_other_end_of_a_tcp_connection_is_gone() {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let url = format!("postgres://test@127.0.0.1:{port}/test");
        let url = DatabaseUrl::parse(&url).expect("an address");
        let RawSocket::Tcp(socket) = RawSocket::connect(&url, &TESTS).expect("a connection") else {
            panic!("the address is one of TCP");
        };
        let asks = sockopt::socket_keepalive(&socket).expect("an option");
        let unacknowledged = sockopt::tcp_user_timeout(&socket).expect("an option");
        assert_eq!((asks, unacknowledged), (true, 20_000));
        let idle = sockopt::tcp_keepidle(&socket).expect("an option");
        let every = sockopt::tcp_keepintvl(&socket).expect("an option");
        assert_eq!((idle, every), (KEEPALIVE, KEEPALIVE_EVERY));
    }
}
