//! The access requirements of a route: a resource and its scopes.

use crate::{Resource, Scope, Scopes};

/// The access that a credential must have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredAccess {
    /// The resource that the credential must be bound to (RFC 8707).
    pub resource: Resource,
    /// The credential must have at least one of these scopes.
    pub any_of: Scopes,
}

/// Scopes that cannot be combined on one route.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AccessError {
    /// No scope: no credential could be admitted.
    #[error("no scope is named; name at least one")]
    NoScope,
    /// The scopes belong to different resources, but a credential is bound to a single resource.
    #[error("`{0}` and `{1}` belong to different resources; name scopes of one")]
    Mixed(&'static str, &'static str),
}

impl RequiredAccess {
    /// The access required by an operation of the scope; a scope belongs to a single resource.
    pub fn of(scope: Scope) -> RequiredAccess {
        RequiredAccess {
            resource: scope.resource(),
            any_of: Scopes::NONE.with(scope),
        }
    }

    /// The access to a route that any of the scopes opens. The route checks the scope of an operation itself.
    pub fn any_of(scopes: Scopes) -> Result<RequiredAccess, AccessError> {
        let mut all = scopes.iter();
        let first = all.next().ok_or(AccessError::NoScope)?;
        let resource = first.resource();
        match all.find(|&scope| scope.resource() != resource) {
            Some(other) => Err(AccessError::Mixed(first.name(), other.name())),
            None => Ok(RequiredAccess {
                resource,
                any_of: scopes,
            }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_side_by_side_are_of_one_resource() {
        let of = |scopes: &[Scope]| {
            let set = scopes.iter().fold(Scopes::NONE, |set, &one| set.with(one));
            RequiredAccess::any_of(set).map(|access| access.resource)
        };
        assert_eq!(of(&[]), Err(AccessError::NoScope));
        assert_eq!(of(&[Scope::McpChat, Scope::McpDevices]), Ok(Resource::Mcp));
        assert_eq!(of(&[Scope::McpAndroid]), Ok(Resource::McpAndroid));
        assert_eq!(
            of(&[Scope::McpChat, Scope::McpAndroid]),
            Err(AccessError::Mixed("mcp:android", "mcp:chat"))
        );
        assert_eq!(
            of(&[Scope::ApiChat, Scope::McpChat]),
            Err(AccessError::Mixed("api:chat", "mcp:chat"))
        );
    }

    #[test]
    fn one_scope_asks_for_itself_at_its_resource() {
        for scope in Scope::ALL {
            let alone = RequiredAccess::any_of(Scopes::NONE.with(scope));
            assert_eq!(alone, Ok(RequiredAccess::of(scope)), "{}", scope.name());
        }
    }
}
