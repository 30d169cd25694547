//! Sessions, writes that are refused once their session has ended, and credits for signing up.

use std::sync::Arc;

use tollgate_money::{AccountId, LoginId, Micros};
use tollgate_store::{LoginKind, Mailbox, NewSession, Part, Refusal, SigninPart};

use super::support::{account, login, new_account, open_with, time, write};

const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);
const LOGIN: LoginId = LoginId::from_bytes([1; 16]);

fn signin(part: SigninPart) -> Part {
    Part::Signin(Box::new(part))
}

fn session(number: u8) -> Part {
    signin(SigninPart::StartSession {
        session: NewSession {
            hash: [number; 32],
            account: ACCOUNT,
            login: LOGIN,
            started_at: time(1),
            confirmed_at: time(1),
            seen_at: time(1),
            expires_at: time(100),
            draft: None,
        },
        replaces: None,
    })
}

fn required(number: u8, at: i64) -> Part {
    signin(SigninPart::RequireSession {
        hash: [number; 32],
        at: time(at),
    })
}

#[test]
fn a_unit_that_requires_a_session_is_refused_after_the_session_has_ended() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let made = [login(1, 1, "ada@example.com"), session(1), session(2)];
    write(&store, made).expect("signed in twice");

    let written = write(&store, [required(1, 99), login(2, 1, "two@example.com")]);
    written.expect("it lasts");
    let end = signin(SigninPart::EndSession { hash: [2; 32] });
    write(&store, [end]).expect("ended");
    for (number, at, why) in [(1, 100, "its time"), (2, 50, "ended"), (3, 50, "never was")] {
        let late = [required(number, at), login(3, 1, "three@example.com")];
        assert_eq!(write(&store, late), Err(Refusal::SessionEnded), "{why}");
    }
    let known = |address| store.login(LoginKind::Email, address).expect("a read");
    assert!(known("two@example.com").is_some());
    assert!(known("three@example.com").is_none());
}

#[test]
fn signup_credits_are_not_owed_to_a_mailbox_that_is_a_login_of_another_account() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let known = [
        "ada@example.com",
        "eve+news@example.com",
        "Zoe+a@example.com",
    ];
    let known = known.into_iter().zip(1..);
    write(
        &store,
        known.map(|(address, number)| login(number, 1, address)),
    )
    .expect("logins");
    for (number, local, owed) in [
        (10, "ada", false),
        (11, "eve", false),
        (12, "eve-news", true),
        (13, "ad", true),
        (14, "adam", true),
        (15, "zoe", true),
        (16, "e", true),
    ] {
        let address = format!("{local}+{number}@example.com");
        let owe = signin(SigninPart::OweGrant {
            account: account(number),
            amount: Micros::new(5),
            address: [number; 32],
            mailboxes: ["other.example", "example.com"]
                .map(|domain| Mailbox {
                    local: Arc::from(local),
                    domain: Arc::from(domain),
                })
                .to_vec(),
            limits: Vec::new(),
            at: time(1),
        });
        let parts = [new_account(number), login(number, number, &address), owe];
        write(&store, parts).expect("signed up");
        let all = store.grants_owed().expect("a read");
        let is_owed = all.iter().any(|(to, _)| *to == account(number));
        assert_eq!(is_owed, owed, "{local}");
    }
}
