//! `[payments.x402]`: the plan, bought with transfers that buyers sign.

use rustls::pki_types::CertificateDer;
use schemars::JsonSchema;
use serde::Deserialize;
use tollgate_filter::settings::At;
use tollgate_pay::x402::Terms;

use super::secret::Secret;

/// Who is paid, on which chain, and who sends the transfers there. Without `pay_to` nothing is sold in this way.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct RawX402 {
    /// The address of the facilitator.
    pub(crate) facilitator_url: Option<At<String>>,
    /// The environment variable that holds the token it knows us by.
    pub(crate) facilitator_token_env: Option<At<String>>,
    /// The file that holds it.
    pub(crate) facilitator_token_file: Option<At<String>>,
    /// The account of the chain that is paid.
    pub(crate) pay_to: Option<At<String>>,
    /// The chain, as `eip155:` and its number.
    pub(crate) network: Option<At<String>>,
    /// The contract of the token, which has six decimal places.
    pub(crate) asset: Option<At<String>>,
    /// The name of the token in what wallets sign.
    pub(crate) asset_name: Option<At<String>>,
    /// The version of the token there.
    pub(crate) asset_version: Option<At<String>>,
    /// The address of a node of the chain (JSON-RPC).
    pub(crate) rpc_url: Option<At<String>>,
    /// The environment variable that holds the address of a node, where that is a secret.
    pub(crate) rpc_url_env: Option<At<String>>,
    /// The file that holds it.
    pub(crate) rpc_url_file: Option<At<String>>,
    /// Seconds for which payments are signed.
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
    pub facilitator_token: Option<Secret>,
    /// The price, its token, and the payee.
    pub terms: Terms,
    /// The address of a node of the chain, which may contain a key.
    pub rpc_url: Option<Secret>,
    /// Roots to trust instead of the public ones.
    pub roots: Option<Vec<CertificateDer<'static>>>,
}
