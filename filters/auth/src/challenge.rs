//! `WWW-Authenticate` challenges: how a client obtains a valid credential (RFC 6750 section 3, RFC 9728 section 5.1).
//!
//! Common client libraries read the first word of the field and then search the text for `name="value"`. So each value is one challenge,
//! and no parameter name is a suffix of another.

use http::HeaderValue;
use tollgate_filter::{RequiredAccess, Resource, Scopes, ServiceIdentity};

/// The path of protected resource metadata (RFC 9728 section 3).
const WELL_KNOWN: &str = "/.well-known/oauth-protected-resource";

/// A URL invalid in a header field.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{address}` cannot stand in a header field; use visible ASCII without quotes")]
pub struct AddressError {
    address: String,
}

/// The prebuilt challenges of one route.
#[derive(Clone, Debug)]
pub(crate) struct Challenges {
    /// No credential was sent: no `error`, which a client would take for a failure (RFC 6750 section 3.1).
    pub(crate) missing: HeaderValue,
    /// The credential is invalid.
    pub(crate) invalid_token: HeaderValue,
    /// The request is malformed.
    pub(crate) invalid_request: HeaderValue,
    /// A valid credential without the scope. Where any of several scopes opens the route, the challenge names every scope: a credential
    /// with the requested scopes then opens the whole route.
    pub(crate) insufficient_scope: HeaderValue,
}

impl Challenges {
    fn new(document: &str, scopes: Scopes) -> Result<Challenges, AddressError> {
        let sound = document
            .bytes()
            .all(|byte| byte.is_ascii_graphic() && byte != b'"' && byte != b'\\');
        if !sound {
            return Err(AddressError {
                address: document.to_owned(),
            });
        }
        let scope = scopes.to_string();
        let value = |parameters: String| {
            HeaderValue::try_from(format!("Bearer {parameters}"))
                .expect("the address was checked, and all else is ours")
        };
        let resource = format!("resource_metadata=\"{document}\"");
        Ok(Challenges {
            missing: value(format!("{resource}, scope=\"{scope}\"")),
            invalid_token: value(format!("error=\"invalid_token\", {resource}")),
            invalid_request: value(format!("error=\"invalid_request\", {resource}")),
            insufficient_scope: value(format!(
                "error=\"insufficient_scope\", scope=\"{scope}\", {resource}"
            )),
        })
    }
}

/// The challenges by request path. A client must only trust metadata of a resource that contains the requested URL (RFC 9728 section 3.3),
/// and not every operation of the API is below `/v1`.
#[derive(Debug)]
pub(crate) struct ByPath {
    /// The path of the resource with separate metadata.
    path: String,
    /// Challenges for the path with a final slash, the name of a separate resource (RFC 9728 section 3.3).
    slashed: Challenges,
    below: Challenges,
    elsewhere: Challenges,
}

impl ByPath {
    pub(crate) fn new(
        service: &ServiceIdentity,
        access: RequiredAccess,
    ) -> Result<ByPath, AddressError> {
        let name = match access.resource {
            Resource::Api => "/v1",
            Resource::Mcp => "/mcp",
            Resource::McpAndroid => "/mcp/android",
        };
        let document = format!("{}{WELL_KNOWN}{name}", service.base_url);
        let below = Challenges::new(&document, access.any_of)?;
        let slashed = Challenges::new(&format!("{document}/"), access.any_of)?;
        let elsewhere = match access.resource {
            Resource::Api => {
                Challenges::new(&format!("{}{WELL_KNOWN}", service.root_url), access.any_of)?
            }
            // The two MCP resources have no second URL.
            Resource::Mcp | Resource::McpAndroid => below.clone(),
        };
        Ok(ByPath {
            path: format!("{}{name}", path_of(&service.base_url)),
            slashed,
            below,
            elsewhere,
        })
    }

    /// The challenges for a request of this path.
    pub(crate) fn of(&self, path: &str) -> &Challenges {
        match path.strip_prefix(&*self.path) {
            Some("") => &self.below,
            Some("/") => &self.slashed,
            Some(rest) if rest.starts_with('/') => &self.below,
            _ => &self.elsewhere,
        }
    }
}

/// The part of a URL after its host.
fn path_of(url: &str) -> &str {
    let rest = url.split_once("://").map_or(url, |(_, rest)| rest);
    rest.find('/').map_or("", |slash| &rest[slash..])
}

#[cfg(test)]
mod tests {
    use tollgate_filter::Scope;

    use super::*;

    fn service(base_url: &str) -> ServiceIdentity {
        ServiceIdentity {
            name: String::from("svc"),
            base_url: base_url.to_owned(),
            root_url: String::from("https://svc.example"),
        }
    }

    #[test]
    fn a_challenge_names_the_document_of_the_resource_that_was_called() {
        let v1 = "https://api.svc.example/.well-known/oauth-protected-resource/v1";
        let root = "https://svc.example/.well-known/oauth-protected-resource";
        let android = "https://api.svc.example/.well-known/oauth-protected-resource/mcp/android";
        let deep = "https://svc.example/gate/.well-known/oauth-protected-resource/v1";
        let (plain, nested) = ("https://api.svc.example", "https://svc.example/gate");
        check(plain, Scope::ApiChat, "/v1/chat/completions", v1);
        check(plain, Scope::ApiModels, "/v1", v1);
        check(plain, Scope::ApiModels, "/v10/models", root);
        check(
            plain,
            Scope::CommerceSubscribe,
            "/commerce/subscriptions/svc-pro/mpp",
            root,
        );
        check(
            plain,
            Scope::CommerceSubscribe,
            "/ucp/v1/checkout-sessions",
            root,
        );
        check(plain, Scope::McpAndroid, "/mcp/android", android);
        check(plain, Scope::McpAndroid, "/an/alias", android);
        let slashed = format!("{android}/");
        check(plain, Scope::McpAndroid, "/mcp/android/", &slashed);
        check(nested, Scope::ApiChat, "/gate/v1/chat/completions", deep);
        check(nested, Scope::ApiChat, "/v1/chat/completions", root);

        fn check(base_url: &str, scope: Scope, path: &str, document: &str) {
            let challenges = ByPath::new(&service(base_url), RequiredAccess::of(scope))
                .expect("the addresses are sound");
            let missing = challenges.of(path).missing.to_str().expect("ASCII");
            assert_eq!(
                missing,
                format!(
                    "Bearer resource_metadata=\"{document}\", scope=\"{}\"",
                    scope.name()
                ),
                "{path} below {base_url}"
            );
        }
    }

    #[test]
    fn an_address_that_would_break_the_field_is_refused() {
        for base_url in [
            "https://a.example\"",
            "https://a.example\r\nx: y",
            "https://ä.example",
            "https://a b",
        ] {
            let made = ByPath::new(&service(base_url), RequiredAccess::of(Scope::ApiChat));
            assert!(made.is_err(), "{base_url:?}");
        }
    }
}
