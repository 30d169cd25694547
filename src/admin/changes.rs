//! The caller of an operation, and the error of an operation.

use std::fmt;
use std::net::IpAddr;

use tollgate_identity::{AccountError, CreateAccountError, CreateKeyError, RevokeKeyError};
use tollgate_ledger::CreditError;
use tollgate_pay::x402::CloseError;
use tollgate_purchase::plan::PlanError;
use tollgate_store::retention::RetentionError;
use tollgate_store::{CommitError, OpenError, ReadError};

use crate::telemetry::chain;

/// The actor and the request of a change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The actor of the change.
    pub actor: Actor,
    /// The id of the request; a new id by default.
    pub request: Option<String>,
}

/// Who makes a change, as written to the audit log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Actor {
    /// The holder of a token of the admin API, by the token's name.
    Token(String),
    /// A user of the machine, by number.
    User(u32),
    /// A client of the admin address without a token.
    Address(IpAddr),
    /// The sender of a signal, by the signal's name. The kernel does not report the sender's user.
    Signal(&'static str),
    /// The watch over the files of the settings.
    FileWatch,
}

impl Actor {
    /// The effective user of the process.
    pub fn of_process() -> Actor {
        Actor::User(rustix::process::geteuid().as_raw())
    }
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Actor::Token(name) => write!(f, "token {name}"),
            Actor::User(uid) => write!(f, "uid {uid}"),
            Actor::Address(address) => write!(f, "address {address}"),
            Actor::Signal(name) => write!(f, "signal {name}"),
            Actor::FileWatch => f.write_str("file watch"),
        }
    }
}

impl From<Actor> for Caller {
    fn from(actor: Actor) -> Caller {
        Caller {
            actor,
            request: None,
        }
    }
}

/// Why a change was not made: a sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ChangeError {
    /// The kind of remedy.
    pub kind: ChangeErrorKind,
    /// The sentence.
    pub message: String,
}

/// The operator's remedy after a failed change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeErrorKind {
    /// Correct the request.
    Invalid,
    /// Name an existing subject.
    NotFound,
    /// Change the state: the request contradicts the state.
    Conflict,
    /// Try again: the store or the gateway is not available.
    Unavailable,
}

impl ChangeErrorKind {
    /// The name of the kind.
    pub(crate) fn word(self) -> &'static str {
        match self {
            ChangeErrorKind::Invalid => "invalid",
            ChangeErrorKind::NotFound => "not_found",
            ChangeErrorKind::Conflict => "conflict",
            ChangeErrorKind::Unavailable => "unavailable",
        }
    }
}

impl ChangeError {
    /// The error of an invalid request.
    pub(crate) fn invalid(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::Invalid, message)
    }

    /// The error of a request with an unknown subject.
    pub(crate) fn not_found(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::NotFound, message)
    }

    /// The error of a request that contradicts the state.
    pub(crate) fn conflict(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::Conflict, message)
    }

    /// A temporary error: the request may succeed later.
    pub(crate) fn unavailable(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::Unavailable, message)
    }

    fn new(kind: ChangeErrorKind, message: impl Into<String>) -> ChangeError {
        ChangeError {
            kind,
            message: message.into(),
        }
    }

    /// An error with the chain of causes.
    fn of(kind: ChangeErrorKind, error: &dyn std::error::Error) -> ChangeError {
        ChangeError::new(kind, chain(error))
    }
}

/// The error of a panicked task.
pub(super) fn panicked(error: tokio::task::JoinError) -> ChangeError {
    ChangeError::unavailable(chain(&error))
}

macro_rules! kinds {
    ($($error:ty: $($pattern:pat => $kind:ident),*;)*) => { $(
        impl From<$error> for ChangeError {
            fn from(error: $error) -> ChangeError {
                let kind = match &error { $($pattern => ChangeErrorKind::$kind,)* };
                ChangeError::of(kind, &error)
            }
        }
    )* };
}
kinds! {
    tollgate_money::IdError: _ => Invalid;
    tollgate_money::DecimalError: _ => Invalid;
    tollgate_filter::NoCacheEntryId: _ => Invalid;
    tollgate_identity::LoginError: _ => Invalid;
    tollgate_identity::KeyIdError: _ => Invalid;
    ReadError: _ => Unavailable;
    OpenError: _ => Unavailable;
    CommitError: CommitError::Refused(_) => Conflict, _ => Unavailable;
    PlanError: PlanError::AttachedPart(_) => Conflict, _ => Unavailable;
    CreateAccountError:
        CreateAccountError::LoginTaken { .. } => Conflict,
        CreateAccountError::Store(_) => Unavailable,
        _ => Invalid;
    AccountError: AccountError::NoAccount(_) => NotFound, _ => Unavailable;
    CreateKeyError:
        CreateKeyError::NoAccount(_) => NotFound,
        CreateKeyError::AlreadyMade(_) => Conflict,
        CreateKeyError::Store(_) => Unavailable,
        _ => Invalid;
    RevokeKeyError: RevokeKeyError::NoKey(_) => NotFound, _ => Unavailable;
    RetentionError:
        RetentionError::InUse { .. } => Conflict,
        _ => Unavailable;
    CreditError:
        CreditError::NoAccount { .. } => NotFound,
        CreditError::Amount { .. } | CreditError::Reference { .. } => Invalid,
        CreditError::TooMuch { .. } | CreditError::InsufficientCredit { .. } | CreditError::Conflict(_) => Conflict,
        _ => Unavailable;
    CloseError:
        CloseError::Unknown(_) => NotFound,
        CloseError::Early(_) | CloseError::TransactionUsed(_) | CloseError::Moved => Conflict,
        _ => Unavailable;
}
