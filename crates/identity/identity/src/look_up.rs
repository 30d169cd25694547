//! Look-ups of credentials outside memory: single flight in the store, and a memory of unknown credentials.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_store::LoadError;

use crate::credentials::{Credential, Credentials};
use crate::digest::{BuildRandomAlready, Digest};

/// For how long a credential that the store does not have is refused without another look-up.
const UNKNOWN_KEPT: Duration = Duration::from_secs(5);

/// Remembered unknown credentials.
const UNKNOWN_MAX: usize = 4096;

/// Changes remembered for the loads under way.
const CHANGES_MAX: usize = 1024;

/// Attempts of one load at a credential under concurrent change.
const TRIES: usize = 10;

/// Numbers of look-ups in the store.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LookUps {
    /// Look-ups of existing credentials.
    pub found: u64,
    /// Of others.
    pub unknown: u64,
    /// Without an answer: each waiting request counts.
    pub failed: u64,
}

impl Credentials {
    /// Whether a look-up of this digest would read the store: not in memory, not known to be absent, and not being read.
    pub fn needs_read(&self, digest: &Digest, now: Timestamp) -> bool {
        let is_known = self.find(digest).is_some() || self.roster().unknown.contains(digest, now);
        !is_known && !self.loads.has(digest)
    }

    /// The unrevoked and unexpired (at `now`) credential with this digest, from memory or from the store. Concurrent look-ups of a digest
    /// share one read.
    ///
    /// # Errors
    ///
    /// The store cannot be read, or not within some seconds.
    pub async fn look_up(
        self: &Arc<Self>,
        digest: Digest,
        now: Timestamp,
    ) -> Result<Option<Arc<Credential>>, LoadError> {
        if let Some(known) = self.find(&digest) {
            return Ok(Some(known));
        }
        if self.roster().unknown.contains(&digest, now) {
            return Ok(None);
        }
        let this = Arc::clone(self);
        let read = move || this.load(digest, now);
        let loaded = self.loads.load(digest, read).await;
        if loaded.is_err() {
            self.failed.fetch_add(1, Ordering::Relaxed);
        }
        loaded
    }

    /// The same; blocks.
    ///
    /// # Errors
    ///
    /// The store cannot be read.
    pub fn look_up_now(
        &self,
        digest: Digest,
        now: Timestamp,
    ) -> Result<Option<Arc<Credential>>, LoadError> {
        match self.find(&digest) {
            Some(known) => Ok(Some(known)),
            None => self.load(digest, now),
        }
    }

    /// The look-ups of requests in the store since the start.
    pub fn look_ups(&self) -> LookUps {
        LookUps {
            found: self.loaded.load(Ordering::Relaxed),
            unknown: self.unknown.load(Ordering::Relaxed),
            failed: self.failed.load(Ordering::Relaxed),
        }
    }

    fn load(&self, digest: Digest, now: Timestamp) -> Result<Option<Arc<Credential>>, LoadError> {
        let Some(store) = self.store.upgrade() else {
            return Err(LoadError::TimedOut);
        };
        for _ in 0..TRIES {
            let mark = self.roster().changes.mark();
            let is_new = self.roster().unknown.mark();
            let found = store.credential_by_hash(digest.as_bytes())?;
            let is_live = |end: Option<Timestamp>| end.is_none_or(|end| now < end);
            let live = found.filter(|row| row.revoked_at.is_none() && is_live(row.made.expires_at));
            let account = match &live {
                Some(row) => store.posted_account(row.made.account)?,
                None => None,
            };
            // The store rules out a credential without an account; its use could not be billed.
            let (Some(row), Some(account)) = (live, account) else {
                self.unknown.fetch_add(1, Ordering::Relaxed);
                self.roster().unknown.insert(is_new, digest, now);
                return Ok(None);
            };
            if let Some(credential) = self.keep(mark, &row, &account) {
                return Ok(Some(credential));
            }
        }
        Err(LoadError::Changed)
    }
}

/// The last changes of accounts, credentials and grants, by id: a row read from the store meanwhile may be older than these changes.
#[derive(Default)]
pub(crate) struct Changes {
    last: VecDeque<[u8; 16]>,
    /// The number of all changes.
    count: u64,
}

/// The number of changes at the beginning of a load.
#[derive(Clone, Copy)]
pub(crate) struct ChangeMark(u64);

impl Changes {
    pub(crate) fn note(&mut self, subject: &[u8; 16]) {
        if self.last.len() == CHANGES_MAX {
            self.last.pop_front();
        }
        self.last.push_back(*subject);
        self.count += 1;
    }

    /// To be taken before the first read of a load.
    pub(crate) fn mark(&self) -> ChangeMark {
        ChangeMark(self.count)
    }

    /// Whether a subject may have changed since.
    pub(crate) fn has_changed<'s>(
        &self,
        since: ChangeMark,
        mut subjects: impl Iterator<Item = &'s [u8; 16]>,
    ) -> bool {
        let count = usize::try_from(self.count - since.0).unwrap_or(usize::MAX);
        let Some(before) = self.last.len().checked_sub(count) else {
            return true;
        };
        subjects.any(|subject| self.last.range(before..).any(|changed| changed == subject))
    }
}

/// Digests of well-formed credentials absent from the store.
#[derive(Default)]
pub(crate) struct UnknownCredentials {
    until: HashMap<Digest, Timestamp, BuildRandomAlready>,
    /// Number of times the digests were forgotten.
    cleared: u64,
}

impl UnknownCredentials {
    fn contains(&self, digest: &Digest, now: Timestamp) -> bool {
        // A clock set back does not prolong the entry.
        let until = self.until.get(digest);
        until.is_some_and(|until| now < *until && now + UNKNOWN_KEPT >= *until)
    }

    /// A credential was made or changed, here or elsewhere.
    pub(crate) fn clear(&mut self) {
        self.until.clear();
        self.cleared += 1;
    }

    /// To be taken before the read of a load.
    fn mark(&self) -> u64 {
        self.cleared
    }

    /// Remembers a digest, unless a credential was made since.
    fn insert(&mut self, mark: u64, digest: Digest, now: Timestamp) {
        if mark != self.cleared {
            return;
        }
        if self.until.len() >= UNKNOWN_MAX {
            self.until.retain(|_, until| now < *until);
        }
        if self.until.len() < UNKNOWN_MAX {
            self.until.insert(digest, now + UNKNOWN_KEPT);
        }
    }
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;
    use tollgate_money::{AccountId, CredentialId, GrantId, Micros};
    use tollgate_store::sqlite::{self, Options};
    use tollgate_store::{
        AccountChange, AccountStatus, Admission, CacheScope, ChangeKind, CredentialChange,
        CredentialKind, Effect, NewAccount, NewCredential, OAuthPart, Observer, Part, RootSecret,
        Store, UnitOfWork, commit,
    };

    use super::*;
    use crate::credentials::CredentialUse;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const KEY: CredentialId = CredentialId::from_bytes([1; 16]);
    const ACCOUNT: AccountId = AccountId::from_bytes([2; 16]);
    const GRANT: [u8; 16] = [3; 16];

    struct Bench {
        store: Arc<dyn Store>,
        credentials: Arc<Credentials>,
        digest: Digest,
        _folder: TempDir,
    }

    impl Bench {
        async fn new() -> Bench {
            let folder = TempDir::new().expect("a folder");
            let options = Options::new(NOW, RootSecret([7; 32]));
            let store = sqlite::open(&folder.path().join("books.db"), options).expect("a store");
            let account = Part::CreateAccount(Box::new(NewAccount {
                id: ACCOUNT,
                class: Arc::from("free"),
                cache_scope: CacheScope::Shared,
                credit_limit: Micros::ZERO,
                created_at: NOW,
            }));
            let bench = Bench {
                credentials: Credentials::open(&store),
                store,
                digest: Digest::of(b"one"),
                _folder: folder,
            };
            bench.commit(account).await;
            bench.commit(bench.key(KEY, bench.digest)).await;
            bench
        }

        async fn commit(&self, part: Part) {
            let unit = UnitOfWork::of(part, Admission::Normal);
            commit(&*self.store, unit).await.expect("it is durable");
        }

        fn key(&self, id: CredentialId, digest: Digest) -> Part {
            Part::InsertCredential(Box::new(NewCredential {
                id,
                hash: *digest.as_bytes(),
                kind: CredentialKind::AccessToken,
                account: ACCOUNT,
                client_id: None,
                grant_id: Some(GRANT),
                resource: 1,
                scopes: 1,
                label: None,
                hint: None,
                models: None,
                spending_cap: None,
                created_at: NOW,
                expires_at: None,
            }))
        }

        fn look_up(&self, digest: Digest, now: Timestamp) -> Option<Arc<Credential>> {
            let found = self.credentials.look_up_now(digest, now);
            found.expect("it can be read")
        }
    }

    fn changed_key(id: CredentialId) -> Part {
        Part::ChangeCredential(Box::new(CredentialChange {
            id,
            account: ACCOUNT,
            version: 0,
            label: Arc::from("new"),
            models: None,
            spending_cap: None,
            spent: Micros::ZERO,
            expires_at: None,
            at: NOW,
        }))
    }

    /// A load reads, then something is committed and announced, and only then the load keeps what it has read.
    #[tokio::test]
    async fn what_was_read_before_a_change_of_its_subject_is_not_kept() {
        let bench = Bench::new().await;
        let (other_key, other) = (CredentialId::from_bytes([9; 16]), [9; 16]);
        let suspended = |account| {
            Part::ChangeAccount(Box::new(AccountChange {
                id: account,
                status: Some(AccountStatus::Suspended),
                class: None,
                cache_scope: None,
                at: NOW,
            }))
        };
        let revoked = |id| Part::RevokeCredential { id, at: NOW };
        let grant = |id| {
            Part::OAuth(Box::new(OAuthPart::RevokeGrant {
                id: GrantId::from_bytes(id),
                account: ACCOUNT,
                at: NOW,
            }))
        };
        let grants = |account| {
            Part::OAuth(Box::new(OAuthPart::RevokeGrants {
                account,
                client: None,
                at: NOW,
            }))
        };
        let other_account = AccountId::from_bytes(other);
        let changes = [
            (revoked(KEY), false),
            (revoked(other_key), true),
            (changed_key(KEY), false),
            (changed_key(other_key), true),
            (suspended(ACCOUNT), false),
            (suspended(other_account), true),
            (grant(GRANT), false),
            (grant(other), true),
            (grants(ACCOUNT), false),
            (grants(other_account), true),
        ];
        for (part, is_kept) in changes {
            bench.credentials.evict_idle(NOW);
            let kept = bench.read_then(|credentials| credentials.committed(&part, Effect::Applied));
            assert_eq!(kept, is_kept, "{part:?}");
        }
        for (kind, subject, is_kept) in [
            (ChangeKind::Credential, KEY.as_bytes(), false),
            (ChangeKind::Account, ACCOUNT.as_bytes(), false),
            (ChangeKind::Grant, &GRANT, false),
            (ChangeKind::Credential, &other, true),
        ] {
            bench.credentials.evict_idle(NOW);
            let kept = bench.read_then(|credentials| credentials.note_change(kind, subject));
            assert_eq!(kept, is_kept, "{kind:?}, from another node");
        }
        bench.credentials.evict_idle(NOW);
        let kept = bench.read_then(|credentials| {
            for number in 0..=CHANGES_MAX {
                let part = revoked(CredentialId::from_bytes([number as u8 | 128; 16]));
                credentials.committed(&part, Effect::Applied);
            }
        });
        assert!(!kept, "too many changes to know");
        assert!(bench.look_up(bench.digest, NOW).is_some(), "read again");
    }

    impl Bench {
        /// Waits until the account has left memory. The task of a load has a reference for a moment after its result has arrived.
        async fn forgets_account(&self) {
            let forgotten = async {
                while self.credentials.has_account(ACCOUNT) {
                    tokio::task::yield_now().await;
                }
            };
            let waited = tokio::time::timeout(Duration::from_secs(60), forgotten).await;
            waited.expect("no reference is left");
        }

        /// Whether what was read is kept after `meanwhile`.
        fn read_then(&self, meanwhile: impl FnOnce(&Credentials)) -> bool {
            let mark = self.credentials.roster().changes.mark();
            let row = self.store.credential(KEY).expect("it can be read");
            let account = self.store.posted_account(ACCOUNT).expect("it can be read");
            meanwhile(&self.credentials);
            let (row, account) = (row.expect("a key"), account.expect("an account"));
            self.credentials.keep(mark, &row, &account).is_some()
        }
    }

    #[tokio::test]
    async fn an_unknown_credential_is_remembered_for_seconds_and_until_one_is_made() {
        let bench = Bench::new().await;
        let made = Digest::of(b"two");
        let look_up = |now| bench.credentials.look_up(made, now);
        let unknown = || bench.credentials.look_ups().unknown;
        for now in [NOW, NOW, NOW + UNKNOWN_KEPT - Duration::from_micros(1)] {
            assert!(look_up(now).await.expect("it can be read").is_none());
            assert_eq!(unknown(), 1, "it is remembered");
        }
        let later = NOW + UNKNOWN_KEPT;
        assert!(look_up(later).await.expect("it can be read").is_none());
        assert_eq!(unknown(), 2, "for five seconds");

        let key = bench.key(CredentialId::from_bytes([4; 16]), made);
        // Between the read and its end.
        let mark = bench.credentials.roster().unknown.mark();
        bench.commit(key).await;
        let found = look_up(later).await.expect("it can be read");
        assert!(found.is_some(), "it works as soon as it is made");
        {
            let mut roster = bench.credentials.roster();
            roster.unknown.insert(mark, Digest::of(b"three"), later);
            assert!(!roster.unknown.contains(&Digest::of(b"three"), later));
        }

        let other = Digest::of(b"four");
        let miss = bench.credentials.look_up(other, later).await;
        assert!(miss.expect("it can be read").is_none());
        bench
            .credentials
            .note_change(ChangeKind::Credential, &[5; 16]);
        let miss = bench.credentials.look_up(other, later).await;
        assert!(miss.expect("it can be read").is_none());
        assert_eq!(unknown(), 4, "another node may have made it");
    }

    #[tokio::test]
    async fn a_read_is_needed_by_the_first_request_alone() {
        let bench = Bench::new().await;
        let credentials = &bench.credentials;
        let unknown = Digest::of(b"two");
        for digest in [bench.digest, unknown] {
            assert!(credentials.needs_read(&digest, NOW));
            // The read does not end before both were polled: this test has one thread.
            let during = async { credentials.needs_read(&digest, NOW) };
            let (looked_up, during) = tokio::join!(credentials.look_up(digest, NOW), during);
            assert!(looked_up.is_ok() && !during);
            assert!(!credentials.needs_read(&digest, NOW));
        }
        assert!(credentials.needs_read(&unknown, NOW + UNKNOWN_KEPT));
    }

    #[tokio::test]
    async fn a_start_reads_nothing_and_what_is_idle_is_evicted_once_its_use_is_stored() {
        let bench = Bench::new().await;
        let credentials = &bench.credentials;
        assert_eq!(credentials.len(), 0);
        assert_eq!(credentials.look_ups(), LookUps::default());
        let looked_up = [(); 3].map(|()| credentials.look_up(bench.digest, NOW));
        for looked_up in looked_up {
            let found = looked_up.await.expect("it can be read").expect("a key");
            found.used(NOW);
        }
        assert_eq!((credentials.len(), credentials.look_ups().found), (1, 1));
        let later = NOW + Duration::from_secs(1);
        assert_eq!(credentials.evict_idle(later), 0, "its use is not stored");
        let uses = credentials.unstored_uses();
        assert_eq!(credentials.evict_idle(later), 0, "nor is it yet");
        uses.iter().for_each(CredentialUse::mark_stored);
        // A use refers to its credential, and the credential to the account.
        drop(uses);
        assert_eq!(credentials.evict_idle(NOW), 0, "it is in use");
        assert_eq!(credentials.evict_idle(later), 1);
        assert!(credentials.is_empty());
        bench.forgets_account().await;
        bench
            .commit(Part::RevokeCredential { id: KEY, at: NOW })
            .await;
        assert!(bench.look_up(bench.digest, NOW).is_none(), "it is revoked");
    }

    #[tokio::test]
    async fn an_account_stays_in_memory_for_as_long_as_a_request_has_a_reference() {
        let bench = Bench::new().await;
        let credentials = &bench.credentials;
        // The reference to the credential ends with the statement.
        let found = bench.look_up(bench.digest, NOW);
        let request = found.map(|key| key.account.clone()).expect("a key");
        assert_eq!(credentials.evict_idle(NOW), 1);
        // As another node announces a suspension.
        assert!(credentials.has_account(ACCOUNT));
        let row = bench.store.posted_account(ACCOUNT).expect("a read");
        let mut row = row.expect("an account");
        row.status = AccountStatus::Suspended;
        credentials.reload_account(&row);
        assert_eq!(request.status(), AccountStatus::Suspended);
        drop(request);
        bench.forgets_account().await;

        // Accounts without a request leave a bounded number of entries.
        let key = bench.store.credential(KEY).expect("a read");
        let mut key = key.expect("a key");
        for number in 0..2000u16 {
            let mut id = [0; 16];
            id[..2].copy_from_slice(&number.to_be_bytes());
            (key.made.id, row.id) = (CredentialId::from_bytes(id), AccountId::from_bytes(id));
            key.made.hash = *Digest::of(&id).as_bytes();
            let mark = credentials.roster().changes.mark();
            let kept = credentials.keep(mark, &key, &row);
            drop(kept.expect("it is kept"));
            assert_eq!(credentials.evict_idle(NOW), 1);
            assert!(credentials.roster().released.len() <= 256);
        }
    }

    #[tokio::test]
    async fn a_look_up_without_an_answer_of_the_store_is_counted_as_failed() {
        let Bench {
            store,
            credentials,
            digest,
            _folder,
        } = Bench::new().await;
        drop(store);
        let failed = credentials.look_up(digest, NOW).await;
        assert!(failed.is_err(), "the store is gone");
        let counted = LookUps {
            failed: 1,
            ..LookUps::default()
        };
        assert_eq!(credentials.look_ups(), counted);
    }

    #[test]
    fn a_key_that_is_revoked_while_it_is_looked_up_is_gone_when_the_revocation_returns() {
        let runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = { runtime }.enable_time().build().expect("a runtime");
        let bench = runtime.block_on(Bench::new());
        let keys: Vec<_> = (0..200u8)
            .map(|number| {
                (
                    CredentialId::from_bytes([number; 16]),
                    Digest::of(&[number]),
                )
            })
            .filter(|(id, _)| *id != KEY)
            .collect();
        for (id, digest) in &keys {
            runtime.block_on(bench.commit(bench.key(*id, *digest)));
        }
        for (id, digest) in keys {
            let is_over = std::sync::atomic::AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    while !is_over.load(Ordering::Relaxed) {
                        bench.look_up(digest, NOW);
                        bench.credentials.evict_idle(NOW);
                    }
                });
                runtime.block_on(bench.commit(Part::RevokeCredential { id, at: NOW }));
                let found = bench.credentials.find(&digest);
                is_over.store(true, Ordering::Relaxed);
                assert!(found.is_none(), "{id} is in memory after its revocation");
            });
            assert!(bench.look_up(digest, NOW).is_none(), "{id}");
        }
    }
}
