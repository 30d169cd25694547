//! Possible states of a disk after a power loss: the synced data, and any part of the unsynced data.

use std::collections::BTreeMap;

use super::log::{Event, Files};

/// The unit of an atomic disk write.
pub(super) const SECTOR: usize = 512;

/// A disk, changed event by event.
pub(super) struct Disk {
    files: Vec<File>,
    /// The folder: numbers of files by name.
    names: BTreeMap<String, usize>,
    names_unsynced: Vec<NameChange>,
    /// The disk acknowledges syncs without a sync: a test of the test.
    pub(super) ignores_syncs: bool,
}

#[derive(Default)]
struct File {
    synced: Vec<u8>,
    unsynced: Vec<Change>,
}

#[derive(Clone)]
enum Change {
    Write { offset: usize, bytes: Vec<u8> },
    Truncate(usize),
}

enum NameChange {
    Create(String, usize),
    Delete(String),
}

impl Disk {
    pub(super) fn new(start: Files) -> Disk {
        let mut disk = Disk {
            files: Vec::new(),
            names: BTreeMap::new(),
            names_unsynced: Vec::new(),
            ignores_syncs: false,
        };
        for (name, synced) in start {
            disk.names.insert(name, disk.files.len());
            disk.files.push(File {
                synced,
                unsynced: Vec::new(),
            });
        }
        disk
    }

    pub(super) fn apply(&mut self, event: &Event) {
        match event {
            Event::Created(name) => {
                let created = NameChange::Create(name.clone(), self.files.len());
                self.names_unsynced.push(created);
                self.files.push(File::default());
            }
            Event::Deleted { name, synced } => {
                self.names_unsynced.push(NameChange::Delete(name.clone()));
                if *synced {
                    self.sync_folder();
                }
            }
            Event::Written {
                inode,
                offset,
                bytes,
            } => {
                let (offset, bytes) = (*offset, bytes.clone());
                let write = Change::Write { offset, bytes };
                self.files[*inode].unsynced.push(write);
            }
            Event::Truncated { inode, length } => {
                let truncate = Change::Truncate(*length);
                self.files[*inode].unsynced.push(truncate);
            }
            Event::Synced { inode, folder } => {
                if *folder {
                    self.sync_folder();
                }
                if !self.ignores_syncs {
                    let file = &mut self.files[*inode];
                    for change in std::mem::take(&mut file.unsynced) {
                        change.apply(&mut file.synced);
                    }
                }
            }
            Event::Acknowledged(_) => {}
        }
    }

    fn sync_folder(&mut self) {
        if !self.ignores_syncs {
            for change in std::mem::take(&mut self.names_unsynced) {
                change.apply(&mut self.names);
            }
        }
    }

    /// The files after a power loss at this moment, for a random treatment of the unsynced data.
    pub(super) fn after_power_loss(&self, random: &mut Random) -> Files {
        let mut names = self.names.clone();
        // File systems journal the changes of a folder: a prefix of the changes is present.
        let kept = random.below(self.names_unsynced.len() + 1);
        for change in &self.names_unsynced[..kept] {
            change.apply(&mut names);
        }
        let fate = Fate::any(random);
        let mut content = |number: usize| {
            let file = &self.files[number];
            let mut bytes = file.synced.clone();
            let count = file.unsynced.len();
            for (index, change) in file.unsynced.iter().enumerate() {
                fate.apply(change, index + 1 == count, &mut bytes, random);
            }
            bytes
        };
        names
            .into_iter()
            .map(|(name, number)| (name, content(number)))
            .collect()
    }
}

/// The fate of unsynced changes.
#[derive(Clone, Copy)]
enum Fate {
    Lost,
    Kept,
    /// Only the last change is present: the disk wrote the last change first.
    LastKept,
    /// Each change is present or absent.
    SomeKept,
    /// Each change is present, absent, or partial: a prefix of its sectors, or any of its sectors.
    Torn,
}

impl Fate {
    fn any(random: &mut Random) -> Fate {
        match random.below(8) {
            0 => Fate::Lost,
            1 => Fate::Kept,
            2 => Fate::LastKept,
            3 | 4 => Fate::SomeKept,
            _ => Fate::Torn,
        }
    }

    fn apply(self, change: &Change, is_last: bool, file: &mut Vec<u8>, random: &mut Random) {
        let kept = match self {
            Fate::Lost => false,
            Fate::Kept => true,
            Fate::LastKept => is_last,
            Fate::SomeKept => random.below(2) == 0,
            Fate::Torn => match (random.below(4), change) {
                (0, _) => false,
                (2, Change::Write { offset, bytes }) => {
                    let some = random.below(bytes.len().div_ceil(SECTOR) + 1);
                    let prefix = sectors(*offset, bytes).take(some);
                    prefix.for_each(|sector| sector.apply(file));
                    return;
                }
                (3, Change::Write { offset, bytes }) => {
                    let any = sectors(*offset, bytes).filter(|_| random.below(2) == 0);
                    any.for_each(|sector| sector.apply(file));
                    return;
                }
                _ => true,
            },
        };
        if kept {
            change.apply(file);
        }
    }
}

/// The single-sector writes of a write.
fn sectors(offset: usize, bytes: &[u8]) -> impl Iterator<Item = Change> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let rest = bytes.get(at..).filter(|rest| !rest.is_empty())?;
        let start = offset + at;
        let length = rest.len().min(SECTOR - start % SECTOR);
        at += length;
        Some(Change::Write {
            offset: start,
            bytes: rest[..length].to_vec(),
        })
    })
}

impl Change {
    fn apply(&self, file: &mut Vec<u8>) {
        match self {
            Change::Write { offset, bytes } => {
                let end = offset + bytes.len();
                if file.len() < end {
                    file.resize(end, 0);
                }
                file[*offset..end].copy_from_slice(bytes);
            }
            Change::Truncate(length) => file.resize(*length, 0),
        }
    }
}

impl NameChange {
    fn apply(&self, names: &mut BTreeMap<String, usize>) {
        match self {
            NameChange::Create(name, number) => names.insert(name.clone(), *number),
            NameChange::Delete(name) => names.remove(name),
        };
    }
}

/// A seeded random generator (SplitMix64).
pub(super) struct Random(pub(super) u64);

impl Random {
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    pub(super) fn below(&mut self, limit: usize) -> usize {
        (self.next() % limit as u64) as usize
    }
}
