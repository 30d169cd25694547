//! The inputs of a section's check besides the section: files, variables, and the settings that were checked before.

use std::io;
use std::path::PathBuf;

use rustls_pki_types::CertificateDer;
use tollgate_filter::settings::{At, Problems};
use tollgate_service::Service;

use crate::services::Services;

/// The files and the environment, as the settings name them.
pub trait Inputs {
    /// A path of the settings, relative to the folder of the settings file.
    fn path(&self, text: &str) -> PathBuf;

    /// The value of an environment variable.
    fn variable(&self, name: &str) -> Option<&str>;

    /// The content of a file at a path of the settings.
    ///
    /// # Errors
    ///
    /// The file cannot be read.
    fn file(&self, text: &str) -> io::Result<Vec<u8>>;

    /// Whether every user of the machine may read the file at a path of the settings.
    fn is_world_readable(&self, text: &str) -> bool;

    /// The certificates of a PEM file at a path of the settings; at least one certificate.
    ///
    /// # Errors
    ///
    /// Why the certificates cannot be used, and the remedy.
    fn certificates(&self, text: &str) -> Result<Vec<CertificateDer<'static>>, String>;
}

/// No files and no variables, for sections that need no inputs.
pub struct NoInputs;

impl Inputs for NoInputs {
    fn path(&self, text: &str) -> PathBuf {
        PathBuf::from(text)
    }

    fn variable(&self, _: &str) -> Option<&str> {
        None
    }

    fn file(&self, _: &str) -> io::Result<Vec<u8>> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn is_world_readable(&self, _: &str) -> bool {
        false
    }

    fn certificates(&self, text: &str) -> Result<Vec<CertificateDer<'static>>, String> {
        Err(format!("`{text}` cannot be read here"))
    }
}

/// The context of a section's check.
#[derive(Clone, Copy)]
pub struct SectionContext<'a> {
    section: &'a str,
    checked: &'a Services,
    inputs: &'a dyn Inputs,
}

impl<'a> SectionContext<'a> {
    pub(crate) fn new(
        section: &'a str,
        checked: &'a Services,
        inputs: &'a dyn Inputs,
    ) -> SectionContext<'a> {
        SectionContext {
            section,
            checked,
            inputs,
        }
    }

    /// The path of a key of the section, for problems with the key.
    pub fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.section)
    }

    /// Settings that were checked before: the settings of the gateway (service, models, timeouts), and the sections of earlier modules.
    /// Also `None` for settings with problems, which their own check reports.
    pub fn find<T: Service>(&self) -> Option<T> {
        self.checked.find()
    }

    /// The certificates of the file that a key of the section names. `None` without a file, or after noting why the certificates cannot be
    /// used.
    pub fn certificates(
        &self,
        name: &str,
        at: Option<&At<String>>,
        problems: &mut Problems,
    ) -> Option<Vec<CertificateDer<'static>>> {
        let at = at?;
        self.inputs
            .certificates(at)
            .map_err(|message| problems.note(self.key(name), at, message))
            .ok()
    }

    /// The files and the environment.
    pub fn inputs(&self) -> &'a dyn Inputs {
        self.inputs
    }
}
