//! A buyer's wallet: a key, and signed transfers (EIP-3009, EIP-712).

use base16ct::HexDisplay;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use k256::ecdsa::SigningKey;
use serde_json::{Value, json};
use tollgate_evm::{Address, Authorization, Domain, Nonce, chain_id};

/// A key for tests only.
#[derive(Clone)]
pub struct Wallet {
    key: SigningKey,
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
    pub fn address(&self) -> Address {
        Address::of(self.key.verifying_key())
    }

    /// A signature of a transfer in its wire format.
    fn sign(&self, domain: &Domain<'_>, transfer: &Authorization) -> String {
        let digest = transfer.digest(domain);
        let (signature, id) = self.key.sign_prehash_recoverable(&digest.0);
        let v = 27 + id.to_byte();
        format!("0x{:x}{v:x}", HexDisplay(&signature.to_bytes()))
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
        let ends = now + option["maxTimeoutSeconds"].as_u64().expect("seconds");
        let transfer = Authorization {
            from: self.address(),
            to: text(&option["payTo"]).parse().expect("an address"),
            value: text(&option["amount"]).parse().expect("an amount"),
            valid_after: 0.into(),
            valid_before: ends.into(),
            nonce: Nonce(nonce),
        };
        self.signed(offer, &transfer)
    }

    /// A payment with exactly this transfer.
    ///
    /// # Panics
    ///
    /// When it is no offer that this wallet can pay.
    pub fn signed(&self, offer: &Value, transfer: &Authorization) -> Value {
        let option = &offer["accepts"][0];
        let domain = domain(option).expect("the domain of a token");
        json!({
            "x402Version": 2,
            "payload": {
                "authorization": {
                    "from": transfer.from.to_string(), "to": transfer.to.to_string(), "value": transfer.value.to_string(),
                    "validAfter": transfer.valid_after.to_string(), "validBefore": transfer.valid_before.to_string(),
                    "nonce": transfer.nonce.to_string(),
                },
                "signature": self.sign(&domain, transfer),
            },
            "resource": offer["resource"],
            "accepted": option,
        })
    }
}

/// The signing domain of a payment option.
pub(crate) fn domain(option: &Value) -> Option<Domain<'_>> {
    Some(Domain {
        chain: chain_id(option["network"].as_str()?)?,
        asset: option["asset"].as_str()?.parse().ok()?,
        name: option["extra"]["name"].as_str()?,
        version: option["extra"]["version"].as_str()?,
    })
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
        let secret: tollgate_evm::Word = secret.parse().expect("32 bytes");
        let key = SigningKey::from_slice(&secret.0).expect("a key");
        let wallet = Wallet { key };
        let domain = Domain {
            chain: 8453,
            asset: "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913"
                .parse()
                .expect("an address"),
            name: "USD Coin",
            version: "2",
        };
        let transfer = Authorization {
            from: wallet.address(),
            to: crate::facilitator::merchant(),
            value: 199_000_000.into(),
            valid_after: 0.into(),
            valid_before: 1_800_000_300.into(),
            nonce: Nonce([0x11; 32]),
        };
        assert_eq!(
            wallet.address().to_string(),
            "0x70997970c51812dc3a010c7d01b50e0d17dc79c8"
        );
        assert_eq!(
            wallet.sign(&domain, &transfer),
            "0xcd31279aecf8e20eab93dd6a618106b82be8004ecf313aa2325b90e66333ac6549713316bdbc3fb9ab1319c4149dbd179843016db988672dda70728e7f5c0d281b"
        );
    }
}
