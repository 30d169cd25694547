//! Token revocation (RFC 7009).

use tollgate_store::{CommitError, ReadError, reading};

use super::AuthorizationServer;
use crate::tokens::revoke_token;

/// Why a revocation failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RevokeError {
    /// Reading the store failed.
    #[error("could not read the token")]
    Read(#[from] ReadError),
    /// Writing to the store failed.
    #[error("could not store the revocation of the token")]
    Store(#[from] CommitError),
}

impl AuthorizationServer {
    /// Revokes a token: an access token alone, a refresh token with its family. Durable on return.
    ///
    /// An unknown, expired or malformed token, or a token of a client other than `client`, is no error and has no effect: the response must
    /// not distinguish the cases (RFC 7009 section 2.2).
    pub async fn revoke(&self, token: &str, client: Option<&str>) -> Result<(), RevokeError> {
        let foreign = |owner: Option<&str>| client.is_some() && client != owner;
        if let Some(hash) = self.access_form.digest(token.as_bytes()) {
            let hash = *hash.as_bytes();
            let row = reading(&self.store, move |read| read.credential_by_hash(&hash)).await?;
            if let Some(row) = row
                && row.revoked_at.is_none()
                && !foreign(row.made.client_id.as_deref())
            {
                revoke_token(&*self.store, row.made.id, self.clock.now()).await?;
            }
        } else if let Some(hash) = self.refresh_form.digest(token.as_bytes()) {
            let hash = *hash.as_bytes();
            let row = reading(&self.store, move |read| read.oauth_refresh(&hash)).await?;
            if let Some(row) = row
                && row.grant.revoked_at.is_none()
                && !foreign(Some(&row.grant.client))
            {
                self.revoke_family(&row.grant).await?;
            }
        }
        Ok(())
    }
}
