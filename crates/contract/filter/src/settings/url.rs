//! URLs in the settings.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// Why a text is not a usable URL.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UrlError {
    /// Neither `http://` nor `https://`. The text is not repeated: the text may be a pasted secret.
    #[error("does not start with `http://` or `https://`; write the whole URL")]
    Scheme,
    /// No host, or characters that a URL cannot contain.
    #[error("`{text}` is not a URL; write it like `https://example.net/v1`")]
    Malformed {
        /// The text as given.
        text: String,
    },
    /// A user, a password, a query or a fragment.
    #[error(
        "the URL has a user, a query or a fragment; leave it out, secrets have their own settings"
    )]
    Extra,
}

/// The URL of an upstream: the host to connect to and the prefix of a path.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BaseUrl {
    /// Whether to use TLS.
    pub tls: bool,
    /// A name or an address, an IPv6 address without brackets.
    pub host: String,
    /// The port.
    pub port: u16,
    /// The value of `Host`: with brackets around an IPv6 address, without a default port.
    pub authority: String,
    /// The prefix of every path, without a trailing slash: `/v1`, or empty.
    pub path: String,
}

impl FromStr for BaseUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<BaseUrl, UrlError> {
        let malformed = || UrlError::Malformed {
            text: text.to_owned(),
        };
        let tls = match text.split_once("://") {
            Some(("https", _)) => true,
            Some(("http", _)) => false,
            _ => {
                return Err(UrlError::Scheme);
            }
        };
        if text.contains(['@', '?', '#']) {
            return Err(UrlError::Extra);
        }
        let uri: Uri = text.parse().map_err(|_| malformed())?;
        let authority = uri.authority().ok_or_else(malformed)?;
        let host = authority.host();
        let has_port = authority.as_str().len() > host.len();
        if host.is_empty() || has_port != authority.port_u16().is_some() {
            return Err(malformed());
        }
        let default_port = if tls { 443 } else { 80 };
        let port = authority.port_u16().unwrap_or(default_port);
        if port == 0 {
            return Err(malformed());
        }
        Ok(BaseUrl {
            tls,
            host: host
                .trim_start_matches('[')
                .trim_end_matches(']')
                .to_ascii_lowercase(),
            port,
            authority: if port == default_port {
                host.to_ascii_lowercase()
            } else {
                format!("{}:{port}", host.to_ascii_lowercase())
            },
            path: uri.path().trim_end_matches('/').to_owned(),
        })
    }
}

impl fmt::Display for BaseUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let scheme = if self.tls { "https" } else { "http" };
        write!(f, "{scheme}://{}{}", self.authority, self.path)
    }
}

/// A URL given to clients: as written, without trailing slashes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PublicUrl(String);

impl PublicUrl {
    /// The text, without a trailing slash.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The URL's path, without a trailing slash: `/v1`, or empty.
    pub fn path(&self) -> &str {
        let rest = self.0.split_once("://").map_or(&*self.0, |(_, rest)| rest);
        rest.find('/').map_or("", |slash| &rest[slash..])
    }
}

impl FromStr for PublicUrl {
    type Err = UrlError;

    fn from_str(text: &str) -> Result<PublicUrl, UrlError> {
        text.parse::<BaseUrl>()
            .map(|url| PublicUrl(url.to_string()))
    }
}

impl fmt::Display for PublicUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_are_split_into_their_parts() {
        //    text                            tls    host           port  authority             path
        check(
            "https://api.example.net/v1/",
            true,
            "api.example.net",
            443,
            "api.example.net",
            "/v1",
        );
        check(
            "http://127.0.0.1:11434/v1",
            false,
            "127.0.0.1",
            11434,
            "127.0.0.1:11434",
            "/v1",
        );
        check("http://[::1]:8000", false, "::1", 8000, "[::1]:8000", "");
        check(
            "https://GPU.example.net:443",
            true,
            "gpu.example.net",
            443,
            "gpu.example.net",
            "",
        );
    }

    fn check(text: &str, tls: bool, host: &str, port: u16, authority: &str, path: &str) {
        let url: BaseUrl = text.parse().expect(text);
        assert_eq!(
            (
                url.tls,
                url.host.as_str(),
                url.port,
                url.authority.as_str(),
                url.path.as_str()
            ),
            (tls, host, port, authority, path),
            "parts of {text}"
        );
        assert_eq!(url.to_string().parse(), Ok(url), "{text} reads back");
    }

    #[test]
    fn invalid_urls_are_refused() {
        for text in [
            "api.example.net",
            "ftp://example.net",
            "https://",
            "http://:80",
            "http://example.net:",
            "http://example.net:0",
            "http://example.net:99999",
            "https://user:secret@example.net",
            "https://example.net/v1?key=1",
            "https://exa mple.net",
        ] {
            assert!(
                text.parse::<BaseUrl>().is_err(),
                "{text} must not read as an address"
            );
        }
    }

    #[test]
    fn a_refused_address_does_not_repeat_a_password() {
        let error = "https://user:hunter2@example.net"
            .parse::<BaseUrl>()
            .expect_err("has a user");
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
