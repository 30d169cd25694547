//! The credentials that work now, in memory.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use dashmap::DashMap;
use tollgate_money::AccountId;
use tollgate_store::{
    AccountChange, AccountStatus, CredentialId, CredentialKind, Effect, NewCredential, Observer,
    Part, Read, ReadError, Store,
};

use crate::digest::{BuildRandomAlready, Digest};

/// Every live credential, by the digest of its text.
///
/// Filled once from the store, and told by the store of every change from then on, before whoever asked for the change hears that it is
/// durable. So a key that was revoked is gone when the command that revoked it answers, and looking one up never waits for anything.
pub struct Credentials {
    by_digest: DashMap<Digest, Arc<Credential>, BuildRandomAlready>,
    roster: Mutex<Roster>,
}

/// What is needed to follow the store, and not to judge a request.
#[derive(Default)]
struct Roster {
    accounts: HashMap<AccountId, Arc<Account>, BuildRandomAlready>,
    digests: HashMap<CredentialId, Digest, BuildRandomAlready>,
    /// Every class once, so that a hundred thousand accounts share a handful of names.
    classes: Vec<Arc<str>>,
}

/// One credential, and what it may do.
#[derive(Debug)]
pub struct Credential {
    /// Its public id.
    pub id: CredentialId,
    /// What it is.
    pub kind: CredentialKind,
    /// Whose it is.
    pub account: Arc<Account>,
    /// Bit set of the resources it is good for.
    pub resources: u32,
    /// Bit set of its scopes.
    pub scopes: u32,
    /// The only models it may use; `None` for all.
    pub models: Option<Arc<[Arc<str>]>>,
    /// Unix microseconds; `None` for good until revoked.
    pub expires_at: Option<i64>,
    revoked: AtomicBool,
}

impl Credential {
    /// Whether it works at `now` (Unix microseconds): neither expired nor revoked. For those who keep one: a look-up finds no revoked one.
    pub fn is_live(&self, now: i64) -> bool {
        self.expires_at.is_none_or(|end| now < end) && !self.revoked.load(Ordering::Acquire)
    }
}

/// What a request needs to know of the account behind a credential.
pub struct Account {
    id: AccountId,
    facts: ArcSwap<Facts>,
}

#[derive(Clone)]
struct Facts {
    status: AccountStatus,
    class: Arc<str>,
}

impl Account {
    /// Its id.
    pub fn id(&self) -> AccountId {
        self.id
    }

    /// Whether it may spend.
    pub fn status(&self) -> AccountStatus {
        self.facts.load().status
    }

    /// The class whose limits apply.
    pub fn class(&self) -> Arc<str> {
        self.facts.load().class.clone()
    }
}

impl fmt::Debug for Account {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Account").field(&self.id).finish()
    }
}

impl Credentials {
    /// All that work at `now` (Unix microseconds), kept up to date from then on.
    ///
    /// Called before anything else is written to the store: a change between the reading and the first telling would be missed.
    pub fn open(store: &dyn Store, now: i64) -> Result<Arc<Credentials>, ReadError> {
        let credentials = Arc::new(Credentials::read(store, now)?);
        store.observe(credentials.clone());
        Ok(credentials)
    }

    /// All that work at `now`, as they stand in the store.
    fn read(store: &dyn Read, now: i64) -> Result<Credentials, ReadError> {
        let credentials = Credentials {
            by_digest: DashMap::default(),
            roster: Mutex::default(),
        };
        {
            let mut roster = credentials.roster();
            store.accounts(&mut |row| roster.add_account(row.id, row.status, &row.class))?;
            store.credentials(now, &mut |row| {
                credentials.add(&mut roster, &row.made);
            })?;
        }
        Ok(credentials)
    }

    /// The credential whose text has this digest, if there is one that is not revoked. It may have expired: [`Credential::is_live`].
    pub fn find(&self, digest: &Digest) -> Option<Arc<Credential>> {
        self.by_digest
            .get(digest)
            .map(|found| found.value().clone())
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.by_digest.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.by_digest.is_empty()
    }

    /// Every rate class that an account has or had, to be compared with those in the settings.
    pub fn classes(&self) -> Vec<Arc<str>> {
        self.roster().classes.clone()
    }

    fn roster(&self) -> MutexGuard<'_, Roster> {
        // Every change is one insertion or removal, so a panic elsewhere leaves nothing half done.
        self.roster.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(&self, roster: &mut Roster, made: &NewCredential) {
        // The store refuses a credential without its account; were there one, nobody could be made to pay for what it does.
        let Some(account) = roster.accounts.get(&made.account) else {
            return;
        };
        let digest = Digest::from_bytes(made.hash);
        let credential = Credential {
            id: made.id,
            kind: made.kind,
            account: account.clone(),
            resources: made.resource,
            scopes: made.scopes,
            models: made.models.clone(),
            expires_at: made.expires_at,
            revoked: AtomicBool::new(false),
        };
        roster.digests.insert(made.id, digest);
        self.by_digest.insert(digest, Arc::new(credential));
    }

    fn revoke(&self, id: CredentialId) {
        let Some(digest) = self.roster().digests.remove(&id) else {
            return;
        };
        if let Some((_, credential)) = self.by_digest.remove(&digest) {
            credential.revoked.store(true, Ordering::Release);
        }
    }
}

impl Observer for Credentials {
    fn committed(&self, part: &Part, _: Effect) {
        match part {
            Part::CreateAccount(account) => {
                self.roster()
                    .add_account(account.id, AccountStatus::Active, &account.class);
            }
            Part::ChangeAccount(change) => self.roster().change_account(change),
            Part::InsertCredential(made) => self.add(&mut self.roster(), made),
            Part::RevokeCredential { id, .. } => self.revoke(*id),
            _ => {}
        }
    }
}

impl Roster {
    fn add_account(&mut self, id: AccountId, status: AccountStatus, class: &Arc<str>) {
        let facts = Facts {
            status,
            class: self.shared(class),
        };
        if let Entry::Vacant(place) = self.accounts.entry(id) {
            place.insert(Arc::new(Account {
                id,
                facts: ArcSwap::from_pointee(facts),
            }));
        }
    }

    fn change_account(&mut self, change: &AccountChange) {
        let class = change.class.as_ref().map(|class| self.shared(class));
        let Some(account) = self.accounts.get(&change.id) else {
            return;
        };
        let mut facts = Facts::clone(&account.facts.load());
        if let Some(status) = change.status {
            facts.status = status;
        }
        if let Some(class) = class {
            facts.class = class;
        }
        account.facts.store(Arc::new(facts));
    }

    fn shared(&mut self, class: &Arc<str>) -> Arc<str> {
        match self.classes.iter().find(|known| *known == class) {
            Some(known) => known.clone(),
            None => {
                self.classes.push(class.clone());
                class.clone()
            }
        }
    }
}
