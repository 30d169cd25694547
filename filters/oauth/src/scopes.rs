//! Parsing of `scope` (RFC 6749 section 3.3).

use tollgate_filter::{Resource, Scope, Scopes};

/// The scopes in a string, all of which belong to the resource. `None` if there is another one, or none at all.
pub(crate) fn scopes_at(resource: Resource, text: &str) -> Option<Scopes> {
    let mut scopes = Scopes::NONE;
    for name in text.split(' ').filter(|name| !name.is_empty()) {
        let scope = Scope::named(name).filter(|scope| scope.resource() == resource)?;
        scopes = scopes.with(scope);
    }
    (!scopes.is_empty()).then_some(scopes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rfc6749_3_3_scopes_are_a_set_of_words_of_one_resource() {
        for (resource, text, found) in [
            (Resource::Api, "api:chat", Some("api:chat")),
            (
                Resource::Api,
                "api:chat  api:models api:chat",
                Some("api:models api:chat"),
            ),
            (
                Resource::Api,
                "commerce:subscribe",
                Some("commerce:subscribe"),
            ),
            (Resource::Api, "API:chat", None),
            (Resource::Api, "api:chat mcp:chat", None),
            (Resource::Api, "api:chat openid", None),
            (Resource::Api, "offline_access", None),
            (Resource::Api, "", None),
            (Resource::Api, "  ", None),
            (Resource::Api, "api:chat\tapi:models", None),
            (
                Resource::Mcp,
                "mcp:chat mcp:devices",
                Some("mcp:chat mcp:devices"),
            ),
            (Resource::Mcp, "mcp:android", None),
            (Resource::McpAndroid, "mcp:android", Some("mcp:android")),
        ] {
            let scopes = scopes_at(resource, text).map(|scopes| scopes.to_string());
            assert_eq!(scopes.as_deref(), found, "{resource:?} {text:?}");
        }
        assert_eq!(
            Resource::Api.default_scopes().to_string(),
            "api:models api:chat api:completions"
        );
    }
}
