//! A ledger and its store, handed over to a successor with open requests.

use std::os::unix::net::UnixStream;
use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;
use std::time::Duration;

use tollgate_clock::Clock;
use tollgate_ledger::{AttachedPart, CreditError, HoldError, Ledger, LoadError, SettleError};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, SpendingCap};
use tollgate_store::sqlite::{self, Lock, Options};
use tollgate_store::{
    Admission, CacheScope, CommitError, Endpoint, FailureKind, IdempotencyKey, IdempotencyPart,
    KeptAnswer, NewAccount, OpenError, Part, Refusal, Store, SuccessorLink, UnitOfWork, commit,
    first_token, flush,
};

use super::suite::testbed::{Testbed, bed, open, options};
use crate::support::*;

/// The successor, as far as the test's own process does not have its state.
struct Next {
    store: Arc<dyn Store>,
    ledger: Ledger,
    /// The number of orphans after the end of the predecessor.
    orphans: JoinHandle<usize>,
}

/// Hands the store of `bed` over, and connects the store to its successor.
fn hand_over(bed: &Testbed) -> Next {
    bed.ledger.hand_over();
    let handover = bed.store.hand_over().expect("the store is open");
    let path = bed.folder.path().join("t.db");
    let refused = sqlite::open(&path, options());
    assert!(
        matches!(refused, Err(OpenError::InUse { .. })),
        "the lock is never free"
    );
    let [named, database] = &handover.files[..] else {
        panic!("a lock is two files");
    };
    let files = [named, database].map(|file| file.try_clone().expect("a descriptor"));
    let next = Options {
        lock: Some(Lock::from_files(files).expect("a lock")),
        predecessor: Some(bed.store.epoch()),
        ..options()
    };
    let store = sqlite::open(&path, next).expect("the successor opens it");
    let ledger = start(&store);
    let (here, there) = UnixStream::pair().expect("a connection");
    handover.forward(Box::new(SuccessorLink(here)));
    let serving = ledger.clone();
    let orphans = serve_until_closed(serving, there);
    Next {
        store,
        ledger,
        orphans,
    }
}

fn in_next(next: &Next, account: AccountId) -> (i64, i64) {
    let balance = balance_of(&next.ledger, account);
    (balance.available.get(), balance.held.get())
}

/// The successor has the accounts of the predecessor's holds in memory, and loads other accounts at their first use. Serves a predecessor
/// until the predecessor closes the connection; returns the number of orphans.
fn serve_until_closed(ledger: Ledger, mut link: UnixStream) -> std::thread::JoinHandle<usize> {
    std::thread::spawn(move || {
        let served = ledger.serve_predecessor(&mut link, |_| Ok(true));
        served.expect("the predecessor closes the connection");
        ledger.release_adopted(None, &Clock::system())
    })
}

#[test]
fn the_successor_loads_the_accounts_of_open_holds_and_the_predecessor_none_any_more() {
    let bed = bed(options());
    let ids: Vec<AccountId> = (0..3)
        .map(|number| account_with(&bed.store, &bed.ledger, number, 100, 0))
        .collect();
    let evict = |ledger: &Ledger, store: &Arc<dyn Store>| {
        ledger.evict_idle();
        wait(flush(&**store)).expect("everything is durable");
        ledger.evict_idle()
    };
    assert_eq!(evict(&bed.ledger, &bed.store), 3);
    wait(bed.ledger.load(ids[0])).expect("it can be loaded");
    let hold = bed
        .ledger
        .hold(request(ids[0], 1, 60), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    let next = hand_over(&bed);
    assert_eq!(next.ledger.resident_accounts(), 1);
    assert_eq!(
        evict(&next.ledger, &next.store),
        0,
        "the predecessor holds it"
    );
    let refused = wait(bed.ledger.load(ids[1]));
    assert!(
        matches!(refused, Err(LoadError::Overloaded { .. })),
        "{refused:?}"
    );
    wait(bed.ledger.load(ids[0])).expect("it is in memory");
    assert_eq!(in_next(&next, ids[1]), (100, 0));
    wait(hold.settle(settle(40))).expect("durable");
    assert_eq!(in_next(&next, ids[0]), (60, 0));
    bed.store.close();
    assert_eq!(next.orphans.join().expect("no panic"), 0);
    assert_eq!(evict(&next.ledger, &next.store), 2);
    assert_eq!(balance_of(&next.ledger, ids[0]).available.get(), 60);
    assert_ledger_balances(&next.store);
}

#[test]
fn open_holds_end_through_the_successor_which_alone_decides_on_credit() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let hold = |number, amount| {
        let hold = bed
            .ledger
            .hold(request(payer, number, amount), |_| None)
            .now()
            .expect("it is alone");
        hold.expect("there is credit")
    };
    let (first, left, beyond) = (hold(1, 30), hold(2, 5), hold(3, 10));
    let reserved = bed
        .ledger
        .hold(request(payer, 4, 20).in_memory(), |_| None)
        .now()
        .expect("it is alone");
    let reserved = reserved.expect("there is credit");
    let released = hold(5, 15);

    let next = hand_over(&bed);
    let key = CredentialId::from_bytes([9; 16]);
    let cap = SpendingCap {
        max: Micros::new(12),
        period: CapPeriod::Total,
    };
    wait(next.ledger.load_spending((key, payer), cap, NOW)).expect("a read");
    let is_reached = || {
        let reached = next.ledger.reached_cap(key, cap, NOW);
        reached.expect("it is loaded").is_some()
    };
    assert!(!is_reached(), "it has spent nothing");
    assert_eq!(in_next(&next, payer), (20, 80), "reservations are held too");
    assert_eq!(next.ledger.adopted_holds(), 5);
    let refused = bed
        .ledger
        .hold(request(payer, 6, 1), |_| None)
        .now()
        .expect("it is alone");
    assert!(matches!(refused, Err(HoldError::Overloaded { .. })));
    let refused = wait(bed.ledger.grant(credit_of(payer, 5, "late", 7)));
    assert!(matches!(refused, Err(CreditError::Overloaded { .. })));
    let taken = next
        .ledger
        .hold(request(payer, 8, 20), |_| None)
        .now()
        .expect("it is alone");
    let taken = taken.expect("the successor has the rest");

    let (mut with_key, began_at) = (settle(12), operation(1).began_at());
    with_key.at = began_at;
    with_key.usage.credential = Some(key);
    assert_eq!(
        wait(first.settle(with_key)).expect("durable").charged.get(),
        12
    );
    assert_eq!(
        in_next(&next, payer),
        (18, 70),
        "what was not used is free there"
    );
    assert!(is_reached(), "the charge of the predecessor counts");
    released.release(NOW);
    let over = wait(beyond.settle(settle(14))).expect("durable");
    let over = (over.charged.get(), over.written_off.get());
    assert_eq!(over, (10, 4), "a hold is the limit");
    assert_eq!(
        wait(reserved.settle(settle(20)))
            .expect("durable")
            .charged
            .get(),
        20
    );
    assert_eq!(in_next(&next, payer), (33, 25));

    std::mem::forget(left);
    bed.store.close();
    assert_eq!(
        next.orphans.join().expect("no panic"),
        1,
        "one was left open"
    );
    let seen = next.ledger.balance(payer).expect("an account");
    assert_eq!((seen.available.get(), seen.held.get()), (38, 20));
    wait(taken.settle(settle(20))).expect("durable");
    wait(flush(&*next.store)).expect("everything is durable");
    assert_ledger_balances(&next.store);
    next.store.close();
    let again = bed_of(bed.folder);
    assert_eq!(again.balance(payer), (38, 0), "the journal says the same");
}

fn bed_of(folder: tempfile::TempDir) -> Testbed {
    let store = open(folder.path());
    let ledger = start(&store);
    Testbed {
        store,
        ledger,
        folder,
    }
}

#[test]
fn a_settlement_takes_the_response_of_its_idempotency_key_with_it_and_later_runs_free_no_claim_early()
 {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let key = |name: &str| IdempotencyKey {
        account: payer,
        endpoint: Endpoint::Chat,
        key: Arc::from(name),
    };
    let token = first_token(1, bed.store.epoch());
    for name in ["kept", "open"] {
        let claim = IdempotencyPart::Claim {
            key: key(name),
            request_hash: [1; 32],
            token,
            at: NOW,
            expires_at: NOW + Duration::from_secs(60),
            limits: None,
        };
        let unit = UnitOfWork::of(Part::Idempotency(Box::new(claim)), Admission::Normal);
        wait(commit(&*bed.store, unit)).expect("it is free");
    }
    let hold = bed
        .ledger
        .hold(request(payer, 1, 30), |_| None)
        .now()
        .expect("it is alone");
    let hold = hold.expect("there is credit");
    let next = hand_over(&bed);
    let free = |token| {
        let part = IdempotencyPart::FreeBefore { token };
        let unit = UnitOfWork::of(Part::Idempotency(Box::new(part)), Admission::Always);
        wait(commit(&*next.store, unit)).expect("never refused");
    };
    free(first_token(1, next.store.earliest_epoch()));
    let answer = KeptAnswer {
        status: 200,
        headers: Arc::from("1"),
        body: Some(Arc::from(&b"an answer"[..])),
    };
    let (kept, recorded) = (key("kept"), answer.clone());
    let attached = AttachedPart::new(move |_| {
        Part::Idempotency(Box::new(IdempotencyPart::Keep {
            key: kept,
            token,
            answer: recorded,
        }))
    });
    wait(hold.settle_with(settle(3), Some(attached))).expect("durable");
    let found = |name| next.store.idempotency(&key(name)).expect("a read");
    assert_eq!(found("kept").and_then(|row| row.answer), Some(answer));
    assert!(found("open").is_some(), "its request is open");
    bed.store.close();
    assert_eq!(next.orphans.join().expect("no panic"), 0);
    free(first_token(1, next.store.epoch()));
    assert!(found("open").is_none(), "its request has ended");
    assert!(found("kept").is_some());
    assert_ledger_balances(&next.store);
}

#[test]
fn a_unit_of_another_kind_is_refused_like_in_an_overload() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let next = hand_over(&bed);
    let made = NewAccount {
        id: account(2),
        class: Arc::from("free"),
        cache_scope: CacheScope::Shared,
        credit_limit: Micros::ZERO,
        created_at: NOW,
    };
    let unit = UnitOfWork::of(Part::CreateAccount(Box::new(made)), Admission::Normal);
    let refused = wait(commit(&*bed.store, unit));
    assert!(matches!(refused, Err(CommitError::Overloaded { .. })));
    assert_eq!(in_next(&next, payer), (100, 0));
    bed.store.close();
    next.orphans.join().expect("no panic");
}

#[test]
fn without_an_answer_of_the_successor_the_store_fails_and_nothing_is_confirmed() {
    let (fail, failed) = mpsc::channel();
    let bed = bed(Options {
        on_failure: Box::new(move |failure| {
            let _ = fail.send(failure.kind);
        }),
        ..options()
    });
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let hold = bed
        .ledger
        .hold(request(payer, 1, 30), |_| None)
        .now()
        .expect("it is alone");
    let hold = hold.expect("there is credit");
    bed.ledger.hand_over();
    let handover = bed.store.hand_over().expect("the store is open");
    let settlement = hold.settle(settle(3));
    drop(handover);
    let lost = wait(settlement).expect_err("it is not durable");
    assert!(matches!(lost, SettleError::Store { .. }), "{lost}");
    assert_eq!(failed.recv(), Ok(FailureKind::Closed));
    let again = bed_of(bed.folder);
    assert_eq!(again.balance(payer), (100, 0), "the hold was an orphan");
}

#[test]
fn a_message_that_charges_more_than_its_hold_or_ends_another_hold_changes_nothing() {
    use tollgate_store::Successor as _;
    use tollgate_store::entries::LedgerPart;

    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let hold = bed
        .ledger
        .hold(request(payer, 1, 30), |_| None)
        .now()
        .expect("it is alone");
    std::mem::forget(hold.expect("there is credit"));
    bed.ledger.hand_over();
    bed.store.close();
    let next = Options {
        predecessor: Some(bed.store.epoch()),
        ..options()
    };
    let path = bed.folder.path().join("t.db");
    let store = sqlite::open(&path, next).expect("the successor opens it");
    let ledger = start(&store);
    let (here, there) = UnixStream::pair().expect("a connection");
    let serving = ledger.clone();
    let served = serve_until_closed(serving, there);
    let mut link = SuccessorLink(here);
    let settled = |number, held, charged| {
        let part = LedgerPart::Settle {
            operation: operation(number),
            account: payer,
            held: Micros::new(held),
            charged: Micros::new(charged),
            written_off: Micros::ZERO,
            price_version: None,
            usage: usage(),
            at: NOW,
        };
        UnitOfWork::of(Part::Ledger(part), Admission::Always)
    };
    let units = [
        settled(1, 30, 31),
        settled(1, 29, 1),
        settled(2, 30, 1),
        settled(1, 30, 30),
        settled(1, 30, 30),
    ];
    let answers = link.commit(&units.each_ref()).expect("an answer");
    let is_ok: Vec<bool> = answers.iter().map(Result::is_ok).collect();
    assert_eq!(is_ok, [false, false, false, true, false]);
    assert_eq!(answers[4], Err(Refusal::NoHold(operation(1))));
    drop(link);
    assert_eq!(served.join().expect("no panic"), 0);
    let balance = ledger.balance(payer).expect("an account");
    assert_eq!((balance.available.get(), balance.held.get()), (70, 0));
    wait(flush(&*store)).expect("everything is durable");
    assert_ledger_balances(&store);
}

/// The credit of a hold that stays open on the disk must not be spent in memory: the store would find the contradiction and stop.
#[test]
fn a_settlement_that_is_refused_with_its_attached_part_leaves_its_hold_for_a_release() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let hold = bed
        .ledger
        .hold(request(payer, 1, 60), |_| None)
        .now()
        .expect("it is alone");
    let hold = hold.expect("there is credit");
    let next = hand_over(&bed);
    let attached = AttachedPart::new(move |_| answer_with_lost_claim(payer));
    let refused = wait(hold.settle_with(settle(10), Some(attached)));
    assert!(matches!(refused, Err(SettleError::Refused { .. })));
    bed.store.close();
    assert_eq!(
        next.orphans.join().expect("no panic"),
        0,
        "the predecessor has released it"
    );
    let balance = next.ledger.balance(payer).expect("an account");
    assert_eq!((balance.available.get(), balance.held.get()), (100, 0));
    let all = next
        .ledger
        .hold(request(payer, 2, 100), |_| None)
        .now()
        .expect("it is alone");
    wait(all.expect("all is free").settle(settle(100))).expect("durable");
    wait(flush(&*next.store)).expect("everything is durable");
    assert_ledger_balances(&next.store);
}
