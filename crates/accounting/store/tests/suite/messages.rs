//! Messages: claimed once for each attempt, and due again only after a delay.

use std::sync::Arc;

use tollgate_money::{CredentialId, LoginId};
use tollgate_store::{
    CodePurpose, LoginKind, MessageId, NewMessage, NewNotice, NoticeKind, Part, Refusal,
    SigninPart, Store,
};

use super::support::{login, new_account, open, time, write};
use super::units::credential;

const FIRST: MessageId = MessageId([1; 16]);

fn signin(part: SigninPart) -> Part {
    Part::Signin(Box::new(part))
}

fn message(id: MessageId) -> Part {
    signin(SigninPart::QueueMessage(NewMessage {
        id,
        kind: LoginKind::Email,
        recipient: Arc::from("ada@example.com"),
        purpose: CodePurpose::SignIn,
        sealed: vec![1, 2, 3],
        created_at: time(10),
        expires_at: time(1000),
    }))
}

fn claim(id: MessageId, tries: i64) -> [Part; 1] {
    [signin(SigninPart::ClaimMessage { id, tries })]
}

fn delay(tries: i64, next_at: i64) -> [Part; 1] {
    let next_at = time(next_at);
    let id = FIRST;
    [signin(SigninPart::DelayMessage { id, tries, next_at })]
}

#[test]
fn a_message_is_claimed_once_for_each_attempt() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [message(FIRST)]).expect("queued");
    let due = |at| {
        let due = store.messages_due(time(at), 10).expect("a read");
        due.first().map(|row| row.tries)
    };
    assert_eq!(due(10), Some(0));
    write(&store, claim(FIRST, 0)).expect("claimed");
    assert_eq!(due(999), None, "claimed");
    assert_eq!(store.next_message_at().expect("a read"), Some(time(1000)));
    for tries in [0, 1] {
        // As it was read before that, and after it.
        let result = write(&store, claim(FIRST, tries));
        let expected = match tries {
            0 => Err(Refusal::MessageClaimed),
            _ => Ok(()),
        };
        assert_eq!(result.map(|_| ()), expected, "after {tries} attempts");
    }
    write(&store, delay(1, 20)).expect("no error");
    assert_eq!(due(999), None, "the second attempt is under way");
    write(&store, delay(2, 20)).expect("delayed");
    assert_eq!((due(19), due(20)), (None, Some(2)), "no attempt more");
    assert_eq!(due(1000), Some(2), "or expired");
    let drop = signin(SigninPart::DropMessage { id: FIRST });
    write(&store, [drop]).expect("dropped");
    let gone = write(&store, claim(FIRST, 2)).map(|_| ());
    assert_eq!(gone, Err(Refusal::MessageClaimed), "it is gone");
}

#[test]
fn a_claim_that_is_refused_leaves_the_other_claims_of_its_commit() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let ids = [1, 2, 3].map(|number| MessageId([number; 16]));
    write(&store, ids.map(message)).expect("queued");
    write(&store, claim(ids[1], 0)).expect("claimed");
    let writer = super::support::stop_writer(&store);
    let (sender, results) = std::sync::mpsc::channel();
    for id in ids {
        let sender = sender.clone();
        let unit =
            tollgate_store::UnitOfWork::of_all(claim(id, 0), tollgate_store::Admission::Normal);
        let done = Box::new(move |result: Result<_, _>| {
            let _ = sender.send((id.0[0], result.is_ok()));
        });
        store.submit(unit, done).expect("the queue is open");
    }
    drop((writer, sender));
    let mut results: Vec<(u8, bool)> = results.iter().collect();
    results.sort_unstable();
    assert_eq!(results, [(1, true), (2, false), (3, true)]);
    let left = store.messages_due(time(999), 10).expect("a read");
    assert!(left.is_empty(), "all are claimed");
}

const KEY: CredentialId = CredentialId::from_bytes([3; 16]);

fn notice(id: MessageId) -> Part {
    signin(SigninPart::QueueNotice(NewNotice {
        id,
        kind: NoticeKind::KeyRevoked,
        login: LoginId::from_bytes([7; 16]),
        credential: KEY,
        created_at: time(10),
        expires_at: time(1000),
    }))
}

/// An account with a login and a key.
fn with_key(folder: &std::path::Path) -> Arc<dyn Store> {
    let store = open(folder);
    let key = Part::InsertCredential(Box::new(credential(3, 1)));
    write(
        &store,
        [new_account(1), login(7, 1, "ada@example.com"), key],
    )
    .expect("an account");
    store
}

#[test]
fn a_notice_is_claimed_delayed_and_dropped_like_a_message_and_earlier_releases_do_not_see_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = with_key(folder.path());
    write(&store, [notice(FIRST)]).expect("queued");
    // What an earlier release reads.
    let messages = store.messages_due(time(2000), 10).expect("a read");
    assert!(messages.is_empty());
    let due = |at| {
        let due = store.notices_due(time(at), 10).expect("a read");
        due.first()
            .map(|row| (row.tries, row.recipient.to_string()))
    };
    let tried = |tries| Some((tries, "ada@example.com".to_owned()));
    assert_eq!((due(9), due(10)), (None, tried(0)));
    assert_eq!(store.next_message_at().expect("a read"), Some(time(10)));
    write(&store, claim(FIRST, 0)).expect("claimed");
    let again = write(&store, claim(FIRST, 0)).map(|_| ());
    assert_eq!(again, Err(Refusal::MessageClaimed));
    assert_eq!((due(999), due(1000)), (None, tried(1)));
    write(&store, delay(1, 20)).expect("delayed");
    assert_eq!((due(19), due(20)), (None, tried(1)));
    let drop = signin(SigninPart::DropMessage { id: FIRST });
    write(&store, [drop]).expect("dropped");
    assert_eq!(due(1000), None);
    assert_eq!(store.next_message_at().expect("a read"), None);
}

#[test]
fn a_unit_that_requires_an_unrevoked_key_is_written_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = with_key(folder.path());
    let unit = |id| {
        [
            signin(SigninPart::RequireUnrevoked { credential: KEY }),
            Part::RevokeCredential {
                id: KEY,
                at: time(20),
            },
            notice(MessageId([id; 16])),
        ]
    };
    write(&store, unit(1)).expect("the first");
    let second = write(&store, unit(2)).map(|_| ());
    assert_eq!(second, Err(Refusal::CredentialConflict(KEY)));
    let due = store.notices_due(time(2000), 10).expect("a read");
    assert_eq!(due.len(), 1, "none of the second");
}
