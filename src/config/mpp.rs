//! `[payments.mpp]`: the plan, bought by programs that answer a challenge of the `Payment` scheme.

use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::At;

use super::secret::Secret;

/// How challenges of the `Payment` scheme are made. Without a secret the plan is not sold in this way.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawMpp {
    /// The environment variable that holds the secret that challenges are bound with.
    pub(crate) secret_env: Option<At<String>>,
    /// The file that holds it.
    pub(crate) secret_file: Option<At<String>>,
    /// The environment variable that holds the secret before that one.
    pub(crate) previous_secret_env: Option<At<String>>,
    /// The file that holds it.
    pub(crate) previous_secret_file: Option<At<String>>,
    /// Whether a challenge is bound to the body of its request.
    pub(crate) digest: Option<At<bool>>,
    /// The field that buyers send their proof of payment in: `authorization` or `payment-authorization`.
    pub(crate) credential_header: Option<At<String>>,
}

/// How challenges of the `Payment` scheme are created.
#[derive(Clone, Debug)]
pub struct Mpp {
    /// Binds challenges; at least 32 bytes.
    pub secret: Secret,
    /// The previous secret: pending challenges bound with it are still accepted.
    pub previous: Option<Secret>,
    /// Whether a challenge is bound to the body of its request.
    pub digest: bool,
    /// Whether buyers send their proof of payment in a separate field.
    pub own_field: bool,
}
