//! The file of the spool: its owner, and frames of units of work. Each frame is synced before the next frame is written.
//!
//! ```text
//! head    512 bytes of text: database, node, name, run, checksum; padded with line feeds
//! frame   "TGSPOOL1" (8), length of the content (4), checksum of length and content (16), content
//! content id of the last journal row that was durable (8), number of units (8), units
//! ```
//!
//! Integers are big-endian. An incomplete last frame was being written at a power failure: no answer has ended because of the frame,
//! and the frame is dropped. A broken frame before other frames was changed later.

use std::fs::{File, OpenOptions, TryLockError};
use std::io::{self, Read as _};
use std::os::unix::fs::{DirBuilderExt as _, FileExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};

use crate::error::OpenError;
use crate::handover::{decode_units, encode_units};
use crate::rows::RootSecret;
use crate::unit::UnitOfWork;

const NAME: &str = "charges";
const HEAD_BYTES: usize = 512;
const TITLE: &str = "tollgate spool 1";

const MAGIC: &[u8; 8] = b"TGSPOOL1";
const FRAME_HEAD_BYTES: usize = 28;

/// Maximum length of a frame's content.
const CONTENT_BYTES_MAX: usize = 1 << 28;

/// The run of a node that owns a spool.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Owner {
    /// A name of the database, derived from its root secret.
    pub(crate) database: String,
    pub(crate) node: i64,
    pub(crate) name: String,
    pub(crate) epoch: i64,
}

impl Owner {
    /// The name of a database; a copy of the database has an equal name.
    pub(crate) fn database(secret: &RootSecret) -> String {
        let hash = blake3::derive_key("tollgate 2026-11 name of a database in a spool", &secret.0);
        base16ct::lower::encode_string(&hash[..16])
    }

    fn head(&self) -> Vec<u8> {
        let Owner {
            database,
            node,
            name,
            epoch,
        } = self;
        let text = format!("{TITLE}\ndatabase {database}\nnode {node}\nname {name}\nrun {epoch}\n");
        let mut head = format!("{text}checksum {}\n", checksum_text(&text)).into_bytes();
        head.resize(HEAD_BYTES, b'\n');
        head
    }

    fn parse(head: &[u8]) -> Option<Owner> {
        let text = std::str::from_utf8(head).ok()?.trim_end_matches('\n');
        let (text, checksum) = text.rsplit_once("checksum ")?;
        if checksum != checksum_text(text) {
            return None;
        }
        let mut lines = text.lines();
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix(' ');
        field("tollgate")?;
        Some(Owner {
            database: field("database")?.to_owned(),
            node: field("node")?.parse().ok()?,
            name: field("name")?.to_owned(),
            epoch: field("run")?.parse().ok()?,
        })
    }
}

fn checksum_text(text: &str) -> String {
    base16ct::lower::encode_string(&blake3::hash(text.as_bytes()).as_bytes()[..16])
}

/// Units of a spool, with the last journal row that was durable at the write of the units.
#[derive(Debug)]
pub(crate) struct Frame {
    pub(crate) last_row: i64,
    pub(crate) units: Vec<UnitOfWork>,
}

/// The open file, locked (flock) until the drop.
#[derive(Debug)]
pub(crate) struct SpoolFile {
    path: PathBuf,
    file: File,
    owner: Option<Owner>,
    /// The length of the file; bytes beyond were not written whole.
    bytes: u64,
}

impl SpoolFile {
    /// Opens, locks and reads the file in a folder. A missing folder is created.
    pub(crate) fn open(folder: &Path) -> Result<(SpoolFile, Vec<Frame>), OpenError> {
        let path = folder.join(NAME);
        let failed = |action| {
            let path = path.clone();
            move |source| OpenError::File {
                action,
                path,
                source,
            }
        };
        match std::fs::DirBuilder::new().mode(0o700).create(folder) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                return Err(unfit(
                    folder,
                    format!(
                        "cannot be made ({error}); set `store.spool` to a folder on a local disk, in one where this user may create files"
                    ),
                ));
            }
            _ => {}
        }
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(&path)
            .map_err(failed("open"))?;
        match file.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(unfit(
                    &path,
                    "is in use by another process; end that gateway, or wait for the command that has it, and start again; two gateways need folders of their own (`store.spool`)",
                ));
            }
            Err(TryLockError::Error(source)) => return Err(failed("lock")(source)),
        }
        let mut all = Vec::new();
        (&file).read_to_end(&mut all).map_err(failed("read"))?;
        let mut spool = SpoolFile {
            path: path.clone(),
            file,
            owner: None,
            bytes: HEAD_BYTES as u64,
        };
        // Frames are written after the head.
        let Some((head, frames)) = all.split_at_checked(HEAD_BYTES) else {
            return Ok((spool, Vec::new()));
        };
        let Some(owner) = Owner::parse(head) else {
            return Err(unfit(
                &path,
                "is damaged, or no spool; move it away to start without it: what it has is then not charged",
            ));
        };
        spool.owner = Some(owner);
        let (frames, length) = read_frames(frames).map_err(|at| {
            unfit(
                &path,
                format!(
                    "is damaged at byte {}; move it away to start without it: what it has is then not charged",
                    HEAD_BYTES + at
                ),
            )
        })?;
        spool.bytes += length as u64;
        Ok((spool, frames))
    }

    pub(crate) fn owner(&self) -> Option<&Owner> {
        self.owner.as_ref()
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Bytes of frames.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes - HEAD_BYTES as u64
    }

    /// Names the run that has the spool now. Frames stay.
    pub(crate) fn set_owner(&mut self, owner: Owner) -> io::Result<()> {
        self.file.write_all_at(&owner.head(), 0)?;
        self.file.set_len(self.bytes)?;
        self.file.sync_all()?;
        if let Some(folder) = self.path.parent() {
            File::open(folder)?.sync_all()?;
        }
        self.owner = Some(owner);
        Ok(())
    }

    /// Appends units as one frame; returns when the frame is on the disk. After an error the file is as before.
    pub(crate) fn append(&mut self, last_row: i64, units: &[u8]) -> io::Result<()> {
        let mut frame = Vec::with_capacity(FRAME_HEAD_BYTES + 8 + units.len());
        frame.extend_from_slice(MAGIC);
        let length = u32::try_from(8 + units.len()).map_err(io::Error::other)?;
        frame.extend_from_slice(&length.to_be_bytes());
        frame.extend_from_slice(&[0; 16]);
        frame.extend_from_slice(&last_row.to_be_bytes());
        frame.extend_from_slice(units);
        let sum = checksum(&frame[FRAME_HEAD_BYTES..]);
        frame[12..FRAME_HEAD_BYTES].copy_from_slice(&sum);
        let written = self.file.write_all_at(&frame, self.bytes);
        match written.and_then(|()| self.file.sync_data()) {
            Ok(()) => {
                self.bytes += frame.len() as u64;
                Ok(())
            }
            Err(error) => {
                // The next frame overwrites the rest of the failed frame, and a start drops the rest.
                let _ = self.file.set_len(self.bytes);
                Err(error)
            }
        }
    }

    /// Removes all frames: their units are durable in the database. If a power failure brings frames back, the next start finds their
    /// units in the database.
    pub(crate) fn clear(&mut self) -> io::Result<()> {
        self.file.set_len(HEAD_BYTES as u64)?;
        self.bytes = HEAD_BYTES as u64;
        Ok(())
    }
}

impl Drop for SpoolFile {
    fn drop(&mut self) {
        // Closing is not sufficient: a child process has copies of all descriptors until the child executes its program.
        if let Err(error) = self.file.unlock() {
            tracing::warn!(%error, spool = %self.path.display(), "releasing the lock of the spool failed");
        }
    }
}

/// The units of a frame as bytes.
pub(crate) fn encode<'u>(units: impl ExactSizeIterator<Item = &'u UnitOfWork>) -> Vec<u8> {
    encode_units(units)
}

pub(crate) fn unfit(path: &Path, problem: impl Into<String>) -> OpenError {
    OpenError::Spool {
        path: path.to_owned(),
        problem: problem.into(),
    }
}

fn checksum(content: &[u8]) -> [u8; 16] {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&(content.len() as u64).to_be_bytes());
    hasher.update(content);
    let mut sum = [0; 16];
    sum.copy_from_slice(&hasher.finalize().as_bytes()[..16]);
    sum
}

/// The frames, and their length in bytes. The error is the position of a damaged frame with later frames behind.
fn read_frames(bytes: &[u8]) -> Result<(Vec<Frame>, usize), usize> {
    let mut frames = Vec::new();
    let mut at = 0;
    while at < bytes.len() {
        match frame_at(&bytes[at..]) {
            Some((content, length)) => {
                frames.push(frame(content).ok_or(at)?);
                at += length;
            }
            None => {
                let later = (at + 1..bytes.len()).find(|next| frame_at(&bytes[*next..]).is_some());
                return match later {
                    Some(_) => Err(at),
                    None => Ok((frames, at)),
                };
            }
        }
    }
    Ok((frames, at))
}

/// The content of the whole frame at the start of `bytes`, and the length of the frame.
fn frame_at(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let rest = bytes.strip_prefix(MAGIC)?;
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let length = u32::from_be_bytes(*length) as usize;
    let (sum, rest) = rest.split_first_chunk::<16>()?;
    if length > CONTENT_BYTES_MAX {
        return None;
    }
    let content = rest.get(..length)?;
    (checksum(content) == *sum).then_some((content, FRAME_HEAD_BYTES + length))
}

fn frame(content: &[u8]) -> Option<Frame> {
    let (last_row, units) = content.split_first_chunk::<8>()?;
    Some(Frame {
        last_row: i64::from_be_bytes(*last_row),
        units: decode_units(units).ok()?,
    })
}

/// Entry point of fuzzing: the input as the head, as frames, and as the content of a frame with a valid checksum.
pub(crate) fn fuzz(input: &[u8]) {
    let text = String::from_utf8_lossy(input);
    let sealed = format!("{text}checksum {}\n", checksum_text(&text));
    for head in [input, sealed.as_bytes()] {
        if let Some(owner) = Owner::parse(head) {
            let again = Owner::parse(&owner.head());
            assert!(again.is_none_or(|again| again == owner), "{owner:?}");
        }
    }
    if let Ok((_, length)) = read_frames(input) {
        assert!(length <= input.len());
    }
    let Some(Frame { units, .. }) = frame(input) else {
        return;
    };
    let again = decode_units(&encode(units.iter())).expect("units are read as they are written");
    assert_eq!(again.len(), units.len());
    for (again, unit) in again.iter().zip(&units) {
        assert_eq!(again.parts(), unit.parts());
    }
}

#[cfg(test)]
mod tests {
    use tollgate_clock::Timestamp;
    use tollgate_money::{AccountId, Micros, OperationId};

    use super::*;
    use crate::entries::LedgerPart;
    use crate::unit::{Admission, Part};

    #[test]
    fn a_folder_that_cannot_be_made_is_named_with_its_key() {
        // Not even root creates a folder there.
        let refused = SpoolFile::open(Path::new("/proc/spool")).expect_err("it cannot be made");
        let text = refused.to_string();
        assert!(text.starts_with("`/proc/spool` cannot be made"), "{text}");
        assert!(text.contains("`store.spool`"), "{text}");
    }

    fn owner() -> Owner {
        Owner {
            database: Owner::database(&RootSecret([7; 32])),
            node: 16,
            name: "a".to_owned(),
            epoch: 3,
        }
    }

    fn release(number: u8) -> UnitOfWork {
        let part = LedgerPart::Release {
            operation: OperationId::from_bytes([number; 16]),
            account: AccountId::from_bytes([1; 16]),
            held: Micros::new(5),
            at: Timestamp::from_micros(1),
        };
        UnitOfWork::of(Part::Ledger(part), Admission::Always)
    }

    /// A file with three frames. Returns the start of each frame, and the end.
    fn written(folder: &Path) -> Vec<u64> {
        let (mut spool, frames) = SpoolFile::open(folder).expect("a new spool");
        assert!(frames.is_empty() && spool.owner().is_none());
        spool.set_owner(owner()).expect("it is written");
        let mut ends = vec![HEAD_BYTES as u64];
        for number in 1..=3 {
            let units = encode([release(number)].iter());
            spool.append(i64::from(number), &units).expect("a frame");
            ends.push(spool.bytes);
        }
        ends
    }

    fn found(folder: &Path) -> Result<Vec<i64>, String> {
        let opened = SpoolFile::open(folder).map_err(|error| error.to_string())?;
        Ok(opened.1.iter().map(|frame| frame.last_row).collect())
    }

    #[test]
    fn what_was_written_is_read_by_one_process_at_a_time() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("spool");
        written(&path);
        let (mut spool, frames) = SpoolFile::open(&path).expect("it is there");
        assert_eq!(spool.owner(), Some(&owner()));
        for (frame, number) in frames.iter().zip(1..) {
            assert_eq!(frame.units[0].parts(), release(number).parts());
        }
        let second = found(&path).expect_err("it is locked");
        assert!(second.contains("in use by another process"), "{second}");
        spool.clear().expect("it is cleared");
        drop(spool);
        assert_eq!(found(&path), Ok(vec![]));
    }

    /// A power failure leaves any part of unsynced data: of the last frame only, because each frame is synced before the next frame.
    #[test]
    fn a_torn_last_frame_is_dropped_and_a_damaged_one_in_the_middle_is_an_error() {
        let folder = tempfile::tempdir().expect("a folder");
        let ends = written(folder.path());
        let path = folder.path().join(NAME);
        let whole = std::fs::read(&path).expect("it is there");
        for length in ends[2]..ends[3] {
            std::fs::write(&path, &whole[..length as usize]).expect("written");
            assert_eq!(found(folder.path()), Ok(vec![1, 2]), "{length} bytes");
        }
        for changed in ends[0]..ends[3] {
            let mut bytes = whole.clone();
            bytes[changed as usize] ^= 0x40;
            std::fs::write(&path, &bytes).expect("written");
            match found(folder.path()) {
                Ok(frames) => assert!(changed >= ends[2] && frames == [1, 2], "byte {changed}"),
                Err(error) => {
                    assert!(changed < ends[2], "byte {changed}: {error}");
                    assert!(error.contains("charges` is damaged at byte"), "{error}");
                }
            }
        }
        let mut zeros = whole[..ends[2] as usize].to_vec();
        zeros.resize(whole.len(), 0);
        std::fs::write(&path, zeros).expect("written");
        assert_eq!(found(folder.path()), Ok(vec![1, 2]), "not allocated yet");
    }

    #[test]
    fn a_damaged_head_is_an_error_and_one_that_was_never_written_is_none() {
        let folder = tempfile::tempdir().expect("a folder");
        written(folder.path());
        let path = folder.path().join(NAME);
        let whole = std::fs::read(&path).expect("it is there");
        let mut bytes = whole.clone();
        bytes[20] ^= 1;
        std::fs::write(&path, bytes).expect("written");
        let error = found(folder.path()).expect_err("it is damaged");
        assert!(error.contains("is damaged, or no spool"), "{error}");
        std::fs::write(&path, &whole[..100]).expect("written");
        assert_eq!(found(folder.path()), Ok(vec![]));
    }
}
