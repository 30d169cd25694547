//! Access tokens of the sandbox: short-lived, limited to chat, bound to a session.

use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_filter::{Resources, Scope, Scopes};
use tollgate_identity::{
    IssueTokenError, IssuedToken, NewToken, Session, issue_token_as, revoke_token, session_tokens,
};
use tollgate_money::AccountId;

use crate::context::PortalContext;
use crate::page_error::PageError;

/// Lifetime of a token.
const LIFETIME: Duration = Duration::from_secs(10 * 60);

/// Maximum concurrent tokens of a session: a few browser windows.
const TOKENS_PER_SESSION: usize = 4;

/// Issues a token for a session. The oldest tokens above the limit are revoked.
pub(crate) async fn issue(
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
    let (form, draw) = (&context.token_form, context.draw());
    let issued = issue_token_as(&*context.store, form, token, session, draw).await;
    let issued = issued.map_err(|error| match error {
        IssueTokenError::SignedOut => PageError::SignedOut,
        error => PageError::Store(Box::new(error)),
    })?;
    let live = session_tokens(&context.store, session.account, Some(session), now).await?;
    let excess = live.len().saturating_sub(TOKENS_PER_SESSION);
    for old in live.into_iter().take(excess) {
        revoke_token(&*context.store, old, now).await?;
    }
    Ok(issued)
}

/// Revokes all tokens of an ended session, or of all sessions of an account.
pub(crate) async fn end(
    context: &PortalContext,
    account: AccountId,
    session: Option<&Session>,
    now: Timestamp,
) -> Result<(), PageError> {
    for one in session_tokens(&context.store, account, session, now).await? {
        revoke_token(&*context.store, one, now).await?;
    }
    Ok(())
}
