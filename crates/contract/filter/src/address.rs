//! Client addresses: the source address of a request, and the address's prefix for rate limits.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// The client address of a request.
///
/// The client address is the connection's address, or, for a connection from a trusted proxy, the address that the proxy reports. IPv4
/// addresses inside IPv6 (`::ffff:a.b.c.d`) are IPv4 addresses here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClientAddress {
    ip: IpAddr,
    is_trusted: bool,
    is_local: bool,
}

impl ClientAddress {
    /// The address of a connection from a client.
    pub fn direct(peer: IpAddr) -> ClientAddress {
        let peer = peer.to_canonical();
        ClientAddress {
            ip: peer,
            is_trusted: false,
            is_local: peer.is_loopback(),
        }
    }

    /// The address of a connection from a trusted proxy, before another address is known.
    pub fn of_proxy(peer: IpAddr) -> ClientAddress {
        ClientAddress {
            is_trusted: true,
            ..ClientAddress::direct(peer)
        }
    }

    /// The address that a trusted proxy reports for a request on the connection. `is_trusted` when the reported address is also a trusted
    /// proxy.
    pub fn reported(self, ip: IpAddr, is_trusted: bool) -> ClientAddress {
        ClientAddress {
            ip: ip.to_canonical(),
            is_trusted,
            is_local: self.is_local,
        }
    }

    /// The address of a connection that a trusted proxy passes on byte by byte: the source in the proxy's PROXY protocol header, if the
    /// header names a source. `is_trusted` when the source is also a trusted proxy. The connection is local only if both the proxy and the
    /// source are local.
    pub fn passed_on(self, source: Option<IpAddr>, is_trusted: bool) -> ClientAddress {
        let client = source.map_or(self, |ip| self.reported(ip, is_trusted));
        ClientAddress {
            is_local: self.is_local && source.is_some_and(|ip| ip.to_canonical().is_loopback()),
            ..client
        }
    }

    /// The address, for logs.
    pub fn ip(&self) -> IpAddr {
        self.ip
    }

    /// The address for rate limits and for providers; `None` for a trusted proxy's address, which many clients may share.
    pub fn limited(&self) -> Option<IpAddr> {
        (!self.is_trusted).then_some(self.ip)
    }

    /// The prefix of [`ClientAddress::limited`].
    pub fn limited_prefix(&self) -> Option<AddressPrefix> {
        self.limited().map(AddressPrefix::of)
    }

    /// Whether the connection comes from this machine. Addresses in header fields are ignored: a proxy that reports addresses ends TLS
    /// itself and is the peer.
    pub fn is_local(&self) -> bool {
        self.is_local
    }
}

/// A client address reduced to the part that a subscriber controls: the whole IPv4 address, the first 64 bits of an IPv6 address.
///
/// An IPv4 address embedded in IPv6 (`::ffff:a.b.c.d`, RFC 4291 section 2.5.5.2) counts as the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressPrefix {
    /// An IPv4 address.
    V4(u32),
    /// The first half of an IPv6 address.
    V6(u64),
}

impl AddressPrefix {
    /// The prefix's unique number.
    pub fn number(self) -> u128 {
        match self {
            AddressPrefix::V4(address) => address.into(),
            AddressPrefix::V6(half) => 1 << 64 | u128::from(half),
        }
    }

    /// The prefix of an address.
    pub fn of(address: IpAddr) -> AddressPrefix {
        match address.to_canonical() {
            IpAddr::V4(address) => AddressPrefix::V4(address.to_bits()),
            IpAddr::V6(address) => AddressPrefix::V6((address.to_bits() >> 64) as u64),
        }
    }
}

impl fmt::Display for AddressPrefix {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            AddressPrefix::V4(bits) => write!(f, "{}/32", Ipv4Addr::from_bits(bits)),
            AddressPrefix::V6(bits) => {
                write!(f, "{}/64", Ipv6Addr::from_bits(u128::from(bits) << 64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ip(text: &str) -> IpAddr {
        text.parse().expect("an address")
    }

    #[test]
    fn an_ipv4_address_inside_ipv6_is_the_ipv4_address() {
        let mapped = ip("::ffff:192.0.2.7");
        for address in [
            ClientAddress::direct(mapped),
            ClientAddress::of_proxy(ip("::1")).reported(mapped, false),
        ] {
            assert_eq!(address.ip(), ip("192.0.2.7"));
            assert_eq!(address.limited(), Some(ip("192.0.2.7")));
        }
        assert!(ClientAddress::direct(ip("::ffff:127.0.0.1")).is_local());
    }

    #[test]
    fn limits_do_not_count_by_a_trusted_address() {
        let proxy = ClientAddress::of_proxy(ip("10.0.0.1"));
        assert_eq!((proxy.limited(), proxy.limited_prefix()), (None, None));
        let inside = proxy.reported(ip("10.0.0.2"), true);
        assert_eq!((inside.ip(), inside.limited()), (ip("10.0.0.2"), None));
        let client = proxy.reported(ip("192.0.2.7"), false);
        let prefix = client.limited_prefix().map(|prefix| prefix.to_string());
        assert_eq!(prefix.as_deref(), Some("192.0.2.7/32"));
    }

    #[test]
    fn a_reported_loopback_address_does_not_make_a_connection_local() {
        let proxy = ClientAddress::of_proxy(ip("10.0.0.1"));
        assert!(!proxy.reported(ip("127.0.0.1"), false).is_local());
        let local = ClientAddress::of_proxy(ip("127.0.0.1"));
        assert!(local.reported(ip("192.0.2.7"), false).is_local());
    }

    #[test]
    fn a_connection_that_is_passed_on_is_local_where_the_proxy_and_the_source_are() {
        //  proxy, source in the PROXY protocol header, whether local
        let cases = [
            ("127.0.0.1", Some("127.0.0.1"), true),
            ("127.0.0.1", Some("::1"), true),
            ("::1", Some("::ffff:127.0.0.1"), true),
            ("127.0.0.1", Some("192.0.2.7"), false),
            ("127.0.0.1", Some("10.0.0.2"), false),
            ("127.0.0.1", None, false),
            ("10.0.0.1", Some("127.0.0.1"), false),
            ("10.0.0.1", None, false),
        ];
        for (proxy, source, is_local) in cases {
            for is_trusted in [false, true] {
                let proxy = ClientAddress::of_proxy(ip(proxy));
                let client = proxy.passed_on(source.map(ip), is_trusted);
                assert_eq!(client.is_local(), is_local, "{proxy:?} {source:?}");
                // Fields behind the header have no effect.
                let reported = client.reported(ip("127.0.0.1"), false);
                assert_eq!(reported.is_local(), is_local, "{proxy:?} {source:?}");
            }
        }
    }

    #[test]
    fn an_address_prefix_covers_one_subscriber() {
        check("192.0.2.7", "192.0.2.7/32");
        check("::ffff:192.0.2.7", "192.0.2.7/32");
        check("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64");
        check("2001:db8:1:2::ffff", "2001:db8:1:2::/64");
    }

    fn check(address: &str, prefix: &str) {
        assert_eq!(AddressPrefix::of(ip(address)).to_string(), prefix);
    }
}
