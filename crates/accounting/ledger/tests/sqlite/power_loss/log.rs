//! The log of a folder: operations on files and acknowledgements to callers, in their order.

use std::collections::HashMap;
use std::ffi::c_int;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use parking_lot::{Mutex, MutexGuard};

use super::disk::SECTOR;
use super::vfs;

/// Files by name.
pub(super) type Files = Vec<(String, Vec<u8>)>;

/// An operation or an acknowledgement.
pub(super) enum Event {
    /// The file with the next number was created under this name.
    Created(String),
    /// The name of a file was removed.
    Deleted {
        name: String,
        /// The folder was synced before the call returned.
        synced: bool,
    },
    Written {
        inode: usize,
        offset: usize,
        bytes: Vec<u8>,
    },
    Truncated {
        inode: usize,
        length: usize,
    },
    Synced {
        inode: usize,
        /// Whether the folder was synced too.
        folder: bool,
    },
    /// A caller received a durable result.
    Acknowledged(Ack),
}

/// A result that a caller received.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ack {
    Held(u64),
    Charged(u64, i64),
    Credited(u64),
    /// An account with its login and first credit.
    SignedUp(u64),
}

/// The log of one folder, shared by the folder's open files.
#[derive(Clone)]
pub(super) struct Log(Arc<Mutex<State>>);

struct State {
    names: HashMap<String, usize>,
    files: usize,
    events: Vec<Event>,
    /// The file of the last commit, which is not written through SQLite, and its content at the last event.
    record: (PathBuf, Vec<u8>),
}

impl State {
    /// Adds changes of the record since the last event, as unsynced sectors.
    fn see_record(&mut self) {
        let (path, before) = &self.record;
        let Ok(bytes) = fs::read(path) else { return };
        if bytes == *before {
            return;
        }
        let inode = match self.names.get(RECORD) {
            Some(inode) => *inode,
            None => {
                self.names.insert(RECORD.to_owned(), self.files);
                self.events.push(Event::Created(RECORD.to_owned()));
                self.files += 1;
                self.files - 1
            }
        };
        for (number, sector) in bytes.chunks(SECTOR).enumerate() {
            let offset = number * SECTOR;
            if before.get(offset..offset + sector.len()) != Some(sector) {
                self.events.push(Event::Written {
                    inode,
                    offset,
                    bytes: sector.to_vec(),
                });
            }
        }
        self.record.1 = bytes;
    }
}

const RECORD: &str = "t.db.committed";

impl Log {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock()
    }

    /// Runs an operation under the lock, so that the log has the order of the operations. Records a successful operation.
    fn record(&self, event: Event, act: impl FnOnce() -> c_int) -> c_int {
        let mut state = self.state();
        state.see_record();
        let code = act();
        if code == rusqlite::ffi::SQLITE_OK {
            if let Event::Deleted { name, .. } = &event {
                state.names.remove(name);
            }
            state.events.push(event);
        }
        code
    }

    /// The number of the file with this name; a new number for a new file.
    pub(super) fn opened(&self, name: &str) -> usize {
        let mut state = self.state();
        if let Some(inode) = state.names.get(name) {
            return *inode;
        }
        let inode = state.files;
        state.files += 1;
        state.names.insert(name.to_owned(), inode);
        state.events.push(Event::Created(name.to_owned()));
        inode
    }

    pub(super) fn delete(&self, name: &str, synced: bool, act: impl FnOnce() -> c_int) -> c_int {
        let name = name.to_owned();
        self.record(Event::Deleted { name, synced }, act)
    }

    pub(super) fn write(
        &self,
        inode: usize,
        offset: usize,
        bytes: &[u8],
        act: impl FnOnce() -> c_int,
    ) -> c_int {
        let written = Event::Written {
            inode,
            offset,
            bytes: bytes.to_vec(),
        };
        self.record(written, act)
    }

    pub(super) fn truncate(
        &self,
        inode: usize,
        length: usize,
        act: impl FnOnce() -> c_int,
    ) -> c_int {
        self.record(Event::Truncated { inode, length }, act)
    }

    pub(super) fn sync(&self, inode: usize, folder: bool) {
        let mut state = self.state();
        state.see_record();
        state.events.push(Event::Synced { inode, folder });
    }

    pub(super) fn acknowledge(&self, ack: Ack) {
        let mut state = self.state();
        state.see_record();
        state.events.push(Event::Acknowledged(ack));
    }
}

/// A recording of a folder under way.
pub(super) struct Recording {
    folder: PathBuf,
    start: Files,
    log: Log,
}

impl Recording {
    /// Records a folder. The present files count as durable.
    pub(super) fn start(folder: &Path) -> Recording {
        // The name used by SQLite.
        let folder = folder.canonicalize().expect("the folder exists");
        let mut start = Vec::new();
        for entry in fs::read_dir(&folder).expect("the folder is read") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().expect("a name").to_string_lossy();
            if name.ends_with(".db") || name.ends_with("-wal") || name == RECORD {
                start.push((name.into_owned(), fs::read(&path).expect("a file is read")));
            }
        }
        let record = start.iter().find(|(name, _)| name == RECORD);
        let record = record.map(|(_, bytes)| bytes.clone()).unwrap_or_default();
        let names = start.iter().enumerate();
        let names: HashMap<_, _> = names
            .map(|(inode, (name, _))| (name.clone(), inode))
            .collect();
        let log = Log(Arc::new(Mutex::new(State {
            files: names.len(),
            names,
            events: Vec::new(),
            record: (folder.join(RECORD), record),
        })));
        vfs::record(&folder, log.clone());
        Recording { folder, start, log }
    }

    pub(super) fn log(&self) -> &Log {
        &self.log
    }

    /// The files at the start, and the events since the start.
    pub(super) fn end(self) -> (Files, Vec<Event>) {
        vfs::stop(&self.folder);
        let events = std::mem::take(&mut self.log.state().events);
        (self.start, events)
    }
}
