//! What a route asks of a credential.

use tollgate_filter::{Resource, Scope};

/// What a credential must have to be let in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequiredAccess {
    /// The resource it must be bound to (RFC 8707).
    pub resource: Resource,
    /// The scope it must have.
    pub scope: Scope,
}

impl RequiredAccess {
    /// What an operation that needs this scope asks for: every scope belongs to one resource.
    pub fn of(scope: Scope) -> RequiredAccess {
        let resource = match scope {
            Scope::ApiModels
            | Scope::ApiChat
            | Scope::ApiCompletions
            | Scope::CommerceSubscribe => Resource::Api,
            Scope::McpChat | Scope::McpProjects | Scope::McpDevices => Resource::Mcp,
            Scope::McpAndroid => Resource::McpAndroid,
        };
        RequiredAccess { resource, scope }
    }
}
