//! In-memory index of the live credentials in use, loaded when they are first used (`look_up.rs`) and kept in sync with the store.

use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use arc_swap::{ArcSwap, ArcSwapOption};
use dashmap::DashMap;
use parking_lot::{Mutex, MutexGuard};
use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, GrantId, SpendingCap};
use tollgate_store::{
    AccountChange, AccountRow, AccountStatus, CacheScope, ChangeKind, CredentialKind,
    CredentialRow, Effect, Loads, OAuthPart, Observer, Part, PlanPart, Store,
};

use crate::digest::{BuildRandomAlready, Digest};
use crate::feed::FeedAge;
use crate::look_up::{ChangeMark, Changes, UnknownCredentials};
use crate::released::ReleasedAccounts;

/// The live credentials in use, by the digest of their text.
///
/// A presented credential outside memory is read from the store. The store notifies the index of each commit before the acknowledgement to
/// the writer. So a revoked key is gone when the revoking command returns, and a credential in memory is found without a wait.
pub struct Credentials {
    by_digest: DashMap<Digest, Arc<Credential>, BuildRandomAlready>,
    roster: Mutex<Roster>,
    /// Set on a node of a cluster.
    feed: OnceLock<FeedAge>,
    /// A weak reference: the store has a reference to the index, its observer.
    pub(crate) store: Weak<dyn Store>,
    pub(crate) loads: Arc<Loads<Digest, Option<Arc<Credential>>>>,
    /// Credentials read from the store.
    pub(crate) loaded: AtomicU64,
    /// Look-ups in the store without a result.
    pub(crate) unknown: AtomicU64,
    /// Failed look-ups.
    pub(crate) failed: AtomicU64,
}

/// State for following the store; not needed to authenticate a request with a credential in memory.
#[derive(Default)]
pub(crate) struct Roster {
    /// Accounts of the credentials in memory, with the number of credentials.
    accounts: HashMap<AccountId, (Arc<Account>, usize), BuildRandomAlready>,
    pub(crate) released: ReleasedAccounts,
    by_id: HashMap<CredentialId, Arc<Credential>, BuildRandomAlready>,
    pub(crate) changes: Changes,
    pub(crate) unknown: UnknownCredentials,
    /// Credentials with an expiry, by expiry.
    ends: BTreeSet<(Timestamp, CredentialId)>,
    /// Tokens by account and grant, for revocation.
    families: BTreeSet<(AccountId, GrantId, CredentialId)>,
    /// Interned combinations of status, class and cache scope: a hundred thousand accounts share a handful of values.
    facts: Vec<Arc<Facts>>,
}

/// A credential and its permissions.
#[derive(Debug)]
pub struct Credential {
    /// Its public id.
    pub id: CredentialId,
    pub kind: CredentialKind,
    pub account: Arc<Account>,
    /// Bit set of resources.
    pub resources: u32,
    /// Bit set of scopes.
    pub scopes: u32,
    /// The permitted models; `None` for all.
    pub models: Option<Arc<[Arc<str>]>>,
    /// The spending cap, if any.
    pub spending_cap: Option<SpendingCap>,
    /// The expiry, if any.
    pub expires_at: Option<Timestamp>,
    digest: Digest,
    grant: Option<GrantId>,
    client: Option<Arc<str>>,
    revoked: AtomicBool,
    /// Last use, in microseconds since 1970; zero if not used since the start.
    used_at: AtomicI64,
    /// The stored last use, in the form of `used_at`.
    noted_at: AtomicI64,
}

/// Accuracy of the last use: a credential in constant use is written to once in this time. The limit avoids cache-line contention between
/// threads.
const USE_STEP: Duration = Duration::from_secs(15);

/// Credentials removed under one lock.
const EVICTED_AT_ONCE: usize = 256;

impl Credential {
    /// Records a use at `now`.
    pub fn used(&self, now: Timestamp) {
        let used_at = Timestamp::from_micros(self.used_at.load(Ordering::Relaxed));
        if now >= used_at + USE_STEP {
            self.used_at.store(now.as_micros(), Ordering::Relaxed);
        }
    }

    /// Whether the credential is live at `now`: neither expired nor revoked. For holders of a reference: a lookup returns no revoked
    /// credential.
    pub fn is_live(&self, now: Timestamp) -> bool {
        self.expires_at.is_none_or(|end| now < end) && !self.revoked.load(Ordering::Acquire)
    }
}

/// The last use of a credential.
pub struct CredentialUse {
    credential: Arc<Credential>,
    at: Timestamp,
}

impl CredentialUse {
    /// The credential, and when it was used.
    pub fn row(&self) -> (CredentialId, Timestamp) {
        (self.credential.id, self.at)
    }

    /// Marks the row as durable: no later [`Credentials::unstored_uses`] returns the row.
    pub fn mark_stored(&self) {
        let noted_at = &self.credential.noted_at;
        noted_at.fetch_max(self.at.as_micros(), Ordering::Relaxed);
    }
}

/// The state of the account behind a credential, as far as a request needs it.
pub struct Account {
    id: AccountId,
    facts: ArcSwap<Facts>,
    /// End of the plan, in microseconds since 1970; [`Timestamp::MIN`] for an account that never had a plan.
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

    /// The status, which decides on spending.
    pub fn status(&self) -> AccountStatus {
        self.facts.load().status
    }

    /// The rate class at `now`: the plan's class until the plan ends, then the account's class.
    pub fn class(&self, now: Timestamp) -> Arc<str> {
        if now < Timestamp::from_micros(self.plan_until.load(Ordering::Acquire))
            && let Some(class) = &*self.plan_class.load()
        {
            return Arc::clone(class);
        }
        self.facts.load().class.clone()
    }

    fn set_plan_of(&self, row: &AccountRow) {
        if let Some((class, until)) = &row.plan {
            self.set_plan(class, *until);
        }
    }

    fn set_plan(&self, class: &Arc<str>, until: Timestamp) {
        // The class is written first: a reader that sees the new end sees the new class too.
        let known = self.plan_class.load();
        if known.as_ref().is_none_or(|known| **known != *class) {
            self.plan_class.store(Some(Arc::new(class.clone())));
        }
        self.plan_until.store(until.as_micros(), Ordering::Release);
    }

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
    /// An empty index of the store's credentials; follows the store from now on.
    pub fn open(store: &Arc<dyn Store>) -> Arc<Credentials> {
        let credentials = Arc::new(Credentials {
            by_digest: DashMap::default(),
            roster: Mutex::default(),
            feed: OnceLock::new(),
            store: Arc::downgrade(store),
            loads: Arc::default(),
            loaded: AtomicU64::new(0),
            unknown: AtomicU64::new(0),
            failed: AtomicU64::new(0),
        });
        store.observe(credentials.clone());
        credentials
    }

    /// Whether the index knows the revocations of other nodes, at most two seconds old. Always true on a lone node.
    pub fn is_current(&self) -> bool {
        self.feed.get().is_none_or(FeedAge::is_recent)
    }

    pub(crate) fn set_feed(&self, feed: FeedAge) {
        // A credential index has one store, so the feed is set once.
        let _ = self.feed.set(feed);
    }

    /// The unrevoked, possibly expired ([`Credential::is_live`]) credential with this digest, if in memory.
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

    /// Last uses not stored yet. Visits every credential.
    pub fn unstored_uses(&self) -> Vec<CredentialUse> {
        let mut uses = Vec::new();
        for credential in &self.by_digest {
            let used_at = credential.used_at.load(Ordering::Relaxed);
            if credential.noted_at.load(Ordering::Relaxed) != used_at {
                uses.push(CredentialUse {
                    credential: credential.clone(),
                    at: Timestamp::from_micros(used_at),
                });
            }
        }
        uses
    }

    /// Number of credentials in memory.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether the index is empty.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    pub(crate) fn roster(&self) -> MutexGuard<'_, Roster> {
        // Every change is a single insertion or removal, so a poisoned lock holds consistent state.
        self.roster.lock()
    }

    /// Removes credentials expired by `now`, a bound on the memory for short-lived tokens.
    pub fn forget_expired(&self, now: Timestamp) {
        let mut roster = self.roster();
        while let Some(&(end, id)) = roster.ends.first()
            && end <= now
        {
            self.take(&mut roster, id);
        }
    }

    /// Removes credentials without a use since `before`, except credentials with an unstored last use; returns the number.
    pub fn evict_idle(&self, before: Timestamp) -> usize {
        let before = before.as_micros();
        let is_idle = |credential: &Credential| {
            let used_at = credential.used_at.load(Ordering::Relaxed);
            used_at < before && credential.noted_at.load(Ordering::Relaxed) == used_at
        };
        let mut idle = Vec::new();
        for credential in &self.by_digest {
            if is_idle(&credential) {
                idle.push(credential.id);
            }
        }
        // A part at a time, since commits wait for the lock.
        for ids in idle.chunks(EVICTED_AT_ONCE) {
            let mut roster = self.roster();
            for id in ids {
                if roster.by_id.get(id).is_some_and(|one| is_idle(one)) {
                    self.take(&mut roster, *id);
                }
            }
        }
        idle.len()
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
        roster.release_account(credential.account.id());
        Some(credential)
    }

    /// Replaces a credential in memory by the changed version. Running requests keep their version.
    fn change(
        &self,
        roster: &mut Roster,
        id: CredentialId,
        models: Option<Arc<[Arc<str>]>>,
        spending_cap: Option<SpendingCap>,
        expires_at: Option<Timestamp>,
    ) {
        let Some(known) = roster.by_id.get(&id).cloned() else {
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
            models,
            spending_cap,
            expires_at,
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
        // Replaced in one step: a lookup finds either version.
        self.add(roster, changed);
    }

    fn revoke(&self, roster: &mut Roster, id: CredentialId) {
        if let Some(credential) = self.take(roster, id) {
            credential.revoked.store(true, Ordering::Release);
        }
    }

    /// Revokes the tokens of an account's grants: of one grant, of one client, or of every grant.
    fn revoke_grants(
        &self,
        roster: &mut Roster,
        account: AccountId,
        grant: Option<GrantId>,
        client: Option<&str>,
    ) {
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
            self.revoke(roster, id);
        }
    }
}

impl Credentials {
    /// Keeps a credential read after `mark`; `None` after a later change of the credential or its account.
    pub(crate) fn keep(
        &self,
        mark: ChangeMark,
        row: &CredentialRow,
        account: &AccountRow,
    ) -> Option<Arc<Credential>> {
        let made = &row.made;
        let mut roster = self.roster();
        let grant = made.grant_id.as_ref();
        let subjects = [Some(made.id.as_bytes()), Some(account.id.as_bytes()), grant];
        if roster
            .changes
            .has_changed(mark, subjects.into_iter().flatten())
        {
            return None;
        }
        if let Some(known) = roster.by_id.get(&made.id) {
            return Some(known.clone());
        }
        let used_at = row.used_at.map_or(0, Timestamp::as_micros);
        let account = roster.keep_account(account);
        let credential = Arc::new(Credential {
            id: made.id,
            kind: made.kind,
            account,
            resources: made.resource,
            scopes: made.scopes,
            models: made.models.clone(),
            spending_cap: made.spending_cap,
            expires_at: made.expires_at,
            digest: Digest::from_bytes(made.hash),
            grant: made.grant_id.map(GrantId::from_bytes),
            client: made.client_id.clone(),
            revoked: AtomicBool::new(false),
            used_at: AtomicI64::new(used_at),
            noted_at: AtomicI64::new(used_at),
        });
        self.add(&mut roster, credential.clone());
        self.loaded.fetch_add(1, Ordering::Relaxed);
        Some(credential)
    }

    /// Notes that a subject has changed, for the loads under way.
    pub(crate) fn note_change(&self, kind: ChangeKind, subject: &[u8; 16]) {
        let mut roster = self.roster();
        roster.changes.note(subject);
        if kind == ChangeKind::Credential {
            roster.unknown.clear();
        }
    }

    /// Whether an account has a credential in memory, or a request under way.
    pub(crate) fn has_account(&self, account: AccountId) -> bool {
        self.roster().account(account).is_some()
    }

    /// Whether a credential is in memory.
    pub(crate) fn has_credential(&self, id: CredentialId) -> bool {
        self.roster().by_id.contains_key(&id)
    }

    /// Reads an account again that another node has changed.
    pub(crate) fn reload_account(&self, row: &AccountRow) {
        let mut roster = self.roster();
        if let Some(account) = roster.account(row.id) {
            let facts = roster.facts(row.status, &row.class, row.cache_scope);
            account.facts.store(facts);
            account.set_plan_of(row);
        }
    }

    /// Reads a credential again that another node has changed or revoked.
    pub(crate) fn reload_credential(&self, id: CredentialId, row: Option<CredentialRow>) {
        let mut roster = self.roster();
        match row.filter(|row| row.revoked_at.is_none()) {
            Some(row) => self.change(
                &mut roster,
                id,
                row.made.models.clone(),
                row.made.spending_cap,
                row.made.expires_at,
            ),
            None => self.revoke(&mut roster, id),
        }
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
        if !matches!(
            part,
            Part::ChangeAccount(_)
                | Part::Plan(_)
                | Part::InsertCredential(_)
                | Part::ChangeCredential(_)
                | Part::RevokeCredential { .. }
                | Part::OAuth(_)
        ) {
            return;
        }
        let mut roster = self.roster();
        match part {
            Part::ChangeAccount(change) => {
                roster.changes.note(change.id.as_bytes());
                roster.change_account(change);
            }
            Part::Plan(part) => {
                if let PlanPart::Put { row, class } = &**part {
                    roster.changes.note(row.account.as_bytes());
                    if let Some(account) = roster.account(row.account) {
                        account.set_plan(class, row.period_end);
                    }
                }
            }
            // Loaded on use.
            Part::InsertCredential(_) => roster.unknown.clear(),
            Part::ChangeCredential(change) => {
                roster.changes.note(change.id.as_bytes());
                let models = change.models.clone();
                let (cap, end) = (change.spending_cap, change.expires_at);
                self.change(&mut roster, change.id, models, cap, end);
            }
            Part::RevokeCredential { id, .. } => {
                roster.changes.note(id.as_bytes());
                self.revoke(&mut roster, *id);
            }
            Part::OAuth(part) => match &**part {
                OAuthPart::RevokeGrant { id, account, .. } => {
                    roster.changes.note(id.as_bytes());
                    self.revoke_grants(&mut roster, *account, Some(*id), None);
                }
                OAuthPart::RevokeGrants {
                    account, client, ..
                } => {
                    roster.changes.note(account.as_bytes());
                    self.revoke_grants(&mut roster, *account, None, client.as_deref());
                }
                _ => {}
            },
            _ => {}
        }
    }
}

impl Roster {
    /// An account in memory: of a credential, or of a request whose credential has left memory.
    fn account(&self, id: AccountId) -> Option<Arc<Account>> {
        match self.accounts.get(&id) {
            Some((account, _)) => Some(account.clone()),
            None => self.released.find(id),
        }
    }

    /// The account of a credential that is being loaded. An account in memory follows the store, and so is newer than the row.
    fn keep_account(&mut self, row: &AccountRow) -> Arc<Account> {
        if let Some((known, credentials)) = self.accounts.get_mut(&row.id) {
            *credentials += 1;
            return known.clone();
        }
        if let Some(known) = self.released.take(row.id) {
            self.accounts.insert(row.id, (known.clone(), 1));
            return known;
        }
        let facts = ArcSwap::new(self.facts(row.status, &row.class, row.cache_scope));
        let account = Arc::new(Account {
            id: row.id,
            facts,
            plan_until: AtomicI64::new(Timestamp::MIN.as_micros()),
            plan_class: ArcSwapOption::empty(),
        });
        account.set_plan_of(row);
        self.accounts.insert(row.id, (account.clone(), 1));
        account
    }

    /// A credential of the account is in memory no more; the account goes with the last one and the last request.
    fn release_account(&mut self, id: AccountId) {
        if let Entry::Occupied(mut found) = self.accounts.entry(id) {
            found.get_mut().1 -= 1;
            if found.get().1 == 0 {
                let (account, _) = found.remove();
                self.released.add(&account);
            }
        }
    }

    fn change_account(&mut self, change: &AccountChange) {
        let Some(account) = self.account(change.id) else {
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
}
