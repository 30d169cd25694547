//! Holds, settlements and credits through a real store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tollgate_clock::{Deadline, Reading, Timestamp};
use tollgate_ledger::{Charge, Credit, CreditError, HoldError, HoldRequest, Ledger, SettleError};
use tollgate_money::Micros;
use tollgate_store::{
    Admission, CacheScope, EntryKind, NewAccount, Part, UnitOfWork, commit, flush,
};

use super::engine::Options;
use super::{bed, database, open, options};
use crate::support::{
    ELAPSED, NOW, account, account_with, assert_ledger_balances, credit_of, operation, request,
    settle, usage, wait,
};

/// Five thousand requests compete for the credit of a thousand requests: a thousand succeed, on any number of threads.
#[test]
fn exactly_as_many_competing_holds_are_accepted_as_there_is_credit_for() {
    const CREDIT_FOR: u64 = 1000;
    const THREADS: u64 = 8;
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 7 * CREDIT_FOR as i64, 0);
    let accepted = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (ledger, accepted) = (&bed.ledger, &accepted);
            scope.spawn(move || {
                for number in 0..5 * CREDIT_FOR / THREADS {
                    match ledger
                        .hold(request(payer, thread << 32 | number, 7), |_| None)
                        .now()
                        .expect("it is alone")
                    {
                        Ok(hold) => accepted.lock().expect("no panic").push(hold),
                        Err(HoldError::InsufficientCredit { .. }) => {}
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let accepted = accepted.into_inner().expect("no panic");
    assert_eq!(accepted.len() as u64, CREDIT_FOR);
    assert_eq!(bed.balance(payer), (0, 7 * CREDIT_FOR as i64));
    assert_eq!(bed.ledger.totals().open_holds, CREDIT_FOR);

    let left: i64 = accepted
        .into_iter()
        .enumerate()
        .map(|(index, hold)| {
            let actual = index as i64 % 9;
            let settled = hold.settle(settle(actual)).settled();
            assert!(
                settled.charged.get() <= actual,
                "no account pays more than the usage costs"
            );
            7 - settled.charged.get()
        })
        .sum();
    assert_eq!(bed.balance(payer), (left, 0));
    wait(flush(&*bed.store)).expect("everything is durable");
    assert_ledger_balances(&bed.store);
}

/// The credit of an unresolved hold would be lost until a restart. The cause of the drop does not matter.
#[test]
fn a_dropped_hold_is_released() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let hold = |number| {
        bed.ledger
            .hold(request(payer, number, 60), |_| None)
            .now()
            .expect("it is alone")
            .expect("there is credit")
    };

    drop(hold(1));
    assert_eq!(bed.balance(payer), (100, 0), "after a drop");

    let panicked = catch_unwind(AssertUnwindSafe(|| {
        let _hold = hold(2);
        panic!("a request dies");
    }));
    assert!(panicked.is_err());
    assert_eq!(bed.balance(payer), (100, 0), "after a panic");

    let mut third = hold(3);
    wait(async {
        let task = tokio::spawn(async move {
            third.durable().await.expect("the hold is durable");
            std::future::pending::<()>().await;
        });
        tokio::task::yield_now().await;
        task.abort();
        assert!(task.await.expect_err("it was aborted").is_cancelled());
    });
    assert_eq!(bed.balance(payer), (100, 0), "after a cancelled task");

    wait(flush(&*bed.store)).expect("everything is durable");
    for number in 1..=3 {
        assert_eq!(bed.kinds(number), [EntryKind::Hold, EntryKind::Release]);
    }
    assert_ledger_balances(&bed.store);
}

/// Every later release had the date of the wrong clock.
#[test]
fn a_dropped_hold_is_released_at_the_time_of_the_last_request_also_after_a_clock_was_wrong() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let hold = |number, at| {
        let wanted = HoldRequest {
            at,
            ..request(payer, number, 10)
        };
        bed.ledger
            .hold(wanted, |_| None)
            .now()
            .expect("it is alone")
            .expect("there is credit")
    };
    let (later, wrong) = (
        NOW + Duration::from_secs(60),
        Timestamp::from_secs(2_208_988_800),
    );
    hold(1, wrong).release(wrong);
    let first = hold(2, NOW);
    hold(3, later).release(later);
    drop(first);
    wait(flush(&*bed.store)).expect("everything is durable");
    let rows = bed.store.operation(operation(2)).expect("a read");
    let times: Vec<Timestamp> = rows.entries.iter().map(|entry| entry.at).collect();
    assert_eq!(times, [NOW, later]);
}

#[test]
fn a_hold_that_expired_cannot_be_settled() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let late = bed
        .ledger
        .hold(request(payer, 1, 60), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    let mut longer = request(payer, 2, 30);
    longer.deadline = Deadline::after(ELAPSED, Duration::from_micros(1_000_001));
    let open = bed
        .ledger
        .hold(longer, |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");

    let sweep = |micros, now| {
        bed.ledger.sweep(Reading {
            elapsed: ELAPSED + Duration::from_micros(micros),
            now,
        })
    };
    let years = Duration::from_secs(100 * 365 * 86_400);
    assert_eq!(
        sweep(999_999, NOW + years),
        0,
        "whatever the wall clock says"
    );
    assert_eq!(sweep(1_000_000, NOW - years), 1, "to the microsecond");
    assert_eq!(bed.balance(payer), (70, 30));
    let refused = wait(late.settle(settle(10)));
    assert!(
        matches!(refused, Err(SettleError::Expired { .. })),
        "{refused:?}"
    );
    assert_eq!(bed.balance(payer), (70, 30), "nothing was taken");

    let settled = wait(open.settle(settle(10))).expect("the other is open");
    assert_eq!(settled.available, Micros::new(90));
    assert_ledger_balances(&bed.store);
}

/// With a fast upstream, hold and settlement are in the queue together. One entry stands for both.
#[test]
fn a_hold_and_its_settlement_in_one_commit_are_coalesced() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let resume = bed.stop_writer();
    let hold = |number| {
        bed.ledger
            .hold(request(payer, number, 20), |_| None)
            .now()
            .expect("it is alone")
            .expect("there is credit")
    };
    let mut held = hold(5);
    let settlements = [
        hold(1).settle(settle(15)),
        hold(2).settle(settle(30)),
        hold(3).settle(settle(0)),
    ];
    hold(4).release(NOW);
    drop(resume);
    for settlement in settlements {
        let decided = settlement.settled();
        assert_eq!(wait(settlement).expect("it is durable"), decided);
    }
    wait(held.durable()).expect("it is durable");

    assert_eq!(bed.store.gauges().coalesced.load(Relaxed), 3);
    assert_eq!(bed.kinds(1), [EntryKind::Charge]);
    assert_eq!(
        bed.kinds(2),
        [EntryKind::Charge],
        "beyond its hold, from what is free"
    );
    assert_eq!(
        bed.kinds(3),
        [],
        "nothing was charged: a usage record alone"
    );
    assert_eq!(bed.kinds(4), [EntryKind::Hold, EntryKind::Release]);
    assert_eq!(bed.kinds(5), [EntryKind::Hold]);
    assert_eq!(bed.balance(payer), (35, 20));
    let rows = bed.store.operation(operation(2)).expect("a read");
    assert_eq!(rows.usage.expect("a usage record").cost, Micros::new(30));
    assert_ledger_balances(&bed.store);
}

#[test]
fn an_operation_is_never_booked_twice() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let other = account_with(&bed.store, &bed.ledger, 2, 100, 0);
    let first = bed
        .ledger
        .hold(request(payer, 1, 20), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    let again = bed
        .ledger
        .hold(request(payer, 1, 20), |_| None)
        .now()
        .expect("it is alone");
    assert!(
        matches!(again, Err(HoldError::Repeated { .. })),
        "in memory"
    );
    wait(first.settle(settle(20))).expect("it is durable");

    // The operation is no longer in memory, but still in the store. The operation's id on another account is refused as well.
    for (account, balance) in [(payer, (80, 0)), (other, (100, 0))] {
        let mut again = bed
            .ledger
            .hold(request(account, 1, 20), |_| None)
            .now()
            .expect("it is alone")
            .expect("memory does not know it");
        let refused = wait(again.durable());
        assert!(
            matches!(refused, Err(HoldError::Repeated { .. })),
            "{refused:?}"
        );
        assert_eq!(bed.balance(account), balance, "its credit is back");
        let refused = wait(again.settle(settle(20)));
        assert!(refused.is_err(), "and there is nothing to settle");
        assert_eq!(bed.balance(account), balance);
    }

    // A free operation leaves a usage record and no entry. A later charge is refused, alone or by a hold and settlement in one commit: the
    // operation is finished.
    let charge = |amount| {
        let charge = Charge {
            operation: operation(2),
            account: payer,
            amount: Micros::new(amount),
            price_version: None,
            usage: usage(),
            at: NOW,
        };
        wait(bed.ledger.charge(charge).expect("the queue has capacity"))
    };
    charge(0).expect("it is free");
    let refused = charge(5);
    assert!(
        matches!(refused, Err(SettleError::Refused { .. })),
        "{refused:?}"
    );
    let resume = bed.stop_writer();
    let beside = bed
        .ledger
        .hold(request(payer, 3, 20), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    let mut met = [2, 4].map(|number| {
        let hold = bed
            .ledger
            .hold(request(payer, number, 20), |_| None)
            .now()
            .expect("it is alone");
        hold.expect("memory does not know it").settle(settle(5))
    });
    drop(resume);
    assert!(matches!(
        wait(&mut met[0]),
        Err(SettleError::Refused { .. })
    ));
    assert!(
        wait(&mut met[1]).is_ok(),
        "the rest of the batch is not affected"
    );
    beside.release(NOW);
    assert_eq!(
        bed.balance(payer),
        (75, 0),
        "only the other unit was charged"
    );
    assert_eq!(bed.kinds(2), []);
    wait(flush(&*bed.store)).expect("everything is durable");
    assert_ledger_balances(&bed.store);

    // Also when the settlement is queued before the refusal is known.
    let resume = bed.stop_writer();
    let again = bed
        .ledger
        .hold(request(payer, 1, 20), |_| None)
        .now()
        .expect("it is alone")
        .expect("in memory");
    let settlement = again.settle(settle(20));
    drop(resume);
    assert!(matches!(wait(settlement), Err(SettleError::Refused { .. })));
    assert_eq!(bed.balance(payer), (75, 0));
    assert_ledger_balances(&bed.store);
}

#[test]
fn a_full_queue_refuses_holds_and_accepts_every_settlement() {
    let bed = bed(Options {
        queue_max: 8,
        ..options()
    });
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let early = bed
        .ledger
        .hold(request(payer, 100, 10), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    wait(flush(&*bed.store)).expect("the hold is durable");
    let resume = bed.stop_writer();
    let holds: Vec<_> = (0..6)
        .map(|number| {
            bed.ledger
                .hold(request(payer, number, 10), |_| None)
                .now()
                .expect("it is alone")
                .expect("the queue has capacity")
        })
        .collect();
    let refused = bed
        .ledger
        .hold(request(payer, 7, 10), |_| None)
        .now()
        .expect("it is alone");
    assert!(
        matches!(refused, Err(HoldError::Overloaded { waiting: 6 })),
        "three quarters of the queue are in use: {refused:?}"
    );
    let poor = bed
        .ledger
        .hold(request(payer, 7, 31), |_| None)
        .now()
        .expect("it is alone");
    assert!(
        matches!(poor, Err(HoldError::InsufficientCredit { .. })),
        "insufficient credit is reported before a full queue: {poor:?}"
    );
    assert_eq!(
        bed.balance(payer),
        (30, 70),
        "a refused hold reserves nothing"
    );
    let late = wait(async {
        let credit = credit_of(payer, 5, "late", 200);
        bed.ledger.grant(credit).await
    });
    assert!(
        matches!(late, Err(CreditError::Overloaded { .. })),
        "{late:?}"
    );

    let settlements: Vec<_> = holds
        .into_iter()
        .chain([early])
        .map(|hold| hold.settle(settle(4)))
        .collect();
    drop(resume);
    for settlement in settlements {
        wait(settlement).expect("every settlement is accepted and durable");
    }
    assert_eq!(bed.balance(payer), (72, 0));
    assert_eq!(bed.store.gauges().overloads.load(Relaxed), 2);
    assert_ledger_balances(&bed.store);
}

#[test]
fn a_reference_is_booked_once_by_concurrent_requests() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 0, 0);
    let other = account_with(&bed.store, &bed.ledger, 2, 0, 0);
    let applied = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for number in 0..16 {
            let (ledger, applied) = (&bed.ledger, &applied);
            scope.spawn(move || {
                let credited = wait(ledger.top_up(credit_of(payer, 50, "order 1", number)))
                    .expect("the reference is good");
                if !credited.repeated {
                    assert_eq!(credited.operation, operation(number));
                    applied.fetch_add(1, Relaxed);
                }
            });
        }
    });
    assert_eq!(applied.into_inner(), 1, "one of them was booked");
    assert_eq!(bed.balance(payer), (50, 0));

    let credit = |amount, number| credit_of(payer, amount, "order 1", number);
    let conflict = |result| {
        assert!(
            matches!(result, Err(CreditError::Conflict(_))),
            "{result:?}"
        )
    };
    conflict(wait(bed.ledger.top_up(credit(51, 20))));
    conflict(wait(bed.ledger.grant(credit(50, 21))));
    let elsewhere = Credit {
        account: other,
        ..credit(50, 22)
    };
    let credited = wait(bed.ledger.top_up(elsewhere)).expect("a reference is the account's own");
    assert!(!credited.repeated);
    assert_ledger_balances(&bed.store);
}

#[test]
fn a_removal_is_undone_when_its_reference_was_used() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 10);
    let correct = |amount, number| {
        wait(
            bed.ledger
                .correct(credit_of(payer, amount, "mistake", number)),
        )
    };
    assert!(matches!(
        correct(-111, 1),
        Err(CreditError::InsufficientCredit { .. })
    ));
    assert!(!correct(-30, 2).expect("there is enough").repeated);
    assert!(correct(-30, 3).expect("the same again").repeated);
    assert!(matches!(correct(-31, 4), Err(CreditError::Conflict(_))));
    assert_eq!(bed.balance(payer), (70, 0), "taken once");
    let expired = wait(bed.ledger.expire(credit_of(payer, -70, "2026", 5)));
    assert_eq!(expired.expect("there is enough").available, Micros::ZERO);
    // The account has no credit left, and needs none: the repeat gets the first answer.
    assert!(correct(-30, 6).expect("it is booked").repeated);
    assert!(matches!(correct(-31, 7), Err(CreditError::Conflict(_))));
    assert!(matches!(
        wait(bed.ledger.correct(credit_of(payer, -11, "new", 8))),
        Err(CreditError::InsufficientCredit { .. })
    ));
    assert_eq!(bed.balance(payer), (0, 0));
    assert_ledger_balances(&bed.store);
}

#[test]
fn an_account_and_its_first_credit_are_created_in_one_unit() {
    let bed = bed(options());
    let id = account(9);
    let made = NewAccount {
        id,
        class: Arc::from("pro"),
        cache_scope: CacheScope::Account,
        credit_limit: Micros::ZERO,
        created_at: NOW,
    };
    let credit = credit_of(id, 40, "welcome", 1);
    let unit = UnitOfWork::of_all(
        [
            Part::CreateAccount(Box::new(made)),
            credit.part(EntryKind::Grant).expect("a good credit"),
        ],
        Admission::Normal,
    );
    assert_eq!(bed.ledger.available(id), None);
    wait(commit(&*bed.store, unit.clone())).expect("the unit is durable");
    assert_eq!(bed.balance(id), (40, 0), "seen as soon as it is durable");
    assert!(
        bed.ledger
            .hold(request(id, 2, 40), |_| None)
            .now()
            .expect("it is alone")
            .is_ok()
    );

    wait(commit(&*bed.store, unit.clone())).expect_err("the account is there");
    // Refused after the write of its credit: neither the credit nor a trace of the credit in the seal may remain.
    let late = credit_of(id, 40, "again", 3)
        .part(EntryKind::Grant)
        .expect("a good credit");
    let unit = UnitOfWork::of_all(
        [late].into_iter().chain(unit.parts().iter().cloned()),
        Admission::Normal,
    );
    wait(commit(&*bed.store, unit)).expect_err("the account is there");
    wait(flush(&*bed.store)).expect("everything is durable");
    assert_eq!(bed.balance(id), (40, 0), "nothing of a refused unit counts");
    assert_ledger_balances(&bed.store);
}

/// An overflow detected by the writer would stop the store: one typing error of an operator would stop the gateway.
#[test]
fn credit_beyond_what_can_be_counted_is_refused_before_it_is_queued() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 0, 0);
    let billion = 1_000_000_000_000_000;
    let mut booked = 0;
    let refused = loop {
        let reference = booked.to_string();
        match wait(
            bed.ledger
                .top_up(credit_of(payer, billion, &reference, booked)),
        ) {
            Ok(_) => booked += 1,
            Err(error) => break error,
        }
    };
    assert!(
        matches!(refused, CreditError::TooMuch { .. }),
        "{refused:?}"
    );
    assert!(booked > 1000, "{booked} billions fit");
    let hold = bed
        .ledger
        .hold(request(payer, 9_000_000, 1), |_| None)
        .now()
        .expect("it is alone");
    assert!(hold.is_ok(), "the store continues");
}

/// A contradictory ledger must not serve requests, and must not make the start panic.
#[test]
fn a_start_on_an_inconsistent_ledger_names_the_account() {
    let folder = {
        let bed = bed(options());
        let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
        std::mem::forget(
            bed.ledger
                .hold(request(payer, 1, 60), |_| None)
                .now()
                .expect("it is alone")
                .expect("credit"),
        );
        wait(flush(&*bed.store)).expect("everything is durable");
        bed.store.close();
        bed.folder
    };
    database::edit(folder.path(), "UPDATE accounts SET held = 59");
    let error = Ledger::start(open(folder.path()), NOW).expect_err("the ledger contradicts itself");
    let message = error.to_string();
    assert!(
        message.contains(&account(1).to_string()) && message.contains("tollgate audit"),
        "{message}"
    );
}

#[test]
fn an_unknown_account_is_refused_holds_and_credits() {
    let bed = bed(options());
    let unknown = account(1);
    let hold = bed
        .ledger
        .hold(request(unknown, 1, 0), |_| None)
        .now()
        .expect("it is alone");
    assert!(matches!(hold, Err(HoldError::NoAccount { .. })));
    let grant = wait(bed.ledger.grant(credit_of(unknown, 1, "r", 2)));
    assert!(matches!(grant, Err(CreditError::NoAccount { .. })));
}

/// A request with a fallback amount is decided in one step: concurrent holds never exceed the balance, and no hold is refused while the
/// minimum is available.
#[test]
fn concurrent_holds_with_a_fallback_amount_reserve_the_whole_balance_and_no_more() {
    const BALANCE: i64 = 10_000;
    const WANTED: i64 = 600;
    const LEAST: i64 = 7;
    const THREADS: u64 = 8;
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, BALANCE, 0);
    let held = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (ledger, held) = (&bed.ledger, &held);
            scope.spawn(move || {
                for number in 0..40 {
                    let request = request(payer, thread << 32 | number, WANTED);
                    // A third of the remainder, but at least the minimum.
                    let less = |spendable: Micros| {
                        let amount = (spendable.get() / 3).max(LEAST);
                        (amount <= spendable.get()).then_some(Micros::new(amount))
                    };
                    let hold = match number % 2 {
                        0 => ledger.hold(request, less).now().expect("it is alone"),
                        _ => ledger
                            .hold(request.in_memory(), less)
                            .now()
                            .expect("it is alone"),
                    };
                    match hold {
                        Ok(hold) => held.lock().expect("no panic").push(hold),
                        Err(HoldError::InsufficientCredit { available, .. }) => {
                            assert!(available.get() < LEAST, "{available} would have done");
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let held = held.into_inner().expect("no panic");
    let sum: i64 = held.iter().map(|hold| hold.amount().get()).sum();
    assert_eq!(bed.balance(payer), (BALANCE - sum, sum));
    assert!(BALANCE - sum < LEAST, "{} are left", BALANCE - sum);
    for hold in held {
        hold.release(NOW);
    }
    wait(flush(&*bed.store)).expect("an open store");
    assert_eq!(bed.balance(payer), (BALANCE, 0));
    assert_ledger_balances(&bed.store);
}
