//! The record of the last commit: a file beside the database (`PATH.committed`) that names the last durable commit.
//!
//! The newest commits are in the log beside the database. A missing, cut or damaged log is the end of the log to SQLite: SQLite opens the
//! database in an earlier state, without an error. A start and the audit compare the database with the record, and refuse a database with
//! fewer commits.
//!
//! The record is written in place after the sync of each commit, and is not synced itself. After a loss of power the record may name an
//! earlier commit, never a later commit than the database has. The record has two slots, written in turn, so that one slot is whole at
//! any time.

use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use rusqlite::{Connection, OptionalExtension as _};
use tollgate_clock::Timestamp;

use super::failure::open_error;
use super::name;
use super::root_secret::root_secret;
use crate::commit_id;
use crate::error::{LostCommits, OpenError};
use crate::rows::RootSecret;

/// The first bytes of a slot, with the version of its format.
const MAGIC: &[u8; 8] = b"tlgtcmt1";

/// Distance of the slots: a disk writes a sector whole or not at all.
const SECTOR: usize = 512;

const FILE_BYTES: usize = 2 * SECTOR;

/// Bytes of a slot, with the checksum at its end.
const SLOT_BYTES: usize = 128;
const CHECKSUM_AT: usize = SLOT_BYTES - 8;

/// Number of commits after which the older half of the counted commits leaves the count: a comparison reads at most three times this
/// number.
const COUNTED: i64 = 4096;

/// Context of the id of a store (BLAKE3 key derivation).
const STORE_ID: &str = "tollgate store, record of the last commit";

/// Counts the commits without a row in the journal; the record knows these commits only by number.
pub(crate) const COUNT_COMMIT: &str =
    "INSERT INTO meta (k, v) VALUES ('commits_without_entries', '1')
    ON CONFLICT (k) DO UPDATE SET v = CAST(v AS INTEGER) + 1";

/// A journal row in the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    /// Zero without a row.
    pub(crate) id: i64,
    pub(crate) hash: [u8; 32],
    pub(crate) at: Timestamp,
}

impl Row {
    const NONE: Row = Row {
        id: 0,
        hash: [0; 32],
        at: Timestamp::from_micros(0),
    };
}

/// The content of a slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LastCommit {
    store: [u8; 16],
    /// Greater than in the other slot.
    sequence: u64,
    /// The last row of the journal.
    row: Row,
    /// Number of commits without a row.
    without_row: i64,
    /// The rows after `base`, up to the last row, are counted.
    base: i64,
    commits: i64,
    entries: i64,
}

impl LastCommit {
    fn encode(&self) -> [u8; SLOT_BYTES] {
        let mut slot = [0; SLOT_BYTES];
        slot[..8].copy_from_slice(MAGIC);
        slot[8..24].copy_from_slice(&self.store);
        slot[24..32].copy_from_slice(&self.sequence.to_le_bytes());
        slot[32..64].copy_from_slice(&self.row.hash);
        let numbers = [
            self.row.id,
            self.row.at.as_micros(),
            self.without_row,
            self.base,
            self.commits,
            self.entries,
        ];
        for (place, number) in slot[64..].chunks_exact_mut(8).zip(numbers) {
            place.copy_from_slice(&number.to_le_bytes());
        }
        let checksum = checksum(&slot);
        slot[CHECKSUM_AT..].copy_from_slice(&checksum);
        slot
    }

    /// `None` for an unwritten slot, or a torn slot.
    fn decode(slot: &[u8]) -> Option<LastCommit> {
        let slot: &[u8; SLOT_BYTES] = slot.try_into().ok()?;
        if slot[..8] != *MAGIC || slot[CHECKSUM_AT..] != checksum(slot) {
            return None;
        }
        let number = |at: usize| -> Option<i64> {
            Some(i64::from_le_bytes(slot.get(at..at + 8)?.try_into().ok()?))
        };
        Some(LastCommit {
            store: slot[8..24].try_into().ok()?,
            sequence: u64::from_le_bytes(slot[24..32].try_into().ok()?),
            row: Row {
                hash: slot[32..64].try_into().ok()?,
                id: number(64)?,
                at: Timestamp::from_micros(number(72)?),
            },
            without_row: number(80)?,
            base: number(88)?,
            commits: number(96)?,
            entries: number(104)?,
        })
    }
}

fn checksum(slot: &[u8; SLOT_BYTES]) -> [u8; 8] {
    let hash = blake3::hash(&slot[..CHECKSUM_AT]);
    let mut checksum = [0; 8];
    checksum.copy_from_slice(&hash.as_bytes()[..8]);
    checksum
}

/// The name of the record of the database at `path`.
pub fn path_of(path: &Path) -> PathBuf {
    name::with_suffix(path, ".committed")
}

/// The record beside a database, as read.
enum Found {
    Record(LastCommit),
    Absent,
    Damaged,
}

/// Reads the record of the database at `path`.
fn read(path: &Path) -> Result<Found, OpenError> {
    // A slot may be written during this read. The other slot is then whole, unless two commits are made meanwhile.
    for _ in 0..3 {
        let bytes = match fs::read(path_of(path)) {
            Ok(bytes) => bytes,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Found::Absent),
            Err(error) => return Err(failed("read", path)(error)),
        };
        let slots = [0, SECTOR].map(|at| bytes.get(at..at + SLOT_BYTES));
        let records = slots.into_iter().flatten().filter_map(LastCommit::decode);
        if let Some(record) = records.max_by_key(|record| record.sequence) {
            return Ok(Found::Record(record));
        }
    }
    Ok(Found::Damaged)
}

fn failed(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> OpenError {
    let path = path_of(path);
    move |source| OpenError::File {
        action,
        path,
        source,
    }
}

/// A database compared with the record beside it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RecordState {
    /// The database has the commit that the record names.
    Whole,
    /// No comparison is possible. The field is the reason, as a predicate: `is missing`.
    Unknown(&'static str),
    /// The database lacks durable commits.
    Behind(LostCommits),
}

/// Compares a database with its record, over a connection to the database.
pub(crate) fn compare(path: &Path, connection: &Connection) -> Result<RecordState, OpenError> {
    // Read before the database: a gateway may add commits to the database meanwhile.
    let record = match read(path)? {
        Found::Record(record) => record,
        Found::Absent => return Ok(RecordState::Unknown("is missing")),
        Found::Damaged => return Ok(RecordState::Unknown("is damaged")),
    };
    if record.store != store_id(&root_secret(connection, path)?) {
        return Ok(RecordState::Unknown("is of another database"));
    }
    let lost = lost(connection, &record).map_err(|error| open_error(path, "read", error))?;
    Ok(lost.map_or(RecordState::Whole, RecordState::Behind))
}

/// Refuses the database at `path` if the database lacks durable commits.
pub(crate) fn verify(path: &Path, connection: &Connection) -> Result<(), OpenError> {
    match compare(path, connection)? {
        RecordState::Behind(lost) => Err(OpenError::CommitsLost {
            path: path.to_owned(),
            record: path_of(path),
            lost,
        }),
        RecordState::Whole | RecordState::Unknown(_) => Ok(()),
    }
}

/// Refuses to create a store at `path` if a record shows that a store existed.
pub(crate) fn verify_absent(path: &Path) -> Result<(), OpenError> {
    match read(path)? {
        Found::Record(_) => Err(OpenError::Removed {
            path: path.to_owned(),
            record: path_of(path),
        }),
        Found::Absent | Found::Damaged => Ok(()),
    }
}

/// Removes the record of the database at `path`, before the database gets other commits or is removed. The removal is durable.
pub(crate) fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path_of(path)) {
        Ok(()) => name::sync_folder(path),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        Err(error) => Err(error),
    }
}

fn store_id(secret: &RootSecret) -> [u8; 16] {
    let key = blake3::derive_key(STORE_ID, &secret.0);
    let mut id = [0; 16];
    id.copy_from_slice(&key[..16]);
    id
}

/// Number of commits without a row in the journal.
fn without_row(connection: &Connection) -> rusqlite::Result<i64> {
    let sql = "SELECT CAST(v AS INTEGER) FROM meta WHERE k = 'commits_without_entries'";
    let counted = connection.query_row(sql, [], |row| row.get(0)).optional()?;
    Ok(counted.unwrap_or_default())
}

/// The last row of the journal of a node.
fn last_row(connection: &Connection, node: i64) -> rusqlite::Result<Option<Row>> {
    let sql =
        "SELECT id, hash, at FROM journal WHERE id BETWEEN ?1 AND ?2 ORDER BY id DESC LIMIT 1";
    let row = connection.query_row(sql, commit_id::range(node), |row| {
        Ok(Row {
            id: row.get(0)?,
            hash: row.get(1)?,
            at: Timestamp::from_micros(row.get(2)?),
        })
    });
    row.optional()
}

/// The last row of a node that was exported and removed; zero without removed rows.
fn removed_until(connection: &Connection, node: i64) -> rusqlite::Result<i64> {
    // A backup of an earlier release has no such table.
    let table = "SELECT 1 FROM sqlite_master WHERE name = 'carried_nodes'";
    if !connection.prepare(table)?.exists([])? {
        return Ok(0);
    }
    let sql = "SELECT id FROM carried_nodes WHERE node_id = ?1";
    let last = connection
        .query_row(sql, [node], |row| row.get(0))
        .optional()?;
    Ok(last.unwrap_or_default())
}

/// The commits named by the record and missing in the database.
fn lost(connection: &Connection, record: &LastCommit) -> rusqlite::Result<Option<LostCommits>> {
    let view = connection.unchecked_transaction()?;
    let named = record.row;
    let (node, epoch, number) = commit_id::numbers(named.id);
    let sql = "SELECT hash FROM journal WHERE id = ?1";
    let hash: Option<[u8; 32]> = view
        .query_row(sql, [named.id], |row| row.get(0))
        .optional()?;
    let removed = removed_until(&view, node)?;
    // The hash covers all earlier rows.
    let has_row = named.id == 0 || named.id <= removed || hash == Some(named.hash);
    let without_row = (record.without_row - without_row(&view)?).max(0);
    if has_row && without_row == 0 {
        return Ok(None);
    }
    let last = last_row(&view, node)?.map(|row| commit_id::numbers(row.id));
    let last = last.map(|(_, epoch, number)| (epoch, number));
    let (mut commits, mut entries) = (0, 0);
    if !has_row {
        commits = match last {
            Some((last_epoch, last)) if last_epoch == epoch => number - last,
            Some((last_epoch, _)) if last_epoch > epoch => 0,
            _ => number,
        };
        // Removed rows cannot be counted.
        if removed <= record.base {
            let sql = "SELECT count(*), coalesce(sum(entries), 0) FROM journal WHERE id > ?1 AND id <= ?2";
            let range = (record.base, named.id);
            let there: (i64, i64) =
                view.query_row(sql, range, |row| Ok((row.get(0)?, row.get(1)?)))?;
            commits = commits.max(record.commits - there.0);
            entries = (record.entries - there.1).max(0);
        }
        commits = commits.max(1);
    }
    Ok(Some(LostCommits {
        commits: commits + without_row,
        entries,
        last,
        recorded: (epoch, number),
        at: named.at,
    }))
}

/// Writes the record after each commit.
pub(crate) struct Recorder {
    path: PathBuf,
    file: File,
    last: LastCommit,
    /// A row between the base and the last row, and the counts up to this row: the next base.
    middle: (i64, i64, i64),
    is_failing: bool,
}

impl Recorder {
    /// The record of a run of `node` whose epoch and earlier commits are durable.
    pub(crate) fn start(
        path: &Path,
        connection: &Connection,
        node: i64,
        secret: &RootSecret,
    ) -> Result<Recorder, OpenError> {
        let engine = |error| open_error(path, "read", error);
        let found = match read(path)? {
            Found::Record(record) => Some(record),
            Found::Absent | Found::Damaged => None,
        };
        let store = store_id(secret);
        let row = last_row(connection, node).map_err(engine)?;
        let row = row.unwrap_or(Row::NONE);
        let counted = found.filter(|record| (record.store, record.row) == (store, row));
        let counted = counted.unwrap_or(LastCommit {
            store,
            sequence: found.map_or(0, |record| record.sequence),
            row,
            without_row: 0,
            base: row.id,
            commits: 0,
            entries: 0,
        });
        let last = LastCommit {
            without_row: without_row(connection).map_err(engine)?,
            ..counted
        };
        let mut options = fs::OpenOptions::new();
        options.write(true).create(true).truncate(false).mode(0o600);
        let file = options.open(path_of(path)).map_err(failed("open", path))?;
        let mut recorder = Recorder {
            path: path_of(path),
            file,
            last,
            middle: (last.row.id, last.commits, last.entries),
            is_failing: false,
        };
        recorder
            .create(found.is_none())
            .map_err(failed("write", path))?;
        Ok(recorder)
    }

    /// Writes the first record of a run. A new file gets its full length, so that later writes need no space.
    fn create(&mut self, is_new: bool) -> io::Result<()> {
        if is_new {
            self.file.set_len(0)?;
            self.file.write_all_at(&[0; FILE_BYTES], 0)?;
        }
        self.write()?;
        if is_new {
            self.file.sync_all()?;
            name::sync_folder(&self.path)?;
        }
        Ok(())
    }

    /// Records a durable commit: with its row and the number of its entries, or without a row.
    pub(crate) fn committed(&mut self, row: Option<(Row, i64)>) {
        match row {
            Some((row, entries)) => {
                self.forget();
                self.last.row = row;
                self.last.commits += 1;
                self.last.entries += entries;
            }
            None => self.last.without_row += 1,
        }
        // The commit is durable, and the record only lags.
        match self.write() {
            Ok(()) => self.is_failing = false,
            Err(error) if !self.is_failing => {
                self.is_failing = true;
                tracing::warn!(
                    %error,
                    path = %self.path.display(),
                    "cannot write the record of the last commit: a loss of the log would not be noticed"
                );
            }
            Err(_) => {}
        }
    }

    /// Takes the older half out of a large count.
    fn forget(&mut self) {
        let (row, commits, entries) = self.middle;
        if self.last.commits - commits < COUNTED {
            return;
        }
        self.last.base = row;
        self.last.commits -= commits;
        self.last.entries -= entries;
        self.middle = (self.last.row.id, self.last.commits, self.last.entries);
    }

    fn write(&mut self) -> io::Result<()> {
        self.last.sequence += 1;
        let slot = self.last.sequence % 2 * SECTOR as u64;
        self.file.write_all_at(&self.last.encode(), slot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(sequence: u64) -> LastCommit {
        LastCommit {
            store: [7; 16],
            sequence,
            row: Row {
                id: commit_id::id(1, 3, sequence as i64),
                hash: [9; 32],
                at: Timestamp::from_secs(1_700_000_000),
            },
            without_row: 4,
            base: commit_id::id(1, 2, 5),
            commits: 6,
            entries: 8,
        }
    }

    /// A recorder on a separate file.
    fn recorder(folder: &Path) -> Recorder {
        let path = folder.join("t.db.committed");
        let mut recorder = Recorder {
            file: File::create(&path).expect("a file"),
            path,
            last: record(1),
            middle: (0, 0, 0),
            is_failing: false,
        };
        recorder.create(true).expect("it is written");
        recorder
    }

    fn sequence(path: &Path) -> Option<u64> {
        match read(path).expect("it is read") {
            Found::Record(record) => Some(record.sequence),
            Found::Absent | Found::Damaged => None,
        }
    }

    /// The documented bytes.
    #[test]
    fn a_slot_has_the_documented_form() {
        let slot = record(0x0102).encode();
        assert_eq!(&slot[..8], b"tlgtcmt1");
        assert_eq!(slot[8..24], [7; 16]);
        assert_eq!(slot[24..32], [2, 1, 0, 0, 0, 0, 0, 0]);
        assert_eq!(slot[32..64], [9; 32]);
        assert_eq!(slot[80], 4);
        assert_eq!((slot[96], slot[104]), (6, 8));
        assert_eq!(slot[112..120], [0; 8]);
        assert_eq!(LastCommit::decode(&slot), Some(record(0x0102)));
        for at in 0..SLOT_BYTES {
            let mut torn = slot;
            torn[at] ^= 0x40;
            assert_eq!(LastCommit::decode(&torn), None, "byte {at}");
        }
    }

    #[test]
    fn while_one_slot_is_torn_the_other_one_counts() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("t.db");
        let mut recorder = recorder(folder.path());
        for number in 3..7 {
            recorder.committed(None);
            assert_eq!(sequence(&path), Some(number));
            let whole = fs::read(path_of(&path)).expect("a record");
            assert_eq!(whole.len(), FILE_BYTES);
            let mut torn = whole.clone();
            let slot = number as usize % 2 * SECTOR;
            torn[slot + 40..slot + 60].fill(0);
            fs::write(path_of(&path), &torn).expect("written");
            assert_eq!(sequence(&path), Some(number - 1));
            fs::write(path_of(&path), whole).expect("written");
        }
    }

    #[test]
    fn the_count_is_of_the_newest_thousands_of_commits() {
        let folder = tempfile::tempdir().expect("a folder");
        let mut recorder = recorder(folder.path());
        recorder.last = LastCommit {
            base: 0,
            commits: 0,
            entries: 0,
            ..record(1)
        };
        for id in 1..=4 * COUNTED {
            let row = Row { id, ..Row::NONE };
            recorder.committed(Some((row, 2)));
            let LastCommit {
                base,
                commits,
                entries,
                ..
            } = recorder.last;
            assert_eq!((base + commits, entries), (id, 2 * commits));
            assert!(commits <= 2 * COUNTED && (commits >= COUNTED || base == 0));
        }
    }
}
