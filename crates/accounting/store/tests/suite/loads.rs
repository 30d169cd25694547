//! Accounts that a ledger loads, and the sum over all.

use std::sync::{Arc, mpsc};

use tollgate_money::{AccountId, Micros, OperationId};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{Admission, EntryKind, LoadedAccount, Part, Store, UnitOfWork};

use super::support::*;

fn account_at(number: u8) -> AccountId {
    AccountId::from_parts(7, [number; 10])
}

fn credit(number: u8, kind: EntryKind, amount: i64) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: OperationId::from_parts(9, [number; 10]),
        account: account_at(number),
        kind,
        amount: Micros::new(amount),
        reference: Arc::from("first"),
        at: time(10),
    })
}

fn hold(number: u8, amount: i64) -> Part {
    Part::Ledger(LedgerPart::Hold {
        operation: operation(number),
        account: account_at(number),
        amount: Micros::new(amount),
        price_version: Some(3),
        at: time(20),
        expires_at: time(30),
    })
}

/// Queues the loads of accounts in one commit, and a unit behind them.
fn load_all(
    store: &Arc<dyn Store>,
    accounts: &[AccountId],
    behind: Part,
) -> Vec<Option<LoadedAccount>> {
    let resume = stop_writer(store);
    let (sender, loaded) = mpsc::channel();
    for account in accounts {
        let sender = sender.clone();
        let unit = UnitOfWork::of(Part::Load(*account), Admission::Normal);
        let done = Box::new(move |receipt: Result<tollgate_store::Receipt, _>| {
            let receipt = receipt.expect("a load is not refused");
            sender.send(receipt.loaded).expect("the test waits");
        });
        store.submit(unit, done).expect("it is queued");
    }
    let unit = UnitOfWork::of(behind, Admission::Normal);
    let done = Box::new(|_: Result<_, _>| ());
    store.submit(unit, done).expect("it is queued");
    drop((resume, sender));
    loaded.iter().collect()
}

#[test]
fn a_load_has_all_that_is_committed_with_it_and_many_of_one_commit_are_each_answered() {
    const COUNT: u8 = 140;
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), (0..COUNT).map(account_at));
    for number in 0..COUNT {
        let kind = match number % 2 {
            0 => EntryKind::Grant,
            _ => EntryKind::TopUp,
        };
        write(&store, [credit(number, kind, 100 + i64::from(number))]).expect("credit");
    }
    write(&store, [hold(3, 40)]).expect("a hold");
    // What the start of the next run posts, and what it has not posted.
    store.close();
    let store = open(folder.path());
    write(&store, [hold(4, 50)]).expect("a hold");
    let unknown = AccountId::from_parts(8, [1; 10]);
    let mut wanted: Vec<AccountId> = (0..COUNT).rev().map(account_at).collect();
    wanted.extend([account_at(5), unknown]);
    let loaded = load_all(&store, &wanted, hold(6, 60));
    for (account, loaded) in wanted.iter().zip(&loaded) {
        let Some(number) = (0..COUNT).find(|number| account_at(*number) == *account) else {
            assert_eq!(*loaded, None, "there is none");
            continue;
        };
        let held = match number {
            3 => 40,
            4 => 50,
            6 => 60,
            _ => 0,
        };
        let expected = LoadedAccount {
            available: Micros::new(100 + i64::from(number) - held),
            held: Micros::new(held),
            has_paid: number % 2 == 1,
            ..LoadedAccount::default()
        };
        assert_eq!(*loaded, Some(expected), "account {number}");
    }
    assert_eq!(loaded.len(), wanted.len());
}

#[test]
fn what_is_owed_is_the_sum_of_what_accounts_have_posted_or_not() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), (0..20).map(account_at));
    assert_eq!(store.owed().expect("a read"), Micros::ZERO);
    for number in 0..10 {
        write(&store, [credit(number, EntryKind::Grant, 100)]).expect("credit");
    }
    assert_eq!(store.owed().expect("a read"), Micros::new(1_000));
    store.close();
    let store = open(folder.path());
    assert_eq!(store.owed().expect("a read"), Micros::new(1_000), "posted");
    write(&store, [hold(3, 40)]).expect("what is held is owed");
    for number in 10..12 {
        write(&store, [credit(number, EntryKind::Grant, 7)]).expect("credit");
    }
    assert_eq!(store.owed().expect("a read"), Micros::new(1_014));
}
