//! Log output, and reopening of a log file after rotation.

use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The output of a log.
pub(super) trait Output: Send {
    /// Writes some of `bytes` and returns how many, as `write(2)` does.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize>;

    /// Switches to another file after a rotation of the log. Called before each write; `reopen` at an operator's request.
    ///
    /// `rest` is the end of a partially written line. The rest belongs to the file with the start of the line.
    ///
    /// # Errors
    ///
    /// When the new file cannot be opened. Lines continue in the old file.
    fn follow(&mut self, reopen: bool, rest: &[u8]) -> io::Result<Followed> {
        let _ = (reopen, rest);
        Ok(Followed::Same)
    }
}

/// The result of [`Output::follow`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Followed {
    /// Lines continue in the current file.
    Same,
    /// Lines go to a new file.
    Rotated {
        /// Whether the old file has the partial line complete.
        line_is_whole: bool,
    },
}

impl Output for Box<dyn Write + Send> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        Write::write(&mut **self, bytes)
    }
}

/// A file to which lines are appended. When the path names another file, or no file, the log file is reopened.
pub(super) struct LogFile {
    path: PathBuf,
    file: File,
    id: FileId,
}

/// The identity of an open file: device and inode.
type FileId = (u64, u64);

impl LogFile {
    /// Opens the file, or creates the file. Always for appending, so that a file truncated while open has no hole.
    pub(super) fn open(path: &Path) -> io::Result<LogFile> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        let found = file.metadata()?;
        Ok(LogFile {
            path: path.to_owned(),
            file,
            id: (found.dev(), found.ino()),
        })
    }

    /// Whether the path still names the open file.
    fn is_current(&self) -> io::Result<bool> {
        match std::fs::metadata(&self.path) {
            Ok(found) => Ok((found.dev(), found.ino()) == self.id),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }
}

impl Output for LogFile {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.file.write(bytes)
    }

    fn follow(&mut self, reopen: bool, rest: &[u8]) -> io::Result<Followed> {
        if !reopen && self.is_current()? {
            return Ok(Followed::Same);
        }
        let new = LogFile::open(&self.path)?;
        let mut old = std::mem::replace(self, new);
        if old.id == self.id {
            return Ok(Followed::Same);
        }
        // A single attempt: a full disk may truncate a line, but the next lines still go to their file.
        let line_is_whole = rest.is_empty() || old.file.write_all(rest).is_ok();
        Ok(Followed::Rotated { line_is_whole })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(path: &Path) -> String {
        std::fs::read_to_string(path).expect("the file is there")
    }

    #[test]
    fn a_renamed_or_removed_file_is_recreated() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, aside) = (folder.path().join("a.log"), folder.path().join("a.log.1"));
        let mut log = LogFile::open(&path).expect("the file opens");
        assert_eq!(log.write(b"one\n").expect("written"), 4);
        assert_eq!(log.follow(false, b"").expect("it is there"), Followed::Same);
        std::fs::rename(&path, &aside).expect("renamed");
        let rotated = Followed::Rotated {
            line_is_whole: true,
        };
        assert_eq!(log.follow(false, b"").expect("opened"), rotated);
        assert_eq!(log.write(b"two\n").expect("written"), 4);
        std::fs::remove_file(&path).expect("removed");
        assert_eq!(log.follow(false, b"").expect("opened"), rotated);
        assert_eq!(log.write(b"three\n").expect("written"), 6);
        assert_eq!(
            (text(&aside).as_str(), text(&path).as_str()),
            ("one\n", "three\n")
        );
    }

    #[test]
    fn a_partial_line_is_completed_in_its_own_file() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, aside) = (folder.path().join("a.log"), folder.path().join("a.log.1"));
        let mut log = LogFile::open(&path).expect("the file opens");
        assert_eq!(log.write(b"begun").expect("written"), 5);
        std::fs::rename(&path, &aside).expect("renamed");
        log.follow(true, b" and ended\n").expect("opened");
        assert_eq!(log.write(b"next\n").expect("written"), 5);
        assert_eq!(text(&aside), "begun and ended\n");
        assert_eq!(text(&path), "next\n");
    }

    #[test]
    fn a_reopened_or_truncated_file_is_continued() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("a.log");
        let mut log = LogFile::open(&path).expect("the file opens");
        assert_eq!(log.write(b"begun").expect("written"), 5);
        // No part of the line is written twice.
        assert_eq!(log.follow(true, b" rest").expect("opened"), Followed::Same);
        assert_eq!(log.write(b" rest\n").expect("written"), 6);
        assert_eq!(text(&path), "begun rest\n");
        let shorter = OpenOptions::new().write(true).open(&path);
        shorter
            .and_then(|file| file.set_len(0))
            .expect("it is truncated");
        assert_eq!(log.write(b"anew\n").expect("written"), 5);
        assert_eq!(text(&path), "anew\n", "without a hole before it");
    }

    #[test]
    fn lines_go_to_the_old_file_while_the_new_one_cannot_be_opened() {
        let folder = tempfile::tempdir().expect("a folder");
        let (path, aside) = (folder.path().join("a.log"), folder.path().join("a.log.1"));
        let mut log = LogFile::open(&path).expect("the file opens");
        std::fs::rename(&path, &aside).expect("renamed");
        std::fs::create_dir(&path).expect("a folder in its place");
        log.follow(false, b"").expect_err("a folder is no file");
        assert_eq!(log.write(b"kept\n").expect("written"), 5);
        assert_eq!(text(&aside), "kept\n");
        std::fs::remove_dir(&path).expect("removed");
        log.follow(false, b"").expect("opened");
        assert_eq!(log.write(b"new\n").expect("written"), 4);
        assert_eq!(text(&path), "new\n");
    }
}
