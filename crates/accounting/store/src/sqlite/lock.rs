//! The exclusive file lock (flock) that excludes a second gateway.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::Read;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use super::descriptor::Descriptor;
use super::name;
use crate::error::{OpenError, STOP_THE_OTHER};

/// Exclusive locks on the database file itself and on the file `PATH.lock`; the lock file names the holding process.
///
/// The lock on the database covers the file under every name. The lock file exists before the database does, names its holder, and is the
/// lock of earlier releases. Both are flock(2) locks: SQLite's own locks are of another kind and do not conflict.
///
/// The locks belong to the open files, not to the process. Open files passed to another process over a socket remain locked, without a
/// moment in which a third process could take the locks. An upgrade hands over the store in this way ([`Lock::from_files`]).
#[derive(Debug)]
pub struct Lock {
    /// `None` for a disabled lock.
    held: Option<LockedFiles>,
}

#[derive(Debug)]
struct LockedFiles {
    named: File,
    /// `None` before the database exists.
    database: Option<Descriptor>,
}

impl Lock {
    /// Takes the lock of the store at `path`, or reports the holding process.
    pub fn acquire(path: &Path) -> Result<Lock, OpenError> {
        let path = name::resolve(path);
        let lock_path = lock_path(&path);
        let failed = |action| {
            let path = lock_path.clone();
            move |source| OpenError::File {
                action,
                path,
                source,
            }
        };
        let mut named = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(failed("open"))?;
        match named.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path,
                    holder: holder(&mut named),
                    remedy: STOP_THE_OTHER,
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        name_holder(&named).map_err(failed("write"))?;
        let database = None;
        let mut lock = Lock {
            held: Some(LockedFiles { named, database }),
        };
        lock.cover(&path)?;
        Ok(lock)
    }

    /// Extends the lock to the database file, if the file exists by now.
    pub(crate) fn cover(&mut self, path: &Path) -> Result<(), OpenError> {
        let Some(held) = self.held.as_mut().filter(|held| held.database.is_none()) else {
            return Ok(());
        };
        // Before the lock is tried, because a hard link is the cause of a conflict. A process that has opened the file by the other name
        // is misconfigured too.
        name::check_links(path)?;
        let failed = |action| {
            move |source| OpenError::File {
                action,
                path: path.to_owned(),
                source,
            }
        };
        let database = match Descriptor::open(path) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            database => database.map_err(failed("open"))?,
        };
        match database.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path: path.to_owned(),
                    holder: String::from("another process, through another name of the file"),
                    remedy: STOP_THE_OTHER,
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        held.database = Some(database);
        Ok(())
    }

    /// The lock on the file at `path`, received from the process that has handed the store over. Taken anew if the process could not pass
    /// the lock on.
    pub fn received(path: &Path, files: Vec<File>) -> Result<Lock, OpenError> {
        match <[File; 2]>::try_from(files) {
            Ok(files) => Lock::from_files(files).map_err(|source| OpenError::File {
                action: "take over the lock on",
                path: path.to_owned(),
                source,
            }),
            Err(_) => Lock::acquire(path),
        }
    }

    /// A lock received from another process with its open files.
    pub fn from_files([named, database]: [File; 2]) -> std::io::Result<Lock> {
        let database = Some(Descriptor::from_file(database, true)?);
        // Only for messages: the lock is held even if the write fails.
        if let Err(error) = name_holder(&named) {
            tracing::warn!(%error, "cannot write the id of this process to the lock file");
        }
        Ok(Lock {
            held: Some(LockedFiles { named, database }),
        })
    }

    /// The open files, for the handover; `None` for a lock without a database. The store must have been closed.
    pub fn into_files(mut self) -> std::io::Result<Option<[File; 2]>> {
        let Some(LockedFiles {
            named,
            database: Some(database),
        }) = self.held.take()
        else {
            return Ok(None);
        };
        let file = database.hand_over()?;
        Ok(Some([named, file]))
    }

    /// A lock that excludes no other process, as on a file system without locks: for tests of the fencing.
    #[doc(hidden)]
    pub fn disabled() -> Lock {
        Lock { held: None }
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        // Closing is not sufficient. A reader of this process may share the descriptor. A child process has copies of all descriptors
        // until the child executes its program.
        let Some(LockedFiles { named, database }) = &self.held else {
            return;
        };
        if let Some(database) = database {
            database.unlock();
        }
        if let Err(error) = named.unlock() {
            tracing::warn!(%error, "releasing the lock of the store failed");
        }
    }
}

fn lock_path(path: &Path) -> PathBuf {
    super::name::with_suffix(path, ".lock")
}

/// Writes the id of this process, the lock's holder, into the file.
fn name_holder(file: &File) -> std::io::Result<()> {
    file.set_len(0)?;
    file.write_all_at(format!("{}\n", std::process::id()).as_bytes(), 0)
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // A process that has just taken the lock may not have written its process id yet.
    let _ = file.read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(process) => format!("process {process}"),
        Err(_) => String::from("another process"),
    }
}
