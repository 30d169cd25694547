//! Settings validation: from the raw form, with positions in the file, to the validated form.
//!
//! The raw form of a section is a `Raw...` type whose values are [`At`] (a value and its position in the file). Validation adds a
//! [`Problem`] for every error and continues: an operator sees all errors at once.

mod described;
mod url;

use std::borrow::Cow;
use std::fmt;
use std::ops::{Deref, Range};
use std::sync::Arc;
use std::time::Duration;

use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Deserialize, Deserializer, Serialize};
use toml::Spanned;

pub use described::{Amount, Number, OptionalWord, Switch, Whole, Word, Words};
pub use url::{BaseUrl, PublicUrl, UrlError};

/// A value and its position in the settings file.
#[derive(Clone, Debug)]
pub struct At<T> {
    /// The value.
    pub value: T,
    /// The byte range in the file; empty for values from elsewhere.
    pub span: Option<Range<usize>>,
}

impl<T> At<T> {
    /// A value without a position, such as a default.
    pub fn without_span(value: T) -> At<T> {
        At { value, span: None }
    }
}

impl<T> Deref for At<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for At<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<At<T>, D::Error> {
        let spanned = Spanned::<T>::deserialize(deserializer)?;
        let span = spanned.span();
        // Values from the environment have an empty span.
        let span = (!span.is_empty()).then_some(span);
        Ok(At {
            value: spanned.into_inner(),
            span,
        })
    }
}

impl<T: JsonSchema> JsonSchema for At<T> {
    fn inline_schema() -> bool {
        true
    }

    fn schema_name() -> Cow<'static, str> {
        T::schema_name()
    }

    fn json_schema(generator: &mut SchemaGenerator) -> Schema {
        generator.subschema_for::<T>()
    }
}

/// The time limits of whole calls to the providers, for checks of values that have to outlive a call.
#[derive(Clone, Debug)]
pub struct CallTimeouts {
    /// The written time limits: key, and value in seconds.
    pub written: Arc<[(String, At<u64>)]>,
    /// The longest, defaults included.
    pub longest: Option<Duration>,
}

/// An error in the settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The key as a path: `limits.classes.free.window_secs`.
    pub key: String,
    /// The key's position, if the key is in the file.
    pub span: Option<Range<usize>>,
    /// The error, with the value, and the correction.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// A valid setting that carries a risk for its operator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Warning {
    /// The key as a path.
    pub key: String,
    /// The risk, and the safer setting.
    pub message: Cow<'static, str>,
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.key, self.message)
    }
}

/// All errors found so far, and the warnings.
#[derive(Debug, Default)]
pub struct Problems {
    found: Vec<Problem>,
    warnings: Vec<Warning>,
}

impl Problems {
    /// Adds a problem with a value.
    pub fn note<T>(&mut self, key: impl Into<String>, at: &At<T>, message: impl fmt::Display) {
        self.found.push(Problem {
            key: key.into(),
            span: at.span.clone(),
            message: message.to_string(),
        });
    }

    /// Adds a problem without a position, such as a missing key.
    pub fn note_missing(&mut self, key: impl Into<String>, message: impl fmt::Display) {
        self.found.push(Problem {
            key: key.into(),
            span: None,
            message: message.to_string(),
        });
    }

    /// Adds a warning about a valid setting.
    pub fn warn(&mut self, key: impl Into<String>, message: impl Into<Cow<'static, str>>) {
        self.warnings.push(Warning {
            key: key.into(),
            message: message.into(),
        });
    }

    /// Removes and returns the warnings, in order.
    pub fn take_warnings(&mut self) -> Vec<Warning> {
        std::mem::take(&mut self.warnings)
    }

    /// Whether there are no errors.
    pub fn is_empty(&self) -> bool {
        self.found.is_empty()
    }

    /// The errors, in order.
    pub fn into_vec(self) -> Vec<Problem> {
        self.found
    }

    /// Parses a text value such as a price; adds a problem where the text cannot be parsed.
    pub fn parse<T>(&mut self, key: impl Into<String>, at: &At<String>) -> Option<T>
    where
        T: std::str::FromStr,
        T::Err: fmt::Display,
    {
        match at.value.parse() {
            Ok(value) => Some(value),
            Err(error) => {
                self.note(key, at, error);
                None
            }
        }
    }

    /// Checks that a number is in a range; adds a problem and returns `None` outside the range.
    pub fn within<T>(
        &mut self,
        key: impl Into<String>,
        at: &At<T>,
        range: std::ops::RangeInclusive<T>,
    ) -> Option<T>
    where
        T: PartialOrd + fmt::Display + Copy,
    {
        if range.contains(&at.value) {
            return Some(at.value);
        }
        let message = format!("is {}; use {} to {}", at.value, range.start(), range.end());
        self.note(key, at, message);
        None
    }
}

/// Words as a list in a sentence: `a`, `b` or `c`.
pub fn words(words: &[&str]) -> String {
    match words {
        [] => "none".to_owned(),
        [one] => format!("`{one}`"),
        [first @ .., last] => {
            let first: Vec<String> = first.iter().map(|word| format!("`{word}`")).collect();
            format!("{} or `{last}`", first.join(", "))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Deserialize)]
    struct RawClass {
        window_secs: At<u64>,
    }

    #[test]
    fn a_problem_has_the_position_of_its_value() {
        let text = "# a comment\nwindow_secs = 0\n";
        let raw: RawClass = toml::from_str(text).expect("TOML");
        let mut problems = Problems::default();
        assert_eq!(
            problems.within("free.window_secs", &raw.window_secs, 1..=86_400),
            None
        );
        let found = problems.into_vec();
        assert_eq!(
            found[0].to_string(),
            "free.window_secs: is 0; use 1 to 86400"
        );
        assert_eq!(&text[found[0].span.clone().expect("a place")], "0");
    }
}
