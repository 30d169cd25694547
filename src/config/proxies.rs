//! The trusted proxies in front of a listener: their addresses, and how they report the client's.

use std::net::IpAddr;
use std::str::FromStr;

use ipnet::{IpNet, Ipv4Net};
use tollgate_filter::settings::Words;

/// The proxies that a listener trusts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrustedProxies {
    /// Their addresses; never empty.
    pub networks: Vec<Network>,
    /// The header field in which the proxies report the client.
    pub forwarded_field: ForwardedField,
    /// Whether the settings name the field, or the default applies.
    pub names_field: bool,
    /// Whether every connection starts with a header of the PROXY protocol.
    pub proxy_protocol: bool,
}

impl TrustedProxies {
    /// Whether an address belongs to a trusted proxy.
    pub fn trusts(&self, address: IpAddr) -> bool {
        let address = address.to_canonical();
        self.networks.iter().any(|one| one.0.contains(&address))
    }
}

/// The header field by which trusted proxies report the client.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ForwardedField {
    /// Either field. If both are present and report different clients, the request is refused: a client may have sent one of the fields.
    #[default]
    Either,
    /// `X-Forwarded-For` alone.
    XForwardedFor,
    /// `Forwarded` alone (RFC 7239).
    Forwarded,
    /// No field: layer 4 proxies, which do not read header fields.
    None,
}

impl Words for ForwardedField {
    const WORDS: &'static [(&'static str, ForwardedField)] = &[
        ("either", ForwardedField::Either),
        ("x-forwarded-for", ForwardedField::XForwardedFor),
        ("forwarded", ForwardedField::Forwarded),
        ("none", ForwardedField::None),
    ];
}

/// A range of addresses, `10.0.0.0/8` or `2001:db8::/32`, or one address. An IPv4-mapped IPv6 address counts as IPv4.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Network(IpNet);

/// Why a text is no range of trusted addresses.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NetworkError {
    /// Neither a range nor an address.
    #[error("is `{0}`; write a range such as `10.0.0.0/8`, or an address")]
    Unreadable(String),
    /// The address has bits set beyond its prefix.
    #[error("is `{written}`, which begins at `{start}`; write `{start}`")]
    NotItsStart {
        /// The text as given.
        written: String,
        /// The enclosing range.
        start: IpNet,
    },
    /// All addresses, of IPv6 or of IPv4.
    #[error("is `{0}`, which trusts every client; name the addresses of the proxies")]
    All(String),
}

impl FromStr for Network {
    type Err = NetworkError;

    fn from_str(text: &str) -> Result<Network, NetworkError> {
        let address = text.parse::<IpAddr>().map(IpNet::from);
        let written = address.or_else(|_| text.parse::<IpNet>());
        let written = written.map_err(|_| NetworkError::Unreadable(text.to_owned()))?;
        let start = written.trunc();
        if start != written {
            return Err(NetworkError::NotItsStart {
                written: text.to_owned(),
                start,
            });
        }
        let network = canonical(start);
        if network.prefix_len() == 0 {
            return Err(NetworkError::All(text.to_owned()));
        }
        Ok(Network(network))
    }
}

/// A range of IPv4-mapped IPv6 addresses (RFC 4291 section 2.5.5.2) as a range of IPv4.
fn canonical(network: IpNet) -> IpNet {
    let bits_before = 96;
    if let (IpAddr::V4(start), IpNet::V6(network)) = (network.addr().to_canonical(), network)
        && let Some(bits) = network.prefix_len().checked_sub(bits_before)
        && let Ok(network) = Ipv4Net::new(start, bits)
    {
        return IpNet::V4(network);
    }
    network
}

#[cfg(test)]
mod tests {
    use super::*;

    fn trusts(networks: &[&str], address: &str) -> bool {
        let networks = networks.iter().map(|text| text.parse().expect("a range"));
        let proxies = TrustedProxies {
            networks: networks.collect(),
            forwarded_field: ForwardedField::Either,
            names_field: false,
            proxy_protocol: false,
        };
        proxies.trusts(address.parse().expect("an address"))
    }

    #[test]
    fn addresses_are_trusted_by_range_and_ipv4_inside_ipv6_is_ipv4() {
        //      ranges, address, trusted
        let cases: [(&[&str], &str, bool); 13] = [
            (&["10.0.0.0/8"], "10.255.255.255", true),
            (&["10.0.0.0/8"], "11.0.0.0", false),
            (&["10.0.0.0/8"], "::ffff:10.1.2.3", true),
            (&["10.0.0.0/8"], "2001:db8::1", false),
            (&["10.0.0.7"], "10.0.0.7", true),
            (&["10.0.0.7"], "10.0.0.8", false),
            (&["::ffff:10.0.0.0/104"], "10.1.2.3", true),
            (&["::ffff:10.0.0.0/104"], "11.1.2.3", false),
            (&["::ffff:10.0.0.7"], "10.0.0.7", true),
            (&["2001:db8::/32"], "2001:db8:ffff::1", true),
            (&["2001:db8::/32"], "2001:db9::1", false),
            (&["::1"], "::1", true),
            (&["192.0.2.0/24", "::1"], "192.0.2.9", true),
        ];
        for (networks, address, trusted) in cases {
            assert_eq!(trusts(networks, address), trusted, "{networks:?} {address}");
        }
    }

    #[test]
    fn invalid_ranges_are_refused_with_a_remedy() {
        for (text, expected) in [
            (
                "proxy.example",
                "is `proxy.example`; write a range such as `10.0.0.0/8`, or an address",
            ),
            (
                "10.0.0.0/33",
                "is `10.0.0.0/33`; write a range such as `10.0.0.0/8`, or an address",
            ),
            (
                "10.0.0.5/8",
                "is `10.0.0.5/8`, which begins at `10.0.0.0/8`; write `10.0.0.0/8`",
            ),
            (
                "0.0.0.0/0",
                "is `0.0.0.0/0`, which trusts every client; name the addresses of the proxies",
            ),
            (
                "::/0",
                "is `::/0`, which trusts every client; name the addresses of the proxies",
            ),
            (
                "::ffff:0:0/96",
                "is `::ffff:0:0/96`, which trusts every client; name the addresses of the proxies",
            ),
        ] {
            let error = text.parse::<Network>().expect_err(text);
            assert_eq!(error.to_string(), expected);
        }
    }
}
