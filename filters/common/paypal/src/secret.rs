//! Secret text.

use std::fmt;

use zeroize::Zeroizing;

/// A secret text: prints as `[redacted]`, and is wiped when dropped.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Wraps a text.
    pub fn new(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }

    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("[redacted]")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_does_not_print() {
        let secret = Secret::new(String::from("EFxample"));
        assert_eq!(format!("{secret:?}"), "[redacted]");
        assert_eq!(secret.expose(), "EFxample");
    }
}
