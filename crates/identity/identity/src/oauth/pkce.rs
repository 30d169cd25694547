//! Proof key for code exchange (PKCE, RFC 7636).

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use sha2::{Digest as _, Sha256};
use subtle::ConstantTimeEq as _;

/// Length of a SHA-256 in base64url without padding.
const CHALLENGE_CHARS: usize = 43;

/// Length of a verifier (RFC 7636 section 4.1).
const VERIFIER_CHARS: std::ops::RangeInclusive<usize> = 43..=128;

/// A challenge with the method `S256`: `BASE64URL(SHA256(verifier))`, 43 characters (RFC 7636 section 4.2). No other method is supported.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Challenge(Arc<str>);

impl Challenge {
    /// Parses a challenge; `None` for a text other than SHA-256.
    pub fn parse(text: &str) -> Option<Challenge> {
        let sound = text.len() == CHALLENGE_CHARS
            && text
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        sound.then(|| Challenge(text.into()))
    }

    /// The text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is the challenge of `verifier`, compared in constant time. A malformed verifier is rejected before hashing.
    pub fn is_met_by(&self, verifier: &str) -> bool {
        let sound = VERIFIER_CHARS.contains(&verifier.len())
            && verifier
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-._~".contains(&byte));
        sound && {
            let made = URL_SAFE_NO_PAD.encode(Sha256::digest(verifier));
            made.as_bytes().ct_eq(self.0.as_bytes()).into()
        }
    }
}

impl From<Challenge> for Arc<str> {
    fn from(challenge: Challenge) -> Arc<str> {
        challenge.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc7636_b_a_verifier_matches_only_its_own_challenge() {
        let many_a = "A".repeat(43);
        let many_tildes = "~".repeat(128);
        let known = [
            (
                "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk",
                "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM",
            ),
            (
                "tollgate-docs-verifier-0123456789-abcdefghijkl",
                "BEZww3Pk0tfavBNdo4MLIiAg0bPeUhK4SvUXo7QpYUY",
            ),
            (&*many_a, "DwBzhbb51LfusnSGBa_hqYSgo7-j8BTQnip4TOnlzRo"),
            (&*many_tildes, "zNhOm5Jyonenca7bQzzpjUpwFDVrfhrbbOGCqgWA6HU"),
        ];
        for (verifier, challenge) in known {
            let challenge = Challenge::parse(challenge).expect("a challenge");
            for (other, _) in known {
                assert_eq!(challenge.is_met_by(other), other == verifier, "{other}");
            }
        }
    }

    #[test]
    fn malformed_verifiers_and_challenges_are_rejected() {
        for verifier in [
            "A".repeat(42),
            "A".repeat(129),
            format!("{}+", "A".repeat(42)),
            format!("{}é", "A".repeat(42)),
            String::new(),
        ] {
            // The challenge of its digest.
            let made = URL_SAFE_NO_PAD.encode(Sha256::digest(&verifier));
            let challenge = Challenge::parse(&made).expect("a challenge");
            assert!(!challenge.is_met_by(&verifier), "{verifier}");
        }
        for text in [
            "",
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-c",
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw-cM=",
            "E9Melhoa2OwvFrEMTJguCHaoeK1t8URWbuGJSstw+cM",
        ] {
            assert!(Challenge::parse(text).is_none(), "{text:?}");
        }
    }
}
