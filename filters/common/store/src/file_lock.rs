//! A file that is locked (flock) until it is dropped.

use std::fs::{File, TryLockError};
use std::ops::Deref;

#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl LockedFile {
    /// Takes the exclusive lock, without waiting for it.
    pub(crate) fn of(file: File) -> Result<LockedFile, TryLockError> {
        file.try_lock()?;
        Ok(LockedFile(file))
    }
}

impl Deref for LockedFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.0
    }
}

impl Drop for LockedFile {
    fn drop(&mut self) {
        // Closing is not sufficient: a child process that is being started has a copy of the descriptor until it executes its program.
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "releasing the lock of a file failed");
        }
    }
}
