//! `/.well-known/ucp`: the UCP profile of the service (UCP 2026-08-25, Overview, "Profile Structure" and "Protocol Version"). The profile
//! of the newer version has a separate address below, named in the older profile.

use serde_json::{Value, json};
use tollgate_filter::Scope;

use crate::ucp::{CHECKOUT, CURRENT, IDENTITY, OLDER, SHOPPING};

/// The profile of a service at this address, in the version of the first clients, with the address of the newer profile.
pub(crate) fn profile(base_url: &str) -> Value {
    let mut profile = profile_of(base_url, OLDER);
    let newer = format!("{base_url}/.well-known/ucp/{CURRENT}");
    profile["ucp"]["supported_versions"] = json!({CURRENT: newer});
    profile
}

/// The profile of one version.
///
/// Names below `dev.ucp` may only reference the site of the protocol (Overview, "Namespace Governance"). No payment handler: payment
/// happens on a page of this service, where the account owner approves. No signing key: answers are not signed.
pub(crate) fn profile_of(base_url: &str, version: &str) -> Value {
    let site = format!("https://ucp.dev/{version}");
    json!({
        "ucp": {
            "version": version,
            "services": {SHOPPING: [{
                "version": version,
                "transport": "rest",
                "endpoint": format!("{base_url}/ucp/{version}"),
                "spec": format!("{site}/specification/overview"),
                "schema": format!("{site}/services/shopping/rest.openapi.json"),
            }]},
            "capabilities": {
                CHECKOUT: [{
                    "version": version,
                    "spec": format!("{site}/specification/checkout"),
                    "schema": format!("{site}/schemas/shopping/checkout.json"),
                }],
                IDENTITY: [{
                    "version": version,
                    "spec": format!("{site}/specification/identity-linking"),
                    "schema": format!("{site}/schemas/common/identity_linking.json"),
                    "config": {"scopes": {Scope::CheckoutManage.name(): {}}},
                }],
            },
            "payment_handlers": {},
        },
        "signing_keys": [],
    })
}
