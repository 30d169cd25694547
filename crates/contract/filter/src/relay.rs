//! The relay request, the servers of relays, and the removal of hop-by-hop fields (RFC 9110 section 7.6.1).

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use http::header::{self, HeaderMap, HeaderName};
use rustls_pki_types::CertificateDer;

use crate::settings::BaseUrl;

/// A request to be relayed as a stream in both directions, without buffering, inspection or charges. Put on the exchange by the deciding
/// filter, in place of a [`crate::Forward`].
#[derive(Clone, Debug)]
pub struct Relay {
    /// The upstream's name in the settings, such as `mcp.general`.
    pub upstream: Arc<str>,
    /// Path and query for the upstream.
    pub target: Box<str>,
    /// The fields for the upstream, complete except for `Host` and the body's framing.
    pub headers: HeaderMap,
    /// The gateway's pseudonym in `Via` (RFC 9110 section 7.6.3).
    pub pseudonym: Arc<str>,
    /// Edits the head of the answer for the client.
    pub head: Option<Arc<dyn RelayedHead>>,
}

/// Edits the forwarded fields of a relayed answer.
pub trait RelayedHead: fmt::Debug + Send + Sync {
    /// Called once, with the fields that are about to be sent.
    fn edit(&self, headers: &mut HeaderMap);
}

/// The servers that requests may be relayed to.
#[derive(Clone, Debug, Default)]
pub struct RelayUpstreams(pub Arc<[Arc<RelayUpstream>]>);

/// A server that requests are relayed to.
#[derive(Clone, PartialEq)]
pub struct RelayUpstream {
    /// The server's name in logs and metrics: the name of its section.
    pub name: Arc<str>,
    /// The server's address.
    pub url: BaseUrl,
    /// The path of the server's endpoint, as written.
    pub path: String,
    /// Roots to trust instead of the system's.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    /// Connect timeout, TLS included.
    pub connect: Duration,
    /// Timeout from the end of a request to the head of its answer.
    pub first_byte: Duration,
    /// Idle timeout within an answer.
    pub idle: Duration,
    /// Timeout of the whole call.
    pub total: Duration,
    /// Connections kept open between calls, by each worker.
    pub connections_idle_max: usize,
}

impl fmt::Debug for RelayUpstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The roots are long, and their number is enough here.
        f.debug_struct("RelayUpstream")
            .field("name", &self.name)
            .field("url", &self.url)
            .field("path", &self.path)
            .field("roots", &self.roots.as_ref().map(Vec::len))
            .field("connect", &self.connect)
            .field("first_byte", &self.first_byte)
            .field("idle", &self.idle)
            .field("total", &self.total)
            .field("connections_idle_max", &self.connections_idle_max)
            .finish()
    }
}

/// Hop-by-hop fields: fields about one connection and not about the message (RFC 9110 section 7.6.1), and fields that earlier programs
/// treated as hop-by-hop.
const HOP_BY_HOP: [HeaderName; 9] = [
    header::CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    header::PROXY_AUTHENTICATE,
    header::PROXY_AUTHORIZATION,
    header::TE,
    header::TRAILER,
    header::TRANSFER_ENCODING,
    header::UPGRADE,
];

/// The end-to-end fields of a message: every field except the hop-by-hop fields and the fields that `Connection` names.
///
/// Fields of the gateway have to be added afterwards: a sender could remove an earlier field by naming the field in `Connection`.
pub fn end_to_end(headers: &HeaderMap) -> HeaderMap {
    let mut kept = headers.clone();
    for value in headers.get_all(header::CONNECTION) {
        for name in value.as_bytes().split(|&byte| byte == b',') {
            if let Ok(name) = HeaderName::from_bytes(name.trim_ascii()) {
                kept.remove(name);
            }
        }
    }
    for name in HOP_BY_HOP {
        kept.remove(name);
    }
    kept
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    #[test]
    fn rfc9110_7_6_1_hop_by_hop_fields_are_not_forwarded() {
        let mut headers = HeaderMap::new();
        for (name, value) in [
            ("connection", "close, X-Private ,,@"),
            ("connection", "mcp-session-id"),
            ("x-private", "1"),
            ("mcp-session-id", "2"),
            ("keep-alive", "timeout=5"),
            ("te", "trailers"),
            ("trailer", "x-late"),
            ("transfer-encoding", "chunked"),
            ("upgrade", "websocket"),
            ("proxy-connection", "close"),
            ("proxy-authorization", "Basic eA=="),
            ("proxy-authenticate", "Basic"),
            ("accept", "application/json"),
            ("accept", "text/event-stream"),
        ] {
            let name = HeaderName::from_static(name);
            headers.append(name, HeaderValue::from_static(value));
        }
        let kept = end_to_end(&headers);
        let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
        assert_eq!(names, ["accept", "accept"], "both values, and nothing else");
    }
}
