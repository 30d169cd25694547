//! URLs that documents may be fetched from.

use std::str::FromStr;

use url::{Host, Url};

/// The length limit of a URL, bytes.
const BYTES_MAX: usize = 512;

/// The URL of a document: `https`, a host name, a path, and no part that parsers read differently
/// (draft-ietf-oauth-client-id-metadata-document-00 section 3).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DocumentUrl {
    url: Url,
    text: String,
    host: String,
}

/// The text is not a document URL.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "not a document URL; use `https` with a host name and a path, without user, fragment and dot segments"
)]
pub struct AddressError;

impl FromStr for DocumentUrl {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<DocumentUrl, AddressError> {
        if text.len() > BYTES_MAX || !text.starts_with("https://") {
            return Err(AddressError);
        }
        let url = Url::parse(text).map_err(|_| AddressError)?;
        // Parsing removes dot segments, lower-cases hosts and percent-encodes: a text changed by parsing has two readings.
        if url.as_str() != text {
            return Err(AddressError);
        }
        // An IP address would bypass the guarded DNS lookup.
        let host = match url.host() {
            Some(Host::Domain(host)) if host.contains('.') && !host.ends_with('.') => {
                host.to_owned()
            }
            _ => return Err(AddressError),
        };
        let plain = url.username().is_empty()
            && url.password().is_none()
            && url.fragment().is_none()
            && !text.contains('@');
        let dots = ["%2e", "%2E"].iter().any(|dot| url.path().contains(dot));
        if !plain || dots || url.path() == "/" {
            return Err(AddressError);
        }
        Ok(DocumentUrl {
            url,
            text: text.to_owned(),
            host,
        })
    }
}

impl DocumentUrl {
    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.text
    }

    pub fn host(&self) -> &str {
        &self.host
    }

    /// The parsed URL.
    pub fn url(&self) -> &Url {
        &self.url
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_is_named_by_a_plain_https_address_with_a_path() {
        let long = format!("https://app.example/{}", "a".repeat(BYTES_MAX));
        for (text, sound) in [
            ("https://app.example/client.json", true),
            ("https://app.example:8443/a/b?v=1", true),
            ("https://xn--bcher-kva.example/c", true),
            ("http://app.example/client.json", false),
            ("https://app.example", false),
            ("https://app.example/", false),
            ("https://app.example/c#f", false),
            ("https://user@app.example/c", false),
            ("https://user:pw@app.example/c", false),
            ("https://app.example/a/../c", false),
            ("https://app.example/./c", false),
            ("https://app.example/%2e%2e/c", false),
            ("https://APP.example/c", false),
            ("https://app.example:443/c", false),
            ("https://bücher.example/c", false),
            ("https://app.example/a b", false),
            ("https://127.0.0.1/c", false),
            ("https://192.0.2.1/c", false),
            ("https://[::1]/c", false),
            ("https://2130706433/c", false),
            ("https://0x7f.1/c", false),
            ("https://localhost/c", false),
            ("https://metadata/c", false),
            ("https://app.example./c", false),
            ("https:app.example/c", false),
            ("c_0123456789012345678901", false),
            (&long, false),
        ] {
            assert_eq!(text.parse::<DocumentUrl>().is_ok(), sound, "{text}");
        }
    }
}
