//! The lifecycle of a route: the dates, and their documentation.

use std::fmt;
use std::str::FromStr;

use jiff::Timestamp;
use tollgate_filter::settings::{At, Problems};

use super::Written;
use crate::config::settings::Lifecycle;

/// The default documentation of a route's end: a page of the documentation.
const NOTICE: &str = "/docs/lifecycle";

/// The lifecycle of a route; `None` without a planned end. `base` supplies absent values. Paths are resolved against `base_url`.
pub(super) fn lifecycle(
    written: &Written<'_>,
    base: Option<&Lifecycle>,
    base_url: &str,
    problems: &mut Problems,
) -> Option<Lifecycle> {
    let (raw, key) = (written.raw, |name: &str| written.key(name));
    let mut date = |name: &str, at: Option<&At<String>>| {
        let date: Date = problems.parse(key(name), at?)?;
        Some(date.0)
    };
    let deprecated_at = date("deprecated_at", raw.deprecated_at.as_ref())
        .or_else(|| base.and_then(|base| base.deprecated_at));
    let sunset_at =
        date("sunset_at", raw.sunset_at.as_ref()).or_else(|| base.and_then(|base| base.sunset_at));
    let mut address = |name: &str, at: Option<&At<String>>| {
        let target: Target = problems.parse(key(name), at?)?;
        Some(target.below(base_url))
    };
    let successor = address("successor", raw.successor.as_ref());
    let notice = address("notice", raw.notice.as_ref());
    if let (Some(deprecated_at), Some(sunset_at)) = (deprecated_at, sunset_at)
        && sunset_at < deprecated_at
    {
        // RFC 9745 section 4.
        if let Some(at) = &raw.sunset_at {
            let message = format_args!("is {sunset_at}, before `deprecated_at`; use a later time");
            problems.note(key("sunset_at"), at, message);
        } else if let Some(at) = &raw.deprecated_at {
            let message = format_args!(
                "is {deprecated_at}, after `sunset_at` of the route, {sunset_at}; write a later `sunset_at` too"
            );
            problems.note(key("deprecated_at"), at, message);
        }
    }
    if raw.deprecated_at.is_none() && raw.sunset_at.is_none() && base.is_none() {
        for (name, at) in [("successor", &raw.successor), ("notice", &raw.notice)] {
            if let Some(at) = at {
                let message = "is set without `deprecated_at` and `sunset_at`; add one of them, or leave it out";
                problems.note(key(name), at, message);
            }
        }
        return None;
    }
    Some(Lifecycle {
        deprecated_at,
        sunset_at,
        successor: successor.or_else(|| base?.successor.clone()),
        notice: notice
            .or_else(|| Some(base?.notice.clone()))
            .unwrap_or_else(|| format!("{base_url}{NOTICE}")),
    })
}

/// An RFC 3339 timestamp.
struct Date(Timestamp);

/// The problem of a text that is no timestamp.
#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a time; write it like `2027-07-01T00:00:00Z`")]
struct NoDate(String);

impl FromStr for Date {
    type Err = NoDate;

    fn from_str(text: &str) -> Result<Date, NoDate> {
        let date = text.parse().map_err(|_| NoDate(text.to_owned()))?;
        Ok(Date(date))
    }
}

/// A URL, or a path of this service, valid in a `Link` field.
enum Target {
    Address(String),
    Path(String),
}

/// The problem of a text that is neither.
#[derive(Debug, thiserror::Error)]
#[error("is neither a URL nor a path; write it like `https://example.com/v2` or `/v2`")]
struct NoTarget;

impl Target {
    fn below(self, base_url: &str) -> String {
        match self {
            Target::Address(address) => address,
            Target::Path(path) => format!("{base_url}{path}"),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Target::Address(text) | Target::Path(text)) = self;
        f.write_str(text)
    }
}

impl FromStr for Target {
    type Err = NoTarget;

    fn from_str(text: &str) -> Result<Target, NoTarget> {
        // Characters that end the URL in a `Link` field, and user names, are invalid (RFC 8288 section 3).
        let is_plain = text
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && !b"<>\"\\@".contains(&byte));
        if !is_plain || text.parse::<http::Uri>().is_err() {
            return Err(NoTarget);
        }
        if text.starts_with('/') && !text.starts_with("//") {
            return Ok(Target::Path(text.to_owned()));
        }
        match text.split_once("://") {
            Some(("https" | "http", rest)) if !rest.is_empty() => {
                Ok(Target::Address(text.to_owned()))
            }
            _ => Err(NoTarget),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_urls_or_paths() {
        for (text, expected) in [
            ("/v2", Some("https://api.example.com/v2")),
            (
                "https://example.com/v2?x=1",
                Some("https://example.com/v2?x=1"),
            ),
            ("http://example.com", Some("http://example.com")),
            ("v2", None),
            ("//example.com", None),
            ("ftp://example.com", None),
            ("https://", None),
            ("https://user@example.com", None),
            ("/a>;rel=x", None),
            ("/a b", None),
            ("", None),
        ] {
            let target = text.parse::<Target>().ok();
            let target = target.map(|target| target.below("https://api.example.com"));
            assert_eq!(target.as_deref(), expected, "{text}");
        }
    }
}
