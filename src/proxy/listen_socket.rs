//! Listening sockets: TCP, and Unix sockets with their files.

use std::io;
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

use super::socket::ClientSocket;
use crate::config::{ListenAddress, Listener};

/// The address of a peer on a Unix socket. Such a peer has no address: a process of this machine.
const LOCAL_PEER: SocketAddr = SocketAddr::new(IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

#[derive(Debug)]
pub(crate) enum ListenSocket {
    /// By IP.
    Tcp(TcpListener),
    /// By the path of a file.
    Unix(UnixListener),
}

/// Why the file of a Unix socket cannot be used.
#[derive(Debug, thiserror::Error)]
enum FileError {
    #[error("another process listens there; stop it, or use another path")]
    InUse,
    #[error("it is not a socket; remove it, or use another path")]
    NotASocket,
}

impl ListenSocket {
    /// Opens the socket of a listener. The file of a Unix socket that no process listens on any more is replaced.
    pub(super) fn open(listener: &Listener) -> io::Result<ListenSocket> {
        match &listener.address {
            ListenAddress::Tcp(address) => TcpListener::bind(address).map(ListenSocket::Tcp),
            ListenAddress::Unix(path) => bind(path).map(ListenSocket::Unix),
        }
    }

    /// Another process's socket at this address.
    pub(crate) fn received(address: &ListenAddress, file: OwnedFd) -> ListenSocket {
        match address {
            ListenAddress::Tcp(_) => ListenSocket::Tcp(file.into()),
            ListenAddress::Unix(_) => ListenSocket::Unix(file.into()),
        }
    }

    /// Whether clients still find it: the file of a Unix socket may have been removed.
    pub(super) fn is_reachable(&self, address: &ListenAddress) -> bool {
        match address {
            ListenAddress::Tcp(_) => true,
            ListenAddress::Unix(path) => path.exists(),
        }
    }

    /// Gives the file of a Unix socket the permissions of the settings.
    pub(super) fn permit(&self, listener: &Listener) -> io::Result<()> {
        match &listener.address {
            ListenAddress::Tcp(_) => Ok(()),
            ListenAddress::Unix(path) => {
                let permissions = std::fs::Permissions::from_mode(listener.socket_mode);
                std::fs::set_permissions(path, permissions)
            }
        }
    }

    /// A second handle of the socket.
    pub(crate) fn try_clone(&self) -> io::Result<ListenSocket> {
        Ok(match self {
            ListenSocket::Tcp(socket) => ListenSocket::Tcp(socket.try_clone()?),
            ListenSocket::Unix(socket) => ListenSocket::Unix(socket.try_clone()?),
        })
    }

    pub(super) fn set_nonblocking(&self) -> io::Result<()> {
        match self {
            ListenSocket::Tcp(socket) => socket.set_nonblocking(true),
            ListenSocket::Unix(socket) => socket.set_nonblocking(true),
        }
    }

    /// The address, with the port assigned by the system.
    pub(super) fn address(&self, of: &ListenAddress) -> io::Result<ListenAddress> {
        match self {
            ListenSocket::Tcp(socket) => socket.local_addr().map(ListenAddress::Tcp),
            ListenSocket::Unix(_) => Ok(of.clone()),
        }
    }

    /// Registers the socket with the runtime of this thread.
    pub(super) fn register(self) -> io::Result<Acceptor> {
        Ok(match self {
            ListenSocket::Tcp(socket) => Acceptor::Tcp(tokio::net::TcpListener::from_std(socket)?),
            ListenSocket::Unix(socket) => {
                Acceptor::Unix(tokio::net::UnixListener::from_std(socket)?)
            }
        })
    }
}

impl AsFd for ListenSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        match self {
            ListenSocket::Tcp(socket) => socket.as_fd(),
            ListenSocket::Unix(socket) => socket.as_fd(),
        }
    }
}

/// A listening socket of one worker.
pub(super) enum Acceptor {
    Tcp(tokio::net::TcpListener),
    Unix(tokio::net::UnixListener),
}

impl Acceptor {
    /// The next connection, and its peer; a peer on a Unix socket counts as 127.0.0.1.
    pub(super) async fn accept(&self) -> io::Result<(ClientSocket, SocketAddr)> {
        match self {
            Acceptor::Tcp(listener) => {
                let (socket, peer) = listener.accept().await?;
                // Small writes must be sent at once; connected data is joined before the write.
                let _ = socket.set_nodelay(true);
                Ok((ClientSocket::new(socket), peer))
            }
            Acceptor::Unix(listener) => {
                let (socket, _) = listener.accept().await?;
                Ok((ClientSocket::of_unix(socket), LOCAL_PEER))
            }
        }
    }
}

/// Binds a Unix socket. Until the permissions are set, the mask of the process decides, by default the owner alone.
fn bind(path: &Path) -> io::Result<UnixListener> {
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(error),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(io::Error::other(FileError::NotASocket));
        }
        Ok(_) if UnixStream::connect(path).is_ok() => {
            return Err(io::Error::other(FileError::InUse));
        }
        Ok(_) => std::fs::remove_file(path)?,
    }
    UnixListener::bind(path)
}

/// The file of a Unix socket of this process.
#[derive(Debug)]
pub(crate) struct SocketFile {
    path: PathBuf,
    inode: u64,
}

impl SocketFile {
    /// The file of a listening address; `None` without a file.
    pub(crate) fn of(address: &ListenAddress) -> Option<SocketFile> {
        let ListenAddress::Unix(path) = address else {
            return None;
        };
        let inode = std::fs::symlink_metadata(path).ok()?.ino();
        Some(SocketFile {
            path: path.clone(),
            inode,
        })
    }

    /// Removes the file, unless another process has put its file in place. For the end of a process without a successor.
    pub(crate) fn remove(&self) {
        let there = std::fs::symlink_metadata(&self.path);
        let is_own = there.is_ok_and(|there| there.ino() == self.inode);
        if is_own && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::warn!(path = %self.path.display(), %error, "removing socket file failed");
        }
    }
}
