//! Keys of the sign-in, one for each purpose, derived from the store's root secret.

use std::fmt;
use std::net::IpAddr;

use hmac::{Hmac, KeyInit, Mac};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use tollgate_money::AccountId;
use tollgate_store::{LoginCodeId, LoginKind, MessageId, RootSecret};
use zeroize::Zeroizing;

use crate::login::Login;
use crate::network::network_of;
use crate::session::SessionValue;

/// Bytes of a form token.
const TOKEN_BYTES: usize = 16;

/// Keys of forms, codes, counters and messages. HMAC-SHA256 (RFC 2104) throughout.
#[derive(Clone)]
pub struct SigninKeys {
    forms: Key,
    codes: Key,
    counters: Key,
    messages: Key,
}

type Key = Zeroizing<[u8; 32]>;

impl SigninKeys {
    /// Derives the keys of a store.
    pub fn of(root: &RootSecret) -> SigninKeys {
        let key = |purpose: &str| {
            Zeroizing::new(mac(&root.0, &[b"tollgate signin ", purpose.as_bytes()]))
        };
        SigninKeys {
            forms: key("forms"),
            codes: key("codes"),
            counters: key("counters"),
            messages: key("messages"),
        }
    }

    /// The anti-forgery token in every form of a session: 32 hex digits.
    pub fn form_token(&self, session: &SessionValue) -> String {
        base16ct::lower::encode_string(
            &mac(&*self.forms, &[session.expose().as_bytes()])[..TOKEN_BYTES],
        )
    }

    /// Whether a token is the session's, in constant time.
    pub fn is_form_token(&self, session: &SessionValue, token: &str) -> bool {
        let own = self.form_token(session);
        own.as_bytes().ct_eq(token.as_bytes()).into()
    }

    /// The stored digest of a code.
    pub(super) fn code_hash(&self, id: LoginCodeId, code: &str) -> [u8; 32] {
        mac(&*self.codes, &[&id.0, code.as_bytes()])
    }

    /// Encrypts or decrypts the code of a message: a code is never stored in plain text.
    pub(super) fn seal(&self, id: MessageId, text: &[u8]) -> Vec<u8> {
        let pad = mac(&*self.messages, &[&id.0]);
        debug_assert!(text.len() <= pad.len(), "a code is shorter than a digest");
        text.iter().zip(pad).map(|(byte, pad)| byte ^ pad).collect()
    }

    /// The keys of a source of requests about an address: a network or a browser.
    pub(super) fn source(&self, login: &Login, source: Source<'_>) -> SourceKeys {
        let (kind, bytes): (&[u8], Vec<u8>) = match source {
            Source::Network(Some(network)) => network_of(network),
            // Clients without an address count together.
            Source::Network(None) => (b"network", Vec::new()),
            Source::Browser(mark) => (b"browser", mark.to_vec()),
        };
        let key = |what: &[u8]| {
            mac(
                &*self.counters,
                &[what, kind, &bytes, login.address().as_bytes()],
            )
        };
        SourceKeys {
            sends: key(b"sends"),
            failures: key(b"failures"),
            sign_ins: key(b"sign-ins"),
        }
    }

    /// Counter key for failures of all unknown sources: of the account, or of the address without an account.
    pub(super) fn failures_of(&self, account: Option<AccountId>, login: &Login) -> [u8; 32] {
        match account {
            Some(account) => mac(&*self.counters, &[b"account", account.as_bytes()]),
            None => mac(&*self.counters, &[b"nobody", login.address().as_bytes()]),
        }
    }

    /// Counter key for codes sent to an address for all unknown sources.
    pub(super) fn sends_to(&self, login: &Login) -> [u8; 32] {
        mac(&*self.counters, &[b"address", login.address().as_bytes()])
    }

    /// What sendings asked for from a network are counted by: an address of IPv4, 64 bits of IPv6.
    pub(super) fn sends_from(&self, network: IpAddr) -> [u8; 32] {
        let (kind, bytes) = network_of(network);
        mac(&*self.counters, &[kind, &bytes])
    }

    /// Key of the signup credits of a mailbox or a number.
    pub(super) fn grant_to(&self, login: &Login) -> [u8; 32] {
        mac(&*self.counters, &[b"grant", login.untagged().as_bytes()])
    }

    /// Counter key for signup credits to one network.
    pub(super) fn grants_from(&self, network: IpAddr) -> [u8; 32] {
        let (kind, bytes) = network_of(network);
        mac(&*self.counters, &[b"grants", kind, &bytes])
    }

    /// Counter key for signup credits to one domain; `None` for a number.
    pub(super) fn grants_at(&self, login: &Login) -> Option<[u8; 32]> {
        let domain = login.domain()?;
        Some(mac(
            &*self.counters,
            &[b"grants", b"domain", domain.as_bytes()],
        ))
    }

    /// Counter key for messages to a country; `None` unless a phone number.
    pub(super) fn sends_to_country(&self, login: &Login) -> Option<[u8; 32]> {
        let digits = login.address().strip_prefix('+')?;
        (login.kind() == LoginKind::Phone).then(|| {
            mac(
                &*self.counters,
                &[b"country", calling_code(digits).as_bytes()],
            )
        })
    }
}

/// A source of requests about an address.
#[derive(Clone, Copy)]
pub(super) enum Source<'a> {
    /// An IPv4 address, or 64 bits of an IPv6 address; `None` for a client without an address.
    Network(Option<IpAddr>),
    /// A browser, by the digest of its mark.
    Browser(&'a [u8; 32]),
}

/// The counter keys of a source and an address.
pub(super) struct SourceKeys {
    /// Of codes sent.
    pub(super) sends: [u8; 32],
    /// Of wrong codes.
    pub(super) failures: [u8; 32],
    /// Key for the record of a successful sign-in.
    pub(super) sign_ins: [u8; 32],
}

impl fmt::Debug for SigninKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigninKeys([redacted])")
    }
}

/// The country code of an international number: one to three digits (ITU-T E.164, annex of assigned codes).
fn calling_code(digits: &str) -> &str {
    const OF_TWO: [&str; 44] = [
        "20", "27", "30", "31", "32", "33", "34", "36", "39", "40", "41", "43", "44", "45", "46",
        "47", "48", "49", "51", "52", "53", "54", "55", "56", "57", "58", "60", "61", "62", "63",
        "64", "65", "66", "81", "82", "84", "86", "90", "91", "92", "93", "94", "95", "98",
    ];
    let length = match digits.get(..2) {
        _ if digits.starts_with(['1', '7']) => 1,
        Some(two) if OF_TWO.contains(&two) => 2,
        _ => 3,
    };
    digits.get(..length).unwrap_or(digits)
}

fn mac(key: &[u8], parts: &[&[u8]]) -> [u8; 32] {
    let mut mac = Hmac::<Sha256>::new_from_slice(key).expect("HMAC takes keys of any length");
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part);
    }
    mac.finalize().into_bytes().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys() -> SigninKeys {
        SigninKeys::of(&RootSecret([7; 32]))
    }

    #[test]
    fn a_token_belongs_to_one_session() {
        let keys = keys();
        let one = SessionValue::draw(|out| out.fill(1));
        let other = SessionValue::draw(|out| out.fill(2));
        let token = keys.form_token(&one);
        assert!(keys.is_form_token(&one, &token));
        for wrong in ["", &token[1..], &keys.form_token(&other)] {
            assert!(!keys.is_form_token(&one, wrong), "{wrong}");
        }
    }

    #[test]
    fn a_sealed_code_opens_only_with_its_own_message() {
        let keys = keys();
        let sealed = keys.seal(MessageId([1; 16]), b"12345678");
        assert_ne!(sealed, b"12345678");
        assert_eq!(keys.seal(MessageId([1; 16]), &sealed), b"12345678");
        assert_ne!(keys.seal(MessageId([2; 16]), &sealed), b"12345678");
    }

    #[test]
    fn a_number_belongs_to_one_country_code() {
        for (digits, code) in [
            ("14155550123", "1"),
            ("79161234567", "7"),
            ("4930123456", "49"),
            ("442071838750", "44"),
            ("353861234567", "353"),
            ("886912345678", "886"),
        ] {
            assert_eq!(calling_code(digits), code);
        }
    }

    #[test]
    fn networks_are_addresses_of_ipv4_and_half_addresses_of_ipv6() {
        let keys = keys();
        let key = |text: &str| keys.sends_from(text.parse().expect("an address"));
        assert_eq!(key("2001:db8::1"), key("2001:db8::2"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
    }
}
