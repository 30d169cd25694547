//! Exchange of an authorization code for tokens (RFC 6749 section 4.1.3).

use std::time::Duration;

use secrecy::{ExposeSecret, SecretString};
use tollgate_clock::Timestamp;
use tollgate_store::{CommitError, GrantRow, OAuthPart, OAuthRefusal, Part, ReadError, reading};

use super::pkce::Challenge;
use super::{AuthorizationServer, CODE_REFUSALS_MAX, IntoPart as _, Requested, refusal};
use crate::digest::Digest;
use crate::tokens::{NewToken, token_part};

/// A token request with an authorization code.
#[derive(Clone, Copy)]
pub struct CodeRequest<'a> {
    /// `client_id`
    pub client: &'a str,
    pub code: &'a str,
    /// `redirect_uri`: identical to the authorization request's.
    pub redirect_uri: &'a str,
    /// `code_verifier`
    pub verifier: &'a str,
    pub resource: Requested,
}

#[derive(Debug)]
pub struct TokenResponse {
    /// The access token.
    pub access: SecretString,
    /// Its lifetime.
    pub life: Duration,
    /// Bit set of scopes.
    pub scopes: u32,
    /// The refresh token, if refresh tokens are issued.
    pub refresh: Option<SecretString>,
}

/// Why no token was issued (RFC 6749 section 5.2, RFC 8707 section 2.2).
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TokenError {
    #[error("the client is not registered")]
    UnknownClient,
    /// The code or token is invalid, or not valid for this request. The exact reason is not disclosed.
    #[error("the code or refresh token is not valid")]
    InvalidGrant,
    /// Valid, but for another resource.
    #[error("the grant is for another resource")]
    InvalidTarget,
    /// Valid, but with fewer scopes.
    #[error("the grant does not include all of these scopes")]
    InvalidScope,
    /// Reading the store failed.
    #[error("could not read the grant")]
    Read(#[from] ReadError),
    /// Writing to the store failed; the code or token is not consumed.
    #[error("could not write the token")]
    Store(#[from] CommitError),
}

impl AuthorizationServer {
    /// Exchanges a code for tokens. Checks in the order of RFC 6749 section 4.1.3 and RFC 8707 section 2.2; the first failure decides.
    pub async fn exchange(&self, request: CodeRequest<'_>) -> Result<TokenResponse, TokenError> {
        if self.client(request.client).await?.is_none() {
            return Err(TokenError::UnknownClient);
        }
        let hash = self
            .code_form
            .digest(request.code.as_bytes())
            .ok_or(TokenError::InvalidGrant)?;
        let hash = *hash.as_bytes();
        let code = reading(&self.store, move |read| read.oauth_code(&hash))
            .await?
            .ok_or(TokenError::InvalidGrant)?;
        if code.used_at.is_some() {
            return self.reused(&code.grant).await;
        }
        let now = self.clock.now();
        let worn_out = code.refusals >= CODE_REFUSALS_MAX;
        if now >= code.expires_at || worn_out || code.grant.revoked_at.is_some() {
            return Err(TokenError::InvalidGrant);
        }
        let met = || {
            Challenge::parse(&code.challenge)
                .is_some_and(|challenge| challenge.is_met_by(request.verifier))
        };
        let refused = if *code.grant.client != *request.client {
            Some(TokenError::InvalidGrant)
        } else if !fits(request.resource, code.grant.resource) {
            Some(TokenError::InvalidTarget)
        } else if *code.grant.redirect_uri != *request.redirect_uri || !met() {
            Some(TokenError::InvalidGrant)
        } else {
            None
        };
        if let Some(error) = refused {
            self.commit([OAuthPart::RefuseCode { hash }.into_part()])
                .await?;
            return Err(error);
        }
        let take = OAuthPart::TakeCode {
            hash,
            refusals_max: CODE_REFUSALS_MAX,
            at: now,
        };
        let (granted, parts) = self.tokens(&code.grant, code.grant.scopes, now, None);
        let parts = std::iter::once(take.into_part()).chain(parts);
        match self.commit(parts).await {
            Ok(()) => Ok(granted),
            Err(error) => match refusal(&error) {
                // A concurrent request has used the code: one of the two requesters is a thief, and the server cannot distinguish them.
                Some(OAuthRefusal::CodeUsed) => self.reused(&code.grant).await,
                Some(OAuthRefusal::NoClient) => Err(TokenError::UnknownClient),
                Some(_) => Err(TokenError::InvalidGrant),
                None => Err(TokenError::Store(error)),
            },
        }
    }

    /// Reuse of a code or refresh token revokes the whole token family (RFC 6749 section 4.1.2, RFC 9700 section 4.14).
    pub(super) async fn reused<T>(&self, grant: &GrantRow) -> Result<T, TokenError> {
        self.revoke_family(grant).await?;
        tracing::warn!(grant = %grant.id, account = %grant.account, "revoked grant: code or refresh token reused");
        Err(TokenError::InvalidGrant)
    }

    /// New tokens of a grant, and the parts that store the tokens. `refresh`: an existing refresh token to return instead of a new token.
    pub(super) fn tokens(
        &self,
        grant: &GrantRow,
        scopes: u32,
        now: Timestamp,
        refresh: Option<SecretString>,
    ) -> (TokenResponse, Vec<Part>) {
        let mut ends_at = now + self.settings.access_token;
        let token = NewToken {
            account: grant.account,
            client: Some(grant.client.clone()),
            grant: Some(*grant.id.as_bytes()),
            resources: grant.resource,
            scopes,
            created_at: now,
            expires_at: ends_at,
        };
        let (access, part) = token_part(&self.access_form, token, &mut &*self.draw);
        let mut parts = vec![
            part,
            OAuthPart::UseClient {
                id: grant.client.clone(),
                at: now,
            }
            .into_part(),
        ];
        let refresh = self
            .settings
            .refresh
            .filter(|_| grant.refresh)
            .map(|settings| {
                let secret = refresh.unwrap_or_else(|| self.new_refresh());
                let last = grant.created_at + settings.absolute;
                let expires_at = last.min(now + settings.idle);
                ends_at = ends_at.max(expires_at);
                parts.push(
                    OAuthPart::InsertRefresh {
                        hash: *Digest::of(secret.expose_secret().as_bytes()).as_bytes(),
                        grant: grant.id,
                        expires_at,
                    }
                    .into_part(),
                );
                secret
            });
        parts.push(
            OAuthPart::ProlongGrant {
                id: grant.id,
                ends_at,
            }
            .into_part(),
        );
        let granted = TokenResponse {
            access: access.secret,
            life: self.settings.access_token,
            scopes,
            refresh,
        };
        (granted, parts)
    }
}

/// Whether a request names the grant's resource, or no resource.
pub(super) fn fits(asked: Requested, resource: u32) -> bool {
    match asked {
        Requested::Omitted => true,
        Requested::Unknown => false,
        Requested::Bits(bits) => bits == resource,
    }
}
