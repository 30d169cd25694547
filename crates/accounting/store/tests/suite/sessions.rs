//! Sessions, and writes that are refused once their session has ended.

use tollgate_money::{AccountId, LoginId};
use tollgate_store::{LoginKind, NewSession, Part, Refusal, SigninPart};

use super::support::{login, open_with, time, write};

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
