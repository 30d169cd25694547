//! Refresh token rotation: a use spends the token and replaces the token by a successor (RFC 9700 section 4.14).

use secrecy::{ExposeSecret, SecretString};
use tollgate_store::{OAuthPart, OAuthRefusal, reading};
use zeroize::Zeroizing;

use super::exchange::{TokenError, TokenResponse, fits};
use super::{AuthorizationServer, IntoPart as _, Requested, refusal};
use crate::digest::Digest;

/// A token request with a refresh token (RFC 6749 section 6).
#[derive(Clone, Copy)]
pub struct RefreshRequest<'a> {
    /// `client_id`
    pub client: &'a str,
    /// `refresh_token`
    pub token: &'a str,
    pub resource: Requested,
    /// `scope`: may be narrower than the grant.
    pub scopes: Requested,
}

impl AuthorizationServer {
    /// Exchanges a refresh token for an access token and a successor.
    ///
    /// Reuse of a spent token within the grace period, with an unspent successor, returns the known successor: the client lost the answer,
    /// or two of its windows share the token. Later reuse counts as theft and revokes the family.
    pub async fn refresh(&self, request: RefreshRequest<'_>) -> Result<TokenResponse, TokenError> {
        let settings = self.settings.refresh.ok_or(TokenError::InvalidGrant)?;
        if self.client(request.client).await?.is_none() {
            return Err(TokenError::UnknownClient);
        }
        let hash = self
            .refresh_form
            .digest(request.token.as_bytes())
            .ok_or(TokenError::InvalidGrant)?;
        let hash = *hash.as_bytes();
        let row = reading(&self.store, move |read| read.oauth_refresh(&hash))
            .await?
            .ok_or(TokenError::InvalidGrant)?;
        let grant = &row.grant;
        if *grant.client != *request.client || grant.revoked_at.is_some() {
            return Err(TokenError::InvalidGrant);
        }
        let now = self.clock.now();
        if let Some(spent_at) = row.spent_at {
            let late = now >= spent_at + settings.grace;
            if late || row.successor_spent {
                return self.reused(grant).await;
            }
        } else if now >= row.expires_at {
            return Err(TokenError::InvalidGrant);
        }
        if !fits(request.resource, grant.resource) {
            return Err(TokenError::InvalidTarget);
        }
        let scopes = match request.scopes {
            Requested::Omitted => grant.scopes,
            Requested::Bits(bits) if bits != 0 && bits & !grant.scopes == 0 => bits,
            _ => return Err(TokenError::InvalidScope),
        };
        let successor = self.successor(request.token);
        let spend = OAuthPart::SpendRefresh {
            hash,
            successor: *Digest::of(successor.expose_secret().as_bytes()).as_bytes(),
            grace: settings.grace,
            at: now,
        };
        let (granted, parts) = self.tokens(grant, scopes, now, Some(successor));
        let parts = std::iter::once(spend.into_part()).chain(parts);
        match self.commit(parts).await {
            Ok(()) => Ok(granted),
            Err(error) => match refusal(&error) {
                Some(OAuthRefusal::RefreshSpent) => self.reused(grant).await,
                Some(OAuthRefusal::NoClient) => Err(TokenError::UnknownClient),
                Some(_) => Err(TokenError::InvalidGrant),
                None => Err(TokenError::Store(error)),
            },
        }
    }

    pub(super) fn new_refresh(&self) -> SecretString {
        let mut random = Zeroizing::new([0; 32]);
        (self.draw)(&mut *random);
        self.refresh_form.make(&random)
    }

    /// Derives the successor of a spent token from the token's text. The store has only digests, so its content does not suffice for the
    /// derivation.
    fn successor(&self, spent: &str) -> SecretString {
        let made = blake3::keyed_hash(&self.successor_key, spent.as_bytes());
        self.refresh_form.make(&Zeroizing::new(*made.as_bytes()))
    }
}
