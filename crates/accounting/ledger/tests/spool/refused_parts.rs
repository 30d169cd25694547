//! Charges acknowledged by the spool, whose recorded answer the store then refuses. Each charge is committed at its position in the queue,
//! before later decisions on the remainder of its hold.

use tollgate_ledger::{AttachedPart, Hold, HoldError};
use tollgate_store::postgres::{NodeRole, Options};

use super::support::{account_with, answer_with_lost_claim, request, settle};
use super::{Fixture, Node, assert_books, eventually, start, wait};

/// Each unit is a separate commit.
fn start_in_steps(fixture: &Fixture, role: NodeRole) -> Node {
    start(Options {
        batch_max: 1,
        ..fixture.options("a", role)
    })
}

/// Settles a hold, during an outage of the store, with an answer that the store will refuse.
fn settle_with_lost_claim(node: &Node, hold: Hold, actual: i64) {
    let account = hold.account();
    let attached = AttachedPart::new(move |_| answer_with_lost_claim(account));
    let settled = wait(hold.settle_with(settle(actual), Some(attached)));
    let settled = settled.expect("it is in the spool");
    assert_eq!(settled.charged.get(), actual);
    eventually("it is in the file", || node.spooled().0 == 1);
}

/// The charge was queued again behind the hold. The store had no credit for the hold: the node stopped.
#[test]
fn what_a_charge_in_the_spool_leaves_of_its_hold_can_be_held_before_the_database_has_it() {
    let fixture = Fixture::new();
    let node = start_in_steps(&fixture, NodeRole::Alone);
    let account = account_with(&node.store, &node.ledger, 1, 100, 0);
    let hold = node.hold(account, 1, 100);
    fixture.link.stall();
    settle_with_lost_claim(&node, hold, 30);
    let mut rest = node
        .ledger
        .hold(request(account, 2, 70), |_| None)
        .now()
        .expect("it is alone")
        .expect("it is free");
    fixture.link.restore();
    wait(rest.durable()).expect("it is durable");
    node.settled(rest, 70).expect("it is durable");
    eventually("the spool is empty", || node.spooled() == (0, 0));
    assert!(node.store.failure().is_none());
    assert_books(&node.store, account, 0);
    node.store.close();
}

/// The rest of the hold is returned to the account before the refusal is known: no start succeeded.
#[test]
fn a_start_charges_what_is_in_the_spool_of_a_recalled_account() {
    let fixture = Fixture::new();
    let node = fixture.start(NodeRole::OneOfMany);
    let account = account_with(&node.store, &node.ledger, 1, 100, 0);
    let hold = node.hold(account, 1, 100);
    fixture.link.cut();
    settle_with_lost_claim(&node, hold, 30);
    node.die();
    let b = start(fixture.elsewhere("b", NodeRole::OneOfMany));
    wait(b.ledger.load(account)).expect("it can be loaded");
    let waits = wait(b.ledger.hold(request(account, 2, 70), |_| None).finish());
    assert!(
        matches!(waits, Err(HoldError::CreditUnavailable { .. })),
        "{waits:?}"
    );
    fixture.link.restore();
    let node = start_in_steps(&fixture, NodeRole::OneOfMany);
    eventually("the spool is empty", || node.spooled() == (0, 0));
    b.settled(b.hold(account, 3, 70), 70)
        .expect("it is returned");
    node.ledger.return_all();
    b.ledger.return_all();
    assert_books(&node.store, account, 0);
    node.store.close();
    b.store.close();
}
