//! `[credits]` as written, and `[payments]`: the payment providers.

use std::time::Duration;

use rustls::pki_types::CertificateDer;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use tollgate_filter::settings::At;
use tollgate_paypal::{Environment, Verify};

use super::mpp::{Mpp, RawMpp};
use super::x402::{RawX402, X402};

/// The price of a credit, and limits of purchases.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawCredits {
    /// US dollars per credit, as a decimal string. Without it the model list has no prices in dollars, and nothing can be bought.
    pub(crate) usd_per_credit: Option<At<String>>,
    /// The URL for adding credits, sent with a 402; the page of this service by default.
    pub(crate) topup_url: Option<At<String>>,
    /// Proposed amounts in US dollars, as decimal strings.
    pub(crate) topup_usd: Option<At<Vec<At<String>>>>,
    /// The minimum purchase in US dollars, as a decimal string.
    pub(crate) topup_usd_min: Option<At<String>>,
    /// The maximum purchase in US dollars, as a decimal string.
    pub(crate) topup_usd_max: Option<At<String>>,
    /// Credits granted to each account created by sign-up, as a decimal string.
    pub(crate) signup_grant: Option<At<String>>,
}

/// The payment providers.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPayments {
    /// PayPal.
    pub(crate) paypal: RawPayPal,
    /// Sale of the plan by the `Payment` scheme (MPP).
    pub(crate) mpp: RawMpp,
    /// Sale of the plan by signed transfers (x402).
    pub(crate) x402: RawX402,
}

/// Credentials and settings for PayPal. Without a client id PayPal is disabled.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawPayPal {
    /// The base URL of PayPal's API: live, sandbox, or a stand-in on this machine.
    pub(crate) base_url: Option<At<String>>,
    /// The environment variable that contains the client id.
    pub(crate) client_id_env: Option<At<String>>,
    /// The file that contains the client id.
    pub(crate) client_id_file: Option<At<String>>,
    /// The environment variable that contains the client secret.
    pub(crate) client_secret_env: Option<At<String>>,
    /// The file that contains the client secret.
    pub(crate) client_secret_file: Option<At<String>>,
    /// The id of the PayPal plan that buyers subscribe to. Without it the plan is not sold through PayPal.
    pub(crate) plan_id: Option<At<String>>,
    /// The id of the webhook at PayPal. Without it every webhook event is refused.
    pub(crate) webhook_id: Option<At<String>>,
    /// Where the signature of a webhook event is verified: `here` (locally) or `ask` (by PayPal's API).
    pub(crate) webhook_check: Option<At<String>>,
    /// A PEM file with the roots to trust instead of the public ones.
    pub(crate) ca_file: Option<At<String>>,
    /// Connect timeout in seconds, TLS included.
    pub(crate) connect_secs: Option<At<u64>>,
    /// Timeout in seconds of a whole call.
    pub(crate) call_secs: Option<At<u64>>,
}

/// `[payments]`: the payment providers.
#[derive(Clone, Debug, Default)]
pub struct Payments {
    /// `[payments.paypal]`: the credentials and settings for PayPal.
    pub paypal: Option<PayPal>,
    /// `[payments.mpp]`: how challenges are created.
    pub mpp: Option<Mpp>,
    /// `[payments.x402]`: the payee, the chain, and the facilitator that submits the transfers there.
    pub x402: Option<X402>,
}

/// Credentials and settings for PayPal.
#[derive(Clone, Debug)]
pub struct PayPal {
    /// The environment: live, sandbox, or a stand-in.
    pub environment: Environment,
    /// The client id.
    pub client_id: SecretString,
    /// The client secret.
    pub client_secret: SecretString,
    /// The plan that buyers subscribe to.
    pub plan_id: Option<String>,
    /// The id of our webhook.
    pub webhook_id: Option<String>,
    /// How the signature of a webhook event is verified.
    pub verify: Verify,
    /// Roots to trust instead of the public ones.
    pub roots: Option<Vec<CertificateDer<'static>>>,
    /// Connect timeout, TLS included.
    pub connect: Duration,
    /// Timeout of a whole call.
    pub call: Duration,
}
