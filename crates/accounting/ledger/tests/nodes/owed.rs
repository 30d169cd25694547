//! Credits owed by a returned payment, at several nodes.

use tollgate_money::{TopUpId, Usd};
use tollgate_store::{Admission, TopUpPart, TopUpRow, TopUpState, UnitOfWork, commit};
use tollgate_testing::within;

use super::*;

fn row(account: AccountId, version: i64, owed: i64) -> TopUpRow {
    TopUpRow {
        id: TopUpId::from_bytes([3; 16]),
        account,
        state: TopUpState::Captured,
        version,
        price: Usd::from_cents(100),
        credits: Micros::new(1_000),
        create_key: Arc::from("k"),
        order: None,
        approve_url: None,
        capture_key: None,
        capture: None,
        declines: 0,
        returned: Usd::ZERO,
        taken_back: Micros::ZERO,
        owed: Micros::new(owed),
        note: None,
        attempts: 0,
        next_attempt_at: None,
        notifications: 0,
        acknowledged: 0,
        created_at: NOW,
        updated_at: NOW,
    }
}

fn change(account: AccountId, version: i64, owed: i64) -> Vec<Part> {
    let row = row(account, version, owed);
    vec![Part::TopUp(Box::new(TopUpPart::Change(row)))]
}

/// Repeats a hold until the node knows the changes of other nodes, and releases the hold.
async fn placed(node: &Node, wanted: HoldRequest) {
    while node.ledger.hold(wanted, |_| None).finish().await.is_err() {
        tokio::task::yield_now().await;
    }
}

/// The node that had held the credit spent the credit until another node took the credit back.
#[test]
fn credit_that_is_owed_is_spent_at_no_node() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    b.has_account(account);
    let begun = Part::TopUp(Box::new(TopUpPart::Begin(row(account, 0, 0))));
    let begun = UnitOfWork::of(begun, Admission::Normal);
    wait(commit(&*a.store, begun)).expect("it is stored");
    let hold = wait(b.ledger.hold(request(account, 1, 300), |_| None).finish()).expect("a hold");
    // Like the booking of a returned payment: takes the unheld credit, and the rest is owed.
    wait(a.ledger.recall(account, NOW)).expect("b has answered");
    let free = wait(a.ledger.total_available(account)).expect("a read");
    assert_eq!(free, Micros::new(700));
    let returned = credit_of(account, -700, "returned", 901);
    wait(a.ledger.take_back(returned, change(account, 1, 300))).expect("what is not held");
    hold.release(NOW);
    eventually("what b had held is shared", || {
        available(&a.store, account) == 300
    });
    for (number, node) in [&b, &a].into_iter().enumerate() {
        let wanted = request(account, 10 + number as u64, 1);
        assert!(
            node.ledger.hold(wanted, |_| None).now().is_none(),
            "it has none of its own"
        );
        let held = wait(node.ledger.hold(wanted, |_| None).finish());
        assert!(
            matches!(held, Err(HoldError::InsufficientCredit { available, .. }) if available == Micros::ZERO),
            "{held:?}"
        );
    }
    // Incoming credit is not owed.
    wait(a.ledger.grant(credit_of(account, 50, "more", 902))).expect("it is booked");
    wait(within("a hold on it", placed(&b, request(account, 20, 50))));
    let rest = credit_of(account, -300, "returned/300", 903);
    wait(a.ledger.take_back(rest, change(account, 2, 0))).expect("it is owed");
    wait(within("nothing owed", placed(&b, request(account, 21, 50))));
    assert_balanced(&b.store);
}
