//! Sessions, and what is only written while they last.

use std::sync::Arc;

use tollgate_money::{AccountId, Micros};
use tollgate_store::sqlite::{self, Durability, Options};
use tollgate_store::{
    Admission, CacheScope, CommitError, LoginId, LoginKind, NewAccount, NewLogin, NewSession, Part,
    Refusal, RootSecret, SigninPart, Store, UnitOfWork, commit,
};

const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
const LOGIN: LoginId = LoginId::from_bytes([1; 16]);

async fn write(
    store: &Arc<dyn Store>,
    parts: impl IntoIterator<Item = Part>,
) -> Result<(), Refusal> {
    match commit(&**store, UnitOfWork::of_all(parts, Admission::Ends)).await {
        Ok(_) => Ok(()),
        Err(CommitError::Refused(refusal)) => Err(refusal),
        Err(error) => panic!("{error}"),
    }
}

fn login(number: u8, address: &str) -> Part {
    Part::InsertLogin(Box::new(NewLogin {
        id: LoginId::from_bytes([number; 16]),
        account: ACCOUNT,
        kind: LoginKind::Email,
        address: Arc::from(address),
        verified_at: None,
        created_at: 1,
    }))
}

fn signin(part: SigninPart) -> Part {
    Part::Signin(Box::new(part))
}

fn session(number: u8) -> Part {
    signin(SigninPart::StartSession {
        session: NewSession {
            hash: [number; 32],
            account: ACCOUNT,
            login: LOGIN,
            started_at: 1,
            confirmed_at: 1,
            seen_at: 1,
            expires_at: 100,
            draft: None,
        },
        replaces: None,
    })
}

fn required(number: u8, at: i64) -> Part {
    let hash = [number; 32];
    signin(SigninPart::RequireSession { hash, at })
}

#[tokio::test]
async fn a_unit_that_needs_a_session_is_refused_whole_once_that_has_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let options = Options {
        durability: Durability::Process,
        ..Options::new(1, RootSecret([7; 32]))
    };
    let store = sqlite::open(&folder.path().join("t.db"), options).expect("the store opens");
    let account = Part::CreateAccount(Box::new(NewAccount {
        id: ACCOUNT,
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: 1,
    }));
    let made = [account, login(1, "ada@example.com"), session(1), session(2)];
    write(&store, made).await.expect("signed in twice");

    let written = write(&store, [required(1, 99), login(2, "two@example.com")]).await;
    written.expect("it lasts");
    let end = signin(SigninPart::EndSession { hash: [2; 32] });
    write(&store, [end]).await.expect("ended");
    for (number, at, why) in [(1, 100, "its time"), (2, 50, "ended"), (3, 50, "never was")] {
        let late = [required(number, at), login(3, "three@example.com")];
        assert_eq!(
            write(&store, late).await,
            Err(Refusal::SessionOver),
            "{why}"
        );
    }
    let known = |address| store.login(LoginKind::Email, address).expect("a read");
    assert!(known("two@example.com").is_some());
    assert!(known("three@example.com").is_none());
}
