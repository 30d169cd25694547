//! Validation of a purchase request, body and idempotency key, without the payment.

use std::sync::Arc;

use http::{HeaderMap, HeaderName};
use serde_json::Value;
use tollgate_filter::{ApiError, ErrorCode, Request};
use tollgate_purchase::idempotency::digest;

use crate::json::Unambiguous;

/// The field of the idempotency key, which the body may carry as well.
const FIELD: HeaderName = HeaderName::from_static("idempotency-key");

/// The most characters of a key.
const CHARS_MAX: usize = 255;

/// A validated purchase request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ValidatedRequest {
    /// The idempotency key, if any.
    pub(crate) key: Option<Arc<str>>,
    /// Distinguishes requests under one key.
    pub(crate) hash: [u8; 32],
}

/// Validates a body (which may be missing) and the `Idempotency-Key` field. `product` is the only product.
pub(crate) fn read(request: &Request, product: &str) -> Result<ValidatedRequest, ApiError> {
    let in_body = match request.body.trim_ascii() {
        b"" => None,
        text => body(text, product)?,
    };
    let in_field = field(&request.headers)?;
    let key = match (in_body, in_field) {
        (Some(one), Some(other)) if one != other => {
            return Err(ApiError::new(
                ErrorCode::InvalidHeader,
                "`Idempotency-Key` and `idempotency_key` differ. Send one of them, or the same in both.",
            )
            .param("idempotency_key"));
        }
        (one, other) => one.or(other),
    };
    Ok(ValidatedRequest {
        key: key.map(Arc::from),
        hash: digest(&[request.path.as_bytes(), &request.body]),
    })
}

/// The idempotency key in a body: a closed object of two optional members.
fn body(text: &[u8], product: &str) -> Result<Option<String>, ApiError> {
    let Ok(Unambiguous(body)) = serde_json::from_slice(text) else {
        return Err(ApiError::new(
            ErrorCode::InvalidJson,
            "The body is not JSON without duplicate members. It may be empty.",
        ));
    };
    let Value::Object(members) = body else {
        return Err(ApiError::new(
            ErrorCode::InvalidType,
            "The body must be a JSON object, or empty.",
        ));
    };
    let mut key = None;
    for (name, value) in members {
        match (&*name, value) {
            ("product_id", Value::String(id)) if id == product => {}
            ("product_id", Value::String(_)) => {
                let message = format!("The only product is `{product}`.");
                return Err(ApiError::new(ErrorCode::OutOfRange, message).param(name));
            }
            ("idempotency_key", Value::String(text)) => {
                if !(1..=CHARS_MAX).contains(&text.chars().count()) {
                    return Err(ApiError::new(
                        ErrorCode::OutOfRange,
                        "`idempotency_key` must have 1 to 255 characters.",
                    )
                    .param(name));
                }
                key = Some(text);
            }
            ("product_id" | "idempotency_key", _) => {
                let message = format!("`{name}` must be a string.");
                return Err(ApiError::new(ErrorCode::InvalidType, message).param(name));
            }
            _ => {
                return Err(ApiError::new(
                    ErrorCode::UnknownField,
                    "The body accepts only `product_id` and `idempotency_key`. Send a payment in header fields.",
                )
                .param(name.chars().take(64).collect::<String>()));
            }
        }
    }
    Ok(key)
}

/// The idempotency key in its field: a structured string, or bare. Both spellings denote one key.
fn field(headers: &HeaderMap) -> Result<Option<String>, ApiError> {
    let invalid = || {
        ApiError::new(
            ErrorCode::InvalidHeader,
            "Send one Idempotency-Key of 1 to 255 visible ASCII characters and spaces; a UUID is recommended.",
        )
        .param("Idempotency-Key")
    };
    let mut values = headers.get_all(FIELD).iter();
    let value = match (values.next(), values.next()) {
        (None, _) => return Ok(None),
        (Some(value), None) => value.to_str().map_err(|_| invalid())?,
        (Some(_), Some(_)) => return Err(invalid()),
    };
    let value = value.trim_ascii();
    let text = structured(value).unwrap_or_else(|| value.to_owned());
    let is_printable = |byte: u8| byte.is_ascii_graphic() || byte == b' ';
    let is_valid = (1..=CHARS_MAX).contains(&text.len()) && text.bytes().all(is_printable);
    is_valid.then_some(Some(text)).ok_or_else(invalid)
}

/// The content of a string of structured fields (RFC 9651 section 3.3.3), when the value is one.
fn structured(value: &str) -> Option<String> {
    let inside = value.strip_prefix('"')?.strip_suffix('"')?;
    let mut text = String::with_capacity(inside.len());
    let mut characters = inside.chars();
    while let Some(character) = characters.next() {
        match character {
            '\\' => text.push(
                characters
                    .next()
                    .filter(|next| matches!(next, '"' | '\\'))?,
            ),
            '"' => return None,
            other => text.push(other),
        }
    }
    Some(text)
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use http::{HeaderValue, Method};
    use proptest::prelude::*;
    use tollgate_filter::{ClientAddress, Protocol};
    use tollgate_money::OperationId;

    use super::*;

    const PRODUCT: &str = "svc-pro-monthly";

    fn request(body: &[u8], fields: &[&str]) -> Request {
        let mut headers = HeaderMap::new();
        for value in fields {
            let value = HeaderValue::from_bytes(value.as_bytes()).expect("a value");
            headers.append(FIELD, value);
        }
        Request {
            id: OperationId::from_parts(1, [0; 10]),
            method: Method::POST,
            path: "/commerce/subscriptions/svc-pro/mpp".into(),
            query: None,
            headers,
            body: Bytes::copy_from_slice(body),
            client: ClientAddress::direct([192, 0, 2, 1].into()),
            tls: false,
            protocol: Protocol::Http11,
        }
    }

    /// The key that is read, or the code of the refusal.
    fn key(body: &str, fields: &[&str]) -> Result<Option<String>, ErrorCode> {
        let validated = read(&request(body.as_bytes(), fields), PRODUCT);
        let key = validated.map(|validated| validated.key.map(|key| key.to_string()));
        key.map_err(|error| error.code)
    }

    #[test]
    fn an_idempotency_key_is_read_from_the_body_or_its_header() {
        let named = |name: &str| Ok(Some(name.to_owned()));
        let none = || Ok(None);
        let long = "\u{e9}".repeat(256);
        let in_body = |key: &str| format!(r#"{{"idempotency_key":"{key}"}}"#);
        for (body, fields, expected) in [
            ("", &[][..], none()),
            (" \n", &[], none()),
            ("{}", &[], none()),
            (r#"{"product_id":"svc-pro-monthly"}"#, &[], none()),
            (&in_body("k"), &[], named("k")),
            (&in_body(&long[2..]), &[], named(&long[2..])),
            ("", &["k"], named("k")),
            ("", &["\"k\""], named("k")),
            ("", &[r#""a\"b\\c""#], named(r#"a"b\c"#)),
            ("", &[r#""a"b""#], named(r#""a"b""#)),
            ("", &["two words"], named("two words")),
            ("", &["\"two words\""], named("two words")),
            ("", &["two\twords"], Err(ErrorCode::InvalidHeader)),
            (&in_body("k"), &["\"k\""], named("k")),
            (&in_body("k"), &["other"], Err(ErrorCode::InvalidHeader)),
            (&in_body(""), &[], Err(ErrorCode::OutOfRange)),
            (&in_body(&long), &[], Err(ErrorCode::OutOfRange)),
            ("", &[""], Err(ErrorCode::InvalidHeader)),
            ("", &["\"\""], Err(ErrorCode::InvalidHeader)),
            ("", &[&"k".repeat(256)], Err(ErrorCode::InvalidHeader)),
            ("", &["\u{e9}"], Err(ErrorCode::InvalidHeader)),
            ("", &["k", "k"], Err(ErrorCode::InvalidHeader)),
            ("[]", &[], Err(ErrorCode::InvalidType)),
            ("null", &[], Err(ErrorCode::InvalidType)),
            ("{", &[], Err(ErrorCode::InvalidJson)),
            (
                r#"{"product_id":"svc-pro-monthly","product_id":"svc-pro-monthly"}"#,
                &[],
                Err(ErrorCode::InvalidJson),
            ),
            (
                r#"{"product_id":"svc-pro-yearly"}"#,
                &[],
                Err(ErrorCode::OutOfRange),
            ),
            (r#"{"product_id":null}"#, &[], Err(ErrorCode::InvalidType)),
            (r#"{"idempotency_key":7}"#, &[], Err(ErrorCode::InvalidType)),
            (r#"{"payment":"x"}"#, &[], Err(ErrorCode::UnknownField)),
        ] {
            assert_eq!(key(body, fields), expected, "{body} {fields:?}");
        }
    }

    #[test]
    fn another_body_is_another_request() {
        let hash = |body: &str| {
            let validated = read(&request(body.as_bytes(), &["k"]), PRODUCT);
            validated.expect("valid").hash
        };
        assert_eq!(hash(""), hash(""));
        assert_ne!(hash(""), hash("{}"));
    }

    proptest! {
        #[test]
        fn any_input_is_read_without_a_panic(body in prop::collection::vec(any::<u8>(), 0..200), field in "[ -~]{0,300}") {
            let _ = read(&request(&body, &[&field]), PRODUCT);
        }
    }
}
