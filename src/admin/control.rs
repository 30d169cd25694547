//! The control socket: changes to accounts, keys and credits while the gateway runs.
//!
//! Balances and keys are in the gateway's memory, so no other process may change them in the database. A Unix socket, beside the
//! file of an SQLite database, takes one JSON object a line and answers each with one. The file is accessible to its owner alone, and the peer must be that user
//! or root.

use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tollgate_clock::Timestamp;

use super::changes::{Actor, Changes};
use super::running::{ReloadedSettings, Upgraded};
use crate::config::Difference;

/// Maximum length of one line in bytes.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Time for a line to arrive.
const LINE_TIMEOUT: Duration = Duration::from_secs(30);
/// Time for the answer to an upgrade, each step of which has a shorter limit.
const UPGRADE_TIMEOUT: Duration = Duration::from_secs(180);

/// Time for the answer to a run of the retention, which writes and removes one file, and to a recovery, which posts what a node has left.
const RETENTION_TIMEOUT: Duration = Duration::from_secs(1800);

/// Time for the answers to requests that have arrived when the gateway stops.
pub(super) const ANSWERS_TIMEOUT: Duration = Duration::from_secs(1);

/// A requested change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Creates an account.
    AccountCreate {
        /// E-mail addresses for sign-in.
        emails: Vec<String>,
        /// Phone numbers for sign-in, in E.164 form.
        phones: Vec<String>,
        /// Its rate class; `free` by default.
        class: Option<String>,
        /// Who shares its stored answers: `shared` (the default), `account` or `off`.
        #[serde(default)]
        cache_scope: Option<String>,
    },
    /// Suspends an account, or ends its suspension.
    AccountSuspend {
        /// The account's id.
        account: String,
        /// Whether it is to be suspended.
        suspended: bool,
    },
    /// Cancels the monthly charge for an account's plan.
    AccountEndPlan {
        /// The account's id.
        account: String,
    },
    /// Changes the rate class of an account.
    AccountClass {
        /// The account's id.
        account: String,
        /// The class.
        class: String,
    },
    /// Sets who shares an account's stored answers.
    AccountCacheScope {
        /// The account's id.
        account: String,
        /// `shared`, `account` or `off`.
        scope: String,
    },
    /// Changes nothing of the account, and records that its data is exported.
    AccountExport {
        /// The account's id.
        account: String,
    },
    /// Closes an account for good, and removes what is personal of it.
    AccountDelete {
        /// The account's id.
        account: String,
        /// Whether credit that it has is forfeited.
        forfeit: bool,
    },
    /// Removes stored answers: one, those of a model, or all where neither is given.
    CachePurge {
        /// The `cache_entry_id` of one.
        id: Option<String>,
        /// The id of a model.
        model: Option<String>,
    },
    /// Changes nothing, and returns the contents and counters of the cache.
    CacheShow {},
    /// Reads the settings file again and puts it in force.
    SettingsReload {},
    /// Starts a new process that takes over.
    Upgrade {
        /// The program; that of the running process by default.
        program: Option<PathBuf>,
    },
    /// Changes nothing, and returns what a reload would change.
    SettingsDiff {},
    /// Changes nothing, and returns the health of the model providers.
    ProvidersShow {},
    /// Changes nothing, and returns which process answers. The credentials of the socket's peer do not say it after an upgrade: they are those
    /// of the process that has called listen(2).
    GatewayShow {},
    /// Exports old commits of the journal to one file, and removes them.
    RetentionRun {},
    /// Returns what a gateway of the same database has left that has ended.
    NodeRecover {
        /// Its name or number.
        node: String,
    },
    /// Creates a key.
    KeyCreate {
        /// The id of the account that pays.
        account: String,
        /// Its label.
        name: String,
        /// Names of scopes; all of the API by default.
        scopes: Vec<String>,
        /// The only models it may use; all models by default.
        models: Vec<String>,
        /// Its spending cap, as a decimal number of credits; none by default.
        spend_max: Option<String>,
        /// The period of the cap: `total` or `month`; `total` by default.
        spend_period: Option<String>,
        /// Its expiry, written in Unix microseconds.
        #[serde(default, with = "unix_micros")]
        expires_at: Option<Timestamp>,
    },
    /// Revokes a key; the next request with it is refused.
    KeyRevoke {
        /// The key's id.
        key: String,
    },
    /// Resolves a payment whose outcome is not proved, by the operator's decision.
    PaymentClose {
        /// Its id in the list.
        payment: String,
        /// The transaction in which it was paid; `None` for one that has moved nothing and never will.
        paid: Option<String>,
        /// Whether that transaction has a transfer of its own for this payment, beside that of another one.
        #[serde(default)]
        shared_transaction: bool,
    },
    /// Books a correction by the operator, which adds or removes credits.
    CreditsCorrect {
        /// The account's id.
        account: String,
        /// The amount, as a decimal number of credits; below zero to remove credits.
        amount: String,
        /// The idempotency key.
        reference: String,
    },
    /// Books credits granted by the operator.
    CreditsGrant {
        /// The account's id.
        account: String,
        /// The amount, as a decimal number of credits.
        amount: String,
        /// The idempotency key.
        reference: String,
    },
}

/// An optional time as Unix microseconds.
mod unix_micros {
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use tollgate_clock::Timestamp;

    pub(super) fn serialize<S: Serializer>(
        time: &Option<Timestamp>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        time.map(Timestamp::as_micros).serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Option<Timestamp>, D::Error> {
        let micros = Option::<i64>::deserialize(deserializer)?;
        Ok(micros.map(Timestamp::from_micros))
    }
}

/// The result of a change.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "applied", rename_all = "snake_case")]
pub enum Applied {
    /// An account was created.
    Account {
        /// Its id.
        id: String,
    },
    /// A key was created.
    Key {
        /// Its id.
        id: String,
        /// The secret: it is shown this once.
        secret: SecretText,
    },
    /// Credits were booked.
    Credits {
        /// The id of the operation.
        operation: String,
        /// Whether the reference had been booked before, so that nothing changed now.
        repeated: bool,
        /// The account's available balance, as a decimal number of credits.
        available: String,
    },
    /// Stored answers were removed.
    Purged {
        /// The number of them.
        removed: u64,
    },
    /// The contents and counters of the cache.
    Cache(CacheState),
    /// The health of the model providers.
    Providers {
        /// A list, as at `/providers` of the admin address.
        providers: serde_json::Value,
    },
    /// The process that answers.
    Gateway {
        /// Its id.
        process: u32,
        /// Its release.
        version: String,
        /// The file of its settings, without symbolic links. Not there while no gateway runs, and of an earlier release.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        settings: Option<PathBuf>,
    },
    /// Commits were exported and removed, or nothing was old enough.
    Retained {
        /// The file; none when nothing is old enough.
        exported: Option<ExportedMonth>,
        /// Whether another node has the duties of the cluster, which does it.
        is_elsewhere: bool,
    },
    /// The settings were reloaded.
    Reloaded(ReloadedSettings),
    /// A new process serves.
    Upgraded(Upgraded),
    /// What a reload would change.
    Differences {
        /// By their places in the file.
        differences: Vec<Difference>,
    },
    /// The state is as requested.
    Done,
}

/// Commits of one node and one month that were exported to a file and removed from the store.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct ExportedMonth {
    /// The number of the node whose journal it is.
    pub node: i64,
    /// The month, such as `2026-01`.
    pub month: String,
    /// The number of commits.
    pub commits: u64,
    /// Their size in bytes.
    pub bytes: u64,
    /// The file; none for what a run would export.
    pub file: Option<PathBuf>,
}

/// The contents of the cache, and its counters since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
pub struct CacheState {
    /// Stored answers.
    pub entries: u64,
    /// Their size in memory in bytes.
    pub bytes: u64,
    /// The maximum size in bytes.
    pub bytes_max: u64,
    /// Requests that wait for the answer to an equal one (single flight).
    pub waiting: u64,
    /// Cache hits.
    pub hits: u64,
    /// Cache misses.
    pub misses: u64,
    /// Answers that were stored.
    pub stored: u64,
    /// Evicted entries.
    pub evicted: u64,
}

/// A text that is sent over the socket and never printed by accident.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The response to a change: its result, or one sentence with the reason for the refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is durable.
    Ok(Applied),
    /// Nothing was changed.
    Error(String),
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Another process listens on it.
    #[error("`{}` is another gateway's control socket; stop that gateway, or give this one another `admin.socket`", .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Another file has the path.
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

/// The bound control socket; its file is removed on drop.
#[derive(Debug)]
pub struct Socket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    owner: u32,
    /// Whether the file belongs to a successor now.
    is_released: Arc<AtomicBool>,
}

impl Socket {
    /// Binds the socket. The stale file of a stopped gateway is replaced, one with a listener is not.
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
        // Between the two calls above another user may have connected; the check of the peer refuses them.
        let owner = made.map_err(failed)?.uid();
        Ok(Socket {
            listener,
            path: path.to_owned(),
            owner,
            is_released: Arc::default(),
        })
    }

    /// Verifies that a socket can be made at this path, before anything is begun that would have to be undone.
    ///
    /// # Errors
    ///
    /// When files cannot be created in its folder.
    pub fn check(path: &Path) -> Result<(), SocketError> {
        let folder = path
            .parent()
            .filter(|folder| !folder.as_os_str().is_empty());
        // A file without a name, which is gone when it is closed.
        match tempfile::tempfile_in(folder.unwrap_or(Path::new("."))) {
            Ok(_) => Ok(()),
            Err(source) => Err(SocketError::File {
                path: path.to_owned(),
                source,
            }),
        }
    }

    /// The same, and that no other process listens at the path.
    ///
    /// # Errors
    ///
    /// As for [`Socket::bind`].
    pub fn check_free(path: &Path) -> Result<(), SocketError> {
        is_stale(path)?;
        Socket::check(path)
    }

    /// The socket of the predecessor; bound again where it was at another path.
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

    /// Whether the file stays when this process ends.
    pub(super) fn is_released(&self) -> Arc<AtomicBool> {
        self.is_released.clone()
    }
}

/// Whether the socket of a stopped gateway is at this path.
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

/// Whether a socket is bound to this path.
pub(crate) fn is_at(socket: &std::os::unix::net::UnixListener, path: &Path) -> bool {
    let bound = socket.local_addr();
    bound.is_ok_and(|bound| bound.as_pathname() == Some(path))
}

impl Drop for Socket {
    fn drop(&mut self) {
        if !self.is_released.load(Ordering::Relaxed) {
            // A file left behind would be replaced by the next gateway.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Serves until `stopped` completes.
pub(super) async fn serve(
    socket: Socket,
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
            if let Err(error) = serve_connection(stream, uid, &*service).await {
                tracing::debug!(%error, "control socket connection failed");
            }
        });
    }
    drop(listener);
    let _ = stopped.wait_for(|stop| *stop).await;
    // What was asked is answered: the request for an upgrade ends this process.
    let answered = async { while connections.join_next().await.is_some() {} };
    let _ = tokio::time::timeout(ANSWERS_TIMEOUT, answered).await;
}

/// Answers the lines of a connection of a user in order.
async fn serve_connection(stream: UnixStream, uid: u32, service: &dyn Changes) -> io::Result<()> {
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
            // Too long, or truncated: the intent cannot be known, so nothing is done.
            let answer = Answer::Error("the line is too long or is not terminated".to_owned());
            return write.write_all(&answer_line(&answer)).await;
        }
        let answer = match serde_json::from_slice::<Change>(&line) {
            Err(error) => Answer::Error(format!(
                "the gateway does not know this request ({error}); use the same version of `tollgate` for the command and the gateway"
            )),
            Ok(change) => match service.apply(change, Actor::User(uid).into()).await {
                Ok(applied) => Answer::Ok(applied),
                Err(error) => Answer::Error(error.message),
            },
        };
        write.write_all(&answer_line(&answer)).await?;
    }
}

fn answer_line(answer: &Answer) -> Vec<u8> {
    let mut line = serde_json::to_vec(answer).expect("an answer is plain data");
    line.push(b'\n');
    line
}

/// Why a request to a running gateway failed.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// There is no gateway on this database.
    #[error("no gateway answers on `{}`; start it, or run this command on its machine, with its settings (`admin.socket`)", .path.display())]
    NoGateway {
        /// The socket.
        path: PathBuf,
    },
    /// There is one, and the connection broke. Whether the change was made is not known.
    #[error("the gateway did not answer on `{}`; check whether the change was made before repeating it", .path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// The system's error.
        #[source]
        source: io::Error,
    },
    /// The gateway refused; the text is its own.
    #[error("{0}")]
    Refused(String),
}

/// Sends a change to the gateway behind a socket; blocks until it has answered.
///
/// # Errors
///
/// [`ControlError::NoGateway`] when no gateway listens, so that the caller may write to the database.
pub fn request(path: &Path, change: &Change) -> Result<Applied, ControlError> {
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
    let mut exchange = || -> io::Result<Answer> {
        let timeout = match change {
            Change::Upgrade { .. } => UPGRADE_TIMEOUT,
            Change::RetentionRun {} | Change::NodeRecover { .. } => RETENTION_TIMEOUT,
            _ => LINE_TIMEOUT,
        };
        stream.set_read_timeout(Some(timeout))?;
        let mut line = serde_json::to_vec(change)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        if io::BufReader::new(&stream).read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&answer)?)
    };
    match exchange() {
        Ok(Answer::Ok(applied)) => Ok(applied),
        Ok(Answer::Error(error)) => Err(ControlError::Refused(error)),
        Err(source) => Err(ControlError::Broken {
            path: path.to_owned(),
            source,
        }),
    }
}
