//! Path patterns of routes.

use std::fmt;
use std::str::FromStr;

/// A path pattern: `/v1/models`, `/products/{plan}` (one segment of any content) or `/pages/{*rest}` (at least one more byte, slashes
/// included). Compared with the raw path, without decoding and without merging of slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PathPattern {
    text: String,
    segments: Vec<Segment>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Segment {
    Exact(String),
    Any,
    Rest,
}

/// Why a text is no path pattern.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PatternError {
    /// No slash at its start.
    #[error("`{text}` does not start with `/`; write the whole path")]
    Relative {
        /// The text as given.
        text: String,
    },
    /// A brace in the wrong place, or a character that is invalid in a path.
    #[error(
        "`{segment}` is not a path segment; use visible ASCII without `?`, `#` and `%`, `{{name}}`, or `{{*name}}` at the end"
    )]
    Segment {
        /// The invalid part.
        segment: String,
    },
}

impl PathPattern {
    /// Whether a raw path, without its query, matches.
    pub fn fits(&self, path: &str) -> bool {
        let Some(path) = path.strip_prefix('/') else {
            return false;
        };
        let mut rest = Some(path);
        for segment in &self.segments {
            let Some(left) = rest else { return false };
            if *segment == Segment::Rest {
                return !left.is_empty();
            }
            let (here, after) = match left.split_once('/') {
                Some((here, after)) => (here, Some(after)),
                None => (left, None),
            };
            let matches = match segment {
                Segment::Exact(text) => text == here,
                Segment::Any => !here.is_empty(),
                Segment::Rest => false,
            };
            if !matches {
                return false;
            }
            rest = after;
        }
        rest.is_none()
    }

    /// The path of a pattern without wildcard, for an index in place of a match.
    pub fn exact(&self) -> Option<&str> {
        self.segments
            .iter()
            .all(|segment| matches!(segment, Segment::Exact(_)))
            .then_some(self.text.as_str())
    }

    /// The pattern as written: the label of the route in logs and metrics.
    pub fn as_str(&self) -> &str {
        &self.text
    }
}

impl FromStr for PathPattern {
    type Err = PatternError;

    fn from_str(text: &str) -> Result<PathPattern, PatternError> {
        let Some(path) = text.strip_prefix('/') else {
            return Err(PatternError::Relative {
                text: text.to_owned(),
            });
        };
        let count = path.split('/').count();
        let segments = path
            .split('/')
            .enumerate()
            .map(|(at, segment)| read(segment, at + 1 == count))
            .collect::<Result<_, _>>()?;
        Ok(PathPattern {
            text: text.to_owned(),
            segments,
        })
    }
}

fn read(segment: &str, last: bool) -> Result<Segment, PatternError> {
    let wrong = || PatternError::Segment {
        segment: segment.to_owned(),
    };
    let is_name = |name: &str| {
        !name.is_empty()
            && name
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
    };
    if let Some(inside) = segment.strip_prefix('{') {
        let name = inside.strip_suffix('}').ok_or_else(wrong)?;
        return match name.strip_prefix('*') {
            Some(rest) if last && is_name(rest) => Ok(Segment::Rest),
            None if is_name(name) => Ok(Segment::Any),
            _ => Err(wrong()),
        };
    }
    let plain = |byte: u8| byte.is_ascii_graphic() && !b"{}?#%".contains(&byte);
    if segment.bytes().all(plain) && segment != "." && segment != ".." {
        Ok(Segment::Exact(segment.to_owned()))
    } else {
        Err(wrong())
    }
}

impl fmt::Display for PathPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_raw_path_matches_its_whole_pattern() {
        check("/v1/models", "/v1/models", true);
        check("/v1/models", "/v1/models/", false);
        check("/v1/models", "/v1//models", false);
        check("/v1/models", "/v1/model%73", false);
        check("/v1/models", "v1/models", false);
        check("/", "/", true);
        check("/", "/a", false);
        check("/products/{plan}", "/products/svc-pro", true);
        check("/products/{plan}", "/products/", false);
        check("/products/{plan}", "/products/a/b", false);
        check("/pages/{*rest}", "/pages/a/b", true);
        check("/pages/{*rest}", "/pages/", false);
        check("/pages/{*rest}", "/pages", false);
    }

    fn check(pattern: &str, path: &str, matches: bool) {
        let pattern: PathPattern = pattern.parse().expect("a pattern");
        assert_eq!(pattern.fits(path), matches, "{path} against {pattern}");
    }

    #[test]
    fn invalid_patterns_are_refused() {
        for text in [
            "v1",
            "",
            "/{*rest}/a",
            "/{",
            "/{}",
            "/a{b}",
            "/a?b",
            "/a%20b",
            "/..",
            "/a b",
        ] {
            assert!(
                text.parse::<PathPattern>().is_err(),
                "{text} must not read as a pattern"
            );
        }
    }
}
