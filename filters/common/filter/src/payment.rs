//! The proof of payment that a request shows.

use std::fmt;

/// What stood behind `Payment` in a request that shows a proof of payment (the `Payment` scheme of HTTP authentication). Put on the
/// exchange by whoever tells it from the credential of the account; nothing has been checked. It is a secret, so there is no way to
/// print it.
#[derive(Clone, PartialEq, Eq)]
pub struct PaymentCredential {
    /// What follows the scheme, without the space around it; may be empty.
    pub text: Box<str>,
    /// Where it stood.
    pub field: PaymentField,
}

/// The fields that a proof of payment can stand in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PaymentField {
    /// `Authorization`, in the place of the account's credential.
    Authorization,
    /// `Payment-Authorization`, beside it.
    PaymentAuthorization,
}

impl fmt::Debug for PaymentCredential {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PaymentCredential")
            .field("field", &self.field)
            .finish_non_exhaustive()
    }
}
