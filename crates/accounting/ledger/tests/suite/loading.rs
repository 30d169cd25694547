//! Accounts are loaded at their first use, and removed when idle.

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering::SeqCst};
use std::task::{Context, Poll, Waker};

use tollgate_ledger::{AttachedPart, Charge, ChargeError, HoldError, LoadError, SettleError};
use tollgate_money::{AccountId, Micros};
use tollgate_store::{
    Admission, Endpoint, EntryKind, IdempotencyKey, IdempotencyPart, KeptAnswer, Part, UnitOfWork,
    flush,
};

use super::testbed::{Testbed, bed, open, options};
use crate::support::*;

type Pinned<'f, T> = Pin<Box<dyn Future<Output = T> + 'f>>;

fn charge(account: AccountId, number: u64, amount: i64) -> Charge {
    Charge {
        operation: operation(number),
        account,
        amount: Micros::new(amount),
        price_version: None,
        usage: usage(),
        at: NOW,
    }
}

/// Credit booked by another caller, possibly for an account outside memory.
fn book(bed: &Testbed, account: AccountId, amount: i64, number: u64) {
    let credit = credit_of(account, amount, &number.to_string(), number);
    let part = credit.part(EntryKind::Grant).expect("a credit");
    let unit = UnitOfWork::of(part, Admission::Normal);
    let ignored = Box::new(|_: Result<_, _>| ());
    bed.store.submit(unit, ignored).expect("it is queued");
}

/// Removes idle accounts; returns the number of accounts.
fn evict(bed: &Testbed) -> usize {
    bed.ledger.evict_idle();
    wait(flush(&*bed.store)).expect("everything is durable");
    bed.ledger.evict_idle()
}

/// Sets a flag when it is dropped.
struct OnDrop<'f>(&'f AtomicBool);

impl Drop for OnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

fn poll<T>(future: &mut Pinned<'_, T>) -> Poll<T> {
    future
        .as_mut()
        .poll(&mut Context::from_waker(Waker::noop()))
}

#[test]
fn a_start_loads_no_account_and_a_use_loads_one() {
    let made = bed(options());
    for number in 0..100 {
        account_with(&made.store, &made.ledger, number, 10, 0);
    }
    made.store.close();
    let store = open(made.folder.path());
    let ledger = start(&store);
    assert_eq!(ledger.resident_accounts(), 0);
    assert_eq!(ledger.account_loads(), (0, 0), "nor was one read");
    assert!(ledger.balance(account(7)).is_none(), "it is not in memory");
    let refused = ledger
        .hold(request(account(7), 1, 1), |_| None)
        .now()
        .expect("it is alone");
    assert!(matches!(refused, Err(HoldError::NoAccount { .. })));
    assert_eq!(balance_of(&ledger, account(7)).available.get(), 10);
    wait(ledger.load(account(1_000))).expect("it can be loaded");
    assert!(ledger.balance(account(1_000)).is_none(), "there is none");
    assert_eq!(ledger.resident_accounts(), 1);
    assert_eq!(ledger.account_loads(), (1, 1));
    wait(ledger.load(account(7))).expect("it is there");
    assert_eq!(ledger.account_loads(), (1, 1), "it is in memory");
    store.close();
}

#[test]
fn a_start_loads_the_accounts_of_open_holds_alone() {
    let made = bed(options());
    for number in 0..20 {
        account_with(&made.store, &made.ledger, number, 10, 0);
    }
    let hold = made
        .ledger
        .hold(request(account(3), 1, 4), |_| None)
        .now()
        .expect("it is alone");
    wait(flush(&*made.store)).expect("it is durable");
    // Like a killed process.
    std::mem::forget(hold.expect("a hold"));
    made.store.close();
    let store = open(made.folder.path());
    let ledger = start(&store);
    assert_eq!(ledger.resident_accounts(), 1);
    let balance = ledger.balance(account(3)).expect("it was loaded");
    assert_eq!((balance.available.get(), balance.held.get()), (10, 0));
    store.close();
}

/// Decisions queued around the load of an account are in its balance once: in one commit with the load, or in a separate commit.
#[test]
fn a_load_has_what_was_queued_before_it_and_what_is_queued_after_it_is_added() {
    for is_one_commit in [true, false] {
        let bed = bed(options());
        let id = account_with(&bed.store, &bed.ledger, 1, 100, 50);
        assert_eq!(evict(&bed), 1);
        let resume = is_one_commit.then(|| bed.stop_writer());
        book(&bed, id, 7, 1);
        let mut loading: Pinned<'_, _> = Box::pin(bed.ledger.load(id));
        let is_queued = poll(&mut loading).is_pending();
        assert!(is_queued || !is_one_commit, "it waits for the commit");
        book(&bed, id, 20, 2);
        drop(resume);
        if is_queued {
            wait(loading).expect("it can be loaded");
        }
        wait(flush(&*bed.store)).expect("it is durable");
        assert_eq!(bed.balance(id), (127, 0), "in one commit: {is_one_commit}");
        let most = bed
            .ledger
            .hold(request(id, 3, 178), |_| None)
            .now()
            .expect("it is alone");
        assert!(
            matches!(most, Err(HoldError::InsufficientCredit { available, .. }) if available.get() == 177),
            "the credit limit is loaded too: {most:?}"
        );
        assert!(!bed.ledger.balance(id).expect("it is here").has_paid);
        assert_ledger_balances(&bed.store);
    }
}

#[test]
fn an_account_that_has_paid_is_loaded_as_one() {
    let bed = bed(options());
    let id = account_with(&bed.store, &bed.ledger, 1, 0, 0);
    wait(bed.ledger.top_up(credit_of(id, 5, "bought", 1))).expect("it is booked");
    assert_eq!(evict(&bed), 1);
    assert!(balance_of(&bed.ledger, id).has_paid);
}

/// The charge may still be refused, and a refusal returns the credit to a balance in memory.
#[test]
fn an_account_stays_until_what_was_decided_on_it_is_durable() {
    let bed = bed(options());
    let id = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let resume = bed.stop_writer();
    let charged = bed.ledger.charge(charge(id, 1, 7)).expect("a charge");
    for _ in 0..5 {
        assert_eq!(bed.ledger.evict_idle(), 0, "its charge is in the queue");
    }
    drop(resume);
    wait(charged).expect("it is durable");
    wait(flush(&*bed.store)).expect("everything is durable");
    assert_eq!(bed.ledger.evict_idle(), 1, "nothing is");
    assert_eq!(bed.balance(id), (93, 0));
}

/// A refused settlement leaves its hold open in the store, and queues the release of the hold. A balance loaded in between would keep the
/// hold for ever.
#[test]
fn an_account_is_not_loaded_between_a_refused_settlement_and_the_release_of_its_hold() {
    let bed = bed(options());
    let id = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let mut hold = bed
        .ledger
        .hold(request(id, 1, 60), |_| None)
        .now()
        .expect("it is alone")
        .expect("a hold");
    wait(hold.durable()).expect("it is durable");
    let resume = bed.stop_writer();
    let attached = AttachedPart::new(move |_| {
        Part::Idempotency(Box::new(IdempotencyPart::Keep {
            key: IdempotencyKey {
                account: id,
                endpoint: Endpoint::Chat,
                key: Arc::from("a claim that was lost"),
            },
            token: 1,
            answer: KeptAnswer {
                status: 200,
                headers: Arc::from("1"),
                body: None,
            },
        }))
    });
    let settlement = hold.settle_with(settle(10), Some(attached));
    bed.ledger.evict_idle();
    assert_eq!(bed.ledger.evict_idle(), 0, "its settlement is in the queue");
    let mut loading: Pinned<'_, _> = Box::pin(bed.ledger.load(id));
    let _ = poll(&mut loading);
    drop(resume);
    let refused = wait(settlement);
    assert!(matches!(refused, Err(SettleError::Refused { .. })));
    while bed.ledger.evict_idle() == 0 {
        wait(flush(&*bed.store)).expect("everything is durable");
    }
    assert_eq!(bed.balance(id), (100, 0));
    wait(flush(&*bed.store)).expect("everything is durable");
    assert_ledger_balances(&bed.store);
}

#[test]
fn an_account_with_an_open_hold_stays_also_with_one_of_nothing() {
    let bed = bed(options());
    let id = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    for amount in [0, 5] {
        for is_written in [true, false] {
            let number = 1 + amount as u64 * 2 + u64::from(is_written);
            let wanted = request(id, number, amount);
            let hold = match is_written {
                true => bed
                    .ledger
                    .hold(wanted, |_| None)
                    .now()
                    .expect("it is alone"),
                false => bed
                    .ledger
                    .hold(wanted.in_memory(), |_| None)
                    .now()
                    .expect("it is alone"),
            };
            let hold = hold.expect("a hold");
            assert_eq!(evict(&bed) + evict(&bed), 0, "a hold of {amount}");
            hold.release(NOW);
            assert_eq!(evict(&bed), 1, "nothing is open");
            wait(bed.ledger.load(id)).expect("it can be loaded");
        }
    }
}

/// A request loads an account, and places its hold after the arrival of its body.
#[test]
fn an_account_that_was_looked_at_stays_for_one_more_eviction() {
    let bed = bed(options());
    let id = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    for round in 0..4 {
        bed.ledger.evict_idle();
        wait(flush(&*bed.store)).expect("everything is durable");
        match round % 2 {
            0 => wait(bed.ledger.load(id)).expect("it is there"),
            _ => drop(bed.ledger.balance(id).expect("it is there")),
        }
        assert_eq!(bed.ledger.evict_idle(), 0, "it was used");
        wait(flush(&*bed.store)).expect("everything is durable");
        bed.ledger
            .hold(request(id, round, 1), |_| None)
            .now()
            .expect("it is alone")
            .expect("it is there still")
            .release(NOW);
    }
    assert_eq!(evict(&bed), 1);
}

#[test]
fn callers_that_load_one_account_share_a_load_and_those_beyond_the_bound_are_refused() {
    const BOUND: u64 = 1024;
    let bed = bed(options());
    let id = account_with(&bed.store, &bed.ledger, 0, 100, 0);
    assert_eq!(evict(&bed), 1);
    let resume = bed.stop_writer();
    let mut waiting: Vec<Pinned<'_, Result<(), LoadError>>> = (0..BOUND)
        .flat_map(|number| [account(number); 2])
        .map(|id| -> Pinned<'_, _> { Box::pin(bed.ledger.load(id)) })
        .collect();
    for loading in &mut waiting {
        assert!(poll(loading).is_pending());
    }
    let mut beyond: Pinned<'_, _> = Box::pin(bed.ledger.load(account(BOUND)));
    let refused = poll(&mut beyond);
    assert!(
        matches!(
            refused,
            Poll::Ready(Err(LoadError::Overloaded { waiting: 1024 }))
        ),
        "{refused:?}"
    );
    // A caller that has stopped waiting does not affect other callers.
    drop(waiting.swap_remove(0));
    drop(resume);
    for loading in waiting {
        wait(loading).expect("it is loaded");
    }
    assert_eq!(bed.ledger.account_loads(), (1, BOUND - 1));
    assert_eq!(bed.balance(id), (100, 0));
    wait(bed.ledger.load(account(BOUND))).expect("there is room");
}

#[test]
fn a_load_ends_with_the_store() {
    let bed = bed(options());
    let id = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    assert_eq!(evict(&bed), 1);
    bed.store.close();
    let refused = wait(bed.ledger.load(id));
    assert!(matches!(refused, Err(LoadError::Store(_))), "{refused:?}");
}

#[test]
fn no_interleaving_of_loads_evictions_charges_holds_and_credits_loses_or_doubles_one() {
    let bed = bed(options());
    let accounts: Vec<AccountId> = (0..3)
        .map(|number| account_with(&bed.store, &bed.ledger, number, 1_000_000, 0))
        .collect();
    let sums: Arc<[AtomicI64; 3]> = Arc::new([1_000_000; 3].map(AtomicI64::new));
    let is_over = AtomicBool::new(false);
    let mut evicted = 0;
    std::thread::scope(|scope| {
        // Ends the evictions also when a worker panics.
        let over = OnDrop(&is_over);
        let evicting = scope.spawn(|| {
            let mut evicted = 0;
            while !is_over.load(SeqCst) {
                evicted += bed.ledger.evict_idle();
                wait(flush(&*bed.store)).expect("it is durable");
            }
            evicted
        });
        let workers: Vec<_> = (0..3u64)
            .map(|worker| {
                let (bed, sums, accounts) = (&bed, &sums, &accounts);
                scope.spawn(move || {
                    for step in 0..200u64 {
                        let number = 10_000 * (worker + 1) + step;
                        let at = ((step * 7 + worker) % 3) as usize;
                        let id = accounts[at];
                        if step % 5 == 0 {
                            book(bed, id, 11, number);
                            sums[at].fetch_add(11, SeqCst);
                            continue;
                        }
                        loop {
                            wait(bed.ledger.load(id)).expect("it can be loaded");
                            let is_done = match step % 5 {
                                1 | 2 => match bed.ledger.charge(charge(id, number, 3)) {
                                    Ok(_) => true,
                                    Err(ChargeError::NoAccount { .. }) => false,
                                    Err(error) => panic!("{error}"),
                                },
                                _ => match bed
                                    .ledger
                                    .hold(request(id, number, 9), |_| None)
                                    .now()
                                    .expect("it is alone")
                                {
                                    Ok(hold) => {
                                        drop(hold.settle(settle(3)));
                                        true
                                    }
                                    Err(HoldError::NoAccount { .. }) => false,
                                    Err(error) => panic!("{error}"),
                                },
                            };
                            if is_done {
                                break;
                            }
                        }
                        sums[at].fetch_sub(3, SeqCst);
                        // Evictions need pauses.
                        if step % 3 == 0 {
                            wait(flush(&*bed.store)).expect("it is durable");
                            wait(flush(&*bed.store)).expect("it is durable");
                        }
                    }
                })
            })
            .collect();
        for worker in workers {
            worker.join().expect("no panic");
        }
        drop(over);
        evicted = evicting.join().expect("no panic");
    });
    wait(flush(&*bed.store)).expect("it is durable");
    assert!(evicted > 0, "some were evicted meanwhile");
    for (at, id) in accounts.iter().enumerate() {
        let sum = sums[at].load(SeqCst);
        assert_eq!(bed.balance(*id), (sum, 0), "account {at} in memory");
        let row = bed.store.account(*id).expect("a read");
        let row = row.expect("an account");
        assert_eq!(row.available.get(), sum, "account {at} on the disk");
    }
    assert_ledger_balances(&bed.store);
}
