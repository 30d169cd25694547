//! URLs in public documents.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// An absolute `http` or `https` URL that a public document links to, kept as written: with a query or a fragment, unlike the addresses of
/// the service (`tollgate_filter::settings::PublicUrl`), which paths are appended to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LinkUrl(String);

/// An invalid URL. The value is not repeated, so that a pasted secret does not reach the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UrlError {
    #[error("does not start with `https://` or `http://`; use an absolute URL")]
    Scheme,
    #[error("is not a URL; use a form like `https://example.com/app.apk`")]
    Malformed,
    #[error("contains user information; remove it, the document is public")]
    User,
}

impl FromStr for LinkUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<LinkUrl, UrlError> {
        if !text.starts_with("https://") && !text.starts_with("http://") {
            return Err(UrlError::Scheme);
        }
        let uri: Uri = text.parse().map_err(|_| UrlError::Malformed)?;
        let authority = uri.authority().ok_or(UrlError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(UrlError::User);
        }
        if authority.host().is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(UrlError::Malformed);
        }
        Ok(LinkUrl(text.to_owned()))
    }
}

impl fmt::Display for LinkUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A URL as in [`LinkUrl`], or a path of this service: `/sandbox` (RFC 3986 section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UrlReference(String);

impl FromStr for UrlReference {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<UrlReference, UrlError> {
        if !text.starts_with('/') {
            return text.parse().map(|LinkUrl(text)| UrlReference(text));
        }
        let is_valid = !text.starts_with("//") && text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.parse::<Uri>() {
            Ok(_) if is_valid => Ok(UrlReference(text.to_owned())),
            _ => Err(UrlError::Malformed),
        }
    }
}

impl fmt::Display for UrlReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_absolute_and_without_user_information() {
        for (text, expected) in [
            ("https://example.com/app.apk", Ok(())),
            ("http://localhost:8080", Ok(())),
            ("ftp://example.com", Err(UrlError::Scheme)),
            ("example.com", Err(UrlError::Scheme)),
            ("/sandbox", Err(UrlError::Scheme)),
            ("https://", Err(UrlError::Malformed)),
            ("https://exa mple.com", Err(UrlError::Malformed)),
            ("https://user:secret@example.com", Err(UrlError::User)),
        ] {
            assert_eq!(text.parse::<LinkUrl>().map(|_| ()), expected, "{text}");
        }
        for (text, is_valid) in [
            ("/sandbox", true),
            ("https://play.example.com", true),
            ("//example.com", false),
            ("sandbox", false),
            ("/a b", false),
        ] {
            assert_eq!(text.parse::<UrlReference>().is_ok(), is_valid, "{text}");
        }
    }
}
