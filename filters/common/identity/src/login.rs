//! Logins: e-mail addresses and phone numbers in canonical form.

use std::fmt;

use tollgate_store::LoginKind;

/// Maximum length of a path in a message's envelope, without brackets (RFC 5321 section 4.5.3.1.3).
const EMAIL_BYTES_MAX: usize = 254;

/// Maximum length of a local part (RFC 5321 section 4.5.3.1.1).
const LOCAL_BYTES_MAX: usize = 64;

/// Digits of an international number (ITU-T E.164 section 6.2.1).
const PHONE_DIGITS: std::ops::RangeInclusive<usize> = 7..=15;

/// A login in canonical form: equal values reach the same person.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Login {
    kind: LoginKind,
    address: String,
}

/// Why a text is no login.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum LoginError {
    /// Not an e-mail address.
    #[error("`{0}` is not an e-mail address; write it as `name@example.com`")]
    Email(String),
    /// Not a phone number.
    #[error("`{0}` is not a phone number; write it with its country code, as `+4930123456`")]
    Phone(String),
}

impl Login {
    /// An e-mail address in lower case.
    ///
    /// RFC 5321 permits case-sensitive local parts; no mail system in use has them, and two accounts for one mailbox must not exist.
    pub fn email(text: &str) -> Result<Login, LoginError> {
        let address = text.trim().to_lowercase();
        let sound = address.len() <= EMAIL_BYTES_MAX
            && address
                .rsplit_once('@')
                .is_some_and(|(local, domain)| is_local_part(local) && is_domain(domain));
        if !sound {
            return Err(LoginError::Email(text.to_owned()));
        }
        Ok(Login {
            kind: LoginKind::Email,
            address,
        })
    }

    /// A phone number: `+`, country code and number. Spaces, hyphens, dots and brackets between the digits are dropped.
    pub fn phone(text: &str) -> Result<Login, LoginError> {
        let wrong = || LoginError::Phone(text.to_owned());
        let digits = text.trim().strip_prefix('+').ok_or_else(wrong)?;
        let digits: String = digits
            .chars()
            .filter(|character| !matches!(character, ' ' | '-' | '.' | '(' | ')'))
            .collect();
        let sound = PHONE_DIGITS.contains(&digits.len())
            && digits.bytes().all(|digit| digit.is_ascii_digit())
            && !digits.starts_with('0');
        if !sound {
            return Err(wrong());
        }
        Ok(Login {
            kind: LoginKind::Phone,
            address: format!("+{digits}"),
        })
    }

    /// Parses user input: an e-mail address if it has an `@`, otherwise a phone number.
    pub fn read(text: &str) -> Result<Login, LoginError> {
        if text.contains('@') {
            Login::email(text)
        } else {
            Login::phone(text)
        }
    }

    /// A login as stored.
    pub(crate) fn stored(kind: LoginKind, address: &str) -> Option<Login> {
        match kind {
            LoginKind::Email => Login::email(address).ok(),
            LoginKind::Phone => Login::phone(address).ok(),
            _ => None,
        }
    }

    /// The kind of login.
    pub fn kind(&self) -> LoginKind {
        self.kind
    }

    /// The address or number.
    pub fn address(&self) -> &str {
        &self.address
    }
}

impl fmt::Display for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.address)
    }
}

/// A dot-string (RFC 5321 section 4.1.2), with characters beyond ASCII (RFC 6531). Quoted local parts are not supported: they are not in
/// use.
fn is_local_part(local: &str) -> bool {
    local.len() <= LOCAL_BYTES_MAX
        && local.split('.').all(|atom| {
            !atom.is_empty()
                && atom.chars().all(|character| {
                    character.is_alphanumeric() || "!#$%&'*+-/=?^_`{|}~".contains(character)
                })
        })
}

/// At least two labels of letters, digits and inner hyphens.
fn is_domain(domain: &str) -> bool {
    domain.contains('.')
        && domain.split('.').all(|label| {
            !label.is_empty()
                && !label.starts_with('-')
                && !label.ends_with('-')
                && label
                    .chars()
                    .all(|character| character.is_alphanumeric() || character == '-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_addresses_have_one_canonical_form() {
        check(
            Login::email(" Ada.Lovelace+keys@Example.COM\n"),
            "ada.lovelace+keys@example.com",
        );
        check(Login::email("a@b.example"), "a@b.example");
        check(Login::phone("+49 (30) 123-456.7"), "+49301234567");

        fn check(login: Result<Login, LoginError>, address: &str) {
            assert_eq!(login.expect("an address").address(), address);
        }
    }

    #[test]
    fn a_malformed_address_is_rejected() {
        let long = format!("{}@example.com", "a".repeat(65));
        for text in [
            "",
            "@",
            "a@",
            "@b.example",
            "a@localhost",
            "a b@example.com",
            "a@exa mple.com",
            "a@-b.example",
            "a@b..example",
            ".a@b.example",
            "a@b@c.example",
            "a\u{202e}@b.example",
            "a@b.example\0",
            &long,
        ] {
            assert!(Login::email(text).is_err(), "{text:?}");
        }
        for text in [
            "",
            "+",
            "030123456",
            "+0301234567",
            "+123456",
            "+1234567890123456",
            "+49x30123456",
            "4930123456",
        ] {
            assert!(Login::phone(text).is_err(), "{text:?}");
        }
    }
}
