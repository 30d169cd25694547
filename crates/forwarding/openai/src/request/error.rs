//! Validation errors of a request body, with advice for correcting them.

use std::fmt;

use crate::json::{Kind, SyntaxError};

/// The kinds of validation errors; [`RequestErrorCode::as_str`] is the `code` of the error envelope.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RequestErrorCode {
    /// The body cannot be parsed, or is ambiguous.
    InvalidJson,
    /// A required member is missing.
    MissingField,
    /// A member has an invalid type.
    InvalidType,
    /// A member has a valid type and an invalid value.
    OutOfRange,
    /// A member's name differs from a known name in case alone, or the family refuses the member.
    UnknownField,
}

impl RequestErrorCode {
    /// The code in the error envelope.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::InvalidJson => "invalid_json",
            Self::MissingField => "missing_field",
            Self::InvalidType => "invalid_type",
            Self::OutOfRange => "out_of_range",
            Self::UnknownField => "unknown_field",
        }
    }
}

/// Why a request body was refused.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{message}")]
pub struct RequestError {
    /// The kind of error.
    pub code: RequestErrorCode,
    /// Path of the invalid member, like `messages[2].role`; `None` for the body as a whole.
    pub param: Option<String>,
    /// The problem and its correction. Safe to show to the client.
    pub message: String,
}

impl RequestError {
    pub(super) fn invalid_json(message: String) -> Self {
        Self {
            code: RequestErrorCode::InvalidJson,
            param: None,
            message,
        }
    }

    pub(super) fn missing(path: Path<'_>) -> Self {
        Self::at(
            RequestErrorCode::MissingField,
            path,
            "is missing; it is required",
        )
    }

    /// `found` and `wanted` with their articles.
    pub(super) fn invalid_type(path: Path<'_>, wanted: &str, found: &str) -> Self {
        let problem = format!("is {found}; send {wanted}");
        Self::at(RequestErrorCode::InvalidType, path, &problem)
    }

    pub(super) fn out_of_range(path: Path<'_>, problem: &str) -> Self {
        Self::at(RequestErrorCode::OutOfRange, path, problem)
    }

    pub(super) fn refused(path: Path<'_>) -> Self {
        let problem = "is not supported; leave it out";
        Self::at(RequestErrorCode::UnknownField, path, problem)
    }

    pub(super) fn at(code: RequestErrorCode, path: Path<'_>, problem: &str) -> Self {
        Self {
            code,
            param: Some(path.to_string()),
            message: format!("{path} {problem}"),
        }
    }
}

impl From<SyntaxError> for RequestError {
    fn from(error: SyntaxError) -> Self {
        Self::invalid_json(format!("the body is not valid JSON: {error}"))
    }
}

/// The start of a client's text, short enough to be quoted in a message.
pub(super) fn brief(text: &str) -> &str {
    match text.char_indices().nth(40) {
        Some((end, _)) => &text[..end],
        None => text,
    }
}

/// The path of a member. Formatted only for an error: paths of valid requests cost nothing.
#[derive(Clone, Copy)]
pub(super) enum Path<'a> {
    /// A member of the body. The name is UTF-8 like the whole body.
    Top(&'a [u8]),
    /// A member of a member of the body.
    Inside(&'a str, &'a str),
    /// An item of `messages`.
    Message(u64),
    /// A member of an item of `messages`.
    InMessage(u64, &'a str),
    /// A member of a part of a message.
    InPart(u64, u64, &'a str),
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Top(name) => f.write_str(&String::from_utf8_lossy(name)),
            Self::Inside(outer, name) => write!(f, "{outer}.{name}"),
            Self::Message(index) => write!(f, "messages[{index}]"),
            Self::InMessage(index, name) => write!(f, "messages[{index}].{name}"),
            Self::InPart(index, part, name) => {
                write!(f, "messages[{index}].content[{part}].{name}")
            }
        }
    }
}

/// Checks the kind of a value, or returns an error with the expected kind.
pub(super) fn expect(
    path: Path<'_>,
    wanted: &str,
    found: Kind,
    kind: Kind,
) -> Result<(), RequestError> {
    if found == kind {
        Ok(())
    } else {
        Err(RequestError::invalid_type(path, wanted, found.noun()))
    }
}
