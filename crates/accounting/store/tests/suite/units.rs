//! Units of work, and what readers and observers see of them.

use std::sync::{Arc, Mutex, mpsc};

use tollgate_money::{CapPeriod, CredentialId, Micros, SpendingCap};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    AccountChange, AccountStatus, Admission, CacheScope, CommitError, CredentialKind, Effect,
    Endpoint, EntryKind, FailureKind, LoginKind, NewCredential, Observer, Part, Receipt, Refusal,
    SubmitError, UnitOfWork, UsageFlags, UsageRecord, flush,
};

use super::support::*;

const DAY: i64 = 86_400_000_000;

pub(super) fn credential(number: u8, account_number: u8) -> NewCredential {
    NewCredential {
        id: CredentialId::from_bytes([number; 16]),
        hash: [number; 32],
        kind: CredentialKind::ApiKey,
        account: account(account_number),
        client_id: None,
        grant_id: None,
        resource: 1,
        scopes: 0x8000_0001,
        label: Some(Arc::from("main")),
        hint: Some(Arc::from("7Hq2...o8FL")),
        models: Some(Arc::from([Arc::from("small"), Arc::from("large")])),
        spending_cap: Some(SpendingCap {
            max: Micros::new(9),
            period: CapPeriod::Month,
        }),
        created_at: time(i64::from(number)),
        expires_at: Some(time(100)),
    }
}

fn grant(number: u8, account_number: u8, amount: i64) -> Part {
    Part::Ledger(LedgerPart::Credit {
        operation: operation(number),
        account: account(account_number),
        kind: EntryKind::Grant,
        amount: Micros::new(amount),
        reference: Arc::from(format!("grant {number}")),
        at: time(10),
    })
}

fn hold(number: u8, account_number: u8, amount: i64) -> Part {
    Part::Ledger(LedgerPart::Hold {
        operation: operation(number),
        account: account(account_number),
        amount: Micros::new(amount),
        price_version: Some(3),
        at: time(20),
        expires_at: time(30),
    })
}

fn settle(number: u8, account_number: u8, held: i64, charged: i64, at: i64) -> Part {
    Part::Ledger(LedgerPart::Settle {
        operation: operation(number),
        account: account(account_number),
        held: Micros::new(held),
        charged: Micros::new(charged),
        written_off: Micros::new(1),
        price_version: Some(3),
        usage: usage(),
        at: time(at),
    })
}

fn usage() -> UsageRecord {
    UsageRecord {
        credential: Some(CredentialId::from_bytes([4; 16])),
        endpoint: Endpoint::Completions,
        model: Arc::from("small"),
        upstream: Some(Arc::from("provider")),
        prompt_tokens: 3,
        completion_tokens: 5,
        flags: UsageFlags::ESTIMATED | UsageFlags::STREAMED,
        http_status: 200,
        ttfb_us: Some(10),
        total_us: None,
    }
}

#[test]
fn a_refused_unit_writes_nothing_and_does_not_affect_its_batch() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(
        &store,
        [new_account(1), login(1, 1, "a@b"), grant(1, 1, 100)],
    )
    .expect("all of it");
    let key = |number| Part::InsertCredential(Box::new(credential(number, 1)));
    write(&store, [key(1)]).expect("a key");
    //   parts, the last of which is refused            why
    for (round, (parts, refusal)) in [
        (
            vec![new_account(2), new_account(1)],
            Refusal::AccountExists(account(1)),
        ),
        (
            vec![new_account(2), login(2, 2, "a@b")],
            Refusal::LoginTaken {
                address: Arc::from("a@b"),
            },
        ),
        (
            vec![new_account(2), login(2, 9, "c@d")],
            Refusal::NoAccount(account(9)),
        ),
        (
            vec![new_account(2), grant(2, 2, 5), key(1)],
            Refusal::CredentialExists(CredentialId::from_bytes([1; 16])),
        ),
        (
            vec![new_account(2), grant(2, 9, 5)],
            Refusal::NoAccount(account(9)),
        ),
        (
            vec![new_account(2), grant(2, 2, 5), settle(8, 2, 5, 5, 20)],
            Refusal::NoHold(operation(8)),
        ),
        (
            vec![new_account(2), hold(1, 2, 0)],
            Refusal::OperationExists(operation(1)),
        ),
        (
            vec![
                new_account(2),
                Part::RevokeCredential {
                    id: CredentialId::from_bytes([9; 16]),
                    at: time(1),
                },
            ],
            Refusal::NoCredential(CredentialId::from_bytes([9; 16])),
        ),
    ]
    .into_iter()
    .enumerate()
    {
        // In one commit with two that are good.
        let neighbours = [100 + 2 * round as u8, 101 + 2 * round as u8];
        let (sender, answers) = mpsc::channel();
        let resume = stop_writer(&store);
        let [before, after] = neighbours.map(|number| vec![hold(number, 1, 1)]);
        for (index, unit) in [before, parts, after].into_iter().enumerate() {
            let sender = sender.clone();
            let unit = UnitOfWork::of_all(unit, Admission::Always);
            let done =
                Box::new(move |answer| sender.send((index, answer)).expect("the test waits"));
            store.submit(unit, done).expect("the queue is open");
        }
        drop(resume);
        let answers: Vec<_> = answers.iter().take(3).collect();
        assert!(answers[0].1.is_ok() && answers[2].1.is_ok(), "{answers:?}");
        assert!(
            matches!(&answers[1].1, Err(CommitError::Refused(seen)) if *seen == refusal),
            "{refusal}: {answers:?}"
        );
        assert_eq!(
            store.account(account(2)).expect("a read"),
            None,
            "{refusal}: the unit left an account"
        );
        let rows = store.operation(operation(2)).expect("a read");
        assert!(rows.entries.is_empty(), "{refusal}: the unit left an entry");
        for number in neighbours {
            let release = LedgerPart::Release {
                operation: operation(number),
                account: account(1),
                held: Micros::new(1),
                at: time(21),
            };
            write(&store, [Part::Ledger(release)]).expect("the neighbour is there");
        }
    }
}

/// The store itself refuses every second hold, second end, and end beside an end, in any distribution over commits.
#[test]
fn an_operation_has_one_hold_and_one_end() {
    let release = |number| {
        Part::Ledger(LedgerPart::Release {
            operation: operation(number),
            account: account(1),
            held: Micros::new(10),
            at: time(21),
        })
    };
    let end = |number| settle(number, 1, 10, 4, 20);
    for together in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let store = open(folder.path());
        write(&store, [new_account(1), grant(1, 1, 1000)]).expect("all of it");
        let (sender, answers) = mpsc::channel();
        let resume = together.then(|| stop_writer(&store));
        let sequences = [
            [hold(10, 1, 10), end(10), end(10)],
            [hold(11, 1, 10), end(11), release(11)],
            [hold(12, 1, 10), release(12), end(12)],
            [hold(13, 1, 10), release(13), release(13)],
            [hold(14, 1, 10), hold(14, 1, 10), end(14)],
        ];
        let count = sequences.len() * 3;
        for (index, part) in sequences.into_iter().flatten().enumerate() {
            let sender = sender.clone();
            let done = Box::new(move |answer: Result<Receipt, _>| {
                sender
                    .send((index, answer.is_ok()))
                    .expect("the test waits");
            });
            store
                .submit(UnitOfWork::of(part, Admission::Always), done)
                .expect("the queue is open");
            if !together {
                wait(flush(&*store)).expect("a commit of its own");
            }
        }
        drop(resume);
        let mut accepted: Vec<_> = answers.iter().take(count).collect();
        accepted.sort_unstable();
        let accepted: Vec<bool> = accepted.into_iter().map(|(_, accepted)| accepted).collect();
        let mut expected = [true, true, false].repeat(4);
        expected.extend([true, false, true]);
        assert_eq!(accepted, expected, "together: {together}");
        let row = store
            .account(account(1))
            .expect("a read")
            .expect("an account");
        assert_eq!((row.available.get(), row.held.get()), (1000 - 3 * 4, 0));
    }
}

#[test]
fn an_acknowledged_unit_is_on_the_disk() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1), grant(1, 1, 1000)]).expect("all of it");
    let reader = super::engine::open_read(folder.path());
    let (sender, answers) = mpsc::channel();
    for number in 10..60 {
        let (sender, reader) = (sender.clone(), Arc::clone(&reader));
        let done = Box::new(move |_| {
            let rows = reader.operation(operation(number)).expect("a read");
            sender.send(rows.hold.is_some()).expect("the test waits");
        });
        store
            .submit(UnitOfWork::of(hold(number, 1, 1), Admission::Normal), done)
            .expect("the queue has capacity");
    }
    assert!(
        answers.iter().take(50).all(|there| there),
        "acknowledged before it was committed"
    );
}

#[test]
fn observers_see_a_part_before_its_caller_is_notified_and_no_refused_part() {
    struct Log(Mutex<Vec<(Part, Effect)>>);
    impl Observer for Log {
        fn committed(&self, part: &Part, effect: Effect) {
            self.0
                .lock()
                .expect("no panic")
                .push((part.clone(), effect));
        }
    }
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let log = Arc::new(Log(Mutex::default()));
    store.observe(Arc::clone(&log) as Arc<dyn Observer>);
    let take = || std::mem::take(&mut *log.0.lock().expect("no panic"));

    write(&store, [new_account(1), grant(1, 1, 5)]).expect("all of it");
    assert_eq!(
        take(),
        [
            (new_account(1), Effect::Applied),
            (grant(1, 1, 5), Effect::Applied)
        ]
    );
    write(&store, [new_account(2), new_account(1)]).expect_err("it is there");
    assert_eq!(take(), []);
    write(&store, [hold(3, 1, 1)]).expect("a hold");
    assert_eq!(take(), [], "the ledger knows its own holds");

    let again = Part::Ledger(LedgerPart::Credit {
        operation: operation(2),
        account: account(1),
        kind: EntryKind::Grant,
        amount: Micros::new(5),
        reference: Arc::from("grant 1"),
        at: time(11),
    });
    let receipt = write(&store, [again.clone()]).expect("the same reference");
    assert_eq!(receipt.repeated, Some(operation(1)));
    let effect = Effect::Repeated {
        operation: operation(1),
    };
    assert_eq!(take(), [(again, effect)]);
}

#[test]
fn credentials_and_accounts_come_back_as_they_were_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    let full = credential(1, 1);
    let bare = NewCredential {
        models: None,
        spending_cap: None,
        expires_at: None,
        label: None,
        hint: None,
        client_id: Some(Arc::from("client")),
        grant_id: Some([8; 16]),
        ..credential(2, 1)
    };
    let no_model = NewCredential {
        models: Some(Arc::from([])),
        ..credential(3, 1)
    };
    let all = [full, bare, no_model];
    write(&store, [new_account(1), login(1, 1, "a@b")]).expect("an account");
    for credential in &all {
        write(
            &store,
            [Part::InsertCredential(Box::new(credential.clone()))],
        )
        .expect("a key");
    }
    let stored = store.account_credentials(account(1)).expect("a read");
    let made: Vec<_> = stored.iter().map(|row| row.made.clone()).collect();
    assert_eq!(made, all);
    let broken = NewCredential {
        models: Some(Arc::from([Arc::from("a\nb")])),
        ..credential(5, 1)
    };
    let refused = write(&store, [Part::InsertCredential(Box::new(broken))]);
    assert!(matches!(refused, Err(Refusal::Invalid(_))));

    let good_at = |now| {
        let mut ids = Vec::new();
        store
            .credentials(time(now), &mut |row| ids.push(row.made.id.as_bytes()[0]))
            .expect("a read");
        ids
    };
    assert_eq!(good_at(99), [1, 2, 3]);
    assert_eq!(good_at(100), [2], "two have expired");
    let revoke = |at| Part::RevokeCredential {
        id: CredentialId::from_bytes([2; 16]),
        at: time(at),
    };
    write(&store, [revoke(50)]).expect("it is revoked");
    write(&store, [revoke(60)]).expect("again is no error");
    assert_eq!(good_at(99), [1, 3]);
    let row = store
        .credential_by_hash(&[2; 32])
        .expect("a read")
        .expect("a row");
    assert_eq!(row.revoked_at, Some(time(50)), "the first time counts");

    let change = AccountChange {
        id: account(1),
        status: Some(AccountStatus::Suspended),
        class: Some(Arc::from("pro")),
        cache_scope: None,
        at: time(70),
    };
    write(&store, [Part::ChangeAccount(Box::new(change))]).expect("it is changed");
    let row = store
        .account_by_login(LoginKind::Email, "a@b")
        .expect("a read")
        .expect("an account");
    assert_eq!(row.status, AccountStatus::Suspended);
    assert_eq!(
        (&*row.class, row.cache_scope, row.updated_at),
        ("pro", CacheScope::Shared, time(70))
    );
    let none = store
        .account_by_login(LoginKind::Phone, "a@b")
        .expect("a read");
    assert_eq!(none, None, "an e-mail address is no phone number");
    assert_eq!(store.logins(account(1)).expect("a read").len(), 1);
}

#[test]
fn pages_of_accounts_are_contiguous() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, (1..=7).map(new_account)).expect("accounts");
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let page = store.accounts_after(after, 3).expect("a read");
        let Some(last) = page.last() else { break };
        after = Some(last.id);
        seen.extend(page.iter().map(|row| row.id.as_bytes()[0]));
    }
    assert_eq!(seen, [1, 2, 3, 4, 5, 6, 7]);
}

#[test]
fn usage_adds_up_by_day_and_model_and_lines_list_balance_changes() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(
        &store,
        [
            new_account(1),
            new_account(2),
            grant(1, 1, 1000),
            grant(2, 2, 1000),
        ],
    )
    .expect("all of it");
    for (number, account, at) in [
        (10, 1, DAY),
        (11, 1, 2 * DAY - 1),
        (12, 1, 2 * DAY),
        (13, 2, DAY),
    ] {
        write(&store, [hold(number, account, 10)]).expect("a hold");
        write(&store, [settle(number, account, 10, 4, at)]).expect("a settlement");
    }
    write(&store, [hold(20, 1, 10)]).expect("an open hold");
    let totals = store
        .usage_totals(account(1), time(DAY), time(3 * DAY))
        .expect("a read");
    let seen: Vec<_> = totals
        .iter()
        .map(|total| {
            (
                total.day_at.as_micros(),
                total.requests,
                total.prompt_tokens,
                total.cost.get(),
                total.written_off.get(),
            )
        })
        .collect();
    assert_eq!(seen, [(DAY, 2, 6, 8, 2), (2 * DAY, 1, 3, 4, 1)]);
    assert_eq!(
        store
            .usage_totals(account(1), time(DAY), time(2 * DAY))
            .expect("a read")
            .len(),
        1
    );

    // An upstream may report anything; what it reported must not block the other units.
    for number in [30, 31] {
        let absurd = LedgerPart::Charge {
            operation: operation(number),
            account: account(2),
            charged: Micros::ZERO,
            written_off: Micros::MAX,
            price_version: None,
            usage: UsageRecord {
                prompt_tokens: u64::MAX,
                ..usage()
            },
            at: time(9 * DAY),
        };
        write(&store, [Part::Ledger(absurd)]).expect("it is written");
    }
    let totals = store
        .usage_totals(account(2), time(9 * DAY), time(10 * DAY))
        .expect("a read");
    assert_eq!(
        (totals[0].requests, totals[0].written_off),
        (2, Micros::MAX)
    );

    let lines = store.lines(account(1), time(i64::MAX), 10).expect("a read");
    let seen: Vec<_> = lines
        .iter()
        .map(|line| {
            (
                line.entry.kind,
                line.entry.operation.as_bytes()[0],
                line.usage.is_some(),
            )
        })
        .collect();
    use EntryKind::{Grant, Settle};
    assert_eq!(
        seen,
        [
            (Settle, 12, true),
            (Settle, 11, true),
            (Settle, 10, true),
            (Grant, 1, false)
        ]
    );
    assert_eq!(
        store.lines(account(1), time(2 * DAY), 1).expect("a read")[0]
            .entry
            .operation,
        operation(11)
    );
    let row = lines[0].usage.as_ref().expect("what was used");
    assert_eq!(row.usage, usage(), "as it was stored");

    let rows = store.operation(operation(20)).expect("a read");
    let hold = rows.hold.expect("it is open");
    assert_eq!(
        (hold.amount.get(), hold.expires_at.as_micros(), hold.epoch),
        (10, 30, store.epoch())
    );
    assert_eq!(rows.entries[0].price_version, Some(3));
}

#[test]
fn a_closed_store_has_committed_its_queue_and_accepts_no_more_units() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open(folder.path());
    write(&store, [new_account(1), grant(1, 1, 1000)]).expect("all of it");
    let resume = stop_writer(&store);
    let (sender, answers) = mpsc::channel();
    for number in 10..20 {
        let sender = sender.clone();
        let done = Box::new(move |answer: Result<_, _>| {
            sender.send(answer.is_ok()).expect("the test waits")
        });
        store
            .submit(UnitOfWork::of(hold(number, 1, 1), Admission::Normal), done)
            .expect("the queue has capacity");
    }
    std::thread::scope(|scope| {
        let closer = scope.spawn(|| store.close());
        while store.failure().is_none() {
            std::thread::yield_now();
        }
        let late = store.submit(UnitOfWork::of_all([], Admission::Always), Box::new(|_| {}));
        assert!(
            matches!(&late, Err(SubmitError::Stopped(failure)) if failure.kind == FailureKind::Closed),
            "{late:?}"
        );
        drop(resume);
        closer.join().expect("it closes");
    });
    assert_eq!(answers.try_iter().filter(|kept| *kept).count(), 10);
    store.close();
    let store = open(folder.path());
    let mut holds = 0;
    store.open_holds(&mut |_| holds += 1).expect("a read");
    assert_eq!(holds, 10);
}
