//! Another name for a file that no gateway uses any more.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rusqlite::{ErrorCode, OpenFlags};

use super::file;
use super::last_commit;
use super::lock::Lock;
use super::name;

/// The name of the file at `path` after its store was copied into a database.
pub fn migrated(path: &Path) -> PathBuf {
    name::with_suffix(path, ".migrated")
}

/// Why a file was not renamed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenameError {
    /// A file with the new name exists.
    #[error("`{path}` exists already; move it elsewhere and try again", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// Another program has the file open, and may write commits to a log beside the old name.
    #[error(
        "another program has `{path}` open (`fuser {path}` finds it); stop Litestream, and audits and backups of the file, and try again",
        path = path.display()
    )]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// The log could not be moved into the file.
    #[error("could not move the log of `{path}` into the file", path = path.display())]
    Log {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The file system refused the new name.
    #[error("could not rename `{path}`", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
}

/// Renames the store at `from` and makes the new name durable. The caller has the lock of the store. An existing file is not replaced.
///
/// Commits may be in the log beside the file, and the log keeps the old name. So the commits are first moved into the file, and the log
/// is removed. SQLite does this only while no other connection is open: another connection could write to a log under the old name.
pub fn rename(from: &Path, to: &Path, _lock: &Lock) -> Result<(), RenameError> {
    let failed = |source| RenameError::File {
        path: from.to_owned(),
        source,
    };
    match fs::symlink_metadata(to) {
        Ok(_) => {
            return Err(RenameError::Exists {
                path: to.to_owned(),
            });
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(failed(error)),
    }
    match remove_log(from) {
        Ok(mode) if mode == "delete" => {}
        Ok(mode) => {
            return Err(RenameError::Log {
                path: from.to_owned(),
                source: format!("the journal mode is `{mode}`").into(),
            });
        }
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => {
            return Err(RenameError::InUse {
                path: from.to_owned(),
            });
        }
        Err(error) => {
            return Err(RenameError::Log {
                path: from.to_owned(),
                source: Box::new(error),
            });
        }
    }
    fs::rename(from, to)
        .and_then(|()| name::sync_folder(to))
        // All commits are in the file, so a later loss of the log loses no commit.
        .and_then(|()| last_commit::remove(from))
        .map_err(failed)
}

/// Moves the log into the file, removes the log, and returns the journal mode. The next writer makes a new log.
fn remove_log(path: &Path) -> rusqlite::Result<String> {
    let access = OpenFlags::SQLITE_OPEN_READ_WRITE;
    let connection = file::open(path, access, Duration::from_secs(5))?;
    let sql = "PRAGMA journal_mode = DELETE";
    let mode = connection.query_row(sql, [], |row| row.get(0))?;
    connection.close().map_err(|(_, error)| error)?;
    Ok(mode)
}
