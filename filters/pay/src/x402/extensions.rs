//! Protocol extensions of an offer and of a payment.

use serde_json::{Value, json};

use super::payment::Payment;

/// An idempotency key that the buyer's program assigns to a payment.
pub(crate) const IDENTIFIER: &str = "payment-identifier";

/// A description of the purchase request, for indexes of paid resources.
const BAZAAR: &str = "bazaar";

/// The extensions of an offer.
pub(crate) fn offered(product: &str) -> Value {
    let mut all = serde_json::Map::new();
    all.insert(
        IDENTIFIER.to_owned(),
        json!({
            "info": {"required": false},
            "schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {
                    "required": {"type": "boolean"},
                    "id": {"type": "string", "minLength": 16, "maxLength": 128, "pattern": "^[a-zA-Z0-9_-]+$"},
                },
                "required": ["required"],
            },
        }),
    );
    all.insert(
        BAZAAR.to_owned(),
        json!({
            "info": {
                "input": {"type": "http", "method": "POST", "bodyType": "json", "body": {"product_id": product}},
                "output": {"type": "json", "example": {"success": true, "already_active": false}},
            },
            "schema": {
                "$schema": "https://json-schema.org/draft/2020-12/schema",
                "type": "object",
                "properties": {
                    "input": {
                        "type": "object",
                        "properties": {
                            "type": {"type": "string", "const": "http"},
                            "method": {"type": "string", "enum": ["POST"]},
                            "bodyType": {"type": "string", "enum": ["json"]},
                            "body": {
                                "type": "object",
                                "properties": {
                                    "product_id": {"type": "string", "const": product},
                                    "idempotency_key": {"type": "string", "minLength": 1, "maxLength": 255},
                                },
                                "additionalProperties": false,
                            },
                        },
                        "required": ["type", "method", "bodyType", "body"],
                    },
                    "output": {
                        "type": "object",
                        "properties": {"type": {"type": "string"}, "example": {"type": "object"}},
                        "required": ["type"],
                    },
                },
                "required": ["input"],
            },
        }),
    );
    Value::Object(all)
}

/// The idempotency key of a payment, if any; `Err` for a malformed key. A key has 16 to 128 letters, digits, `-` and `_`.
pub(crate) fn identifier(payment: &Payment) -> Result<Option<&str>, BadIdentifier> {
    let found = payment
        .whole()
        .get("extensions")
        .and_then(|extensions| extensions.get(IDENTIFIER))
        .and_then(|extension| extension.get("info"))
        .and_then(|info| info.get("id"));
    match found {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(id)) if is_identifier(id) => Ok(Some(id)),
        Some(_) => Err(BadIdentifier),
    }
}

/// A payment's idempotency key is malformed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`payment-identifier` has an `id` that is not 16 to 128 letters, digits, `-` or `_`")]
pub(crate) struct BadIdentifier;

fn is_identifier(id: &str) -> bool {
    (16..=128).contains(&id.len())
        && id
            .bytes()
            .all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_payment_identifier_has_16_to_128_characters() {
        for (id, good) in [
            ("pay_0123456789-a", true),
            ("pay_0123456789-", false),
            ("pay 0123456789-ab", false),
            ("pay_0123456789-ä", false),
            (&*"a".repeat(128), true),
            (&*"a".repeat(129), false),
        ] {
            assert_eq!(is_identifier(id), good, "{id}");
        }
    }
}
