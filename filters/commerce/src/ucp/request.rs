//! Parsing of checkout requests: create, update, complete, cancel.

use std::sync::Arc;

use serde_json::{Map, Value};
use tollgate_filter::{ApiError, ErrorCode, Unambiguous};
use tollgate_purchase::checkouts::CheckoutContent;

use super::wire::Notice;

/// Maximum size of the stored `buyer` object, in bytes.
const BUYER_BYTES_MAX: usize = 8 * 1024;

/// Maximum number of line items in a request; the plan is one.
const LINE_ITEMS_MAX: usize = 100;

/// A validated request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct CheckoutChange {
    pub(crate) content: CheckoutContent,
    /// Adjustments that the response must report.
    pub(crate) notices: Vec<Notice>,
}

/// A request that cannot be executed.
#[derive(Debug)]
pub(crate) enum InvalidRequest {
    /// Invalid request.
    Error(ApiError),
    /// An unknown product; its location.
    UnknownProduct {
        /// JSONPath (RFC 9535).
        path: String,
    },
}

impl From<ApiError> for InvalidRequest {
    fn from(error: ApiError) -> InvalidRequest {
        InvalidRequest::Error(error)
    }
}

/// `UcpCheckoutRequest`: the body and all members are optional. The default is the single plan for sale.
pub(crate) fn service(body: &[u8], product: &str) -> Result<CheckoutChange, InvalidRequest> {
    let mut members = match body.trim_ascii() {
        b"" => Map::new(),
        body => object(body)?,
    };
    match members.get("product_id") {
        None => {}
        Some(Value::String(id)) if id == product => {}
        Some(Value::String(_)) => {
            return Err(InvalidRequest::UnknownProduct {
                path: String::from("$.product_id"),
            });
        }
        Some(_) => return Err(wrong_type("product_id", "a string").into()),
    }
    let lines = match members.remove("line_items") {
        None => LineItems::default(),
        Some(lines) => read_lines(lines, product, false)?,
    };
    let notices = lines.notices()?;
    Ok(CheckoutChange {
        content: CheckoutContent {
            has_plan: true,
            buyer: buyer(&mut members)?,
        },
        notices,
    })
}

/// The protocol's create or update request (UCP 2026-04-08, Checkout, `ucp_request` of the schema): `line_items` is required; members owned
/// by the business are ignored.
pub(crate) fn protocol(body: &[u8], product: &str) -> Result<CheckoutChange, InvalidRequest> {
    let mut members = object(body)?;
    let lines = match members.remove("line_items") {
        Some(lines) => read_lines(lines, product, true)?,
        None => return Err(missing("line_items").into()),
    };
    objects(&members, &["context", "signals", "attribution", "payment"])?;
    let mut notices = lines.notices()?;
    // Eligibility claims: one price for every buyer.
    let claims = members
        .get("context")
        .and_then(|context| context.get("eligibility"));
    if claims
        .and_then(Value::as_array)
        .is_some_and(|claims| !claims.is_empty())
    {
        notices.push(Notice::EligibilityNotAccepted);
    }
    Ok(CheckoutChange {
        content: CheckoutContent {
            has_plan: lines.wanted > 0,
            buyer: buyer(&mut members)?,
        },
        notices,
    })
}

/// The protocol's complete request: `payment` is required. No payment handler is offered, so the content of `payment` is ignored.
pub(crate) fn complete(body: &[u8]) -> Result<(), ApiError> {
    let members = object(body)?;
    if !members.contains_key("payment") {
        return Err(missing("payment"));
    }
    objects(&members, &["payment", "signals", "attribution"])
}

/// An optional body whose content is ignored.
pub(crate) fn cancel(body: &[u8]) -> Result<(), ApiError> {
    match body.trim_ascii() {
        b"" => Ok(()),
        body => object(body).map(|_| ()),
    }
}

#[derive(Default)]
struct LineItems {
    /// Requested quantity of the plan.
    wanted: u64,
    /// Location of the first unknown product.
    unknown: Option<String>,
}

impl LineItems {
    /// Adjustments to report; an error if nothing is left to buy.
    fn notices(&self) -> Result<Vec<Notice>, InvalidRequest> {
        let mut notices = Vec::new();
        match &self.unknown {
            Some(path) if self.wanted == 0 => {
                return Err(InvalidRequest::UnknownProduct { path: path.clone() });
            }
            Some(_) => notices.push(Notice::ItemUnavailable),
            None => {}
        }
        if self.wanted > 1 {
            notices.push(Notice::QuantityAdjusted);
        }
        Ok(notices)
    }
}

fn read_lines(lines: Value, product: &str, strict: bool) -> Result<LineItems, InvalidRequest> {
    let Value::Array(lines) = lines else {
        return Err(wrong_type("line_items", "an array of objects").into());
    };
    if lines.len() > LINE_ITEMS_MAX {
        let message = format!(
            "`line_items` has more than {LINE_ITEMS_MAX} elements; the plan is bought once."
        );
        return Err(ApiError::new(ErrorCode::OutOfRange, message)
            .param("line_items")
            .into());
    }
    let mut found = LineItems::default();
    for (number, line) in lines.iter().enumerate() {
        let at = format!("line_items[{number}]");
        let Value::Object(line) = line else {
            return Err(wrong_type(&at, "an object").into());
        };
        let id = match line.get("item") {
            Some(Value::Object(item)) => item.get("id"),
            Some(_) => return Err(wrong_type(&format!("{at}.item"), "an object").into()),
            None => None,
        };
        match id {
            Some(Value::String(id)) if id == product => {}
            Some(Value::String(_)) => {
                found.unknown.get_or_insert(format!("$.{at}"));
                continue;
            }
            Some(_) => return Err(wrong_type(&format!("{at}.item.id"), "a string").into()),
            None if strict => return Err(missing(&format!("{at}.item.id")).into()),
            // In the service's format, line items are free-form: one without a product id means the plan.
            None => {}
        }
        let quantity = match line.get("quantity") {
            None => 1,
            Some(quantity) => match quantity.as_u64() {
                Some(quantity @ 1..) => quantity,
                _ if quantity.is_number() => {
                    let param = format!("{at}.quantity");
                    let message = format!("`{param}` must be an integer of at least 1.");
                    return Err(ApiError::new(ErrorCode::OutOfRange, message)
                        .param(param)
                        .into());
                }
                _ => return Err(wrong_type(&format!("{at}.quantity"), "a whole number").into()),
            },
        };
        found.wanted = found.wanted.saturating_add(quantity);
    }
    Ok(found)
}

/// The `buyer` object, stored to be returned.
fn buyer(members: &mut Map<String, Value>) -> Result<Option<Arc<str>>, ApiError> {
    let Some(buyer) = members.remove("buyer") else {
        return Ok(None);
    };
    let Value::Object(members) = &buyer else {
        return Err(wrong_type("buyer", "an object"));
    };
    for name in ["first_name", "last_name", "email", "phone_number"] {
        if members.get(name).is_some_and(|value| !value.is_string()) {
            return Err(wrong_type(&format!("buyer.{name}"), "a string"));
        }
    }
    let text = buyer.to_string();
    if text.len() > BUYER_BYTES_MAX {
        let message = format!("`buyer` has more than {BUYER_BYTES_MAX} bytes.");
        return Err(ApiError::new(ErrorCode::OutOfRange, message).param("buyer"));
    }
    Ok(Some(Arc::from(text)))
}

fn object(body: &[u8]) -> Result<Map<String, Value>, ApiError> {
    match serde_json::from_slice(body) {
        Ok(Unambiguous(Value::Object(members))) => Ok(members),
        Ok(_) => Err(ApiError::new(
            ErrorCode::InvalidType,
            "The body must be a JSON object.",
        )),
        Err(_) => Err(ApiError::new(
            ErrorCode::InvalidJson,
            "The body is not valid JSON, or a member occurs twice.",
        )),
    }
}

fn objects(members: &Map<String, Value>, names: &[&str]) -> Result<(), ApiError> {
    let wrong = names
        .iter()
        .find(|name| members.get(**name).is_some_and(|value| !value.is_object()));
    match wrong {
        Some(name) => Err(wrong_type(name, "an object")),
        None => Ok(()),
    }
}

fn missing(param: &str) -> ApiError {
    ApiError::new(ErrorCode::MissingField, format!("`{param}` is missing.")).param(param)
}

fn wrong_type(param: &str, what: &str) -> ApiError {
    ApiError::new(ErrorCode::InvalidType, format!("`{param}` is {what}.")).param(param)
}

#[cfg(test)]
mod tests {
    use super::*;

    const PRODUCT: &str = "svc-pro-monthly";

    /// Expected result of a body: has the plan and was adjusted, or the error code, or the location of an unknown product.
    type Parsed = Result<(bool, bool), String>;

    fn parsed(change: Result<CheckoutChange, InvalidRequest>) -> Parsed {
        match change {
            Ok(change) => Ok((change.content.has_plan, !change.notices.is_empty())),
            Err(InvalidRequest::UnknownProduct { path }) => Err(path),
            Err(InvalidRequest::Error(error)) => Err(error.code.word().to_owned()),
        }
    }

    #[test]
    fn a_body_of_the_service_may_be_empty() {
        let one: Parsed = Ok((true, false));
        let error = |code: &str| -> Parsed { Err(code.to_owned()) };
        for (body, expected) in [
            ("", one.clone()),
            ("  \n", one.clone()),
            ("{}", one.clone()),
            (
                r#"{"product_id":"svc-pro-monthly","more":[1]}"#,
                one.clone(),
            ),
            (r#"{"line_items":[]}"#, one.clone()),
            (r#"{"line_items":[{}]}"#, one.clone()),
            (
                r#"{"line_items":[{"item":{"id":"svc-pro-monthly"},"quantity":1}]}"#,
                one,
            ),
            (r#"{"line_items":[{"quantity":3}]}"#, Ok((true, true))),
            (r#"{"product_id":"other"}"#, error("$.product_id")),
            (
                r#"{"line_items":[{"item":{"id":"other"}}]}"#,
                error("$.line_items[0]"),
            ),
            (r#"{"product_id":1}"#, error("invalid_type")),
            (r#"{"product_id":null}"#, error("invalid_type")),
            (r#"{"line_items":{}}"#, error("invalid_type")),
            (r#"{"line_items":[1]}"#, error("invalid_type")),
            (r#"{"line_items":[{"quantity":0}]}"#, error("out_of_range")),
            (
                r#"{"line_items":[{"quantity":1.5}]}"#,
                error("out_of_range"),
            ),
            (
                r#"{"line_items":[{"quantity":"1"}]}"#,
                error("invalid_type"),
            ),
            ("[]", error("invalid_type")),
            ("null", error("invalid_type")),
            ("{", error("invalid_json")),
            (r#"{"a":1,"a":1}"#, error("invalid_json")),
        ] {
            assert_eq!(
                parsed(service(body.as_bytes(), PRODUCT)),
                expected,
                "{body}"
            );
        }
    }

    #[test]
    fn a_body_of_the_protocol_names_the_product() {
        let error = |code: &str| -> Parsed { Err(code.to_owned()) };
        let line = r#"{"item":{"id":"svc-pro-monthly"},"quantity":1}"#;
        for (body, expected) in [
            (format!(r#"{{"line_items":[{line}]}}"#), Ok((true, false))),
            (
                format!(r#"{{"line_items":[{line},{line}]}}"#),
                Ok((true, true)),
            ),
            (
                format!(r#"{{"line_items":[{line}],"status":"completed","id":7,"totals":1}}"#),
                Ok((true, false)),
            ),
            (String::from(r#"{"line_items":[]}"#), Ok((false, false))),
            (
                String::from(r#"{"line_items":[{"item":{"id":"other"},"quantity":1}]}"#),
                error("$.line_items[0]"),
            ),
            (
                format!(r#"{{"line_items":[{line},{{"item":{{"id":"x"}}}}]}}"#),
                Ok((true, true)),
            ),
            (
                String::from(r#"{"line_items":[{"quantity":1}]}"#),
                error("missing_field"),
            ),
            (String::from("{}"), error("missing_field")),
            (String::new(), error("invalid_json")),
            (
                format!(r#"{{"line_items":[{line}],"payment":[]}}"#),
                error("invalid_type"),
            ),
            (
                format!(r#"{{"line_items":[{line}],"buyer":"me"}}"#),
                error("invalid_type"),
            ),
            (
                format!(r#"{{"line_items":[{line}],"buyer":{{"email":1}}}}"#),
                error("invalid_type"),
            ),
        ] {
            assert_eq!(
                parsed(protocol(body.as_bytes(), PRODUCT)),
                expected,
                "{body}"
            );
        }
        let long = format!(
            r#"{{"line_items":[],"buyer":{{"x":"{}"}}}}"#,
            "a".repeat(BUYER_BYTES_MAX)
        );
        assert_eq!(
            parsed(protocol(long.as_bytes(), PRODUCT)),
            error("out_of_range")
        );
        let many = format!(
            r#"{{"line_items":[{}]}}"#,
            vec![line; LINE_ITEMS_MAX + 1].join(",")
        );
        assert_eq!(
            parsed(protocol(many.as_bytes(), PRODUCT)),
            error("out_of_range")
        );
    }

    #[test]
    fn completing_needs_a_payment_and_cancelling_nothing() {
        let code = |done: Result<(), ApiError>| done.map_err(|error| error.code.word());
        for (body, expected) in [
            (r#"{"payment":{}}"#, Ok(())),
            (r#"{"payment":{"instruments":[]},"signals":{}}"#, Ok(())),
            ("{}", Err("missing_field")),
            (r#"{"payment":1}"#, Err("invalid_type")),
            ("", Err("invalid_json")),
        ] {
            assert_eq!(code(complete(body.as_bytes())), expected, "{body}");
        }
        for (body, expected) in [("", Ok(())), ("{}", Ok(())), ("[]", Err("invalid_type"))] {
            assert_eq!(code(cancel(body.as_bytes())), expected, "{body}");
        }
    }
}
