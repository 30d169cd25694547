//! Validation of responses against the published JSON Schemas of the protocol.

use jsonschema::{Registry, Validator};
use serde_json::{Value, json};
use tollgate_testing::package_folder;

/// The folder of the schemas, with their origin and licence in `ORIGIN.md` and `LICENSE`.
const FOLDER: &str = "tests/ucp-schemas";

/// Every file, by its path.
const FILES: [&str; 40] = [
    "discovery/profile_schema.json",
    "schemas/capability.json",
    "schemas/common/identity_linking.json",
    "schemas/payment_handler.json",
    "schemas/service.json",
    "schemas/shopping/checkout.json",
    "schemas/shopping/order.json",
    "schemas/shopping/payment.json",
    "schemas/shopping/types/adjustment.json",
    "schemas/shopping/types/amount.json",
    "schemas/shopping/types/attribution.json",
    "schemas/shopping/types/available_payment_instrument.json",
    "schemas/shopping/types/buyer.json",
    "schemas/shopping/types/context.json",
    "schemas/shopping/types/description.json",
    "schemas/shopping/types/error_code.json",
    "schemas/shopping/types/error_response.json",
    "schemas/shopping/types/expectation.json",
    "schemas/shopping/types/fulfillment_event.json",
    "schemas/shopping/types/info_code.json",
    "schemas/shopping/types/item.json",
    "schemas/shopping/types/line_item.json",
    "schemas/shopping/types/link.json",
    "schemas/shopping/types/message.json",
    "schemas/shopping/types/message_error.json",
    "schemas/shopping/types/message_info.json",
    "schemas/shopping/types/message_warning.json",
    "schemas/shopping/types/order_confirmation.json",
    "schemas/shopping/types/order_line_item.json",
    "schemas/shopping/types/payment_credential.json",
    "schemas/shopping/types/payment_instrument.json",
    "schemas/shopping/types/postal_address.json",
    "schemas/shopping/types/reverse_domain_name.json",
    "schemas/shopping/types/signals.json",
    "schemas/shopping/types/signed_amount.json",
    "schemas/shopping/types/total.json",
    "schemas/shopping/types/totals.json",
    "schemas/shopping/types/warning_code.json",
    "schemas/transports/embedded_config.json",
    "schemas/ucp.json",
];

/// A document of a business, at `/.well-known/ucp`.
pub(crate) const PROFILE: &str = "discovery/profile_schema.json#/$defs/business_profile";

/// The part of a profile validated in full only by a separate schema.
pub(crate) const IDENTITY: &str =
    "schemas/common/identity_linking.json#/$defs/dev.ucp.common.identity_linking/business_schema";

/// A checkout session.
pub(crate) const CHECKOUT: &str = "schemas/shopping/checkout.json";

/// The answer without a session.
pub(crate) const ERROR: &str = "schemas/shopping/types/error_response.json";

/// The address of the file at `path`.
///
/// The `$id` in the schema of profiles differs from the `$id` in the references of the schema, so every file is identified by the path
/// alone.
fn address(path: &str) -> String {
    format!("https://ucp.dev/{path}")
}

/// The validator of the schema `schema`.
fn validator(schema: &str) -> Validator {
    let mut registry = Registry::new();
    for path in FILES {
        let text = std::fs::read_to_string(package_folder().join(FOLDER).join(path))
            .expect("a file of the folder");
        let mut file: Value = serde_json::from_str(&text).expect("JSON");
        file["$id"] = json!(address(path));
        registry = registry.add(address(path), file).expect("a schema");
    }
    let registry = registry.prepare().expect("whole schemas");
    jsonschema::options()
        .with_registry(&registry)
        .should_validate_formats(true)
        .build(&json!({"$ref": address(schema)}))
        .expect("a schema")
}

/// Fails unless a value is valid by the schema `schema`.
pub(crate) fn assert_keeps_to(schema: &str, value: &Value) {
    let faults: Vec<String> = validator(schema)
        .iter_errors(value)
        .map(|fault| format!("{}: {fault}", fault.instance_path()))
        .collect();
    assert!(faults.is_empty(), "{schema}: {faults:#?}\nin {value:#}");
}

#[test]
fn the_schemas_refuse_what_is_none_of_theirs() {
    for schema in [PROFILE, IDENTITY, CHECKOUT, ERROR] {
        assert!(
            !validator(schema).is_valid(&json!({"version": 1})),
            "{schema}"
        );
    }
    let without_handlers = json!({"ucp": {"version": "2026-04-08"}, "id": "1", "line_items": [], "status": "incomplete",
        "currency": "USD", "totals": [{"type": "subtotal", "amount": 0}, {"type": "total", "amount": 0}], "links": []});
    assert!(!validator(CHECKOUT).is_valid(&without_handlers));
    let mut with = without_handlers;
    with["ucp"]["payment_handlers"] = json!({});
    assert_keeps_to(CHECKOUT, &with);
}
