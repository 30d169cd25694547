//! One shared file descriptor per database file and process.
//!
//! SQLite's locks on the file are POSIX record locks. The kernel drops all of a process's locks on a file as soon as the process closes
//! any descriptor of the file. So the process opens each database file at most once beside SQLite, and shares the descriptor. The
//! descriptor is closed when the last user of the file in this process is dropped. Code that opens an SQLite connection keeps a
//! [`Descriptor`] from before the opening until after the closing.

use std::collections::BTreeMap;
use std::fs::{self, File, TryLockError};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;

use parking_lot::{Mutex, MutexGuard};

use super::name::FileId;

/// The files that are open in this process.
static OPEN: Mutex<BTreeMap<FileId, Shared>> = Mutex::new(BTreeMap::new());

struct Shared {
    /// One file, and the files received from another process or opened in a race.
    files: Vec<File>,
    users: usize,
    locked: bool,
}

/// One user's share of the descriptor.
#[derive(Debug)]
pub(crate) struct Descriptor {
    id: FileId,
}

/// The position of `user_version` in the header of a database: four bytes, big-endian (SQLite file format, section 1.3).
const USER_VERSION_AT: u64 = 60;

impl Descriptor {
    /// Opens the file at `path`, or shares the file if this process has the file open.
    pub(crate) fn open(path: &Path) -> io::Result<Descriptor> {
        let mut open = lock();
        // Checked by name first: a second opening of an open file would require a close.
        let known = FileId::of(&fs::metadata(path)?);
        if let Some(shared) = open.get_mut(&known) {
            shared.users += 1;
            return Ok(Descriptor { id: known });
        }
        Descriptor::of(&mut open, File::open(path)?)
    }

    /// Takes over an open file.
    pub(crate) fn from_file(file: File, locked: bool) -> io::Result<Descriptor> {
        let mut open = lock();
        let descriptor = Descriptor::of(&mut open, file)?;
        if let Some(shared) = open.get_mut(&descriptor.id) {
            shared.locked |= locked;
        }
        Ok(descriptor)
    }

    fn of(open: &mut BTreeMap<FileId, Shared>, file: File) -> io::Result<Descriptor> {
        let id = FileId::of(&file.metadata()?);
        let shared = open.entry(id).or_insert_with(|| Shared {
            files: Vec::new(),
            users: 0,
            locked: false,
        });
        shared.files.push(file);
        shared.users += 1;
        Ok(Descriptor { id })
    }

    pub(crate) fn id(&self) -> FileId {
        self.id
    }

    /// Takes the exclusive lock on the file under all its names.
    pub(crate) fn try_lock(&self) -> Result<(), TryLockError> {
        self.with(|shared| {
            if shared.locked {
                return Err(TryLockError::WouldBlock);
            }
            shared.files[0].try_lock()?;
            shared.locked = true;
            Ok(())
        })
    }

    pub(crate) fn unlock(&self) {
        self.with(|shared| {
            shared.locked = false;
            for file in &shared.files {
                if let Err(error) = file.unlock() {
                    tracing::warn!(%error, "releasing the lock on the database file failed");
                }
            }
        });
    }

    /// The locked file, for another process. This process gives up the lock, and the lock is never free in between.
    pub(crate) fn hand_over(&self) -> io::Result<File> {
        self.with(|shared| {
            shared.locked = false;
            shared.files[0].try_clone()
        })
    }

    /// The `user_version` in the file itself, independent of any log; zero for a file that is too short to be a database.
    pub(crate) fn user_version(&self) -> io::Result<i64> {
        let mut bytes = [0; 4];
        let read = self.with(|shared| shared.files[0].read_exact_at(&mut bytes, USER_VERSION_AT));
        match read {
            Ok(()) => Ok(i64::from(u32::from_be_bytes(bytes))),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(0),
            Err(error) => Err(error),
        }
    }

    fn with<T>(&self, act: impl FnOnce(&mut Shared) -> T) -> T {
        let mut open = lock();
        let shared = open.get_mut(&self.id);
        act(shared.expect("a file stays in the list while it has users"))
    }
}

impl Drop for Descriptor {
    fn drop(&mut self) {
        let mut open = lock();
        if let Some(shared) = open.get_mut(&self.id) {
            shared.users -= 1;
            if shared.users == 0 {
                // Closed under the mutex: no other thread reopens the file before the close.
                open.remove(&self.id);
            }
        }
    }
}

fn lock() -> MutexGuard<'static, BTreeMap<FileId, Shared>> {
    OPEN.lock()
}
