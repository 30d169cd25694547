//! Signatures of wallets: canonical form (EIP-2), and recovery of the signer.

use std::fmt;

use base16ct::mixed;
use k256::Scalar;
use k256::ecdsa::{RecoveryId, Signature as Ecdsa, VerifyingKey};
use k256::elliptic_curve::PrimeField;
use k256::elliptic_curve::scalar::IsHigh;

use crate::bytes::{Address, Word};

/// The most bytes of a signature: those of contract wallets are long.
const BYTES_MAX: usize = 8 * 1024;

/// A signature: 65 bytes (`r`, `s`, `v`) for a plain wallet, longer for a contract wallet.
///
/// A secret until used, since a signature can move the money: the `Debug` output is redacted.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Signature(Vec<u8>);

impl Signature {
    /// Parses `0x` and hex digits.
    pub fn read(text: &str) -> Option<Signature> {
        let bytes = mixed::decode_vec(text.strip_prefix("0x")?).ok()?;
        (65..=BYTES_MAX)
            .contains(&bytes.len())
            .then_some(Signature(bytes))
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Whether a plain wallet's signature is malleated and so refused by the token: `s` in the upper half of the order, or a recovery id
    /// other than 27 and 28.
    pub fn is_malleated(&self) -> bool {
        let Ok([rs @ .., v]) = <&[u8; 65]>::try_from(&self.0[..]) else {
            return false;
        };
        let mut s = [0; 32];
        s.copy_from_slice(&rs[32..]);
        let s = Scalar::from_repr(s.into()).into_option();
        s.is_none_or(|s| s.is_high().into()) || !matches!(v, 27 | 28)
    }

    /// The address of the wallet behind a signed digest; `None` for a signature to be verified by a contract wallet (EIP-1271).
    pub fn signer(&self, digest: &Word) -> Option<Address> {
        let (rs, [v]) = self.0.split_at_checked(64)? else {
            return None;
        };
        let id = RecoveryId::from_byte(v.checked_sub(27)?)?;
        let signature = Ecdsa::from_slice(rs).ok()?;
        let key = VerifyingKey::recover_from_prehash(&digest.0, &signature, id).ok()?;
        Some(Address::of(&key))
    }
}

impl fmt::Debug for Signature {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Signature([redacted])")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RS: &str = "cd31279aecf8e20eab93dd6a618106b82be8004ecf313aa2325b90e66333ac65";

    #[test]
    fn the_second_form_of_a_signature_is_known() {
        let low = "549713316bdbc3fb9ab1319c4149dbd179843016db988672dda70728e7f5c0d2";
        let high = "b68ecce94243c04654ece63beb6242e7226bdb78f5c0390de561ebfe50da3419";
        let half = "7fffffffffffffffffffffffffffffff5d576e7357a4501ddfe92f46681b20a";
        for (tail, malleated) in [
            (format!("{low}1b"), false),
            (format!("{low}1c"), false),
            (format!("{high}1c"), true),
            (format!("{low}00"), true),
            (format!("{low}01"), true),
            // Half of the order (EIP-2), and one more; zero, and more than the order.
            (format!("{half}01b"), false),
            (format!("{half}11b"), true),
            (format!("{}1b", "00".repeat(32)), false),
            (format!("{}1b", "ff".repeat(32)), true),
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
        assert!(Signature::read(&format!("0x{RS}{low}1b0")).is_none());
        assert!(Signature::read(&format!("{RS}{low}1b")).is_none());
        assert!(Signature::read(&format!("0x{}", "00".repeat(9000))).is_none());
        let shown = format!("{:?}", Signature::read(&format!("0x{RS}{low}1b")));
        assert!(!shown.contains("205"), "{shown}");
    }
}
