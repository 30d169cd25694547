//! Redirect URIs: registration rules and matching.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use url::Url;

/// Maximum length, bytes.
const BYTES_MAX: usize = 2000;

/// Loopback hosts, the only hosts allowed with `http` (RFC 8252 section 7.3).
const LOOPBACK: [&str; 3] = ["127.0.0.1", "[::1]", "localhost"];

/// A registered redirect URI (RFC 6749 section 3.1.2): absolute, `https` or on a loopback host, without a fragment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedirectUri(Arc<str>);

/// Why a text is no redirect URI.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RedirectUriError {
    /// Too long.
    #[error("a redirect URI must have at most {BYTES_MAX} bytes")]
    Long,
    /// Characters outside RFC 3986, or broken percent-encoding.
    #[error("a redirect URI must be visible ASCII as in RFC 3986; percent-encode the rest")]
    Characters,
    /// Neither `https` nor `http`.
    #[error("a redirect URI must start with https://, or with http:// for a loopback host")]
    Scheme,
    /// `http` with a host other than loopback.
    #[error(
        "http is allowed only for 127.0.0.1, [::1] and localhost, spelled so; use https for other hosts"
    )]
    NotLoopback,
    /// No host, or a host on which parsers disagree.
    #[error(
        "the host of a redirect URI must be a name, or an IP address in its usual spelling, with a port from 1 to 65535 or none"
    )]
    Host,
    /// User information before the host.
    #[error("a redirect URI must not contain user information")]
    User,
    #[error("a redirect URI must not have a fragment")]
    Fragment,
    /// `.` or `..` in the path.
    #[error("a redirect URI must not have a . or .. segment in its path")]
    DotSegment,
}

/// The parts of a URI as written.
struct Parts<'a> {
    secure: bool,
    /// With brackets around an IPv6 address.
    host: &'a str,
    port: Option<u16>,
    /// Path and query.
    rest: &'a str,
}

impl<'a> Parts<'a> {
    fn of(text: &'a str) -> Result<Parts<'a>, RedirectUriError> {
        if text.len() > BYTES_MAX {
            return Err(RedirectUriError::Long);
        }
        if text.contains('#') {
            return Err(RedirectUriError::Fragment);
        }
        if !is_uri(text) {
            return Err(RedirectUriError::Characters);
        }
        let (secure, rest) = match text.split_once("://") {
            Some(("https", rest)) => (true, rest),
            Some(("http", rest)) => (false, rest),
            _ => return Err(RedirectUriError::Scheme),
        };
        let (authority, rest) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err(RedirectUriError::User);
        }
        let end = match authority.find(']') {
            Some(bracket) => bracket + 1,
            None => authority.find(':').unwrap_or(authority.len()),
        };
        let (host, port) = authority.split_at(end);
        let port = match port.strip_prefix(':') {
            None if port.is_empty() => None,
            Some(digits) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                let port = digits.parse().ok().filter(|&port| port > 0);
                Some(port.ok_or(RedirectUriError::Host)?)
            }
            _ => return Err(RedirectUriError::Host),
        };
        Ok(Parts {
            secure,
            host,
            port,
            rest,
        })
    }

    fn is_loopback(&self) -> bool {
        LOOPBACK.contains(&self.host)
    }
}

/// Only characters of RFC 3986, every `%` followed by two hex digits.
fn is_uri(text: &str) -> bool {
    let bytes = text.as_bytes();
    bytes.iter().enumerate().all(|(at, &byte)| match byte {
        b'%' => bytes
            .get(at + 1..at + 3)
            .is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)),
        _ => byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=".contains(&byte),
    })
}

/// Whether a path segment is `.` or `..`, percent-encoded or not.
fn has_dot_segment(rest: &str) -> bool {
    let path = rest.split('?').next().unwrap_or_default();
    path.split('/').any(|segment| {
        let plain = segment.replace("%2e", ".").replace("%2E", ".");
        plain == "." || plain == ".."
    })
}

impl FromStr for RedirectUri {
    type Err = RedirectUriError;

    fn from_str(text: &str) -> Result<RedirectUri, RedirectUriError> {
        let parts = Parts::of(text)?;
        if has_dot_segment(parts.rest) {
            return Err(RedirectUriError::DotSegment);
        }
        if !parts.secure && !parts.is_loopback() {
            return Err(RedirectUriError::NotLoopback);
        }
        // A browser must read the host as written: it normalizes `0x7f.1` and `127.1`.
        let read = Url::parse(text).map_err(|_| RedirectUriError::Host)?;
        let written = parts.host.to_ascii_lowercase();
        if read.host_str() != Some(&written) {
            return Err(RedirectUriError::Host);
        }
        Ok(RedirectUri(text.into()))
    }
}

impl RedirectUri {
    /// The text as registered.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl From<RedirectUri> for Arc<str> {
    fn from(uri: RedirectUri) -> Arc<str> {
        uri.0
    }
}

/// Whether a response may go to `asked`, given a `registered` redirect URI of the client.
///
/// Compared byte for byte, without decoding or case folding; only between two `http` URIs of the same loopback host the port may differ,
/// since native apps use an ephemeral port (RFC 8252 section 7.3).
pub fn redirect_matches(registered: &str, asked: &str) -> bool {
    if registered == asked {
        return true;
    }
    let (Ok(one), Ok(other)) = (Parts::of(registered), Parts::of(asked)) else {
        return false;
    };
    !one.secure
        && !other.secure
        && one.is_loopback()
        && one.host == other.host
        && one.rest == other.rest
}

/// Where a response goes, as shown to the account owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Destination {
    /// A program on the owner's computer.
    Loopback,
    Host {
        /// The host name on the wire, with the port if one is written.
        host: String,
        /// The Unicode form of the name, if it is internationalized.
        unicode: Option<String>,
    },
}

impl Destination {
    /// The destination of a valid redirect URI.
    pub fn of(redirect_uri: &str) -> Destination {
        let Ok(parts) = Parts::of(redirect_uri) else {
            // Never stored; a stored value would be shown unchanged.
            return Destination::Host {
                host: redirect_uri.to_owned(),
                unicode: None,
            };
        };
        if parts.is_loopback() {
            return Destination::Loopback;
        }
        let name = parts.host.to_ascii_lowercase();
        let unicode = Some(url::quirks::domain_to_unicode(&name))
            .filter(|unicode| *unicode != name && !unicode.is_empty());
        let host = match parts.port {
            Some(port) => format!("{name}:{port}"),
            None => name,
        };
        Destination::Host { host, unicode }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Destination::Loopback => f.write_str("an application on this computer"),
            Destination::Host { host, .. } => f.write_str(host),
        }
    }
}

/// The `form-action` source that lets a browser follow the form's redirect to this URI (CSP level 3, 6.4.1).
///
/// Scheme, host and port. CSP cannot express an IPv6 address, so a URI with an IPv6 host is allowed by scheme.
pub fn form_action_source(redirect_uri: &str) -> String {
    match Parts::of(redirect_uri) {
        Ok(parts) if parts.host.starts_with('[') && parts.secure => String::from("https:"),
        Ok(parts) if parts.host.starts_with('[') => String::from("http:"),
        Ok(parts) => {
            let scheme = if parts.secure { "https" } else { "http" };
            let port = parts.port.map_or(String::new(), |port| format!(":{port}"));
            format!("{scheme}://{}{port}", parts.host)
        }
        Err(_) => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_https_and_the_three_loopback_hosts_can_be_registered() {
        let long = format!("https://app.example/{}", "a".repeat(BYTES_MAX));
        for (text, sound) in [
            ("https://app.example/cb", Ok(())),
            ("https://app.example", Ok(())),
            ("https://App.Example/cb", Ok(())),
            ("https://app.example:8443/cb?x=1&y", Ok(())),
            ("https://xn--bcher-kva.example/cb", Ok(())),
            ("https://192.0.2.1/cb", Ok(())),
            ("https://127.0.0.1/cb", Ok(())),
            ("http://127.0.0.1/cb", Ok(())),
            ("http://127.0.0.1:47211/cb", Ok(())),
            ("http://[::1]:1/cb", Ok(())),
            ("http://localhost/callback", Ok(())),
            ("http://localhost:61023", Ok(())),
            ("http://app.example/cb", Err(RedirectUriError::NotLoopback)),
            (
                "http://127.0.0.1.example.com/cb",
                Err(RedirectUriError::NotLoopback),
            ),
            (
                "http://localhost.evil.example/cb",
                Err(RedirectUriError::NotLoopback),
            ),
            (
                "http://localhost@evil.example/cb",
                Err(RedirectUriError::User),
            ),
            (
                "http://evil.example#@localhost/cb",
                Err(RedirectUriError::Fragment),
            ),
            (
                "http://[::ffff:10.0.0.1]/cb",
                Err(RedirectUriError::NotLoopback),
            ),
            (
                "http://[0:0:0:0:0:0:0:1]/",
                Err(RedirectUriError::NotLoopback),
            ),
            ("http://2130706433/cb", Err(RedirectUriError::NotLoopback)),
            ("http://0177.0.0.1/cb", Err(RedirectUriError::NotLoopback)),
            ("http://0x7f.0.0.1/cb", Err(RedirectUriError::NotLoopback)),
            ("http://127.1/cb", Err(RedirectUriError::NotLoopback)),
            ("http://127.0.0.2/cb", Err(RedirectUriError::NotLoopback)),
            ("http://LOCALHOST/cb", Err(RedirectUriError::NotLoopback)),
            ("http://localhost./cb", Err(RedirectUriError::NotLoopback)),
            ("https://2130706433/cb", Err(RedirectUriError::Host)),
            ("https://0177.0.0.1/cb", Err(RedirectUriError::Host)),
            ("https://127.1/cb", Err(RedirectUriError::Host)),
            ("https://[::ffff:10.0.0.1]/cb", Err(RedirectUriError::Host)),
            ("https://ex%61mple.com/cb", Err(RedirectUriError::Host)),
            (
                "https://user:pw@app.example/cb",
                Err(RedirectUriError::User),
            ),
            ("https://app.example/cb#x", Err(RedirectUriError::Fragment)),
            (
                "https://app.example/a/../b",
                Err(RedirectUriError::DotSegment),
            ),
            (
                "https://app.example/a/./b",
                Err(RedirectUriError::DotSegment),
            ),
            (
                "https://app.example/%2e%2E/b",
                Err(RedirectUriError::DotSegment),
            ),
            (
                "https://app.example/.%2e",
                Err(RedirectUriError::DotSegment),
            ),
            ("https://app.example/...?a=../b", Ok(())),
            ("https://", Err(RedirectUriError::Host)),
            ("https:///cb", Err(RedirectUriError::Host)),
            ("https://app.example:/cb", Err(RedirectUriError::Host)),
            ("https://app.example:0/cb", Err(RedirectUriError::Host)),
            ("https://app.example:65536/cb", Err(RedirectUriError::Host)),
            ("https://app.example:8a/cb", Err(RedirectUriError::Host)),
            ("https://[::1/cb", Err(RedirectUriError::Host)),
            ("HTTPS://app.example/cb", Err(RedirectUriError::Scheme)),
            ("app.example/cb", Err(RedirectUriError::Scheme)),
            ("/cb", Err(RedirectUriError::Scheme)),
            ("", Err(RedirectUriError::Scheme)),
            (
                "javascript://app.example/%0aalert(1)",
                Err(RedirectUriError::Scheme),
            ),
            ("com.example.app:/cb", Err(RedirectUriError::Scheme)),
            ("https://app.example/c b", Err(RedirectUriError::Characters)),
            (
                "https://app.example/c\\b",
                Err(RedirectUriError::Characters),
            ),
            (
                "https://app.example/cb\r\nx: y",
                Err(RedirectUriError::Characters),
            ),
            (
                "https://bücher.example/cb",
                Err(RedirectUriError::Characters),
            ),
            ("https://app.example/%zz", Err(RedirectUriError::Characters)),
            ("https://app.example/%4", Err(RedirectUriError::Characters)),
            (&long, Err(RedirectUriError::Long)),
        ] {
            assert_eq!(text.parse::<RedirectUri>().map(|_| ()), sound, "{text}");
        }
    }

    #[test]
    fn rfc8252_7_3_only_the_port_of_a_loopback_address_is_free() {
        for (registered, asked, matches) in [
            // The cases of the specification.
            (
                "http://127.0.0.1:47211/cb",
                "http://127.0.0.1:50999/cb",
                true,
            ),
            (
                "http://localhost/callback",
                "http://localhost:61023/callback",
                true,
            ),
            ("http://127.0.0.1/cb", "http://localhost/cb", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1/cb/", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1/CB", false),
            ("http://127.0.0.1/cb", "http://127.0.0.1/cb?x=1", false),
            (
                "https://app.example/cb",
                "https://app.example:8443/cb",
                false,
            ),
            // Neighbouring cases.
            ("https://app.example/cb", "https://app.example/cb", true),
            ("https://app.example/cb", "https://app.example/cb/", false),
            ("https://app.example/cb", "https://APP.example/cb", false),
            (
                "https://app.example/cb",
                "https://app.example:443/cb",
                false,
            ),
            ("https://app.example/c%62", "https://app.example/cb", false),
            ("https://127.0.0.1:1/cb", "https://127.0.0.1:2/cb", false),
            ("http://[::1]:4/cb?a=1", "http://[::1]:5/cb?a=1", true),
            ("http://[::1]/cb", "http://localhost:5/cb", false),
            ("http://localhost:1/cb", "https://localhost:1/cb", false),
            ("http://localhost:1/cb", "http://localhost:2/cb#f", false),
            ("http://localhost:1/cb", "http://localhost:99999/cb", false),
            ("http://localhost:1/cb", "http://x@localhost:2/cb", false),
            (
                "http://localhost:1/cb",
                "http://localhost:2@evil.example/cb",
                false,
            ),
            ("http://localhost:1", "http://localhost:2/", false),
        ] {
            assert_eq!(
                redirect_matches(registered, asked),
                matches,
                "{registered} against {asked}"
            );
        }
    }

    #[test]
    fn a_destination_shows_the_whole_host_with_its_port_and_unicode_form() {
        let host = |host: &str, unicode: Option<&str>| Destination::Host {
            host: host.to_owned(),
            unicode: unicode.map(str::to_owned),
        };
        for (uri, shown, source) in [
            (
                "https://app.example/cb?x=1",
                host("app.example", None),
                "https://app.example",
            ),
            (
                "https://app.example:8443",
                host("app.example:8443", None),
                "https://app.example:8443",
            ),
            (
                "https://xn--bcher-kva.example/cb",
                host("xn--bcher-kva.example", Some("bücher.example")),
                "https://xn--bcher-kva.example",
            ),
            (
                "http://127.0.0.1:50999/cb",
                Destination::Loopback,
                "http://127.0.0.1:50999",
            ),
            ("http://[::1]:5/cb", Destination::Loopback, "http:"),
        ] {
            assert_eq!(Destination::of(uri), shown, "{uri}");
            assert_eq!(form_action_source(uri), source, "{uri}");
        }
    }
}
