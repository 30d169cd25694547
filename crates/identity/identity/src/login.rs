//! Logins: e-mail addresses and phone numbers in canonical form.

use std::fmt;

use tollgate_store::{LoginKind, Mailbox};

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
    /// An e-mail address in lower case, the domain in A-labels (RFC 5890 section 2.3.2.1): two accounts for one mailbox must not exist.
    ///
    /// RFC 5321 permits case-sensitive local parts; no mail system in use has case-sensitive parts.
    pub fn email(text: &str) -> Result<Login, LoginError> {
        let wrong = || LoginError::Email(text.to_owned());
        let (local, domain) = text.trim().rsplit_once('@').ok_or_else(wrong)?;
        let (local, domain) = (local.to_lowercase(), in_a_labels(domain));
        let address = format!("{local}@{domain}");
        let sound = address.len() <= EMAIL_BYTES_MAX && is_local_part(&local) && is_domain(&domain);
        sound
            .then_some(Login {
                kind: LoginKind::Email,
                address,
            })
            .ok_or_else(wrong)
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

    pub(crate) fn stored(kind: LoginKind, address: &str) -> Option<Login> {
        match kind {
            LoginKind::Email => Login::email(address).ok(),
            LoginKind::Phone => Login::phone(address).ok(),
            _ => None,
        }
    }

    /// The result of `read` for the address, or for the spelling stored by earlier releases.
    pub fn find<T, E>(&self, read: impl Fn(&str) -> Result<Option<T>, E>) -> Result<Option<T>, E> {
        match (read(&self.address)?, self.earlier_spelling()) {
            (None, Some(earlier)) => read(&earlier),
            (found, _) => Ok(found),
        }
    }

    /// The spelling in which releases before stored an address with an internationalized domain.
    fn earlier_spelling(&self) -> Option<String> {
        let (local, domain) = self.address.rsplit_once('@')?;
        let unicode = url::quirks::domain_to_unicode(domain);
        (unicode != domain && !unicode.is_empty()).then(|| format!("{local}@{unicode}"))
    }

    /// The address without its tag, the part of the local part from the first `+` on: addresses with different tags are one mailbox. A
    /// number has no tag.
    pub(crate) fn untagged(&self) -> String {
        let Some((local, domain)) = self.address.rsplit_once('@') else {
            return self.address.clone();
        };
        match local.split_once('+') {
            Some((mailbox, _)) if !mailbox.is_empty() => format!("{mailbox}@{domain}"),
            _ => self.address.clone(),
        }
    }

    /// The mailbox of an e-mail address in each spelling that may be stored; none of a number, and none where a `+` begins the local part, which
    /// has no tag.
    pub(crate) fn mailboxes(&self) -> Vec<Mailbox> {
        let spellings = [Some(self.address.clone()), self.earlier_spelling()];
        let of = |address: String| {
            let (local, domain) = address.rsplit_once('@')?;
            let (local, _) = local.split_once('+').unwrap_or((local, ""));
            (!local.is_empty()).then(|| Mailbox {
                local: local.into(),
                domain: domain.into(),
            })
        };
        spellings.into_iter().flatten().filter_map(of).collect()
    }

    /// The domain of an e-mail address.
    pub(crate) fn domain(&self) -> Option<&str> {
        self.address.rsplit_once('@').map(|(_, domain)| domain)
    }

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

/// A domain in lower case and A-labels (UTS 46); empty for other text.
fn in_a_labels(domain: &str) -> String {
    // The parser of hosts would decode `%`.
    if domain.contains('%') {
        return String::new();
    }
    url::quirks::domain_to_ascii(domain)
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
        for one in [
            "ada@b\u{fc}cher.example",
            "Ada@B\u{dc}CHER.example",
            "ada@bu\u{308}cher.example",
            "ada@xn--bcher-kva.example",
            "ada@XN--BCHER-KVA.Example",
            "ada@b\u{fc}cher\u{3002}example",
            "ada@\u{ff42}\u{fc}cher.example",
        ] {
            check(Login::email(one), "ada@xn--bcher-kva.example");
        }
        check(Login::phone("+49 (30) 123-456.7"), "+49301234567");

        fn check(login: Result<Login, LoginError>, address: &str) {
            assert_eq!(login.expect("an address").address(), address);
        }
    }

    #[test]
    fn an_address_without_its_tag_names_the_mailbox() {
        for (address, mailbox) in [
            ("ada@example.com", "ada@example.com"),
            ("Ada+news@example.com", "ada@example.com"),
            ("ada+a+b@example.com", "ada@example.com"),
            ("+ada@example.com", "+ada@example.com"),
        ] {
            let login = Login::email(address).expect("an address");
            assert_eq!(login.untagged(), mailbox);
        }
        let phone = Login::phone("+49 30 123456").expect("a number");
        assert_eq!((&*phone.untagged(), phone.domain()), ("+4930123456", None));
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
            "a@ex%61mple.com",
            "a@192.0.2.1",
            "a@[192.0.2.1]",
            "a@xn--\u{fc}.example",
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
