//! Several nodes on one PostgreSQL database: every account's credit is spent once, at any node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_ledger::audit::{audit, audit_watched};
use tollgate_ledger::{
    AttachedPart, CapHold, CreditError, Hold, HoldError, HoldRequest, Ledger, Settle, SettleError,
};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, SpendingCap};
use tollgate_store::postgres::{self, DatabaseUrl, NodeRole, Options};
use tollgate_store::{
    Admission, CredentialChange, EntryKind, OpenError, Part, RootSecret, Store, UnitOfWork,
    UsageRecord, commit, flush,
};
use tollgate_testing::Postgres;

use support::{
    NOW, account_with, answer_with_lost_claim, balance_of, credit_of, operation_at, request,
    settle, usage,
};

#[path = "nodes/caps.rs"]
mod caps;
#[path = "nodes/handover.rs"]
mod handover;
#[path = "nodes/loading.rs"]
mod loading;
#[path = "nodes/owed.rs"]
mod owed;
#[path = "nodes/refusals.rs"]
mod refusals;
#[path = "nodes/removed_months.rs"]
mod removed_months;
#[path = "nodes/short_of_room.rs"]
mod short_of_room;
#[path = "support/mod.rs"]
mod support;

/// A node of a database.
struct Node {
    store: Arc<dyn Store>,
    ledger: Ledger,
}

fn options(url: &str, name: &str, role: NodeRole) -> Options {
    Options {
        node_name: name.to_owned(),
        role,
        post_records: 7,
        ..Options::new(
            DatabaseUrl::parse(url).expect("an address"),
            NOW,
            RootSecret([7; 32]),
        )
    }
}

fn open(url: &str, name: &str, role: NodeRole) -> Node {
    let node = without_feed(url, name, role);
    node.store.follow_changes();
    node
}

/// A node that does not read changes by other nodes.
fn without_feed(url: &str, name: &str, role: NodeRole) -> Node {
    let store = postgres::open(options(url, name, role)).expect("the store opens");
    let ledger = support::start(&store);
    Node { store, ledger }
}

fn node(url: &str, name: &str) -> Node {
    open(url, name, NodeRole::OneOfMany)
}

impl Node {
    /// Returns the node's credit, and ends the node.
    fn close(self) {
        self.ledger.return_all();
        self.store.close();
    }

    /// Loads an account just made by another node.
    fn has_account(&self, account: AccountId) {
        balance_of(&self.ledger, account);
    }
}

/// Waits for a condition that another thread fulfils.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let polled = async {
        let mut often = tokio::time::interval(Duration::from_millis(10));
        while !holds() {
            often.tick().await;
        }
    };
    let found = wait(async { tokio::time::timeout(Duration::from_secs(240), polled).await });
    assert!(found.is_ok(), "not in time: {what}");
}

fn wait<F: Future>(future: F) -> F::Output {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
        .block_on(future)
}

fn assert_balanced(store: &Arc<dyn Store>) {
    let report = audit(store).expect("the audit runs");
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(report.clean(), "{}", violations.join("\n"));
    assert_eq!(report.sums.total(), Micros::ZERO, "{:?}", report.sums);
}

fn available(store: &Arc<dyn Store>, account: AccountId) -> i64 {
    let row = store.account(account).expect("a read").expect("an account");
    row.available.get()
}

/// Holds on nodes in turn. Each hold is repeated while other nodes are asked for their credit.
async fn hold_everywhere(
    nodes: &[&Node],
    account: AccountId,
    numbers: std::ops::Range<u64>,
    amount: i64,
) -> Vec<Result<Hold, HoldError>> {
    let mut tasks = tokio::task::JoinSet::new();
    for number in numbers {
        let ledger = nodes[number as usize % nodes.len()].ledger.clone();
        tasks.spawn(async move {
            loop {
                let wanted = request(account, number, amount);
                match ledger
                    .hold(
                        HoldRequest {
                            is_written: number % 2 == 0,
                            ..wanted
                        },
                        |_| None,
                    )
                    .finish()
                    .await
                {
                    Err(HoldError::CreditUnavailable { .. }) => {}
                    placed => return placed,
                }
            }
        });
    }
    tasks.join_all().await
}

#[test]
fn of_five_times_the_holds_that_an_account_can_pay_exactly_as_many_are_placed_as_it_can() {
    const COUNT: usize = 40;
    const AMOUNT: i64 = 1_000;
    let url = Postgres::shared().database();
    let (a, b, c) = (node(&url, "a"), node(&url, "b"), node(&url, "c"));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    for round in 0..5 {
        let credit = COUNT as i64 * AMOUNT + round;
        let account = account_with(&a.store, &a.ledger, 1 + round as u64, credit, 0);
        for node in [&b, &c] {
            node.has_account(account);
        }
        let first = 1_000 * (1 + round as u64);
        let numbers = first..first + 5 * COUNT as u64;
        let placed = runtime.block_on(hold_everywhere(&[&a, &b, &c], account, numbers, AMOUNT));
        let mut holds = Vec::new();
        for result in placed {
            match result {
                Ok(hold) => holds.push(hold),
                Err(HoldError::InsufficientCredit { .. }) => {}
                Err(error) => panic!("{error}"),
            }
        }
        assert_eq!(holds.len(), COUNT, "round {round}");
        // Half of the operations cost less than their hold.
        let settlements: Vec<_> = (holds.into_iter().enumerate())
            .map(|(index, hold)| hold.settle(settle(AMOUNT / (1 + index as i64 % 2))))
            .collect();
        for settlement in settlements {
            wait(settlement).expect("it is durable");
        }
        let left = credit - COUNT as i64 / 2 * (AMOUNT + AMOUNT / 2);
        eventually("the charges are there", || {
            available(&a.store, account) == left
        });
    }
    assert_balanced(&b.store);
    for node in [a, b, c] {
        node.close();
    }
    let alone = open(&url, "alone", NodeRole::Alone);
    assert_balanced(&alone.store);
}

#[test]
fn credit_that_is_booked_at_one_node_is_spent_at_another_one() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    b.has_account(account);
    let hold = wait(b.ledger.hold(request(account, 1, 1_000), |_| None).finish());
    let settlement = hold.expect("all of it").settle(settle(600));
    wait(settlement).expect("it is durable");
    let refused = wait(a.ledger.hold(request(account, 2, 401), |_| None).finish());
    assert!(
        matches!(
            refused,
            Err(HoldError::InsufficientCredit { available, .. }) if available == Micros::new(400)
        ),
        "{refused:?}"
    );
    // The whole credit of the account decides a shorter answer.
    let within = wait(a.ledger.hold(request(account, 3, 500), Some).finish());
    assert_eq!(within.expect("a smaller one").amount(), Micros::new(400));
    wait(a.ledger.grant(credit_of(account, 50, "second", 900))).expect("it is booked");
    let more = credit_of(account, 50, "second", 901);
    let again = wait(b.ledger.grant(more)).expect("it is known");
    assert!(again.repeated, "a reference is booked once, at any node");
    assert_balanced(&a.store);
}

/// The limit also counts credit in the database. A sum above the store's range stopped the node, and each node that booked the credit
/// again.
#[test]
fn credit_beyond_what_can_be_counted_is_refused_wherever_it_is() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 0, 0);
    b.has_account(account);
    const ONCE: i64 = 1_000_000_000_000_000;
    let grants = (0..i64::MAX / 2 / ONCE).map(|number| {
        let credit = credit_of(account, ONCE, &number.to_string(), number as u64);
        credit.part(EntryKind::Grant).expect("a credit")
    });
    let unit = UnitOfWork::of_all(grants, Admission::Normal);
    wait(commit(&*a.store, unit)).expect("it is booked");
    let left = i64::MAX / 2 % ONCE;
    for node in [&a, &b] {
        eventually("it has read what the account has", || {
            let balance = node.ledger.balance(account).expect("it is loaded");
            balance.available > Micros::new(i64::MAX / 4)
        });
        let credit = credit_of(account, left + 1, "too much", 9_000);
        let refused = wait(node.ledger.grant(credit));
        assert!(
            matches!(refused, Err(CreditError::TooMuch { .. })),
            "{refused:?}"
        );
    }
    let all = credit_of(account, left, "all", 9_001);
    wait(b.ledger.grant(all)).expect("it fits");
    assert_balanced(&b.store);
}

#[test]
fn credit_is_taken_from_an_account_wherever_it_is() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    b.has_account(account);
    // `b` has an allotment of some size, with 100 held.
    let hold = wait(b.ledger.hold(request(account, 1, 100), |_| None).finish()).expect("a hold");
    let too_much = wait(a.ledger.correct(credit_of(account, -901, "too much", 900)));
    assert!(
        matches!(too_much, Err(CreditError::InsufficientCredit { .. })),
        "{too_much:?}"
    );
    wait(a.ledger.correct(credit_of(account, -900, "all", 901))).expect("all that is not held");
    for node in [&a, &b] {
        let again = wait(node.ledger.correct(credit_of(account, -900, "all", 902)));
        assert!(again.expect("it is booked").repeated, "taken once");
    }
    wait(hold.settle(settle(100))).expect("it is durable");
    eventually("nothing is left", || available(&a.store, account) == 0);
    assert_balanced(&b.store);
}

/// The commits of the other node are posted later. A node that loads the account meanwhile sees too little credit, and took back too
/// little.
#[test]
fn all_that_an_account_has_is_taken_back_at_a_node_that_does_not_see_it() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    let hold = wait(a.ledger.hold(request(account, 1, 100), |_| None).finish()).expect("a hold");
    wait(hold.settle(settle(100))).expect("it is durable");
    b.has_account(account);
    let seen = b.ledger.available(account).expect("it is in memory");
    assert!(seen < Micros::new(900), "a has some of it: {seen}");
    let all = wait(b.ledger.total_available(account)).expect("a read");
    assert_eq!(all, Micros::new(900));
    wait(b.ledger.correct(credit_of(account, -900, "returned", 900))).expect("a returns its part");
    assert_balanced(&b.store);
}

#[test]
fn a_settlement_above_its_hold_takes_what_the_account_has_elsewhere() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    b.has_account(account);
    let other = wait(b.ledger.hold(request(account, 1, 300), |_| None).finish()).expect("a hold");
    let mut hold = wait(a.ledger.hold(request(account, 2, 100), |_| None).finish()).expect("one");
    wait(hold.cover(Micros::new(900), NOW));
    let settled = wait(hold.settle(settle(900))).expect("it is durable");
    assert_eq!(settled.charged, Micros::new(700), "all that is not held");
    assert_eq!(settled.written_off, Micros::new(200));
    other.release(NOW);
    eventually("the rest is free", || available(&a.store, account) == 300);
    assert_balanced(&a.store);
}

#[test]
fn the_credit_limit_is_that_of_the_shared_balance() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100, 50);
    b.has_account(account);
    let one = wait(a.ledger.hold(request(account, 1, 90), |_| None).finish()).expect("a hold");
    let two = wait(b.ledger.hold(request(account, 2, 60), |_| None).finish()).expect("a hold");
    let three = wait(a.ledger.hold(request(account, 3, 1), |_| None).finish());
    assert!(
        matches!(three, Err(HoldError::InsufficientCredit { .. })),
        "{three:?}"
    );
    wait(one.settle(settle(90))).expect("it is durable");
    wait(two.settle(settle(60))).expect("it is durable");
    assert_eq!(available(&a.store, account), -50);
    assert_balanced(&a.store);
}

#[test]
fn what_a_node_that_has_crashed_had_is_recovered() {
    let server = Postgres::shared();
    let url = server.database();
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    let b = without_feed(&url, "b", NodeRole::OneOfMany);
    b.has_account(account);
    let mut hold = wait(b.ledger.hold(request(account, 1, 100), |_| None).finish()).expect("one");
    wait(hold.durable()).expect("it is durable");
    let number = b.store.node();
    // The process has ended without a message.
    server.run(
        url.rsplit('/').next().expect("a name"),
        &format!("DELETE FROM leases WHERE node = {number}"),
    );
    let waits = wait(a.ledger.hold(request(account, 2, 950), |_| None).finish());
    assert!(
        matches!(waits, Err(HoldError::CreditUnavailable { .. })),
        "a node that does not answer is no reason for a 402: {waits:?}"
    );
    let uncovered = wait(a.ledger.cover(account, Micros::new(950), NOW).finish());
    assert!(
        matches!(uncovered, Err(HoldError::CreditUnavailable { .. })),
        "nor for a write-off: {uncovered:?}"
    );
    let recovered = open(&url, "a", NodeRole::Recovery(number));
    recovered.close();
    let refused = wait(commit_on(&b));
    assert!(refused.is_err(), "the crashed node is fenced off");
    let all = wait(a.ledger.hold(request(account, 3, 1_000), |_| None).finish());
    all.expect("all of it").release(NOW);
    assert_balanced(&a.store);
    std::mem::forget(hold);
}

/// A program that has booked credit as a separate node, or a failed start. Other nodes waited for its answer without end.
#[test]
fn a_node_that_has_left_nothing_but_its_answers_to_recalls_is_recovered() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    b.has_account(account);
    let number = a.store.node();
    a.store.close();
    let has_nothing_left = || {
        let nodes = postgres::nodes(&options(&url, "a", NodeRole::OneOfMany));
        let nodes = nodes.expect("they can be read");
        let found = nodes.into_iter().find(|it| it.node == number);
        found.expect("it is there").has_nothing_left
    };
    assert!(!has_nothing_left(), "others wait for it");
    let waits = wait(b.ledger.hold(request(account, 1, 101), |_| None).finish());
    assert!(
        matches!(waits, Err(HoldError::CreditUnavailable { .. })),
        "{waits:?}"
    );
    open_recovery(&url, number);
    assert!(has_nothing_left());
    let refused = wait(b.ledger.hold(request(account, 2, 101), |_| None).finish());
    assert!(
        matches!(&refused, Err(HoldError::InsufficientCredit { available, .. }) if available.get() == 100),
        "{refused:?}"
    );
    b.close();
}

async fn commit_on(node: &Node) -> Result<(), tollgate_store::CommitError> {
    tollgate_store::flush(&*node.store).await?;
    let grant = node
        .ledger
        .grant(credit_of(support::account(1), 5, "late", 999));
    grant.await.map(|_| ()).map_err(|error| {
        tollgate_store::CommitError::Stopped(tollgate_store::Failure {
            kind: tollgate_store::FailureKind::Closed,
            message: Arc::from(error.to_string()),
        })
    })
}

#[test]
fn a_node_that_is_alone_and_one_of_several_do_not_run_at_once() {
    let url = Postgres::shared().database();
    let alone = open(&url, "gateway", NodeRole::Alone);
    let account = account_with(&alone.store, &alone.ledger, 1, 1_000, 0);
    let refused = |name: &str, role| match postgres::open(options(&url, name, role)) {
        Ok(_) => panic!("{name} opens"),
        Err(error) => error,
    };
    let error = refused("a", NodeRole::OneOfMany);
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    alone.store.close();
    let a = node(&url, "a");
    let error = refused("a", NodeRole::OneOfMany);
    assert!(matches!(error, OpenError::NodeInUse { .. }), "{error}");
    let error = refused("gateway", NodeRole::Alone);
    assert!(matches!(error, OpenError::InUse { .. }), "{error}");
    a.has_account(account);
    let hold = wait(a.ledger.hold(request(account, 1, 10), |_| None).finish()).expect("a hold");
    wait(hold.settle(settle(10))).expect("it is durable");
    let number = a.store.node();
    // Without a return of its allotment.
    a.store.close();
    let error = refused("gateway", NodeRole::Alone);
    assert!(
        matches!(&error, OpenError::Unrecovered { nodes, .. } if *nodes == [number]),
        "{error}"
    );
    open(&url, "a", NodeRole::Recovery(number)).close();
    let alone = open(&url, "gateway", NodeRole::Alone);
    let balance = balance_of(&alone.ledger, account);
    assert_eq!(balance.available, Micros::new(990));
    assert_balanced(&alone.store);
}

fn open_recovery(url: &str, number: i64) {
    open(url, "a", NodeRole::Recovery(number)).close();
}
fn open_alone(url: &str) -> Node {
    open(url, "gateway", NodeRole::Alone)
}
