//! The control socket: operations of the operator while the gateway runs.
//!
//! Balances and keys are in the gateway's memory. Therefore no second process may change balances or keys in the database. The control
//! socket is a Unix socket beside the file of an SQLite database. A request is a line with a JSON object, and the answer is a line with a
//! JSON object. Only the owner has access to the socket's file, and the peer must be the owner or root.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde_json::Value;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::changes::Actor;
use super::operations::operation::{
    Answer, Changes, Operation, Request, read_output, request_line,
};

/// Maximum length of a line in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Time for a line to arrive.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time limit for the answers to open requests when the gateway stops.
pub(super) const ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);

/// Why the control socket could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens on the socket.
    #[error("`{}` is another gateway's control socket; stop that gateway, or give this one another `admin.socket`", .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// The file at the path is not a socket.
    #[error("`{}` is not a socket; move it, the control socket needs this path", .path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// A system error. A path of more than about 100 bytes is too long for a socket.
    #[error("could not create the control socket `{}`; set `admin.socket` to a path in a folder where this user may create files", .path.display())]
    File {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
}

/// The bound control socket. A drop removes the file, unless a successor has the socket.
#[derive(Debug)]
pub struct Socket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    owner: u32,
    /// Whether the file belongs to a successor now.
    is_released: Arc<AtomicBool>,
}

impl Socket {
    /// Binds the socket. The stale file of a stopped gateway is replaced. A file with a listener is an error.
    ///
    /// # Errors
    ///
    /// When the path is taken or the system refuses.
    pub fn bind(path: &Path) -> Result<Socket, SocketError> {
        let failed = |source| SocketError::File {
            path: path.to_owned(),
            source,
        };
        if is_stale(path)? {
            std::fs::remove_file(path).map_err(failed)?;
        }
        let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed)?;
        let made = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| std::fs::symlink_metadata(path));
        // Another user may have connected between `bind` and `set_permissions`; the check of the peer refuses the user.
        let owner = made.map_err(failed)?.uid();
        Ok(Socket {
            listener,
            path: path.to_owned(),
            owner,
            is_released: Arc::default(),
        })
    }

    /// Verifies that a socket can be created at `path`, before any step that would need an undo.
    ///
    /// # Errors
    ///
    /// When files cannot be created in the folder of `path`.
    pub fn check(path: &Path) -> Result<(), SocketError> {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        // A file without a name: the system removes the file at close.
        match tempfile::tempfile_in(folder.unwrap_or(Path::new("."))) {
            Ok(_) => Ok(()),
            Err(source) => Err(SocketError::File {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// Verifies in addition to [`Socket::check`] that no process listens at `path`.
    ///
    /// # Errors
    ///
    /// As for [`Socket::bind`].
    pub fn check_free(path: &Path) -> Result<(), SocketError> {
        is_stale(path)?;
        Socket::check(path)
    }

    /// Adopts the socket of the predecessor. A socket at another path is closed, and a new socket is bound to `path`.
    ///
    /// # Errors
    ///
    /// As for [`Socket::bind`].
    pub fn adopt(
        listener: std::os::unix::net::UnixListener,
        path: &Path,
    ) -> Result<Socket, SocketError> {
        let is_same = is_at(&listener, path);
        let there = std::fs::symlink_metadata(path);
        match there {
            Ok(there) if is_same && there.file_type().is_socket() => Ok(Socket {
                listener,
                path: path.to_owned(),
                owner: there.uid(),
                is_released: Arc::default(),
            }),
            _ => {
                drop(listener);
                Socket::bind(path)
            }
        }
    }

    /// The listening socket, for a successor.
    pub(super) fn share(&self) -> io::Result<std::os::unix::net::UnixListener> {
        self.listener.try_clone()
    }

    /// Whether the file stays at the end of the process.
    pub(super) fn is_released(&self) -> Arc<AtomicBool> {
        self.is_released.clone()
    }
}

/// Whether `path` is the socket of a stopped gateway.
fn is_stale(path: &Path) -> Result<bool, SocketError> {
    let path_of = || path.to_owned();
    match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(source) => Err(SocketError::File {
            path: path_of(),
            source,
        }),
        Ok(there) if !there.file_type().is_socket() => {
            Err(SocketError::NotASocket { path: path_of() })
        }
        Ok(_) if std::os::unix::net::UnixStream::connect(path).is_ok() => {
            Err(SocketError::InUse { path: path_of() })
        }
        Ok(_) => Ok(true),
    }
}

/// Whether a socket is bound to `path`.
pub(crate) fn is_at(socket: &std::os::unix::net::UnixListener, path: &Path) -> bool {
    let bound = socket.local_addr();
    bound.is_ok_and(|bound| bound.as_pathname() == Some(path))
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.is_released.load(Ordering::Relaxed) {
            // The next gateway would replace a remaining file.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Reads the operation of a line.
pub(super) type ReadRequest = fn(&[u8]) -> serde_json::Result<Box<dyn Request>>;

/// Serves until `stopped` completes.
pub(super) async fn serve(
    socket: Socket,
    read_request: ReadRequest,
    service: Arc<dyn Changes>,
    mut stopped: watch::Receiver<bool>,
    mut released: watch::Receiver<bool>,
) {
    let listener = match socket
        .listener
        .try_clone()
        .and_then(tokio::net::UnixListener::from_std)
    {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "serving control socket failed");
            return;
        }
    };
    let mut connections = JoinSet::new();
    loop {
        while connections.try_join_next().is_some() {}
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => break,
            _ = released.wait_for(|released| *released) => break,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let peer = stream.peer_cred().map(|peer| peer.uid());
        let Some(uid) = peer.ok().filter(|uid| *uid == socket.owner || *uid == 0) else {
            tracing::warn!("refused control socket connection: peer is neither the owner nor root");
            continue;
        };
        let service = service.clone();
        connections.spawn(async move {
            if let Err(error) = serve_connection(stream, uid, read_request, &*service).await {
                tracing::debug!(%error, "control socket connection failed");
            }
        });
    }
    drop(listener);
    let _ = stopped.wait_for(|stop| *stop).await;
    // Open requests are still answered: the request for an upgrade ends the process.
    let answered = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(ANSWERS_TIMEOUT, answered).await;
}

/// Answers the lines of a connection of a user in order.
async fn serve_connection(
    stream: UnixStream,
    uid: u32,
    read_request: ReadRequest,
    service: &dyn Changes,
) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut read).take(LINE_BYTES_MAX);
        let arriving = limited.read_until(b'\n', &mut line);
        let count = tokio::time::timeout(LINE_TIMEOUT, arriving).await??;
        if count == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            // Too long, or truncated: the intent is unknown, and the line has no effect.
            let answer = refusal("the line is too long or is not terminated".to_owned());
            return write.write_all(&line_of(answer)).await;
        }
        let answer = match read_request(&line) {
            Err(error) => refusal(format!(
                "the gateway does not know this request ({error}); use the same version of `tollgate` for the command and the gateway"
            )),
            Ok(request) => match service.apply(request, Actor::User(uid).into()).await {
                Ok(applied) => applied.to_json(),
                Err(error) => refusal(error.message),
            },
        };
        write.write_all(&line_of(answer)).await?;
    }
}

fn line_of(answer: serde_json::Result<Vec<u8>>) -> Vec<u8> {
    let mut line = answer.expect("an answer is plain data");
    line.push(b'\n');
    line
}

fn refusal(message: String) -> serde_json::Result<Vec<u8>> {
    serde_json::to_vec(&Answer::<()>::Error(message))
}

/// Why a request to a running gateway failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No gateway runs on the database.
    #[error("no gateway answers on `{}`; start it, or run this command on its machine, with its settings (`admin.socket`)", .path.display())]
    NoGateway {
        /// The socket.
        path: PathBuf,
    },
    /// The connection to the gateway broke. Whether the change was made is unknown.
    #[error("the gateway did not answer on `{}`; check whether the change was made before repeating it", .path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The result does not have the form of the operation's result.
    #[error(
        "the gateway sent an unexpected answer; use the same version of `tollgate` for the command and the gateway"
    )]
    Unexpected,
    /// The gateway refused; the text is the gateway's.
    #[error("{0}")]
    Refused(String),
}

/// Sends an operation to the gateway behind a socket, and blocks until the answer arrives.
///
/// # Errors
///
/// [`ControlError::NoGateway`] when no gateway listens: the caller may write to the database.
pub fn request<O: Operation>(path: &Path, operation: &O) -> Result<O::Output, ControlError> {
    use std::io::{BufRead, Write};
    let mut stream = match std::os::unix::net::UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Err(ControlError::NoGateway {
                path: path.to_owned(),
            });
        }
        Err(source) => {
            return Err(ControlError::Broken {
                path: path.to_owned(),
                source,
            });
        }
    };
    let mut exchange = || -> io::Result<Answer<Value>> {
        stream.set_read_timeout(Some(O::TIMEOUT))?;
        let line = request_line(operation)?;
        stream.write_all(&line)?;
        let mut answer = String::new();
        if io::BufReader::new(&stream).read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&answer)?)
    };
    match exchange() {
        Ok(Answer::Ok(applied)) => read_output::<O>(applied).ok_or(ControlError::Unexpected),
        Ok(Answer::Error(error)) => Err(ControlError::Refused(error)),
        Err(source) => Err(ControlError::Broken {
            path: path.to_owned(),
            source,
        }),
    }
}
