//! Access tokens of the sandbox: short-lived, limited to chat, bound to a session.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_filter::{Resources, Scope, Scopes};
use tollgate_identity::{
    IssueTokenError, IssuedToken, NewToken, Session, issue_token_as, revoke_token, token_id,
};
use tollgate_money::{AccountId, CredentialId};

use crate::context::PortalContext;
use crate::page_error::PageError;

/// Lifetime of a token.
const LIFETIME: Duration = Duration::from_secs(10 * 60);

/// Maximum concurrent tokens of a session: a few browser windows.
const TOKENS_PER_SESSION: usize = 4;

/// Tokens by session, so that they are revoked with it. The key is the session lineage, because the digest changes on confirmation. In
/// memory only: after a restart, tokens expire by themselves.
#[derive(Debug, Default)]
pub(crate) struct SandboxTokens {
    by_session: Mutex<HashMap<[u8; 32], Vec<SandboxToken>>>,
}

#[derive(Clone, Copy, Debug)]
struct SandboxToken {
    id: CredentialId,
    account: AccountId,
    expires_at: Timestamp,
}

impl SandboxTokens {
    /// Issues a token for a session. The oldest tokens above the limit are revoked.
    pub(crate) async fn issue(
        &self,
        context: &PortalContext,
        session: &Session,
        now: Timestamp,
    ) -> Result<IssuedToken, PageError> {
        let token = NewToken {
            account: session.account,
            client: None,
            grant: None,
            resources: Resources::API.bits(),
            scopes: Scopes::NONE.with(Scope::ApiChat).bits(),
            created_at: now,
            expires_at: now + LIFETIME,
        };
        // Registered before it is written: ending a session revokes registered tokens afterwards, so either it finds the token or issuing
        // fails.
        let id = token_id(now, context.draw());
        let excess = self.register(session, id, token.expires_at, now);
        let (form, draw) = (&context.token_form, context.draw());
        let issued = issue_token_as(&*context.store, form, id, token, session, draw).await;
        for old in excess {
            revoke_token(&*context.store, old, now).await?;
        }
        issued.map_err(|error| match error {
            IssueTokenError::SignedOut => PageError::SignedOut,
            error => PageError::Store(Box::new(error)),
        })
    }

    /// Revokes all tokens of a session that has ended.
    pub(crate) async fn end(
        &self,
        context: &PortalContext,
        lineage: [u8; 32],
        now: Timestamp,
    ) -> Result<(), PageError> {
        let tokens = self.lock().remove(&lineage).unwrap_or_default();
        for one in tokens.iter().filter(|one| one.expires_at > now) {
            revoke_token(&*context.store, one.id, now).await?;
        }
        Ok(())
    }

    /// Revokes all tokens of all sessions of an account, which have ended.
    pub(crate) async fn end_all(
        &self,
        context: &PortalContext,
        account: AccountId,
        now: Timestamp,
    ) -> Result<(), PageError> {
        let tokens: Vec<SandboxToken> = {
            let by_session = self.lock();
            let all = by_session.values().flatten();
            all.filter(|one| one.account == account && one.expires_at > now)
                .copied()
                .collect()
        };
        for one in tokens {
            revoke_token(&*context.store, one.id, now).await?;
        }
        Ok(())
    }

    /// Registers a token and returns the ids above the limit.
    fn register(
        &self,
        session: &Session,
        id: CredentialId,
        expires_at: Timestamp,
        now: Timestamp,
    ) -> Vec<CredentialId> {
        let mut by_session = self.lock();
        by_session.retain(|_, tokens| {
            tokens.retain(|one| one.expires_at > now);
            !tokens.is_empty()
        });
        let tokens = by_session.entry(session.lineage()).or_default();
        tokens.push(SandboxToken {
            id,
            account: session.account,
            expires_at,
        });
        let excess = tokens.len().saturating_sub(TOKENS_PER_SESSION);
        tokens.drain(..excess).map(|one| one.id).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Vec<SandboxToken>>> {
        self.by_session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
