//! Derived idempotency keys for calls to a provider.

use sha2::{Digest, Sha256};

/// 64 hex digits: equal for equal parts, different for different parts.
pub fn key_of(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        // Length prefixes: two different lists of parts cannot concatenate to equal bytes.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    base16ct::lower::encode_string(&digest.finalize())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn different_lists_of_parts_have_different_keys() {
        let keys = [key_of(&["ab", "c"]), key_of(&["a", "bc"]), key_of(&["abc"])];
        assert!(keys.iter().all(|key| key.len() == 64));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
        assert_eq!(keys[0], key_of(&["ab", "c"]), "the same again");
    }
}
