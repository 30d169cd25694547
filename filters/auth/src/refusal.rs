//! What a client is told when it is not let in.
//!
//! Unknown, malformed, expired and revoked are one answer: whoever tries texts learns nothing from it.

use http::{HeaderValue, header};
use tollgate_filter::{ApiError, ErrorCode, Scope};

use crate::bearer::Unreadable;
use crate::challenge::Challenges;

/// Why a request is not let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// It has no credential.
    Missing,
    /// Its `Authorization` cannot be understood.
    Unreadable(Unreadable),
    /// Its credential is not one of ours, or does not work any more.
    Invalid,
    /// Its credential works at another resource.
    WrongResource,
    /// The account is barred.
    Suspended,
    /// The key was not given the right.
    KeyLacksScope,
    /// The token was not given the right.
    TokenLacksScope,
    /// There is a key in the address, and perhaps one where it belongs.
    InAddress {
        /// Whether there is.
        also_in_header: bool,
    },
}

impl Refusal {
    /// The refusal as the client is told. `key` is how keys begin.
    pub(crate) fn error(self, challenges: &Challenges, scope: Scope, key: &str) -> ApiError {
        match self {
            Refusal::Missing => challenged(
                ErrorCode::MissingCredential,
                format!(
                    "This address needs a credential. Send your API key in the header `Authorization: Bearer {key}...`."
                ),
                &challenges.missing,
            ),
            Refusal::Unreadable(Unreadable::Twice) => challenged(
                ErrorCode::InvalidHeader,
                String::from("There is more than one `Authorization` header. Send one."),
                &challenges.invalid_request,
            ),
            Refusal::Unreadable(Unreadable::Malformed) => challenged(
                ErrorCode::InvalidHeader,
                format!(
                    "The `Authorization` header cannot be read. Send `Authorization: Bearer {key}...`, with one space and without quotes."
                ),
                &challenges.invalid_request,
            ),
            Refusal::Invalid => challenged(
                ErrorCode::InvalidCredential,
                String::from(
                    "The credential is not valid: it is unknown, expired or revoked. Check that all of it was copied, or use another one.",
                ),
                &challenges.invalid_token,
            ),
            Refusal::WrongResource => challenged(
                ErrorCode::WrongResource,
                String::from(
                    "The credential belongs to another resource of this service. Use one that was made for this address.",
                ),
                &challenges.invalid_token,
            ),
            Refusal::Suspended => ApiError::new(
                ErrorCode::AccountSuspended,
                "The account is suspended. Write to the operator of this service.",
            ),
            Refusal::KeyLacksScope => ApiError::new(
                ErrorCode::KeyNotPermitted,
                format!(
                    "This API key may not do this: it lacks `{}`. Use a key that has it.",
                    scope.name()
                ),
            ),
            Refusal::TokenLacksScope => challenged(
                ErrorCode::InsufficientScope,
                format!(
                    "The token lacks the scope `{}`. Ask for authorization again, with that scope.",
                    scope.name()
                ),
                &challenges.insufficient_scope,
            ),
            Refusal::InAddress {
                also_in_header: false,
            } => challenged(
                ErrorCode::MissingCredential,
                format!(
                    "A key in the address is not accepted, since addresses end up in logs. Revoke that key, and send a new one in the header `Authorization: Bearer {key}...`."
                ),
                &challenges.missing,
            ),
            Refusal::InAddress {
                also_in_header: true,
            } => challenged(
                ErrorCode::InvalidRequest,
                String::from(
                    "There is a key in the address as well as in the header. Addresses end up in logs: revoke that key, and leave it out of the address.",
                ),
                &challenges.invalid_request,
            ),
        }
    }
}

fn challenged(code: ErrorCode, message: String, challenge: &HeaderValue) -> ApiError {
    ApiError::new(code, message).header(header::WWW_AUTHENTICATE, challenge.clone())
}
