//! A buyer's wallet: a key, and signed transfers (EIP-3009, EIP-712).

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k256::ecdsa::{RecoveryId, Signature, SigningKey, VerifyingKey};
use serde_json::{Value, json};
use sha3::{Digest, Keccak256};

const DOMAIN: &[u8] =
    b"EIP712Domain(string name,string version,uint256 chainId,address verifyingContract)";
const TRANSFER: &[u8] = b"TransferWithAuthorization(address from,address to,uint256 value,uint256 validAfter,uint256 validBefore,bytes32 nonce)";

/// A key for tests only.
#[derive(Clone)]
pub struct Wallet {
    key: SigningKey,
}

/// A transfer as signed by a wallet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Transfer {
    /// The payer.
    pub from: [u8; 20],
    /// The payee.
    pub to: [u8; 20],
    /// The amount, in the token's smallest unit.
    pub value: u64,
    /// Valid after this second.
    pub valid_after: u64,
    /// Valid before this second.
    pub valid_before: u64,
    /// The nonce, unique within this wallet.
    pub nonce: [u8; 32],
}

/// The signing domain: chain and token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenDomain {
    /// The chain id.
    pub chain: u64,
    /// The token.
    pub asset: [u8; 20],
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
}

impl Wallet {
    /// The wallet with a number.
    ///
    /// # Panics
    ///
    /// For zero, which is no key.
    pub fn new(number: u8) -> Wallet {
        let mut secret = [0x42; 32];
        secret[31] = number;
        Wallet {
            key: SigningKey::from_slice(&secret).expect("a number below the order of the curve"),
        }
    }

    /// Its address.
    pub fn address(&self) -> [u8; 20] {
        address(self.key.verifying_key())
    }

    /// A signature of a transfer: 65 bytes.
    pub fn sign(&self, domain: &TokenDomain, transfer: &Transfer) -> [u8; 65] {
        let (signature, id): (Signature, RecoveryId) =
            self.key.sign_prehash_recoverable(&digest(domain, transfer));
        let mut bytes = [0; 65];
        bytes[..64].copy_from_slice(&signature.to_bytes());
        bytes[64] = 27 + id.to_byte();
        bytes
    }

    /// The value of `PAYMENT-SIGNATURE` for an offer (the value of `PAYMENT-REQUIRED`), made at `now` (Unix seconds).
    ///
    /// # Panics
    ///
    /// When it is no offer that this wallet can pay.
    pub fn pay(&self, offer: &str, nonce: [u8; 32], now: u64) -> String {
        let payment = self.payment(&decoded(offer), nonce, now);
        encoded(&payment)
    }

    /// The same before encoding, for a decoded offer.
    ///
    /// # Panics
    ///
    /// When it is no offer that this wallet can pay.
    pub fn payment(&self, offer: &Value, nonce: [u8; 32], now: u64) -> Value {
        let option = &offer["accepts"][0];
        let transfer = Transfer {
            from: self.address(),
            to: bytes(&option["payTo"]),
            value: text(&option["amount"]).parse().expect("an amount"),
            valid_after: 0,
            valid_before: now + option["maxTimeoutSeconds"].as_u64().expect("seconds"),
            nonce,
        };
        self.signed(offer, &transfer)
    }

    /// A payment with exactly this transfer.
    ///
    /// # Panics
    ///
    /// When it is no offer that this wallet can pay.
    pub fn signed(&self, offer: &Value, transfer: &Transfer) -> Value {
        let option = &offer["accepts"][0];
        let signature = self.sign(&TokenDomain::of(option), transfer);
        json!({
            "x402Version": 2,
            "payload": {
                "authorization": {
                    "from": hex(&transfer.from), "to": hex(&transfer.to), "value": transfer.value.to_string(),
                    "validAfter": transfer.valid_after.to_string(), "validBefore": transfer.valid_before.to_string(),
                    "nonce": hex(&transfer.nonce),
                },
                "signature": hex(&signature),
            },
            "resource": offer["resource"],
            "accepted": option,
        })
    }
}

impl TokenDomain {
    /// The domain of a payment option.
    ///
    /// # Panics
    ///
    /// When it names no domain.
    pub fn of(option: &Value) -> TokenDomain {
        let network = text(&option["network"]);
        let chain = network.strip_prefix("eip155:").expect("an EVM chain");
        TokenDomain {
            chain: chain.parse().expect("a number"),
            asset: bytes(&option["asset"]),
            name: text(&option["extra"]["name"]).to_owned(),
            version: text(&option["extra"]["version"]).to_owned(),
        }
    }
}

/// An offer as JSON.
///
/// # Panics
///
/// When it is not an offer.
pub fn decoded(offer: &str) -> Value {
    let json = STANDARD.decode(offer).expect("base64, standard, padded");
    serde_json::from_slice(&json).expect("JSON")
}

/// A payment in its wire format.
pub fn encoded(payment: &Value) -> String {
    STANDARD.encode(payment.to_string())
}

/// The signer of a transfer.
pub(crate) fn signer(
    domain: &TokenDomain,
    transfer: &Transfer,
    signature: &[u8],
) -> Option<[u8; 20]> {
    let (rs, [v]) = signature.split_at_checked(64)? else {
        return None;
    };
    let id = RecoveryId::from_byte(v.checked_sub(27)?)?;
    let signature = Signature::from_slice(rs).ok()?;
    let key = VerifyingKey::recover_from_prehash(&digest(domain, transfer), &signature, id).ok()?;
    Some(address(&key))
}

fn digest(domain: &TokenDomain, transfer: &Transfer) -> [u8; 32] {
    let separator = keccak(&[
        &keccak(&[DOMAIN]),
        &keccak(&[domain.name.as_bytes()]),
        &keccak(&[domain.version.as_bytes()]),
        &word(&domain.chain.to_be_bytes()),
        &word(&domain.asset),
    ]);
    let message = keccak(&[
        &keccak(&[TRANSFER]),
        &word(&transfer.from),
        &word(&transfer.to),
        &word(&transfer.value.to_be_bytes()),
        &word(&transfer.valid_after.to_be_bytes()),
        &word(&transfer.valid_before.to_be_bytes()),
        &transfer.nonce,
    ]);
    keccak(&[&[0x19, 0x01], &separator, &message])
}

fn address(key: &VerifyingKey) -> [u8; 20] {
    let point = key.to_sec1_point(false);
    let hash = keccak(&[&point.as_bytes()[1..]]);
    hash[12..].try_into().expect("20 of 32 bytes")
}

fn keccak(pieces: &[&[u8]]) -> [u8; 32] {
    let mut hash = Keccak256::new();
    pieces.iter().for_each(|piece| hash.update(piece));
    hash.finalize().into()
}

/// Bytes right-aligned in a word of 32.
pub(crate) fn word(bytes: &[u8]) -> [u8; 32] {
    let mut word = [0; 32];
    word[32 - bytes.len()..].copy_from_slice(bytes);
    word
}

/// `0x` and hex digits.
pub fn hex(bytes: &[u8]) -> String {
    format!("0x{:x}", base16ct::HexDisplay(bytes))
}

/// The bytes of `0x` and hex digits.
pub(crate) fn unhex(text: &str) -> Option<Vec<u8>> {
    base16ct::mixed::decode_vec(text.strip_prefix("0x")?).ok()
}

fn bytes<const N: usize>(value: &Value) -> [u8; N] {
    let bytes = unhex(text(value)).expect("hex");
    bytes.try_into().expect("so many bytes")
}

fn text(value: &Value) -> &str {
    value
        .as_str()
        .unwrap_or_else(|| panic!("`{value}` is no text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_the_one_that_the_libraries_of_the_protocol_make() {
        // The well-known development key, with a transfer whose signature was created by a library of the protocol.
        let secret = "0x59c6995e998f97a5a0044966f0945389dc9e86dae88c7a8412f4603b6b78690d";
        let key = SigningKey::from_slice(&unhex(secret).expect("hex")).expect("a key");
        let wallet = Wallet { key };
        let domain = TokenDomain {
            chain: 8453,
            asset: bytes(&json!("0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913")),
            name: "USD Coin".to_owned(),
            version: "2".to_owned(),
        };
        let transfer = Transfer {
            from: wallet.address(),
            to: bytes(&json!("0x90F79bf6EB2c4f870365E785982E1f101E93b906")),
            value: 199_000_000,
            valid_after: 0,
            valid_before: 1_800_000_300,
            nonce: [0x11; 32],
        };
        assert_eq!(
            hex(&wallet.address()),
            "0x70997970c51812dc3a010c7d01b50e0d17dc79c8"
        );
        let signature = wallet.sign(&domain, &transfer);
        assert_eq!(
            hex(&signature),
            "0xcd31279aecf8e20eab93dd6a618106b82be8004ecf313aa2325b90e66333ac6549713316bdbc3fb9ab1319c4149dbd179843016db988672dda70728e7f5c0d281b"
        );
        assert_eq!(
            signer(&domain, &transfer, &signature),
            Some(wallet.address())
        );
    }
}
