//! Path resolution: the canonical name of the database file.
//!
//! SQLite keeps its log beside the file, under the file's name; the lock and the control socket are beside the file too. So a name is
//! resolved before any other path is derived from the name. Symbolic links, relative paths and links to the folder lead to one log, one
//! lock, one socket. A hard link cannot be resolved to another name. Through a hard link SQLite keeps a second log for the file, and two
//! programs overwrite each other's pages. A file with more than one name is refused.

use std::fs::{self, File, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// The canonical name of the database at `path`, with symbolic links resolved. A path to a missing file stays unchanged.
pub fn resolve(path: &Path) -> PathBuf {
    if let Ok(resolved) = fs::canonicalize(path) {
        return resolved;
    }
    // The file does not exist yet; its folder does.
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    match (fs::canonicalize(folder), path.file_name()) {
        (Ok(folder), Some(name)) => folder.join(name),
        _ => path.to_owned(),
    }
}

/// `path` with `suffix` after its name.
pub(crate) fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    PathBuf::from(name)
}

/// Makes the name of a new file durable.
pub(crate) fn sync_folder(path: &Path) -> std::io::Result<()> {
    let folder = match path.parent() {
        Some(parent) if !parent.as_os_str().is_empty() => parent,
        _ => Path::new("."),
    };
    File::open(folder)?.sync_all()
}

/// Verifies that the file at `path` has no other hard link. A missing file passes.
pub(crate) fn check_links(path: &Path) -> Result<(), OpenError> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.nlink() > 1 => Err(OpenError::HardLinks {
            path: path.to_owned(),
            links: metadata.nlink(),
        }),
        _ => Ok(()),
    }
}

/// Device and inode: the identity of a file under any name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct FileId {
    device: u64,
    inode: u64,
}

impl FileId {
    pub(crate) fn of(metadata: &Metadata) -> FileId {
        FileId {
            device: metadata.dev(),
            inode: metadata.ino(),
        }
    }
}
