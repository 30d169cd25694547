//! The inputs of the checks, and checks of single values: a keyword, a number in its range, a required value.

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustls::pki_types::CertificateDer;
use tollgate_filter::settings::{At, Problems, words};
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

/// A number in its range, or its default.
pub(super) fn number(
    problems: &mut Problems,
    key: impl Into<String>,
    at: Option<&At<u64>>,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> u64 {
    at.and_then(|at| problems.within(key, at, range))
        .unwrap_or(default)
}

/// A number of seconds in its range, or its default.
pub(super) fn seconds(
    problems: &mut Problems,
    key: impl Into<String>,
    at: Option<&At<u64>>,
    default: u64,
    range: std::ops::RangeInclusive<u64>,
) -> Duration {
    Duration::from_secs(number(problems, key, at, default, range))
}

/// A required value; records that it is missing.
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
