//! On whose behalf an operation is performed, and why one was not.

use std::fmt;
use std::net::IpAddr;

use tollgate_identity::{AccountError, CreateAccountError, CreateKeyError, RevokeKeyError};
use tollgate_ledger::CreditError;
use tollgate_pay::x402::CloseError;
use tollgate_purchase::plan::PlanError;
use tollgate_store::retention::RetentionError;
use tollgate_store::{CommitError, OpenError, ReadError};

use crate::telemetry::chain;

/// On whose behalf a change is made, and by which request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Caller {
    /// Who.
    pub actor: Actor,
    /// The id of the request; a new one by default.
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
    /// The sender of a signal, by the signal's name; the kernel does not say which user it was.
    Signal(&'static str),
    /// The watch over the files of the settings.
    FileWatch,
}

impl Actor {
    /// The user that runs this process.
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

/// Why a change was not made: one sentence for the operator.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct ChangeError {
    /// What to do about it.
    pub kind: ChangeErrorKind,
    /// The sentence.
    pub message: String,
}

/// What an operator does about a change that was not made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChangeErrorKind {
    /// Correct the request.
    Invalid,
    /// Name something that exists.
    NotFound,
    /// Change what the request contradicts.
    Conflict,
    /// Try again: the store or the gateway is not available.
    Unavailable,
}

impl ChangeErrorKind {
    /// Its word.
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
    /// A request that has to be corrected.
    pub(crate) fn invalid(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::Invalid, message)
    }

    /// A request that names nothing that exists.
    pub(crate) fn not_found(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::NotFound, message)
    }

    /// A request that contradicts the state.
    pub(crate) fn conflict(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::Conflict, message)
    }

    /// A request that may succeed later.
    pub(crate) fn unavailable(message: impl Into<String>) -> ChangeError {
        ChangeError::new(ChangeErrorKind::Unavailable, message)
    }

    fn new(kind: ChangeErrorKind, message: impl Into<String>) -> ChangeError {
        ChangeError {
            kind,
            message: message.into(),
        }
    }

    /// An error with all its causes.
    fn of(kind: ChangeErrorKind, error: &dyn std::error::Error) -> ChangeError {
        ChangeError::new(kind, chain(error))
    }
}

/// A task that has panicked.
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
