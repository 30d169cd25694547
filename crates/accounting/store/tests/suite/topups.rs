//! Credit purchases, their notifications, and statements.

use std::sync::Arc;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, CredentialId, Micros, OperationId, TopUpId, Usd};
use tollgate_store::entries::LedgerPart;
use tollgate_store::{
    Endpoint, EntryKind, Part, Refusal, TopUpPart, TopUpRow, TopUpState, TopUpSubject, UsageFlags,
    UsageRecord,
};

use super::support::{open_with, time, write};

const DAY: i64 = 86_400_000_000;

const ACCOUNT: AccountId = AccountId::from_bytes([1; 16]);

fn top_up(number: u8) -> TopUpRow {
    TopUpRow {
        id: TopUpId::from_bytes([number; 16]),
        account: ACCOUNT,
        state: TopUpState::Created,
        version: 0,
        price: Usd::from_cents(2_000),
        credits: Micros::new(2_000_000_000),
        create_key: Arc::from("create"),
        order: None,
        approve_url: None,
        capture_key: None,
        capture: None,
        declines: 0,
        returned: Usd::ZERO,
        taken_back: Micros::ZERO,
        owed: Micros::ZERO,
        note: None,
        attempts: 0,
        next_attempt_at: Some(time(10)),
        notifications: 0,
        acknowledged: 0,
        created_at: time(i64::from(number)),
        updated_at: time(i64::from(number)),
    }
}

fn part(part: TopUpPart) -> Part {
    Part::TopUp(Box::new(part))
}

#[test]
fn a_purchase_is_changed_with_optimistic_locking() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let begun = top_up(1);
    write(&store, [part(TopUpPart::Begin(begun.clone()))]).expect("begins");
    assert_eq!(
        write(&store, [part(TopUpPart::Begin(begun.clone()))]),
        Err(Refusal::TopUpExists(begun.id)),
        "one purchase has one row"
    );
    let open = TopUpRow {
        state: TopUpState::Open,
        version: 1,
        order: Some(Arc::from("5O190127TN364715T")),
        approve_url: Some(Arc::from(
            "https://www.paypal.com/checkoutnow?token=5O190127TN364715T",
        )),
        note: Some(Arc::from("a note")),
        next_attempt_at: None,
        declines: 2,
        ..begun.clone()
    };
    write(&store, [part(TopUpPart::Change(open.clone()))]).expect("changes");
    assert_eq!(
        write(&store, [part(TopUpPart::Change(open.clone()))]),
        Err(Refusal::TopUpConflict(open.id)),
        "the second of two who saw version 0"
    );
    assert_eq!(store.top_up(open.id).expect("readable"), Some(open.clone()));
    assert_eq!(
        store
            .top_up(TopUpId::from_bytes([9; 16]))
            .expect("readable"),
        None
    );
    let other = TopUpRow {
        version: 1,
        order: open.order,
        ..top_up(2)
    };
    write(&store, [part(TopUpPart::Begin(top_up(2)))]).expect("begins");
    assert_eq!(
        write(&store, [part(TopUpPart::Change(other.clone()))]),
        Err(Refusal::TopUpExists(other.id)),
        "an order belongs to one purchase"
    );
}

#[test]
fn a_notified_purchase_is_due_until_acknowledged_and_no_notification_is_lost() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let row = TopUpRow {
        next_attempt_at: Some(time(100)),
        ..top_up(1)
    };
    write(&store, [part(TopUpPart::Begin(row.clone()))]).expect("begins");
    let due = |now| store.top_ups_due(time(now), 10).expect("readable");
    assert_eq!(due(99).len(), 0, "its time has not come");
    assert_eq!(due(100).len(), 1);
    let ring = part(TopUpPart::Notify(TopUpSubject::TopUp(row.id)));
    write(&store, [ring.clone()]).expect("rings");
    let seen = due(0).pop().expect("news is due at once");
    assert_eq!((seen.notifications, seen.acknowledged), (1, 0));
    // A notification arrives while the previous one is being reconciled.
    write(&store, [ring]).expect("rings");
    let acknowledged = TopUpRow {
        version: 1,
        order: Some(Arc::from("ORDER")),
        next_attempt_at: None,
        acknowledged: seen.notifications,
        ..seen
    };
    write(&store, [part(TopUpPart::Change(acknowledged.clone()))]).expect("changes");
    assert_eq!(
        due(0).len(),
        1,
        "the second notification is not acknowledged yet"
    );
    let quiet = TopUpRow {
        version: 2,
        acknowledged: 2,
        capture: Some(Arc::from("CAPTURE")),
        ..acknowledged
    };
    write(&store, [part(TopUpPart::Change(quiet))]).expect("changes");
    assert_eq!(due(i64::MAX).len(), 0);
    write(
        &store,
        [part(TopUpPart::Notify(TopUpSubject::Order(Arc::from(
            "ORDER",
        ))))],
    )
    .expect("rings");
    assert_eq!(due(0).len(), 1, "an order leads to its purchase");
    write(
        &store,
        [part(TopUpPart::Notify(TopUpSubject::Order(Arc::from(
            "OTHER",
        ))))],
    )
    .expect("an unknown order is no error");
    let rings = || {
        store
            .top_up(row.id)
            .expect("readable")
            .expect("stored")
            .notifications
    };
    for (capture, rung) in [("OTHER", 3), ("CAPTURE", 4)] {
        let ring = part(TopUpPart::Notify(TopUpSubject::Capture(Arc::from(capture))));
        write(&store, [ring]).expect("an unknown payment is no error");
        assert_eq!(rings(), rung, "a payment leads to its purchase");
    }
}

#[test]
fn a_duplicate_notification_refuses_its_whole_unit() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    write(&store, [part(TopUpPart::Begin(top_up(1)))]).expect("begins");
    let notice = |at| {
        [
            part(TopUpPart::Notice {
                id: Arc::from("WH-1"),
                kind: Arc::from("CHECKOUT.ORDER.APPROVED"),
                at: time(at),
            }),
            part(TopUpPart::Notify(TopUpSubject::TopUp(TopUpId::from_bytes(
                [1; 16],
            )))),
        ]
    };
    write(&store, notice(5)).expect("the first");
    assert_eq!(
        write(&store, notice(6)),
        Err(Refusal::DuplicateNotification)
    );
    let rings = || {
        let row = store.top_up(TopUpId::from_bytes([1; 16]));
        row.expect("readable").expect("stored").notifications
    };
    assert_eq!(rings(), 1, "the second notice rings nothing");
    let forget = |before| {
        let before = time(before);
        part(TopUpPart::ForgetNotices { before, limit: 10 })
    };
    write(&store, [forget(5)]).expect("forgets");
    assert_eq!(
        write(&store, notice(6)),
        Err(Refusal::DuplicateNotification),
        "too young"
    );
    write(&store, [forget(6)]).expect("forgets");
    write(&store, notice(7)).expect("unknown again");
    assert_eq!(rings(), 2);
}

#[test]
fn purchases_of_an_account_are_listed_newest_first() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    for number in 1..=5 {
        write(&store, [part(TopUpPart::Begin(top_up(number)))]).expect("begins");
    }
    let numbers = |before, limit| -> Vec<i64> {
        let rows = store.top_ups_of(ACCOUNT, time(before), limit);
        let rows = rows.expect("readable").into_iter();
        rows.map(|row| row.created_at.as_micros()).collect()
    };
    assert_eq!(numbers(i64::MAX, 3), [5, 4, 3]);
    assert_eq!(numbers(3, 3), [2, 1]);
    assert_eq!(store.top_ups_open().expect("readable"), 5);
}

#[test]
fn a_statement_groups_by_day_and_key_and_adds_up() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ACCOUNT]);
    let credit = |number: u8, amount, at| {
        Part::Ledger(LedgerPart::Credit {
            operation: OperationId::from_bytes([number; 16]),
            account: ACCOUNT,
            kind: EntryKind::TopUp,
            amount: Micros::new(amount),
            reference: Arc::from(format!("r{number}")),
            at: time(at),
        })
    };
    let charge = |number: u8, key: Option<u8>, amount, at| {
        Part::Ledger(LedgerPart::Charge {
            operation: OperationId::from_bytes([number; 16]),
            account: ACCOUNT,
            charged: Micros::new(amount),
            written_off: Micros::ZERO,
            price_version: None,
            usage: UsageRecord {
                credential: key.map(|key| CredentialId::from_bytes([key; 16])),
                endpoint: Endpoint::Chat,
                model: Arc::from("small"),
                upstream: None,
                prompt_tokens: 1,
                completion_tokens: 1,
                flags: UsageFlags::NONE,
                http_status: 200,
                ttfb_us: None,
                total_us: None,
            },
            at: time(at),
        })
    };
    for one in [
        credit(1, 1_000, DAY),
        charge(2, Some(7), 10, DAY + 1),
        charge(3, Some(7), 20, DAY + 2),
        charge(4, Some(8), 30, DAY + 3),
        charge(5, Some(8), 0, DAY + 4),
        credit(6, 500, 2 * DAY),
        charge(7, None, 40, 2 * DAY + 1),
    ] {
        write(&store, [one]).expect("it is booked");
    }
    let read = |from, to| {
        let statement = store.statement(ACCOUNT, from, to).expect("readable");
        statement.expect("an account")
    };
    let first = read(time(DAY), time(2 * DAY));
    assert_eq!(first.available, Micros::new(1_400));
    assert_eq!(first.changed_since, Micros::new(500 - 40), "the second day");
    let folded: Vec<_> = first
        .spending
        .iter()
        .map(|day| {
            (
                day.last_at.as_micros(),
                day.credential,
                day.requests,
                day.cost.get(),
            )
        })
        .collect();
    let key = |number| Some(CredentialId::from_bytes([number; 16]));
    assert_eq!(folded, [(DAY + 3, key(8), 1, 30), (DAY + 2, key(7), 2, 30)]);
    assert_eq!(first.credits.len(), 1);
    assert_eq!(first.older, None, "nothing happened before");
    let second = read(time(2 * DAY), time(3 * DAY));
    assert_eq!(second.changed_since, Micros::ZERO);
    assert_eq!(
        second.older,
        Some(time(DAY + 3)),
        "the last charge that cost anything"
    );
    let unknown = AccountId::from_bytes([9; 16]);
    assert_eq!(
        store
            .statement(unknown, Timestamp::UNIX_EPOCH, time(DAY))
            .expect("readable"),
        None
    );
}
