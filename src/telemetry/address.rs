//! The client's address in the access log.

use std::io::Write;
use std::net::IpAddr;

use tollgate_clock::{Entropy, Timestamp};
use tollgate_filter::{AddressPrefix, ClientAddress};

use super::json::hex;
use crate::config::ClientAddressForm;

const SECS_PER_DAY: i64 = 86_400;

/// Bytes of a hash that are logged.
const HASH_BYTES: usize = 16;

/// How addresses are logged.
pub(super) enum LoggedAddress {
    Whole,
    Prefix,
    /// With a random key for each run of the process. Without the key, a search over every IPv4 address could reverse the hash.
    Hashed([u8; 32]),
    Nothing,
}

impl LoggedAddress {
    pub(super) fn new(form: ClientAddressForm, entropy: &Entropy) -> LoggedAddress {
        match form {
            ClientAddressForm::Whole => LoggedAddress::Whole,
            ClientAddressForm::Prefix => LoggedAddress::Prefix,
            ClientAddressForm::Hashed => LoggedAddress::Hashed(entropy.bytes()),
            ClientAddressForm::None => LoggedAddress::Nothing,
        }
    }

    /// Writes `member` and the address as a string, or writes no member. No character of the address needs an escape.
    #[inline]
    pub(super) fn write(
        &self,
        out: &mut Vec<u8>,
        member: &[u8],
        client: ClientAddress,
        at: Timestamp,
    ) {
        if matches!(self, LoggedAddress::Nothing) {
            return;
        }
        out.extend_from_slice(member);
        out.push(b'"');
        let ip = client.ip();
        let written = match self {
            LoggedAddress::Whole => write!(out, "{ip}"),
            LoggedAddress::Prefix => write!(out, "{}", AddressPrefix::of(ip)),
            LoggedAddress::Hashed(key) => {
                hex(out, &hash(key, ip, at));
                Ok(())
            }
            LoggedAddress::Nothing => Ok(()),
        };
        written.expect("a vector takes whatever is written to it");
        out.push(b'"');
    }
}

/// Equal for equal addresses on a day.
fn hash(key: &[u8; 32], ip: IpAddr, at: Timestamp) -> [u8; HASH_BYTES] {
    let octets = match ip {
        IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
        IpAddr::V6(ip) => ip.octets(),
    };
    let day = at.as_secs().div_euclid(SECS_PER_DAY);
    let mut hasher = blake3::Hasher::new_keyed(key);
    hasher.update(&day.to_be_bytes()).update(&octets);
    let mut hash = [0; HASH_BYTES];
    hasher.finalize_xof().fill(&mut hash);
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logged(address: &LoggedAddress, ip: &str, day: i64) -> String {
        let client = ClientAddress::direct(ip.parse().expect("an address"));
        let mut out = Vec::new();
        address.write(
            &mut out,
            b",\"client_address\":",
            client,
            Timestamp::from_secs(day * SECS_PER_DAY + 5),
        );
        String::from_utf8(out).expect("ASCII")
    }

    #[test]
    fn an_address_is_logged_in_the_configured_form() {
        let entropy = Entropy::seeded(1);
        let of = |form| LoggedAddress::new(form, &entropy);
        let whole = of(ClientAddressForm::Whole);
        let member = |text: &str| format!(",\"client_address\":\"{text}\"");
        assert_eq!(logged(&whole, "192.0.2.7", 1), member("192.0.2.7"));
        assert_eq!(logged(&whole, "::ffff:192.0.2.7", 1), member("192.0.2.7"));
        assert_eq!(logged(&whole, "2001:db8::1", 1), member("2001:db8::1"));
        let prefix = of(ClientAddressForm::Prefix);
        assert_eq!(logged(&prefix, "192.0.2.7", 1), member("192.0.2.7/32"));
        assert_eq!(logged(&prefix, "2001:db8::1", 1), member("2001:db8::/64"));
        assert_eq!(logged(&of(ClientAddressForm::None), "192.0.2.7", 1), "");
    }

    #[test]
    fn hashes_are_equal_for_one_address_one_day_and_one_run_only() {
        let run = |seed| LoggedAddress::new(ClientAddressForm::Hashed, &Entropy::seeded(seed));
        let (one, other) = (run(1), run(2));
        let first = logged(&one, "192.0.2.7", 1);
        assert_eq!(
            first.len(),
            ",\"client_address\":\"\"".len() + 2 * HASH_BYTES
        );
        assert_eq!(logged(&one, "::ffff:192.0.2.7", 1), first);
        assert_ne!(logged(&one, "192.0.2.8", 1), first);
        assert_ne!(logged(&one, "192.0.2.7", 2), first);
        assert_ne!(logged(&other, "192.0.2.7", 1), first);
    }
}
