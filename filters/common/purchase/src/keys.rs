//! Keys under which a provider does something once.

use std::fmt::Write as _;

use sha2::{Digest, Sha256};

/// 64 hex digits that are the same for the same parts, and for no others.
pub fn key_of(parts: &[&str]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        // With the length before it, so that no two lists of parts read the same.
        digest.update((part.len() as u64).to_be_bytes());
        digest.update(part);
    }
    let mut text = String::with_capacity(64);
    for byte in digest.finalize() {
        let _ = write!(text, "{byte:02x}");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_lists_of_parts_have_one_key() {
        let keys = [key_of(&["ab", "c"]), key_of(&["a", "bc"]), key_of(&["abc"])];
        assert!(keys.iter().all(|key| key.len() == 64));
        assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys[0] != keys[2]);
        assert_eq!(keys[0], key_of(&["ab", "c"]), "the same again");
    }
}
