//! Where somebody goes once they are signed in.

use std::fmt;

const BYTES_MAX: usize = 512;

/// A page of ours: path and query. Nothing that a browser could take for another host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Next(String);

impl Next {
    /// Reads what came with a request; anything but a page of ours leads to the first page.
    pub(crate) fn read(text: &str) -> Next {
        // `//host` and `/\host` lead to another host; so may what a browser removes before it looks.
        let sound = text.len() <= BYTES_MAX
            && text.starts_with('/')
            && !text.starts_with("//")
            && text
                .bytes()
                .all(|byte| byte.is_ascii_graphic() && byte != b'\\');
        Next(if sound { text } else { "/" }.to_owned())
    }

    /// Path and query.
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether it is more than the first page.
    pub(crate) fn is_elsewhere(&self) -> bool {
        self.0 != "/"
    }

    /// The address of a page that hands it on.
    pub(crate) fn after(&self, page: &str) -> String {
        if !self.is_elsewhere() {
            return page.to_owned();
        }
        let next: String = form_urlencoded::byte_serialize(self.0.as_bytes()).collect();
        format!("{page}?next={next}")
    }
}

impl fmt::Display for Next {
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
            assert_eq!(Next::read(own).as_str(), own);
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
            assert_eq!(Next::read(other).as_str(), "/", "{other:?}");
        }
        assert_eq!(Next::read(&format!("/{}", "a".repeat(512))).as_str(), "/");
    }

    #[test]
    fn it_is_handed_on_whole() {
        let next = Next::read("/consent/1?a=b&c=d");
        assert_eq!(
            next.after("/sign-in"),
            "/sign-in?next=%2Fconsent%2F1%3Fa%3Db%26c%3Dd"
        );
        assert_eq!(Next::read("/").after("/sign-in"), "/sign-in");
    }
}
