//! `UCP-Agent`: the platform of a request (UCP 2026-08-25, Overview, "Platform Advertisement on Request"; RFC 8941 section 3.2).

use std::sync::Arc;

use http::HeaderMap;
use sfv::{BareItem, Dictionary, ListEntry, Parser};
use url::{Host, Url};

use super::VERSIONS;

/// Maximum length of a profile URL, in bytes.
const BYTES_MAX: usize = 2048;

/// A platform, as named in the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct UcpAgent {
    /// URL of the platform's profile.
    pub(crate) profile: Url,
    /// Host of the profile URL.
    pub(crate) host: Arc<str>,
}

/// An invalid `UCP-Agent`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AgentError {
    /// Not a dictionary, or without a string member `profile`.
    Malformed,
    /// The profile is not an `https` URL with a host.
    Address,
    /// An unsupported version.
    Version,
}

impl AgentError {
    /// The error message.
    pub(crate) fn message(self) -> &'static str {
        match self {
            AgentError::Malformed => {
                "UCP-Agent must be a dictionary with the platform's profile: `profile=\"https://platform.example/.well-known/ucp\"`."
            }
            AgentError::Address => {
                "The profile in UCP-Agent must be an https URL with a host name."
            }
            AgentError::Version => {
                "The version in UCP-Agent is not supported; this service supports 2026-08-25 and 2026-04-08."
            }
        }
    }
}

/// The platform named by a request, if any. `loopback`: a profile may be on loopback.
pub(crate) fn read(headers: &HeaderMap, loopback: bool) -> Result<Option<UcpAgent>, AgentError> {
    let fields = headers.get_all("ucp-agent").iter();
    let texts: Option<Vec<&str>> = fields.map(|value| value.to_str().ok()).collect();
    let texts = texts.ok_or(AgentError::Malformed)?;
    if texts.is_empty() {
        return Ok(None);
    }
    // Multiple header lines are one dictionary (RFC 8941 section 4.2).
    let text = texts.join(", ");
    let members = Parser::new(&text)
        .parse::<Dictionary>()
        .map_err(|_| AgentError::Malformed)?;
    let Some(ListEntry::Item(item)) = members.get("profile") else {
        return Err(AgentError::Malformed);
    };
    let BareItem::String(profile) = &item.bare_item else {
        return Err(AgentError::Malformed);
    };
    let version = item.params.get("version");
    let is_ours = match version {
        None => true,
        Some(BareItem::String(version)) => VERSIONS.contains(&version.as_str()),
        Some(_) => false,
    };
    if !is_ours {
        return Err(AgentError::Version);
    }
    address(profile.as_str(), loopback).map(Some)
}

fn address(text: &str, loopback: bool) -> Result<UcpAgent, AgentError> {
    if text.len() > BYTES_MAX {
        return Err(AgentError::Address);
    }
    let profile = Url::parse(text).map_err(|_| AgentError::Address)?;
    let is_loopback = match profile.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => return Err(AgentError::Address),
    };
    let sound = match profile.scheme() {
        "https" => !is_loopback || loopback,
        "http" => is_loopback && loopback,
        _ => false,
    };
    let plain = profile.username().is_empty() && profile.password().is_none();
    if !sound || !plain {
        return Err(AgentError::Address);
    }
    let host = Arc::from(profile.host_str().unwrap_or_default());
    Ok(UcpAgent { profile, host })
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn rfc8941_3_2_a_platform_is_named_by_the_profile_in_a_dictionary() {
        use AgentError::{Address, Malformed, Version};
        let host = |host: &str| Ok(Some(host.to_owned()));
        // fields, loopback, expected
        check(&[], false, Ok(None));
        let plain = "profile=\"https://platform.example/.well-known/ucp\"";
        check(&[plain], false, host("platform.example"));
        check(&["a=1", plain], false, host("platform.example"));
        check(
            &[&format!("name=x, {plain};v=2, other")],
            false,
            host("platform.example"),
        );
        check(
            &[&format!("{plain};version=\"2026-04-08\"")],
            false,
            host("platform.example"),
        );
        check(
            &[&format!("{plain};version=\"2099-01-01\"")],
            false,
            Err(Version),
        );
        check(&[&format!("{plain};version=1")], false, Err(Version));
        // A member is not a parameter of another.
        check(
            &[&format!("{plain}, version=\"2099-01-01\"")],
            false,
            host("platform.example"),
        );
        for broken in [
            "",
            "platform.example",
            "https://platform.example/p",
            "profile=\"...",
            "profile=https",
            "profile=1",
            "profile=(\"https://a.example\")",
            "profile",
            "other=\"https://a.example\"",
            "profile=\"https://a.example\",",
        ] {
            check(&[broken], true, Err(Malformed));
        }
        for elsewhere in [
            "...",
            "",
            "http://platform.example/p",
            "ftp://platform.example/p",
            "https://",
            "https://user@platform.example/p",
            "javascript:alert(1)",
            "/.well-known/ucp",
        ] {
            check(&[&format!("profile=\"{elsewhere}\"")], true, Err(Address));
        }
        for is_loopback in [
            "http://localhost:8285/p",
            "http://127.0.0.1/p",
            "http://[::1]/p",
            "https://localhost/p",
        ] {
            let field = format!("profile=\"{is_loopback}\"");
            check(&[&field], false, Err(Address));
            assert!(read(&fields(&[&field]), true).is_ok(), "{is_loopback}");
        }
        let long = format!("profile=\"https://a.example/{}\"", "a".repeat(BYTES_MAX));
        check(&[&long], false, Err(Address));
    }

    fn fields(values: &[&str]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append("ucp-agent", HeaderValue::from_str(value).expect("a value"));
        }
        headers
    }

    fn check(values: &[&str], loopback: bool, expected: Result<Option<String>, AgentError>) {
        let read = read(&fields(values), loopback);
        let read = read.map(|agent| agent.map(|agent| agent.host.to_string()));
        assert_eq!(read, expected, "{values:?}");
    }
}
