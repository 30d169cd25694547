//! MPP, the `Payment` scheme of HTTP authentication, with the method `paypal` and the intent `charge`: a page where the buyer agrees, and
//! the subscription's id as what is shown afterwards.

mod binding;
mod challenge;
mod credential;
mod receipt;

pub use binding::{Binding, Secrets};
pub use challenge::{Challenge, Subscription};
pub use credential::{Credential, CredentialError};
pub use receipt::Receipt;

/// The method of payment.
pub(crate) const METHOD: &str = "paypal";

/// What is asked for: a charge.
pub(crate) const INTENT: &str = "charge";
