//! The inputs of the checks, and checks of single values: a keyword, a number in its range, a required value.

use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use rustls::pki_types::CertificateDer;
use tollgate_filter::settings::{At, Problems, Whole, words};
use tollgate_module::{Declarations, Inputs};

use crate::config::certificate::read_certificates;
use crate::config::environment::Environment;

/// The inputs of the validation besides the settings.
#[derive(Clone, Copy, Debug)]
pub struct CheckContext<'a> {
    /// The base folder of relative paths.
    pub folder: &'a Path,
    /// The source of secrets named by variable.
    pub environment: &'a Environment,
    /// The filters that a chain may name, and the routes of the program.
    pub modules: &'a Declarations,
}

impl Inputs for CheckContext<'_> {
    fn path(&self, text: &str) -> PathBuf {
        self.folder.join(text)
    }

    fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name)
    }

    fn file(&self, text: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.path(text))
    }

    fn is_world_readable(&self, text: &str) -> bool {
        let found = std::fs::metadata(self.path(text));
        found.is_ok_and(|found| found.permissions().mode() & 0o004 != 0)
    }

    fn certificates(&self, text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
        read_certificates(&self.path(text)).map_err(|error| error.to_string())
    }
}

impl CheckContext<'_> {
    /// Resolves a path of the settings against the folder of their file.
    pub(in crate::config) fn path(&self, text: &str) -> PathBuf {
        self.folder.join(text)
    }
}

/// Notes a file in a missing folder, which prevents the file's creation.
pub(super) fn in_existing_folder(problems: &mut Problems, key: &str, at: &At<String>, path: &Path) {
    // A path of one name is in the current folder.
    let folder = path
        .parent()
        .filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder
        && !folder.is_dir()
    {
        let message = format_args!(
            "names `{}`, whose folder does not exist; create it for the gateway's user",
            path.display()
        );
        problems.note(key, at, message);
    }
}

/// One of a few keywords.
pub(super) fn word<T: Copy>(
    problems: &mut Problems,
    key: impl Into<String>,
    at: Option<&At<String>>,
    known: &[(&str, T)],
) -> Option<T> {
    let at = at?;
    let found = known.iter().find(|(word, _)| *word == at.value);
    if found.is_none() {
        let known: Vec<&str> = known.iter().map(|(word, _)| *word).collect();
        problems.note(
            key,
            at,
            format_args!("is `{}`; use {}", at.value, words(&known)),
        );
    }
    found.map(|(_, value)| *value)
}

/// A number that describes itself; a number out of range is noted.
pub(super) fn whole<const DEFAULT: u64, const MIN: u64, const MAX: u64>(
    written: &Whole<DEFAULT, MIN, MAX>,
    key: impl Into<String>,
    problems: &mut Problems,
) -> u64 {
    written.check(key, problems).unwrap_or(DEFAULT)
}

/// A required value; records a missing value.
pub(super) fn required<'a, T>(
    problems: &mut Problems,
    key: impl Into<String>,
    at: Option<&'a At<T>>,
    example: &str,
) -> Option<&'a At<T>> {
    if at.is_none() {
        problems.note_missing(key, format_args!("is missing; write {example}"));
    }
    at
}
