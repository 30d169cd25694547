//! Signed transfers: one per account at a time, and none claimed by two requests.

use std::sync::Arc;
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_money::{AccountId, SubscriptionId};
use tollgate_store::{
    AuthorizationKey, AuthorizationPart, AuthorizationRow, AuthorizationState, Part, PlanPart,
    Refusal, Route, SubscriptionRow, SubscriptionStatus,
};

use super::support::{open_with, time, write};

const ME: AccountId = AccountId::from_bytes([1; 16]);
const ANOTHER: AccountId = AccountId::from_bytes([2; 16]);

fn row(account: AccountId, nonce: u8) -> AuthorizationRow {
    AuthorizationRow {
        key: AuthorizationKey {
            network: Arc::from("eip155:8453"),
            asset: [3; 20],
            payer: [4; 20],
            nonce: [nonce; 32],
        },
        account,
        state: AuthorizationState::Seen,
        version: 0,
        digest: [nonce; 32],
        sealed: None,
        valid_before: time(1_000),
        transaction: None,
        receipt: None,
        note: None,
        attempts: 0,
        next_attempt_at: None,
        created_at: time(1),
        updated_at: time(1),
    }
}

fn next(row: &AuthorizationRow, state: AuthorizationState) -> AuthorizationRow {
    AuthorizationRow {
        state,
        version: row.version + 1,
        sealed: Some(Arc::from(&b"sealed"[..])),
        next_attempt_at: Some(time(50)),
        updated_at: time(2),
        ..row.clone()
    }
}

fn part(part: AuthorizationPart) -> Part {
    Part::Authorization(Box::new(part))
}

fn begin(row: &AuthorizationRow) -> [Part; 1] {
    [part(AuthorizationPart::Begin(row.clone()))]
}

fn send(row: &AuthorizationRow, subscription: Option<i64>) -> [Part; 1] {
    [part(AuthorizationPart::Send {
        row: row.clone(),
        subscription,
    })]
}

fn change(row: &AuthorizationRow) -> [Part; 1] {
    [part(AuthorizationPart::Change(row.clone()))]
}

#[test]
fn a_transfer_is_stored_once_and_changed_with_optimistic_locking() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ME, ANOTHER]);
    let seen = row(ME, 1);
    write(&store, begin(&seen)).expect("new");
    let moved = Err(Refusal::AuthorizationConflict);
    assert_eq!(write(&store, begin(&seen)), moved);
    assert_eq!(
        write(&store, begin(&row(ANOTHER, 1))),
        moved,
        "nor by another"
    );
    let sent = next(&seen, AuthorizationState::Settling);
    write(&store, send(&sent, None)).expect("the first");
    assert_eq!(write(&store, send(&sent, None)), moved, "it has changed");
    let stolen = AuthorizationRow {
        account: ANOTHER,
        ..next(&sent, AuthorizationState::Settled)
    };
    assert_eq!(write(&store, change(&stolen)), moved, "it is not theirs");
    let stored = store.authorization(&seen.key).expect("readable");
    assert_eq!(stored, Some(sent));
}

#[test]
fn each_account_has_at_most_one_open_transfer() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ME, ANOTHER]);
    let (one, two, theirs) = (row(ME, 1), row(ME, 2), row(ANOTHER, 3));
    for row in [&one, &two, &theirs] {
        write(&store, begin(row)).expect("new");
    }
    let first = next(&one, AuthorizationState::Settling);
    write(&store, send(&first, None)).expect("the first");
    let open = Err(Refusal::AuthorizationOpen);
    for state in [AuthorizationState::Settling, AuthorizationState::Unknown] {
        assert_eq!(write(&store, send(&next(&two, state), None)), open);
        assert_eq!(write(&store, change(&next(&two, state))), open);
    }
    write(
        &store,
        send(&next(&theirs, AuthorizationState::Settling), None),
    )
    .expect("theirs");
    let unknown = next(&first, AuthorizationState::Unknown);
    write(&store, change(&unknown)).expect("it is the same one");
    let found = store.authorization_open(ME).expect("readable");
    assert_eq!(found.map(|row| row.key), Some(one.key));
    assert_eq!(
        store.authorizations_open(None, 9).expect("readable").len(),
        2
    );
    let over = next(&unknown, AuthorizationState::Dead);
    write(&store, change(&over)).expect("it is over");
    write(
        &store,
        send(&next(&two, AuthorizationState::Settling), None),
    )
    .expect("nothing else is under way");
}

#[test]
fn a_transfer_is_not_submitted_after_the_subscription_has_changed() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ME, ANOTHER]);
    let seen = row(ME, 1);
    write(&store, begin(&seen)).expect("new");
    let subscription = |version| {
        Part::Plan(Box::new(PlanPart::Put {
            row: SubscriptionRow {
                id: SubscriptionId::from_bytes([5; 16]),
                account: ME,
                route: Route::PayPal,
                reference: Arc::from("I-1"),
                status: SubscriptionStatus::Active,
                period_start: time(1),
                period_end: time(100),
                extra: Duration::ZERO,
                renews: true,
                version,
                created_at: time(1),
                updated_at: time(1),
            },
            class: Arc::from("pro"),
        }))
    };
    write(&store, [subscription(0)]).expect("a subscription");
    let sent = next(&seen, AuthorizationState::Settling);
    let open = Err(Refusal::AuthorizationOpen);
    assert_eq!(write(&store, send(&sent, None)), open);
    write(&store, [subscription(1)]).expect("it was renewed");
    assert_eq!(write(&store, send(&sent, Some(0))), open);
    write(&store, send(&sent, Some(1))).expect("that is what was seen");
}

#[test]
fn transfers_never_submitted_are_deleted_and_the_rest_is_kept() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ME, ANOTHER]);
    let mut kept = Vec::new();
    for (nonce, state, goes) in [
        (1, AuthorizationState::Seen, true),
        (2, AuthorizationState::Refused, true),
        (3, AuthorizationState::Settled, false),
        (4, AuthorizationState::Dead, false),
        (5, AuthorizationState::Unknown, false),
        (6, AuthorizationState::RefusedAfterSubmit, false),
    ] {
        let seen = row(ME, nonce);
        write(&store, begin(&seen)).expect("new");
        if state != AuthorizationState::Seen {
            write(&store, change(&next(&seen, state))).expect("changed");
        }
        kept.push((seen.key, goes));
    }
    let forget = |before, refused_before| {
        part(AuthorizationPart::Forget {
            before: time(before),
            refused_before: time(refused_before),
            limit: 10,
        })
    };
    write(&store, [forget(1_000, 1_000)]).expect("done");
    let is_there = |key| store.authorization(key).expect("readable").is_some();
    assert!(kept.iter().all(|(key, _)| is_there(key)), "not yet");
    write(&store, [forget(1_001, 1_000)]).expect("done");
    for (key, goes) in &kept {
        assert_eq!(is_there(key), !goes, "{key:?}");
    }
    let due = store.authorizations_due(time(50), 10).expect("readable");
    assert_eq!(due.len(), 4, "of those whose look is due");
    // One that was sent and refused goes at last; the others have an outcome, or will have one.
    write(&store, [forget(1_000, 1_001)]).expect("done");
    let left: Vec<_> = kept.iter().map(|(key, _)| is_there(key)).collect();
    assert_eq!(left, [false, false, true, true, true, false]);
    let due = store.authorizations_due(time(50), 10).expect("readable");
    assert_eq!(due.len(), 3, "of those whose look is due");
    assert!(
        store
            .authorizations_due(time(49), 10)
            .expect("readable")
            .is_empty()
    );
}

fn settle(row: &AuthorizationRow, is_proven: bool) -> [Part; 1] {
    [part(AuthorizationPart::Settle {
        row: row.clone(),
        is_proven,
    })]
}

#[test]
fn a_transaction_counts_once_unless_the_chain_proves_each_transfer() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ME, ANOTHER]);
    let rows: Vec<_> = [(ME, 1), (ANOTHER, 2), (ANOTHER, 3), (ANOTHER, 4)]
        .into_iter()
        .map(|(account, nonce)| row(account, nonce))
        .collect();
    for row in &rows {
        write(&store, begin(row)).expect("new");
    }
    let paid_by = |row: &AuthorizationRow, hash: u8| AuthorizationRow {
        transaction: Some([hash; 32]),
        ..next(row, AuthorizationState::Settled)
    };
    // A transaction that is only reported for an open payment does not block another one.
    let open = AuthorizationRow {
        transaction: Some([7; 32]),
        ..next(&rows[3], AuthorizationState::Unknown)
    };
    write(&store, change(&open)).expect("it is open");
    write(&store, settle(&paid_by(&rows[0], 7), false)).expect("the first");
    let used = Err(Refusal::TransactionUsed);
    assert_eq!(write(&store, settle(&paid_by(&rows[1], 7), false)), used);
    write(&store, settle(&paid_by(&rows[1], 8), false)).expect("another transaction");
    write(&store, settle(&paid_by(&rows[2], 7), true)).expect("proved by its own transfer");
    let elsewhere = AuthorizationRow {
        version: open.version + 1,
        state: AuthorizationState::Settled,
        ..open
    };
    assert_eq!(write(&store, settle(&elsewhere, false)), used);
}

#[test]
fn a_transfer_refused_after_submission_is_listed_and_does_not_block_its_account() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ME, ANOTHER]);
    let (first, second) = (row(ME, 1), row(ME, 2));
    for row in [&first, &second] {
        write(&store, begin(row)).expect("new");
    }
    let sent = next(&first, AuthorizationState::Settling);
    write(&store, send(&sent, None)).expect("submitted");
    let refused = next(&sent, AuthorizationState::RefusedAfterSubmit);
    write(&store, change(&refused)).expect("refused");
    let open = store.authorization_open(ME).expect("readable");
    assert_eq!(open, None, "another one may be submitted");
    let listed = store.authorizations_open(None, 9).expect("readable");
    assert_eq!(listed, vec![refused]);
    write(
        &store,
        send(&next(&second, AuthorizationState::Settling), None),
    )
    .expect("submitted");
    assert_eq!(
        store.authorizations_open(None, 9).expect("readable").len(),
        2
    );
}

#[test]
fn unproved_transfers_are_read_in_pages_and_those_that_may_move_are_counted() {
    let folder = tempfile::tempdir().expect("a folder");
    let store = open_with(folder.path(), [ME, ANOTHER]);
    // Four of one moment, which only their keys tell apart, and a newer and an older one.
    for (nonce, created_at) in [(1, 9), (2, 9), (3, 9), (4, 9), (5, 20), (6, 3)] {
        let seen = AuthorizationRow {
            created_at: time(created_at),
            ..row(ME, nonce)
        };
        write(&store, begin(&seen)).expect("new");
        let refused = next(&seen, AuthorizationState::RefusedAfterSubmit);
        write(&store, change(&refused)).expect("refused");
    }
    let theirs = row(ANOTHER, 7);
    write(&store, begin(&theirs)).expect("new");
    let sent = next(&theirs, AuthorizationState::Settling);
    write(&store, send(&sent, None)).expect("sent");
    let mut pages = Vec::new();
    let mut last: Option<AuthorizationRow> = None;
    loop {
        let page = store.authorizations_open(last.as_ref(), 2);
        let page = page.expect("readable");
        let Some(end) = page.last() else { break };
        last = Some(end.clone());
        let nonces: Vec<u8> = page.iter().map(|row| row.key.nonce[0]).collect();
        pages.push(nonces);
    }
    assert_eq!(pages, [vec![7, 6], vec![1, 2], vec![3, 4], vec![5]]);
    assert_eq!(store.authorizations_moving().expect("readable"), 1);
    let refused = |account, since, limit| {
        let found = store.authorizations_refused(account, time(since), limit);
        let found = found.expect("readable").into_iter();
        found.map(Timestamp::as_micros).collect::<Vec<_>>()
    };
    assert_eq!(refused(ME, 3, 9), [20, 9, 9, 9, 9]);
    assert_eq!(refused(ME, 0, 2), [20, 9]);
    assert!(refused(ANOTHER, 0, 9).is_empty());
}
