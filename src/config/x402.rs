//! `[payments.x402]`: sale of the plan by signed transfers.

use rustls::pki_types::CertificateDer;
use schemars::JsonSchema;
use secrecy::SecretString;
use serde::Deserialize;
use tollgate_filter::settings::At;
use tollgate_pay::x402::Terms;

/// The payee, the chain and the facilitator of signed transfers (x402). Without `pay_to` the plan is not sold by them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawX402 {
    /// The URL of the facilitator.
    pub(crate) facilitator_url: Option<At<String>>,
    /// The environment variable that contains the token for the facilitator.
    pub(crate) facilitator_token_env: Option<At<String>>,
    /// The file that contains the token.
    pub(crate) facilitator_token_file: Option<At<String>>,
    /// The account on the chain that receives payments.
    pub(crate) pay_to: Option<At<String>>,
    /// The chain, as `eip155:` and its number.
    pub(crate) network: Option<At<String>>,
    /// The contract of the token, which has six decimal places.
    pub(crate) asset: Option<At<String>>,
    /// The name of the token in its EIP-712 domain.
    pub(crate) asset_name: Option<At<String>>,
    /// The version of the token in its EIP-712 domain.
    pub(crate) asset_version: Option<At<String>>,
    /// The URL of a node of the chain (JSON-RPC).
    pub(crate) rpc_url: Option<At<String>>,
    /// The environment variable that contains the URL of a node, where it is a secret.
    pub(crate) rpc_url_env: Option<At<String>>,
    /// The file that contains the URL.
    pub(crate) rpc_url_file: Option<At<String>>,
    /// Validity of signed payments in seconds.
    pub(crate) max_timeout_secs: Option<At<u64>>,
    /// A PEM file with the roots to trust instead of the public ones.
    pub(crate) ca_file: Option<At<String>>,
}

/// The payee, the chain, and the facilitator that submits the transfers there.
#[derive(Clone, Debug)]
pub struct X402 {
    /// The address of the facilitator.
    pub facilitator_url: String,
    /// The gateway's token at the facilitator.
    pub facilitator_token: Option<SecretString>,
    /// The price, its token, and the payee.
    pub terms: Terms,
    /// The address of a node of the chain, which may contain a key.
    pub rpc_url: Option<SecretString>,
    /// Roots to trust instead of the public ones.
    pub roots: Option<Vec<CertificateDer<'static>>>,
}
