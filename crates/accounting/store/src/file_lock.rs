//! A file that is locked (flock) until its drop.

use std::fs::{File, TryLockError};
use std::ops::Deref;

#[derive(Debug)]
pub(crate) struct LockedFile(File);

impl LockedFile {
    /// Takes the exclusive lock, without waiting.
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
        // Closing is not sufficient: a starting child process has a copy of the descriptor until it executes its program.
        if let Err(error) = self.0.unlock() {
            tracing::warn!(%error, "releasing the lock of a file failed");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As in a child process between its fork and its program.
    #[test]
    fn a_dropped_lock_is_released_while_a_copy_of_its_descriptor_is_open() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("file");
        let file = File::create(&path).expect("a file");
        let copy = file.try_clone().expect("a copy of the descriptor");
        let locked = LockedFile::of(file).expect("it is free");
        let lock = || LockedFile::of(File::open(&path).expect("it is there"));
        assert!(matches!(lock(), Err(TryLockError::WouldBlock)));
        drop(locked);
        lock().expect("it is free again");
        drop(copy);
    }
}
