//! Accounts and keys through a real store, as the gateway and its commands use them.

use std::sync::Arc;
use std::time::Duration;

use secrecy::ExposeSecret;
use tempfile::TempDir;
use tollgate_clock::Timestamp;
use tollgate_identity::{
    AccountError, CreateAccountError, CreateKeyError, CreatedKey, Credential, CredentialUse,
    Credentials, Form, IssueTokenError, KeyId, Login, NewAccount, NewKey, NewToken, RevokeKeyError,
    create_account, create_key, issue_token, list_keys, revoke_key, revoke_token, set_class,
    set_status,
};
use tollgate_money::{AccountId, CredentialId, Micros, SubscriptionId};
use tollgate_store::sqlite::{self, Options};
use tollgate_store::{
    AccountStatus, Admission, LoginKind, Part, PlanPart, RootSecret, Route, Store, SubscriptionRow,
    SubscriptionStatus, UnitOfWork, commit,
};

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const API: u32 = 1;
const CHAT: u32 = 0b10;

fn later(micros: u64) -> Timestamp {
    NOW + Duration::from_micros(micros)
}

struct Bench {
    store: Arc<dyn Store>,
    credentials: Arc<Credentials>,
    form: Form,
    drawn: u8,
    folder: TempDir,
}

impl Bench {
    fn new() -> Bench {
        Bench::open(TempDir::new().expect("a folder"), 0)
    }

    fn open(folder: TempDir, drawn: u8) -> Bench {
        let options = Options::new(NOW, RootSecret([7; 32]));
        let store = sqlite::open(&folder.path().join("books.db"), options).expect("a store");
        Bench {
            credentials: Credentials::open(&store),
            store,
            form: Form::api_key("svc"),
            drawn,
            folder,
        }
    }

    fn restart(self) -> Bench {
        self.store.close();
        Bench::open(self.folder, self.drawn)
    }

    /// Each draw returns different bytes.
    fn draw(&mut self) -> impl FnMut(&mut [u8]) + Send + use<> {
        self.drawn += 1;
        let mut next = self.drawn;
        move |out: &mut [u8]| {
            next = next.wrapping_add(64);
            out.fill(next);
        }
    }

    async fn account(&mut self, logins: &[Login]) -> Result<AccountId, CreateAccountError> {
        let account = NewAccount {
            logins: logins.to_vec(),
            class: Arc::from("free"),
            credit_limit: Micros::ZERO,
            cache_scope: tollgate_store::CacheScope::Shared,
            created_at: NOW,
        };
        let draw = self.draw();
        create_account(&*self.store, account, draw).await
    }

    async fn key(
        &mut self,
        account: AccountId,
        change: impl FnOnce(&mut NewKey),
    ) -> Result<CreatedKey, CreateKeyError> {
        let mut key = NewKey {
            account,
            label: String::from("laptop"),
            resources: API,
            scopes: CHAT,
            models: None,
            spending_cap: None,
            expires_at: None,
            created_at: NOW,
        };
        change(&mut key);
        let draw = self.draw();
        create_key(&*self.store, &self.form, key, draw).await
    }

    fn find(&self, key: &CreatedKey) -> Option<Arc<Credential>> {
        let digest = self
            .form
            .digest(key.secret.expose_secret().as_bytes())
            .expect("a key we made has our form");
        let found = self.credentials.look_up_now(digest, NOW);
        found.expect("it can be read")
    }
}

#[tokio::test]
async fn a_key_is_live_once_created_and_after_a_restart() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let models: Arc<[Arc<str>]> = Arc::from([Arc::from("m-small"), Arc::from("m-large")]);
    let key = bench
        .key(account, |key| {
            key.models = Some(models.clone());
            key.expires_at = Some(later(5));
        })
        .await
        .expect("a key");

    for again in [false, true] {
        if again {
            bench = bench.restart();
        }
        let found = bench.find(&key).expect("it works");
        assert_eq!(found.id, key.id.0);
        assert_eq!(found.account.id(), account);
        assert_eq!(found.account.status(), AccountStatus::Active);
        assert_eq!(&*found.account.class(NOW), "free");
        assert_eq!((found.resources, found.scopes), (API, CHAT));
        assert_eq!(found.models.as_deref(), Some(&*models));
        assert!(found.is_live(later(4)));
        assert!(
            !found.is_live(later(5)),
            "its end is the first instant it no longer works"
        );
    }
    assert_eq!(bench.credentials.len(), 1);
}

#[tokio::test]
async fn a_revoked_key_is_rejected_once_the_command_returns() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let key = bench.key(account, |_| {}).await.expect("a key");
    let other = bench.key(account, |_| {}).await.expect("another key");
    let kept = bench.find(&key).expect("it works");

    revoke_key(&*bench.store, key.id, later(1))
        .await
        .expect("revoked");
    assert!(bench.find(&key).is_none());
    assert!(!kept.is_live(NOW), "a holder of a reference sees it");
    assert!(bench.find(&other).is_some(), "and no other key is touched");

    revoke_key(&*bench.store, key.id, later(9))
        .await
        .expect("nothing to do");
    let bench = bench.restart();
    assert!(bench.find(&key).is_none(), "for ever");
    let listed = list_keys(&bench.store, account).expect("it can be read");
    let revoked: Vec<_> = listed.iter().map(|key| (key.id, key.revoked_at)).collect();
    assert_eq!(revoked.len(), 2);
    assert!(
        revoked.contains(&(key.id, Some(later(1)))),
        "since the first time"
    );
    assert!(revoked.contains(&(other.id, None)));
}

#[tokio::test]
async fn changes_of_an_account_apply_to_all_its_keys_at_once() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let key = bench.key(account, |_| {}).await.expect("a key");
    let found = bench.find(&key).expect("it works");

    set_class(&*bench.store, account, Arc::from("pro"), NOW)
        .await
        .expect("changed");
    assert_eq!(&*found.account.class(NOW), "pro");
    assert_eq!(found.account.status(), AccountStatus::Active);
    set_status(&*bench.store, account, AccountStatus::Suspended, NOW)
        .await
        .expect("suspended");
    assert_eq!(found.account.status(), AccountStatus::Suspended);
    assert_eq!(&*found.account.class(NOW), "pro");
    let classes = bench.store.account_classes().expect("they can be read");
    assert_eq!(classes, [Arc::from("pro")]);

    let plan = |class: &str, version, period_end| {
        let row = SubscriptionRow {
            id: SubscriptionId::from_bytes([9; 16]),
            account,
            route: Route::X402,
            reference: Arc::from("0xab"),
            status: SubscriptionStatus::Active,
            period_start: NOW,
            period_end,
            extra: Duration::ZERO,
            renews: false,
            version,
            created_at: NOW,
            updated_at: NOW,
        };
        let class = Arc::from(class);
        let part = Part::Plan(Box::new(PlanPart::Put { row, class }));
        UnitOfWork::of(part, Admission::Normal)
    };
    for (class, version, end) in [("gold", 0, later(9)), ("silver", 1, later(5))] {
        let done = commit(&*bench.store, plan(class, version, end)).await;
        done.expect("a plan is given");
        assert_eq!(&*found.account.class(end - Duration::from_micros(1)), class);
        assert_eq!(&*found.account.class(end), "pro", "its own class again");
    }

    let bench = bench.restart();
    let found = bench
        .find(&key)
        .expect("a suspended account keeps its keys");
    assert_eq!(&*found.account.class(later(4)), "silver");
    assert_eq!(&*found.account.class(later(5)), "pro");
    assert_eq!(found.account.status(), AccountStatus::Suspended);
}

#[tokio::test]
async fn a_key_is_listed_with_its_displayable_part() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let key = bench.key(account, |_| {}).await.expect("a key");
    let listed = list_keys(&bench.store, account).expect("it can be read");
    let [listed] = &listed[..] else {
        panic!("{} keys", listed.len())
    };
    assert_eq!(listed.id, key.id);
    assert_eq!(listed.label.as_deref(), Some("laptop"));
    assert_eq!(listed.hint.as_deref(), Some(&*key.hint));
    let shown = format!("{listed:?} {key:?}");
    assert!(
        !shown.contains(key.secret.expose_secret()),
        "the key is never printed"
    );
}

#[tokio::test]
async fn the_last_use_of_a_key_is_recorded_and_stored_once() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let made = bench.key(account, |_| {}).await.expect("a key");
    let credential = bench.find(&made).expect("it works");
    let unstored = || {
        let uses = bench.credentials.unstored_uses();
        uses.iter().map(CredentialUse::row).collect::<Vec<_>>()
    };
    assert_eq!(unstored(), []);
    assert_eq!(bench.credentials.used_at(made.id.0), None);
    //   used at, and the last use known then
    for (at, known) in [
        (NOW, NOW),
        (later(1), NOW),
        (later(60_000_000), later(60_000_000)),
    ] {
        credential.used(at);
        assert_eq!(bench.credentials.used_at(made.id.0), Some(known));
    }
    let last = bench.credentials.unstored_uses();
    assert_eq!(unstored(), [(made.id.0, later(60_000_000))]);
    credential.used(later(120_000_000));
    last.iter().for_each(CredentialUse::mark_stored);
    let last = bench.credentials.unstored_uses();
    assert_eq!(unstored(), [(made.id.0, later(120_000_000))]);
    last.iter().for_each(CredentialUse::mark_stored);
    assert_eq!(unstored(), [], "it is stored");
}

#[tokio::test]
async fn a_useless_key_is_not_created() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let unknown = AccountId::from_parts(1, [9; 10]);
    let message = |made: Result<CreatedKey, CreateKeyError>| made.expect_err("refused").to_string();

    assert_eq!(
        message(bench.key(unknown, |_| {}).await),
        format!("there is no account `{unknown}`; `tollgate account list` shows them")
    );
    let label = "the name of a key must have 1 to 80 characters and no control characters";
    assert_eq!(
        message(bench.key(account, |key| key.label.clear()).await),
        label
    );
    assert_eq!(
        message(bench.key(account, |key| key.label = "x".repeat(81)).await),
        label
    );
    assert_eq!(
        message(bench.key(account, |key| key.label.push('\n')).await),
        label
    );
    assert_eq!(
        message(bench.key(account, |key| key.scopes = 0).await),
        "the key has no scope; give it at least one"
    );
    assert_eq!(
        message(
            bench
                .key(account, |key| key.models = Some(Arc::from([])))
                .await
        ),
        "the list of models is empty; omit it to allow all of them"
    );
    assert_eq!(
        message(
            bench
                .key(account, |key| key.models =
                    Some(Arc::from([Arc::from("a\nb")])))
                .await
        ),
        "`\"a\\nb\"` is not a model id"
    );
    assert_eq!(
        message(bench.key(account, |key| key.expires_at = Some(NOW)).await),
        "the expiry of the key is in the past; use a future one, or none"
    );
    assert!(bench.credentials.is_empty());
}

#[tokio::test]
async fn one_address_signs_in_to_one_account() {
    let mut bench = Bench::new();
    let email = Login::email("Ada@Example.com").expect("an address");
    let phone = Login::phone("+49 30 123456").expect("a number");
    let account = bench
        .account(&[email.clone(), phone.clone()])
        .await
        .expect("an account");
    for login in [&email, &phone] {
        let found = bench
            .store
            .account_by_login(login.kind(), login.address())
            .expect("it can be read");
        assert_eq!(found.map(|found| found.id), Some(account));
    }

    let other = Login::email("other@example.com").expect("an address");
    let again = bench
        .account(&[other.clone(), email])
        .await
        .expect_err("taken");
    assert_eq!(
        again.to_string(),
        "`ada@example.com` already signs in to an account; use that account, or another address"
    );
    let found = bench
        .store
        .account_by_login(LoginKind::Email, other.address());
    assert!(
        found.expect("it can be read").is_none(),
        "nothing of the account was made"
    );
}

#[tokio::test]
async fn an_unknown_object_cannot_be_changed() {
    let bench = Bench::new();
    let unknown = AccountId::from_parts(1, [9; 10]);
    let error = set_status(&*bench.store, unknown, AccountStatus::Suspended, NOW).await;
    assert!(matches!(error, Err(AccountError::NoAccount(id)) if id == unknown));
    let no_key = KeyId(CredentialId::from_bytes([9; 16]));
    let error = revoke_key(&*bench.store, no_key, NOW).await;
    assert!(matches!(error, Err(RevokeKeyError::NoKey(id)) if id == no_key));
}

fn token(account: AccountId) -> NewToken {
    NewToken {
        account,
        client: None,
        grant: None,
        resources: API,
        scopes: CHAT,
        created_at: NOW,
        expires_at: later(5),
    }
}

#[tokio::test]
async fn a_token_works_until_its_end_or_its_revocation_and_is_no_key() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let form = Form::access_token("svc");
    let draws = [bench.draw(), bench.draw()];
    let [one, other] = draws.map(|draw| issue_token(&*bench.store, &form, token(account), draw));
    let (one, other) = (one.await.expect("a token"), other.await.expect("a token"));
    assert!(one.secret.expose_secret().starts_with("svc_at_"));
    let find = |credentials: &Credentials, token: &tollgate_identity::IssuedToken| {
        let digest = form.digest(token.secret.expose_secret().as_bytes());
        credentials
            .look_up_now(digest.expect("of our form"), NOW)
            .expect("it can be read")
    };
    let found = find(&bench.credentials, &one).expect("it works");
    assert_eq!((found.id, found.account.id()), (one.id, account));
    assert_eq!((found.resources, found.scopes), (API, CHAT));
    assert!(found.is_live(later(4)) && !found.is_live(later(5)));
    assert!(
        list_keys(&bench.store, account)
            .expect("it can be read")
            .is_empty(),
        "a token is not listed among the keys"
    );

    revoke_token(&*bench.store, one.id, later(1))
        .await
        .expect("revoked");
    assert!(find(&bench.credentials, &one).is_none());
    revoke_token(&*bench.store, CredentialId::from_bytes([9; 16]), NOW)
        .await
        .expect("revoking an unknown token is no error");

    bench.credentials.forget_expired(later(4));
    assert!(find(&bench.credentials, &other).is_some(), "not yet");
    bench.credentials.forget_expired(later(5));
    assert!(bench.credentials.is_empty(), "nothing of it is left");
    let digest = form.digest(other.secret.expose_secret().as_bytes());
    let digest = digest.expect("of our form");
    let found = bench.credentials.look_up_now(digest, later(5));
    assert!(found.expect("it can be read").is_none(), "nor is it read");
}

/// Such a request was charged to its end: the account had left the index with its last credential.
#[tokio::test]
async fn a_request_learns_of_a_suspension_after_its_credential_has_left_memory() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    for way in ["a revoked key", "an expired token", "an idle key"] {
        let key = bench.key(account, |key| key.expires_at = Some(later(5)));
        let key = key.await.expect("a key");
        let request = bench.find(&key).expect("it works").account.clone();
        match way {
            "a revoked key" => {
                let revoked = revoke_key(&*bench.store, key.id, NOW).await;
                revoked.expect("revoked");
            }
            "an expired token" => bench.credentials.forget_expired(later(5)),
            _ => assert_eq!(bench.credentials.evict_idle(NOW), 1),
        }
        assert!(bench.credentials.is_empty(), "{way}");
        for status in [AccountStatus::Suspended, AccountStatus::Active] {
            let set = set_status(&*bench.store, account, status, NOW).await;
            set.expect("changed");
            assert_eq!(request.status(), status, "{way}");
        }
        let next = bench.key(account, |_| {}).await.expect("a key");
        let next_request = bench.find(&next).expect("it works");
        assert!(Arc::ptr_eq(&request, &next_request.account), "{way}");
        let revoked = revoke_key(&*bench.store, next.id, NOW).await;
        revoked.expect("revoked");
    }
}

#[tokio::test]
async fn a_useless_token_is_not_created() {
    let mut bench = Bench::new();
    let account = bench.account(&[]).await.expect("an account");
    let form = Form::access_token("svc");
    let changes: [fn(&mut NewToken); 3] = [
        |token| token.scopes = 0,
        |token| token.resources = 0,
        |token| token.expires_at = NOW,
    ];
    for change in changes {
        let mut token = token(account);
        change(&mut token);
        let draw = bench.draw();
        let made = issue_token(&*bench.store, &form, token, draw).await;
        let message = made.expect_err("refused").to_string();
        assert!(message.contains("the token"), "{message}");
    }
    let unknown = AccountId::from_parts(1, [9; 10]);
    let draw = bench.draw();
    let made = issue_token(&*bench.store, &form, token(unknown), draw).await;
    assert!(matches!(made, Err(IssueTokenError::NoAccount(_))));
}
