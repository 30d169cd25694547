//! Fixed-size byte values in wire format: `0x` and hex digits.

use std::fmt;
use std::str::FromStr;

/// A text is not `0x` and the expected number of bytes in hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not `0x` and {} hex digits", .bytes * 2)]
pub struct HexError {
    bytes: usize,
}

/// An address on the chain: 20 bytes. Written in lower case and read in any, since the case is only a checksum (EIP-55) that wallets may
/// omit.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Address([u8; 20]);

/// The nonce of an authorization, unique per wallet: 32 bytes (EIP-3009).
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Nonce([u8; 32]);

macro_rules! hex_value {
    ($name:ident, $bytes:literal) => {
        impl $name {
            /// From its bytes.
            pub const fn from_bytes(bytes: [u8; $bytes]) -> Self {
                Self(bytes)
            }

            /// Its bytes.
            pub const fn as_bytes(&self) -> &[u8; $bytes] {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = HexError;

            fn from_str(text: &str) -> Result<Self, HexError> {
                let mut bytes = [0; $bytes];
                match read(text, &mut bytes) {
                    true => Ok(Self(bytes)),
                    false => Err(HexError { bytes: $bytes }),
                }
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("0x")?;
                self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(self, f)
            }
        }
    };
}

hex_value!(Address, 20);
hex_value!(Nonce, 32);

/// An address in its original spelling. Wallets display that mixed case, which is a checksum of the digits.
#[derive(Clone, Debug)]
pub struct WrittenAddress {
    text: String,
    address: Address,
}

impl WrittenAddress {
    /// The address.
    pub fn address(&self) -> Address {
        self.address
    }
}

impl FromStr for WrittenAddress {
    type Err = HexError;

    fn from_str(text: &str) -> Result<WrittenAddress, HexError> {
        Ok(WrittenAddress {
            address: text.parse()?,
            text: text.to_owned(),
        })
    }
}

impl PartialEq for WrittenAddress {
    fn eq(&self, other: &WrittenAddress) -> bool {
        self.address == other.address
    }
}

impl Eq for WrittenAddress {}

impl fmt::Display for WrittenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// The most bytes of a signature: those of contract wallets are long.
const SIGNATURE_BYTES_MAX: usize = 8 * 1024;

/// Half of the order of secp256k1, rounded down: a signature with a larger `s` is the malleated form of a canonical one (EIP-2).
const HALF_ORDER: [u8; 32] = [
    0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
    0x5d, 0x57, 0x6e, 0x73, 0x57, 0xa4, 0x50, 0x1d, 0xdf, 0xe9, 0x2f, 0x46, 0x68, 0x1b, 0x20, 0xa0,
];

/// A signature: 65 bytes (`r`, `s`, `v`) for a plain wallet, longer for a contract wallet.
///
/// A secret until it is used, since it can move the money: its `Debug` output is redacted.
#[derive(Clone, PartialEq, Eq)]
pub struct Signature(Vec<u8>);

impl Signature {
    /// Parses `0x` and hex digits.
    pub fn read(text: &str) -> Option<Signature> {
        let digits = text.strip_prefix("0x")?;
        let length = digits.len() / 2;
        if !(65..=SIGNATURE_BYTES_MAX).contains(&length) {
            return None;
        }
        let mut bytes = vec![0; length];
        read(text, &mut bytes).then_some(Signature(bytes))
    }

    /// Its bytes.
    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether it is the malleated form of a plain wallet's signature, which the token refuses: `s` in the upper half of the order, or a
    /// recovery id other than 27 and 28.
    pub fn is_malleated(&self) -> bool {
        match &self.0[..] {
            [rs @ .., v] if rs.len() == 64 => rs[32..] > HALF_ORDER[..] || !matches!(v, 27 | 28),
            _ => false,
        }
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature([redacted])")
    }
}

/// Decodes exactly as many bytes as `out` has.
fn read(text: &str, out: &mut [u8]) -> bool {
    let Some(digits) = text.strip_prefix("0x") else {
        return false;
    };
    if digits.len() != out.len() * 2 {
        return false;
    }
    let pairs = digits.as_bytes().chunks_exact(2);
    for (byte, pair) in out.iter_mut().zip(pairs) {
        let digit = |at: u8| (at as char).to_digit(16);
        let (Some(high), Some(low)) = (digit(pair[0]), digit(pair[1])) else {
            return false;
        };
        *byte = (high << 4 | low) as u8;
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;

    const RS: &str = "cd31279aecf8e20eab93dd6a618106b82be8004ecf313aa2325b90e66333ac65";

    #[test]
    fn addresses_are_equal_whatever_their_case_and_nothing_else_is_one() {
        let usdc = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913";
        let read: Address = usdc.parse().expect("an address");
        assert_eq!(usdc.to_lowercase().parse(), Ok(read));
        assert_eq!(read.to_string(), usdc.to_lowercase());
        for text in [
            "",
            "0x",
            &usdc[2..],
            &usdc[..41],
            &format!("{usdc}0"),
            "0X833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
            "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA0291g",
            "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA0291é",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn the_second_form_of_a_signature_is_known() {
        let low = "549713316bdbc3fb9ab1319c4149dbd179843016db988672dda70728e7f5c0d2";
        let high = "b68ecce94243c04654ece63beb6242e7226bdb78f5c0390de561ebfe50da3419";
        for (tail, malleated) in [
            (format!("{low}1b"), false),
            (format!("{low}1c"), false),
            (format!("{high}1c"), true),
            (format!("{low}00"), true),
            (format!("{low}01"), true),
            // A contract wallet defines its own signature format.
            (format!("{high}1cff"), false),
        ] {
            let signature = Signature::read(&format!("0x{RS}{tail}")).expect("a signature");
            assert_eq!(signature.is_malleated(), malleated, "{tail}");
        }
        assert!(
            Signature::read(&format!("0x{RS}{low}")).is_none(),
            "64 bytes"
        );
        assert!(Signature::read(&format!("0x{}", "00".repeat(9000))).is_none());
        let shown = format!("{:?}", Signature::read(&format!("0x{RS}{low}1b")));
        assert!(!shown.contains("205"), "{shown}");
    }
}
