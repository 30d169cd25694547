//! Several nodes on one PostgreSQL database: every account's credit is spent once, wherever its requests arrive.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use tollgate_clock::Timestamp;
use tollgate_ledger::audit::audit;
use tollgate_ledger::{CapHold, CreditError, Hold, HoldError, HoldRequest, Ledger, Settle};
use tollgate_money::{AccountId, CapPeriod, CredentialId, Micros, OperationId, SpendingCap};
use tollgate_store::postgres::{self, DatabaseUrl, NodeRole, Options};
use tollgate_store::{
    Admission, CredentialChange, CredentialKind, NewCredential, OpenError, Part, RootSecret, Store,
    UnitOfWork, UsageRecord, commit,
};
use tollgate_testing::Postgres;

use support::{NOW, account_with, balance_of, credit_of, request, settle, usage};

#[path = "nodes/loading.rs"]
mod loading;
#[path = "nodes/refusals.rs"]
mod refusals;
#[path = "nodes/removed_months.rs"]
mod removed_months;
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
    let node = deaf(url, name, role);
    node.store.follow_changes();
    node
}

/// A node that does not read the changes of others.
fn deaf(url: &str, name: &str, role: NodeRole) -> Node {
    let store = postgres::open(options(url, name, role)).expect("the store opens");
    let ledger = support::start(&store);
    Node { store, ledger }
}

fn node(url: &str, name: &str) -> Node {
    open(url, name, NodeRole::OneOfMany)
}

impl Node {
    /// Returns what the node has, and ends it.
    fn close(self) {
        self.ledger.return_all();
        self.store.close();
    }

    /// Loads an account, which another node has just made.
    fn has_account(&self, account: AccountId) {
        balance_of(&self.ledger, account);
    }
}

/// Waits until something holds that another thread brings about.
fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let polled = async {
        let mut often = tokio::time::interval(Duration::from_millis(10));
        while !holds() {
            often.tick().await;
        }
    };
    let found = wait(async { tokio::time::timeout(Duration::from_secs(10), polled).await });
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
    let report = audit(&**store).expect("the audit runs");
    let violations: Vec<String> = report.violations.iter().map(ToString::to_string).collect();
    assert!(report.clean(), "{}", violations.join("\n"));
    assert_eq!(report.sums.total(), Micros::ZERO, "{:?}", report.sums);
}

fn available(store: &Arc<dyn Store>, account: AccountId) -> i64 {
    let row = store.account(account).expect("a read").expect("an account");
    row.available.get()
}

/// Holds on nodes in turn, each repeated while other nodes are asked for their credit.
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
                match ledger.acquire(wanted, number % 2 == 0, |_| None).await {
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
        // Half of them cost less than they hold.
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
    let hold = wait(b.ledger.acquire(request(account, 1, 1_000), true, |_| None));
    let settlement = hold.expect("all of it").settle(settle(600));
    wait(settlement).expect("it is durable");
    let refused = wait(a.ledger.acquire(request(account, 2, 401), true, |_| None));
    assert!(
        matches!(
            refused,
            Err(HoldError::InsufficientCredit { available, .. }) if available == Micros::new(400)
        ),
        "{refused:?}"
    );
    // A shorter answer is decided on all that the account has.
    let within = wait(a.ledger.acquire(request(account, 3, 500), true, Some));
    assert_eq!(within.expect("a smaller one").amount(), Micros::new(400));
    wait(a.ledger.grant(credit_of(account, 50, "second", 900))).expect("it is booked");
    let more = credit_of(account, 50, "second", 901);
    let again = wait(b.ledger.grant(more)).expect("it is known");
    assert!(again.repeated, "a reference is booked once, at any node");
    assert_balanced(&a.store);
}

#[test]
fn credit_is_taken_from_an_account_wherever_it_is() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    b.has_account(account);
    // b has an allotment of some size, and 100 are held.
    let hold = wait(b.ledger.acquire(request(account, 1, 100), true, |_| None)).expect("a hold");
    let too_much = wait(a.ledger.correct(credit_of(account, -901, "too much", 900)));
    assert!(
        matches!(too_much, Err(CreditError::InsufficientCredit { .. })),
        "{too_much:?}"
    );
    wait(a.ledger.correct(credit_of(account, -900, "all", 901))).expect("all that is not held");
    wait(hold.settle(settle(100))).expect("it is durable");
    eventually("nothing is left", || available(&a.store, account) == 0);
    assert_balanced(&b.store);
}

#[test]
fn a_settlement_above_its_hold_takes_what_the_account_has_elsewhere() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000, 0);
    b.has_account(account);
    let other = wait(b.ledger.acquire(request(account, 1, 300), true, |_| None)).expect("a hold");
    let mut hold = wait(a.ledger.acquire(request(account, 2, 100), true, |_| None)).expect("one");
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
    let one = wait(a.ledger.acquire(request(account, 1, 90), true, |_| None)).expect("a hold");
    let two = wait(b.ledger.acquire(request(account, 2, 60), true, |_| None)).expect("a hold");
    let three = wait(a.ledger.acquire(request(account, 3, 1), true, |_| None));
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
    let b = deaf(&url, "b", NodeRole::OneOfMany);
    b.has_account(account);
    let mut hold = wait(b.ledger.acquire(request(account, 1, 100), true, |_| None)).expect("one");
    wait(hold.durable()).expect("it is durable");
    let number = b.store.node();
    // Its process has ended without a word.
    server.run(
        url.rsplit('/').next().expect("a name"),
        &format!("DELETE FROM leases WHERE node = {number}"),
    );
    let waits = wait(a.ledger.acquire(request(account, 2, 950), true, |_| None));
    assert!(
        matches!(waits, Err(HoldError::CreditUnavailable { .. })),
        "a node that does not answer is no reason for a 402: {waits:?}"
    );
    let recovered = open(&url, "a", NodeRole::Recovery(number));
    recovered.close();
    let refused = wait(commit_on(&b));
    assert!(refused.is_err(), "the crashed node is fenced off");
    let all = wait(a.ledger.acquire(request(account, 3, 1_000), true, |_| None));
    all.expect("all of it").release(NOW);
    assert_balanced(&a.store);
    std::mem::forget(hold);
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
    let hold = wait(a.ledger.acquire(request(account, 1, 10), true, |_| None)).expect("a hold");
    wait(hold.settle(settle(10))).expect("it is durable");
    let number = a.store.node();
    // Without giving its allotment back.
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

const KEY: CredentialId = CredentialId::from_bytes([9; 16]);

/// The first instant of the month after that of [`NOW`].
const NEXT_MONTH: Timestamp = Timestamp::from_secs(1_701_388_800);

fn cap(max: i64, period: CapPeriod) -> Option<SpendingCap> {
    let max = Micros::new(max);
    Some(SpendingCap { max, period })
}

/// Creates the key of an account.
fn key_with(node: &Node, account: AccountId, spending_cap: Option<SpendingCap>) {
    let key = NewCredential {
        id: KEY,
        hash: [9; 32],
        kind: CredentialKind::ApiKey,
        account,
        client_id: None,
        grant_id: None,
        resource: 1,
        scopes: 1,
        label: None,
        hint: None,
        models: None,
        spending_cap,
        created_at: NOW,
        expires_at: None,
    };
    write(node, Part::InsertCredential(Box::new(key)));
}

fn change_cap(node: &Node, account: AccountId, version: i64, cap: Option<SpendingCap>) {
    let change = CredentialChange {
        id: KEY,
        account,
        version,
        label: Arc::from("ci"),
        models: None,
        spending_cap: cap,
        spent: Micros::ZERO,
        expires_at: None,
        at: NOW,
    };
    write(node, Part::ChangeCredential(Box::new(change)));
}

fn write(node: &Node, part: Part) {
    let unit = UnitOfWork::of(part, Admission::Always);
    wait(commit(&*node.store, unit)).expect("it is committed");
}

fn operation_at(at: Timestamp, number: u64) -> OperationId {
    let mut unique = [0; 10];
    unique[2..].copy_from_slice(&number.to_be_bytes());
    OperationId::from_parts(at.as_millis().unsigned_abs(), unique)
}

/// A request that began now.
fn of_now(account: AccountId, number: u64, amount: i64) -> HoldRequest {
    HoldRequest {
        operation: operation_at(NOW, number),
        ..request(account, number, amount)
    }
}

fn of_key() -> UsageRecord {
    UsageRecord {
        credential: Some(KEY),
        ..usage()
    }
}

impl Node {
    /// Reserves a part of the cap, again while other nodes are asked for theirs.
    async fn reserve(
        &self,
        period: CapPeriod,
        account: AccountId,
        number: u64,
        amount: i64,
    ) -> Result<CapHold, Micros> {
        loop {
            let wanted = HoldRequest {
                at: NOW + Duration::from_millis(200 * number),
                ..of_now(account, number, amount)
            };
            match self
                .ledger
                .acquire_cap((KEY, period), wanted, |_| None)
                .await
            {
                Ok(hold) => return Ok(hold),
                Err(HoldError::CreditUnavailable { .. }) => {}
                Err(HoldError::InsufficientCredit { available, .. }) => return Err(available),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Charges the key, with a reservation of its cap or without.
    fn charge(
        &self,
        account: AccountId,
        number: u64,
        amount: i64,
        at: Timestamp,
        hold: Option<CapHold>,
    ) {
        self.has_account(account);
        let placed = wait(
            self.ledger
                .acquire(of_now(account, number, amount), false, |_| None),
        );
        let settlement = placed.expect("there is credit").settle(Settle {
            actual: Micros::new(amount),
            usage: of_key(),
            at,
        });
        match hold {
            Some(hold) => hold.settle(Micros::new(amount), at),
            None => {
                let of = (operation_at(NOW, number), at);
                self.ledger.count_uncapped(KEY, Micros::new(amount), of);
            }
        }
        wait(settlement).expect("it is durable");
    }

    /// What a cap leaves, by a request for more than that; later than each before, since a refusal is repeated for a moment.
    async fn left(&self, period: CapPeriod, account: AccountId) -> i64 {
        static LATER: AtomicU64 = AtomicU64::new(100);
        let number = LATER.fetch_add(1, Relaxed);
        let refused = self.reserve(period, account, number, 1_000_000).await;
        refused.expect_err("it is more than the cap").get()
    }

    /// Waits until a cap leaves so much: what others return is on its way.
    fn leaves(&self, period: CapPeriod, account: AccountId, left: i64) {
        let mut last = None;
        let polled = async {
            let mut often = tokio::time::interval(Duration::from_millis(10));
            while last.replace(self.left(period, account).await) != Some(left) {
                often.tick().await;
            }
        };
        let found = wait(async { tokio::time::timeout(Duration::from_secs(10), polled).await });
        assert!(found.is_ok(), "the cap leaves {last:?}, not {left}");
    }

    fn spent(&self, account: AccountId) -> i64 {
        let spent = self.store.credential_spent(account, KEY, Timestamp::MIN);
        spent.expect("a read").get()
    }
}

#[test]
fn of_five_times_the_requests_that_a_cap_allows_exactly_as_many_run_as_it_allows() {
    const COUNT: usize = 40;
    const AMOUNT: i64 = 1_000;
    let url = Postgres::shared().database();
    let nodes: Arc<[Node; 3]> = Arc::new([node(&url, "a"), node(&url, "b"), node(&url, "c")]);
    let [a, b, c] = &*nodes;
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000_000, 0);
    b.has_account(account);
    c.has_account(account);
    key_with(a, account, cap(COUNT as i64 * AMOUNT + 7, CapPeriod::Month));
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_time()
        .build()
        .expect("a runtime");
    let held = runtime.block_on(async {
        let mut tasks = tokio::task::JoinSet::new();
        for number in 0..5 * COUNT {
            let nodes = Arc::clone(&nodes);
            tasks.spawn(async move {
                let node = number % 3;
                let number = 1 + number as u64 % 2;
                let placed = nodes[node].reserve(CapPeriod::Month, account, number, AMOUNT);
                placed.await.map(|hold| (node, hold))
            });
        }
        tasks.join_all().await
    });
    let held: Vec<_> = held.into_iter().flatten().collect();
    assert_eq!(held.len(), COUNT);
    // Half of them cost less than they have reserved, which others can spend.
    for (index, (node, hold)) in held.into_iter().enumerate() {
        let amount = AMOUNT / (1 + index as i64 % 2);
        nodes[node].charge(account, 1_000 + index as u64, amount, NOW, Some(hold));
    }
    let spent = COUNT as i64 / 2 * (AMOUNT + AMOUNT / 2);
    let left = COUNT as i64 * AMOUNT + 7 - spent;
    for node in nodes.iter() {
        node.leaves(CapPeriod::Month, account, left);
        assert_eq!(node.spent(account), spent, "pages show what all have spent");
    }
    assert_balanced(&a.store);
}

#[test]
fn a_changed_cap_counts_what_was_spent_at_every_node() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    b.has_account(account);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let hold = wait(b.reserve(CapPeriod::Month, account, 1, 100)).expect("it is allowed");
    b.charge(account, 2, 100, NOW, Some(hold));
    a.leaves(CapPeriod::Month, account, 900);
    change_cap(&a, account, 0, cap(300, CapPeriod::Month));
    b.leaves(CapPeriod::Month, account, 200);
    // Spent at both nodes while there is no cap.
    change_cap(&a, account, 1, None);
    a.charge(account, 5, 30, NOW, None);
    b.charge(account, 6, 70, NOW, None);
    change_cap(&b, account, 2, cap(500, CapPeriod::Month));
    a.leaves(CapPeriod::Month, account, 300);
    change_cap(&b, account, 3, cap(1_000, CapPeriod::Total));
    a.leaves(CapPeriod::Total, account, 800);
    // A charge above its reservation counts, even where the cap is reached.
    let all = wait(b.reserve(CapPeriod::Total, account, 9, 800)).expect("all of it");
    b.charge(account, 10, 850, NOW, Some(all));
    change_cap(&b, account, 4, cap(1_300, CapPeriod::Total));
    a.leaves(CapPeriod::Total, account, 250);
}

#[test]
fn a_request_counts_in_the_month_in_which_it_began() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    b.has_account(account);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let hold = wait(b.reserve(CapPeriod::Month, account, 1, 1_000)).expect("all of it");
    a.leaves(CapPeriod::Month, account, 0);
    b.charge(account, 3, 400, NEXT_MONTH, Some(hold));
    a.leaves(CapPeriod::Month, account, 600);
    // Also where it is posted before anything of the new month is counted.
    b.close();
    let wanted = HoldRequest {
        operation: operation_at(NEXT_MONTH, 5),
        at: NEXT_MONTH,
        ..request(account, 5, 1_001)
    };
    let refused = wait(
        a.ledger
            .acquire_cap((KEY, CapPeriod::Month), wanted, |_| None),
    );
    assert!(
        matches!(&refused, Err(HoldError::InsufficientCredit { available, .. }) if *available == Micros::new(1_000)),
        "{refused:?}"
    );
}

#[test]
fn what_a_crashed_node_had_of_a_cap_is_recovered_and_what_it_spent_counts() {
    let server = Postgres::shared();
    let url = server.database();
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let b = deaf(&url, "b", NodeRole::OneOfMany);
    let hold = wait(b.reserve(CapPeriod::Month, account, 1, 100)).expect("it is allowed");
    let open = wait(b.reserve(CapPeriod::Month, account, 2, 50)).expect("it is allowed");
    b.charge(account, 3, 90, NOW, Some(hold));
    let number = b.store.node();
    server.run(
        url.rsplit('/').next().expect("a name"),
        &format!("DELETE FROM leases WHERE node = {number}"),
    );
    let all = a
        .ledger
        .acquire_cap((KEY, CapPeriod::Month), of_now(account, 4, 950), |_| None);
    let waits = wait(all);
    assert!(
        matches!(waits, Err(HoldError::CreditUnavailable { .. })),
        "a node that does not answer is no reason for a refusal: {waits:?}"
    );
    open_recovery(&url, number);
    a.leaves(CapPeriod::Month, account, 910);
    std::mem::forget(open);
    // A node that starts again has what is left to it; one that is alone counts by itself, and several again what it has spent.
    let hold = wait(a.reserve(CapPeriod::Month, account, 6, 10)).expect("it is allowed");
    a.charge(account, 7, 10, NOW, Some(hold));
    a.close();
    let a = node(&url, "a");
    a.leaves(CapPeriod::Month, account, 900);
    a.close();
    let alone = open_alone(&url);
    balance_of(&alone.ledger, account);
    let placed = alone.ledger.hold(of_now(account, 9, 200)).expect("a hold");
    let settlement = placed.settle(Settle {
        actual: Micros::new(200),
        usage: of_key(),
        at: NOW,
    });
    wait(settlement).expect("it is durable");
    alone.store.close();
    let c = node(&url, "c");
    c.leaves(CapPeriod::Month, account, 700);
    assert_balanced(&c.store);
}

/// An audit beside nodes that run finds nothing, and finds each figure that is not what the journals say.
#[test]
fn the_audit_checks_what_every_node_has_of_accounts_and_caps() {
    let server = Postgres::shared();
    let url = server.database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    b.has_account(account);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let open = wait(a.reserve(CapPeriod::Month, account, 1, 100)).expect("it is allowed");
    let hold = wait(b.reserve(CapPeriod::Month, account, 2, 100)).expect("it is allowed");
    b.charge(account, 3, 90, NOW, Some(hold));
    let number = b.store.node();
    b.close();
    assert_balanced(&a.store);
    let database = url.rsplit('/').next().expect("a name");
    for (change, undo) in [
        (
            "allotments SET available = available + 1",
            "allotments SET available = available - 1",
        ),
        (
            "allotments SET held = held + 1",
            "allotments SET held = held - 1",
        ),
        (
            "cap_allotments SET spent = spent + 1",
            "cap_allotments SET spent = spent - 1",
        ),
        (
            "cap_allotments SET granted = granted - 1",
            "cap_allotments SET granted = granted + 1",
        ),
        (
            "cap_allotments SET granted = granted + 1000",
            "cap_allotments SET granted = granted - 1000",
        ),
    ] {
        let of_node = |what: &str| format!("UPDATE {what} WHERE node_id = {number}");
        server.run(database, &of_node(change));
        let report = audit(&*a.store).expect("the audit runs");
        assert!(!report.clean(), "{change}");
        server.run(database, &of_node(undo));
        assert_balanced(&a.store);
    }
    drop(open);
}

fn open_recovery(url: &str, number: i64) {
    open(url, "a", NodeRole::Recovery(number)).close();
}
fn open_alone(url: &str) -> Node {
    open(url, "gateway", NodeRole::Alone)
}
