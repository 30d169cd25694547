//! The folder of the package under test.

use std::path::PathBuf;

/// The folder of the package whose tests run, as Cargo names it at run time. The folder that a build names may be another checkout's: builds of
/// several checkouts share one target folder.
///
/// # Panics
///
/// Where Cargo does not run the tests, and the current folder does not exist.
pub fn package_folder() -> PathBuf {
    std::env::var_os("CARGO_MANIFEST_DIR").map_or_else(
        || std::env::current_dir().expect("a current folder"),
        PathBuf::from,
    )
}
