//! The running release: version and commit.

/// The version of the workspace.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The commit of a release build; empty in other builds.
pub(crate) const COMMIT: &str = env!("TOLLGATE_COMMIT");

/// The answer to `--version`, e.g. `0.2.0 (3f2a91c0b7d4)`.
pub(crate) const DESCRIPTION: &str = env!("TOLLGATE_RELEASE");
