//! What a person sees of the clients they have allowed something.

use std::sync::Arc;

use tollgate_money::AccountId;
use tollgate_store::{CommitError, GrantId, OAuthPart, ReadError, reading};

use super::redirect::Destination;
use super::{AuthorizationServer, IntoPart as _};

/// A client that can use an account: all its grants that hold, as one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct App {
    /// Its oldest grant, by which pages name it ([`AuthorizationServer::client_of`]).
    pub id: GrantId,
    /// The client.
    pub client: Arc<str>,
    /// The name it gives itself.
    pub name: Option<Arc<str>>,
    /// Where its codes go.
    pub destination: Destination,
    /// Bit set of its resources.
    pub resources: u32,
    /// Bit set of its scopes.
    pub scopes: u32,
    /// Unix microseconds.
    pub first_allowed_at: i64,
    /// Unix microseconds, to within minutes.
    pub used_at: i64,
}

impl AuthorizationServer {
    /// The clients that can use an account now, the one allowed first in front.
    pub async fn apps(&self, account: AccountId) -> Result<Vec<App>, ReadError> {
        let now = (self.now)();
        let grants = reading(&self.store, move |read| read.oauth_grants(account, now)).await?;
        let mut apps: Vec<App> = Vec::new();
        for grant in grants {
            match apps.iter_mut().find(|app| app.client == grant.client) {
                Some(app) => {
                    app.resources |= grant.resource;
                    app.scopes |= grant.scopes;
                    app.used_at = app.used_at.max(grant.used_at);
                }
                None => apps.push(App {
                    id: grant.id,
                    name: grant.client_name,
                    destination: Destination::of(&grant.redirect_uri),
                    resources: grant.resource,
                    scopes: grant.scopes,
                    first_allowed_at: grant.created_at,
                    used_at: grant.used_at,
                    client: grant.client,
                }),
            }
        }
        Ok(apps)
    }

    /// The client that an account once allowed something by this grant, whatever became of the grant since: a page that names an app by
    /// one of its grants may stay open for longer than that grant holds.
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

    /// Takes from a client all it may do with an account. Its tokens are refused from the next request on.
    pub async fn remove_app(
        &self,
        account: AccountId,
        client: Arc<str>,
    ) -> Result<(), CommitError> {
        let at = (self.now)();
        self.end([OAuthPart::RevokeGrants {
            account,
            client: Some(client),
            at,
        }
        .into_part()])
            .await
    }
}
