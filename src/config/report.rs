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

/// The text of a settings file, with an index of its lines: a file of 10,000 models has 80,000 values, each with a place.
pub(crate) struct Lines<'a> {
    file: &'a Path,
    text: &'a str,
    /// The first byte of each line.
    starts: Vec<usize>,
}

impl<'a> Lines<'a> {
    pub(crate) fn of(file: &'a Path, text: &'a str) -> Lines<'a> {
        let starts = text.match_indices('\n').map(|(end, _)| end + 1);
        let starts = std::iter::once(0).chain(starts).collect();
        Lines { file, text, starts }
    }

    /// The place of the file as a whole.
    pub(crate) fn whole(&self) -> Place {
        Place::File {
            file: self.file.to_owned(),
        }
    }

    /// The place of a range of bytes.
    pub(crate) fn place(&self, span: &Range<usize>) -> Place {
        let at = span.start.min(self.text.len());
        let line = self.starts.partition_point(|start| *start <= at);
        let before = self.text.get(self.starts[line - 1]..at);
        Place::Line {
            file: self.file.to_owned(),
            line,
            column: before.unwrap_or_default().chars().count() + 1,
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_place_has_the_line_and_the_column_in_characters() {
        let text = "a = 1\n\nb = \"ä\" # ö\n";
        let lines = Lines::of(Path::new("t.toml"), text);
        let of = |start: usize| lines.place(&(start..text.len())).to_string();
        for (start, place) in [(0, "1:1"), (4, "1:5"), (6, "2:1"), (7, "3:1"), (14, "3:7")] {
            assert_eq!(of(start), format!("t.toml:{place}"), "{start}");
        }
        assert_eq!(of(text.len()), "t.toml:4:1");
        assert_eq!(of(text.len() + 9), "t.toml:4:1");
    }
}
