//! Text and environment of settings.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use tollgate_module::Declarations;

use super::environment::Environment;
use super::named_file::{Stamp, is_of_certificate};

/// Sources of settings.
#[derive(Clone, Default)]
pub struct Source {
    pub(super) file: PathBuf,
    pub(super) text: Arc<str>,
    /// The variables of the process.
    pub(super) process: Environment,
    /// The environment, with the variables of the file for variables, if named.
    pub(super) environment: Environment,
    /// The files read, with stamps of that time, except certificates and keys ([`Certificate`](super::Certificate) has their stamps). Empty
    /// for settings from a text.
    pub(super) stamps: Vec<(PathBuf, Stamp)>,
    /// Hashes of the files and variables that settings name, by the keys of the settings: certificates, keys and secrets may change without
    /// their names.
    pub(super) contents: BTreeMap<String, blake3::Hash>,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.file).finish()
    }
}

impl Source {
    /// The file, without symbolic links, if it exists.
    pub(crate) fn real_file(&self) -> Option<PathBuf> {
        std::fs::canonicalize(&self.file).ok()
    }

    pub(super) fn new(file: PathBuf, text: &str, environment: &Environment) -> Source {
        Source {
            file,
            text: text.into(),
            process: environment.clone(),
            environment: environment.clone(),
            stamps: Vec::new(),
            contents: BTreeMap::new(),
        }
    }

    /// Records the files read; `file` is the stamp from before the read. The other files were read a moment ago.
    pub(super) fn record_files(&mut self, file: Stamp, modules: &Declarations) {
        let others = self.named_files(modules);
        let files = others
            .iter()
            .filter_map(|(key, other)| Some((key.clone(), hash(&std::fs::read(other).ok()?))));
        let variables = self.named_variables(modules).into_iter();
        let variables = variables.filter_map(|(key, name)| {
            let value = self.environment.get(&name)?;
            Some((key, hash(value.as_bytes())))
        });
        self.contents = files.chain(variables).collect();
        let others = others.into_iter();
        let others = others.filter(|(key, _)| !is_of_certificate(key));
        let others = others.map(|(_, other)| {
            let stamp = Stamp::of(&other);
            (other, stamp)
        });
        self.stamps = std::iter::once((self.file.clone(), file))
            .chain(others)
            .collect();
    }

    /// Records the contents of these files of certificates, read a moment ago.
    pub(crate) fn record_certificates(&mut self, files: &[PathBuf], modules: &Declarations) {
        for (key, file) in self.named_files(modules) {
            if is_of_certificate(&key)
                && files.contains(&file)
                && let Ok(content) = std::fs::read(&file)
            {
                self.contents.insert(key, hash(&content));
            }
        }
    }

    /// The files read, with stamps of that time, except certificates and keys.
    pub(crate) fn stamps(&self) -> &[(PathBuf, Stamp)] {
        &self.stamps
    }

    /// The first digits of a hash over the file and its overriding variables: equal for equal settings.
    pub fn digest(&self) -> String {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.text.as_bytes());
        for over in self.environment.settings() {
            hasher.update(over.variable.as_bytes());
            hasher.update(over.value.as_bytes());
        }
        hasher.finalize().to_hex()[..12].to_owned()
    }
}

/// The hash of a content, without the end of line that a file has and a variable has not.
fn hash(content: &[u8]) -> blake3::Hash {
    blake3::hash(content.trim_ascii())
}
