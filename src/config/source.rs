//! The text and the environment that settings were read from.

use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use super::environment::Environment;

/// What settings were read from.
#[derive(Clone, Default)]
pub struct Source {
    pub(super) file: PathBuf,
    pub(super) text: Arc<str>,
    pub(super) environment: Environment,
}

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Source").field(&self.file).finish()
    }
}

impl Source {
    pub(super) fn new(file: PathBuf, text: &str, environment: &Environment) -> Source {
        Source {
            file,
            text: text.into(),
            environment: environment.clone(),
        }
    }

    /// The first digits of a hash over the file and the variables that override it: equal for equal settings.
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
