//! The principal: the authenticated account and its credential.

use std::fmt;
use std::sync::Arc;

use tollgate_money::{AccountId, CredentialId, SpendingCap};

/// The authenticated party of an exchange. Put on the exchange by `auth`.
#[derive(Clone, Debug)]
pub struct Principal {
    /// The account that owns the credential, and pays.
    pub account: AccountId,
    /// The credential.
    pub credential: CredentialId,
    /// The credential's kind.
    pub kind: CredentialKind,
    /// The credential's scopes.
    pub scopes: Scopes,
    /// The rate class of the account.
    pub class: Arc<str>,
    /// The models the credential may use.
    pub models: ModelAccess,
    /// The accounts that share cached responses with the account.
    pub sharing: CacheSharing,
    /// The credential's spending cap, if any.
    pub spending_cap: Option<SpendingCap>,
}

/// The accounts that share cached responses with an account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CacheSharing {
    /// Every account with `Shared`, within the limits of the service's setting.
    #[default]
    Shared,
    /// No other account: the account receives only its own stored responses.
    Account,
    /// No caching: no response of the account is stored, and no stored response is sent to the account.
    Off,
}

/// A later check whether a long-lived exchange may go on. Put on the exchange by `auth`. For relayed requests: whether the credential is
/// still valid. For the API, whose responses end by themselves: whether the account is still active.
pub struct CredentialCheck(Box<dyn Fn() -> bool + Send + Sync>);

impl CredentialCheck {
    /// A check that calls a function.
    pub fn new(check: impl Fn() -> bool + Send + Sync + 'static) -> CredentialCheck {
        CredentialCheck(Box::new(check))
    }

    /// Whether the exchange may go on now. In memory, and fast.
    pub fn is_valid(&self) -> bool {
        (self.0)()
    }
}

/// The kinds of credential.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CredentialKind {
    /// A developer key created on the dashboard or the command line.
    ApiKey,
    /// An OAuth access token.
    AccessToken,
}

/// The models a credential may use.
#[derive(Clone, Debug, Default)]
pub enum ModelAccess {
    /// Every model.
    #[default]
    All,
    /// Only the models with these ids.
    Only(Arc<[Arc<str>]>),
}

impl ModelAccess {
    /// Whether the model with the id may be used.
    pub fn allows(&self, id: &str) -> bool {
        match self {
            ModelAccess::All => true,
            ModelAccess::Only(ids) => ids.iter().any(|allowed| **allowed == *id),
        }
    }
}

/// A scope (RFC 6749 section 3.3).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Scope {
    /// `api:models`
    ApiModels = 0,
    /// `api:chat`
    ApiChat = 1,
    /// `api:completions`
    ApiCompletions = 2,
    /// `commerce:subscribe`
    CommerceSubscribe = 3,
    /// `mcp:android`
    McpAndroid = 4,
    /// `mcp:chat`
    McpChat = 5,
    /// `mcp:projects`
    McpProjects = 6,
    /// `mcp:devices`
    McpDevices = 7,
    /// `dev.ucp.shopping.checkout:manage`: purchases by checkout in the Universal Commerce Protocol.
    CheckoutManage = 8,
}

impl Scope {
    /// Every scope, in the order of its number.
    pub const ALL: [Scope; 9] = [
        Scope::ApiModels,
        Scope::ApiChat,
        Scope::ApiCompletions,
        Scope::CommerceSubscribe,
        Scope::McpAndroid,
        Scope::McpChat,
        Scope::McpProjects,
        Scope::McpDevices,
        Scope::CheckoutManage,
    ];

    /// The text form.
    pub fn name(self) -> &'static str {
        match self {
            Scope::ApiModels => "api:models",
            Scope::ApiChat => "api:chat",
            Scope::ApiCompletions => "api:completions",
            Scope::CommerceSubscribe => "commerce:subscribe",
            Scope::McpAndroid => "mcp:android",
            Scope::McpChat => "mcp:chat",
            Scope::McpProjects => "mcp:projects",
            Scope::McpDevices => "mcp:devices",
            Scope::CheckoutManage => "dev.ucp.shopping.checkout:manage",
        }
    }

    /// The only resource where the scope is valid.
    pub const fn resource(self) -> Resource {
        match self {
            Scope::ApiModels
            | Scope::ApiChat
            | Scope::ApiCompletions
            | Scope::CommerceSubscribe
            | Scope::CheckoutManage => Resource::Api,
            Scope::McpChat | Scope::McpProjects | Scope::McpDevices => Resource::Mcp,
            Scope::McpAndroid => Resource::McpAndroid,
        }
    }

    /// The scope with the name.
    pub fn named(name: &str) -> Option<Scope> {
        Scope::ALL.into_iter().find(|scope| scope.name() == name)
    }
}

/// A set of scopes. The bits are stored: a scope's number never changes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Scopes(u32);

impl Scopes {
    /// No scope.
    pub const NONE: Scopes = Scopes(0);
    /// The scopes of the API itself: models, chat, completions and buying the plan. The default of an API key.
    pub const API: Scopes = Scopes(0b1111);

    /// The scopes that let an app buy: granted only on explicit request, and always shown to the person.
    pub const BUYING: Scopes = Scopes::NONE
        .with(Scope::CommerceSubscribe)
        .with(Scope::CheckoutManage);

    /// A set from its stored bits. Bits without a scope are kept: an older version writes back the scopes that a newer version granted.
    pub const fn from_bits(bits: u32) -> Scopes {
        Scopes(bits)
    }

    /// The bits as stored.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether `scope` is in the set.
    pub const fn has(self, scope: Scope) -> bool {
        self.0 & (1 << scope as u8) != 0
    }

    /// Whether the two sets share a scope.
    pub const fn has_any(self, others: Scopes) -> bool {
        self.0 & others.0 != 0
    }

    /// The set with `scope` added.
    #[must_use]
    pub const fn with(self, scope: Scope) -> Scopes {
        Scopes(self.0 | (1 << scope as u8))
    }

    /// Whether every scope of `other` is in the set.
    pub const fn covers(self, other: Scopes) -> bool {
        other.0 & !self.0 == 0
    }

    /// Whether the set is empty.
    pub const fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// The set without `scope`.
    #[must_use]
    pub const fn without(self, scope: Scope) -> Scopes {
        Scopes(self.0 & !(1 << scope as u8))
    }

    /// Removes the scopes of `others`.
    #[must_use]
    pub const fn less(self, others: Scopes) -> Scopes {
        Scopes(self.0 & !others.0)
    }

    /// The scopes in the set.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |&scope| self.has(scope))
    }
}

impl fmt::Display for Scopes {
    /// Names separated by spaces, as in a `scope` parameter.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (at, scope) in self.iter().enumerate() {
            if at > 0 {
                f.write_str(" ")?;
            }
            f.write_str(scope.name())?;
        }
        Ok(())
    }
}

/// A protected resource that a credential can be bound to (RFC 8707).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Resource {
    /// The API, under any of its names.
    Api = 0,
    /// The general MCP endpoint.
    Mcp = 1,
    /// The Android MCP endpoint.
    McpAndroid = 2,
}

impl Resource {
    /// Every resource, in the order of its number.
    pub const ALL: [Resource; 3] = [Resource::Api, Resource::Mcp, Resource::McpAndroid];

    /// The path after the service's address in the resource's canonical name.
    pub const fn path(self) -> &'static str {
        match self {
            Resource::Api => "/v1",
            Resource::Mcp => "/mcp",
            Resource::McpAndroid => "/mcp/android",
        }
    }

    /// The resource's scopes.
    pub fn scopes(self) -> Scopes {
        Scope::ALL
            .into_iter()
            .filter(|scope| scope.resource() == self)
            .fold(Scopes::NONE, Scopes::with)
    }

    /// The default scopes of a client that requests no scopes: every scope except buying, which is granted only on explicit request.
    pub fn default_scopes(self) -> Scopes {
        self.scopes().less(Scopes::BUYING)
    }
}

/// A set of resources, stored as bits.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Resources(u32);

impl Resources {
    /// The API alone.
    pub const API: Resources = Resources::only(Resource::Api);

    /// A single resource, for an access token bound to the resource.
    pub const fn only(resource: Resource) -> Resources {
        Resources(1 << resource as u8)
    }

    /// Adds a resource.
    #[must_use]
    pub const fn with(self, resource: Resource) -> Resources {
        Resources(self.0 | 1 << resource as u8)
    }

    /// The resources in the set.
    pub fn iter(self) -> impl Iterator<Item = Resource> {
        Resource::ALL.into_iter().filter(move |&one| self.has(one))
    }

    /// A set from its stored bits.
    pub const fn from_bits(bits: u32) -> Resources {
        Resources(bits)
    }

    /// The bits as stored.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether `resource` is in the set.
    pub const fn has(self, resource: Resource) -> bool {
        self.0 & (1 << resource as u8) != 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scope_numbers_are_what_is_stored_and_never_change() {
        for (number, scope) in Scope::ALL.into_iter().enumerate() {
            assert_eq!(scope as usize, number, "{} moved", scope.name());
            assert_eq!(Scope::named(scope.name()), Some(scope));
        }
        assert_eq!(
            Scopes::API.to_string(),
            "api:models api:chat api:completions commerce:subscribe"
        );
    }
}
