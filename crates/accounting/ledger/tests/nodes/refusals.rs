//! An account without credit, and many requests to the account.

use std::sync::atomic::AtomicBool;
use std::time::Duration;

use tokio::task::JoinSet;
use tollgate_ledger::{Charge, ChargeError};
use tollgate_store::flush;
use tollgate_testing::within;

use super::*;

/// Requests waiting for the answer to another request.
const WAITING: usize = 256;

pub(super) type Acquired = Result<Hold, HoldError>;

/// Requests of one moment: `moment` seconds after the time of [`request`].
fn send(
    to: &Node,
    account: AccountId,
    moment: u32,
    count: usize,
    amount: i64,
) -> JoinSet<Acquired> {
    let mut tasks = JoinSet::new();
    for number in 0..count as u64 {
        let ledger = to.ledger.clone();
        let wanted = HoldRequest {
            at: NOW + Duration::from_secs(1) * moment,
            ..request(account, u64::from(moment) * 1_000 + number, amount)
        };
        tasks.spawn(async move { ledger.hold(wanted, |_| None).finish().await });
    }
    tasks
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread()
        .enable_time()
        .build()
        .expect("a runtime")
}

/// A node with a refusal in memory: the account has 100, and a hold of 101 was refused. A read change, even the node's own change, would
/// make the node ask again. So the node reads no changes.
fn refused_node(url: &str) -> (Node, AccountId) {
    let node = without_feed(url, "a", NodeRole::OneOfMany);
    let account = account_with(&node.store, &node.ledger, 1, 100, 0);
    let refused = node.acquire(account, 1, 101);
    assert!(is_refused(&refused), "{refused:?}");
    (node, account)
}

pub(super) fn is_refused(acquired: &Acquired) -> bool {
    matches!(acquired, Err(HoldError::InsufficientCredit { .. }))
}

fn is_unavailable(acquired: &Acquired) -> bool {
    matches!(acquired, Err(HoldError::CreditUnavailable { .. }))
}

fn units(node: &Node) -> u64 {
    node.store.gauges().batch_size.sum()
}

#[test]
fn of_the_requests_that_come_after_a_refusal_one_asks_the_database() {
    let url = Postgres::shared().database();
    let (a, account) = refused_node(&url);
    let resume = a.stop_writer();
    let before = units(&a);
    runtime().block_on(async {
        let mut tasks = send(&a, account, 1, 1 + WAITING + 10, 101);
        for _ in 0..10 {
            let first = within("a request more than may wait", tasks.join_next()).await;
            let first = first.expect("a task").expect("its end");
            assert!(is_unavailable(&first), "too many wait: {first:?}");
        }
        let counted = a.ledger.allotment_counters().waiting.load(Relaxed);
        assert_eq!(counted, 1 + WAITING as u64);
        drop(resume);
        for acquired in tasks.join_all().await {
            assert!(is_refused(&acquired), "{acquired:?}");
        }
    });
    assert_eq!(units(&a) - before, 1, "one take");
    // The remaining credit can still be taken, in the moment of the refusal.
    let smaller = runtime().block_on(async { send(&a, account, 1, 1, 100).join_all().await });
    assert!(smaller[0].is_ok(), "{smaller:?}");
    // A take within the refused credit does not end the refusal.
    let before = units(&a);
    let larger = runtime().block_on(async { send(&a, account, 1, 3, 101).join_all().await });
    assert!(larger.iter().all(is_refused), "{larger:?}");
    assert_eq!(units(&a), before, "from memory");
    drop(smaller);
    a.close();
}

/// The gateway asks before the read of a body.
#[test]
fn an_account_that_the_database_has_found_to_have_nothing_is_refused_for_a_tenth_of_a_second() {
    let url = Postgres::shared().database();
    let a = without_feed(&url, "a", NodeRole::OneOfMany);
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    let empty_at = |millis| {
        let at = NOW + Duration::from_millis(millis);
        a.ledger.knows_balance(account, at)
    };
    let refused = a.acquire(account, 1, 101);
    assert!(is_refused(&refused), "{refused:?}");
    assert!(!empty_at(0), "it has 100");
    let all = a.acquire(account, 2, 100).expect("it is all it has");
    assert!(!empty_at(0), "what it had at the refusal is held");
    let later = runtime().block_on(async { send(&a, account, 1, 1, 1).join_all().await });
    assert!(is_refused(&later[0]), "{later:?}");
    assert_eq!(
        [901, 1_000, 1_099, 1_100].map(empty_at),
        [true, true, true, false]
    );
    drop(all);
    a.close();
}

#[test]
fn what_a_hold_gives_back_on_this_node_can_be_used_at_once_after_a_refusal() {
    let url = Postgres::shared().database();
    let (a, account) = refused_node(&url);
    let most = a.acquire(account, 2, 60).expect("it has 100");
    let at_once = |amount| {
        let sent = async { send(&a, account, 1, 1, amount).join_all().await };
        runtime().block_on(sent).remove(0)
    };
    let refused = at_once(41);
    assert!(is_refused(&refused), "{refused:?}");
    drop(most);
    let all = at_once(100);
    assert!(all.is_ok(), "{all:?}");
    drop(all);
    a.close();
}

#[test]
fn when_the_request_that_asks_goes_away_another_one_asks() {
    let url = Postgres::shared().database();
    let (a, account) = refused_node(&url);
    let resume = a.stop_writer();
    let before = units(&a);
    runtime().block_on(async {
        let mut asks = send(&a, account, 1, 1, 101);
        tokio::task::yield_now().await;
        let waits = send(&a, account, 1, 2, 101);
        tokio::task::yield_now().await;
        asks.abort_all();
        let gone = asks.join_next().await.expect("a task");
        assert!(gone.is_err(), "{gone:?}");
        tokio::task::yield_now().await;
        drop(resume);
        for acquired in waits.join_all().await {
            assert!(is_refused(&acquired), "{acquired:?}");
        }
    });
    assert_eq!(units(&a) - before, 2, "a take of each that asked");
    a.close();
}

#[test]
fn while_a_node_does_not_answer_all_that_wait_are_unavailable_with_the_one_that_asks() {
    let url = Postgres::shared().database();
    let (a, account) = refused_node(&url);
    let b = without_feed(&url, "b", NodeRole::OneOfMany);
    // The recall ends, since the credit is plenty again, and `b` takes more than its hold.
    b.has_account(account);
    wait(b.ledger.grant(credit_of(account, 10_000, "plenty", 900))).expect("it is booked");
    let held = b.acquire(account, 2, 1).expect("a hold");
    let before = units(&a);
    runtime().block_on(async {
        for acquired in send(&a, account, 1, 1 + WAITING, 10_100).join_all().await {
            assert!(is_unavailable(&acquired), "{acquired:?}");
        }
    });
    let takes = units(&a) - before;
    // One request takes again about every 20 ms, for 250 ms or longer on a busy machine. The other requests wait for the leader.
    assert!(takes < WAITING as u64 / 2, "{takes} units");
    drop(held);
    b.close();
    a.close();
}

/// The answer of one request. Each request has another moment, since a refusal is cached for a tenth of a second.
fn one(to: &Node, account: AccountId, moment: u32, amount: i64) -> Acquired {
    let sent = async { send(to, account, moment, 1, amount).join_all().await };
    runtime().block_on(sent).remove(0)
}

/// [`one`], repeated a limited number of times while another node is asked.
pub(super) fn decided(
    to: &Node,
    account: AccountId,
    first_moment: u32,
    amount: i64,
) -> Option<Acquired> {
    (first_moment..first_moment + 20)
        .map(|moment| one(to, account, moment, amount))
        .find(|it| !is_unavailable(it))
}

#[test]
fn a_node_that_books_credit_after_its_answer_to_a_recall_answers_anew() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    for to in [&a, &b] {
        let refused = to.acquire(account, 1, 101);
        assert!(is_refused(&refused), "{refused:?}");
    }
    wait(b.ledger.grant(credit_of(account, 10, "more", 900))).expect("it is booked");
    let all = decided(&a, account, 1, 110);
    assert!(all.as_ref().is_some_and(Result::is_ok), "{all:?}");
    let refused = decided(&a, account, 21, 1);
    assert!(refused.as_ref().is_some_and(is_refused), "{refused:?}");
    drop(all);
    b.close();
    a.close();
}

#[test]
fn credit_that_a_node_has_booked_and_not_returned_is_no_reason_for_a_refusal() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    b.has_account(account);
    let held = b.acquire(account, 1, 60).expect("a hold");
    let refused = a.acquire(account, 2, 60);
    assert!(
        is_refused(&refused),
        "all other nodes have answered: {refused:?}"
    );
    // The credit is durable, and its return waits.
    let (resume, stopped) = {
        let first = b.stop_writer();
        let ledger = b.ledger.clone();
        let booked = std::thread::spawn(move || {
            wait(ledger.grant(credit_of(account, 50, "more", 900))).expect("it is booked");
        });
        eventually("it is queued", || {
            b.store.gauges().queue_depth.load(Relaxed) == 1
        });
        let next = b.queue_stop();
        drop(first);
        booked.join().expect("no panic");
        next
    };
    stopped.recv().expect("the writer stops");
    let asked = one(&a, account, 1, 60);
    assert!(is_unavailable(&asked), "{asked:?}");
    drop(resume);
    let placed = decided(&a, account, 2, 60);
    assert!(placed.as_ref().is_some_and(Result::is_ok), "{placed:?}");
    drop((held, placed));
    b.close();
    a.close();
}

#[test]
fn credit_taken_for_a_charge_that_is_not_accepted_is_returned_where_the_account_is_recalled() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let b = {
        let few = Options {
            queue_max: 8,
            ..options(&url, "b", NodeRole::OneOfMany)
        };
        let store = postgres::open(few).expect("the store opens");
        let ledger = support::start(&store);
        Node { store, ledger }
    };
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    for to in [&a, &b] {
        let refused = to.acquire(account, 1, 101);
        assert!(is_refused(&refused), "{refused:?}");
    }
    let covered = wait(b.ledger.cover(account, Micros::new(60), NOW).finish()).expect("it has 100");
    assert!(covered.is_some());
    let resume = b.stop_writer();
    let fill = || UnitOfWork::of_all([], Admission::Normal);
    while b.store.submit(fill(), Box::new(|_| {})).is_ok() {}
    let charge = Charge {
        operation: request(account, 900, 0).operation,
        account,
        amount: Micros::new(60),
        price_version: None,
        usage: usage(),
        at: NOW,
    };
    let refused = b.ledger.charge_held(charge, None, covered);
    assert!(
        matches!(refused, Err(ChargeError::Overloaded { .. })),
        "{refused:?}"
    );
    drop(resume);
    wait(flush(&*b.store)).expect("everything is durable");
    let all = decided(&a, account, 1, 100);
    assert!(all.as_ref().is_some_and(Result::is_ok), "{all:?}");
    drop(all);
    b.close();
    a.close();
}

/// The node has no allotment of the account, so its answer to the recall has no row. Its postings on the account made other nodes wait for
/// an answer.
#[test]
fn a_node_with_holds_of_nothing_alone_does_not_delay_a_refusal() {
    let url = Postgres::shared().database();
    // The load of the account brings the recall. The node has answered before its first posting.
    let a = without_feed(&url, "a", NodeRole::OneOfMany);
    let b = node(&url, "b");
    let account = account_with(&a.store, &a.ledger, 1, 0, 0);
    let refused = b.acquire(account, 1, 1);
    assert!(is_refused(&refused), "{refused:?}");
    // Enough records to cause a posting.
    for number in 10..14 {
        let mut hold = a.acquire(account, number, 0).expect("it costs nothing");
        wait(hold.durable()).expect("it is durable");
        wait(hold.settle(settle(0))).expect("it is durable");
    }
    let refused = decided(&b, account, 1, 1);
    assert!(refused.as_ref().is_some_and(is_refused), "{refused:?}");
    a.close();
    b.close();
}

/// The feed has brought the recall, begun by the take, before the result of the take was known.
#[test]
fn credit_that_a_node_has_returned_since_its_take_was_decided_is_no_reason_for_a_refusal() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 100, 0);
    drop(a.acquire(account, 1, 10).expect("a hold"));
    wait(flush(&*a.store)).expect("everything is durable");
    assert!(a.ledger.allotted().is_positive(), "it has taken ahead");
    let queued = |units| {
        eventually("it is queued", || {
            a.store.gauges().queue_depth.load(Relaxed) == units
        });
    };
    let first = a.stop_writer();
    let (resume, stopped) = a.queue_stop();
    let all = std::thread::scope(|scope| {
        let asked = scope.spawn(|| decided(&a, account, 1, 100));
        queued(2);
        drop(first);
        stopped
            .recv()
            .expect("the take is durable, and its result is not known");
        queued(1);
        drop(resume);
        asked.join().expect("no panic")
    });
    assert!(all.as_ref().is_some_and(Result::is_ok), "{all:?}");
    drop(all);
    a.close();
}

/// Small holds ended the recall needed by a larger hold, which began the recall again: a 503 as long as the small holds went on.
#[test]
fn a_hold_for_more_than_the_account_has_is_refused_while_small_ones_go_on_at_two_nodes() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    b.has_account(account);
    let is_over = AtomicBool::new(false);
    let small = |to: &Node, first: u64| {
        let numbers = (first..).take_while(|_| !is_over.load(Relaxed));
        numbers.for_each(|number| drop(to.acquire(account, number, 1)));
    };
    let refused = std::thread::scope(|scope| {
        for (to, first) in [(&a, 1_000_000), (&a, 2_000_000), (&b, 1_000_000)] {
            let small = &small;
            scope.spawn(move || small(to, first));
        }
        let refused = decided(&a, account, 1, 1_500);
        is_over.store(true, Relaxed);
        refused
    });
    assert!(refused.as_ref().is_some_and(is_refused), "{refused:?}");
    b.close();
    a.close();
}
