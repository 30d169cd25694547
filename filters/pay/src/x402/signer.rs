//! Signature recovery: the EIP-712 digest of an EIP-3009 transfer, and the address that its signature recovers to.

use k256::ecdsa::{RecoveryId, Signature as Ecdsa, VerifyingKey};
use sha3::{Digest, Keccak256};

use super::amount::Amount;
use super::hex::{Address, Signature, WrittenAddress};
use super::offer::Terms;
use super::payment::Authorization;

/// The type of a signing domain (EIP-712, "Definition of domainSeparator").
const DOMAIN: &[u8] =
    b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)";

/// The type of the transfer (EIP-3009).
const TRANSFER: &[u8] = b"TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)";

/// The chain id of a CAIP-2 name: `eip155:8453` is 8453.
pub fn chain_id(network: &str) -> Option<u64> {
    let digits = network.strip_prefix("eip155:")?;
    let plain = !digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

/// The domain separator of this token on this chain (EIP-712); `None` for a network that is not an EVM chain.
pub(crate) fn domain_separator(terms: &Terms) -> Option<[u8; 32]> {
    let chain = chain_id(&terms.network)?;
    Some(keccak(&[
        &keccak(&[DOMAIN]),
        &keccak(&[terms.asset_name.as_bytes()]),
        &keccak(&[terms.asset_version.as_bytes()]),
        &padded(&chain.to_be_bytes()),
        &padded(terms.asset.address().as_bytes()),
    ]))
}

/// The digest that the wallet signed; `None` for a network that is not an EVM chain.
pub(crate) fn digest(terms: &Terms, authorization: &Authorization) -> Option<[u8; 32]> {
    let separator = domain_separator(terms)?;
    Some(keccak(&[
        &[0x19, 0x01],
        &separator,
        &struct_hash(authorization),
    ]))
}

/// Whether a plain signature is the payer's. `false` proves nothing against it: a contract wallet verifies its own signatures (EIP-1271),
/// and some have 65 bytes.
pub(crate) fn is_by_payer(
    terms: &Terms,
    authorization: &Authorization,
    signature: &Signature,
) -> bool {
    let Some(digest) = digest(terms, authorization) else {
        return false;
    };
    recover(&digest, signature.as_bytes()) == Some(authorization.from)
}

/// Whether an address is in one case, or has a valid case checksum (EIP-55): in any other case a digit is wrong.
pub fn is_plausible(written: &WrittenAddress) -> bool {
    let text = written.to_string();
    let digits = text.trim_start_matches("0x");
    let one_case = |other: fn(&u8) -> bool| !digits.as_bytes().iter().any(other);
    one_case(u8::is_ascii_uppercase)
        || one_case(u8::is_ascii_lowercase)
        || text == checksummed(written.address())
}

/// An address with its case checksum (EIP-55).
pub(crate) fn checksummed(address: Address) -> String {
    let plain = address.to_string();
    let digits = plain.trim_start_matches("0x");
    let hash = keccak(&[digits.as_bytes()]);
    let mut text = String::from("0x");
    for (at, digit) in digits.chars().enumerate() {
        let nibble = hash[at / 2] >> (4 * (1 - at % 2)) & 0xf;
        text.push(match nibble {
            8.. => digit.to_ascii_uppercase(),
            _ => digit,
        });
    }
    text
}

fn struct_hash(authorization: &Authorization) -> [u8; 32] {
    keccak(&[
        &keccak(&[TRANSFER]),
        &padded(authorization.from.as_bytes()),
        &padded(authorization.to.as_bytes()),
        &word(&authorization.value),
        &word(&authorization.valid_after),
        &word(&authorization.valid_before),
        authorization.nonce.as_bytes(),
    ])
}

/// The address that a signature of 65 bytes recovers to.
fn recover(digest: &[u8; 32], signature: &[u8]) -> Option<Address> {
    let (rs, [v]) = signature.split_at_checked(64)? else {
        return None;
    };
    let id = RecoveryId::from_byte(v.checked_sub(27)?)?;
    let signature = Ecdsa::from_slice(rs).ok()?;
    let key = VerifyingKey::recover_from_prehash(digest, &signature, id).ok()?;
    let point = key.to_sec1_point(false);
    // An address is the end of the hash of its public key, without the byte that marks the key's format.
    let hash = keccak(&[point.as_bytes().get(1..)?]);
    Some(Address::from_bytes(hash[12..].try_into().ok()?))
}

fn keccak(pieces: &[&[u8]]) -> [u8; 32] {
    let mut hash = Keccak256::new();
    pieces.iter().for_each(|piece| hash.update(piece));
    hash.finalize().into()
}

fn padded(bytes: &[u8]) -> [u8; 32] {
    let mut word = [0; 32];
    word[32 - bytes.len()..].copy_from_slice(bytes);
    word
}

/// A number of up to 256 bits as a word, accumulated digit by digit.
fn word(amount: &Amount) -> [u8; 32] {
    let mut word = [0u8; 32];
    for digit in amount.to_string().bytes() {
        let mut carry = u32::from(digit - b'0');
        for byte in word.iter_mut().rev() {
            let value = u32::from(*byte) * 10 + carry;
            *byte = (value & 0xff) as u8;
            carry = value >> 8;
        }
    }
    word
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::x402::Nonce;

    /// 32 bytes in hex.
    fn hex(bytes: [u8; 32]) -> String {
        Nonce::from_bytes(bytes).to_string()
    }

    fn terms(network: &str, asset: &str, name: &str) -> Terms {
        Terms {
            network: network.to_owned(),
            asset: asset.parse().expect("an address"),
            asset_name: name.to_owned(),
            asset_version: "2".to_owned(),
            amount: 199_000_000.into(),
            pay_to: "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
                .parse()
                .expect("an address"),
            max_timeout_secs: 300,
        }
    }

    fn base() -> Terms {
        let asset = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913";
        terms("eip155:8453", asset, "USD Coin")
    }

    fn authorization() -> Authorization {
        Authorization {
            from: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
                .parse()
                .expect("an address"),
            to: base().pay_to.address(),
            value: 199_000_000.into(),
            valid_after: 0.into(),
            valid_before: 1_800_000_300.into(),
            nonce: Nonce::from_bytes([0x11; 32]),
        }
    }

    const SIGNATURE: &str = "0xcd31279aecf8e20eab93dd6a618106b82be8004ecf313aa2325b90e66333ac6549713316bdbc3fb9ab1319c4149dbd179843016db988672dda70728e7f5c0d281b";

    #[test]
    fn each_chain_has_its_own_domain() {
        let separator = |terms: &Terms| domain_separator(terms).map(hex);
        assert_eq!(
            separator(&base()).as_deref(),
            Some("0x02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f")
        );
        let sepolia = "0x036CbD53842c5426634e7929541eC2318f3dCF7e";
        assert_eq!(
            separator(&terms("eip155:84532", sepolia, "USDC")).as_deref(),
            Some("0x71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818")
        );
        assert_eq!(separator(&terms("solana:1", sepolia, "USDC")), None);
    }

    #[test]
    fn a_signature_gives_back_the_wallet_that_made_it() {
        assert_eq!(
            hex(struct_hash(&authorization())),
            "0xa6e0268062969046346bb594dc70968e2292598634c5eba04921aa835f0e6ae0"
        );
        assert_eq!(
            digest(&base(), &authorization()).map(hex).as_deref(),
            Some("0xc1c94b345525586965e28a05dad9c9353f2d6c60794e9438c476d0d702c2129c")
        );
        let signature = Signature::read(SIGNATURE).expect("a signature");
        assert!(is_by_payer(&base(), &authorization(), &signature));
        let other = Authorization {
            value: 1.into(),
            ..authorization()
        };
        assert!(!is_by_payer(&base(), &other, &signature));
        let mut name = base();
        name.asset_name = "USDC".to_owned();
        assert!(!is_by_payer(&name, &authorization(), &signature));
        for broken in [
            format!("{}00", &SIGNATURE[..130]),
            format!("{}1c", &SIGNATURE[..130]),
            format!("0x{}1b", "00".repeat(64)),
            format!("{SIGNATURE}00"),
        ] {
            let signature = Signature::read(&broken).expect("of a signature's form");
            assert!(
                !is_by_payer(&base(), &authorization(), &signature),
                "{broken}"
            );
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
            let written = text.parse().expect("an address");
            assert_eq!(is_plausible(&written), good, "{text}");
        }
    }

    #[test]
    fn chains_are_read_and_numbers_become_words() {
        for (text, id) in [
            ("eip155:8453", Some(8453)),
            ("eip155:1", Some(1)),
            ("eip155:", None),
            ("eip155:01", None),
            ("eip155:+1", None),
            ("base", None),
            ("eip155:99999999999999999999", None),
        ] {
            assert_eq!(chain_id(text), id, "{text}");
        }
        assert_eq!(word(&256.into())[30..], [1, 0]);
        let most = "115792089237316195423570985008687907853269984665640564039457584007913129639935";
        assert_eq!(word(&most.parse().expect("a number")), [0xff; 32]);
    }
}
