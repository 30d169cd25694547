//! The payment credential of a request (the `Payment` scheme of HTTP authentication).

use std::fmt;

/// The payment credential of a request: the value after `Payment` (the `Payment` scheme of HTTP authentication). Put on the exchange by the
/// filter that distinguishes the payment credential from the account's credential; not verified. The credential is secret: it cannot be
/// printed.
#[derive(Clone, PartialEq, Eq)]
pub struct PaymentCredential {
    /// The value after the scheme, trimmed; may be empty.
    pub text: Box<str>,
    /// The credential's header field.
    pub field: PaymentField,
}

/// The header fields for a payment proof.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentField {
    /// `Authorization`, in the place of the account's credential.
    Authorization,
    /// `Payment-Authorization`, in addition to the account's credential.
    PaymentAuthorization,
}

impl fmt::Debug for PaymentCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaymentCredential")
            .field("field", &self.field)
            .finish_non_exhaustive()
    }
}
