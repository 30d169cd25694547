//! The error of a start.

use tollgate_module::BuildError;
use tollgate_store::OpenError;

use super::upgrade::PredecessorError;
use crate::admin::AdminError;
use crate::proxy::ListenError;

/// Why the gateway did not start.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A socket could not be opened.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// The access log cannot be written, or the export of traces not be set up.
    #[error(
        "cannot start the access log and the export of traces; check the path of the log and its permissions"
    )]
    Telemetry(#[source] std::io::Error),
    /// The store could not be opened.
    #[error("cannot open the store")]
    Store(#[from] OpenError),
    /// The content of the store could not be read or recovered.
    #[error("cannot read the ledger")]
    Books(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// A module could not be built.
    #[error(transparent)]
    Module(BuildError),
    /// A filter could not be built.
    #[error("the chain of `{route}` cannot be built")]
    Filter {
        /// The route's path.
        route: String,
        /// The reason.
        #[source]
        source: BuildError,
    },
    /// Health, metrics or the control socket could not start.
    #[error(transparent)]
    Admin(#[from] AdminError),
    /// The predecessor, the process that started this process, did not hand over.
    #[error(transparent)]
    Predecessor(#[from] PredecessorError),
    /// The operating system provided no thread or no event queue.
    #[error("cannot start threads; is the limit of processes or files too low?")]
    Threads(#[source] std::io::Error),
}
