//! The control socket: changes to accounts, keys and credits while the gateway runs.
//!
//! Balances and keys live in the gateway's memory, so nobody else may change them in the database. A Unix socket beside the database
//! file takes one JSON object a line and answers each with one. The file belongs to its owner alone, and whoever connects must be that
//! user or root.

use std::future::Future;
use std::io;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::UnixStream;
use tokio::sync::watch;

/// Bytes of one line.
const LINE_BYTES_MAX: u64 = 64 * 1024;
/// Time for a line to arrive.
const LINE: Duration = Duration::from_secs(30);

/// The socket of the database at `database`.
pub fn path(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push(".sock");
    PathBuf::from(name)
}

/// A change that somebody wants made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "change", rename_all = "snake_case", deny_unknown_fields)]
pub enum Change {
    /// Makes an account.
    AccountCreate {
        /// E-mail addresses that will sign in to it.
        emails: Vec<String>,
        /// Phone numbers that will sign in to it, in E.164 form.
        phones: Vec<String>,
        /// Its rate class; `free` where it is missing.
        class: Option<String>,
        /// With whom it shares stored answers: `shared` (where it is missing), `account` or `off`.
        #[serde(default)]
        cache_scope: Option<String>,
    },
    /// Bars an account, or lets it in again.
    AccountSuspend {
        /// The account's id.
        account: String,
        /// Whether it shall be barred.
        suspended: bool,
    },
    /// Ends what an account is charged for the plan each month.
    AccountEndPlan {
        /// The account's id.
        account: String,
    },
    /// Puts an account in another rate class.
    AccountClass {
        /// The account's id.
        account: String,
        /// The class.
        class: String,
    },
    /// Says with whom an account shares stored answers.
    AccountCacheScope {
        /// The account's id.
        account: String,
        /// `shared`, `account` or `off`.
        scope: String,
    },
    /// Removes stored answers: one, those of a model, or all where neither is named.
    CachePurge {
        /// The `cache_entry_id` of one.
        id: Option<String>,
        /// The id of a model.
        model: Option<String>,
    },
    /// Changes nothing, and tells what the cache holds and has done.
    CacheShow {},
    /// Changes nothing, and tells how the model providers are.
    ProvidersShow {},
    /// Makes a key.
    KeyCreate {
        /// The id of the account that pays.
        account: String,
        /// What its owner calls it.
        name: String,
        /// Names of scopes; all of the API where there are none.
        scopes: Vec<String>,
        /// The only models it may use; every model where there are none.
        models: Vec<String>,
        /// The most it may spend, as a decimal number of credits; no cap where there is none.
        spend_max: Option<String>,
        /// Over which time: `total` or `month`; `total` where there is none.
        spend_period: Option<String>,
        /// When it ends, in Unix microseconds.
        expires_at: Option<i64>,
    },
    /// Revokes a key; the next request with it is refused.
    KeyRevoke {
        /// The key's id.
        key: String,
    },
    /// Closes a payment whose outcome is not proved, on the operator's word.
    PaymentClose {
        /// Its name.
        payment: String,
        /// The transaction in which it has paid; nothing for one that has moved nothing and never will.
        paid: Option<String>,
    },
    /// Books credits that the operator gives.
    CreditsGrant {
        /// The account's id.
        account: String,
        /// How much, as a decimal number of credits.
        amount: String,
        /// What makes it idempotent.
        reference: String,
    },
}

/// What a change has done.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "applied", rename_all = "snake_case")]
pub enum Applied {
    /// There is a new account.
    Account {
        /// Its id.
        id: String,
    },
    /// There is a new key.
    Key {
        /// Its id.
        id: String,
        /// The secret: it is shown this once.
        secret: SecretText,
    },
    /// Credits were booked.
    Credits {
        /// The operation they stand under.
        operation: String,
        /// Whether the reference had been booked before, so that nothing changed now.
        repeated: bool,
        /// What the account has free to spend now, as a decimal number of credits.
        available: String,
    },
    /// Stored answers were removed.
    Purged {
        /// How many.
        removed: u64,
    },
    /// What the cache holds and has done.
    Cache(CacheState),
    /// How the model providers are.
    Providers {
        /// A list, as `/providers` of the admin address has it.
        providers: serde_json::Value,
    },
    /// It is as it was asked for.
    Done,
}

/// What the cache holds, and what it has done since the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheState {
    /// Stored answers.
    pub entries: u64,
    /// Bytes of memory they count for.
    pub bytes: u64,
    /// Bytes they may have.
    pub bytes_max: u64,
    /// Requests that wait for the answer to an equal one.
    pub waiting: u64,
    /// Requests answered from it.
    pub hits: u64,
    /// Requests that found nothing.
    pub misses: u64,
    /// Answers that were stored.
    pub stored: u64,
    /// Entries that gave way to others.
    pub evicted: u64,
}

/// A text that is sent over the socket and printed nowhere by accident.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct SecretText(pub String);

impl std::fmt::Debug for SecretText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("[redacted]")
    }
}

/// The answer to a change: what it did, or one sentence on why not.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer {
    /// It is durable.
    Ok(Applied),
    /// Nothing was changed.
    Error(String),
}

/// A change that is being made.
pub type Applying<'a> = Pin<Box<dyn Future<Output = Result<Applied, String>> + Send + 'a>>;

/// What changes are made to.
pub trait Changes: Send + Sync {
    /// Makes a change and waits until it is durable; the error is a sentence for the operator.
    fn apply(&self, change: Change) -> Applying<'_>;
}

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// Somebody listens on it.
    #[error("`{}` is another gateway's control socket; stop that gateway, or give this one another database", .path.display())]
    InUse {
        /// The socket.
        path: PathBuf,
    },
    /// Something else has its name.
    #[error("`{}` is not a socket; move it away, the gateway needs that name", .path.display())]
    NotASocket {
        /// The file.
        path: PathBuf,
    },
    /// The system said no. A path of more than about 100 bytes is too long for a socket.
    #[error("could not make the control socket `{}`", .path.display())]
    File {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
}

/// The bound control socket; its file goes when it does.
#[derive(Debug)]
pub struct Socket {
    listener: std::os::unix::net::UnixListener,
    path: PathBuf,
    owner: u32,
}

impl Socket {
    /// Binds the socket. The file of a gateway that is gone is replaced, one that somebody answers on is not.
    ///
    /// # Errors
    ///
    /// When the name is taken or the system refuses.
    pub fn bind(path: &Path) -> Result<Socket, SocketError> {
        let failed = |source| SocketError::File {
            path: path.to_owned(),
            source,
        };
        match std::fs::symlink_metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(failed(error)),
            Ok(there) if !there.file_type().is_socket() => {
                return Err(SocketError::NotASocket {
                    path: path.to_owned(),
                });
            }
            Ok(_) => {
                if std::os::unix::net::UnixStream::connect(path).is_ok() {
                    return Err(SocketError::InUse {
                        path: path.to_owned(),
                    });
                }
                std::fs::remove_file(path).map_err(failed)?;
            }
        }
        let listener = std::os::unix::net::UnixListener::bind(path).map_err(failed)?;
        let made = std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600))
            .and_then(|()| listener.set_nonblocking(true))
            .and_then(|()| std::fs::symlink_metadata(path));
        // Between the two calls above somebody else may have connected; the check of the peer turns them away.
        let owner = made.map_err(failed)?.uid();
        Ok(Socket {
            listener,
            path: path.to_owned(),
            owner,
        })
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        // Left behind, it would be replaced by the next gateway.
        let _ = std::fs::remove_file(&self.path);
    }
}

/// Answers until `stopped` says so.
pub(super) async fn serve(
    socket: Socket,
    books: Arc<dyn Changes>,
    mut stopped: watch::Receiver<bool>,
) {
    let listener = match socket
        .listener
        .try_clone()
        .and_then(tokio::net::UnixListener::from_std)
    {
        Ok(listener) => listener,
        Err(error) => {
            tracing::error!(%error, "the control socket cannot be served");
            return;
        }
    };
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop) => return,
        };
        let Ok((stream, _)) = accepted else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let peer = stream.peer_cred().map(|peer| peer.uid());
        if !peer.is_ok_and(|uid| uid == socket.owner || uid == 0) {
            tracing::warn!("refused a stranger on the control socket");
            continue;
        }
        let books = books.clone();
        tokio::spawn(async move {
            if let Err(error) = converse(stream, &*books).await {
                tracing::debug!(%error, "a conversation on the control socket broke off");
            }
        });
    }
}

/// Answers one line after the other.
async fn converse(stream: UnixStream, books: &dyn Changes) -> io::Result<()> {
    let (read, mut write) = stream.into_split();
    let mut read = BufReader::new(read);
    let mut line = Vec::new();
    loop {
        line.clear();
        let mut limited = (&mut read).take(LINE_BYTES_MAX);
        let arriving = limited.read_until(b'\n', &mut line);
        let count = tokio::time::timeout(LINE, arriving).await??;
        if count == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') {
            // Too long, or cut off: what was meant cannot be known, so nothing is done.
            let answer = Answer::Error("the line is too long or has no end".to_owned());
            return write.write_all(&answer_line(&answer)).await;
        }
        let answer = match serde_json::from_slice::<Change>(&line) {
            Err(error) => Answer::Error(format!(
                "the gateway does not understand this change ({error}); use the same version of `tollgate` for both"
            )),
            Ok(change) => match books.apply(change).await {
                Ok(applied) => Answer::Ok(applied),
                Err(error) => Answer::Error(error),
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

/// Why a running gateway could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum AskError {
    /// There is no gateway on this database.
    #[error("no gateway answers on `{}`", .path.display())]
    NoGateway {
        /// The socket.
        path: PathBuf,
    },
    /// There is one, and the conversation broke off. Whether the change was made is not known.
    #[error("the gateway did not answer on `{}`; look whether the change was made before repeating it", .path.display())]
    Broken {
        /// The socket.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: io::Error,
    },
    /// It said no; the text is its own.
    #[error("{0}")]
    Refused(String),
}

/// Asks the gateway behind a socket to make a change; blocks until it has answered.
///
/// # Errors
///
/// [`AskError::NoGateway`] when nobody is there, so that the caller may write itself.
pub fn ask(path: &Path, change: &Change) -> Result<Applied, AskError> {
    use std::io::{BufRead, Write};
    let mut stream = match std::os::unix::net::UnixStream::connect(path) {
        Ok(stream) => stream,
        Err(error)
            if matches!(
                error.kind(),
                io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused
            ) =>
        {
            return Err(AskError::NoGateway {
                path: path.to_owned(),
            });
        }
        Err(source) => {
            return Err(AskError::Broken {
                path: path.to_owned(),
                source,
            });
        }
    };
    let mut talk = || -> io::Result<Answer> {
        stream.set_read_timeout(Some(LINE))?;
        let mut line = serde_json::to_vec(change)?;
        line.push(b'\n');
        stream.write_all(&line)?;
        let mut answer = String::new();
        if io::BufReader::new(&stream).read_line(&mut answer)? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(serde_json::from_str(&answer)?)
    };
    match talk() {
        Ok(Answer::Ok(applied)) => Ok(applied),
        Ok(Answer::Error(error)) => Err(AskError::Refused(error)),
        Err(source) => Err(AskError::Broken {
            path: path.to_owned(),
            source,
        }),
    }
}
