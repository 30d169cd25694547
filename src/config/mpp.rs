//! `[payments.mpp]`: sale of the plan by challenges of the `Payment` scheme.

use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use tollgate_filter::settings::At;

/// Challenges of the `Payment` scheme (MPP). Without a secret the plan is not sold by it.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMpp {
    /// The environment variable that contains the secret by which challenges are authenticated.
    pub(crate) secret_env: Option<At<String>>,
    /// The file that contains it.
    pub(crate) secret_file: Option<At<String>>,
    /// The environment variable that contains the previous secret.
    pub(crate) previous_secret_env: Option<At<String>>,
    /// The file that contains it.
    pub(crate) previous_secret_file: Option<At<String>>,
    /// Whether a challenge is bound to the body of its request.
    pub(crate) digest: Option<At<bool>>,
    /// The header field of the payment credential: `authorization` or `payment-authorization`.
    pub(crate) credential_header: Option<At<String>>,
}

/// How challenges of the `Payment` scheme are created.
#[derive(Clone, Debug)]
pub struct Mpp {
    /// Binds challenges; at least 32 bytes.
    pub secret: SecretString,
    /// The previous secret: pending challenges bound with it are still accepted.
    pub previous: Option<SecretString>,
    /// Whether a challenge is bound to the body of its request.
    pub digest: bool,
    /// Whether buyers send their proof of payment in a separate field.
    pub own_field: bool,
}
