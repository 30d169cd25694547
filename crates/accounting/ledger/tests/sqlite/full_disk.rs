//! A full or failed disk, and the lock of the file.

use std::sync::{Arc, Mutex};

use tollgate_ledger::{HoldError, SettleError};
use tollgate_money::Micros;
use tollgate_store::FailureKind;
use tollgate_store::sqlite::{self, Options};

use super::suite::{bed, open, options};
use crate::support::{
    account_with, assert_ledger_balances, balance_of, request, settle, start, wait,
};

/// A full disk stops the store: no result may be acknowledged from then on, and the process has to be notified.
#[test]
fn a_full_disk_stops_the_store_and_keeps_what_was_acknowledged() {
    let failures = Arc::new(Mutex::new(Vec::new()));
    let recorded = Arc::clone(&failures);
    let bed = bed(Options {
        pages_max: Some(120),
        on_failure: Box::new(move |failure| {
            recorded.lock().expect("no panic").push(failure.clone());
        }),
        ..options()
    });
    let payer = account_with(&bed.store, &bed.ledger, 1, 1_000_000, 0);
    let mut durable = 0;
    loop {
        assert!(durable < 100_000, "120 pages never fill up");
        let hold = match bed
            .ledger
            .hold(request(payer, durable, 10), |_| None)
            .now()
            .expect("it is alone")
        {
            Ok(hold) => hold,
            Err(error) => panic!("a hold was refused before a settlement failed: {error}"),
        };
        match wait(hold.settle(settle(1))) {
            Ok(_) => durable += 1,
            Err(SettleError::Store { source, .. }) => {
                assert_eq!(source.kind, FailureKind::DiskFull);
                break;
            }
            Err(error) => panic!("{error}"),
        }
    }
    let after = bed
        .ledger
        .hold(request(payer, durable + 1, 10), |_| None)
        .now()
        .expect("it is alone");
    assert!(matches!(after, Err(HoldError::Store { .. })), "{after:?}");
    assert!(bed.store.failure().is_some());
    bed.store.close();
    let failures = failures.lock().expect("no panic");
    assert_eq!(failures.len(), 1, "reported once: {failures:?}");
    assert!(
        failures[0].message.contains("no space is left"),
        "the message says what to do: {}",
        failures[0]
    );

    let store = open(bed.folder.path());
    let ledger = start(&store);
    let balance = balance_of(&ledger, payer);
    assert_eq!(balance.held, Micros::ZERO);
    assert_eq!(
        balance.available,
        Micros::new(1_000_000 - durable as i64),
        "every acknowledged settlement is there, and no other"
    );
    assert_ledger_balances(&store);
}

/// The disk may fail during the hold, before its settlement. The settlement reports the failure, whether or not a caller awaited the hold.
#[test]
fn a_settlement_reports_why_the_store_refused_its_hold() {
    let bed = bed(Options {
        pages_max: Some(120),
        ..options()
    });
    let payer = account_with(&bed.store, &bed.ledger, 1, 1_000_000, 0);
    let mut kept = Vec::new();
    let (mut asked, unasked) = loop {
        let number = kept.len() as u64;
        assert!(number < 100_000, "120 pages never fill up");
        let resume = bed.stop_writer();
        let unasked = bed
            .ledger
            .hold(request(payer, number, 1), |_| None)
            .now()
            .expect("it is alone")
            .expect("credit");
        let mut asked = bed
            .ledger
            .hold(request(payer, number + 1, 1), |_| None)
            .now()
            .expect("it is alone")
            .expect("credit");
        drop(resume);
        // Both holds are in one commit. The units of a commit are acknowledged in their order.
        match wait(asked.durable()) {
            Ok(()) => kept.extend([unasked, asked]),
            Err(_) => break (asked, unasked),
        }
    };
    assert!(matches!(
        wait(asked.durable()),
        Err(HoldError::Store { .. })
    ));
    for hold in [unasked, asked] {
        let refused = wait(hold.settle(settle(1)));
        assert!(
            matches!(&refused, Err(SettleError::Store { source, .. }) if source.kind == FailureKind::DiskFull),
            "{refused:?}"
        );
    }
}

#[test]
fn a_ledger_dropped_with_its_store_stops_the_writer() {
    let bed = bed(options());
    let payer = account_with(&bed.store, &bed.ledger, 1, 100, 0);
    let hold = bed
        .ledger
        .hold(request(payer, 1, 10), |_| None)
        .now()
        .expect("it is alone")
        .expect("credit");
    let settlement = hold.settle(settle(3));
    let path = bed.folder.path().to_owned();
    let keep = bed.folder;
    drop(bed.ledger);
    drop(bed.store);
    // The writer may have been the last owner. In any case the queue is durable before the release of the lock.
    let settled = wait(settlement);
    assert!(settled.is_ok(), "{settled:?}");
    let store = loop {
        match sqlite::open(&path.join("t.db"), options()) {
            Ok(store) => break store,
            Err(tollgate_store::OpenError::InUse { .. }) => std::thread::yield_now(),
            Err(error) => panic!("{error}"),
        }
    };
    assert_ledger_balances(&store);
    drop(keep);
}
