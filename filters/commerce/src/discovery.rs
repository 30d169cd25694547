//! `/.well-known/ucp`: the UCP profile of the service (UCP 2026-04-08, Overview, "Profile Structure").

use serde_json::{Value, json};
use tollgate_filter::Scope;

use crate::ucp::{CHECKOUT, IDENTITY, SHOPPING, VERSION};

/// The profile of a service at this address.
///
/// Names below `dev.ucp` may only reference the site of the protocol (Overview, "Namespace Governance"). No payment handler: payment
/// happens on a page of this service, where the account owner approves. No signing key, since nothing is signed.
pub(crate) fn profile(base_url: &str) -> Value {
    let site = format!("https://ucp.dev/{VERSION}");
    json!({
        "ucp": {
            "version": VERSION,
            "services": {SHOPPING: [{
                "version": VERSION,
                "transport": "rest",
                "endpoint": format!("{base_url}/ucp/{VERSION}"),
                "spec": format!("{site}/specification/overview"),
                "schema": format!("{site}/services/shopping/rest.openapi.json"),
            }]},
            "capabilities": {
                CHECKOUT: [{
                    "version": VERSION,
                    "spec": format!("{site}/specification/checkout"),
                    "schema": format!("{site}/schemas/shopping/checkout.json"),
                }],
                IDENTITY: [{
                    "version": VERSION,
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
