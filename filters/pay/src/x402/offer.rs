//! The offer: the payment terms, and their header.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde::Serialize;
use serde_json::Value;
use tollgate_evm::{Amount, WrittenAddress, chain_id};

/// The supported version of the protocol.
pub(crate) const VERSION: u64 = 2;

/// The supported scheme: exactly this amount, sent by a signed authorization (EIP-3009).
pub(crate) const SCHEME: &str = "exact";

/// Decimal places of the token: its unit is the millionth of a dollar.
pub const DECIMALS: u8 = 6;

/// The price, the token and the payee.
#[derive(Clone, Debug)]
pub struct Terms {
    /// The chain (CAIP-2): `eip155:8453` for Base.
    pub network: String,
    /// The contract of the token.
    pub asset: WrittenAddress,
    /// The token's name in the EIP-712 domain, different between chains.
    pub asset_name: String,
    /// The token's version in the EIP-712 domain.
    pub asset_version: String,
    /// The price in the token's smallest unit.
    pub amount: Amount,
    pub pay_to: WrittenAddress,
    /// Signed validity of an authorization in seconds, and so the longest time of an open payment.
    pub max_timeout_secs: u64,
}

/// A payment option on the wire: in an offer to buyers, and in calls to the facilitator as the terms of judgement.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Requirements<'a> {
    scheme: &'static str,
    network: &'a str,
    amount: String,
    asset: String,
    pay_to: String,
    max_timeout_seconds: u64,
    extra: Domain<'a>,
}

#[derive(Clone, Debug, Serialize)]
struct Domain<'a> {
    name: &'a str,
    version: &'a str,
}

impl Terms {
    /// The terms in wire format.
    pub(crate) fn requirements(&self) -> Requirements<'_> {
        Requirements {
            scheme: SCHEME,
            network: &self.network,
            amount: self.amount.to_string(),
            asset: self.asset.to_string(),
            pay_to: self.pay_to.to_string(),
            max_timeout_seconds: self.max_timeout_secs,
            extra: Domain {
                name: &self.asset_name,
                version: &self.asset_version,
            },
        }
    }
}

impl Terms {
    /// The domain of wallets' signatures; `None` for a network other than an EVM chain.
    pub(crate) fn domain(&self) -> Option<tollgate_evm::Domain<'_>> {
        Some(tollgate_evm::Domain {
            chain: chain_id(&self.network)?,
            asset: self.asset.address(),
            name: &self.asset_name,
            version: &self.asset_version,
        })
    }

    /// Parses the terms of a stored facilitator call; `None` for other values.
    pub(crate) fn read(requirements: &Value) -> Option<Terms> {
        let text = |name: &str| requirements.get(name)?.as_str();
        let extra = |name: &str| requirements.get("extra")?.get(name)?.as_str();
        Some(Terms {
            network: text("network")?.to_owned(),
            asset: text("asset")?.parse().ok()?,
            asset_name: extra("name")?.to_owned(),
            asset_version: extra("version")?.to_owned(),
            amount: text("amount")?.parse().ok()?,
            pay_to: text("payTo")?.parse().ok()?,
            max_timeout_secs: requirements.get("maxTimeoutSeconds")?.as_u64()?,
        })
    }
}

/// The content of an offer: the terms, the product and the reason.
#[derive(Clone, Copy, Debug)]
pub struct Offer<'a> {
    pub terms: &'a Terms,
    /// The address of the purchase.
    pub url: &'a str,
    /// A short description of the product.
    pub description: &'a str,
    /// Why payment is required, or why the last one was refused.
    pub error: &'a str,
    /// Protocol extensions.
    pub extensions: Option<&'a Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct PaymentRequired<'a> {
    x402_version: u64,
    error: &'a str,
    resource: Resource<'a>,
    accepts: [Requirements<'a>; 1],
    #[serde(skip_serializing_if = "Option::is_none")]
    extensions: Option<&'a Value>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Resource<'a> {
    url: &'a str,
    description: &'a str,
    mime_type: &'static str,
}

impl Offer<'_> {
    /// The value of `PAYMENT-REQUIRED`: base64 with the standard alphabet and padding. Stock clients refuse any other.
    pub fn header(&self) -> String {
        let json = serde_json::to_vec(&self.required()).expect("texts and numbers are JSON");
        STANDARD.encode(json)
    }

    /// The members of the body, for clients that read the terms there, as in version 1. Without `error`, a member of the envelope.
    pub(crate) fn members(&self) -> Value {
        let mut members =
            serde_json::to_value(self.required()).expect("texts and numbers are JSON");
        if let Some(members) = members.as_object_mut() {
            members.remove("error");
        }
        members
    }

    fn required(&self) -> PaymentRequired<'_> {
        PaymentRequired {
            x402_version: VERSION,
            error: self.error,
            resource: Resource {
                url: self.url,
                description: self.description,
                mime_type: "application/json",
            },
            accepts: [self.terms.requirements()],
            extensions: self.extensions,
        }
    }
}
