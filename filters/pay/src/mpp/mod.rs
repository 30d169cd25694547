//! MPP, the `Payment` scheme of HTTP authentication, with the method `paypal` and the intent `charge`: the buyer approves at an approval
//! URL, and the subscription's id is the credential's payload.

mod accept;
mod binding;
mod challenge;
mod credential;
mod endpoint;
mod problems;
mod processor;
mod receipt;

pub use accept::accepted_intents;
pub(crate) use binding::SECRET_BYTES_MIN;
pub use binding::{Binding, Secrets};
pub use challenge::{Challenge, Intent, Subscription};
pub use credential::{Credential, CredentialError, Expected};
pub(crate) use endpoint::answer;
pub use processor::{MppDeps, Processor, Settings};
pub use receipt::Receipt;

/// The method of payment.
pub(crate) const METHOD: &str = "paypal";

/// The dedicated field that a challenge may request the credential in (draft-httpauth-payment-02).
pub(crate) const OWN_FIELD: &str = "Payment-Authorization";
