//! The return path after sign-in: validation against open redirects.

use std::fmt;

const BYTES_MAX: usize = 512;

/// Path and query of a page of this service. Never a value resolved by a browser to another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReturnPath(String);

impl ReturnPath {
    /// Parses the `next` parameter; anything other than a local page becomes `/`.
    pub(crate) fn read(text: &str) -> ReturnPath {
        // `//host` and `/\host` resolve to another host, and browsers strip some characters before they parse a URL.
        let is_local = text.len() <= BYTES_MAX
            && text.starts_with('/')
            && !text.starts_with("//")
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        ReturnPath(if is_local { text } else { "/" }.to_owned())
    }

    /// Path and query.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether the target is a page other than `/`.
    pub(crate) fn has_target(&self) -> bool {
        self.0 != "/"
    }

    /// URL of `page` with this path as the `next` parameter.
    pub(crate) fn append_to(&self, page: &str) -> String {
        if !self.has_target() {
            return page.to_owned();
        }
        let next: String = form_urlencoded::byte_serialize(self.0.as_bytes()).collect();
        format!("{page}?next={next}")
    }
}

impl fmt::Display for ReturnPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_return_path_leads_to_another_host() {
        for own in [
            "/",
            "/keys",
            "/consent/0190?x=1&y=2",
            "/usage?from=2026-11-01",
        ] {
            assert_eq!(ReturnPath::read(own).as_str(), own);
        }
        for other in [
            "",
            "keys",
            "//evil.example",
            "/\\evil.example",
            "/a\\b",
            "https://evil.example",
            "javascript:alert(1)",
            "/\t/evil.example",
            "/\r\nset-cookie: a=b",
            "/ä",
            " /keys",
        ] {
            assert_eq!(ReturnPath::read(other).as_str(), "/", "{other:?}");
        }
        assert_eq!(
            ReturnPath::read(&format!("/{}", "a".repeat(512))).as_str(),
            "/"
        );
    }

    #[test]
    fn a_return_path_is_passed_on_unchanged() {
        let next = ReturnPath::read("/consent/1?a=b&c=d");
        assert_eq!(
            next.append_to("/sign-in"),
            "/sign-in?next=%2Fconsent%2F1%3Fa%3Db%26c%3Dd"
        );
        assert_eq!(ReturnPath::read("/").append_to("/sign-in"), "/sign-in");
    }
}
