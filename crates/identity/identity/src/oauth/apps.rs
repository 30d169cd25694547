//! The clients that an account owner has authorized, as shown to the owner.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, GrantId};
use tollgate_store::{CommitError, OAuthPart, ReadError, reading};

use super::redirect::Destination;
use super::{AuthorizationServer, IntoPart as _};

/// An authorized client: all live grants for an account, combined.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// The id of the oldest grant, used by pages in URLs ([`AuthorizationServer::client_of`]).
    pub id: GrantId,
    /// The client id.
    pub client: Arc<str>,
    /// The client's self-chosen name.
    pub name: Option<Arc<str>>,
    /// The redirect URI of codes.
    pub destination: Destination,
    /// Bit set of resources.
    pub resources: u32,
    /// Bit set of scopes.
    pub scopes: u32,
    /// Time of the first authorization.
    pub first_allowed_at: Timestamp,
    /// Time of the last acceptance of a token, accurate to minutes; `None` before the first.
    pub used_at: Option<Timestamp>,
}

impl AuthorizationServer {
    /// The authorized clients of an account, the oldest authorization first.
    pub async fn apps(&self, account: AccountId) -> Result<Vec<App>, ReadError> {
        let now = self.clock.now();
        let grants = reading(&self.store, move |read| read.oauth_grants(account, now)).await?;
        let mut apps: Vec<App> = Vec::new();
        for grant in grants {
            let used_at = (grant.used_at > grant.created_at).then_some(grant.used_at);
            match apps.iter_mut().find(|app| app.client == grant.client) {
                Some(app) => {
                    app.resources |= grant.resource;
                    app.scopes |= grant.scopes;
                    app.used_at = app.used_at.max(used_at);
                }
                None => apps.push(App {
                    id: grant.id,
                    name: grant.client_name,
                    destination: Destination::of(&grant.redirect_uri),
                    resources: grant.resource,
                    scopes: grant.scopes,
                    first_allowed_at: grant.created_at,
                    used_at,
                    client: grant.client,
                }),
            }
        }
        Ok(apps)
    }

    /// The client of a grant of an account, whether or not the grant is still live: a page that uses a grant's id may stay open longer than
    /// the grant lasts.
    pub async fn client_of(
        &self,
        account: AccountId,
        grant: GrantId,
    ) -> Result<Option<Arc<str>>, ReadError> {
        let row = reading(&self.store, move |read| read.oauth_grant(grant)).await?;
        Ok(row
            .filter(|row| row.account == account)
            .map(|row| row.client))
    }

    /// Revokes all grants of a client for an account. The tokens are rejected from the next request on.
    pub async fn remove_app(
        &self,
        account: AccountId,
        client: Arc<str>,
    ) -> Result<(), CommitError> {
        let at = self.clock.now();
        self.end([OAuthPart::RevokeGrants {
            account,
            client: Some(client),
            at,
        }
        .into_part()])
            .await
    }
}
