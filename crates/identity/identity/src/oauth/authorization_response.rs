//! The authorization response: the URL that the browser is redirected to (RFC 6749 section 4.1.2, RFC 9207).

use url::form_urlencoded::byte_serialize;

/// Authorization error codes (RFC 6749 section 4.1.2.1, RFC 8707 section 2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum AuthorizationError {
    /// A parameter is missing, repeated or malformed.
    InvalidRequest,
    /// A response type other than `code`.
    UnsupportedResponseType,
    /// An unknown resource.
    InvalidTarget,
    /// None of the scopes exists for the resource.
    InvalidScope,
    /// The account owner denied the request.
    AccessDenied,
    /// An internal error.
    ServerError,
    /// A transient internal error.
    TemporarilyUnavailable,
}

impl AuthorizationError {
    /// The value on the wire.
    pub fn word(self) -> &'static str {
        match self {
            AuthorizationError::InvalidRequest => "invalid_request",
            AuthorizationError::UnsupportedResponseType => "unsupported_response_type",
            AuthorizationError::InvalidTarget => "invalid_target",
            AuthorizationError::InvalidScope => "invalid_scope",
            AuthorizationError::AccessDenied => "access_denied",
            AuthorizationError::ServerError => "server_error",
            AuthorizationError::TemporarilyUnavailable => "temporarily_unavailable",
        }
    }

    /// `error_description`: help for the developer of the client, in the characters of RFC 6749 section 4.1.2.1.
    pub fn description(self) -> &'static str {
        match self {
            AuthorizationError::InvalidRequest => {
                "A parameter is missing, repeated or malformed. Send response_type=code, code_challenge with code_challenge_method=S256, and a state of at most 2048 bytes, each once."
            }
            AuthorizationError::UnsupportedResponseType => "response_type must be code.",
            AuthorizationError::InvalidTarget => {
                "resource must be one of the protected resources in the metadata of this server."
            }
            AuthorizationError::InvalidScope => {
                "The resource has none of the requested scopes. Its metadata lists those that it has."
            }
            AuthorizationError::AccessDenied => "The account owner has not allowed access.",
            AuthorizationError::ServerError => "Internal error. Nothing was allowed.",
            AuthorizationError::TemporarilyUnavailable => {
                "The service is temporarily unavailable. Nothing was allowed; try again in a minute."
            }
        }
    }
}

/// The redirect URL of a response: the client's redirect URI with the response appended to its query.
///
/// `state` is returned unchanged, and `issuer` identifies the authorization server. Appended values are percent-encoded, so that no value
/// can end the query or a header field.
pub fn response_url(
    redirect_uri: &str,
    answer: Result<&str, AuthorizationError>,
    state: Option<&str>,
    issuer: &str,
) -> String {
    let mut address = String::with_capacity(redirect_uri.len() + 256);
    address.push_str(redirect_uri);
    let mut separator = match redirect_uri.split_once('?') {
        None => "?",
        Some((_, "")) => "",
        Some(_) => "&",
    };
    let (code, error) = (answer.ok(), answer.err());
    for (name, value) in [
        ("code", code),
        ("error", error.map(AuthorizationError::word)),
        (
            "error_description",
            error.map(AuthorizationError::description),
        ),
        ("state", state),
        ("iss", Some(issuer)),
    ] {
        let Some(value) = value else { continue };
        address.push_str(separator);
        address.push_str(name);
        address.push('=');
        address.extend(byte_serialize(value.as_bytes()));
        separator = "&";
    }
    address
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const ISSUER: &str = "https://api.svc.example";

    #[test]
    fn a_response_is_appended_to_the_registered_uri() {
        let scope = Err(AuthorizationError::InvalidScope);
        for (uri, answer, state, address) in [
            (
                "https://app.example/cb?x=1",
                scope,
                Some("a b&c"),
                "https://app.example/cb?x=1&error=invalid_scope&error_description=The+resource+has+none+of+the+requested+scopes.+Its+metadata+lists+those+that+it+has.&state=a+b%26c&iss=https%3A%2F%2Fapi.svc.example",
            ),
            (
                "https://app.example/cb",
                Ok("svc_ac_1"),
                None,
                "https://app.example/cb?code=svc_ac_1&iss=https%3A%2F%2Fapi.svc.example",
            ),
            (
                "https://app.example/cb?",
                Ok("svc_ac_1"),
                Some(""),
                "https://app.example/cb?code=svc_ac_1&state=&iss=https%3A%2F%2Fapi.svc.example",
            ),
            (
                "http://127.0.0.1:50999",
                Ok("svc_ac_1"),
                Some("\r\nSet-Cookie: a=b"),
                "http://127.0.0.1:50999?code=svc_ac_1&state=%0D%0ASet-Cookie%3A+a%3Db&iss=https%3A%2F%2Fapi.svc.example",
            ),
        ] {
            assert_eq!(response_url(uri, answer, state, ISSUER), address);
        }
    }

    proptest! {
        #[test]
        fn any_state_is_returned_to_the_client_unchanged(state in ".*") {
            let address = response_url("https://app.example/cb?x=1", Ok("c"), Some(&state), ISSUER);
            prop_assert!(address.bytes().all(|byte| byte.is_ascii_graphic()));
            let (_, query) = address.split_once('?').expect("a query");
            let read: Vec<_> = url::form_urlencoded::parse(query.as_bytes()).into_owned().collect();
            let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
            prop_assert_eq!(
                read,
                [pair("x", "1"), pair("code", "c"), pair("state", &state), pair("iss", ISSUER)]
            );
        }
    }
}
