//! Error codes, generated from the table of the API.

use maud::{Markup, html};
use tollgate_filter::{CODES, ErrorCode, ErrorType};
use tollgate_pages::parts;

use super::section::Section;
use crate::context::PortalContext;

const EXAMPLE: &str = r#"{
  "error": {
    "message": "`temperature` must be at least 0.",
    "type": "invalid_request_error",
    "param": "temperature",
    "code": "out_of_range"
  }
}"#;

pub(super) fn sections(_: &PortalContext) -> Vec<Section> {
    vec![
        Section {
            anchor: "shape",
            heading: "Error format",
            content: html! {
                p { "Every error is JSON in this format. Programs should use " code { "code" } "; the message is for people and may change." }
                (parts::code("example", "An error", EXAMPLE))
                p {
                    "The field " code { "x-request-id" } " of every response contains the request id; include it in questions about a request. Responses of "
                    code { "/oauth/" } " use the OAuth error format, and a 402 of a payment address that of its protocol."
                }
            },
        },
        Section {
            anchor: "codes",
            heading: "Every code",
            content: html! {
                (table())
                p {
                    "A code with a dot, such as " code { "name.code" } ", is one of a filter that the operator of this service has added. It is not in "
                    "this table: the part before the dot is the filter's name, the message says what to do, and the operator's documentation "
                    "lists it."
                }
            },
        },
        Section {
            anchor: "retrying",
            heading: "Retries",
            content: html! {
                p {
                    "Wait for the time in " code { "Retry-After" } ". Without it, retry 500 to 504 with exponential backoff: after one second, twice that "
                    "the next time, and so on. Send an " code { "Idempotency-Key" } " with a request: the same key with the same body is answered and "
                    "charged once, however often it is sent."
                }
                p { "A request that failed before its answer began is never charged." }
            },
        },
    ]
}

fn table() -> Markup {
    html! {
        div.scroll.words tabindex="0" role="region" aria-label="Table of error codes" {
            table.rows role="table" aria-label="Error codes" {
                thead role="rowgroup" {
                    tr role="row" {
                        @for head in ["Code", "Status and type", "Means", "Do"] { th role="columnheader" scope="col" { (head) } }
                    }
                }
                tbody role="rowgroup" {
                    @for code in CODES {
                        tr role="row" id=(code.word()) {
                            th role="rowheader" scope="row" { a.anchor href={ "#" (code.word()) } { code { (code.word()) } } }
                            td role="cell" { b { (code.status().as_u16()) } " " code.second { (code.kind().word()) } }
                            td role="cell" { (code.means()) }
                            td role="cell" data-label="Do" { (remedy(*code)) }
                        }
                    }
                }
            }
        }
    }
}

/// Remedy of an error: specific to the code, or by its type.
fn remedy(code: ErrorCode) -> &'static str {
    match code {
        ErrorCode::ModelNotSupported => "Name a model that GET /v1/models lists.",
        ErrorCode::UpstreamRejected => "Read the message: it is the model provider’s.",
        ErrorCode::ContextLengthExceeded => {
            "Send less: shorten the conversation, or ask for less output."
        }
        ErrorCode::ContentFilter => "Change the content.",
        ErrorCode::UnsupportedParameter => "Leave out the member that param names.",
        ErrorCode::UnsupportedValue => "Change the member that param names.",
        ErrorCode::MissingCredential => "Send Authorization: Bearer with a key or token.",
        ErrorCode::InvalidCredential => {
            "Discard the credential. Use another key, or sign in again."
        }
        ErrorCode::WrongResource => "Ask for a token for this resource.",
        ErrorCode::InsufficientScope => {
            "Ask for authorization again, with the scope in the challenge."
        }
        ErrorCode::KeyNotPermitted => "Use a key that may call this.",
        ErrorCode::KeySpendingCap => "Use a key with a larger cap, or wait for the next month.",
        ErrorCode::AccountSuspended => "Ask the operator.",
        ErrorCode::NotFound => "Check the address.",
        ErrorCode::MethodNotAllowed => "Use a method that the field Allow lists.",
        ErrorCode::IdempotencyConflict => "Use another Idempotency-Key for another request.",
        ErrorCode::InProgress => "Wait for the first request, then send it again.",
        ErrorCode::BodyTooLarge => "Send a smaller body.",
        ErrorCode::ConcurrencyExceeded => "Wait for some of your requests to finish.",
        ErrorCode::RequestTimeout => "Send the complete request again, without delay.",
        _ => match code.kind() {
            ErrorType::InvalidRequest => "Change the request as the message says.",
            ErrorType::Authentication => "Use another credential.",
            ErrorType::InsufficientCredits => "Add credits, or ask for less.",
            ErrorType::PaymentRequired => "Pay as the response describes.",
            ErrorType::Permission => "Ask for the permission.",
            ErrorType::RateLimit => "Wait for the time in Retry-After.",
            ErrorType::Server => "Try again. If it persists, report the request id.",
            ErrorType::Upstream => "Try again, or use another model.",
            _ => "Try again in a moment.",
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_error_code_has_an_anchor_a_meaning_and_a_remedy() {
        let table = table().into_string();
        for code in CODES {
            assert!(
                table.contains(&format!("id=\"{}\"", code.word())),
                "{code:?}"
            );
            assert!(
                code.means().ends_with('.') && !code.means().starts_with(' '),
                "{code:?}: {:?}",
                code.means()
            );
            assert!(remedy(*code).ends_with('.'), "{code:?}");
        }
    }
}
