//! Byte values of fixed size. Their wire format is `0x` and hex digits.

use std::fmt;
use std::str::FromStr;

use base16ct::{HexDisplay, mixed};
use k256::ecdsa::VerifyingKey;
use sha3::{Digest, Keccak256};

/// A text is not `0x` and the expected number of bytes in hex.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("is not `0x` and {} hex digits", .bytes * 2)]
pub struct HexError {
    bytes: usize,
}

macro_rules! bytes {
    ($($(#[$doc:meta])* $name:ident: $size:literal,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(pub [u8; $size]);

        impl FromStr for $name {
            type Err = HexError;

            fn from_str(text: &str) -> Result<$name, HexError> {
                let mut bytes = [0; $size];
                let digits = text.strip_prefix("0x").unwrap_or_default();
                match mixed::decode(digits, &mut bytes) {
                    Ok(read) if read.len() == $size => Ok($name(bytes)),
                    _ => Err(HexError { bytes: $size }),
                }
            }
        }

        impl fmt::LowerHex for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "{:x}", HexDisplay(&self.0))
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "0x{self:x}")
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, "0x{self:x}")
            }
        }
    )*};
}

bytes! {
    /// An address on the chain. Written in lower case and read in any, since the case is only a checksum (EIP-55) that wallets may omit.
    Address: 20,
    /// The nonce of an authorization, unique per wallet (EIP-3009).
    Nonce: 32,
    /// The hash of a transaction.
    TxHash: 32,
    /// A word of the contract ABI, such as the topic of a log.
    Word: 32,
}

impl Address {
    /// The address of a public key: the end of the key's hash, without the format byte.
    pub fn of(key: &VerifyingKey) -> Address {
        let Word(hash) = Word::keccak(&[&key.to_sec1_point(false).as_bytes()[1..]]);
        let mut bytes = [0; 20];
        bytes.copy_from_slice(&hash[12..]);
        Address(bytes)
    }

    /// In the mixed case that is a checksum of the digits (EIP-55).
    pub fn checksummed(&self) -> String {
        let digits = format!("{self:x}");
        let hash = format!("{:x}", Word::keccak(&[digits.as_bytes()]));
        let cased = digits.chars().zip(hash.chars()).map(|pair| match pair {
            (digit, '8'..) => digit.to_ascii_uppercase(),
            (digit, _) => digit,
        });
        "0x".chars().chain(cased).collect()
    }
}

impl Word {
    /// A number or an address (at most 32 bytes, big-endian): padded with zeros on the left.
    pub fn padded(bytes: &[u8]) -> Word {
        let mut word = [0; 32];
        word[32 - bytes.len()..].copy_from_slice(bytes);
        Word(word)
    }

    pub(crate) fn keccak(pieces: &[&[u8]]) -> Word {
        let mut hash = Keccak256::new();
        pieces.iter().for_each(|piece| hash.update(piece));
        Word(hash.finalize().into())
    }
}

/// An address in original spelling, as displayed by wallets. Not comparable: compare [`WrittenAddress::address`].
#[derive(Clone, Debug)]
pub struct WrittenAddress {
    text: String,
    address: Address,
}

impl WrittenAddress {
    pub fn address(&self) -> Address {
        self.address
    }

    /// Whether the address is in one case, or has a valid case checksum (EIP-55). Otherwise a digit is wrong.
    pub fn is_plausible(&self) -> bool {
        let digits = &self.text[2..];
        digits == digits.to_ascii_lowercase()
            || digits == digits.to_ascii_uppercase()
            || self.text == self.address.checksummed()
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

impl fmt::Display for WrittenAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
            &usdc[..40],
            &format!("{usdc}0"),
            &format!("{usdc}00"),
            "0X833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
            "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA0291g",
            "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA0291é",
        ] {
            assert!(text.parse::<Address>().is_err(), "{text}");
        }
    }

    #[test]
    fn eip_55_an_address_checks_its_digits_by_their_case() {
        for (text, good) in [
            ("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", true),
            ("0x833589fcd6edb6e08f4c7c32d4f71b54bda02913", true),
            ("0x833589FCD6EDB6E08F4C7C32D4F71B54BDA02913", true),
            ("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02914", false),
            ("0x833589FCD6eDb6E08f4c7C32D4f71b54bdA02913", false),
        ] {
            let written: WrittenAddress = text.parse().expect("an address");
            assert_eq!(written.is_plausible(), good, "{text}");
        }
    }
}
