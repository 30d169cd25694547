//! Signed transfers: an EIP-3009 authorization, and its EIP-712 digest.

use crate::amount::Amount;
use crate::bytes::{Address, Nonce, Word};
use crate::signature::Signature;

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

/// The signing domain of a token (EIP-712).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Domain<'a> {
    /// The chain id.
    pub chain: u64,
    /// The contract of the token.
    pub asset: Address,
    /// The token's name.
    pub name: &'a str,
    /// The token's version.
    pub version: &'a str,
}

impl Domain<'_> {
    /// The domain separator (EIP-712), which the token returns as `DOMAIN_SEPARATOR()`.
    pub fn separator(&self) -> Word {
        Word::keccak(&[
            &Word::keccak(&[DOMAIN]).0,
            &Word::keccak(&[self.name.as_bytes()]).0,
            &Word::keccak(&[self.version.as_bytes()]).0,
            &Word::padded(&self.chain.to_be_bytes()).0,
            &Word::padded(&self.asset.0).0,
        ])
    }
}

/// The transfer that a wallet signed (EIP-3009).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorization {
    /// The payer.
    pub from: Address,
    /// The payee.
    pub to: Address,
    /// The amount, in the token's smallest unit.
    pub value: Amount,
    /// The transfer is valid after this second.
    pub valid_after: Amount,
    /// The transfer is valid before this second.
    pub valid_before: Amount,
    /// Unique among the authorizations of the wallet.
    pub nonce: Nonce,
}

impl Authorization {
    /// The digest that the wallet signs (EIP-712).
    pub fn digest(&self, domain: &Domain<'_>) -> Word {
        Word::keccak(&[&[0x19, 0x01], &domain.separator().0, &self.struct_hash().0])
    }

    /// Whether a plain signature is the payer's. `false` does not disprove the signature: a contract wallet verifies its own signatures
    /// (EIP-1271), and some have 65 bytes.
    pub fn is_by_payer(&self, domain: &Domain<'_>, signature: &Signature) -> bool {
        signature.signer(&self.digest(domain)) == Some(self.from)
    }

    fn struct_hash(&self) -> Word {
        Word::keccak(&[
            &Word::keccak(&[TRANSFER]).0,
            &Word::padded(&self.from.0).0,
            &Word::padded(&self.to.0).0,
            &self.value.word().0,
            &self.valid_after.word().0,
            &self.valid_before.word().0,
            &self.nonce.0,
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn domain(chain: u64, asset: &str, name: &'static str) -> Domain<'static> {
        Domain {
            chain,
            asset: asset.parse().expect("an address"),
            name,
            version: "2",
        }
    }

    fn base() -> Domain<'static> {
        let asset = "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913";
        domain(8453, asset, "USD Coin")
    }

    fn authorization() -> Authorization {
        Authorization {
            from: "0x70997970C51812dc3A010C7d01b50e0d17dc79C8"
                .parse()
                .expect("an address"),
            to: "0x90F79bf6EB2c4f870365E785982E1f101E93b906"
                .parse()
                .expect("an address"),
            value: 199_000_000.into(),
            valid_after: 0.into(),
            valid_before: 1_800_000_300.into(),
            nonce: Nonce([0x11; 32]),
        }
    }

    const SIGNATURE: &str = "0xcd31279aecf8e20eab93dd6a618106b82be8004ecf313aa2325b90e66333ac6549713316bdbc3fb9ab1319c4149dbd179843016db988672dda70728e7f5c0d281b";

    #[test]
    fn each_chain_has_its_own_domain() {
        assert_eq!(
            base().separator().to_string(),
            "0x02fa7265e7c5d81118673727957699e4d68f74cd74b7db77da710fe8a2c7834f"
        );
        let sepolia = "0x036CbD53842c5426634e7929541eC2318f3dCF7e";
        assert_eq!(
            domain(84532, sepolia, "USDC").separator().to_string(),
            "0x71f17a3b2ff373b803d70a5a07c046c1a2bc8e89c09ef722fcb047abe94c9818"
        );
    }

    #[test]
    fn a_signature_gives_back_the_wallet_that_made_it() {
        assert_eq!(
            authorization().struct_hash().to_string(),
            "0xa6e0268062969046346bb594dc70968e2292598634c5eba04921aa835f0e6ae0"
        );
        assert_eq!(
            authorization().digest(&base()).to_string(),
            "0xc1c94b345525586965e28a05dad9c9353f2d6c60794e9438c476d0d702c2129c"
        );
        let signature = Signature::read(SIGNATURE).expect("a signature");
        assert!(authorization().is_by_payer(&base(), &signature));
        let other = Authorization {
            value: 1.into(),
            ..authorization()
        };
        assert!(!other.is_by_payer(&base(), &signature));
        let name = Domain {
            name: "USDC",
            ..base()
        };
        assert!(!authorization().is_by_payer(&name, &signature));
        for broken in [
            format!("{}00", &SIGNATURE[..130]),
            format!("{}1c", &SIGNATURE[..130]),
            format!("0x{}1b", "00".repeat(64)),
            format!("{SIGNATURE}00"),
        ] {
            let signature = Signature::read(&broken).expect("of a signature's form");
            assert!(
                !authorization().is_by_payer(&base(), &signature),
                "{broken}"
            );
        }
    }

    #[test]
    fn chains_are_read() {
        for (text, id) in [
            ("eip155:8453", Some(8453)),
            ("eip155:1", Some(1)),
            ("eip155:", None),
            ("eip155:01", None),
            ("eip155:+1", None),
            ("base", None),
            ("solana:1", None),
            ("eip155:99999999999999999999", None),
        ] {
            assert_eq!(chain_id(text), id, "{text}");
        }
    }
}
