//! The section `[payments.x402]`: sale of the plan by signed transfers.

use std::sync::Arc;

use http::HeaderValue;
use rustls::pki_types::CertificateDer;
use schemars::JsonSchema;
use secrecy::{ExposeSecret, SecretString};
use serde::Deserialize;
use tollgate_evm::{Address, WrittenAddress, chain_id};
use tollgate_filter::PaymentAsset;
use tollgate_filter::settings::{At, BaseUrl, Problems, Whole};
use tollgate_module::{Named, Section, SectionContext, Services, provided};
use tollgate_purchase::plan::PRICE;

use super::PayPalSettings;
use super::plan::warn_without_credits;
use crate::x402::{
    Bearer, DECIMALS, FixedBearer, HttpClientError, HttpFacilitator, HttpNode, Terms,
};

/// A known token: chain, contract, and name and version in the wallets' signature domain. The token's name differs between chains, and a
/// payment signed with the wrong name is never valid.
const KNOWN: &[(&str, &str, &str, &str)] = &[
    (
        "eip155:8453",
        "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913",
        "USD Coin",
        "2",
    ),
    (
        "eip155:84532",
        "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
        "USDC",
        "2",
    ),
];

/// A cent in units of the token.
const UNITS_OF_A_CENT: u64 = 10_u64.pow(DECIMALS as u32 - 2);

/// The payee, the chain and the facilitator of signed transfers (x402). Without `pay_to` the plan is not sold by them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub struct RawX402 {
    /// The facilitator, which verifies payments and submits them to the chain: `/supported`, `/verify` and `/settle` are below this URL.
    ///
    /// Type: URL
    /// Range: `https`; `http` on this machine only
    facilitator_url: Option<At<String>>,
    /// Contains the bearer token for the facilitator.
    ///
    /// Type: name of a variable
    facilitator_token_env: Option<At<String>>,
    /// Contains that token.
    ///
    /// Type: path
    /// Range: not beside `facilitator_token_env`
    facilitator_token_file: Option<At<String>>,
    /// The account on the chain that receives payments. Its key is never needed here. Use a separate account for every database: a transfer
    /// to it counts as a purchase here.
    ///
    /// Type: address
    /// Range: `0x` and 40 hex digits; capitals, if any, as EIP-55 has them
    pay_to: Option<At<String>>,
    /// The chain. `eip155:84532` is Base Sepolia, for tests.
    ///
    /// Type: word
    /// Default: `eip155:8453` (Base)
    /// Range: `eip155:` and a number
    network: Option<At<String>>,
    /// The contract of the token: one with EIP-3009 and six decimal places.
    ///
    /// Type: address
    /// Default: USDC of the network
    /// Range: likewise
    asset: Option<At<String>>,
    /// The token's name in its EIP-712 domain. USDC has different names on different chains.
    ///
    /// Default: that of USDC on the network
    /// Range: pinned for USDC
    asset_name: Option<At<String>>,
    /// The token's version in its EIP-712 domain.
    ///
    /// Default: that of USDC on the network
    /// Range: pinned for USDC
    asset_version: Option<At<String>>,
    /// A node of the chain (JSON-RPC). With a node, only the chain decides the outcome of a payment, independent of the facilitator's
    /// answers. Without one the facilitator is trusted: a lost or false answer can make a buyer pay twice or activate the plan without
    /// payment, and the operator has to look the payment up (`tollgate payment list`); `tollgate check` warns.
    ///
    /// Type: URL
    /// Range: `https`; `http` on this machine only
    rpc_url: Option<At<String>>,
    /// Contains the URL of the node, where it includes a key.
    ///
    /// Type: name of a variable
    /// Range: not beside `rpc_url`; `https` as well
    rpc_url_env: Option<At<String>>,
    /// Contains that URL.
    ///
    /// Type: path
    /// Range: not beside the two above; `https` as well
    rpc_url_file: Option<At<String>>,
    /// Validity of signed payments, and so the maximum time for which one can stay unclear.
    max_timeout_secs: Whole<300, 60, 900>,
    /// Roots to trust instead, for facilitator and node.
    ///
    /// Type: path
    /// Default: the public roots
    /// Range: PEM
    ca_file: Option<At<String>>,
}

/// The payee, the chain, and the facilitator that submits the transfers there.
#[derive(Clone, Debug)]
pub struct X402Settings {
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

provided! { "pay" => [X402Settings]; }

impl X402Settings {
    /// A client of the facilitator. No request is sent before the first call.
    ///
    /// # Errors
    ///
    /// An address or roots that cannot be used.
    pub fn facilitator(&self) -> Result<HttpFacilitator, HttpClientError> {
        self.facilitator_with(Arc::new(self.bearer()))
    }

    /// [`facilitator`](Self::facilitator), authorized by `bearer`.
    pub(crate) fn facilitator_with(
        &self,
        bearer: Arc<dyn Bearer>,
    ) -> Result<HttpFacilitator, HttpClientError> {
        HttpFacilitator::new(&self.facilitator_url, self.roots.as_deref(), bearer)
    }

    /// Authorization of calls to the facilitator by the gateway's token.
    pub(crate) fn bearer(&self) -> FixedBearer {
        FixedBearer(self.facilitator_token.as_ref().and_then(|token| {
            let text = format!("Bearer {}", token.expose_secret());
            let mut value = HeaderValue::from_str(&text).ok()?;
            value.set_sensitive(true);
            Some(value)
        }))
    }

    /// A client of the chain's node, where the settings name one.
    ///
    /// # Errors
    ///
    /// As for [`X402Settings::facilitator`].
    pub fn node(&self) -> Result<Option<HttpNode>, HttpClientError> {
        let node = |url: &SecretString| HttpNode::new(url.expose_secret(), self.roots.as_deref());
        self.rpc_url.as_ref().map(node).transpose()
    }
}

impl Section for RawX402 {
    const NAME: &'static str = "payments.x402";
    type Settings = Option<X402Settings>;

    fn check(
        &self,
        context: &SectionContext<'_>,
        problems: &mut Problems,
    ) -> Option<Option<X402Settings>> {
        let settings = check(self, context, problems);
        let paypal: Option<Option<PayPalSettings>> = context.find();
        let is_sold_at_paypal = paypal
            .flatten()
            .is_some_and(|paypal| paypal.plan_id.is_some());
        if settings.is_some() || is_sold_at_paypal {
            warn_without_credits(context, problems);
        }
        if let Some(known) = &settings
            && known.rpc_url.is_none()
            && !is_built_in(&known.terms)
        {
            problems.warn(
                key("asset"),
                "is not a built-in token, and without `rpc_url` its decimal places and EIP-712 domain are not compared with the chain: with \
                 other decimal places the plan is sold for another price; write the URL of a node, `rpc_url = \"https://...\"`",
            );
        }
        if settings
            .as_ref()
            .is_some_and(|known| known.rpc_url.is_none())
        {
            problems.warn(
                key("rpc_url"),
                "is missing, so the facilitator's answers are trusted: if one is lost or false, a buyer may pay twice or get the plan \
                 without paying, and the payment must be looked up manually (`tollgate payment list`); write the URL of a node \
                 of the chain, `rpc_url = \"https://...\"`",
            );
        }
        Some(settings)
    }

    fn provide(settings: Option<X402Settings>, services: &mut Services) {
        if let Some(known) = &settings {
            services.provide(PaymentAsset(known.terms.asset.to_string().into()));
        }
        services.provide(settings);
    }
}

fn key(name: &str) -> String {
    format!("{}.{name}", RawX402::NAME)
}

fn check(
    raw: &RawX402,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<X402Settings> {
    let token = Named {
        section: RawX402::NAME,
        variable: ("facilitator_token_env", raw.facilitator_token_env.as_ref()),
        file: (
            "facilitator_token_file",
            raw.facilitator_token_file.as_ref(),
        ),
    };
    let facilitator_token = token.secret(context.inputs(), problems);
    let rpc_url = rpc(raw, context, problems);
    let roots = context.certificates("ca_file", raw.ca_file.as_ref(), problems);
    let facilitator_url = raw
        .facilitator_url
        .as_ref()
        .and_then(|at| remote("facilitator_url", at, problems));
    let pay_to = raw
        .pay_to
        .as_ref()
        .and_then(|at| address("pay_to", at, problems));
    let max_timeout_secs = raw
        .max_timeout_secs
        .check(key("max_timeout_secs"), problems);
    let token = token_of(raw, problems);
    match (&raw.facilitator_url, &raw.pay_to) {
        (Some(_), None) => problems.note_missing(
            key("pay_to"),
            "is missing with `facilitator_url`; write the address that receives payments, `pay_to = \"0x...\"`",
        ),
        (None, Some(_)) => problems.note_missing(
            key("facilitator_url"),
            "is missing with `pay_to`; write the URL of the service that submits transfers to the chain, `facilitator_url = \"https://...\"`",
        ),
        _ => {}
    }
    let (network, asset, asset_name, asset_version) = token?;
    let cents = u64::try_from(PRICE.cents()).expect("the price is more than nothing");
    Some(X402Settings {
        terms: Terms {
            network,
            asset,
            asset_name,
            asset_version,
            amount: (cents * UNITS_OF_A_CENT).into(),
            pay_to: pay_to?,
            max_timeout_secs: max_timeout_secs?,
        },
        facilitator_url: facilitator_url?,
        facilitator_token,
        rpc_url,
        roots,
    })
}

/// Whether the token is built in, with the values of the deployed contract.
fn is_built_in(terms: &Terms) -> bool {
    KNOWN.iter().any(|(network, asset, ..)| {
        *network == terms.network && asset.parse() == Ok(terms.asset.address())
    })
}

/// Network, contract, name and version of the token.
fn token_of(
    raw: &RawX402,
    problems: &mut Problems,
) -> Option<(String, WrittenAddress, String, String)> {
    let network = match &raw.network {
        None => KNOWN[0].0.to_owned(),
        Some(at) if chain_id(&at.value).is_some() => at.value.clone(),
        Some(at) => {
            let message = format_args!(
                "is `{}`; use `eip155:` and the number of the chain, such as `eip155:8453` for Base",
                at.value
            );
            problems.note(key("network"), at, message);
            return None;
        }
    };
    let of_network = KNOWN.iter().find(|(known, ..)| *known == network);
    let asset = match (&raw.asset, of_network) {
        (Some(at), _) => address("asset", at, problems)?,
        (None, Some((_, asset, ..))) => asset.parse().expect("an address that is known"),
        (None, None) => {
            let message = format_args!(
                "is missing, and there is no built-in token for `network` `{network}`; write the contract of the token, `asset_name` and `asset_version`"
            );
            problems.note_missing(key("asset"), message);
            return None;
        }
    };
    let known = of_network.filter(|(_, known, ..)| known.parse() == Ok(asset.address()));
    let mut part = |name: &str, at: &Option<At<String>>, pinned: Option<&str>| match (at, pinned) {
        (None, Some(pinned)) => Some(pinned.to_owned()),
        (Some(at), Some(pinned)) if at.value != pinned => {
            let message = format_args!(
                "is `{}`, but this token uses `{pinned}`; leave it out",
                at.value
            );
            problems.note(key(name), at, message);
            None
        }
        (Some(at), _) if (1..=64).contains(&at.value.chars().count()) => Some(at.value.clone()),
        (Some(at), _) => {
            problems.note(key(name), at, "is not a name; use 1 to 64 characters");
            None
        }
        (None, None) => {
            let message = "is missing for a token that is not built in; write the value of its EIP-712 domain, or payments can never be settled";
            problems.note_missing(key(name), message);
            None
        }
    };
    let name = part("asset_name", &raw.asset_name, known.map(|token| token.2));
    let version = part(
        "asset_version",
        &raw.asset_version,
        known.map(|token| token.3),
    );
    Some((network, asset, name?, version?))
}

/// An account of the chain.
fn address(name: &str, at: &At<String>, problems: &mut Problems) -> Option<WrittenAddress> {
    let read: WrittenAddress = problems.parse(key(name), at)?;
    if !read.is_plausible() {
        let message = format_args!(
            "is `{}`, whose checksum (EIP-55) is wrong; copy it again",
            at.value
        );
        problems.note(key(name), at, message);
        return None;
    }
    if read.address() == Address([0; 20]) {
        problems.note(
            key(name),
            at,
            "is the zero address; write the address that receives payments",
        );
        return None;
    }
    Some(read)
}

/// The address of a called service. The sent data is as good as money, so the connection uses TLS or stays on this machine.
fn remote(name: &str, at: &At<String>, problems: &mut Problems) -> Option<String> {
    let url: BaseUrl = problems.parse(key(name), at)?;
    if !url.tls && !is_loopback(&url.host) {
        let message = format_args!(
            "is `{}`; use `https`: without TLS payments could be intercepted",
            at.value
        );
        problems.note(key(name), at, message);
        return None;
    }
    Some(url.to_string())
}

/// Whether a host is this machine.
fn is_loopback(host: &str) -> bool {
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    let address: Result<std::net::IpAddr, _> = bare.parse();
    bare.eq_ignore_ascii_case("localhost") || address.is_ok_and(|address| address.is_loopback())
}

/// The address of a node, from the settings or, for an address with a key, from a variable or a file. The node's answers decide about
/// money, so the connection uses TLS or stays on this machine, in every configuration. The address may contain a key anywhere, so no
/// message repeats the address.
fn rpc(
    raw: &RawX402,
    context: &SectionContext<'_>,
    problems: &mut Problems,
) -> Option<SecretString> {
    let named = Named {
        section: RawX402::NAME,
        variable: ("rpc_url_env", raw.rpc_url_env.as_ref()),
        file: ("rpc_url_file", raw.rpc_url_file.as_ref()),
    };
    let (name, at, secret) = match (&raw.rpc_url, &raw.rpc_url_env, &raw.rpc_url_file) {
        (Some(at), None, None) => ("rpc_url", at, SecretString::from(at.value.clone())),
        (Some(at), ..) => {
            let message = "is set beside another setting for the same URL; keep one of them";
            problems.note(key("rpc_url"), at, message);
            return None;
        }
        (None, Some(at), _) => ("rpc_url_env", at, named.secret(context.inputs(), problems)?),
        (None, None, Some(at)) => (
            "rpc_url_file",
            at,
            named.secret(context.inputs(), problems)?,
        ),
        (None, None, None) => return None,
    };
    if let Err(message) = node_address(secret.expose_secret()) {
        problems.note(key(name), at, message);
        return None;
    }
    Some(secret)
}

/// The error in the address of a node.
fn node_address(text: &str) -> Result<(), &'static str> {
    const NONE: &str = "contains no URL; write one that starts with `https://`";
    let address: http::Uri = text.parse().map_err(|_| NONE)?;
    let host = address.host().filter(|host| !host.is_empty()).ok_or(NONE)?;
    match address.scheme_str() {
        Some("https") => Ok(()),
        Some("http") if is_loopback(host) => Ok(()),
        Some("http") => Err(
            "contains a URL without TLS; use `https`: without TLS the answers of the node could be forged",
        ),
        _ => Err(NONE),
    }
}

#[cfg(test)]
mod tests {
    use tollgate_module::check_text;

    use super::*;

    fn checked(text: &str) -> Result<Option<X402Settings>, Vec<String>> {
        check_text::<RawX402>(text, &Services::default())
            .map_err(|found| found.iter().map(ToString::to_string).collect())
    }

    const VALID: &str = "facilitator_url = 'https://x402.example/'\npay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'\n";

    #[test]
    fn a_facilitator_and_an_address_are_enough_and_usdc_is_pinned_for_each_chain() {
        for (network, asset, name) in [
            ("", "0x833589fCD6eDb6E08f4c7C32D4f71b54bdA02913", "USD Coin"),
            (
                "network = 'eip155:84532'",
                "0x036CbD53842c5426634e7929541eC2318f3dCF7e",
                "USDC",
            ),
        ] {
            let found = checked(&format!("{VALID}{network}")).expect("valid settings");
            let terms = found.expect("it is configured").terms;
            assert_eq!(terms.asset.to_string(), asset);
            assert_eq!(
                (&*terms.asset_name, &*terms.asset_version),
                (name, "2"),
                "{network}"
            );
            assert_eq!(terms.amount.to_string(), "199000000");
            assert_eq!(terms.max_timeout_secs, 300);
        }
        let absent = checked("").expect("nothing is wrong");
        assert!(absent.is_none(), "{absent:?}");
    }

    #[test]
    fn errors_name_their_remedy() {
        for (text, wanted) in [
            (
                "facilitator_url = 'https://x402.example'",
                "pay_to: is missing",
            ),
            (
                "pay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b906'",
                "facilitator_url: is missing",
            ),
            (
                "pay_to = '0x90F79bf6EB2c4f870365E785982E1f101E93b907'",
                "checksum",
            ),
            (
                "pay_to = '90F79bf6EB2c4f870365E785982E1f101E93b906'",
                "40 hex digits",
            ),
            (
                "pay_to = '0x0000000000000000000000000000000000000000'",
                "the zero address",
            ),
            ("facilitator_url = 'http://x402.example'", "use `https`"),
            ("rpc_url = 'http://base.example'", "use `https`"),
            (
                "rpc_url = 'https://base.example'\nrpc_url_env = 'RPC'",
                "keep one of them",
            ),
            ("network = 'base'", "eip155:8453"),
            ("network = 'eip155:1'", "asset: is missing"),
            (
                "network = 'eip155:1'\nasset = '0xA0b86991c6218b36c1d19D4a2e9Eb0cE3606eB48'",
                "asset_name: is missing",
            ),
            ("asset_name = 'USDC'", "leave it out"),
            ("max_timeout_secs = 59", "60 to 900"),
            ("facilitator_token_env = 'NONE'", "not set"),
        ] {
            let problems = checked(text).expect_err(text);
            assert!(
                problems.iter().any(|problem| problem.contains(wanted)),
                "{text}: {problems:?}"
            );
        }
    }
}
