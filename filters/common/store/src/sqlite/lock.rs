//! The lock that keeps a second gateway off the file.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::{Path, PathBuf};

use crate::error::OpenError;

/// An exclusive lock on the file `PATH.lock`, which names the process that has it.
///
/// The lock belongs to the open file, not to the process: passed to another process over a socket it stays taken, with no moment
/// between in which a third one could have it. That is how an upgrade hands the store over ([`Lock::from_file`]).
#[derive(Debug)]
pub struct Lock {
    file: File,
}

impl Lock {
    /// Takes the lock of the store at `path`, or says who has it.
    pub fn acquire(path: &Path) -> Result<Lock, OpenError> {
        let lock_path = lock_path(path);
        let failed = |action| {
            let path = lock_path.clone();
            move |source| OpenError::File {
                action,
                path,
                source,
            }
        };
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&lock_path)
            .map_err(failed("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(OpenError::InUse {
                    path: path.to_owned(),
                    holder: holder(&mut file),
                });
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let named = file
            .set_len(0)
            .and_then(|()| file.seek(SeekFrom::Start(0)))
            .and_then(|_| writeln!(file, "{}", std::process::id()));
        named.map_err(failed("write"))?;
        Ok(Lock { file })
    }

    /// A lock that another process had and has handed over with its open file.
    pub fn from_file(file: File) -> Lock {
        Lock { file }
    }

    /// The open file, to be handed over. The store must have been closed.
    pub fn into_file(self) -> File {
        self.file
    }
}

fn lock_path(path: &Path) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(".lock");
    PathBuf::from(name)
}

fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // A process that has just taken the lock may not have written its number yet.
    let _ = file.read_to_string(&mut text);
    match text.trim().parse::<u32>() {
        Ok(process) => format!("process {process}"),
        Err(_) => String::from("another process"),
    }
}
