//! The folder of the package under test.

use std::path::PathBuf;

/// The folder of the package whose tests run: Cargo starts test programs there. The folder that a build names may be another checkout's, since
/// builds of several checkouts share one target folder.
///
/// # Panics
///
/// Where the current folder does not exist.
pub fn package_folder() -> PathBuf {
    std::env::current_dir().expect("a current folder")
}
