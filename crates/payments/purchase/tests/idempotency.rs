//! A purchase requested twice under one idempotency key is made once.

mod support;

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::{Clock, ManualClock, Timestamp};
use tollgate_purchase::idempotency::{Answer, Claim, ClaimOutcome, IdempotencyKeys, digest};
use tollgate_store::{
    Admission, Endpoint, IdempotencyPart, Part, Store, UnitOfWork, commit, flush,
};

use support::process::{ACCOUNT, DAY, Disk, OTHER_ACCOUNT, START};

/// A store and a clock.
struct TestBed {
    disk: Disk,
    store: Arc<dyn Store>,
    keys: IdempotencyKeys,
    clock: (Clock, ManualClock),
}

impl TestBed {
    fn new() -> TestBed {
        TestBed::open(Disk::new(), Clock::manual(START))
    }

    /// Restarts the process with its claims still open. Only the disk remains.
    fn restart(self) -> TestBed {
        self.store.close();
        TestBed::open(self.disk, self.clock)
    }

    fn open(disk: Disk, clock: (Clock, ManualClock)) -> TestBed {
        let store = disk.open_store(Timestamp::from_micros(1));
        TestBed {
            keys: IdempotencyKeys::new(store.clone(), clock.0.clone()),
            disk,
            store,
            clock,
        }
    }

    async fn outcome(&self, key: &str, request: &str) -> ClaimOutcome {
        let hash = digest(&[request.as_bytes()]);
        let begun = self.keys.claim(ACCOUNT, Endpoint::Mpp, key, hash).await;
        begun.expect("the store works")
    }

    async fn claim(&self, key: &str, request: &str) -> Claim {
        match self.outcome(key, request).await {
            ClaimOutcome::Claimed(claim) => claim,
            other => panic!("`{key}` is not free: {other:?}"),
        }
    }

    async fn commit(&self, parts: Vec<Part>) -> bool {
        let unit = UnitOfWork::of_all(parts, Admission::Always);
        commit(&*self.store, unit).await.is_ok()
    }

    /// Waits until the queue is written.
    async fn settle(&self) {
        flush(&*self.store).await.expect("the store works");
    }
}

fn bought() -> Answer {
    Answer {
        status: 200,
        fields: vec![
            ("content-type".to_owned(), "application/json".to_owned()),
            ("payment-receipt".to_owned(), "abc: d==".to_owned()),
            ("x-empty".to_owned(), String::new()),
        ],
        body: Arc::from(*br#"{"success":true}"#),
    }
}

#[tokio::test]
async fn a_repeated_request_gets_the_stored_answer() {
    let bed = TestBed::new();
    let claim = bed.claim("k", "a").await;
    assert!(matches!(
        bed.outcome("k", "a").await,
        ClaimOutcome::InProgress
    ));
    assert!(matches!(
        bed.outcome("k", "b").await,
        ClaimOutcome::OtherRequest
    ));
    assert!(bed.commit(vec![claim.answer_part(&bought())]).await);
    drop(claim);
    let bed = bed.restart();
    match bed.outcome("k", "a").await {
        ClaimOutcome::Answered(answer) => assert_eq!(answer, bought(), "byte for byte"),
        other => panic!("{other:?}"),
    }
    assert!(matches!(
        bed.outcome("k", "b").await,
        ClaimOutcome::OtherRequest
    ));
}

#[tokio::test]
async fn a_dropped_claim_frees_its_key() {
    let bed = TestBed::new();
    drop(bed.claim("k", "a").await);
    drop(bed.claim("k", "b").await);
    // A request cancelled while its claim is being written leaves none.
    let cut_off = tokio::time::timeout(std::time::Duration::ZERO, bed.outcome("k", "c")).await;
    drop(cut_off);
    bed.settle().await;
    drop(bed.claim("k", "d").await);
}

#[tokio::test]
async fn an_answer_and_its_purchase_are_stored_together_or_not_at_all() {
    let bed = TestBed::new();
    let claim = bed.claim("k", "a").await;
    let other = bed.claim("other", "a").await;
    assert!(bed.commit(vec![other.answer_part(&bought())]).await);
    // The second part is refused, since its answer is stored: so the first is not stored either, and can be stored later.
    let both = vec![claim.answer_part(&bought()), other.answer_part(&bought())];
    assert!(!bed.commit(both).await);
    assert!(matches!(
        bed.outcome("k", "a").await,
        ClaimOutcome::InProgress
    ));
    assert!(bed.commit(vec![claim.answer_part(&bought())]).await);
    assert!(matches!(
        bed.outcome("k", "a").await,
        ClaimOutcome::Answered(_)
    ));
}

#[tokio::test]
async fn a_claim_open_at_a_crash_is_free_after_the_restart() {
    let bed = TestBed::new();
    let claim = bed.claim("k", "a").await;
    // Like a kill: no claim is freed.
    std::mem::forget(claim);
    let bed = bed.restart();
    drop(bed.claim("k", "a").await);
}

#[tokio::test]
async fn keys_are_separate_by_account_and_endpoint() {
    let bed = TestBed::new();
    let _mine = bed.claim("k", "a").await;
    for (account, endpoint) in [
        (OTHER_ACCOUNT, Endpoint::Mpp),
        (ACCOUNT, Endpoint::X402),
        (ACCOUNT, Endpoint::Checkout),
        (ACCOUNT, Endpoint::UcpCreate),
        (ACCOUNT, Endpoint::UcpUpdate),
        (ACCOUNT, Endpoint::UcpComplete),
        (ACCOUNT, Endpoint::UcpCancel),
    ] {
        let begun = bed.keys.claim(account, endpoint, "k", [0; 32]).await;
        assert!(
            matches!(begun, Ok(ClaimOutcome::Claimed(_))),
            "{endpoint:?}"
        );
    }
}

#[tokio::test]
async fn answers_of_payments_are_kept_for_ninety_days_and_of_checkouts_for_two() {
    const MICRO: Duration = Duration::from_micros(1);
    for (endpoint, days) in [
        (Endpoint::Mpp, 90),
        (Endpoint::X402, 90),
        (Endpoint::Checkout, 2),
        (Endpoint::UcpComplete, 2),
    ] {
        let bed = TestBed::new();
        let begin = || bed.keys.claim(ACCOUNT, endpoint, "k", [0; 32]);
        let Ok(ClaimOutcome::Claimed(claim)) = begin().await else {
            panic!("the name is free")
        };
        let part = claim.answer_part(&bought());
        for _ in 0..2 {
            let kept = bed.keys.store_answers(vec![part.clone()]).await;
            kept.expect("what is kept stays kept");
        }
        for (wait, known) in [(days * DAY - MICRO, true), (MICRO, false)] {
            bed.clock.1.advance(wait);
            let forget = IdempotencyPart::Forget {
                now: bed.clock.0.now(),
                limit: 10,
            };
            let forget = Part::Idempotency(Box::new(forget));
            assert!(bed.commit(vec![forget]).await);
            let is_known = matches!(begin().await, Ok(ClaimOutcome::Answered(_)));
            assert_eq!(is_known, known, "{endpoint:?} after {days} days");
        }
    }
}

#[tokio::test]
async fn of_twenty_concurrent_requests_one_gets_the_claim() {
    let bed = TestBed::new();
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..20 {
        let keys = bed.keys.clone();
        tasks.spawn(async move { keys.claim(ACCOUNT, Endpoint::Mpp, "k", [0; 32]).await });
    }
    // Every claim is held until all tasks have finished.
    let begun = tasks.join_all().await;
    let mine = |begun: &&Result<ClaimOutcome, _>| matches!(begun, Ok(ClaimOutcome::Claimed(_)));
    let waits = |begun: &&Result<ClaimOutcome, _>| matches!(begun, Ok(ClaimOutcome::InProgress));
    assert_eq!(begun.iter().filter(mine).count(), 1);
    assert_eq!(begun.iter().filter(waits).count(), 19);
}

#[tokio::test]
#[should_panic(expected = "only 2xx answers are")]
async fn a_refusal_is_never_stored() {
    let bed = TestBed::new();
    let claim = bed.claim("k", "a").await;
    let refusal = Answer {
        status: 402,
        ..bought()
    };
    claim.answer_part(&refusal);
}

#[test]
fn the_request_hash_depends_on_the_boundaries_of_its_pieces() {
    assert_eq!(digest(&[b"ab", b"c"]), digest(&[b"ab", b"c"]));
    for other in [
        &[b"a".as_slice(), b"bc"][..],
        &[b"abc"],
        &[b"ab", b"c", b""],
    ] {
        assert_ne!(digest(&[b"ab", b"c"]), digest(other));
    }
}
