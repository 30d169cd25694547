//! Refusals of authentication and authorization, in the client's view.
//!
//! Unknown, malformed, expired and revoked credentials get one response, so that guessing reveals no information.

use std::time::Duration;

use http::{HeaderValue, header};
use tollgate_filter::{ApiError, ErrorCode, RequiredAccess, Resource};

use crate::bearer::Unreadable;
use crate::challenge::Challenges;

/// Why a request is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    /// No credential.
    Missing,
    /// A malformed `Authorization`.
    Unreadable(Unreadable),
    /// More than one payment credential.
    PaymentTwice,
    /// `Authorization` holds a payment credential, without an account credential.
    OnlyPayment,
    /// The field for the account credential next to a payment credential is malformed.
    NoBearer,
    /// Two different account credentials.
    Differ,
    /// An unknown, expired or revoked credential.
    Invalid,
    /// The revocations of other nodes are unknown here at the moment.
    Outdated,
    /// The credential is not in memory, and could not be read.
    NotRead,
    /// The credential is not in memory, and the address has sent too many unknown credentials.
    Misses {
        /// Wait until the next permitted credential.
        wait: Duration,
    },
    /// The credential is bound to another resource.
    WrongResource,
    /// The account is suspended.
    Suspended,
    /// The API key lacks the scope.
    KeyLacksScope,
    /// The access token lacks the scope.
    TokenLacksScope,
    /// A key in the URL, and perhaps another in the header.
    InAddress {
        /// Whether the header has a key, too.
        also_in_header: bool,
    },
}

/// The route's details in a refusal.
pub(crate) struct RefusalContext<'a> {
    pub(crate) challenges: &'a Challenges,
    pub(crate) access: RequiredAccess,
    /// The prefix of a valid credential.
    pub(crate) form: &'a str,
    /// The page for creating such a credential.
    pub(crate) keys_url: &'a str,
    /// The field for an account credential next to a payment credential, where the route has one.
    pub(crate) other_field: &'a str,
    /// Whether the request has an access token, valid or not.
    pub(crate) has_token: bool,
}

impl RefusalContext<'_> {
    /// The expected credential, as text.
    fn wanted(&self) -> &'static str {
        match self.access.resource {
            Resource::Api => "your API key",
            Resource::Mcp | Resource::McpAndroid => "an access token for this resource",
        }
    }

    /// How to obtain a credential, for a person or a program without a valid credential.
    fn obtain(&self) -> String {
        match self.access.resource {
            Resource::Api if self.has_token => String::from(
                "An app gets another token with its refresh token, or asks for authorization again; `resource_metadata` in `WWW-Authenticate` says where.",
            ),
            Resource::Api => format!("A signed-in person makes API keys on {}.", self.keys_url),
            Resource::Mcp | Resource::McpAndroid => String::from(
                "`resource_metadata` in `WWW-Authenticate` says where access tokens are issued.",
            ),
        }
    }

    /// The missing scope as text: one, or one of several.
    fn scopes(&self) -> String {
        let names: Vec<String> = self
            .access
            .any_of
            .iter()
            .map(|scope| format!("`{}`", scope.name()))
            .collect();
        match names.as_slice() {
            [one] => format!("the scope {one}"),
            several => format!("a scope of this resource ({})", several.join(", ")),
        }
    }
}

impl Refusal {
    /// The error response of the refusal.
    pub(crate) fn error(self, context: &RefusalContext<'_>) -> ApiError {
        let RefusalContext {
            challenges, form, ..
        } = context;
        match self {
            Refusal::Missing => challenged(
                ErrorCode::MissingCredential,
                format!(
                    "This path requires a credential. Send {} in the header `Authorization: Bearer {form}...`. {}",
                    context.wanted(),
                    context.obtain()
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
                    "The `Authorization` header cannot be read. Send `Authorization: Bearer {form}...`, with one space and without quotes."
                ),
                &challenges.invalid_request,
            ),
            Refusal::PaymentTwice => challenged(
                ErrorCode::InvalidHeader,
                String::from("There is more than one `Payment` credential. Send one."),
                &challenges.invalid_request,
            ),
            Refusal::OnlyPayment => challenged(
                ErrorCode::MissingCredential,
                format!(
                    "`Authorization` has the payment credential, so send {} in a second header: `{}: Bearer {form}...`.",
                    context.wanted(),
                    context.other_field
                ),
                &challenges.missing,
            ),
            Refusal::NoBearer => challenged(
                ErrorCode::InvalidCredential,
                format!(
                    "`{}` has no credential that is valid here. Send `{0}: Bearer {form}...`, once.",
                    context.other_field
                ),
                &challenges.invalid_token,
            ),
            Refusal::Differ => challenged(
                ErrorCode::InvalidHeader,
                format!(
                    "`Authorization` and `{}` have two different credentials. Send one of them, or the same in both.",
                    context.other_field
                ),
                &challenges.invalid_request,
            ),
            Refusal::Invalid => challenged(
                ErrorCode::InvalidCredential,
                format!(
                    "The credential is not valid: it is unknown, expired or revoked. Check that all of it was copied, or use another one. {}",
                    context.obtain()
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
            Refusal::Outdated => ApiError::new(
                ErrorCode::StoreUnavailable,
                "The gateway cannot read at the moment which credentials other nodes have revoked. Try again in a second.",
            )
            .retry_after(Duration::from_secs(1)),
            Refusal::NotRead => ApiError::new(
                ErrorCode::StoreUnavailable,
                "The gateway cannot read its database at the moment. Try again in a second.",
            )
            .retry_after(Duration::from_secs(1)),
            Refusal::Misses { wait } => ApiError::new(
                ErrorCode::RateLimitExceeded,
                "This address has sent too many credentials that do not exist. Check the credential, and try again later.",
            )
            .retry_after(wait),
            Refusal::Suspended => ApiError::new(
                ErrorCode::AccountSuspended,
                "The account is suspended. Write to the operator of this service.",
            ),
            Refusal::KeyLacksScope => ApiError::new(
                ErrorCode::KeyNotPermitted,
                format!(
                    "This API key may not do this: it lacks {}. Use a key that has it.",
                    context.scopes()
                ),
            ),
            Refusal::TokenLacksScope => challenged(
                ErrorCode::InsufficientScope,
                format!(
                    "The token lacks {}. Ask for authorization again, with what the challenge names.",
                    context.scopes()
                ),
                &challenges.insufficient_scope,
            ),
            Refusal::InAddress {
                also_in_header: false,
            } => challenged(
                ErrorCode::MissingCredential,
                format!(
                    "The URL contains a credential. URLs are logged, so it must be treated as disclosed: revoke it, create another one, and send that in the header `Authorization: Bearer {form}...`. {}",
                    context.obtain()
                ),
                &challenges.missing,
            ),
            Refusal::InAddress {
                also_in_header: true,
            } => challenged(
                ErrorCode::InvalidRequest,
                String::from(
                    "The URL contains a credential, in addition to the header. URLs are logged, so it must be treated as disclosed: revoke it, and remove it from the URL.",
                ),
                &challenges.invalid_request,
            ),
        }
    }
}

fn challenged(code: ErrorCode, message: String, challenge: &HeaderValue) -> ApiError {
    ApiError::new(code, message).header(header::WWW_AUTHENTICATE, challenge.clone())
}
