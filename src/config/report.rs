//! Errors in the settings, each with a place for the operator.

use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};

use serde::Serialize;

/// All errors, in the order of the file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Report {
    /// The findings; never empty.
    pub findings: Vec<Finding>,
}

impl std::error::Error for Report {}

impl fmt::Display for Report {
    /// One line per finding.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, finding) in self.findings.iter().enumerate() {
            if at > 0 {
                f.write_str("\n")?;
            }
            write!(f, "{finding}")?;
        }
        Ok(())
    }
}

/// One error.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    #[serde(flatten)]
    pub place: Place,
    /// The key as a path, elements of lists by number; empty when the file cannot be read as TOML.
    pub key: String,
    /// The error, with the value, and its remedy.
    pub message: String,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: ", self.place)?;
        if !self.key.is_empty() {
            write!(f, "{}: ", self.key)?;
        }
        f.write_str(&self.message)
    }
}

/// The place of an error.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Place {
    /// No particular place: a missing section, a missing file.
    #[serde(untagged)]
    File {
        /// The settings file.
        file: PathBuf,
    },
    /// In the file.
    #[serde(untagged)]
    Line {
        /// The settings file.
        file: PathBuf,
        /// The line, from 1.
        line: usize,
        /// The column, from 1, in characters.
        column: usize,
    },
    /// In a variable of the environment.
    #[serde(untagged)]
    Variable {
        /// The variable's name.
        variable: String,
    },
}

impl Place {
    /// The place of a range of bytes.
    pub(crate) fn of(file: &Path, text: &str, span: &Range<usize>) -> Place {
        let before = text.get(..span.start).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |at| at + 1);
        Place::Line {
            file: file.to_owned(),
            line: before.bytes().filter(|&byte| byte == b'\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Place::File { file } => write!(f, "{}", file.display()),
            Place::Line { file, line, column } => {
                write!(f, "{}:{line}:{column}", file.display())
            }
            Place::Variable { variable } => write!(f, "${variable}"),
        }
    }
}
