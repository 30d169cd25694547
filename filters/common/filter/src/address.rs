//! Client addresses as rate limits see them.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// A client's address folded to what one subscriber controls: the whole IPv4 address, the first 64 bits of an IPv6 address.
///
/// An IPv4 address written inside IPv6 (`::ffff:a.b.c.d`, RFC 4291 section 2.5.5.2) counts as the IPv4 address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum AddressPrefix {
    /// An IPv4 address.
    V4(u32),
    /// The first half of an IPv6 address.
    V6(u64),
}

impl AddressPrefix {
    /// The prefix an address belongs to.
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

    #[test]
    fn addresses_fold_to_what_one_subscriber_controls() {
        check("192.0.2.7", "192.0.2.7/32");
        check("::ffff:192.0.2.7", "192.0.2.7/32");
        check("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64");
        check("2001:db8:1:2::ffff", "2001:db8:1:2::/64");
    }

    fn check(address: &str, prefix: &str) {
        let address: IpAddr = address.parse().expect("an address");
        assert_eq!(AddressPrefix::of(address).to_string(), prefix);
    }
}
