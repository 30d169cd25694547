//! Idempotency keys: claimed once, answered once, deleted after expiry.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::AccountId;
use tollgate_store::{
    Endpoint, IdempotencyKey, IdempotencyPart, KeptAnswer, KeyLimits, KeyQuota, KeyUse, Part,
    Refusal, Store, first_token,
};

use super::engine::{self, number};
use super::support::{self, open};

/// A time of a later claim.
const CLAIM: i64 = 100;
/// Lifetime of a key in these tests.
const KEEP: i64 = 10_000;

fn write(store: &Arc<dyn Store>, part: IdempotencyPart) -> Result<(), KeyUse> {
    match support::write(store, [Part::Idempotency(Box::new(part))]) {
        Ok(_) => Ok(()),
        Err(Refusal::KeyInUse(stands)) => Err(stands),
        Err(refusal) => panic!("{refusal}"),
    }
}

fn key(account: u8, endpoint: Endpoint, key: &str) -> IdempotencyKey {
    IdempotencyKey {
        account: AccountId::from_bytes([account; 16]),
        endpoint,
        key: key.into(),
    }
}

fn usual() -> IdempotencyKey {
    key(1, Endpoint::Chat, "k")
}

/// Claims the usual key at a time that is its token too, for a body identified by one byte.
fn claim(store: &Arc<dyn Store>, now: i64, body: u8) -> Result<(), KeyUse> {
    claim_of(store, usual(), now, body)
}

fn claim_of(store: &Arc<dyn Store>, key: IdempotencyKey, now: i64, body: u8) -> Result<(), KeyUse> {
    write(
        store,
        IdempotencyPart::Claim {
            key,
            request_hash: [body; 32],
            token: now,
            at: Timestamp::from_micros(now),
            expires_at: Timestamp::from_micros(now + KEEP),
            limits: None,
        },
    )
}

fn answer(text: &str) -> KeptAnswer {
    KeptAnswer {
        status: 200,
        headers: "{}".into(),
        body: Some(text.as_bytes().into()),
    }
}

/// Stores a response for the claim made at `claimed`.
fn keep(store: &Arc<dyn Store>, claimed: i64, text: &str) -> Result<(), KeyUse> {
    keep_of(store, usual(), claimed, text)
}

fn keep_of(
    store: &Arc<dyn Store>,
    key: IdempotencyKey,
    claimed: i64,
    text: &str,
) -> Result<(), KeyUse> {
    write(
        store,
        IdempotencyPart::Keep {
            key,
            token: claimed,
            answer: answer(text),
        },
    )
}

fn free(store: &Arc<dyn Store>, claimed: i64) {
    let part = IdempotencyPart::Free {
        key: usual(),
        token: claimed,
    };
    write(store, part).expect("freeing is never refused");
}

#[test]
fn a_key_is_claimed_by_one_request_until_it_stores_a_response_or_frees_the_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    assert_eq!(claim(&store, 0, 1), Ok(()));
    assert_eq!(claim(&store, 1, 1), Err(KeyUse::UnderWay));
    assert_eq!(claim(&store, 1, 2), Err(KeyUse::OtherRequest));
    free(&store, 0);
    assert_eq!(claim(&store, 2, 2), Ok(()), "also for another request");
    assert_eq!(keep(&store, 2, "yes"), Ok(()));
    assert_eq!(claim(&store, 3, 2), Err(KeyUse::Answered));
    assert_eq!(claim(&store, 3, 1), Err(KeyUse::OtherRequest));
    assert_eq!(claim(&store, 2 + CLAIM, 2), Err(KeyUse::Answered));
    // A stored response is final for every later request.
    free(&store, 2);
    assert_eq!(keep(&store, 2, "no"), Err(KeyUse::Lost));
    let row = store.idempotency(&usual()).expect("a read").expect("a row");
    assert_eq!(row.answer, Some(answer("yes")));
    assert_eq!(row.request_hash, [2; 32]);
}

#[test]
fn a_key_is_scoped_to_its_account_and_endpoint() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    for key in [
        key(1, Endpoint::Chat, "k"),
        key(2, Endpoint::Chat, "k"),
        key(1, Endpoint::Completions, "k"),
        key(1, Endpoint::Chat, "K"),
    ] {
        assert_eq!(claim_of(&store, key.clone(), 0, 1), Ok(()), "{key:?}");
        assert_eq!(
            claim_of(&store, key.clone(), 0, 1),
            Err(KeyUse::UnderWay),
            "{key:?}"
        );
    }
}

fn lapse(store: &Arc<dyn Store>, claimed: i64) {
    let part = IdempotencyPart::Lapse {
        key: usual(),
        token: claimed,
    };
    write(store, part).expect("a lapse is never refused");
}

/// A charge that comes after the lapse is booked with its response: refusing it would give the answer away.
#[test]
fn a_lapsed_claim_stores_its_response_until_a_later_request_takes_it_over() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    assert_eq!(claim(&store, 0, 1), Ok(()));
    lapse(&store, 7);
    assert_eq!(claim(&store, 1, 1), Err(KeyUse::UnderWay), "another claim");
    lapse(&store, 0);
    assert_eq!(keep(&store, 0, "late"), Ok(()));
    assert_eq!(claim(&store, 2, 1), Err(KeyUse::Answered), "for its time");
    lapse(&store, 0);
    assert_eq!(
        claim(&store, 3, 1),
        Err(KeyUse::Answered),
        "a response has no lapse"
    );
    let row = store.idempotency(&usual()).expect("a read").expect("a row");
    assert_eq!(row.expires_at, Timestamp::from_micros(KEEP));

    let second = || claim_of(&store, key(1, Endpoint::Chat, "2"), 5, 1);
    assert_eq!(second(), Ok(()));
    let part = IdempotencyPart::Lapse {
        key: key(1, Endpoint::Chat, "2"),
        token: 5,
    };
    write(&store, part).expect("a lapse is never refused");
    assert_eq!(
        claim_of(&store, key(1, Endpoint::Chat, "2"), 6, 2),
        Ok(()),
        "taken over"
    );
    let late = keep_of(&store, key(1, Endpoint::Chat, "2"), 5, "late");
    assert_eq!(late, Err(KeyUse::Lost));
}

/// The wall clock may be set ahead while a request runs: its key would be free for a repeat, which would be charged again.
#[test]
fn no_time_ends_a_claim_and_only_its_owner_stores_a_response() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    assert_eq!(claim(&store, 0, 1), Ok(()));
    for now in [CLAIM, KEEP, 10 * KEEP] {
        let part = IdempotencyPart::Forget {
            now: Timestamp::from_micros(now),
            limit: 100,
        };
        write(&store, part).expect("never refused");
        assert_eq!(claim(&store, now, 1), Err(KeyUse::UnderWay), "at {now}");
    }
    free(&store, 0);
    assert_eq!(claim(&store, CLAIM, 1), Ok(()));
    assert_eq!(keep(&store, 0, "the first"), Err(KeyUse::Lost));
    free(&store, 0);
    assert_eq!(claim(&store, CLAIM + 1, 1), Err(KeyUse::UnderWay));
    assert_eq!(keep(&store, CLAIM, "the second"), Ok(()));
}

#[test]
fn a_key_that_has_expired_is_free_and_is_forgotten() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    for number in 0..5 {
        let key = key(1, Endpoint::Chat, &number.to_string());
        assert_eq!(claim_of(&store, key.clone(), 0, 1), Ok(()));
        assert_eq!(keep_of(&store, key, 0, "yes"), Ok(()));
    }
    assert_eq!(claim(&store, 0, 1), Ok(()));
    assert_eq!(keep(&store, 0, "yes"), Ok(()));
    assert_eq!(claim(&store, KEEP - 1, 1), Err(KeyUse::Answered));
    assert_eq!(claim(&store, KEEP, 2), Ok(()), "also for another request");
    let forget = |now, limit| {
        let now = Timestamp::from_micros(now);
        write(&store, IdempotencyPart::Forget { now, limit }).expect("never refused");
        (0..5)
            .filter(|number: &i32| {
                let key = key(1, Endpoint::Chat, &number.to_string());
                store.idempotency(&key).expect("a read").is_some()
            })
            .count()
    };
    assert_eq!(forget(KEEP - 1, 100), 3, "the claim has deleted two");
    assert_eq!(forget(KEEP, 2), 1, "a few at a time");
    assert_eq!(forget(KEEP, 100), 0);
    let row = store.idempotency(&usual()).expect("a read");
    assert!(row.is_some(), "it has been claimed again since");
}

#[test]
fn the_next_run_frees_claimed_keys_and_keeps_stored_responses() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let other = key(2, Endpoint::Chat, "k");
    assert_eq!(claim(&store, 0, 1), Ok(()));
    assert_eq!(keep(&store, 0, "yes"), Ok(()));
    assert_eq!(claim_of(&store, other.clone(), 0, 1), Ok(()));
    store.close();
    let store = open(folder.path());
    write(&store, IdempotencyPart::FreeBefore { token: 1 }).expect("never refused");
    assert_eq!(claim_of(&store, other, 1, 2), Ok(()));
    assert_eq!(claim(&store, 1, 1), Err(KeyUse::Answered));
}

#[test]
fn claims_of_a_recovered_run_are_taken_over_or_answered_and_expire() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let (taken, kept) = (key(1, Endpoint::Chat, "a"), key(1, Endpoint::Chat, "b"));
    let (left, bought) = (key(1, Endpoint::Chat, "c"), key(1, Endpoint::X402, "d"));
    for key in [&taken, &kept, &left, &bought] {
        assert_eq!(claim_of(&store, key.clone(), 1, 1), Ok(()), "{key:?}");
    }
    write(&store, IdempotencyPart::LapseBefore { token: 1 }).expect("never refused");
    assert_eq!(
        claim_of(&store, taken.clone(), 2, 1),
        Err(KeyUse::UnderWay),
        "of this run"
    );
    write(&store, IdempotencyPart::LapseBefore { token: 2 }).expect("never refused");
    assert_eq!(claim_of(&store, taken.clone(), 2, 2), Ok(()));
    assert_eq!(keep_of(&store, taken.clone(), 1, "late"), Err(KeyUse::Lost));
    assert_eq!(keep_of(&store, kept.clone(), 1, "late"), Ok(()));
    let is_there = |key: &IdempotencyKey| store.idempotency(key).expect("a read").is_some();
    let forget = |now| {
        let now = Timestamp::from_micros(now);
        write(&store, IdempotencyPart::Forget { now, limit: 99 }).expect("never refused");
    };
    forget(KEEP);
    assert!([&taken, &kept, &left, &bought].into_iter().all(is_there));
    forget(KEEP + 1);
    assert!(is_there(&taken), "its request runs");
    assert!(![&kept, &left, &bought].into_iter().any(is_there));
}

/// Answers from the cache under fresh keys stored 1.04 GB in six seconds.
#[test]
fn a_body_is_stored_once_and_its_keys_are_small_rows() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let body = "x".repeat(100_000);
    let metadata =
        "1 999999999 999999999999 100000 10000 1 stored ce_00112233445566778899aabbccddeeff";
    for number in 0..100_u8 {
        let key = key(
            1 + number % 2,
            Endpoint::Chat,
            &format!("{number}{}", "k".repeat(250)),
        );
        assert_eq!(claim_of(&store, key.clone(), 0, 1), Ok(()));
        let part = IdempotencyPart::Keep {
            key,
            token: 0,
            answer: KeptAnswer {
                headers: metadata.into(),
                ..answer(&body)
            },
        };
        assert_eq!(write(&store, part), Ok(()));
    }
    let count = |query| number(folder.path(), query);
    assert_eq!(
        count("SELECT sum(length(body)) FROM answer_bodies"),
        100_000
    );
    let widest = "SELECT max(length(account_id) + length(name) + length(request_hash) + 1 + 1 + 2 + length(headers) + length(answer) + 8)
                  FROM completion_keys";
    assert!(count(widest) + 10 <= 200, "{}", count(widest));
    let bytes = "SELECT sum(bytes) FROM completion_key_totals";
    assert_eq!(count(bytes), 100_000, "counted once");
    assert_eq!(count("SELECT sum(keys) FROM completion_key_totals"), 100);
    // The last key takes the body with it.
    let forget = || {
        let now = Timestamp::from_micros(KEEP);
        write(&store, IdempotencyPart::Forget { now, limit: 99 }).expect("never refused");
    };
    forget();
    assert_eq!(count(bytes), 100_000);
    forget();
    assert_eq!(count("SELECT count(*) FROM answer_bodies"), 0);
    assert_eq!(count(bytes), 0);
    assert_eq!(count("SELECT sum(keys) FROM completion_key_totals"), 0);
}

#[test]
fn an_account_has_so_many_keys_and_bytes_and_expired_keys_are_deleted_faster_than_new_ones_are_made()
 {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let limited = |account, name: &str, now, limits| {
        let part = IdempotencyPart::Claim {
            key: key(account, Endpoint::Chat, name),
            request_hash: [1; 32],
            token: now,
            at: Timestamp::from_micros(now),
            expires_at: Timestamp::from_micros(now + KEEP),
            limits: Some(limits),
        };
        support::write(&store, [Part::Idempotency(Box::new(part))]).map(|_| ())
    };
    let three = KeyLimits {
        keys: 3,
        bytes: 1_000,
    };
    for name in ["a", "b", "c"] {
        assert_eq!(limited(1, name, 0, three), Ok(()));
        assert_eq!(
            keep_of(&store, key(1, Endpoint::Chat, name), 0, name),
            Ok(())
        );
    }
    let refused = Err(Refusal::KeyQuota(KeyQuota::Keys));
    assert_eq!(limited(1, "d", 0, three), refused);
    assert_eq!(limited(2, "d", 0, three), Ok(()), "another account");
    assert_eq!(limited(1, "d", KEEP, three), Ok(()));
    let keys = "SELECT count(*) FROM completion_keys WHERE state = 1";
    assert_eq!(
        number(folder.path(), keys),
        1,
        "two have expired and are deleted"
    );
    // A key that was freed counts no more, and neither do those that the next run frees.
    let part = IdempotencyPart::FreeBefore {
        token: first_token(1, 1 << 20),
    };
    write(&store, part).expect("never refused");
    let sum = "SELECT sum(keys) FROM completion_key_totals";
    assert_eq!(number(folder.path(), sum), 1);
    let large = key(3, Endpoint::Chat, "large");
    let bytes = KeyLimits {
        keys: 100,
        bytes: 10,
    };
    assert_eq!(limited(3, "large", 0, bytes), Ok(()));
    assert_eq!(keep_of(&store, large, 0, "0123456789"), Ok(()));
    let refused = Err(Refusal::KeyQuota(KeyQuota::Bytes));
    assert_eq!(limited(3, "next", 0, bytes), refused);
}

#[test]
fn an_answer_that_an_earlier_release_recorded_is_found() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let row = format!(
        "INSERT INTO idempotency (account_id, endpoint, key, request_hash, state, locked_until, status, headers, body, created_at, expires_at)
         VALUES ({}, 1, 'k', {}, 1, 0, 200, '{{}}', {}, 0, 10000)",
        engine::bytes(&[1; 16]),
        engine::bytes(&[2; 32]),
        engine::bytes(b"yes"),
    );
    engine::execute(folder.path(), &row);
    assert_eq!(claim(&store, 1, 2), Err(KeyUse::Answered));
    assert_eq!(claim(&store, 1, 1), Err(KeyUse::OtherRequest));
    let row = store.idempotency(&usual()).expect("a read").expect("a row");
    assert_eq!(row.answer, Some(answer("yes")));
    assert_eq!(claim(&store, KEEP, 1), Ok(()));
}
