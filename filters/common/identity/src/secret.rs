//! The text of a credential, between its creation and its owner.

use std::fmt;

use zeroize::Zeroizing;

/// The text of a credential. Does not print, and is wiped from memory on drop.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    pub(crate) fn new(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }

    /// The text, to be shown once to its owner.
    pub fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

impl fmt::Display for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_prints_redacted() {
        let secret = Secret::new(String::from("sk-svc-hush"));
        assert_eq!(
            format!("{secret} {secret:?} {:#?}", Some(&secret)),
            "[redacted] [redacted] Some(\n    [redacted],\n)"
        );
        assert_eq!(secret.expose(), "sk-svc-hush");
    }
}
