//! Client address resolution: the client's address for a connection, and for each request on the connection.

use std::net::IpAddr;
use std::sync::Arc;

use http::HeaderMap;
use tollgate_filter::{ApiError, ClientAddress};

use super::forwarded;
use crate::config::TrustedProxies;

/// The origin of a connection.
#[derive(Clone, Debug)]
pub(super) struct Source {
    /// The address from the connection itself.
    client: ClientAddress,
    /// The trusted proxies that report the client of each request; `None`: the fields of a request are not trusted.
    proxies: Option<Arc<TrustedProxies>>,
}

impl Source {
    /// A connection from `peer` to a listener with these trusted proxies.
    pub(super) fn of(peer: IpAddr, proxies: Option<&Arc<TrustedProxies>>) -> Source {
        match proxies.filter(|proxies| proxies.trusts(peer)) {
            Some(proxies) => Source {
                client: ClientAddress::of_proxy(peer),
                proxies: Some(proxies.clone()),
            },
            None => Source {
                client: ClientAddress::direct(peer),
                proxies: None,
            },
        }
    }

    /// This connection after its PROXY protocol header was read.
    ///
    /// A layer 4 proxy adds no fields. The fields on this connection come from the proxy's client, and are trusted if the client is again a
    /// trusted proxy. Without a named client, the fields may be forged.
    pub(super) fn with_proxy_header(self, source: Option<IpAddr>) -> Source {
        let trusts = |proxies: &Arc<TrustedProxies>| source.is_some_and(|ip| proxies.trusts(ip));
        let proxies = self.proxies.filter(trusts);
        Source {
            client: self.client.passed_on(source, proxies.is_some()),
            proxies,
        }
    }

    /// Whether the connection comes from a trusted proxy.
    pub(super) fn is_trusted(&self) -> bool {
        self.proxies.is_some()
    }

    /// The address of the connection, for a request whose head cannot be read.
    pub(super) fn connection(&self) -> ClientAddress {
        self.client
    }

    /// The client address of a request with these fields.
    ///
    /// # Errors
    ///
    /// A refusal where the fields contradict each other.
    pub(super) fn request(&self, headers: &HeaderMap) -> Result<ClientAddress, ApiError> {
        match &self.proxies {
            None => Ok(self.client),
            Some(proxies) => forwarded::client(proxies, self.client, headers),
        }
    }
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;
    use crate::config::ForwardedField;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    /// A request with `X-Forwarded-For: 192.0.2.7` on a connection from `peer`, where 10.0.0.0/8 is trusted.
    fn client(peer: &str, header: Option<Option<&str>>) -> ClientAddress {
        let proxies = Arc::new(TrustedProxies {
            networks: vec!["10.0.0.0/8".parse().expect("a range")],
            forwarded_field: ForwardedField::Either,
            names_field: false,
            proxy_protocol: header.is_some(),
        });
        let mut source = Source::of(ip(peer), Some(&proxies));
        if let Some(reported) = header {
            source = source.with_proxy_header(reported.map(ip));
        }
        let mut headers = HeaderMap::new();
        headers.insert("x-forwarded-for", HeaderValue::from_static("192.0.2.7"));
        source.request(&headers).expect("one field")
    }

    #[test]
    fn fields_are_trusted_only_on_connections_of_trusted_proxies() {
        //  peer, PROXY protocol header, client, counted by limits
        let cases = [
            ("10.0.0.1", None, "192.0.2.7", true),
            ("::ffff:10.0.0.1", None, "192.0.2.7", true),
            ("198.51.100.1", None, "198.51.100.1", true),
            ("::ffff:198.51.100.1", None, "198.51.100.1", true),
            ("10.0.0.1", Some(Some("198.51.100.1")), "198.51.100.1", true),
            ("10.0.0.1", Some(Some("10.0.0.9")), "192.0.2.7", true),
            ("10.0.0.1", Some(None), "10.0.0.1", false),
        ];
        for (peer, header, address, is_limited) in cases {
            let client = client(peer, header);
            assert_eq!(client.ip(), ip(address), "{peer} {header:?}");
            assert_eq!(client.limited().is_some(), is_limited, "{peer} {header:?}");
        }
    }

    #[test]
    fn without_trusted_proxies_no_field_is_read() {
        let source = Source::of(ip("10.0.0.1"), None);
        let mut headers = HeaderMap::new();
        headers.insert("forwarded", HeaderValue::from_static("for=192.0.2.7"));
        let client = source.request(&headers).expect("no field is read");
        assert_eq!(client.limited(), Some(ip("10.0.0.1")));
    }
}
