//! Where somebody goes once they are signed in.

use std::fmt;

const BYTES_MAX: usize = 512;

/// A page of ours: path and query. Nothing that a browser could take for another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ReturnPath(String);

impl ReturnPath {
    /// Reads what came with a request; anything but a page of ours leads to the first page.
    pub(crate) fn read(text: &str) -> ReturnPath {
        // `//host` and `/\host` lead to another host; so may what a browser removes before it looks.
        let sound = text.len() <= BYTES_MAX
            && text.starts_with('/')
            && !text.starts_with("//")
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        ReturnPath(if sound { text } else { "/" }.to_owned())
    }

    /// Path and query.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is more than the first page.
    pub(crate) fn has_target(&self) -> bool {
        self.0 != "/"
    }

    /// The address of a page that hands it on.
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
    fn nobody_is_led_to_another_host() {
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
    fn it_is_handed_on_whole() {
        let next = ReturnPath::read("/consent/1?a=b&c=d");
        assert_eq!(
            next.append_to("/sign-in"),
            "/sign-in?next=%2Fconsent%2F1%3Fa%3Db%26c%3Dd"
        );
        assert_eq!(ReturnPath::read("/").append_to("/sign-in"), "/sign-in");
    }
}
