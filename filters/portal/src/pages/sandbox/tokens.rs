//! Access tokens of the sandbox: short-lived, for chats only, bound to a session.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};

use tollgate_filter::{Resources, Scope, Scopes};
use tollgate_identity::{
    IssueTokenError, IssuedToken, NewToken, Session, issue_token_as, revoke_token, token_id,
};
use tollgate_money::AccountId;
use tollgate_store::CredentialId;

use crate::house::House;
use crate::trouble::Trouble;

/// How long a token works, in microseconds.
const LIFE: i64 = 10 * 60_000_000;

/// Tokens of one session at once: a few windows.
const EACH: usize = 4;

/// Which tokens were given to which session, so that they end with it. A session is known by its lineage: its digest changes when
/// somebody confirms who they are. Kept in memory: after a restart tokens end by themselves.
#[derive(Debug, Default)]
pub(crate) struct SandboxTokens {
    by_session: Mutex<HashMap<[u8; 32], Vec<Given>>>,
}

#[derive(Clone, Copy, Debug)]
struct Given {
    id: CredentialId,
    account: AccountId,
    expires_at: i64,
}

impl SandboxTokens {
    /// A token for a session. The oldest of too many is revoked.
    pub(crate) async fn issue(
        &self,
        house: &House,
        session: &Session,
        now: i64,
    ) -> Result<IssuedToken, Trouble> {
        let token = NewToken {
            account: session.account,
            client: None,
            grant: None,
            resources: Resources::API.bits(),
            scopes: Scopes::NONE.with(Scope::ApiChat).bits(),
            created_at: now,
            expires_at: now + LIFE,
        };
        // Noted before it is written: whoever ends the session looks here afterwards, and either finds the token or it is refused.
        let id = token_id(now, house.draw());
        let many = self.note(session, id, token.expires_at, now);
        let (form, draw) = (&house.token_form, house.draw());
        let issued = issue_token_as(&*house.store, form, id, token, session, draw).await;
        for old in many {
            revoke_token(&*house.store, old, now).await?;
        }
        issued.map_err(|error| match error {
            IssueTokenError::SignedOut => Trouble::SignedOut,
            error => Trouble::Store(Box::new(error)),
        })
    }

    /// Ends every token of a session, which has ended already.
    pub(crate) async fn end(
        &self,
        house: &House,
        lineage: [u8; 32],
        now: i64,
    ) -> Result<(), Trouble> {
        let given = self.lock().remove(&lineage).unwrap_or_default();
        for one in given.iter().filter(|one| one.expires_at > now) {
            revoke_token(&*house.store, one.id, now).await?;
        }
        Ok(())
    }

    /// Ends every token of every session of an account, which have ended already.
    pub(crate) async fn end_all(
        &self,
        house: &House,
        account: AccountId,
        now: i64,
    ) -> Result<(), Trouble> {
        let given: Vec<Given> = {
            let by_session = self.lock();
            let all = by_session.values().flatten();
            all.filter(|one| one.account == account && one.expires_at > now)
                .copied()
                .collect()
        };
        for one in given {
            revoke_token(&*house.store, one.id, now).await?;
        }
        Ok(())
    }

    /// Notes a token, and says which ones are too many.
    fn note(
        &self,
        session: &Session,
        id: CredentialId,
        expires_at: i64,
        now: i64,
    ) -> Vec<CredentialId> {
        let mut by_session = self.lock();
        by_session.retain(|_, given| {
            given.retain(|one| one.expires_at > now);
            !given.is_empty()
        });
        let given = by_session.entry(session.lineage()).or_default();
        given.push(Given {
            id,
            account: session.account,
            expires_at,
        });
        let many = given.len().saturating_sub(EACH);
        given.drain(..many).map(|one| one.id).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<[u8; 32], Vec<Given>>> {
        self.by_session
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
