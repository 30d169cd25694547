//! The in-memory index follows the store: after any changes, look-ups and evictions it equals what a restart would load.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use secrecy::ExposeSecret;
use tempfile::TempDir;
use tollgate_clock::Timestamp;
use tollgate_identity::{
    CreatedKey, Credentials, Form, NewAccount, NewKey, create_account, create_key, revoke_key,
    set_class, set_status,
};
use tollgate_money::{AccountId, Micros};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{AccountStatus, RootSecret, Store};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

/// A change; numbers choose among the existing objects.
#[derive(Clone, Debug)]
enum Change {
    Account,
    Key {
        account: usize,
        life: Option<Duration>,
    },
    Revoke {
        key: usize,
    },
    Status {
        account: usize,
        status: usize,
    },
    Class {
        account: usize,
        class: usize,
    },
    /// A look-up, which keeps the key in memory.
    Use {
        key: usize,
    },
    /// Removes what is in memory.
    Evict,
}

fn change() -> impl Strategy<Value = Change> {
    let any = 0usize..100;
    let life = (1u64..5).prop_map(Duration::from_micros);
    prop_oneof![
        1 => Just(Change::Account),
        4 => (any.clone(), prop::option::of(life)).prop_map(|(account, life)| Change::Key { account, life }),
        2 => any.clone().prop_map(|key| Change::Revoke { key }),
        1 => (any.clone(), 0usize..3).prop_map(|(account, status)| Change::Status { account, status }),
        3 => any.clone().prop_map(|key| Change::Use { key }),
        1 => Just(Change::Evict),
        1 => (any, 0usize..3).prop_map(|(account, class)| Change::Class { account, class }),
    ]
}

#[derive(Default)]
struct World {
    accounts: Vec<AccountId>,
    keys: Vec<CreatedKey>,
    drawn: u64,
}

impl World {
    async fn apply(
        &mut self,
        (store, credentials): (&dyn Store, &Credentials),
        form: &Form,
        change: Change,
    ) {
        self.drawn += 1;
        let drawn = self.drawn.to_le_bytes();
        let draw = move |out: &mut [u8]| {
            for (byte, &drawn) in out.iter_mut().zip(drawn.iter().cycle()) {
                *byte = drawn;
            }
        };
        let account = |at: usize| self.accounts.get(at % self.accounts.len().max(1)).copied();
        match change {
            Change::Account => {
                let account = NewAccount {
                    logins: Vec::new(),
                    class: Arc::from("free"),
                    credit_limit: Micros::ZERO,
                    cache_scope: tollgate_store::CacheScope::Shared,
                    created_at: NOW,
                };
                let made = create_account(store, account, draw).await;
                self.accounts.push(made.expect("an account"));
            }
            Change::Key { account: at, life } => {
                let Some(account) = account(at) else { return };
                let key = NewKey {
                    account,
                    label: String::from("any"),
                    resources: 1,
                    scopes: 1 + at as u32,
                    models: None,
                    spending_cap: None,
                    expires_at: life.map(|life| NOW + life),
                    created_at: NOW,
                };
                let made = create_key(store, form, key, draw).await;
                self.keys.push(made.expect("a key"));
            }
            Change::Revoke { key } => {
                let Some(key) = self.keys.get(key % self.keys.len().max(1)) else {
                    return;
                };
                revoke_key(store, key.id, NOW).await.expect("revoked");
            }
            Change::Use { key } => {
                if let Some(key) = self.keys.get(key % self.keys.len().max(1)) {
                    let digest = form.digest(key.secret.expose_secret().as_bytes());
                    let found = credentials.look_up_now(digest.expect("our form"), NOW);
                    found.expect("it can be read");
                }
            }
            Change::Evict => {
                credentials.evict_idle(NOW);
                assert!(credentials.is_empty(), "none was used");
            }
            Change::Status {
                account: at,
                status,
            } => {
                let Some(account) = account(at) else { return };
                let status = AccountStatus::ALL[status];
                set_status(store, account, status, NOW)
                    .await
                    .expect("changed");
            }
            Change::Class { account: at, class } => {
                let Some(account) = account(at) else { return };
                let class = Arc::from(["free", "pro", "gold"][class]);
                set_class(store, account, class, NOW)
                    .await
                    .expect("changed");
            }
        }
    }

    /// What a lookup of each key at `now` would find.
    fn seen(&self, credentials: &Credentials, form: &Form, now: Timestamp) -> Vec<Option<String>> {
        self.keys
            .iter()
            .map(|key| {
                let digest = form
                    .digest(key.secret.expose_secret().as_bytes())
                    .expect("our form");
                let found = credentials
                    .look_up_now(digest, now)
                    .expect("it can be read")
                    .filter(|found| found.is_live(now))?;
                Some(format!(
                    "{} {} {} {:?} {:?} {}",
                    found.id,
                    found.scopes,
                    found.account.id(),
                    found.expires_at,
                    found.account.status(),
                    found.account.class(now),
                ))
            })
            .collect()
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]
    #[test]
    fn the_index_equals_what_a_restart_loads(changes in prop::collection::vec(change(), 1..40)) {
        let folder = TempDir::new().expect("a folder");
        let path = folder.path().join("books.db");
        let open = || {
            let mut options = Options::new(NOW, RootSecret([7; 32]));
            // Power loss is not tested here.
            options.durability = Durability::Process;
            let store = sqlite::open(&path, options).expect("a store");
            let credentials = Credentials::open(&store);
            (store, credentials)
        };
        let form = Form::api_key("svc");
        let later = NOW + Duration::from_micros(2);
        let mut world = World::default();
        let (store, credentials) = open();
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        runtime.block_on(async {
            world.apply((&*store, &credentials), &form, Change::Account).await;
            for change in changes {
                world.apply((&*store, &credentials), &form, change).await;
            }
        });
        let followed = world.seen(&credentials, &form, later);
        store.close();
        let (store, credentials) = open();
        prop_assert_eq!(world.seen(&credentials, &form, later), followed);
        store.close();
    }
}
