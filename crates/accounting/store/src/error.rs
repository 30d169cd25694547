//! Error types of the store, one per operation: open, read, submit, commit.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{
    AccountId, CheckoutId, CredentialId, MandateId, Micros, OperationId, TopUpId,
};

use crate::codes::EntryKind;
use crate::idempotency::{KeyQuota, KeyUse};
use crate::oauth::OAuthRefusal;

/// The remedy for a database in use by another gateway.
pub(crate) const STOP_THE_OTHER: &str =
    "stop that gateway first, or give this one another database";

/// Why a store could not be opened; reported to the operator at start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has locked the file, or has the lease of the database.
    #[error("`{path}` is in use by {holder}; {remedy}", path = path.display())]
    InUse {
        /// The database file.
        path: PathBuf,
        /// `process 1234`, or `another process` when the lock file has no process id.
        holder: String,
        /// The remedy.
        remedy: &'static str,
    },
    /// A process already runs as the node of this name.
    #[error(
        "node `{name}` of `{database}` runs already, as {holder}; stop that gateway first, or give this one another `store.node`"
    )]
    NodeInUse {
        /// The database.
        database: String,
        /// The node's name.
        name: String,
        /// `process 1234`, or the process's location.
        holder: String,
    },
    /// The file has further hard links and cannot be locked reliably.
    #[error(
        "`{path}` has {links} names (hard links), and SQLite keeps a log beside each: two programs would overwrite each other's work; stop every gateway that uses one of them, keep the name with the newest `-wal` file beside it, remove the others (`find FOLDER -samefile {path}` finds them), and run `tollgate audit`", path = path.display()
    )]
    HardLinks {
        /// The database file.
        path: PathBuf,
        /// Number of links.
        links: u64,
    },
    /// Another process has opened the file in the meantime.
    #[error(transparent)]
    Stopped(Failure),
    /// The file lacks commits that were durable, by the record of the last commit.
    #[error(
        "`{path}` has lost {lost}; `{record}` has the last one. The log beside the database (`{path}-wal`) is missing, cut, damaged or older, or a copy of the database was put in its place. Keep all files as they are, and put the right log back, or a newer copy of the database; `tollgate repair --accept-loss` goes on without what is lost, as after the restore of a backup", path = path.display(), record = record.display()
    )]
    CommitsLost {
        /// The database file.
        path: PathBuf,
        /// The record.
        record: PathBuf,
        /// The extent of the loss.
        lost: LostCommits,
    },
    /// The file is missing, but a record of its last commit exists.
    #[error(
        "there is no `{path}`, and `{record}` has the last commit of one; put the database back with its log (`{path}-wal`), or a backup; to begin with an empty store, move `{record}` away too", path = path.display(), record = record.display()
    )]
    Removed {
        /// The database file.
        path: PathBuf,
        /// The record.
        record: PathBuf,
    },
    /// Another program holds an SQLite lock on the file.
    #[error("`{path}` is locked by another program; close whatever has it open (a database shell, a copy job) and start again", path = path.display())]
    Locked {
        /// The database file.
        path: PathBuf,
    },
    /// The file exists but is not a store, or is damaged.
    #[error("`{path}` {problem}; put a backup in its place; a file can also be moved away, with the files beside it, to begin with an empty store", path = path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// The problem, as a predicate: `is not a database`.
        problem: String,
    },
    /// The file was written by a later version.
    #[error("`{path}` has schema {found}, this version knows up to {known}; run the version that wrote it, or a later one", path = path.display())]
    Newer {
        /// The database file.
        path: PathBuf,
        /// The schema version of the file.
        found: i64,
        /// The schema version of this release.
        known: i64,
    },
    /// Written by an earlier release and not yet opened for writing by this release.
    #[error(
        "`{path}` has schema {found}, and this version reads {known}; start the gateway once, which brings it up to date", path = path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The file's schema version.
        found: i64,
        /// The schema version required for reading.
        known: i64,
    },
    /// The derived tables do not match the journal.
    #[error(
        "the balances in `{path}` differ from its journal ({problem}); run `tollgate audit --fix-derived`", path = path.display()
    )]
    Unbalanced {
        /// The database file.
        path: PathBuf,
        /// The difference found.
        problem: String,
    },
    /// Written by a version from before the first release, whose ledger has another format.
    #[error(
        "`{path}` has a ledger in the format from before the first release, which this version cannot migrate; move it away to start with an empty store, without accounts and credit", path = path.display()
    )]
    Unreleased {
        /// The database file.
        path: PathBuf,
    },
    /// The path has no store, and the caller asked not to create a store.
    #[error("there is no store at `{path}`; start the gateway once to make it, or correct `store.url`", path = path.display())]
    Missing {
        /// The database file.
        path: PathBuf,
    },
    /// The path's store was migrated to a database. An empty store would not honour purchases and would sell purchased items again.
    #[error(
        "the store of `{path}` was migrated to a PostgreSQL database, and its file is `{moved}` now; set `store.url` to that database, or give the file its name again to go back", path = path.display(), moved = moved.display()
    )]
    Migrated {
        /// The database file.
        path: PathBuf,
        /// The file's new path.
        moved: PathBuf,
    },
    /// The database server cannot be reached, or refuses the connection.
    #[error(
        "could not connect to `{database}`; check that the database runs, and the address, user and password in `[store]`"
    )]
    Unreachable {
        /// The database.
        database: String,
        /// See [`OpenError::is_transient`].
        is_transient: bool,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The database server has refused a statement of the start: the server lacks space, memory or another resource, perhaps only for a
    /// time.
    #[error(
        "`{database}` is short of room, memory or another resource; free it on the database server"
    )]
    Short {
        /// The database.
        database: String,
        /// The server's error.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// A lone node and a cluster node do not use a database at once. Nodes of the other kind have left data in the database.
    #[error(
        "in `{database}` {} did not end cleanly: open holds, credit or unposted records remain; run `tollgate nodes recover NAME` first, and where that fails restore a backup",
        node_list(nodes)
    )]
    Unrecovered {
        /// The database.
        database: String,
        /// The numbers of the nodes.
        nodes: Vec<i64>,
    },
    /// The data that a node had left could not be returned.
    #[error("node {node} could not be recovered")]
    Recovery {
        /// The node's number.
        node: i64,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The spool cannot be used.
    #[error("`{path}` {problem}", path = path.display())]
    Spool {
        /// The spool's file.
        path: PathBuf,
        /// The problem and its remedy, as a predicate.
        problem: String,
    },
    /// The node's process may still end answers, whose charges are in the spool.
    #[error(
        "node `{name}` is cut off from `{database}` and may end answers for {seconds} seconds more; start it with its own spool folder, or run `tollgate nodes recover {name}` once its process has ended"
    )]
    Spooling {
        /// The database.
        database: String,
        /// The node.
        name: String,
        /// Seconds until other nodes may recover the node.
        seconds: u64,
    },
    /// The database server does not keep confirmed commits, or lacks a feature that a store needs.
    #[error("`{database}` {problem}")]
    UnfitServer {
        /// The database.
        database: String,
        /// The problem and its remedy, as a predicate.
        problem: String,
    },
    /// A file system error.
    #[error("could not {action} `{path}`", path = path.display())]
    File {
        /// `open`, `lock`, `create` ...
        action: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// Any other error of the engine.
    #[error("could not {action} `{path}`", path = path.display())]
    Engine {
        /// `open`, `migrate` ...
        action: &'static str,
        /// The database file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Commits that a file lacks, by the record of the last commit. After a loss of power the record may lag: more commits may be lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LostCommits {
    /// Number of commits, at least one.
    pub commits: i64,
    /// Number of ledger entries in the commits: holds, charges, credits.
    pub entries: i64,
    /// Epoch and number of the last present commit with entries, if any.
    pub last: Option<(i64, i64)>,
    /// Epoch and number of the last recorded commit with entries.
    pub recorded: (i64, i64),
    /// The time of the last recorded commit.
    pub at: Timestamp,
}

impl fmt::Display for LostCommits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plural = |count: i64| if count == 1 { "" } else { "s" };
        let (epoch, number) = self.recorded;
        write!(
            f,
            "at least {} commit{} with {} entr{} of the ledger, up to commit {number} of run {epoch} of {}: it ends with ",
            self.commits,
            plural(self.commits),
            self.entries,
            if self.entries == 1 { "y" } else { "ies" },
            self.at.rfc3339(),
        )?;
        match self.last {
            Some((epoch, number)) => write!(f, "commit {number} of run {epoch}"),
            None => f.write_str("no commit at all"),
        }
    }
}

impl OpenError {
    /// Whether the file has lost commits, or is lost itself: an operator has to decide.
    pub fn is_loss(&self) -> bool {
        matches!(
            self,
            OpenError::CommitsLost { .. } | OpenError::Removed { .. }
        )
    }

    /// Whether a later attempt may succeed: the server was not reached, is short of a resource, or does not accept connections of gateways
    /// now.
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            OpenError::Short { .. }
                | OpenError::Unreachable {
                    is_transient: true,
                    ..
                }
        )
    }
}

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The engine failed to read.
    #[error("could not read {what} from the store")]
    Engine {
        /// The object of the read.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The journal cannot be read.
    #[error("could not read {what}: {problem}; put a backup in the store's place")]
    Damaged {
        /// The object of the read.
        what: &'static str,
        /// The problem.
        problem: String,
    },
    /// A stored value that no version up to this version writes.
    #[error(
        "{what} in the store has the value `{value}`, which this version does not know; run the version that wrote it"
    )]
    Unknown {
        /// The column.
        what: &'static str,
        /// The stored value.
        value: String,
    },
}

/// Why a unit was not queued. No part of the unit was or will be written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The queue is full. Reported to the downstream as a 503 with `Retry-After`.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The database does not answer. Reported to the downstream as a 503 with `Retry-After`.
    #[error("the database does not answer; try again when it does")]
    CutOff,
    /// The store has stopped for good.
    #[error("the store has stopped")]
    Stopped(#[source] Failure),
}

/// Why a queued unit is not durable.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The data does not permit the change; nothing of the unit was written, and the store continues.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The queue is full; nothing of the unit was written. Reported to the downstream as a 503 with `Retry-After`.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The database does not answer: the unit was refused, or the caller no longer waits for the unit. Reported to the downstream as a 503
    /// with `Retry-After`.
    #[error("the database does not answer; try again when it does")]
    CutOff,
    /// The store has stopped for good. Whether the unit is durable is known only after a restart.
    #[error("the store has stopped")]
    Stopped(#[source] Failure),
}

impl From<SubmitError> for CommitError {
    fn from(error: SubmitError) -> CommitError {
        match error {
            SubmitError::Stopped(failure) => CommitError::Stopped(failure),
            SubmitError::Overloaded { waiting } => CommitError::Overloaded { waiting },
            SubmitError::CutOff => CommitError::CutOff,
        }
    }
}

/// Why the stored data does not permit a unit of work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The account exists already.
    #[error("account `{0}` exists already")]
    AccountExists(AccountId),
    /// The account does not exist.
    #[error("there is no account `{0}`")]
    NoAccount(AccountId),
    /// A credential with the id or digest is stored.
    #[error("credential `{0}` exists already")]
    CredentialExists(CredentialId),
    /// The credential does not exist.
    #[error("there is no credential `{0}`")]
    NoCredential(CredentialId),
    /// The credential was changed or revoked or has expired since the read, or belongs to another account.
    #[error("credential `{0}` was changed meanwhile, or cannot be changed any more")]
    CredentialConflict(CredentialId),
    /// The address belongs to a login.
    #[error("`{address}` already signs in to an account")]
    LoginTaken {
        /// The address.
        address: Arc<str>,
    },
    /// The operation has an entry of the phase, or a usage record.
    #[error("operation `{0}` is already in the ledger")]
    OperationExists(OperationId),
    /// The hold was resolved already, or never existed.
    #[error("operation `{0}` has no open hold")]
    NoHold(OperationId),
    /// The reference is booked with another kind or amount.
    #[error("reference `{reference}` was booked as a {} of {amount}; use another reference", kind.word())]
    ReferenceUsed {
        /// The reference.
        reference: Arc<str>,
        /// The booked kind.
        kind: EntryKind,
        /// The booked amount.
        amount: Micros,
    },
    /// A purchase with the id, order or payment exists.
    #[error("purchase `{0}`, its order or its payment is stored already")]
    TopUpExists(TopUpId),
    /// The purchase was changed concurrently.
    #[error("purchase `{0}` was changed meanwhile")]
    TopUpConflict(TopUpId),
    /// The account's subscription was changed concurrently.
    #[error("the subscription of `{0}` was changed meanwhile")]
    SubscriptionConflict(AccountId),
    /// The payment is stored, or was marked as returned, already.
    #[error("the payment is known already")]
    PaymentKnown,
    /// The checkout exists already, or was changed concurrently.
    #[error("checkout `{0}` was changed meanwhile")]
    CheckoutConflict(CheckoutId),
    /// A mandate with the id or provider subscription exists, or another mandate of the account is in progress.
    #[error("mandate `{0}`, its subscription, or another mandate of its account is stored already")]
    MandateExists(MandateId),
    /// The mandate was changed concurrently.
    #[error("mandate `{0}` was changed meanwhile")]
    MandateConflict(MandateId),
    /// The signed transfer is stored already, or was changed concurrently.
    #[error("the signed transfer was changed meanwhile")]
    AuthorizationConflict,
    /// Another signed transfer of the account may still move money, or the account's subscription has changed.
    #[error("another payment of the account came first")]
    AuthorizationOpen,
    /// The transaction has paid for another signed transfer.
    #[error("the transaction has paid for another payment")]
    TransactionUsed,
    /// The account at the certificate authority, or the certificate, is stored already, or was changed concurrently.
    #[error("another gateway has changed the certificate meanwhile")]
    AcmeConflict,
    /// The notification was received before.
    #[error("the notification was received before")]
    DuplicateNotification,
    /// The idempotency key is in use.
    #[error("the key is not free: {0:?}")]
    KeyInUse(KeyUse),
    /// The account has reached its limit of idempotency keys, or of bytes of recorded responses.
    #[error("the account has reached its limit of idempotency keys: {0:?}")]
    KeyQuota(KeyQuota),
    /// A request, code, token or grant is not in the state that the change requires.
    #[error(transparent)]
    OAuth(OAuthRefusal),
    /// The send limit is reached; the next has to wait.
    #[error("the send limit is reached until {}", until.as_micros())]
    TooMany {
        /// When the next is allowed.
        until: Timestamp,
    },
    /// The one-time code has expired, was used, or has no attempts left.
    #[error("the one-time code has expired, was used, or has no attempts left")]
    CodeUnusable,
    /// The session was ended in the meantime.
    #[error("the session has ended")]
    SessionEnded,
    /// The message was claimed by another attempt, or is gone.
    #[error("the message was claimed or dropped meanwhile")]
    MessageClaimed,
    /// A value cannot be stored.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Why the store has stopped for good: the process must exit with an error, and a restart recovers.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// Kind of failure.
    pub kind: FailureKind,
    /// The event and the remedy, for the log.
    pub message: Arc<str>,
}

impl Failure {
    /// The failure of a caller whose answer was dropped with the store.
    pub fn closed() -> Failure {
        Failure {
            kind: FailureKind::Closed,
            message: Arc::from("the store was closed before it answered"),
        }
    }
}

/// The kind of failure that stopped the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// The disk is full.
    DiskFull,
    /// A write or a sync failed; the content of the page cache can no longer be trusted.
    Io,
    /// The file is damaged.
    Damaged,
    /// Another process has since opened the store, in a newer epoch of the node.
    Fenced,
    /// The path of the file leads to another file, or to no file.
    Replaced,
    /// Another program kept the file locked.
    Locked,
    /// A balance in the file differs from the balance that decisions were based on.
    Inconsistent,
    /// Closed by the owner; not a failure.
    Closed,
}

/// `node 16`, or `the nodes 16, 17`.
fn node_list(nodes: &[i64]) -> String {
    match nodes {
        [node] => format!("node {node}"),
        nodes => {
            let nodes: Vec<_> = nodes.iter().map(i64::to_string).collect();
            format!("the nodes {}", nodes.join(", "))
        }
    }
}
