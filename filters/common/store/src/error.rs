//! What can go wrong, by who must do something about it.

use std::path::PathBuf;
use std::sync::Arc;

use tollgate_money::{AccountId, CheckoutId, MandateId, Micros, OperationId, TopUpId};

use crate::codes::EntryKind;
use crate::idempotency::KeyUse;
use crate::oauth::OAuthRefusal;
use crate::rows::CredentialId;

/// Why a store could not be opened. Each is for the operator, at start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Another process has the file.
    #[error("`{path}` is in use by {holder}; stop that gateway first, or give this one another file", path = path.display())]
    InUse {
        /// The database file.
        path: PathBuf,
        /// `process 1234`, or `another process` when it has not said which.
        holder: String,
    },
    /// The file has further names, through which it cannot be shared.
    #[error(
        "`{path}` has {links} names (hard links), and SQLite keeps a log beside each: two programs would overwrite each other's work; stop every gateway that uses one of them, keep the name with the newest `-wal` file beside it, remove the others (`find FOLDER -samefile {path}` finds them), and run `tollgate audit`", path = path.display()
    )]
    HardLinks {
        /// The database file.
        path: PathBuf,
        /// How many names there are.
        links: u64,
    },
    /// Another process has opened the file meanwhile.
    #[error(transparent)]
    Stopped(Failure),
    /// Another program holds SQLite's own lock.
    #[error("`{path}` is locked by another program; close whatever has it open (a database shell, a copy job) and start again", path = path.display())]
    Locked {
        /// The database file.
        path: PathBuf,
    },
    /// The file is there and not a store, or damaged.
    #[error("`{path}` {problem}; put a backup in its place, or move it away to begin with an empty store", path = path.display())]
    Damaged {
        /// The database file.
        path: PathBuf,
        /// What is wrong with it, as a predicate: `is not a database`.
        problem: String,
    },
    /// A later version has written the file.
    #[error("`{path}` has schema {found}, this version knows up to {known}; run the version that wrote it, or a later one", path = path.display())]
    Newer {
        /// The database file.
        path: PathBuf,
        /// The number in the file.
        found: i64,
        /// The number of this version.
        known: i64,
    },
    /// An earlier release wrote it, and none of this release has opened it to write.
    #[error(
        "`{path}` has schema {found}, and this version reads {known}; start the gateway once, which brings it up to date", path = path.display()
    )]
    Older {
        /// The file.
        path: PathBuf,
        /// The schema it has.
        found: i64,
        /// The schema that is read.
        known: i64,
    },
    /// What is derived from the journal is not what the journal leads to.
    #[error(
        "the balances in `{path}` are not those that its journal leads to ({problem}); run `tollgate audit --fix-derived`", path = path.display()
    )]
    Unbalanced {
        /// The database file.
        path: PathBuf,
        /// What was seen.
        problem: String,
    },
    /// A version from before the first release wrote it, which kept its books otherwise.
    #[error(
        "`{path}` has books as they were kept before the first release, which this version cannot take over; move it away to begin with an empty store, in which nobody has an account or credit", path = path.display()
    )]
    Unreleased {
        /// The database file.
        path: PathBuf,
    },
    /// There is no store at that path, and the caller asked not to make one.
    #[error("there is no store at `{path}`; start the gateway once to make it, or correct `store.url`", path = path.display())]
    Missing {
        /// The database file.
        path: PathBuf,
    },
    /// The file system said no.
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
    /// Anything else the engine reports.
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

/// Why a read failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The engine could not read.
    #[error("could not read {what} from the store")]
    Engine {
        /// What was asked for.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The journal cannot be read.
    #[error("could not read {what}: {problem}; put a backup in the store's place")]
    Damaged {
        /// What was asked for.
        what: &'static str,
        /// What is wrong.
        problem: String,
    },
    /// A stored value that no version up to this one writes.
    #[error(
        "{what} in the store has the value `{value}`, which this version does not know; run the version that wrote it"
    )]
    Unknown {
        /// Which column.
        what: &'static str,
        /// What stands there.
        value: String,
    },
}

/// Why a unit was not taken into the queue. Nothing of it was or will be written.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SubmitError {
    /// The writer is behind. For the downstream a 503 with `Retry-After`.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The store has stopped for good.
    #[error("the store has stopped")]
    Stopped(#[source] Failure),
}

/// Why a unit that was queued is not durable.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CommitError {
    /// The data says no; nothing of the unit was written, and the store goes on.
    #[error(transparent)]
    Refused(#[from] Refusal),
    /// The writer is behind; nothing of the unit was written. For the downstream a 503 with `Retry-After`.
    #[error("{waiting} units of work wait for the disk; try again in a second")]
    Overloaded {
        /// Units in the queue.
        waiting: usize,
    },
    /// The store has stopped for good. Whether the unit is durable shows only after a restart.
    #[error("the store has stopped")]
    Stopped(#[source] Failure),
}

/// What in the data stands against a unit of work.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// There is an account with this id.
    #[error("account `{0}` exists already")]
    AccountExists(AccountId),
    /// There is none.
    #[error("there is no account `{0}`")]
    NoAccount(AccountId),
    /// A credential with this id or digest is stored.
    #[error("credential `{0}` exists already")]
    CredentialExists(CredentialId),
    /// There is none.
    #[error("there is no credential `{0}`")]
    NoCredential(CredentialId),
    /// The address belongs to a login.
    #[error("`{address}` already signs in to an account")]
    LoginTaken {
        /// The address.
        address: Arc<str>,
    },
    /// The operation has an entry of this phase, or a usage record.
    #[error("operation `{0}` is already in the books")]
    OperationExists(OperationId),
    /// The hold was resolved by somebody else, or was never there.
    #[error("operation `{0}` has no open hold")]
    NoHold(OperationId),
    /// The reference stands for something else.
    #[error("reference `{reference}` was booked as {kind:?} of {amount}; use another reference")]
    ReferenceUsed {
        /// The reference.
        reference: Arc<str>,
        /// What it was booked as.
        kind: EntryKind,
        /// How much.
        amount: Micros,
    },
    /// There is a purchase with this id, or one with the same order or payment.
    #[error("purchase `{0}`, its order or its payment is stored already")]
    TopUpExists(TopUpId),
    /// Somebody else has changed the purchase.
    #[error("purchase `{0}` was changed meanwhile")]
    TopUpMoved(TopUpId),
    /// Somebody else has changed what the account has of the plan.
    #[error("the subscription of `{0}` was changed meanwhile")]
    SubscriptionMoved(AccountId),
    /// The payment is stored, or was noted as gone back, already.
    #[error("the payment is known already")]
    PaymentKnown,
    /// There is such a checkout already, or somebody else has changed it.
    #[error("checkout `{0}` was changed meanwhile")]
    CheckoutMoved(CheckoutId),
    /// There is a mandate with this id or this subscription of the provider's, or another one of the account is under way.
    #[error("mandate `{0}`, its subscription, or another mandate of its account is stored already")]
    MandateExists(MandateId),
    /// Somebody else has changed the mandate.
    #[error("mandate `{0}` was changed meanwhile")]
    MandateMoved(MandateId),
    /// The signed transfer is stored already, or somebody else has changed it.
    #[error("the signed transfer was changed meanwhile")]
    AuthorizationMoved,
    /// Another signed transfer of the account may still move money, or the account has something else by now.
    #[error("another payment of the account came first")]
    AuthorizationOpen,
    /// The transaction has paid for another signed transfer.
    #[error("the transaction has paid for another payment")]
    TransactionUsed,
    /// The notice has come in before.
    #[error("the notice was stored already")]
    NoticeSeen,
    /// The idempotency key is not free.
    #[error("the key is not free: {0:?}")]
    KeyInUse(KeyUse),
    /// A request, code, token or grant is not what the change needs.
    #[error(transparent)]
    OAuth(OAuthRefusal),
    /// So many were sent that the next has to wait.
    #[error("too many were sent; the next may be at {until}")]
    TooMany {
        /// Unix microseconds.
        until: i64,
    },
    /// The one-time code has ended, was used, or has no tries left.
    #[error("the one-time code is over")]
    CodeOver,
    /// The session that asks was ended meanwhile.
    #[error("the session is over")]
    SessionOver,
    /// A value cannot be stored.
    #[error("{0}")]
    Invalid(&'static str),
}

/// Why the store has stopped for good: the process must end with an error, and a restart recovers.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{message}")]
pub struct Failure {
    /// What kind of failure.
    pub kind: FailureKind,
    /// What happened and what to do, for the log.
    pub message: Arc<str>,
}

/// What kind of failure stopped the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum FailureKind {
    /// No room left on the disk.
    DiskFull,
    /// A write or a sync failed; what the page cache holds can no longer be trusted.
    Io,
    /// The file is damaged.
    Damaged,
    /// Another process has opened the store since, in a newer epoch of the node.
    Fenced,
    /// The name of the file leads to another file, or to none.
    Replaced,
    /// Another program kept the file locked.
    Locked,
    /// A balance in the file does not agree with the one that decisions were made on.
    Books,
    /// Closed by the owner; no failure.
    Closed,
}
