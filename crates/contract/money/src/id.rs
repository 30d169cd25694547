//! Ids: UUIDs of version 7 (RFC 9562 section 5.7), sorted by creation time.

use std::fmt;
use std::str::FromStr;

use tollgate_clock::{Entropy, Timestamp};
use uuid::Uuid;

/// Why a text is no valid id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not an id; it looks like `{prefix}` and 32 hex digits")]
pub struct IdError {
    text: String,
    prefix: &'static str,
}

/// The longest prefix, in bytes.
const PREFIX_BYTES_MAX: usize = 9;

/// Capacity for the text form of any id.
#[derive(Clone, Copy, Debug)]
pub struct IdText([u8; PREFIX_BYTES_MAX + uuid::fmt::Simple::LENGTH]);

impl Default for IdText {
    fn default() -> IdText {
        IdText([0; PREFIX_BYTES_MAX + uuid::fmt::Simple::LENGTH])
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident, $prefix:literal) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Uuid);

        impl $name {
            /// The prefix of the text form.
            pub const PREFIX: &'static str = $prefix;

            /// An id from its 16 bytes.
            pub const fn from_bytes(bytes: [u8; 16]) -> Self {
                Self(Uuid::from_bytes(bytes))
            }

            /// An id of version 7 from milliseconds since 1970 and ten random bytes (RFC 9562 section 5.7).
            pub fn from_parts(unix_ms: u64, random: [u8; 10]) -> Self {
                Self(uuid::Builder::from_unix_timestamp_millis(unix_ms, &random).into_uuid())
            }

            /// The 16 bytes, as they are stored.
            pub const fn as_bytes(&self) -> &[u8; 16] {
                self.0.as_bytes()
            }
        }

        impl $name {
            /// The display form of the id, written into a buffer.
            pub fn text(self, buffer: &mut IdText) -> &str {
                const DIGITS: usize = $prefix.len();
                const END: usize = DIGITS + uuid::fmt::Simple::LENGTH;
                buffer.0[..DIGITS].copy_from_slice($prefix.as_bytes());
                self.0.simple().encode_lower(&mut buffer.0[DIGITS..END]);
                std::str::from_utf8(&buffer.0[..END]).expect("a word and hex digits are ASCII")
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(self.text(&mut IdText::default()))
            }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                text.strip_prefix($prefix)
                    .filter(|hex| hex.len() == uuid::fmt::Simple::LENGTH)
                    .and_then(|hex| Uuid::try_parse(hex).ok())
                    .map(Self)
                    .ok_or_else(|| IdError { text: text.to_owned(), prefix: $prefix })
            }
        }
    };
}

/// The ids that start with their creation time, so that later ones sort later.
macro_rules! generated {
    ($($name:ident)*) => {
        $(impl $name {
            /// A new id.
            pub fn generate(at: Timestamp, entropy: &Entropy) -> Self {
                Self::from_parts(at.as_millis().unsigned_abs(), entropy.bytes())
            }
        })*
    };
}

impl OperationId {
    /// When the operation began, to the millisecond.
    pub fn began_at(self) -> Timestamp {
        let mut millis = [0; 8];
        millis[2..].copy_from_slice(&self.as_bytes()[..6]);
        Timestamp::from_micros(i64::from_be_bytes(millis) * 1_000)
    }
}

generated! { AccountId OperationId TopUpId SubscriptionId PaymentId MandateId }

id! {
    /// One account. The text form, `acct_` and 32 hex digits, is its public id.
    AccountId, "acct_"
}

id! {
    /// One billable request: the id of its hold, its ledger entries, its usage record, and, as `req_` and 32 hex digits, the `x-request-id`
    /// of its response.
    OperationId, "req_"
}

id! {
    /// One credit purchase. The text form, `topup_` and 32 hex digits, is sent to the payment provider.
    TopUpId, "topup_"
}

id! {
    /// An account's subscription to the plan. The text form is `sub_` and 32 hex digits.
    SubscriptionId, "sub_"
}

id! {
    /// One payment for the plan. The text form is `pay_` and 32 hex digits.
    PaymentId, "pay_"
}

id! {
    /// One mandate: permission for recurring charges. The text form, `mandate_` and 32 hex digits, is sent to the payment provider.
    MandateId, "mandate_"
}

id! {
    /// One checkout. It is fully random, without a time: its text form, `checkout_` and 32 hex digits, is part of URLs.
    CheckoutId, "checkout_"
}

id! {
    /// One credential; public, unlike its secret. The text form is 32 hex digits.
    CredentialId, ""
}

id! {
    /// One grant: access a person has given an OAuth client, and the head of its token family. The text form is 32 hex digits.
    GrantId, ""
}

id! {
    /// One login: an address for signing in to an account. The text form is 32 hex digits.
    LoginId, ""
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_print_and_read_back_and_sort_by_time() {
        let early = OperationId::from_parts(1, [0xff; 10]);
        let late = OperationId::from_parts(2, [0; 10]);
        assert!(early < late, "an id made later sorts later");
        let text = early.to_string();
        assert_eq!(text.len(), 36);
        assert_eq!(text.parse(), Ok(early));
        assert!("acct_00".parse::<AccountId>().is_err());
        assert!(
            text.parse::<AccountId>().is_err(),
            "the prefix is part of the id"
        );
    }
}
