//! In-memory index of live credentials, kept in sync with the store.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use dashmap::DashMap;
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, GrantId, SpendingCap};
use tollgate_store::{
    AccountChange, AccountRow, AccountStatus, CacheScope, CredentialChange, CredentialKind,
    CredentialRow, Effect, NewCredential, OAuthPart, Observer, Part, PlanPart, Read, ReadError,
    Store,
};

use crate::digest::{BuildRandomAlready, Digest};
use crate::feed::FeedAge;

/// Every live credential, by the digest of its text.
///
/// Loaded once from the store, which then notifies the index of each commit before it acknowledges the commit to the writer. So a revoked
/// key is gone when the revoking command returns, and a lookup never waits.
pub struct Credentials {
    by_digest: DashMap<Digest, Arc<Credential>, BuildRandomAlready>,
    roster: Mutex<Roster>,
    /// On one of several nodes.
    feed: OnceLock<FeedAge>,
}

/// State for following the store; not needed to authenticate a request.
#[derive(Default)]
struct Roster {
    accounts: HashMap<AccountId, Arc<Account>, BuildRandomAlready>,
    by_id: HashMap<CredentialId, Arc<Credential>, BuildRandomAlready>,
    /// Credentials with an expiry, by expiry.
    ends: BTreeSet<(Timestamp, CredentialId)>,
    /// Tokens by account and grant, for revocation.
    families: BTreeSet<(AccountId, GrantId, CredentialId)>,
    /// Interned combinations of status, class and cache scope, so that a hundred thousand accounts share a handful of values.
    facts: Vec<Arc<Facts>>,
}

/// A credential and its permissions.
#[derive(Debug)]
pub struct Credential {
    /// Its public id.
    pub id: CredentialId,
    /// Its kind.
    pub kind: CredentialKind,
    /// Its account.
    pub account: Arc<Account>,
    /// Bit set of its resources.
    pub resources: u32,
    /// Bit set of its scopes.
    pub scopes: u32,
    /// The models it may use; `None` for all.
    pub models: Option<Arc<[Arc<str>]>>,
    /// Its spending cap; `None` for none.
    pub spending_cap: Option<SpendingCap>,
    /// Expiry; `None` for none.
    pub expires_at: Option<Timestamp>,
    digest: Digest,
    grant: Option<GrantId>,
    client: Option<Arc<str>>,
    revoked: AtomicBool,
    /// Last use, in microseconds since 1970; zero if not used since the start.
    used_at: AtomicI64,
    /// The last use that was already stored, in the same form.
    noted_at: AtomicI64,
}

/// Accuracy of the last use: a credential in constant use is written to once in this time, which limits cache-line contention between
/// threads.
const USE_STEP: Duration = Duration::from_secs(15);

impl Credential {
    /// Records a use at `now`.
    pub fn used(&self, now: Timestamp) {
        let used_at = Timestamp::from_micros(self.used_at.load(Ordering::Relaxed));
        if now >= used_at + USE_STEP {
            self.used_at.store(now.as_micros(), Ordering::Relaxed);
        }
    }

    /// Whether it is live at `now`: neither expired nor revoked. For holders of a reference: a lookup returns no revoked one.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end) && !self.revoked.load(Ordering::Acquire)
    }
}

/// The state of the account behind a credential, as far as a request needs it.
pub struct Account {
    id: AccountId,
    facts: ArcSwap<Facts>,
    /// End of the plan, in microseconds since 1970; that of [`Timestamp::MIN`] for an account that never had it.
    plan_until: AtomicI64,
    /// The rate class of the plan. Not among the interned facts, which accounts share.
    plan_class: ArcSwapOption<Arc<str>>,
}

#[derive(PartialEq, Eq)]
struct Facts {
    status: AccountStatus,
    class: Arc<str>,
    cache_scope: CacheScope,
}

impl Account {
    /// The account's id.
    pub fn id(&self) -> AccountId {
        self.id
    }

    /// Whether it may spend.
    pub fn status(&self) -> AccountStatus {
        self.facts.load().status
    }

    /// The rate class at `now`: that of the plan until it ends, then the account's own.
    pub fn class(&self, now: Timestamp) -> Arc<str> {
        if now < Timestamp::from_micros(self.plan_until.load(Ordering::Acquire))
            && let Some(class) = &*self.plan_class.load()
        {
            return Arc::clone(class);
        }
        self.facts.load().class.clone()
    }

    fn set_plan(&self, class: &Arc<str>, until: Timestamp) {
        // The class is written first: a reader that sees the new end sees the new class too.
        let known = self.plan_class.load();
        if known.as_ref().is_none_or(|known| **known != *class) {
            self.plan_class.store(Some(Arc::new(class.clone())));
        }
        self.plan_until.store(until.as_micros(), Ordering::Release);
    }

    /// Its cache scope.
    pub fn cache_scope(&self) -> CacheScope {
        self.facts.load().cache_scope
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Account").field(&self.id).finish()
    }
}

impl Credentials {
    /// An index of all credentials live at `now`, kept up to date from then on.
    ///
    /// Must be created before any other write to the store: a change between the load and the subscription would be missed.
    pub fn open(store: &dyn Store, now: Timestamp) -> Result<Arc<Credentials>, ReadError> {
        let credentials = Arc::new(Credentials::read(store, now)?);
        store.observe(credentials.clone());
        Ok(credentials)
    }

    /// All credentials live at `now`, as stored.
    fn read(store: &dyn Read, now: Timestamp) -> Result<Credentials, ReadError> {
        let mut roster = Roster::default();
        let mut accounts = Vec::new();
        store.accounts(&mut |row| {
            let account = roster.account(row.id, row.status, &row.class, row.cache_scope);
            if let Some((class, until)) = &row.plan {
                account.set_plan(class, *until);
            }
            accounts.push(account);
        })?;
        roster.accounts = accounts
            .into_iter()
            .map(|account| (account.id, account))
            .collect();

        // Counted first: growing a table of a hundred thousand entries would move them several times.
        let mut found = Vec::new();
        store.credentials(now, &mut |row| found.extend(roster.credential(&row.made)))?;
        let credentials = Credentials {
            by_digest: DashMap::with_capacity_and_hasher(
                found.len(),
                BuildRandomAlready::default(),
            ),
            roster: Mutex::default(),
            feed: OnceLock::new(),
        };
        roster.by_id.reserve(found.len());
        for credential in found {
            credentials.add(&mut roster, credential);
        }
        *credentials.roster() = roster;
        Ok(credentials)
    }

    /// Whether the index knows what other nodes have revoked: they are heard of within two seconds. Always, on a node that is alone.
    pub fn is_current(&self) -> bool {
        self.feed.get().is_none_or(FeedAge::is_recent)
    }

    pub(crate) fn set_feed(&self, feed: FeedAge) {
        // There is one store.
        let _ = self.feed.set(feed);
    }

    /// The unrevoked credential with this digest. It may have expired: [`Credential::is_live`].
    pub fn find(&self, digest: &Digest) -> Option<Arc<Credential>> {
        self.by_digest
            .get(digest)
            .map(|found| found.value().clone())
    }

    /// Last use of a credential since the start, accurate to some seconds.
    pub fn used_at(&self, id: CredentialId) -> Option<Timestamp> {
        let used_at = self
            .roster()
            .by_id
            .get(&id)?
            .used_at
            .load(Ordering::Relaxed);
        (used_at > 0).then(|| Timestamp::from_micros(used_at))
    }

    /// Last uses since the previous call, to be stored. Visits every credential.
    pub fn take_uses(&self) -> Vec<(CredentialId, Timestamp)> {
        let mut uses = Vec::new();
        for credential in &self.by_digest {
            let used_at = credential.used_at.load(Ordering::Relaxed);
            if credential.noted_at.swap(used_at, Ordering::Relaxed) != used_at {
                uses.push((credential.id, Timestamp::from_micros(used_at)));
            }
        }
        uses
    }

    /// Number of credentials.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// Every rate class that an account has or had, for comparison with the settings.
    pub fn classes(&self) -> Vec<Arc<str>> {
        let mut classes: Vec<Arc<str>> = Vec::new();
        for facts in &self.roster().facts {
            if !classes.contains(&facts.class) {
                classes.push(facts.class.clone());
            }
        }
        classes
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        // Every change is a single insertion or removal, so a poisoned lock holds consistent state.
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes credentials that have expired by `now`, which bounds the memory for short-lived tokens.
    pub fn forget_expired(&self, now: Timestamp) {
        let mut roster = self.roster();
        while let Some(&(end, id)) = roster.ends.first()
            && end <= now
        {
            self.take(&mut roster, id);
        }
    }

    fn add(&self, roster: &mut Roster, credential: Arc<Credential>) {
        if let Some(end) = credential.expires_at {
            roster.ends.insert((end, credential.id));
        }
        if let Some(grant) = credential.grant {
            let member = (credential.account.id(), grant, credential.id);
            roster.families.insert(member);
        }
        roster.by_id.insert(credential.id, credential.clone());
        self.by_digest.insert(credential.digest, credential);
    }

    /// Removes a credential from every table.
    fn take(&self, roster: &mut Roster, id: CredentialId) -> Option<Arc<Credential>> {
        let credential = roster.by_id.remove(&id)?;
        if let Some(end) = credential.expires_at {
            roster.ends.remove(&(end, id));
        }
        if let Some(grant) = credential.grant {
            let member = (credential.account.id(), grant, id);
            roster.families.remove(&member);
        }
        self.by_digest.remove(&credential.digest);
        Some(credential)
    }

    /// Replaces a credential by its changed version. Requests that run keep the one they were admitted with.
    fn change(&self, roster: &mut Roster, change: &CredentialChange) {
        let Some(known) = roster.by_id.get(&change.id).cloned() else {
            return;
        };
        let used_at = known.used_at.load(Ordering::Relaxed);
        let noted_at = known.noted_at.load(Ordering::Relaxed);
        let changed = Arc::new(Credential {
            id: known.id,
            kind: known.kind,
            account: known.account.clone(),
            resources: known.resources,
            scopes: known.scopes,
            models: change.models.clone(),
            spending_cap: change.spending_cap,
            expires_at: change.expires_at,
            digest: known.digest,
            grant: known.grant,
            client: known.client.clone(),
            revoked: AtomicBool::new(false),
            used_at: AtomicI64::new(used_at),
            noted_at: AtomicI64::new(noted_at),
        });
        if let Some(end) = known.expires_at {
            roster.ends.remove(&(end, known.id));
        }
        // Replaced in one step: a lookup finds one of the two.
        self.add(roster, changed);
    }

    fn revoke(&self, roster: &mut Roster, id: CredentialId) {
        if let Some(credential) = self.take(roster, id) {
            credential.revoked.store(true, Ordering::Release);
        }
    }

    /// Revokes the tokens of an account's grants: of one grant, of one client, or of all.
    fn revoke_grants(&self, account: AccountId, grant: Option<GrantId>, client: Option<&str>) {
        let mut roster = self.roster();
        let least = CredentialId::from_bytes([0; 16]);
        let first = (
            account,
            grant.unwrap_or(GrantId::from_bytes([0; 16])),
            least,
        );
        let members: Vec<CredentialId> = roster
            .families
            .range(first..)
            .take_while(|(owner, of, _)| *owner == account && grant.is_none_or(|one| one == *of))
            .map(|&(_, _, id)| id)
            .filter(|id| {
                let of = roster.by_id.get(id).and_then(|one| one.client.as_deref());
                client.is_none() || of == client
            })
            .collect();
        for id in members {
            self.revoke(&mut roster, id);
        }
    }
}

impl Credentials {
    /// Reads an account again that another node has made or changed.
    pub(crate) fn reload_account(&self, row: &AccountRow) {
        let mut roster = self.roster();
        match roster.accounts.get(&row.id).cloned() {
            Some(account) => {
                let facts = roster.facts(row.status, &row.class, row.cache_scope);
                account.facts.store(facts);
                if let Some((class, until)) = &row.plan {
                    account.set_plan(class, *until);
                }
            }
            None => {
                let account = roster.account(row.id, row.status, &row.class, row.cache_scope);
                if let Some((class, until)) = &row.plan {
                    account.set_plan(class, *until);
                }
                roster.accounts.insert(row.id, account);
            }
        }
    }

    /// Reads a credential again that another node has made, changed or revoked.
    pub(crate) fn reload_credential(&self, id: CredentialId, row: Option<CredentialRow>) {
        let mut roster = self.roster();
        let live = row.filter(|row| row.revoked_at.is_none());
        let Some(row) = live else {
            return self.revoke(&mut roster, id);
        };
        let Some(credential) = roster.credential(&row.made) else {
            return;
        };
        if let Some(known) = roster.by_id.get(&id).cloned() {
            let used_at = known.used_at.load(Ordering::Relaxed);
            credential.used_at.store(used_at, Ordering::Relaxed);
            let noted_at = known.noted_at.load(Ordering::Relaxed);
            credential.noted_at.store(noted_at, Ordering::Relaxed);
            if let Some(end) = known.expires_at {
                roster.ends.remove(&(end, id));
            }
        }
        self.add(&mut roster, credential);
    }

    /// The tokens of a grant, or of all grants of an account.
    pub(crate) fn of_grant(&self, account: AccountId, grant: GrantId) -> Vec<CredentialId> {
        let roster = self.roster();
        let members = roster.families.iter();
        let members = members.filter(|(owner, of, _)| *owner == account || *of == grant);
        members.map(|&(_, _, id)| id).collect()
    }
}

impl Observer for Credentials {
    fn committed(&self, part: &Part, _: Effect) {
        match part {
            Part::CreateAccount(made) => {
                let mut roster = self.roster();
                let account = roster.account(
                    made.id,
                    AccountStatus::Active,
                    &made.class,
                    made.cache_scope,
                );
                roster.accounts.insert(made.id, account);
            }
            Part::ChangeAccount(change) => self.roster().change_account(change),
            Part::Plan(part) => {
                if let PlanPart::Put { row, class } = &**part
                    && let Some(account) = self.roster().accounts.get(&row.account)
                {
                    account.set_plan(class, row.period_end);
                }
            }
            Part::InsertCredential(made) => {
                let mut roster = self.roster();
                if let Some(credential) = roster.credential(made) {
                    self.add(&mut roster, credential);
                }
            }
            Part::ChangeCredential(change) => self.change(&mut self.roster(), change),
            Part::RevokeCredential { id, .. } => self.revoke(&mut self.roster(), *id),
            Part::OAuth(part) => match &**part {
                OAuthPart::RevokeGrant { id, account, .. } => {
                    self.revoke_grants(*account, Some(*id), None);
                }
                OAuthPart::RevokeGrants {
                    account, client, ..
                } => self.revoke_grants(*account, None, client.as_deref()),
                _ => {}
            },
            _ => {}
        }
    }
}

impl Roster {
    fn account(
        &mut self,
        id: AccountId,
        status: AccountStatus,
        class: &Arc<str>,
        cache_scope: CacheScope,
    ) -> Arc<Account> {
        let facts = ArcSwap::new(self.facts(status, class, cache_scope));
        Arc::new(Account {
            id,
            facts,
            plan_until: AtomicI64::new(Timestamp::MIN.as_micros()),
            plan_class: ArcSwapOption::empty(),
        })
    }

    fn change_account(&mut self, change: &AccountChange) {
        let Some(account) = self.accounts.get(&change.id).cloned() else {
            return;
        };
        let before = account.facts.load_full();
        let status = change.status.unwrap_or(before.status);
        let class = change.class.as_ref().unwrap_or(&before.class);
        let cache_scope = change.cache_scope.unwrap_or(before.cache_scope);
        account.facts.store(self.facts(status, class, cache_scope));
    }

    fn facts(
        &mut self,
        status: AccountStatus,
        class: &Arc<str>,
        cache_scope: CacheScope,
    ) -> Arc<Facts> {
        let known = |facts: &&Arc<Facts>| {
            facts.status == status && facts.class == *class && facts.cache_scope == cache_scope
        };
        if let Some(facts) = self.facts.iter().find(known) {
            return facts.clone();
        }
        let class = class.clone();
        let facts = Arc::new(Facts {
            status,
            class,
            cache_scope,
        });
        self.facts.push(facts.clone());
        facts
    }

    /// An index entry for a credential. `None` without its account, which the store rules out: its use could be billed to no account.
    fn credential(&self, made: &NewCredential) -> Option<Arc<Credential>> {
        Some(Arc::new(Credential {
            id: made.id,
            kind: made.kind,
            account: self.accounts.get(&made.account)?.clone(),
            resources: made.resource,
            scopes: made.scopes,
            models: made.models.clone(),
            spending_cap: made.spending_cap,
            expires_at: made.expires_at,
            digest: Digest::from_bytes(made.hash),
            grant: made.grant_id.map(GrantId::from_bytes),
            client: made.client_id.clone(),
            revoked: AtomicBool::new(false),
            used_at: AtomicI64::new(0),
            noted_at: AtomicI64::new(0),
        }))
    }
}
