//! Online backup: a copy of a store at one commit, beside a writing gateway.

use std::fs::{self, TryLockError};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use rusqlite::Connection;
use rusqlite::backup::{Backup, StepResult};

use super::descriptor::Descriptor;
use super::name::FileId;
use super::read::no_file;
use super::{file, last_commit, name};
use crate::error::OpenError;
use crate::file_lock::LockedFile;

/// Why the backup failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum BackupError {
    /// The store could not be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The target file exists already.
    #[error("`{path}` exists already; name a new file, or replace it with `--replace`", path = path.display())]
    Exists {
        /// The file.
        path: PathBuf,
    },
    /// The target is a database with a log.
    #[error("`{path}` is in use as a database; stop the program that uses it, or name another file", path = path.display())]
    InUse {
        /// The file.
        path: PathBuf,
    },
    /// Another process writes a backup to this name.
    #[error("another backup to `{path}` is under way; wait for its end", path = path.display())]
    UnderWay {
        /// The file.
        path: PathBuf,
    },
    /// The copy could not be written.
    #[error("could not write the backup `{path}`", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: io::Error,
    },
    /// The engine could not copy.
    #[error("could not copy the store to `{path}`", path = path.display())]
    Copy {
        /// The file.
        path: PathBuf,
        /// The cause.
        #[source]
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The engine finds damage in the file.
    #[error("`{path}` is damaged: {problem}; make another backup, on another disk", path = path.display())]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The engine's report.
        problem: String,
    },
}

/// Number of copied pages, and of all pages of the store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CopiedPages {
    /// Copied so far.
    pub done: u64,
    /// In the store.
    pub total: u64,
}

/// Pages of one step of a copy: a few milliseconds on a disk.
const STEP_PAGES: i32 = 1024;

/// Writes a copy of the store at `path` to the new file `to`, with or without a running gateway. The copy has the store's schema; the
/// schema may be of an earlier release.
///
/// The copy is the state of one commit. Until the copy is complete and synced, the file has a temporary name (`to` and `.part`). Only the
/// owner can read the copy, like the store. A gateway that opens the copy releases the holds that were open at the time of the backup.
pub fn backup(path: &Path, to: &Path) -> Result<(), BackupError> {
    backup_watched(path, to, false, &mut |_| {})
}

/// [`backup`] that replaces an existing file at `to` once the copy is complete and synced. At any time, `to` is the old file or the new
/// file.
pub fn backup_replacing(path: &Path, to: &Path) -> Result<(), BackupError> {
    backup_watched(path, to, true, &mut |_| {})
}

/// [`backup`] or [`backup_replacing`] (`replaces`) with progress: `report` is called some times a second with the copied pages.
pub fn backup_watched(
    path: &Path,
    to: &Path,
    replaces: bool,
    report: &mut dyn FnMut(CopiedPages),
) -> Result<(), BackupError> {
    let path = &name::resolve(path);
    let failed = |source| BackupError::File {
        path: to.to_owned(),
        source,
    };
    // Dropped after the connection: see [`Descriptor`].
    let descriptor = Descriptor::open(path).map_err(|error| no_file(path, error))?;
    let part = name::with_suffix(to, ".part");
    // Locked until the end, so that two backups to one name do not write one file.
    let locked = lock_part(to, &part)?;
    if let Ok(found) = fs::metadata(to) {
        // The store itself is never replaced.
        if !replaces || FileId::of(&found) == descriptor.id() {
            remove(&part);
            return Err(BackupError::Exists {
                path: to.to_owned(),
            });
        }
    }
    // SQLite would apply the log of a database opened at `to` to the copy.
    let log = fs::metadata(name::with_suffix(to, "-wal"));
    if log.is_ok_and(|log| log.len() > 0) {
        remove(&part);
        return Err(BackupError::InUse {
            path: to.to_owned(),
        });
    }
    let (source, _) = file::connect_source(path)?;
    copy(&source, &part, report).map_err(|error| BackupError::Copy {
        path: to.to_owned(),
        source: Box::new(error),
    })?;
    locked
        .sync_all()
        // The record of an earlier file, if the earlier file was opened as a database.
        .and_then(|()| last_commit::remove(to))
        .and_then(|()| fs::rename(&part, to))
        .map_err(failed)?;
    name::sync_folder(to)
        .inspect_err(|_| {
            if !replaces {
                remove(to);
            }
        })
        .map_err(failed)
}

/// Creates and locks the file that becomes the copy. Empties the file of an interrupted backup.
fn lock_part(to: &Path, part: &Path) -> Result<LockedFile, BackupError> {
    let failed = |source| BackupError::File {
        path: to.to_owned(),
        source,
    };
    loop {
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).mode(0o600);
        let file = options.open(part).map_err(failed)?;
        let file = LockedFile::of(file).map_err(|error| match error {
            TryLockError::WouldBlock => BackupError::UnderWay {
                path: to.to_owned(),
            },
            TryLockError::Error(source) => failed(source),
        })?;
        // Another backup may have completed since the file was opened here: the file is then the other backup's copy, under its final
        // name.
        let own = FileId::of(&file.metadata().map_err(failed)?);
        if fs::metadata(part).is_ok_and(|named| FileId::of(&named) == own) {
            file.set_len(0).map_err(failed)?;
            return Ok(file);
        }
    }
}

/// Writes `text` to the new file `to`, for its owner alone, and waits until the file is durable. After an error the file does not exist.
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
        .and_then(|()| name::sync_folder(to))
        .inspect_err(|_| remove(to))
        .map_err(failed)
}

/// Removes an incomplete file of this process.
fn remove(path: &Path) {
    if let Err(error) = fs::remove_file(path) {
        tracing::warn!(%error, path = %path.display(), "cannot remove incomplete file");
    }
}

fn copy(
    source: &Connection,
    to: &Path,
    report: &mut dyn FnMut(CopiedPages),
) -> rusqlite::Result<()> {
    let mut target = Connection::open(to)?;
    // All steps read the snapshot of this transaction: the WAL provides the snapshot without stopping the writer. Without the
    // transaction, a commit between two steps would restart the copy.
    source.execute_batch("BEGIN")?;
    source.query_row("SELECT count(*) FROM meta", [], |row| row.get::<_, i64>(0))?;
    let backup = Backup::new(source, &mut target)?;
    loop {
        let step = backup.step(STEP_PAGES)?;
        let progress = backup.progress();
        let (left, total) = (progress.remaining as u64, progress.pagecount as u64);
        report(CopiedPages {
            done: total.saturating_sub(left),
            total,
        });
        match step {
            StepResult::Done => break,
            StepResult::More => {}
            // No other process has the target, and a reader of the WAL waits for no writer.
            _ => {
                return Err(rusqlite::Error::SqliteFailure(
                    rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY),
                    None,
                ));
            }
        }
    }
    drop(backup);
    source.execute_batch("COMMIT")?;
    target.close().map_err(|(_, error)| error)
}

/// Has the engine check every page and every index of a backup.
///
/// # Errors
///
/// When the file does not open, or is damaged.
pub fn verify_pages(path: &Path) -> Result<(), BackupError> {
    let (connection, _) = file::connect_source(path)?;
    let checked = connection.query_row("PRAGMA integrity_check(1)", [], |row| row.get(0));
    let problem = checked.unwrap_or_else(|error| error.to_string());
    match &*problem {
        "ok" => Ok(()),
        _ => Err(BackupError::Damaged {
            path: path.to_owned(),
            problem,
        }),
    }
}
