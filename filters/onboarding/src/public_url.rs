//! Addresses in public documents.

use std::fmt;
use std::str::FromStr;

use http::Uri;

/// An absolute `http` or `https` address that may stand in a public document.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublicAddress(String);

/// Why a text is no such address. It is not repeated: whoever pastes a secret here would see it in a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum AddressError {
    #[error("does not start with `https://` or `http://`; write the whole address")]
    Scheme,
    #[error("is not an address; write it like `https://example.com/app.apk`")]
    Malformed,
    #[error("names a user; leave that out, everybody can read this document")]
    User,
}

impl FromStr for PublicAddress {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<PublicAddress, AddressError> {
        if !text.starts_with("https://") && !text.starts_with("http://") {
            return Err(AddressError::Scheme);
        }
        let uri: Uri = text.parse().map_err(|_| AddressError::Malformed)?;
        let authority = uri.authority().ok_or(AddressError::Malformed)?;
        if authority.as_str().contains('@') {
            return Err(AddressError::User);
        }
        if authority.host().is_empty() || !text.bytes().all(|byte| byte.is_ascii_graphic()) {
            return Err(AddressError::Malformed);
        }
        Ok(PublicAddress(text.to_owned()))
    }
}

impl fmt::Display for PublicAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// An address as in [`PublicAddress`], or a path of this service: `/sandbox` (RFC 3986 section 4.1).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AddressReference(String);

impl FromStr for AddressReference {
    type Err = AddressError;

    fn from_str(text: &str) -> Result<AddressReference, AddressError> {
        if !text.starts_with('/') {
            return text
                .parse()
                .map(|PublicAddress(text)| AddressReference(text));
        }
        let sound = !text.starts_with("//") && text.bytes().all(|byte| byte.is_ascii_graphic());
        match text.parse::<Uri>() {
            Ok(_) if sound => Ok(AddressReference(text.to_owned())),
            _ => Err(AddressError::Malformed),
        }
    }
}

impl fmt::Display for AddressReference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_whole_and_name_nobody() {
        for (text, expected) in [
            ("https://example.com/app.apk", Ok(())),
            ("http://localhost:8080", Ok(())),
            ("ftp://example.com", Err(AddressError::Scheme)),
            ("example.com", Err(AddressError::Scheme)),
            ("/sandbox", Err(AddressError::Scheme)),
            ("https://", Err(AddressError::Malformed)),
            ("https://exa mple.com", Err(AddressError::Malformed)),
            ("https://user:secret@example.com", Err(AddressError::User)),
        ] {
            assert_eq!(
                text.parse::<PublicAddress>().map(|_| ()),
                expected,
                "{text}"
            );
        }
        for (text, sound) in [
            ("/sandbox", true),
            ("https://play.example.com", true),
            ("//example.com", false),
            ("sandbox", false),
            ("/a b", false),
        ] {
            assert_eq!(text.parse::<AddressReference>().is_ok(), sound, "{text}");
        }
    }
}
