//! Parsing of `scope` (RFC 6749 section 3.3).

use tollgate_filter::{Resource, Scope, Scopes};

/// The scopes of this service in a string. Other words are left out: programs add `openid` or `offline_access` to every request.
pub(crate) fn scopes_in(text: &str) -> Scopes {
    text.split(' ')
        .filter_map(Scope::named)
        .fold(Scopes::NONE, Scopes::with)
}

/// The scopes of the resource in a string.
pub(crate) fn scopes_at(resource: Resource, text: &str) -> Scopes {
    scopes_in(text)
        .iter()
        .filter(|scope| scope.resource() == resource)
        .fold(Scopes::NONE, Scopes::with)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6749_3_3_of_the_requested_scopes_those_of_the_resource_are_kept() {
        for (resource, text, found) in [
            (Resource::Api, "api:chat", "api:chat"),
            (
                Resource::Api,
                "api:chat  api:models api:chat",
                "api:models api:chat",
            ),
            (Resource::Api, "commerce:subscribe", "commerce:subscribe"),
            (Resource::Api, "api:chat mcp:chat", "api:chat"),
            (Resource::Api, "openid api:chat offline_access", "api:chat"),
            (Resource::Api, "API:chat", ""),
            (Resource::Api, "openid email profile", ""),
            (Resource::Api, "offline_access", ""),
            (Resource::Api, "mcp:chat mcp:android", ""),
            (Resource::Api, "", ""),
            (Resource::Api, "  ", ""),
            (Resource::Api, "api:chat\tapi:models", ""),
            (
                Resource::Mcp,
                "mcp:chat mcp:devices",
                "mcp:chat mcp:devices",
            ),
            (Resource::Mcp, "mcp:android", ""),
            (
                Resource::McpAndroid,
                "api:models api:chat mcp:android mcp:chat",
                "mcp:android",
            ),
        ] {
            let scopes = scopes_at(resource, text).to_string();
            assert_eq!(scopes, found, "{resource:?} {text:?}");
        }
        assert_eq!(
            Resource::Api.default_scopes().to_string(),
            "api:models api:chat api:completions"
        );
    }
}
