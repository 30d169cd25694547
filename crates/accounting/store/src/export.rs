//! Export files: consecutive commits of one node, byte for byte with their seals, compressed.
//!
//! ```text
//! file     = zstd(header, commits, end)
//! header   = "tollgate journal 1\n", node (8)
//! commit   = 1 (1), epoch (8), number (8), entries (8), sum_avail (8), sum_held (8), at (8), prev (32), hash (32), length (4), body
//! end      = 0 (1), number of commits (8), BLAKE3 of all bytes before it (32)
//! ```
//!
//! Integers are little-endian. A file gets its name when the file is complete and durable. A reader verifies every seal, the chain between
//! the commits of the file, and the file's end.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

use tollgate_clock::Timestamp;
use tollgate_money::Micros;

use crate::entries::Seal;
use crate::store::BatchRows;

const MAGIC: &[u8; 19] = b"tollgate journal 1\n";

/// The end of the name of an export file.
pub const EXPORT_SUFFIX: &str = ".journal.zst";

/// The end of the name of an unfinished export file.
const PART_SUFFIX: &str = ".part";

const LEVEL: i32 = 3;

/// Maximum length of a body: far beyond the length of any commit.
const BODY_MAX: u32 = 1 << 30;

/// Why an export file was not written or read.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ExportError {
    /// The file could not be written or read.
    #[error("export file `{path}` could not be written or read")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The file was changed after writing.
    #[error("export file `{path}` {problem}; restore it from a copy")]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The defect.
        problem: &'static str,
    },
    /// The file has the commits of another store, perhaps the only copy.
    #[error(
        "export file `{path}` has other commits, of another store; give each store a folder of its own (`store.exports`)"
    )]
    OfAnotherStore {
        /// The file.
        path: PathBuf,
    },
}

/// An export file that is being written.
pub(crate) struct ExportWriter {
    path: PathBuf,
    part: PathBuf,
    out: Hashed<zstd::stream::write::Encoder<'static, File>>,
    commits: u64,
}

impl ExportWriter {
    /// Begins a file of commits from `first` on. An existing file with an equal name and first commit is replaced: the earlier export was
    /// interrupted.
    pub(crate) fn create(path: PathBuf, first: &Seal) -> Result<ExportWriter, ExportError> {
        if fs::exists(&path).map_err(failed(&path))? {
            let found = ExportReader::open(&path)?.next()?;
            if found.is_none_or(|found| found.seal != *first) {
                return Err(ExportError::OfAnotherStore { path });
            }
        }
        let mut part = path.clone().into_os_string();
        part.push(PART_SUFFIX);
        let part = PathBuf::from(part);
        // A partial file of an ended process is written again.
        let mut options = OpenOptions::new();
        options.write(true).create(true).truncate(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let opened = options
            .open(&part)
            .and_then(|file| zstd::stream::write::Encoder::new(file, LEVEL));
        let encoder = opened.map_err(failed(&path))?;
        let mut writer = ExportWriter {
            path,
            part,
            out: Hashed::new(encoder),
            commits: 0,
        };
        writer.write(&[&MAGIC[..], &first.node.to_le_bytes()])?;
        Ok(writer)
    }

    pub(crate) fn add(&mut self, commit: &BatchRows) -> Result<(), ExportError> {
        let seal = &commit.seal;
        let numbers = [
            seal.epoch,
            seal.number,
            seal.entries,
            seal.sum_available.get(),
            seal.sum_held.get(),
            seal.at.as_micros(),
        ];
        self.write(&[&[1]])?;
        for number in numbers {
            self.write(&[&number.to_le_bytes()])?;
        }
        // Bodies are shorter by orders of magnitude.
        let length = u32::try_from(commit.body.len()).expect("a commit is some megabytes at most");
        self.commits += 1;
        self.write(&[
            &seal.previous,
            &seal.hash,
            &length.to_le_bytes(),
            &commit.body,
        ])
    }

    fn write(&mut self, parts: &[&[u8]]) -> Result<(), ExportError> {
        let mut parts = parts.iter();
        let written = parts.try_for_each(|part| self.out.write_all(part));
        written.map_err(failed(&self.path))
    }

    /// Completes the file, waits for durability, and renames the file to its name.
    pub(crate) fn finish(mut self) -> Result<PathBuf, ExportError> {
        let commits = self.commits.to_le_bytes();
        self.write(&[&[0], &commits])?;
        let digest = *self.out.hasher.finalize().as_bytes();
        self.write(&[&digest])?;
        let ExportWriter {
            path, part, out, ..
        } = self;
        let folder = path.parent().map(Path::to_owned).unwrap_or_default();
        out.inner
            .finish()
            .and_then(|file| file.sync_all())
            .and_then(|()| fs::rename(&part, &path))
            .and_then(|()| File::open(folder)?.sync_all())
            .map_err(failed(&path))?;
        Ok(path)
    }
}

fn failed(path: &Path) -> impl FnOnce(io::Error) -> ExportError + '_ {
    |source| ExportError::File {
        path: path.to_owned(),
        source,
    }
}

/// An export file that is being read.
pub(crate) struct ExportReader {
    path: PathBuf,
    pub(crate) node: i64,
    input: Hashed<Box<dyn Read + Send>>,
    last: Option<[u8; 32]>,
    commits: u64,
    is_over: bool,
}

impl ExportReader {
    pub(crate) fn open(path: &Path) -> Result<ExportReader, ExportError> {
        let opened = File::open(path).and_then(zstd::stream::read::Decoder::new);
        ExportReader::of(path, Box::new(opened.map_err(failed(path))?))
    }

    /// [`ExportReader::open`] for a decompressed file.
    pub(crate) fn of(
        path: &Path,
        input: Box<dyn Read + Send>,
    ) -> Result<ExportReader, ExportError> {
        let mut reader = ExportReader {
            path: path.to_owned(),
            node: 0,
            input: Hashed::new(input),
            last: None,
            commits: 0,
            is_over: false,
        };
        if reader.bytes::<19>()? != *MAGIC {
            return Err(reader.damaged("is no export of a journal that this release can read"));
        }
        reader.node = reader.number()?;
        Ok(reader)
    }

    /// The next commit, `None` after the last commit.
    pub(crate) fn next(&mut self) -> Result<Option<BatchRows>, ExportError> {
        if self.is_over {
            return Ok(None);
        }
        if self.bytes::<1>()? == [0] {
            self.end()?;
            return Ok(None);
        }
        let [epoch, number, entries] = [self.number()?, self.number()?, self.number()?];
        let [available, held, at] = [self.number()?, self.number()?, self.number()?];
        let (previous, hash) = (self.bytes()?, self.bytes()?);
        let length = u32::from_le_bytes(self.bytes()?);
        if length > BODY_MAX {
            return Err(self.damaged("has a commit that is longer than any"));
        }
        let mut body = Vec::new();
        let read = (&mut self.input).take(length.into()).read_to_end(&mut body);
        if read.map_err(failed(&self.path))? < length as usize {
            return Err(self.damaged("ends in the middle of a commit"));
        }
        let seal = Seal {
            node: self.node,
            epoch,
            number,
            entries,
            sum_available: Micros::new(available),
            sum_held: Micros::new(held),
            previous,
            hash,
            at: Timestamp::from_micros(at),
        };
        if self.last.is_some_and(|last| last != previous)
            || seal.reseal(&body).as_ref() != Ok(&seal)
        {
            return Err(self.damaged(
                "has a commit that differs from its seal, or does not follow the one before it",
            ));
        }
        self.last = Some(hash);
        self.commits += 1;
        Ok(Some(BatchRows { seal, body }))
    }

    fn end(&mut self) -> Result<(), ExportError> {
        let commits = u64::from_le_bytes(self.bytes()?);
        let expected = *self.input.hasher.finalize().as_bytes();
        let digest: [u8; 32] = self.bytes()?;
        let more = self.input.read(&mut [0]).map_err(failed(&self.path))?;
        if (commits, digest, more) != (self.commits, expected, 0) {
            return Err(self.damaged("has another end than was written"));
        }
        self.is_over = true;
        Ok(())
    }

    fn number(&mut self) -> Result<i64, ExportError> {
        Ok(i64::from_le_bytes(self.bytes()?))
    }

    fn bytes<const N: usize>(&mut self) -> Result<[u8; N], ExportError> {
        let mut bytes = [0; N];
        match self.input.read_exact(&mut bytes) {
            Ok(()) => Ok(bytes),
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
                Err(self.damaged("ends before its last commit"))
            }
            Err(error) => Err(failed(&self.path)(error)),
        }
    }

    fn damaged(&self, problem: &'static str) -> ExportError {
        ExportError::Damaged {
            path: self.path.clone(),
            problem,
        }
    }
}

/// A stream, and the hash of the passed bytes.
struct Hashed<S> {
    inner: S,
    hasher: blake3::Hasher,
}

impl<S> Hashed<S> {
    fn new(inner: S) -> Hashed<S> {
        Hashed {
            inner,
            hasher: blake3::Hasher::new(),
        }
    }
}

impl<S: Write> Write for Hashed<S> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.hasher.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

impl<S: Read> Read for Hashed<S> {
    fn read(&mut self, bytes: &mut [u8]) -> io::Result<usize> {
        let read = self.inner.read(bytes)?;
        self.hasher.update(&bytes[..read]);
        Ok(read)
    }
}
