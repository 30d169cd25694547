//! Access tokens for tests, stored like tokens of the authorization server.

use secrecy::ExposeSecret;
use tollgate_clock::{Clock, Entropy, Timestamp};
use tollgate_filter::{Resource, Resources, Scope, Scopes};
use tollgate_identity::{Digest, Form, KeyId};
use tollgate_money::{AccountId, CredentialId};
use tollgate_store::{Admission, CredentialKind, NewCredential, Part, UnitOfWork, commit};
use zeroize::Zeroizing;

use super::{Rig, SECRETS};

/// The permissions of a token.
pub(crate) struct Token<'a> {
    pub(crate) resource: Resource,
    pub(crate) scopes: &'a [Scope],
    /// Seconds until the token ends; negative for an ended token.
    pub(crate) secs: i64,
}

impl Token<'_> {
    /// A token of the general MCP resource.
    pub(crate) const MCP: Token<'static> = Token {
        resource: Resource::Mcp,
        scopes: &[Scope::McpChat],
        secs: 3600,
    };
}

impl Rig {
    /// Makes an access token of an account.
    pub(crate) async fn new_token(&self, account: AccountId, token: Token<'_>) -> (KeyId, String) {
        let entropy = Entropy::system();
        let now = Clock::system().now();
        let ends = now.as_micros() + token.secs * 1_000_000;
        let secret = Form::access_token("svc").make(&Zeroizing::new(entropy.bytes()));
        let id = CredentialId::from_bytes(entropy.bytes());
        let scopes = token
            .scopes
            .iter()
            .copied()
            .fold(Scopes::NONE, Scopes::with);
        let made = NewCredential {
            id,
            hash: *Digest::of(secret.expose_secret().as_bytes()).as_bytes(),
            kind: CredentialKind::AccessToken,
            account,
            client_id: None,
            grant_id: None,
            resource: Resources::only(token.resource).bits(),
            scopes: scopes.bits(),
            label: None,
            hint: None,
            models: None,
            spending_cap: None,
            created_at: now,
            expires_at: Some(Timestamp::from_micros(ends)),
        };
        let unit = UnitOfWork::of(Part::InsertCredential(Box::new(made)), Admission::Normal);
        commit(&*self.books.store, unit).await.expect("a token");
        let secret = secret.expose_secret().to_owned();
        SECRETS.used("an access token", &secret);
        (KeyId(id), secret)
    }
}
