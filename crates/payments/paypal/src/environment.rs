//! PayPal environments (live, sandbox, stand-in) and their hosts.

use std::fmt;

use reqwest::Url;

/// Path prefix of signing certificates.
const CERTIFICATES: &str = "/v1/notifications/certs/";

/// An environment of PayPal's API.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Environment {
    base: Url,
    kind: Kind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Live,
    Sandbox,
    /// Another host with PayPal's API: trusted for its own pages and certificates only.
    Other,
}

/// Why a URL cannot be an environment.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum EnvironmentError {
    /// It does not parse, or has a user, a query or a path.
    #[error("is not the URL of a host; write it like `https://api-m.paypal.com`, without a path")]
    Malformed,
    /// Payments would go over an unencrypted connection.
    #[error("is not `https`; only a stand-in on this machine may be used without TLS")]
    NotSecure,
}

impl Environment {
    /// The environment at a URL: `https://api-m.paypal.com`, `https://api-m.sandbox.paypal.com`, or a stand-in's.
    pub fn at(base_url: &str) -> Result<Environment, EnvironmentError> {
        let base: Url = base_url.parse().map_err(|_| EnvironmentError::Malformed)?;
        let bare = base.path() == "/"
            && base.query().is_none()
            && base.fragment().is_none()
            && base.username().is_empty()
            && base.password().is_none();
        let host = base.host_str().unwrap_or_default();
        if !bare || host.is_empty() || !matches!(base.scheme(), "http" | "https") {
            return Err(EnvironmentError::Malformed);
        }
        let local = matches!(host, "localhost" | "127.0.0.1" | "[::1]");
        if base.scheme() != "https" && !local {
            return Err(EnvironmentError::NotSecure);
        }
        let kind = match host {
            "api-m.paypal.com" | "api.paypal.com" => Kind::Live,
            "api-m.sandbox.paypal.com" | "api.sandbox.paypal.com" => Kind::Sandbox,
            _ => Kind::Other,
        };
        Ok(Environment { base, kind })
    }

    /// The URL of a call. `path` begins with a slash.
    pub(crate) fn call(&self, path: &str) -> String {
        format!("{}{path}", self.base.as_str().trim_end_matches('/'))
    }

    /// Whether a buyer may be redirected to this URL: only to a page of PayPal's, whatever an answer contains.
    pub(crate) fn is_page(&self, address: &str) -> bool {
        let Ok(url) = address.parse::<Url>() else {
            return false;
        };
        // The checked URL must equal the URL opened by the browser: URL parsing is lenient.
        if url.as_str() != address {
            return false;
        }
        if !url.username().is_empty() || url.password().is_some() {
            return false;
        }
        match self.kind {
            Kind::Other => self.same_origin(&url),
            Kind::Live | Kind::Sandbox => {
                let host = url.host_str().unwrap_or_default();
                url.scheme() == "https"
                    && url.port().is_none()
                    && (host == "paypal.com" || host.ends_with(".paypal.com"))
            }
        }
    }

    /// Whether a signing certificate may be fetched from this untrusted URL.
    pub(crate) fn is_certificate(&self, address: &str) -> bool {
        let Ok(url) = address.parse::<Url>() else {
            return false;
        };
        // URL parsing is lenient; PayPal writes no URL that parsing changes.
        let plain = url.as_str() == address
            && url.username().is_empty()
            && url.password().is_none()
            && url.query().is_none()
            && url.fragment().is_none()
            && url.path().len() > CERTIFICATES.len()
            && url.path().starts_with(CERTIFICATES)
            && !url.path().contains('%');
        let hosts: &[&str] = match self.kind {
            Kind::Other => return plain && self.same_origin(&url),
            Kind::Live => &["api.paypal.com", "api-m.paypal.com"],
            Kind::Sandbox => &["api.sandbox.paypal.com", "api-m.sandbox.paypal.com"],
        };
        plain
            && url.scheme() == "https"
            && url.port().is_none()
            && url.host_str().is_some_and(|host| hosts.contains(&host))
    }

    fn same_origin(&self, url: &Url) -> bool {
        url.scheme() == self.base.scheme()
            && url.host_str() == self.base.host_str()
            && url.port_or_known_default() == self.base.port_or_known_default()
    }
}

/// The URL without a trailing slash.
impl fmt::Display for Environment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.base.as_str().trim_end_matches('/'))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(base_url: &str) -> Environment {
        Environment::at(base_url).expect(base_url)
    }

    #[test]
    fn an_environment_is_an_https_host_or_a_stand_in_on_this_machine() {
        for base_url in [
            "https://api-m.paypal.com",
            "https://api-m.sandbox.paypal.com/",
            "http://127.0.0.1:8123",
            "http://localhost:1",
            "https://paypal.example.net",
        ] {
            let environment = at(base_url);
            assert_eq!(environment.to_string(), base_url.trim_end_matches('/'));
        }
        for base_url in [
            "http://api-m.paypal.com",
            "http://example.net",
            "https://api-m.paypal.com/v1",
            "https://user@api-m.paypal.com",
            "https://api-m.paypal.com?x",
            "ftp://api-m.paypal.com",
            "api-m.paypal.com",
        ] {
            assert!(Environment::at(base_url).is_err(), "{base_url}");
        }
    }

    #[test]
    fn buyers_are_sent_to_paypal_only() {
        let live = at("https://api-m.paypal.com");
        for page in [
            "https://www.paypal.com/checkoutnow?token=5O1",
            "https://paypal.com/x",
        ] {
            assert!(live.is_page(page), "{page}");
        }
        for page in [
            "http://www.paypal.com/checkoutnow",
            "https://www.paypal.com.example.net/",
            "https://paypal.com@example.net/",
            "https://notpaypal.com/",
            "https://www.paypal.com:8443/",
            "javascript:alert(1)//paypal.com",
            "https:\\\\www.paypal.com/",
            "https://www.paypal.com\t/x",
            " https://www.paypal.com/x",
            "//www.paypal.com/",
            "",
        ] {
            assert!(!live.is_page(page), "{page}");
        }
        let stand_in = at("http://127.0.0.1:8123");
        assert!(stand_in.is_page("http://127.0.0.1:8123/checkoutnow?token=1"));
        assert!(!stand_in.is_page("http://127.0.0.1:8124/checkoutnow?token=1"));
        assert!(!stand_in.is_page("https://www.paypal.com/"));
    }

    #[test]
    fn certificates_are_fetched_from_paypal_only() {
        let live = at("https://api-m.paypal.com");
        let sandbox = at("https://api-m.sandbox.paypal.com");
        let good = "https://api.paypal.com/v1/notifications/certs/CERT-360caa42-fca2a594-a5cafa77";
        assert!(live.is_certificate(good));
        assert!(!sandbox.is_certificate(good), "of the other environment");
        assert!(
            sandbox.is_certificate("https://api.sandbox.paypal.com/v1/notifications/certs/C-1")
        );
        for address in [
            "http://api.paypal.com/v1/notifications/certs/C-1",
            "https://api.paypal.com:8443/v1/notifications/certs/C-1",
            "https://api.paypal.com@example.net/v1/notifications/certs/C-1",
            "https://api.paypal.com.example.net/v1/notifications/certs/C-1",
            "https://example.net/v1/notifications/certs/C-1",
            "https://www.paypal.com/v1/notifications/certs/C-1",
            "https://api.paypal.com/v1/notifications/certs/",
            "https://api.paypal.com/v1/notifications/certs/../../oauth2/token",
            "https://api.paypal.com/v1/notifications/certs/%2e%2e/token",
            "https://api.paypal.com/v1/notifications/certs/C-1?x=1",
            "https://api.paypal.com/v1/notifications/certs/C-1#x",
            "HTTPS://api.paypal.com/v1/notifications/certs/C-1",
            "https://api.paypal.com\\@example.net/v1/notifications/certs/C-1",
            "file:///etc/passwd",
            "",
        ] {
            assert!(!live.is_certificate(address), "{address}");
        }
    }
}
