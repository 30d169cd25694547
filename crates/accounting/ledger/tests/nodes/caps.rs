//! Caps of keys with charges at several nodes.

use super::*;

pub(super) const KEY: CredentialId = CredentialId::from_bytes([9; 16]);

/// The first instant of the month after the month of [`NOW`].
pub(super) const NEXT_MONTH: Timestamp = Timestamp::from_secs(1_701_388_800);

/// The first instant of the month after [`NEXT_MONTH`].
pub(super) const THIRD_MONTH: Timestamp = Timestamp::from_secs(1_704_067_200);

pub(super) fn cap(max: i64, period: CapPeriod) -> Option<SpendingCap> {
    let max = Micros::new(max);
    Some(SpendingCap { max, period })
}

/// A cap of any amount: one of several nodes asks the database for the amount.
pub(super) fn of(period: CapPeriod) -> SpendingCap {
    let max = Micros::ZERO;
    SpendingCap { max, period }
}

/// Creates the key of an account.
pub(super) fn key_with(node: &Node, account: AccountId, spending_cap: Option<SpendingCap>) {
    write(node, support::key_of(KEY, account, spending_cap));
}

pub(super) fn change_cap(node: &Node, account: AccountId, version: i64, cap: Option<SpendingCap>) {
    change_cap_at(node, account, version, cap, NOW);
}

fn change_cap_at(
    node: &Node,
    account: AccountId,
    version: i64,
    cap: Option<SpendingCap>,
    at: Timestamp,
) {
    let change = CredentialChange {
        id: KEY,
        account,
        version,
        label: Arc::from("ci"),
        models: None,
        spending_cap: cap,
        spent: Micros::ZERO,
        expires_at: None,
        at,
    };
    write(node, Part::ChangeCredential(Box::new(change)));
}

pub(super) fn write(node: &Node, part: Part) {
    let unit = UnitOfWork::of(part, Admission::Always);
    wait(commit(&*node.store, unit)).expect("it is committed");
}

/// A request begun at [`NOW`].
pub(super) fn of_now(account: AccountId, number: u64, amount: i64) -> HoldRequest {
    HoldRequest {
        operation: operation_at(NOW, number),
        ..request(account, number, amount)
    }
}

pub(super) fn of_key() -> UsageRecord {
    UsageRecord {
        credential: Some(KEY),
        ..usage()
    }
}

impl Node {
    /// Reserves a part of the cap. Repeats while other nodes are asked for their allotments.
    pub(super) async fn reserve(
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
                .hold_cap((KEY, of(period)), wanted, |_| None)
                .finish()
                .await
            {
                Ok(hold) => return Ok(hold),
                Err(HoldError::CreditUnavailable { .. }) => {}
                Err(HoldError::InsufficientCredit { available, .. }) => return Err(available),
                Err(error) => panic!("{error}"),
            }
        }
    }

    /// Charges the key, with or without a reservation of its cap.
    pub(super) fn charge(
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
                .hold(of_now(account, number, amount).in_memory(), |_| None)
                .finish(),
        );
        let settlement = placed.expect("there is credit").settle(Settle {
            actual: Micros::new(amount),
            usage: of_key(),
            at,
        });
        let charged = Micros::new(amount);
        let of = (operation_at(NOW, number), at);
        let _ = match hold {
            Some(hold) => hold.settle(charged, at),
            None => self.ledger.count_uncapped(KEY, charged, of),
        };
        wait(settlement).expect("it is durable");
    }

    /// The remainder of a cap, from the refusal of a larger request. Each call is later than the previous call, since a refusal is cached
    /// for a moment.
    async fn left(&self, period: CapPeriod, account: AccountId) -> i64 {
        static LATER: AtomicU64 = AtomicU64::new(100);
        let number = LATER.fetch_add(1, Relaxed);
        let refused = self.reserve(period, account, number, 1_000_000).await;
        refused.expect_err("it is more than the cap").get()
    }

    /// Waits until the remainder of a cap is `left`. Returns of other nodes may be on their way.
    fn leaves(&self, period: CapPeriod, account: AccountId, left: i64) {
        let mut last = None;
        let polled = async {
            let mut often = tokio::time::interval(Duration::from_millis(10));
            while last.replace(self.left(period, account).await) != Some(left) {
                often.tick().await;
            }
        };
        let found = wait(async { tokio::time::timeout(Duration::from_secs(240), polled).await });
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
    // Half of the requests cost less than their reservation. Other requests can spend the rest.
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
    // Spent at both nodes while the key has no cap.
    change_cap(&a, account, 1, None);
    a.charge(account, 5, 30, NOW, None);
    b.charge(account, 6, 70, NOW, None);
    change_cap(&b, account, 2, cap(500, CapPeriod::Month));
    a.leaves(CapPeriod::Month, account, 300);
    change_cap(&b, account, 3, cap(1_000, CapPeriod::Total));
    a.leaves(CapPeriod::Total, account, 800);
    // A charge above its reservation counts, even when the cap is reached.
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
    // Also when the charge is posted before the first charge of the new month.
    b.close();
    let wanted = HoldRequest {
        operation: operation_at(NEXT_MONTH, 5),
        at: NEXT_MONTH,
        ..request(account, 5, 1_001)
    };
    let refused = wait(
        a.ledger
            .hold_cap((KEY, of(CapPeriod::Month)), wanted, |_| None)
            .finish(),
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
    let b = without_feed(&url, "b", NodeRole::OneOfMany);
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
        .hold_cap((KEY, of(CapPeriod::Month)), of_now(account, 4, 950), |_| {
            None
        })
        .finish();
    let waits = wait(all);
    assert!(
        matches!(waits, Err(HoldError::CreditUnavailable { .. })),
        "a node that does not answer is no reason for a refusal: {waits:?}"
    );
    open_recovery(&url, number);
    a.leaves(CapPeriod::Month, account, 910);
    std::mem::forget(open);
    // A restarted node has its remaining allotment. A node that is alone counts by itself. Several nodes count the spending of the single
    // node.
    let hold = wait(a.reserve(CapPeriod::Month, account, 6, 10)).expect("it is allowed");
    a.charge(account, 7, 10, NOW, Some(hold));
    a.close();
    let a = node(&url, "a");
    a.leaves(CapPeriod::Month, account, 900);
    a.close();
    let alone = open_alone(&url);
    balance_of(&alone.ledger, account);
    let placed = alone
        .ledger
        .hold(of_now(account, 9, 200), |_| None)
        .now()
        .expect("it is alone")
        .expect("a hold");
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

/// An audit beside running nodes finds no violation. The audit finds each figure that differs from the journals.
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
        if change.ends_with("granted - 1") {
            // The part of a charge above its reservation is committed after the charge.
            let mut looks = 0;
            let beside = audit_watched(&a.store, &mut |rows, _| {
                looks += u32::from(rows == "caps");
                if looks == 2 {
                    server.run(database, &of_node(undo));
                    looks += 1;
                }
            });
            let beside = beside.expect("the audit runs");
            assert!(beside.clean(), "{:?}", beside.violations);
            server.run(database, &of_node(change));
        }
        let report = audit(&a.store).expect("the audit runs");
        assert!(!report.clean(), "{change}");
        server.run(database, &of_node(undo));
        assert_balanced(&a.store);
    }
    drop(open);
}

/// The other node has begun to count before this node has heard of the cap.
#[test]
fn what_a_node_was_charged_before_it_has_heard_of_a_cap_counts_against_it() {
    let server = Postgres::shared();
    let url = server.database();
    let a = node(&url, "a");
    let b = without_feed(&url, "b", NodeRole::OneOfMany);
    let account = account_with(&a.store, &a.ledger, 1, 100_000, 0);
    key_with(&a, account, None);
    change_cap(&a, account, 0, cap(1_000, CapPeriod::Total));
    let first = wait(a.reserve(CapPeriod::Total, account, 1, 10)).expect("it is allowed");
    b.charge(account, 2, 100, NOW, None);
    let next = wait(b.reserve(CapPeriod::Total, account, 3, 10)).expect("it is allowed");
    let database = url.rsplit('/').next().expect("a name");
    let elsewhere = "SELECT granted FROM cap_allotments WHERE node_id = 0";
    assert_eq!(server.run(database, elsewhere), "100");
    drop((first, next));
    b.close();
    a.close();
    let a = node(&url, "a");
    assert_balanced(&a.store);
}

/// The node read of the recall while its clock was in the month before. The node kept no state of that month's cap.
#[test]
fn what_a_node_frees_that_hears_of_a_recall_by_its_first_take_is_returned_at_once() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let b = without_feed(&url, "b", NodeRole::OneOfMany);
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let open = wait(a.reserve(CapPeriod::Month, account, 1, 600)).expect("it is allowed");
    a.leaves(CapPeriod::Month, account, 400);
    let hold = wait(b.reserve(CapPeriod::Month, account, 2, 300)).expect("it is allowed");
    b.charge(account, 3, 100, NOW, Some(hold));
    a.leaves(CapPeriod::Month, account, 300);
    drop(open);
}

/// The cap's part under the charge could be neither used nor returned until a restart of the node. Also with a dropped settlement.
#[test]
fn a_charge_that_the_store_refuses_counts_against_no_cap() {
    refused_charge(true);
    refused_charge(false);
}

fn refused_charge(is_waited_for: bool) {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Total));
    let kept = wait(b.reserve(CapPeriod::Total, account, 1, 600)).expect("it is allowed");
    b.has_account(account);
    let wanted = of_now(account, 2, 100);
    let mut hold = wait(b.ledger.hold(wanted, |_| None).finish()).expect("there is credit");
    wait(hold.durable()).expect("it is durable");
    let settle = Settle {
        actual: Micros::new(100),
        usage: of_key(),
        at: NOW,
    };
    let attached = AttachedPart::new(move |_| answer_with_lost_claim(account));
    let settlement = hold.settle_with(settle, Some(attached));
    kept.settle(Micros::new(100), NOW).follow(&settlement);
    match is_waited_for {
        true => {
            let refused = wait(settlement);
            assert!(
                matches!(refused, Err(SettleError::Refused { .. })),
                "{refused:?}"
            );
        }
        false => {
            drop(settlement);
            wait(flush(&*b.store)).expect("it was decided");
        }
    }
    a.leaves(CapPeriod::Total, account, 1_000);
    assert_eq!(a.spent(account), 0);
    a.close();
    b.close();
}

/// A charge dated before its request could be in an earlier month than its request. The cap looks in neither place.
#[test]
fn a_request_counts_in_the_month_in_which_it_began_when_the_clock_is_set_back() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 1_000_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let wanted = HoldRequest {
        operation: operation_at(NEXT_MONTH, 3),
        at: NEXT_MONTH,
        ..request(account, 3, 400)
    };
    let reserved = a
        .ledger
        .hold_cap((KEY, of(CapPeriod::Month)), wanted, |_| None)
        .finish();
    let reserved = wait(reserved).expect("it is allowed");
    let hold = wait(a.ledger.hold(wanted.in_memory(), |_| None).finish()).expect("there is credit");
    let settlement = hold.settle(Settle {
        actual: Micros::new(400),
        usage: of_key(),
        at: NOW,
    });
    reserved.settle(Micros::new(400), NOW);
    wait(settlement).expect("it is durable");
    a.close();
    let b = node(&url, "b");
    assert_balanced(&b.store);
}

/// Another node has begun to count before.
#[test]
fn what_a_node_was_charged_that_ends_before_it_has_heard_of_a_cap_counts_against_it() {
    for is_killed in [true, false] {
        let server = Postgres::shared();
        let url = server.database();
        let a = node(&url, "a");
        let b = without_feed(&url, "b", NodeRole::OneOfMany);
        let account = account_with(&a.store, &a.ledger, 1, 100_000, 0);
        key_with(&a, account, None);
        change_cap(&a, account, 0, cap(1_000, CapPeriod::Total));
        let open = wait(a.reserve(CapPeriod::Total, account, 1, 10)).expect("it is allowed");
        b.charge(account, 2, 100, NOW, None);
        if is_killed {
            let number = b.store.node();
            let database = url.rsplit('/').next().expect("a name");
            let end = format!("DELETE FROM leases WHERE node = {number}");
            server.run(database, &end);
            open_recovery(&url, number);
        } else {
            b.close();
        }
        a.leaves(CapPeriod::Total, account, 890);
        drop(open);
        assert_balanced(&a.store);
    }
}

#[test]
fn a_charge_in_the_next_month_counts_against_a_cap_that_its_node_has_not_heard_of() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let b = without_feed(&url, "b", NodeRole::OneOfMany);
    let account = account_with(&a.store, &a.ledger, 1, 100_000, 0);
    key_with(&a, account, None);
    change_cap(&a, account, 0, cap(1_000, CapPeriod::Month));
    let open = wait(a.reserve(CapPeriod::Month, account, 1, 10)).expect("it is allowed");
    b.charge(account, 2, 100, NEXT_MONTH, None);
    a.leaves(CapPeriod::Month, account, 890);
    drop(open);
}

/// Requests of the month go on at nodes with slow clocks.
#[test]
fn a_node_that_is_in_a_later_month_is_not_waited_for() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100_000, 0);
    b.has_account(account);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    drop(wait(a.reserve(CapPeriod::Month, account, 1, 10)));
    b.leaves(CapPeriod::Month, account, 1_000);
    // In the third month the node has dropped its allotment.
    for (month, number) in [(NEXT_MONTH, 3), (THIRD_MONTH, 4)] {
        let later = HoldRequest {
            operation: operation_at(month, number),
            at: month,
            ..request(account, number, 10)
        };
        let later = (a.ledger)
            .hold_cap((KEY, of(CapPeriod::Month)), later, |_| None)
            .finish();
        drop(wait(later));
        for part in 0..Ledger::PARTS {
            a.ledger.return_idle(part, month);
        }
        // The cap has a large remainder again, followed by another recall.
        drop(wait(b.reserve(
            CapPeriod::Month,
            account,
            1_000 * number,
            1,
        )));
        b.leaves(CapPeriod::Month, account, 1_000);
    }
}

/// The node had dropped its allotment of the month. A later charge was not added to the node's grant, and other nodes spent the amount
/// again.
#[test]
fn a_charge_counts_in_the_month_to_which_the_clock_of_its_node_is_set_back() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    drop(wait(a.reserve(CapPeriod::Month, account, 1, 10)));
    b.leaves(CapPeriod::Month, account, 1_000);
    for part in 0..Ledger::PARTS {
        a.ledger.return_idle(part, NEXT_MONTH);
    }
    a.charge(account, 2, 100, NOW, None);
    b.leaves(CapPeriod::Month, account, 900);
    a.close();
    assert_balanced(&b.store);
}

/// The audit reported the past month.
#[test]
fn a_cap_may_be_set_below_what_was_spent_in_the_month_before() {
    let url = Postgres::shared().database();
    let a = node(&url, "a");
    let account = account_with(&a.store, &a.ledger, 1, 100_000, 0);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let hold = wait(a.reserve(CapPeriod::Month, account, 1, 600)).expect("it is allowed");
    a.charge(account, 1, 600, NOW, Some(hold));
    let later = HoldRequest {
        operation: operation_at(NEXT_MONTH, 2),
        at: NEXT_MONTH,
        ..request(account, 2, 10)
    };
    let later = (a.ledger)
        .hold_cap((KEY, of(CapPeriod::Month)), later, |_| None)
        .finish();
    drop(wait(later));
    change_cap_at(&a, account, 0, cap(500, CapPeriod::Month), NEXT_MONTH);
    assert_balanced(&a.store);
}

/// The take of the node removed every allotment of earlier months. Later spending of other nodes did not count.
#[test]
fn a_node_whose_clock_is_months_ahead_removes_no_part_that_another_one_has() {
    let url = Postgres::shared().database();
    let (a, b) = (node(&url, "a"), node(&url, "b"));
    let account = account_with(&a.store, &a.ledger, 1, 100_000, 0);
    b.has_account(account);
    key_with(&a, account, cap(1_000, CapPeriod::Month));
    let hold = wait(b.reserve(CapPeriod::Month, account, 1, 500)).expect("it is allowed");
    let later = HoldRequest {
        operation: operation_at(THIRD_MONTH, 2),
        at: THIRD_MONTH,
        ..request(account, 2, 10)
    };
    let later = (a.ledger)
        .hold_cap((KEY, of(CapPeriod::Month)), later, |_| None)
        .finish();
    drop(wait(later));
    // With the corrected clock, before the charge at the other node.
    drop(wait(a.reserve(CapPeriod::Month, account, 4, 10)).expect("it is allowed"));
    b.charge(account, 3, 500, NOW, Some(hold));
    a.leaves(CapPeriod::Month, account, 500);
    b.close();
    assert_balanced(&a.store);
}
