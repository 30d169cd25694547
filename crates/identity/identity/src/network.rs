//! Networks for the counts of requests.

use std::net::IpAddr;

/// The addresses under one subscriber's control: a name of the kind, and an IPv4 address or the first 64 bits of an IPv6 address.
pub(crate) fn network_of(address: IpAddr) -> (&'static [u8], Vec<u8>) {
    match address.to_canonical() {
        IpAddr::V4(address) => (b"network4", address.octets().to_vec()),
        IpAddr::V6(address) => (b"network6", address.octets()[..8].to_vec()),
    }
}
