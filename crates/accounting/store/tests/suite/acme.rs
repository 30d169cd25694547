//! Accounts at certificate authorities, and certificates.

use std::sync::Arc;

use tollgate_store::{
    AcmeAccountRow, AcmeCertificateRow, AcmeChallengesRow, AcmePart, Part, Refusal, Store,
};

use super::support::{open, time, write};

const DIRECTORY: &str = "https://ca.example/directory";

fn acme(part: AcmePart) -> Part {
    Part::Acme(Box::new(part))
}

fn certificate(id: u8) -> AcmeCertificateRow {
    AcmeCertificateRow {
        id: [id; 32],
        directory: DIRECTORY.into(),
        names: "a.example b.example".into(),
        version: 0,
        sealed: None,
        expires_at: None,
        renew_at: None,
        failures: 1,
        next_attempt_at: time(10),
        note: None,
        created_at: time(1),
        updated_at: time(1),
    }
}

fn issued(before: &AcmeCertificateRow, expires_at: i64) -> AcmeCertificateRow {
    AcmeCertificateRow {
        version: before.version + 1,
        sealed: Some(Arc::from(&b"sealed"[..])),
        expires_at: Some(time(expires_at)),
        renew_at: Some(time(expires_at / 2)),
        failures: 0,
        note: Some("text".into()),
        updated_at: time(2),
        ..before.clone()
    }
}

#[test]
fn an_order_is_begun_by_one_of_two_that_read_the_same_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn Store> = open(folder.path());
    let first = certificate(1);
    write(&store, [acme(AcmePart::InsertCertificate(first.clone()))]).expect("new");
    let twice = write(&store, [acme(AcmePart::InsertCertificate(first.clone()))]);
    assert_eq!(twice, Err(Refusal::AcmeConflict));
    let next = issued(&first, 100);
    write(&store, [acme(AcmePart::ReplaceCertificate(next.clone()))]).expect("the next version");
    let late = write(&store, [acme(AcmePart::ReplaceCertificate(next.clone()))]);
    assert_eq!(late, Err(Refusal::AcmeConflict));
    let read = store.acme_certificate(&[1; 32]).expect("a read");
    assert_eq!(read, Some(next));
    assert_eq!(store.acme_certificate(&[2; 32]).expect("a read"), None);
}

#[test]
fn issued_certificates_of_a_directory_are_listed_and_expired_ones_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn Store> = open(folder.path());
    for (id, expires_at) in [(1, Some(100)), (2, Some(300)), (3, None)] {
        let row = certificate(id);
        write(&store, [acme(AcmePart::InsertCertificate(row.clone()))]).expect("new");
        if let Some(at) = expires_at {
            let part = AcmePart::ReplaceCertificate(issued(&row, at));
            write(&store, [acme(part)]).expect("issued");
        }
    }
    let ids = |directory| -> Vec<u8> {
        let found = store.acme_certificates(directory).expect("a read");
        found.iter().map(|row| row.id[0]).collect()
    };
    assert_eq!(ids(DIRECTORY), [2, 1]);
    assert_eq!(ids("https://other.example/directory"), [0; 0]);
    write(&store, [acme(AcmePart::Forget { before: time(200) })]).expect("forgotten");
    assert_eq!(ids(DIRECTORY), [2]);
    assert_eq!(store.acme_certificate(&[3; 32]).expect("a read"), None);
}

#[test]
fn an_account_is_found_by_its_directory_and_its_external_account() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn Store> = open(folder.path());
    let row = |key_id: &str, version| AcmeAccountRow {
        directory: DIRECTORY.into(),
        key_id: key_id.into(),
        version,
        sealed: Arc::from(key_id.as_bytes()),
        created_at: time(1),
        updated_at: time(1 + version),
    };
    for key_id in ["", "kid-1"] {
        write(&store, [acme(AcmePart::InsertAccount(row(key_id, 0)))]).expect("new");
    }
    let twice = write(&store, [acme(AcmePart::InsertAccount(row("", 0)))]);
    assert_eq!(twice, Err(Refusal::AcmeConflict));
    write(&store, [acme(AcmePart::ReplaceAccount(row("", 1)))]).expect("the next version");
    let late = write(&store, [acme(AcmePart::ReplaceAccount(row("", 1)))]);
    assert_eq!(late, Err(Refusal::AcmeConflict));
    let read = |key_id| store.acme_account(DIRECTORY, key_id).expect("a read");
    assert_eq!(read(""), Some(row("", 1)));
    assert_eq!(read("kid-1"), Some(row("kid-1", 0)));
    assert_eq!(read("kid-2"), None);
}

#[test]
fn responses_to_challenges_are_there_from_the_begin_of_an_order_to_its_end() {
    let folder = tempfile::tempdir().expect("a folder");
    let store: Arc<dyn Store> = open(folder.path());
    let row = |id: u8, text: &str, expires_at| AcmeChallengesRow {
        id: [id; 32],
        sealed: Arc::from(text.as_bytes()),
        expires_at: time(expires_at),
    };
    for (id, text, expires_at) in [(1, "a", 100), (2, "b", 300), (1, "c", 200)] {
        let part = AcmePart::StoreChallenges(row(id, text, expires_at));
        write(&store, [acme(part)]).expect("stored");
    }
    let at = |now| {
        let mut found = store.acme_challenges(time(now)).expect("a read");
        found.sort_by_key(|row| row.id);
        found
    };
    assert_eq!(at(150), [row(1, "c", 200), row(2, "b", 300)]);
    assert_eq!(at(200), [row(2, "b", 300)], "the first is over");
    write(&store, [acme(AcmePart::Forget { before: time(250) })]).expect("forgotten");
    assert_eq!(at(0), [row(2, "b", 300)]);
    write(&store, [acme(AcmePart::DeleteChallenges { id: [2; 32] })]).expect("deleted");
    assert_eq!(at(0), []);
}
