//! Online backup: a copy of a store at one commit, while it is being written.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use rusqlite::Connection;

use super::descriptor::Descriptor;
use super::read::no_file;
use super::{file, name};
use crate::error::OpenError;

/// Why the backup failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The target file exists already.
    #[error("`{path}` exists already; name a new file, a backup never replaces another", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The copy could not be written.
    #[error("could not write the backup `{path}`", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The engine could not copy.
    #[error("could not copy the store to `{path}`", path = path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
}

/// Writes a copy of the store at `path` to the new file `to`, while a gateway serves from it or with none. It has the schema that the store
/// has, which may be that of an earlier release.
///
/// The copy is the state of one commit. Until it is complete and synced it has a temporary name (`to` and `.part`). Only its owner can read
/// it, as with the store. A gateway that opens it releases the holds that were open when it was made.
pub fn backup(path: &Path, to: &Path) -> Result<(), BackupError> {
    if to.exists() {
        return Err(BackupError::Exists {
            path: to.to_owned(),
        });
    }
    let part = file::with_suffix(to, ".part");
    let failed = |source| BackupError::File {
        path: to.to_owned(),
        source,
    };
    let path = &name::resolve(path);
    // Closed after the connection, and not before: see there.
    let _file = Descriptor::open(path).map_err(|error| no_file(path, error))?;
    let (source, _) = file::connect_source(path)?;
    match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(failed(error)),
        _ => {}
    }
    file::private_file(&part).map_err(failed)?;
    copy(&source, &part).map_err(|error| BackupError::Copy {
        path: to.to_owned(),
        source: Box::new(error),
    })?;
    File::open(&part)
        .and_then(|file| file.sync_all())
        .and_then(|()| fs::rename(&part, to))
        .map_err(failed)?;
    file::sync_folder(to)
        .inspect_err(|_| remove(to))
        .map_err(failed)
}

/// Writes `text` to the new file `to`, for its owner alone, and waits until it is durable. After an error there is no such file.
pub fn export(to: &Path, text: &[u8]) -> Result<(), BackupError> {
    if to.exists() {
        return Err(BackupError::Exists {
            path: to.to_owned(),
        });
    }
    let failed = |source| BackupError::File {
        path: to.to_owned(),
        source,
    };
    let mut file = file::private_file(to).map_err(failed)?;
    file.write_all(text)
        .and_then(|()| file.sync_all())
        .and_then(|()| file::sync_folder(to))
        .inspect_err(|_| remove(to))
        .map_err(failed)
}

/// Removes a file that this process has made and could not complete.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(%error, path = %path.display(), "cannot remove incomplete file");
    }
}

fn copy(source: &Connection, to: &Path) -> rusqlite::Result<()> {
    let mut target = Connection::open(to)?;
    // All pages in one step: one snapshot of the source, which the WAL provides without stopping the writer.
    rusqlite::backup::Backup::new(source, &mut target)?.step(-1)?;
    target.close().map_err(|(_, error)| error)
}
